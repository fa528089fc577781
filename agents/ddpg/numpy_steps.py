"""The optimizer steps of DDPG and TD3 written out by hand in NumPy, on a CPU: equal to `AutogradSteps` up to rounding.

For networks of common sizes a good part of torch's time is overhead. Both critics pass as one stack, and the actor's
step computes no gradient that nobody needs: of the critic, that of its inputs that are actions alone.
"""

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.agents.ddpg.gradient_steps import StepByStep
from hybridppo.agents.ddpg.numpy_mlp import StackedMLP
from hybridppo.networks.forms import is_on_cpu, linears, numpy_form
from hybridppo.networks.parameters import FlatParameters
from hybridppo.rollouts.replay import Transitions

if TYPE_CHECKING:
    from hybridppo.agents.ddpg.ddpg import DDPG

Array = NDArray[Any]


class NumpySteps(StepByStep):
    """Forward and backward passes in NumPy.

    Views the parameters' memory as it is when made: make another after parameters have moved.

    Args:
        agent: with its parameters where they stay, on the CPU.
    """

    def __init__(self, agent: "DDPG") -> None:
        self._parameters, self._optimizer, self._config = agent.parameters, agent.optimizer, agent.config
        slots = agent.optimizer.state[agent.parameters.values]
        self._target, self._statistics = slots["target"], slots["statistics"].numpy()
        form = numpy_form(agent.actor)
        assert form is not None
        target_actor, target_critics = copy.deepcopy(agent.actor), copy.deepcopy(agent.critics)
        networks = {"actor": target_actor, "critic": target_critics}
        FlatParameters(networks, agent.parameters.alignment).rebind(self._target)
        critics = [linears(critic) for critic in agent.critics.critics]
        self._actor = StackedMLP([linears(agent.actor)], form.activation)
        self._critics = StackedMLP(critics, form.activation)
        self._first_critic = StackedMLP(critics[:1], form.activation)
        self._target_actor = StackedMLP([linears(target_actor)], form.activation)
        self._target_critics = StackedMLP([linears(critic) for critic in target_critics.critics], form.activation)

    @staticmethod
    def supports(agent: "DDPG") -> bool:
        """Whether this form knows the networks, and they are on the CPU: those with hidden layers of tanh or ReLU."""
        return is_on_cpu(agent.actor) and numpy_form(agent.actor) is not None

    def critic_step(self, batch: Transitions, noise: Tensor) -> None:
        """A step of the critics on a minibatch; the formulas are in `targets.py`."""
        limit = np.float32(self._config.target_noise_clip)
        following = batch.next_observations.numpy()
        actions = np.tanh(self._target_actor.forward(following)[0])
        actions += np.minimum(np.maximum(noise.numpy(), -limit), limit)
        _limit(actions)
        next_values = self._target_critics.forward(np.concatenate((following, actions), axis=1))[..., 0].min(0)
        wanted = batch.discounts.numpy() * next_values
        wanted += batch.returns.numpy()
        inputs = np.concatenate((batch.observations.numpy(), batch.actions.numpy()), axis=1)
        values = self._critics.forward(inputs)[..., 0]
        errors = values - wanted
        size = np.float32(len(wanted))
        # d / d value of the mean squared error
        self._critics.backward((errors * (np.float32(2.0) / size))[..., None])
        self._statistics[0] += np.square(errors).sum() / size
        self._statistics[1] += values.mean()
        self._optimizer.step_part("critic")

    def actor_step(self, batch: Transitions) -> None:
        """A step of the actor on a minibatch, towards what the first critic values most."""
        observations = batch.observations.numpy()
        size, width = observations.shape
        actions = np.tanh(self._actor.forward(observations)[0])
        values = self._first_critic.forward(np.concatenate((observations, actions), axis=1))
        d_values = np.full((1, size, 1), np.float32(-1.0 / size))
        d_actions = self._first_critic.input_gradient(d_values, slice(width, None))
        d_actions *= np.float32(1.0) - actions * actions  # d tanh(z) / dz = 1 - tanh(z)^2
        self._actor.backward(d_actions)
        self._statistics[2] -= values.mean()
        self._optimizer.step_part("actor")

    def follow(self) -> None:
        """Move the target networks towards the others."""
        self._target.lerp_(self._parameters.values.data, self._config.tau)


def _limit(actions: Array) -> None:
    """To -1 and 1, in place; `np.clip` without its checks."""
    np.maximum(actions, np.float32(-1.0), out=actions)
    np.minimum(actions, np.float32(1.0), out=actions)
