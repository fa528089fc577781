"""Compiled gradient steps of DDPG and TD3: equal to autograd up to rounding, with reproducible bits."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor

from hybridppo import DDPG, TD3, ConfigurationError, DDPGConfig, TD3Config, TrainingError
from hybridppo.agents.ddpg import compiled_backend
from hybridppo.agents.ddpg.compiled_backend import CompiledStep
from hybridppo.agents.ddpg.networks import Critics
from hybridppo.compiled import tile_sizes, update_modules
from hybridppo.networks.mlp import MLP
from hybridppo.rollouts.replay import Transitions
from hybridppo.system.threads import limit_threads

OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (11,), np.float32), Box(-2.0, 2.0, (3,), np.float32)
CONFIG = TD3Config(hidden_sizes=(40, 24), batch_size=70, gradient_steps=1, compiled_updates=True, learning_rate=1e-2)
compiled = pytest.mark.extras


def agent_of(config: DDPGConfig) -> DDPG:
    return (TD3 if isinstance(config, TD3Config) else DDPG)(OBSERVATIONS, ACTIONS, config, seed=1)


def minibatches(num: int, size: int) -> list[Transitions]:
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn((1, size, *shape), generator=generator)

    return [
        Transitions(normal(11), normal(3).tanh(), normal(), normal().sigmoid(), normal(11), 0.3 * normal(3))
        for _ in range(num)
    ]


def after(config: DDPGConfig, num_threads: int = 1, num: int = 5) -> tuple[DDPG, list[Tensor]]:
    """An agent after some updates, and all that they change."""
    agent = agent_of(config)
    with limit_threads(num_threads):
        for one in minibatches(num, config.batch_size):
            agent.update([one])
    return agent, [agent.parameters.gradient, *agent._changing()]


@compiled
@pytest.mark.parametrize("kind", [DDPGConfig, TD3Config])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("hidden_sizes", "size"), [((7,), 64), ((16, 300), 33), ((8, 24, 9), 1), ((40,), 203)])
def test_it_is_autograd_up_to_rounding(hidden_sizes: Any, size: int, activation: Any, kind: type[DDPGConfig]) -> None:
    config = kind(hidden_sizes=hidden_sizes, activation=activation, batch_size=size, gradient_steps=1)
    agent, found = after(replace(config, compiled_updates=True))
    reference, expected = after(replace(config, fast_updates=False))
    assert isinstance(agent.loop().whole_step, CompiledStep)
    assert reference.loop().whole_step is None
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-5)
    assert agent.take_metrics() == pytest.approx(reference.take_metrics(), rel=1e-3, abs=1e-5)


@compiled
@pytest.mark.parametrize("size", [1, 2, 70, 333])
def test_two_threads_end_at_the_bits_of_one(size: int) -> None:
    config = replace(CONFIG, batch_size=size)
    _, expected = after(config, num=8)
    for num_threads in (2, 3):  # a third has nothing to do
        _, found = after(config, num_threads, num=8)
        assert all(map(torch.equal, found, expected))


@compiled
@pytest.mark.slow
def test_bits_depend_on_neither_tiles_nor_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, batch_size=150)
    _, expected = after(config)
    for module, name, value in (
        (compiled_backend, "BLOCK_BYTES", 1),
        (tile_sizes, "tiles_for", lambda features: (8, 16)),
        (tile_sizes, "tiles_for", lambda features: (4, 8)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            _, found = after(config)
        assert all(map(torch.equal, found, expected)), name


@compiled
@pytest.mark.parametrize("fails", [0, 1])
def test_a_thread_that_fails_keeps_no_other_waiting(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(CONFIG)
    steps: Any = agent.loop().whole_step
    take_step = steps._module.take_step

    def fails_for_one(*arguments: Any) -> None:
        if arguments[3] == fails:  # whose shard it is
            raise MemoryError("no room")
        take_step(*arguments)

    monkeypatch.setattr(steps, "_module", SimpleNamespace(take_step=fails_for_one))
    with limit_threads(2), pytest.raises(MemoryError, match="no room"):
        agent.update(minibatches(1, 70))


@compiled
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("where", ["observations", "next_observations", "returns"])
def test_what_is_no_number_is_not_hidden(where: str, activation: Any) -> None:
    """NaN is hidden by neither the quotient that replaces tanh, nor ReLU, nor the minimum of two critics."""
    agent = agent_of(replace(CONFIG, activation=activation))
    (one,) = minibatches(1, 70)
    getattr(one, where).view(-1)[0] = np.nan
    agent.update([one])
    with pytest.raises(TrainingError, match="not finite"):
        agent.take_metrics()


@compiled
def test_what_is_compiled_is_what_was_asked_for_and_no_other() -> None:
    for config, form in (
        (CONFIG, CompiledStep),
        (replace(CONFIG, compiled_updates=False), type(None)),
        (replace(CONFIG, fast_updates=False), type(None)),
        (replace(CONFIG, activation="silu"), type(None)),
    ):
        assert type(agent_of(config).loop().whole_step) is form


def test_critics_of_ones_own_that_are_no_plain_perceptrons_are_not_compiled() -> None:
    class Normalised(TD3):
        def made_networks(self, generator: torch.Generator) -> Any:
            actor, _ = super().made_networks(generator)
            critics = [
                MLP(14, (40, 24), 1, activation="relu", output_gain=1.0, generator=generator, layer_norm=number > 0)
                for number in range(2)
            ]
            return actor, Critics(critics)

    assert Normalised(OBSERVATIONS, ACTIONS, CONFIG, seed=1).loop().whole_step is None


def test_steps_with_hooks_of_gradients_are_not_compiled() -> None:
    agent = agent_of(CONFIG)
    next(agent.critics.parameters()).register_hook(torch.zeros_like)
    assert agent.loop().whole_step is None


def test_without_a_compiler_there_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_modules, "has_numba", lambda: False)
    with pytest.raises(ConfigurationError, match=r"needs Numba.*pip install '\.\[compiled"):
        agent_of(CONFIG).loop()
