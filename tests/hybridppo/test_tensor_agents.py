"""Several agents in batched environments: the numbers of a NumPy twin, and the same bits everywhere."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from everywhere import MIRRORED, WAYS, assert_goes_on_exactly, assert_same_everywhere
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from same_bits import values_of
from selection import only_by_default
from tensor_environments import Flocks

import hybridppo
from hybridppo import (
    ConfigurationError,
    EnvError,
    MultiLearner,
    PPOConfig,
    SingleDevice,
    check_env,
)
from hybridppo.distributions.of_policies import DistributionOfPolicies
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import CriticsOptions, EnvironmentOptions

SMALL = ppo_config(num_envs=4, num_steps=8, num_epochs=2, num_minibatches=2, hidden_sizes=(8,))
NORMALISED = replace(SMALL, normalize_observations=True, normalize_rewards=True, hidden_sizes=(4, 4))
MEMORIES = {
    "sign": replace(SMALL, recurrent="gru", recurrent_size=4, sequence_length=4),
    "pointer": replace(SMALL, recurrent="lstm", recurrent_size=6, sequence_length=4),
}
CONFIGS: dict[str, Mapping[str, PPOConfig]] = {
    "plain": {"sign": SMALL, "pointer": NORMALISED},
    "one remembers": {"sign": MEMORIES["sign"], "pointer": NORMALISED},
    "both remember": MEMORIES,
    "critics see all": {kind: replace(SMALL, critic_observes="all") for kind in MEMORIES},
    "critics see the state": {kind: replace(SMALL, critic_observes="state") for kind in MEMORIES},
    "each critic sees something else": {
        "sign": replace(NORMALISED, critic_observes="all"),
        "pointer": replace(SMALL, critic_observes="state"),
    },
    "one critic sees more": {"sign": replace(MEMORIES["sign"], critic_observes="all"), "pointer": NORMALISED},
}
"""To add a policy, add a line."""


def train(config: Any = CONFIGS["plain"], env: Any = Flocks, iterations: int = 3, **options: Any) -> Any:
    arguments: dict[str, Any] = {"seed": 3, "progress": False, "on_interrupt": "return", **options}
    return hybridppo.train(env, config=config, **{"total_steps": iterations * SMALL.batch_size, **arguments})


class Twin:
    """The agents of one of `Flocks`' environments as a PettingZoo environment of arrays."""

    possible_agents = ("sign_0", "sign_1", "pointer_0")

    def __init__(self, **options: Any) -> None:
        self._env = Flocks(1, **options)
        self._there: list[str] = []
        self._begun: Any = None
        self._final_state: Any = None
        self.state_space = self._env.state_space

    def observation_space(self, agent: str) -> Any:
        return self._env.single_observation_space[agent.split("_")[0]]

    def action_space(self, agent: str) -> Any:
        return self._env.single_action_space[agent.split("_")[0]]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._there, self._final_state = list(self.possible_agents), None
        return self._by_name(self._begun if seed is None else self._env.reset(seed=seed)[0]), {}

    def step(self, actions: dict[str, Any]) -> Any:
        idle = {name: self.action_space(name).sample() for name in self.possible_agents}
        each = {name: torch.as_tensor(actions.get(name, idle[name])) for name in self.possible_agents}
        given = {
            "sign": torch.stack([each["sign_0"], each["sign_1"]])[None],
            "pointer": each["pointer_0"][None, None],
        }
        observations, *others, infos = self._env.step(given)
        self._begun, self._final_state = observations, infos["final_state"]
        values = [self._by_name(each) for each in (infos["final_obs"], *others)]
        self._there = [agent for agent in self._there if not (values[2][agent] or values[3][agent])]
        return *values, {}

    def state(self) -> Any:
        return (self._env.state() if self._final_state is None else self._final_state)[0].numpy()

    def _by_name(self, values: Any) -> Any:
        found = {name: values[name[:-2]][0, int(name[-1])].numpy() for name in self._there}
        return {name: bool(each) if each.dtype == bool else each for name, each in found.items()}


EACH = {"sign_0": "all", "sign_1": "own", "pointer_0": "state"}


