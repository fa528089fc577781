"""Environments of other interfaces: what adapters make of them, and that they are chosen where they are needed."""

from collections import namedtuple
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError, EnvError, TupleOfAgents
from hybridppo.environments import adapters
from hybridppo.environments.adapters import OldInterface, space_like
from hybridppo.environments.making import make_environments
from hybridppo.environments.packages import adapted

SMALL = ppo_config(num_envs=2, num_steps=8, num_epochs=1, num_minibatches=2, hidden_sizes=(4,))
SEEN = np.zeros(2, np.float32)


class Plain(gym.Env[Any, Any]):
    observation_space: Any = Box(-1.0, 1.0, (2,))
    action_space: Any = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return SEEN.copy(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return SEEN.copy(), 1.0, self.steps == 5, False, {}


class Seedless(Plain):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


gym.register("Seedless-v0", Seedless, max_episode_steps=3)


class Market:
    """As econgym has it: lists of spaces, observations and rewards, one for each agent."""

    observation_space, action_space = [Box(-1.0, 1.0, (2,))] * 2, [Discrete(3)] * 2

    def reset(self, seed: int | None = None) -> Any:
        self.steps = 0
        return [SEEN, SEEN]

    def step(self, actions: Any) -> Any:
        self.steps += 1
        return [SEEN, SEEN], [1.0, 2.0], False, self.steps == 5, {}


class OfGym:
    """As gym had it before 0.26."""

    observation_space = namedtuple("Box", "low high shape dtype")(-1.0, 1.0, (2,), "float32")  # type: ignore[call-arg]
    action_space = namedtuple("Discrete", "n")(3)  # type: ignore[call-arg]

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reset(self) -> Any:
        self.steps = 0
        return SEEN

    def step(self, action: Any) -> Any:
        self.steps += 1
        return SEEN, 1.0, self.steps == 5, {"TimeLimit.truncated": True} if self.steps == 5 else None


class Warehouse(Plain):
    """Two agents, the first of which may end earlier."""

    observation_space, action_space, n_agents = Tuple([Box(-1.0, 1.0, (2,))] * 2), Tuple([Discrete(3)] * 2), 2

    def __init__(self, ends_apart: bool = True) -> None:
        self.ends_apart, self.actions = ends_apart, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return (SEEN, SEEN), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.actions.append(action)
        ends = [self.steps >= 3, self.steps == 5] if self.ends_apart else self.steps == 5
        return (SEEN, SEEN), [1.0, 2.0], ends, False, [{"slot": 0}, {"slot": 1}]


class TwoGoals(Plain):
    def step(self, action: Any) -> Any:
        _, _, *others = super().step(action)
        return SEEN, np.array([1.0, -2.0]), *others


class Masked(Plain):
    def action_masks(self) -> Any:
        return np.array([False, True, False])

    def step(self, action: Any) -> Any:
        assert action == 1
        return super().step(action)


def made_by_a_function(speed: float = 1.0) -> Any:
    env = OfGym()
    env.speed = speed  # type: ignore[attr-defined]
    return env


def train(make: Any, **options: Any) -> hybridppo.TrainResult:
    arguments: dict[str, Any] = {"total_steps": 32, "config": SMALL, "placement": "cpu", "progress": False}
    return hybridppo.train(make, **arguments | options)


@pytest.mark.parametrize(
    "make", [Seedless, OfGym, Warehouse, Market, lambda: Warehouse(False), lambda: TupleOfAgents(Warehouse())]
)
def test_an_environment_of_another_interface_is_checked_trained_and_evaluated(make: Any) -> None:
    assert hybridppo.check_env(make, steps=30).is_usable
    result = train(make)
    assert result.metrics["env_steps"] >= 32
    assert max(hybridppo.evaluate_agent(result.agent, make, episodes=4).lengths) == 5


def test_the_interface_of_gym_becomes_that_of_gymnasium(caplog: pytest.LogCaptureFixture) -> None:
    old = OfGym()
    env = adapted(old)
    assert isinstance(env, OldInterface)
    assert (env.observation_space, env.action_space) == (Plain.observation_space, Plain.action_space)
    observation, info = env.reset(seed=7)
    assert (observation.tolist(), info, old.seeds) == ([0.0, 0.0], {}, [7])
    steps = [env.step(0) for _ in range(5)]
    assert [step[2:4] for step in steps] == [(False, False)] * 4 + [(False, True)]
    assert adapted(Plain()).__class__ is Plain
    assert env.unwrapped is old
    env.close()
    adapters._say.cache_clear()
    adapted(Seedless()).reset(seed=1)
    assert "the reset of Seedless takes no seed" in caplog.text


def test_an_old_interface_lies_beneath_the_wrappers_of_gymnasium() -> None:
    """They pass seed=None on to a reset that takes no seed."""
    env = adapted(gym.make("Seedless-v0"))
    assert env.reset(seed=0)[1] == {}
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False)] * 2 + [(False, True)]
    assert adapted(env) is env
    assert isinstance(env.get_wrapper_attr("env").env.env, OldInterface)
    assert train("Seedless-v0").metrics["episode_length_mean"] == 3


