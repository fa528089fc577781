"""Observations as rows of numbers, and the masks of allowed actions that go with them."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode
from ppo_settings import ppo_config
from toy_environments import HighestAllowed, IdentityBox, newest, scripted_vector

import hybridppo
from hybridppo import PPO, ConfigurationError, EnvError, Mirrored, SingleDevice
from hybridppo.environments.making import make_environments
from hybridppo.environments.wrappers import MaskInObservation
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.serialization import space_from_json, space_to_json

SMALL = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16))


def train(env: Any = HighestAllowed, **options: Any) -> hybridppo.TrainResult:
    arguments = {"total_steps": 320, "seed": 0, "placement": SingleDevice("cpu"), "config": SMALL} | options
    return hybridppo.train(env, action_masks=True, progress=False, **arguments)


@pytest.mark.parametrize(("start", "observed", "row"), [(0, 2, 2), (5, 5, 0), (5, 7, 2), (-1, -1, 0), (-1, 1, 2)])
def test_discrete_observations_are_one_hot_counted_from_start(start: int, observed: int, row: int) -> None:
    encode = ObservationEncoder(Discrete(3, start=start))
    encoded = encode(np.array([observed, start]))
    assert encode.size == 3
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded, np.eye(3)[[row, 0]])


def test_box_observations_are_flat_float32() -> None:
    encode = ObservationEncoder(Box(-1, 1, (2, 3), np.float64))
    observations = np.arange(12, dtype=np.float64).reshape(2, 2, 3)
    encoded = encode(observations)
    assert encode.size == 6
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded, np.arange(12).reshape(2, 6))


# Masks: the space and the wrapper


def test_a_row_is_the_observation_and_its_mask() -> None:
    of_discrete = MaskedObservation(Discrete(3, start=5), 2)
    np.testing.assert_array_equal(of_discrete.row(6, [0, 1]), [0, 1, 0, 0, 1])
    of_box = MaskedObservation(Box(-2, 3, (2, 1), np.float64), 3)
    np.testing.assert_array_equal(of_box.row([[-1.5], [2.5]], [True, False, True]), [-1.5, 2.5, 1, 0, 1])
    assert of_box.row([[0.0], [0.0]], np.array([1.0, 0.0, 0.0])).tolist() == [0, 0, 1, 0, 0]
    assert of_box.row([[0.0], [0.0]], [1, 0, 0]).dtype == np.float32
    np.testing.assert_array_equal(of_box.low, [-2, -2, 0, 0, 0])
    np.testing.assert_array_equal(of_box.high, [3, 3, 1, 1, 1])
    assert ObservationEncoder(of_box).size == 5


@pytest.mark.parametrize("observation", [Discrete(3, start=5), Box(-np.inf, 1, (2, 2), np.float64)])
def test_the_space_as_json(observation: gym.Space) -> None:
    space = MaskedObservation(observation, 4)
    again = space_from_json(space_to_json(space))
    assert again == space
    assert again != MaskedObservation(observation, 3)
    assert again != Box(space.low, space.high, dtype=np.float32)
    np.testing.assert_array_equal(again.low, space.low)


def test_when_the_episode_has_ended_nothing_need_be_allowed() -> None:
    env = MaskInObservation(HighestAllowed(length=1))
    row, info = env.reset(seed=0)
    assert row in env.observation_space
    np.testing.assert_array_equal(row, [0, 1, 0, *info["action_mask"]])
    row, *_, truncated, _ = env.step(int(np.flatnonzero(info["action_mask"])[0]) - 1)
    assert truncated
    np.testing.assert_array_equal(row, [0, 1, 0, 0, 0, 0, 0, 0])


def test_only_choices_can_be_masked() -> None:
    with pytest.raises(EnvError, match=r"action_masks=True needs a Discrete action space, or .* and this one is Box"):
        train(IdentityBox)


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (
            "CartPole-v1",
            EnvError,
            "info has no 'action_mask', or None \\(it is empty\\): put one into every info of reset and step, or leave",
        ),
        (
            partial(scripted_vector, [[(3, "terminated")]] * 4, AutoresetMode.NEXT_STEP),
            ConfigurationError,
            "let it make",
        ),
    ],
    ids=["no masks", "a vector"],
)
def test_masks_that_cannot_be_had(source: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        train(source)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_action_masks_are_had_or_not(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="action_masks must be True or False, got"):
        make_environments(HighestAllowed, 2, action_masks=value)


# Masks: agent and training


def test_an_agent_acts_as_the_mask_allows() -> None:
    agent = train().agent
    for mask in np.eye(5, dtype=np.int8):
        assert agent.act(1, action_mask=mask) == np.argmax(mask) - 1
        assert agent.act(1, deterministic=False, action_mask=mask.tolist()) == np.argmax(mask) - 1
    for nothing in (None, np.zeros(5)):
        with pytest.raises(EnvError, match="pass action_mask=info\\['action_mask'\\], which allows at least one"):
            agent.act(1, action_mask=nothing)
    with pytest.raises(EnvError, match="the agent cannot act: its action mask must be 5 truths"):
        agent.act(1, action_mask=[1])
    without = PPO(Discrete(3), Discrete(2))
    with pytest.raises(EnvError, match="trained without masks: leave it out"):
        without.act(1, action_mask=[1, 1])


def test_a_mask_of_another_number_of_actions_is_refused() -> None:
    with pytest.raises(
        EnvError, match=r"MaskedObservation\(Discrete\(3\), 4\) does not have the mask of Discrete\(2\)"
    ):
        PPO(MaskedObservation(Discrete(3), 4), Discrete(2))


@pytest.mark.parametrize(
    "options",
    [{"placement": "overlap"}, {"config": ppo_config(num_envs=1, episodes_per_rollout=2, num_minibatches=2)}],
    ids=["overlap", "whole episodes"],
)
def test_masks_hold_in_every_kind_of_sampling(options: dict[str, Any]) -> None:
    if options.get("placement") == "overlap":
        options = {"placement": Mirrored("cpu", "cpu", max_lag=1)}
    assert train(**options).metrics["episodes"] >= 32


class MaskWithin(gym.Wrapper[Any, Any, Any, Any]):
    """The mask is a part of the observation, as RLlib and PettingZoo have it."""

    def __init__(self) -> None:
        super().__init__(HighestAllowed())
        parts = {"observation": self.env.observation_space, "action_mask": Box(0, 1, (5,), np.int8)}
        self.observation_space = Dict(parts)

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        return {"observation": observation, "action_mask": info["action_mask"]}, {}

    def step(self, action: Any) -> Any:
        observation, *rest, info = self.env.step(action)
        return ({"observation": observation, "action_mask": info["action_mask"]}, *rest, {})


def test_a_mask_within_the_observation_is_obeyed_or_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    agent = train(MaskWithin, evaluation_episodes=4).agent
    assert same_parameters(agent, train().agent)
    assert "obeys it" not in caplog.text
    with pytest.raises(EnvError, match="is not allowed"):
        hybridppo.train(MaskWithin, total_steps=320, seed=0, placement="cpu", config=SMALL, progress=False)
    assert "have an action_mask, and action_masks is False" in caplog.text


def same_parameters(one: Any, other: Any) -> bool:
    return bool((one.parameters.values == other.parameters.values).all())


def test_what_the_mask_tells_is_learned(tmp_path: Path) -> None:
    config = ppo_config(num_envs=8, num_steps=32, num_minibatches=2, learning_rate=1e-2, gamma=0.0, hidden_sizes=(32,))
    run = tmp_path / "run"
    result = train(total_steps=6_000, config=config, run_dir=run, evaluation_episodes=32)
    assert result.evaluation is not None
    assert result.evaluation.return_mean > 7.5  # of 8; by chance about 4
    assert hybridppo.evaluate(run, env=HighestAllowed, progress=False).return_mean > 7.5
    assert hybridppo.load(run).act(2, action_mask=[1, 0, 0, 1, 0]) == 2


def test_an_environment_of_gymnasiums_own() -> None:
    result = train(newest("Taxi"), evaluation_episodes=2)
    assert result.agent.observation_space == MaskedObservation(Discrete(500), 6)
    assert result.evaluation is not None
    assert min(result.evaluation.returns) >= -200  # -10 for each action that cannot be done there