@pytest.mark.parametrize("observes", ["own", "all", "state", EACH], ids=["own", "all", "state", "each its own"])
@pytest.mark.parametrize("alike", [False, True, None], ids=["unlike", "alike", "images"])
def test_rows_and_steps_are_those_of_arrays(alike: bool | None, observes: Any) -> None:
    options = EnvironmentOptions() if observes == "own" else CriticsOptions(critic_observes=observes)
    kinds = {"images": True} if alike is None else {"alike": alike}
    make: Any = partial(make_environments, partial(Flocks, **kinds), 3, options)
    if alike is None and observes != "own":
        with pytest.raises(EnvError, match="is for agents that observe numbers, and some observe images"):
            make()
        return
    ours, theirs = make(), make_environments(partial(Twin, **kinds), 3, options)
    assert ours.agents == theirs.agents
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert np.array_equal(ours.reset(5), theirs.reset(5))
    generator = np.random.default_rng(0)
    num_absent = num_finals = 0
    for _ in range(20):
        signs, pointers = generator.integers(4, size=9), generator.uniform(-1, 1, (3, 2)).astype(np.float32)
        each: Any = signs if alike else [signs[i] if i % 3 < 2 else pointers[i // 3] for i in range(9)]
        found, expected = ours.step(each), theirs.step(each)
        assert ours.absent is not None
        assert np.array_equal(ours.absent, theirs.absent)  # type: ignore[arg-type]
        for mine, other in zip(found[:4], expected[:4], strict=True):
            assert np.array_equal(mine, other)
        assert found[4] == expected[4]
        for mine, other in zip(found[5], expected[5], strict=True):
            assert np.array_equal(mine, other)
        num_absent += int(ours.absent.sum())
        num_finals += len(found[4])
    assert num_absent > 0
    assert num_finals > 0


def test_actions_of_policies_are_those_of_arrays() -> None:
    spaces = Box(-1.0, 1.0, (2,)), Discrete(4)
    distribution = DistributionOfPolicies([distribution_for(each) for each in spaces], spaces, [(1,), (0, 2)])
    actions = distribution.on("cpu")
    generator = np.random.default_rng(0)
    outputs = generator.standard_normal((6, distribution.output_size)).astype(np.float32)
    noise = distribution.draw_noise(generator, (6,))
    expected = distribution.sample(outputs, noise)
    drawn = actions.sample(torch.from_numpy(outputs), torch.from_numpy(noise))
    np.testing.assert_allclose(drawn.numpy(), expected, rtol=1e-6)
    of_agents = actions.to_env(torch.from_numpy(expected))
    for row, single in enumerate(distribution.to_env(expected)):
        np.testing.assert_allclose(of_agents[row % 3][row // 3].numpy(), single, rtol=1e-6)
    made = actions.noise_from(torch.arange(6 * actions.num_words).reshape(6, -1) * 12345678)
    assert made.shape == (6, distribution.noise_size)
    of_numbers = distribution.distributions[0].on("cpu")
    words = torch.arange(6 * actions.num_words).reshape(6, -1)[[1, 4], : of_numbers.num_words] * 12345678
    assert torch.equal(made[[1, 4], :2], of_numbers.noise_from(words))


@pytest.mark.parametrize("name", only_by_default(("one remembers",), ("plain", "one remembers")))
def test_only_some_may_see_images(name: str, tmp_path: Path) -> None:
    config, make = CONFIGS[name], partial(Flocks, images=True)
    plain = train(config, make, run_dir=tmp_path / "run", checkpoint_seconds=0)
    assert_same_everywhere(partial(train, config, make), plain, {"mirrored": MIRRORED})
    assert_goes_on_exactly(tmp_path / "run", plain, env=make)
    agents = hybridppo.load_policies(tmp_path / "run")
    assert agents["pointer"].observation_space == make(1).single_observation_space["pointer"]
    assert hybridppo.evaluate_policies(agents, make, episodes=4)["pointer"].lengths == (4,) * 4


@pytest.mark.parametrize(
    "name",
    only_by_default(("plain", "both remember", "each critic sees something else", "one critic sees more"), CONFIGS),
)
def test_what_is_placed_otherwise_or_resumed_is_the_same(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    plain = train(config, placement=SingleDevice("cpu"), run_dir=tmp_path / "run", checkpoint_seconds=0)
    ways: dict[str, dict[str, Any]] = {"mirrored": MIRRORED}
    if name == "plain":  # what moves is parameters, whatever they are of
        ways |= {"migrating": WAYS["migrating"], "an instance": {"env": Flocks(4)}, "auto": {"placement": "auto"}}
    assert_same_everywhere(partial(train, config), plain, ways)
    resumed = assert_goes_on_exactly(tmp_path / "run", plain, env=Flocks)
    assert resumed.metrics["env_steps"] == 3 * SMALL.batch_size
    assert resumed.metrics["sign/agent_steps"] == plain.metrics["sign/agent_steps"]
    assert resumed.metrics["pointer/episode_length_mean"] == plain.metrics["pointer/episode_length_mean"] == 4.0


def test_another_seed_gives_another_result() -> None:
    assert not torch.equal(values_of(train(seed=4)), values_of(train()))


def test_a_mapping_of_one_is_the_policy_of_all() -> None:
    make = partial(Flocks, alike=True)
    one = train(SMALL, make)
    assert torch.equal(values_of(train({"all": SMALL}, make, policy_of=lambda name: "all")), values_of(one))
    assert one.metrics["env_steps"] < 3 * 3 * SMALL.batch_size
    assert one.metrics["episode_length_mean"] == pytest.approx(5.0, abs=0.2)


def test_agents_of_a_kind_may_have_policies_of_their_own() -> None:
    config = dict.fromkeys(("sign_0", "sign_1", "pointer_0"), SMALL)
    result = train(config, policy_of=str)
    assert set(result.agents) == {*config}
    with pytest.raises(ConfigurationError, match=r"agents of one policy have the same spaces, and of policy 'both'"):
        train({"both": SMALL, "other": SMALL}, policy_of=lambda name: "other" if name == "sign_1" else "both")


def test_learners_share_it() -> None:
    halves = {kind: replace(config, num_envs=4) for kind, config in CONFIGS["plain"].items()}
    result = train(halves, distributed=MultiLearner(learners=1, shards=2), placement=SingleDevice("cpu"))
    assert result.metrics["env_steps"] == 3 * SMALL.batch_size


class Seen(Flocks):
    """The same agents, with a window."""

    render_mode = "human"

    def render(self) -> Any:
        return None


def test_they_are_evaluated_loaded_exported_and_played(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(run_dir=run, evaluation_episodes=3, evaluate_every=64, episodes_per_evaluation=2)
    assert set(result.evaluation.agents) == {"sign_0", "sign_1", "pointer_0"}
    agents = hybridppo.load_policies(run)
    for found in (
        hybridppo.evaluate_policies(agents, Flocks, episodes=4),
        hybridppo.evaluate_policies(agents, Flocks(3), episodes=4),
    ):
        assert sorted(found["sign"].lengths) == [5] * 4 + [6] * 4
        assert found["pointer"].lengths == (4,) * 4
    assert len(hybridppo.evaluate(run, env=Flocks, episodes=4, progress=False).returns) == 12
    played = hybridppo.play(run, window=True, env=Seen, episodes=2)
    assert played.lengths == (4, 5, 6) * 2
    assert played.agents == ("pointer_0", "sign_1", "sign_0") * 2
    hybridppo.export(run, tmp_path / "sign.npz", policy="sign")
    frozen = train({"sign": SMALL, "pointer": str(run)})
    assert torch.equal(frozen.agents["pointer"].parameters.values, agents["pointer"].parameters.values)


def test_a_sound_environment_has_no_complaints() -> None:
    assert {finding.severity for finding in check_env(partial(Flocks, 2), steps=60).findings} == {"note"}


def test_kinds_may_be_counted_by_numpy() -> None:
    counted = type("Counted", (Flocks,), {"policies": {"sign": np.int64(2), "pointer": np.int64(1)}})
    assert make_environments(partial(counted, 2), 2).agents == ("sign_0", "sign_1", "pointer_0")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no kinds": ({"policies": {}}, "policies of Wrong must map each kind of agents to their number"),
    "no number": ({"policies": {"sign": 2, "pointer": 0}}, "got 'pointer': 0"),
    "a kind without a space": (
        {"policies": {"sign": 2, "other": 1}}, "single_observation_space of Wrong must be a Dict with a space for"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_kinds_that_are_not_as_they_must_be_are_refused(name: str) -> None:
    fields, message = WRONG[name]
    wrong = type("Wrong", (Flocks,), fields)
    with pytest.raises(EnvError, match=message):
        train(env=wrong)


def test_results_that_are_not_by_kind_are_refused() -> None:
    class Short(Flocks):
        def step(self, actions: Any) -> Any:
            observations, rewards, *others = super().step(actions)
            return observations, {"sign": rewards["sign"]}, *others

    with pytest.raises(EnvError, match=r"the rewards must be a dict of tensors by kind, sign, pointer, not sign"):
        train(env=Short)

    class Stateless(Flocks):
        state = None

    with pytest.raises(EnvError, match="critic_observes='state' needs an environment with state"):
        train(CONFIGS["critics see the state"], env=Stateless)