def test_spaces_of_gym_are_known_by_their_names() -> None:
    for space in (MultiDiscrete([2, 3]), MultiBinary(2), Tuple((Discrete(2), Box(0, 1, (1,))))):
        other = type(type(space).__name__, (), dict(vars(space)))()
        assert space_like(other, "") == space
    assert space_like(type("DiscreteSpace", (), {"n": 3})(), "") == Discrete(3)
    of_dict = type("Dict", (), {"spaces": {"a": Discrete(2)}})()
    assert space_like(of_dict, "") == Dict(a=Discrete(2))
    with pytest.raises(EnvError, match="the space of x must be a space of gymnasium or gym, got 3"):
        space_like(3, "the space of x")


def test_a_tuple_of_agents_gives_each_its_own() -> None:
    warehouse = Warehouse()
    env = TupleOfAgents(warehouse)
    observations, _ = env.reset(seed=0)
    assert list(observations) == env.possible_agents == ["agent_0", "agent_1"]
    for step in range(1, 6):
        _, rewards, terminated, _, infos = env.step({"agent_0": 2, "agent_1": 1} if step < 4 else {"agent_1": 0})
        present = env.possible_agents if step < 4 else ["agent_1"]
        expected = {"agent_0": 1.0, "agent_1": 2.0}
        assert rewards == {agent: expected[agent] for agent in present}
        assert infos == {agent: {"slot": int(agent[-1])} for agent in present}
        assert terminated == {agent: step >= (3 if agent == "agent_0" else 5) for agent in present}
    assert warehouse.actions == [(2, 1)] * 3 + [(2, 0)] * 2
    assert env.agents == []
    with pytest.raises(EnvError, match="whose spaces are tuples with a part for each agent, got Box"):
        TupleOfAgents(Plain())


def test_several_rewards_are_weighed_and_measured(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"must be one number, and is .*: reward_weights \(--reward-weights\) makes one"):
        train(TwoGoals)
    assert not hybridppo.check_env(TwoGoals, steps=9).is_usable
    assert hybridppo.check_env(TwoGoals, steps=9, reward_weights=(1.0, 0.25)).is_usable
    result = train(TwoGoals, reward_weights=(1.0, 0.25), run_dir=tmp_path / "run")
    assert result.metrics["episode_return_mean"] == pytest.approx(5 * (1.0 - 0.5))
    assert (result.metrics["info/reward_0"], result.metrics["info/reward_1"]) == (1.0, -2.0)
    found = hybridppo.evaluate(tmp_path / "run", TwoGoals, episodes=2, progress=False)
    assert found.returns == (2.5, 2.5)
    with_workers = train(TwoGoals, reward_weights=(1.0, 0.25), num_workers=1)
    assert (with_workers.metrics["info/reward_0"], with_workers.metrics["info/reward_1"]) == (1.0, -2.0)
    resumed = hybridppo.resume(tmp_path / "run", total_steps=48, env=TwoGoals, progress=False)
    assert resumed.metrics["info/reward_1"] == -2.0
    with pytest.raises(EnvError, match=r"reward_weights has 1 weights, and the environment's reward is .*-2"):
        train(TwoGoals, reward_weights=(1.0,))
    for given, message in (
        ({"a": 1.0}, "not a number or an array of numbers"),
        ([1.0, np.nan], r"its reward\[1\] is nan"),
    ):

        class Wrong(TwoGoals):
            def step(self, action: Any, given: Any = given) -> Any:
                observation, _, *others = super().step(action)
                return observation, given, *others

        with pytest.raises(EnvError, match=message):
            train(Wrong, reward_weights=(1.0, 0.25))
    for wrong in (3, ("a",), (1.0, np.nan), (np.inf, 1.0)):
        with pytest.raises(ConfigurationError, match="reward_weights must be a tuple of finite numbers"):
            train(TwoGoals, reward_weights=wrong)


def test_a_method_that_masks_is_obeyed_and_named_where_it_is_not(caplog: pytest.LogCaptureFixture) -> None:
    train(Masked, action_masks=True)
    with pytest.raises(EnvError):
        train(Masked, seed=0)
    assert "it has a method action_masks, and action_masks is False" in caplog.text


class MaskWithin(Plain):
    observation_space = Dict(seen=Box(-1.0, 1.0, (2,)), action_mask=Box(0, 1, (3,), np.int8))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {"seen": SEEN, "action_mask": np.int8([0, 0, 1])}, {}

    def step(self, action: Any) -> Any:
        assert action == 2
        _, *others = super().step(action)
        return {"seen": SEEN, "action_mask": np.int8([0, 0, 1])}, *others


def test_an_agent_acts_on_an_observation_with_the_mask_within() -> None:
    agent: Any = train(MaskWithin, action_masks=True).agent
    observation, _ = MaskWithin().reset(seed=0)
    assert agent.act(observation) == agent.act(SEEN, action_mask=[0, 0, 1]) == 2
    batch = {name: np.stack([part] * 2) for name, part in observation.items()}
    assert agent.act(batch, batch=True).tolist() == [2, 2]


def test_make_env_takes_the_name_of_a_function() -> None:
    env: Any = hybridppo.make_env(f"{__name__}:made_by_a_function", speed=3.0)
    assert (env.unwrapped.speed, env.reset(seed=0)[1]) == (3.0, {})


def test_a_vector_has_no_weights() -> None:
    with pytest.raises(ConfigurationError, match="reward_weights"):
        make_environments(lambda: gym.make_vec("CartPole-v1", 2), 2, reward_weights=(1.0,))
