"""An environment that overwrites its inputs and its past outputs changes nothing in a training."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ppo_settings import ppo_config
from selection import only_by_default
from space_kinds import KINDS, identity
from tensor_environments import Guessing
from toy_agents import AGENT_KINDS
from vandals import Vandal, VandalOthers, VandalVector, destroy

import hybridppo
from hybridppo import DDPGConfig, Mirrored, TD3Config

SMALL = ppo_config(num_envs=4, num_steps=12, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16))
EPISODES = replace(SMALL, num_envs=1, episodes_per_rollout=5)
LAGGING = Mirrored("cpu", "cpu", max_lag=1)
OFF_POLICY = {
    "num_envs": 2, "train_frequency": 5, "gradient_steps": 2, "batch_size": 8, "buffer_size": 200,
    "learning_starts": 20, "steps_per_iteration": 50, "hidden_sizes": (8,),
}  # fmt: skip
OFF_POLICY_AGENTS: dict[str, Any] = {"ddpg": DDPGConfig, "td3": TD3Config}
MODES = {mode.name: mode for mode in AutoresetMode}


def plain(make: Callable[[], Any]) -> Any:
    return make()


def vandal(make: Callable[[], Any]) -> Any:
    return Vandal(make())


def vector_of(make: Callable[[], Any], mode: str, is_vandal: bool) -> Any:
    vector = SyncVectorEnv([make] * 4, autoreset_mode=MODES[mode])
    return VandalVector(vector) if is_vandal else vector


def vandal_of_others(make: Callable[[], Any]) -> Any:
    return VandalOthers(make())


def learned(source: Any, config: Any = SMALL, **options: Any) -> tuple[torch.Tensor, list[float]]:
    """The final parameters, and the returns of an evaluation during the training."""
    history: list[Any] = []
    options = {"total_steps": 100, "seed": 0, "placement": "cpu", "progress": False} | options
    result = hybridppo.train(source, config=config, on_iteration=history.append, **options)
    return result.agent.parameters.values.detach(), [line["episode_return_mean"] for line in history]


def require_alike(honest: Any, other: Any, config: Any = SMALL, **options: Any) -> None:
    (expected, returns), (found, found_returns) = (learned(source, config, **options) for source in (honest, other))
    assert torch.equal(found, expected)
    assert found_returns == returns


WAYS: dict[str, dict[str, Any]] = {
    "in turn": {},
    "in a thread": {"placement": LAGGING, "num_workers": 0},
    "workers": {"num_workers": 2},
    "whole episodes": {"config": EPISODES},
    "evaluated": {"evaluate_every": 50, "episodes_per_evaluation": 3, "evaluation_episodes": 3},
}
SPACES = {**KINDS, "discrete from 0": identity(Discrete(4))}
del SPACES["items"]  # which batched environments cannot have
VIEWS = ("multi-discrete of two axes", "images alone")
"""Spaces whose actions may be views of stored arrays."""
USUAL = [
    *(f"{way}, {VIEWS[0]}" for way in WAYS),
    *(f"in turn, {name}" for name in (VIEWS[1], "box", "discrete", "multi-binary", "tuple", "dict, nested")),
    "in turn, image and vector",
    "whole episodes, image and vector, with a memory",
]
USUAL_VECTORS = [
    *(f"{mode}, {VIEWS[0]}" for mode in MODES),
    *(f"SAME_STEP, {name}" for name in ("discrete from 0", "box", "dict, nested")),
    "DISABLED, box",
    "NEXT_STEP, box",
]
every_space = pytest.mark.parametrize("name", SPACES)


@pytest.mark.parametrize(("way", "name"), only_by_default(USUAL, product(WAYS, SPACES), pytest.mark.slow))
def test_in_every_space(way: str, name: str) -> None:
    kind, options = SPACES[name], dict(WAYS[way])
    config = replace(options.pop("config", SMALL), **kind.config)
    masks = kind.has_masks and way != "in a thread"
    make = partial(kind.make, masks=True) if masks else kind.make
    require_alike(partial(plain, make), partial(vandal, make), config, action_masks=masks, **options)


@pytest.mark.parametrize(("mode", "name"), only_by_default(USUAL_VECTORS, product(MODES, SPACES), pytest.mark.slow))
def test_a_vector_in_every_space(mode: str, name: str) -> None:
    config = replace(SMALL, **SPACES[name].config)
    honest, other = (partial(vector_of, SPACES[name].make, mode, is_vandal) for is_vandal in (False, True))
    require_alike(honest, other, config, total_steps=150, evaluation_episodes=4)


def test_stacks_of_frames() -> None:
    make = KINDS["box"].make
    options = {"frame_stack": 3, "num_workers": 2}
    require_alike(partial(plain, make), partial(vandal, make), **options)


@pytest.mark.parametrize("name", AGENT_KINDS)
def test_several_agents(name: str) -> None:
    masks = name != "vectors"
    make = partial(AGENT_KINDS[name], masks=masks)
    options = {"num_workers": 2 * (name == "vectors"), "action_masks": masks}
    require_alike(partial(plain, make), partial(vandal_of_others, make), **options)


@pytest.mark.parametrize(
    "name", only_by_default([*VIEWS, "discrete from 0", "box", "dict, nested"], SPACES, pytest.mark.slow)
)
def test_tensors(name: str) -> None:
    env = SPACES[name].make()
    make = partial(Guessing, 4, env.observation_space, env.action_space)
    config = replace(SMALL, **SPACES[name].config)
    require_alike(partial(plain, make), partial(vandal_of_others, make), config, evaluation_episodes=4)


@pytest.mark.parametrize("name", ["box", "squashed box"])
@pytest.mark.parametrize(
    ("way", "agent"),
    only_by_default(
        ("in turn, ddpg", "in a thread, td3"), product(("in turn", "in a thread"), OFF_POLICY_AGENTS), pytest.mark.slow
    ),
)
def test_what_a_replay_buffer_holds(way: str, agent: str, name: str) -> None:
    make = SPACES[name].make
    require_alike(partial(plain, make), partial(vandal, make), OFF_POLICY_AGENTS[agent](**OFF_POLICY), **WAYS[way])


@every_space
def test_what_act_takes_and_gives(name: str) -> None:
    kind = SPACES[name]
    env = kind.make()
    agent = hybridppo.PPO(env.observation_space, env.action_space, replace(SMALL, **kind.config), seed=0)

    def act(observation: Any, state: Any) -> Any:
        return agent.act(observation, state=state)

    first, second = env.reset(seed=0)[0], env.reset(seed=1)[0]
    given = env.reset(seed=0)[0]
    expected = [act(first, None), act(second, None)]
    action, state = act(given, None)
    np.testing.assert_equal(given, first)
    kept, _ = act(second, None)
    np.testing.assert_equal(kept, expected[1][0])
    np.testing.assert_equal(action, expected[0][0])
    destroy([action, state, given])
    np.testing.assert_equal(act(second, None), expected[1])
    np.testing.assert_equal(kept, expected[1][0])
