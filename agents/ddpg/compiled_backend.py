"""The optimizer step of DDPG and TD3 compiled, for MLPs on a CPU; equal to autograd's up to rounding.

A step is one call, on one thread or two. Numba compiles `compiled_loops.py` once and keeps the machine code
(`hybridppo/compiled/modules.py`).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.agents.ddpg import compiled_loops as loops
from hybridppo.agents.ddpg.backend import ACTOR, STATISTICS, Optimized
from hybridppo.agents.ddpg.networks import Critics
from hybridppo.compiled import perceptrons
from hybridppo.compiled.meeting import meeting_place
from hybridppo.compiled.sources import Texts
from hybridppo.compiled.update_modules import SideBySide, UpdateModule
from hybridppo.networks.forms import has_gradient_hooks, is_on_cpu, layers_in, linears, numpy_form
from hybridppo.rollouts.replay import Transitions
from hybridppo.spaces.arrays import Array

TYPES = """
parameters = group(f[::1], f[::1], f[::1], f[::1], f[::1])
batch = group(f[:, ::1], f[:, ::1], f[::1], f[::1], f[:, ::1], f[:, ::1])
form = group(i[:, ::1], i[:, :, ::1], b)
packed = group(f[:, :, ::1], f[:, :, ::1], f[:, ::1], f[:, :, ::1])
shards = group(
    f[:, :, :, ::1], f[:, :, :, ::1], f[:, :, :, ::1], f[:, :, ::1], f[:, ::1], f[:, ::1], d[:, ::1]
)
"""
LOOPS: Texts = {loops.take_step: "u(parameters, batch, b, i, i[::1], form, d[::1], packed, shards, f[::1])"}
MODULE = UpdateModule("off_policy_updates", LOOPS, types=TYPES)
BLOCK_BYTES = 320 * 2**10
"""Activations of one network in a block of rows."""


class CompiledStep:
    """Forward and backward passes, losses, Adam and target networks as machine code.

    Raises:
        ConfigurationError: if Numba is missing or cannot compile it.
    """

    def __init__(self, agent: Optimized) -> None:
        self._agent, config, optimizer = agent, agent.config, agent.optimizer
        self._module: Any = MODULE.load()
        form = numpy_form(agent.actor)
        assert form is not None
        slots = {name: tensor.numpy() for name, tensor in optimizer.state[agent.parameters.values].items()}
        flat = agent.parameters.values.detach().numpy(), agent.parameters.gradient.numpy()
        self._parameters = *flat, slots["exp_avg"], slots["exp_avg_sq"], slots["target"]
        self._counts = slots["step_actor"], slots["step_critic"]
        sizes, offsets = layers_in(agent.parameters.values, agent.actor, *agent.critics.critics)
        self._sizes = sizes[:2]
        self._settings = np.zeros(loops.NUM_SETTINGS)
        self._form = self._sizes, offsets, form.activation == "tanh"
        self._settings[loops.NOISE_CLIP], self._settings[loops.TAU] = config.target_noise_clip, config.tau
        (self._settings[loops.BETA_1], self._settings[loops.BETA_2]) = optimizer.betas
        self._settings[loops.EPS] = optimizer.eps
        num_layers, stride = self._sizes.shape[1] - 1, perceptrons.up_to_whole(int(self._sizes.max())) + 16
        self._num_layers, self._stride = num_layers, stride
        critics = len(offsets) - 1
        self._packed = (
            np.zeros(((2 + 2 * critics) * num_layers, stride, stride), np.float32),
            np.zeros(((1 + critics) * num_layers, stride, stride), np.float32),
            np.zeros((stride, perceptrons.up_to_whole(int(self._sizes[0, -1])) + 16), np.float32),
            np.zeros(((2 + 2 * critics) * num_layers, 1, stride), np.float32),
        )
        self._threads, self._size = SideBySide(), -1
        self._shards: tuple[Array, ...] = ()

    @staticmethod
    def supports(agent: Optimized) -> bool:
        """Whether the losses are the library's, and the networks on the CPU, with hidden layers of tanh or ReLU.

        A subclass may have other critics: they must be alike, of the actor's depth and activation.
        """
        if agent.has_own_loss or type(agent.critics) is not Critics or not is_on_cpu(agent.actor):
            return False
        networks: list[Any] = [agent.actor, *agent.critics.critics]
        form, *others = map(numpy_form, networks)
        if form is None or any(other != form for other in others) or has_gradient_hooks(*networks):
            return False
        sizes, *of_others = ([layer.out_features for layer in linears(network)] for network in networks[1:])
        return len(sizes) == len(linears(agent.actor)) and all(own == sizes for own in of_others)

    def __call__(self, minibatch: Transitions, passes: tuple[str, ...]) -> list[Tensor]:
        """Make a step, like `OptimizationLoop.step`."""
        settings, rates, moves_actor = self._settings, self._agent.optimizer.learning_rates, ACTOR in passes
        statistics = np.zeros(len(STATISTICS), np.float32)
        settings[loops.ACTOR_RATE], settings[loops.CRITIC_RATE] = rates["actor"], rates["critic"]
        actor_steps, critic_steps = self._counts
        critic_steps += 1.0
        actor_steps += float(moves_actor)
        settings[loops.ACTOR_STEP], settings[loops.CRITIC_STEP] = actor_steps, critic_steps
        if len(minibatch) != self._size:
            self._allocate(*minibatch.noise.shape)
        batch = tuple(np.ascontiguousarray(tensor.numpy()) for tensor in vars(minibatch).values())
        signals, _ = meeting_place()
        count = min(torch.get_num_threads(), loops.NUM_SHARDS)

        def take(shard: int) -> None:
            self._module.take_step(
                self._parameters, batch, moves_actor, shard, signals, self._form, settings, self._packed,
                self._shards, statistics,
            )  # fmt: skip

        if count == 1:
            take(loops.BOTH)
        else:
            self._threads.make_room(count)
            self._threads.run(take, count, signals)
        return [torch.from_numpy(part) for part in np.split(statistics, [2])[: len(passes)]]

    def metrics(self) -> dict[str, float]:
        """No further metrics."""
        return {}

    def _allocate(self, size: int, num_actions: int) -> None:
        """Allocate the scratch memory of each shard of a minibatch."""
        self._size, num_layers, stride = size, self._num_layers, self._stride
        most = max(32, BLOCK_BYTES // (4 * stride * (num_layers + 1)))
        share = -(-size // loops.NUM_SHARDS)
        rows = -(-share // -(-share // most))  # blocks of nearly equal size
        rows = -(-rows // perceptrons.MOST_ROWS) * perceptrons.MOST_ROWS
        shards = loops.NUM_SHARDS
        self._shards = (
            np.zeros((shards, 2 * (num_layers + 3), rows, stride), np.float32),
            np.zeros((shards, num_layers, stride, stride), np.float32),
            np.zeros((shards, num_layers + 1, 1, stride), np.float32),
            np.zeros((shards, size, num_actions), np.float32),
            np.zeros((shards, size), np.float32),
            np.zeros((shards, len(self._parameters[0])), np.float32),
            np.zeros((shards, 3)),
        )
