"""Deep deterministic policy gradient (DDPG), and TD3, which is the same under another configuration.

    agent = DDPG(env.single_observation_space, env.single_action_space, TD3Config(), seed=0)
    replay = agent.new_replay()
    metrics = agent.update(agent.minibatches(replay))

Sources: Lillicrap et al., "Continuous control with deep reinforcement learning", 2016; Fujimoto et al., "Addressing
Function Approximation Error in Actor-Critic Methods", 2018. Implementations differ. Here, the target networks follow
each step of the actor, as in TD3; observations are not normalised, and weights are not decayed.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from hybridppo._lazy import showing_fields
from hybridppo.agents.agent import Exchange, OptimizationLoop, PolicyAgent, diverged, fill_gradient
from hybridppo.agents.recorded_step import RecordedStep, recorder_for
from hybridppo.agents.schedules import OfOnePolicy, ScheduleFunction, check_schedules, parsed
from hybridppo.distributions.base import Distribution
from hybridppo.distributions.deterministic import Exploration, deterministic_actions
from hybridppo.errors import EnvError
from hybridppo.interfaces import Metrics
from hybridppo.networks.layers import MLP, Activation
from hybridppo.networks.making import sizes_of_critic
from hybridppo.networks.modes import Precision, learning_mode, share_buffers
from hybridppo.networks.parameters import FlatAdam, FlatParameters
from hybridppo.rollouts.replay import Replay, Transitions
from hybridppo.rollouts.rollout import MemoryLayout
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.system import validation as checks
from hybridppo.system.threads import limit_threads
from hybridppo.system.validation import ANY_TIME, BETWEEN_TRAININGS, SAME_RESULT, Rule, check_fields, require, whole

RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(("num_envs", "train_frequency", "gradient_steps", "batch_size", "buffer_size"), checks.COUNT),
    **dict.fromkeys(("steps_per_iteration", "n_steps", "policy_delay"), checks.COUNT),
    **dict.fromkeys(("learning_rate", "critic_learning_rate"), checks.POSITIVE),
    **dict.fromkeys(
        ("learning_starts", "exploration_std", "target_noise_std", "target_noise_clip"), checks.NOT_NEGATIVE
    ),
    "gamma": checks.SHARE,
    "tau": (("must be above 0 and at most 1", lambda tau: 0 < tau <= 1),),
    "torch_threads": checks.THREADS,
}
"""What the numbers must be; those of TD3 alone are constants of DDPG."""
BufferSide = Literal["learner", "host"]
STATISTICS = ("value_loss", "q_value", "policy_loss")
"""The statistics of a step, in order: the first two from the pass of the critics, the last from that of the actor."""
CRITIC, ACTOR = "critic", "actor"
"""The passes of a step, named after the networks that learn."""
ACTOR_GAIN, CRITIC_GAIN = 0.01, 1.0
"""Gains of the last layers: initially, every action is near the middle of its bounds."""
MINIBATCHES_AT_ONCE = 32
"""Minibatches that are gathered and copied together."""


@showing_fields
@dataclass(frozen=True)
class DDPGConfig(OfOnePolicy):
    """DDPG's hyperparameters. Invalid values are refused with the field and the rule."""

    num_envs: int = field(default=1, metadata=BETWEEN_TRAININGS)
    """Environments that are stepped together."""
    train_frequency: int = field(default=1, metadata=BETWEEN_TRAININGS)
    """Steps of each environment between two updates. With a large number, sampling and updates alternate in long turns.
    """
    gradient_steps: int | None = field(default=None, metadata=ANY_TIME)
    """Optimizer steps per update; None for as many as environment steps were sampled (train_frequency * num_envs)."""
    batch_size: int = field(default=256, metadata=ANY_TIME)
    """Transitions in a minibatch."""
    buffer_size: int = field(default=1_000_000, metadata=BETWEEN_TRAININGS)
    """Transitions in the replay buffer, of all environments together; new ones replace the oldest."""
    buffer_on: BufferSide = field(default="learner", metadata=SAME_RESULT | BETWEEN_TRAININGS)
    """Where the replay buffer is: "learner" for the learning device, to which every transition is copied once; or
    "host" for main memory, from which minibatches are copied, for buffers that do not fit into a GPU's memory."""
    learning_starts: int = 1_000
    """Environment steps of all environments before the first update; their actions are drawn uniformly."""
    steps_per_iteration: int = field(default=1_000, metadata=ANY_TIME)
    """Environment steps of all environments for each line of metrics."""
    learning_rate: float = field(default=1e-3, metadata=ANY_TIME)
    """Learning rate of Adam."""
    critic_learning_rate: float | None = field(default=None, metadata=ANY_TIME)
    """Learning rate of the critic; None for the same as the actor's."""
    schedules: str = field(default="", metadata=BETWEEN_TRAININGS)
    """Named schedules of learning rates: linear, cosine or constant, with a share of the training for warm-up, as
    "learning_rate=cosine:0.05". Also a dict or JSON."""
    gamma: float = field(default=0.99, metadata=ANY_TIME)
    """Discount per step."""
    n_steps: int = field(default=1, metadata=BETWEEN_TRAININGS)
    """Number of steps whose rewards a target sums before it adds the critic's value."""
    tau: float = field(default=0.005, metadata=ANY_TIME)
    """The share of the way that target networks move towards the learned networks after each step of the actor."""
    exploration_std: float = 0.1
    """Standard deviation of the Gaussian noise on the actions while sampling, for actions from -1 to 1 (which are then
    scaled to the bounds of their space)."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Sizes of the hidden layers of actor and critics."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Sizes of the critics' hidden layers; None for those of hidden_sizes."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    fast_updates: bool = field(default=True, metadata=SAME_RESULT | ANY_TIME)
    """On a CUDA device, record the optimizer step as a graph and replay it: the same result up to rounding."""
    cuda_graphs: bool = field(default=False, metadata=SAME_RESULT | ANY_TIME)
    """On a CUDA device, record the steps of a subclass of your own, too, which must do the same on every minibatch."""
    torch_threads: int | None = field(default=1, metadata=SAME_RESULT | BETWEEN_TRAININGS)
    """CPU threads (default 1). None: chosen by `auto`, otherwise 1. Other counts change rounding."""
    settings: dict[str, Any] = field(default_factory=dict, hash=False, metadata=ANY_TIME | {"json": True})
    """Hyperparameters of your own by name, which a loss, a subclass or a callback reads (`agent.settings`). JSON must
    be able to hold them."""
    policy_delay = 1
    target_noise_std = target_noise_clip = 0.0
    schedulable: ClassVar[tuple[str, ...]] = ("learning_rate", "critic_learning_rate")
    """Fields that may have a schedule."""
    num_critics: ClassVar[int] = 1
    """The number of critics; targets use the lowest value."""
    episodes_per_rollout: ClassVar[int | None] = None
    """None: rollouts have a fixed number of steps."""
    precision: ClassVar[Precision] = "fp32"
    """Precision of matrix products."""

    def __post_init__(self) -> None:
        check_fields(self, RULES)
        check_schedules(self)
        rows = self.train_frequency * self.num_envs
        room = f"must hold what is sampled for an update, train_frequency * num_envs = {rows}, and n_steps"
        require(self, "buffer_size", self.buffer_size >= max(rows, self.n_steps * self.num_envs), room)

    @property
    def named_schedules(self) -> dict[str, str]:
        """The named schedules, by field."""
        return parsed(self.schedules)

    @property
    def num_steps(self) -> int:
        """Steps of each environment per rollout."""
        return self.train_frequency

    @property
    def steps_per_update(self) -> int:
        """Optimizer steps of an update."""
        return self.train_frequency * self.num_envs if self.gradient_steps is None else self.gradient_steps


@showing_fields
@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """TD3's hyperparameters: those of DDPG, with two critics and smoothed targets against overestimation."""

    policy_delay: int = field(default=2, metadata=ANY_TIME)
    """Optimizer steps of the critics for each step of the actor and of the target networks."""
    target_noise_std: float = field(default=0.2, metadata=ANY_TIME)
    """Standard deviation of the noise on the actions of targets, which smooths the critics' targets."""
    target_noise_clip: float = field(default=0.5, metadata=ANY_TIME)
    """Largest absolute value of the noise on the actions of targets."""
    num_critics: ClassVar[int] = 2


class Critics(nn.Module):
    """`[B, obs]` and `[B, d]` -> `[B, C]`: the value of an action by each of `C` critics."""

    def __init__(self, critics: list[MLP]) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values of all critics."""
        inputs = torch.cat((observations, actions), dim=-1)
        return torch.cat([critic(inputs) for critic in self.critics], dim=-1)

    def first(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The value of the first critic, `[B, 1]`."""
        return self.critics[0](torch.cat((observations, actions), dim=-1))


class DDPG(PolicyAgent):
    """DDPG, or TD3, with multilayer perceptrons.

    Args:
        observation_space: space of one environment, of any kind in `hybridppo/spaces/` except images.
        action_space: space of one environment: a `Box` with finite bounds.
        config: the hyperparameters.
        seed: seed of the initial parameters, and of draws from the replay buffer.
        modules: further networks by name. The agent copies them (`modules_of`); the copies learn from `critic_loss`.
        schedules: functions of the progress of the training, 0 to 1, by the names of learning rates; named schedules
            are in the configuration.

    Raises:
        ConfigurationError: if a schedule is for a field that cannot have one.
        EnvError: if a space is not supported.
    """

    name: ClassVar[str] = "ddpg"
    """Name of the agent in files."""
    config_type: ClassVar[type[DDPGConfig]] = DDPGConfig
    config: DDPGConfig
    exploration: Exploration
    """The distribution that a sampler draws actions from."""
    critics: Any
    """The critics, which are `critic`, too."""
    target_actor: nn.Module
    """The target network of the actor, like `actor`."""
    target_critics: Any
    """The target networks of the critics."""
    acts_by_values: bool
    """Whether one network has the values of actions and acts by them."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        config: DDPGConfig | None = None,
        *,
        seed: int = 0,
        modules: Mapping[str, nn.Module] | None = None,
        schedules: Mapping[str, ScheduleFunction] | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, config, seed, schedules, modules)
        self.exploration = self.make_distribution()
        without_warmup = copy.copy(self.exploration)
        without_warmup.warmup = 0
        self.distribution: Distribution = without_warmup
        # Initial values depend on the number of threads, and starting threads takes longer than the work.
        with limit_threads(1):
            self.actor, self.critics = self.make_networks(torch.Generator().manual_seed(self._initial_seed))
        self.critic: nn.Module = self.critics
        self.acts_by_values = self.actor is self.critics
        self.parameters = FlatParameters({"actor": self.actor, "critic": self.critic, **self._learning_modules})
        self.optimizer = FlatAdam(self.parameters, self._learning_rates(), apart=True)
        # Beside the moments, so that a placement moves them together.
        values = self.parameters.values.data
        self.optimizer.state[self.parameters.values] |= {
            "target": values.clone(),
            "statistics": values.new_zeros(len(STATISTICS)),
        }
        self.memory: MemoryLayout | None = None
        """None: the actor is not recurrent."""
        self._counts = {"gradient_steps": 0, "measured": 0, "measured_actor": 0}
        self._further: dict[str, Tensor] = {}
        """The metrics of the last `after_update`."""
        # Draws ahead of `_order`, which follows after an update.
        self._ahead = np.random.default_rng(self._noise_seed)

    def make_distribution(self) -> Exploration:
        """The distribution that a sampler draws actions from; called once. A subclass may have another."""
        config = self.config
        return deterministic_actions(self.action_space, std=config.exploration_std, warmup=config.learning_starts)

    def make_networks(self, generator: torch.Generator) -> tuple[nn.Module, Critics]:
        """Actor and critics, of multilayer perceptrons; called once. A subclass may have others.

        If both are the same network, actions follow from its values, as in DQN: it learns by `critic_loss` alone.

        Raises:
            EnvError: if observations are images or stacks of frames, or have action masks.
        """
        config, encode, space = self.config, self._encode, self.observation_space
        if isinstance(space, MaskedObservation):
            raise EnvError(
                "action_masks=True is for choices among few actions, and DDPG and TD3 act in a Box: leave it out"
            )
        if encode.frames is not None:
            raise EnvError(
                f"frame_stack={encode.frames.num_frames} is for PPO: leave it out, or stack within the environment"
            )
        if encode.layout.images or encode.layout.items:
            raise EnvError(
                f"the observation space {space} has images or items, which DDPG and TD3 have no layers for: use PPO, "
                "or a wrapper that makes numbers of them"
            )

        mlp = partial(MLP, activation=config.activation, generator=generator)
        actor = mlp(encode.size, config.hidden_sizes, self.distribution.output_size, output_gain=ACTOR_GAIN)
        critic = partial(mlp, encode.size + self.exploration.size, sizes_of_critic(config), 1, output_gain=CRITIC_GAIN)
        return actor, Critics([critic() for _ in range(config.num_critics)])

    def _learning_rates(self) -> dict[str, float]:
        rates = super()._learning_rates()
        return rates | {"actor": rates["critic"]} if self.acts_by_values else rates

    def new_replay(self) -> Replay:
        """An empty replay buffer, with the parameters or on the host (`buffer_on`)."""
        config, drawn = self.config, self.distribution
        device = self.parameters.values.device if config.buffer_on == "learner" else torch.device("cpu")
        shapes: dict[str, Any] = {"observation": self._encode.shape, "action": drawn.action_shape}
        capacity, dtype = config.buffer_size // config.num_envs, np.dtype(drawn.action_dtype)
        return Replay(capacity, config.num_envs, **shapes, action_dtype=dtype.name, device=device)

    def minibatches(self, replay: Replay) -> Iterator[Any]:
        """The minibatches of the next update, in parts `[G, B, ...]`, on the device of the replay buffer.

        Until `update` has learned from these minibatches, a further call draws the same rows again.
        """
        config, generator = self.config, self._ahead
        generator.bit_generator.state = self._order.bit_generator.state
        if not replay.num_valid:
            return
        for first in range(0, config.steps_per_update, MINIBATCHES_AT_ONCE):
            size = min(MINIBATCHES_AT_ONCE, config.steps_per_update - first)
            rows = replay.draw(generator, (size, config.batch_size))
            noise: Any = np.zeros((*rows.shape, self.exploration.size), np.float32)
            if config.target_noise_std > 0.0:  # drawn on the host, so that the result does not depend on the device
                noise = generator.standard_normal(noise.shape, np.float32) * np.float32(config.target_noise_std)
            yield replay.gather(rows, noise, n_steps=config.n_steps, gamma=config.gamma)

    def critic_loss(self, minibatch: Transitions) -> tuple[Tensor, Tensor]:
        """The loss of the critics, a scalar, and their values `[B, C]`; a subclass may have another."""
        with torch.no_grad():
            actions = self.target_actor(minibatch.next_observations).tanh_()
            actions = smoothed(actions=actions, noise=minibatch.noise, clip=self.config.target_noise_clip)
            following = self.target_critics(minibatch.next_observations, actions)
            target = targets(returns=minibatch.returns, discounts=minibatch.discounts, next_values=following)
        values = self.critics(minibatch.observations, minibatch.actions)
        return critic_loss(values=values, targets=target), values

    def actor_loss(self, minibatch: Transitions) -> Tensor:
        """The loss of the actor, a scalar: the negative mean value of the first critic. A subclass may have another."""
        actions = self.actor(minibatch.observations).tanh()
        values: Tensor = self.critics.first(minibatch.observations, actions)
        return -values.mean()

    def update(self, minibatches: Iterable[Any], /) -> Metrics:
        """An optimizer step on each minibatch, on the agent's device. Without a minibatch, nothing changes.

        Returns:
            An empty dict: `take_metrics` reads the statistics of many updates with one wait for the device.

        Raises:
            Stopped: if `should_stop` returns True. The agent is then as it was before.
        """
        counts, sums = dict(self._counts), self.optimizer.state[self.parameters.values]["statistics"]
        is_undone = self.undoes_updates
        with self._updating() as loop, self._undone_if_broken_off() if is_undone else nullcontext():
            part: Any = None
            for part in minibatches:
                for of_critics, *of_actor in loop.steps(self._with_passes(part, counts)):
                    sums[:2] += of_critics
                    if of_actor:
                        sums[2:] += of_actor[0]
            if part is None:
                return {}
            self._order.bit_generator.state = self._ahead.bit_generator.state
            if is_undone:
                self._further = self._further_metrics(part, {})
        self._counts = counts
        self.version += 1
        return {}

    @property
    def undoes_updates(self) -> bool:
        """Whether an update that is broken off is undone; a single step of the library's is only stopped before it."""
        return self.config.steps_per_update > 1 or "agent" in self.own

    def _with_passes(self, part: Any, counts: dict[str, int]) -> Iterator[tuple[Any, tuple[str, ...]]]:
        """Each minibatch with the networks that learn from it; counts the steps."""
        for minibatch in part.unbind():
            moves_actor = not self.acts_by_values and (counts["gradient_steps"] + 1) % self.config.policy_delay == 0
            yield minibatch, (ACTOR,) if self.acts_by_values else (CRITIC, ACTOR) if moves_actor else (CRITIC,)
            counts["measured"] += 1
            counts["gradient_steps"] += 1
            counts["measured_actor"] += moves_actor

    def _made_loop(self, exchange: Exchange) -> OptimizationLoop:
        # The target networks are views of their flat tensor, which moves with the optimizer's state.
        self.target_actor, self.target_critics, modules = copy.deepcopy(
            (self.actor, self.critics, self._learning_modules)
        )
        networks = {"actor": self.target_actor, "critic": self.target_critics, **modules}
        targets = FlatParameters(networks, self.parameters.alignment)
        targets.rebind(self.optimizer.state[self.parameters.values]["target"])
        for target, network in ((self.target_actor, self.actor), (self.target_critics, self.critics)):
            share_buffers(target, network)
            target.eval()
        loop, record = OptimizationLoop(self, Backend(self), exchange), recorder_for(self)
        if record is not None:
            loop.whole_step = RecordedStep(loop, self, record)
        return loop

    def take_metrics(self) -> Metrics:
        """Means of the statistics since the last call; NaN if there were none. Waits for the device.

        Raises:
            TrainingError: if a loss or the parameters are not finite. The agent cannot be used any more.
        """
        sums = self.require_finite()
        self.optimizer.state[self.parameters.values]["statistics"].zero_()
        counts = self._counts["measured"], self._counts["measured"], self._counts["measured_actor"]
        rates = self.optimizer.learning_rates
        means = [total / count if count else math.nan for total, count in zip(sums, counts, strict=True)]
        self._counts |= {"measured": 0, "measured_actor": 0}
        if self.acts_by_values:
            del means[-1]
        return {
            **dict(zip(STATISTICS, means, strict=False)),
            **(self._loop.metrics() if self._loop is not None else {}),
            "gradient_steps": self._counts["gradient_steps"],
            "learning_rate": rates["actor"],
            **({"critic_learning_rate": rates["critic"]} if "critic_learning_rate" in self._schedules.fields else {}),
            **{name: float(value) for name, value in self._further.items()},
        }

    def require_finite(self) -> list[float]:
        """The sums of `STATISTICS` since the last `take_metrics`.

        Raises:
            TrainingError: if one of them, or a parameter, is not finite.
        """
        values = self.parameters.values.data
        statistics = self.optimizer.state[self.parameters.values]["statistics"]
        sums: list[float]
        *sums, norm = torch.cat((statistics, values.dot(values).reshape(1))).tolist()
        if not all(map(math.isfinite, (*sums, norm))):
            quantities = zip((*STATISTICS, "the norm of the parameters"), torch.tensor([*sums, norm]), strict=True)
            raise diverged(f"after update {self.version}", quantities, self.config)
        return sums

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:  # noqa: D102 - as in the base
        tensors, state = super().state()
        return tensors, state | {"counts": dict(self._counts), "exploration": self.exploration.state()}

    def load_state(self, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:  # noqa: D102 - as in the base
        super().load_state(tensors, state)
        if not any(name.startswith("optimizer.") for name in tensors):  # target networks are equal to the networks
            for name, slot in self.optimizer.state[self.parameters.values].items():
                slot.copy_(self.parameters.values.data if name == "target" else torch.zeros_like(slot))
        self._counts = {name: whole(state["counts"], name) for name in self._counts}
        self.exploration.load_state(state["exploration"])


class TD3(DDPG):
    """DDPG with `TD3Config`: two critics, smoothed targets and a delayed actor, by the hyperparameters alone.

    Arguments are those of `DDPG`.
    """

    name: ClassVar[str] = "td3"
    config_type: ClassVar[type[DDPGConfig]] = TD3Config


class Backend:
    """Gradients by autograd, on any device: the reference for other backends."""

    extra_names = ()

    def __init__(self, agent: Any) -> None:
        self._agent, self._parameters, self._optimizer = agent, agent.parameters, agent.optimizer
        self._target = agent.optimizer.state[agent.parameters.values]["target"]
        modules = agent._learning_modules
        self._learning = {CRITIC: learning_mode(agent.critics, *modules.values()), ACTOR: learning_mode(agent.actor)}
        first = ACTOR if agent.acts_by_values else CRITIC
        self._together = {CRITIC: (CRITIC,), ACTOR: (ACTOR,)} | {first: (first, *modules)}
        """The networks that learn from the loss of each pass: modules learn from that of the critics."""

    def gradient(self, minibatch: Transitions, network: str) -> Any:
        """Fill the gradient of one network with that of its loss; no other gradient is computed.

        Returns:
            `[2]` or `[1]`: the part of `STATISTICS` that is measured in this pass.
        """
        with self._learning[network]():
            if network == CRITIC or self._agent.acts_by_values:
                loss, values = self._agent.critic_loss(minibatch)
                measured = torch.stack((loss.detach(), values.detach().mean()))
            else:
                loss = self._agent.actor_loss(minibatch)
                measured = loss.detach().reshape(1)
            fill_gradient(self._parameters, loss, *self._together[network])
        return measured

    def descend(self, network: str) -> None:
        """Step one network along its gradient; the target networks follow the actor's steps."""
        for each in self._together[network]:
            self._optimizer.step_part(each)
        if network == ACTOR:
            self._target.lerp_(self._parameters.values.data, self._agent.config.tau)


def smoothed(*, actions: Tensor, noise: Tensor, clip: float) -> Tensor:
    """The target actor's actions with clipped noise, from -1 to 1.

    Args:
        actions: `[B, d]`, from -1 to 1.
        noise: `[B, d]`.
        clip: the largest absolute value of the noise.
    """
    return (actions + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


def targets(*, returns: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """`returns + discounts * min over critics of next_values`, `[B]`.

    Args:
        returns: `[B]`, the discounted rewards of the steps.
        discounts: `[B]`, of the next observations; 0 after a terminated episode.
        next_values: `[B, C]`, from each target critic.
    """
    return returns + discounts * next_values.amin(-1)


def critic_loss(*, values: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error over the minibatch, summed over critics.

    Args:
        values: `[B, C]`.
        targets: `[B]`.
    """
    return (values - targets.unsqueeze(-1)).square().mean(0).sum()
