"""A policy for each kind of agents, whose spaces differ: rows and actions by hand, and the same bits everywhere."""

import json
import pickle
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from everywhere import MIRRORED, WAYS, WITH_WORKERS, assert_goes_on_exactly, assert_same_everywhere
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Tuple
from ppo_settings import ppo_config
from same_bits import values_of
from selection import only_by_default
from stop_after import StopAfter
from toy_agents import Matching, Unlike

import hybridppo
from hybridppo import (
    CheckpointError,
    ConfigurationError,
    EnvError,
    Mirrored,
    RunDirectoryError,
    SingleDevice,
    check_env,
)
from hybridppo.agents.policies import Policies, PoliciesConfig
from hybridppo.distributions.of_policies import DistributionOfPolicies
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.making import make_environments
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import SpacesOfAgents
from hybridppo.spaces.serialization import space_from_json, space_to_json

CONFIGS = {
    "sign": ppo_config(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(16,)),
    "pointer": ppo_config(
        num_envs=4, num_steps=16, num_epochs=2, num_minibatches=4, hidden_sizes=(8, 8), normalize_observations=True
    ),
}
MEMORIES = {
    "sign": replace(CONFIGS["sign"], recurrent="lstm", recurrent_size=8, sequence_length=8),
    "pointer": replace(CONFIGS["pointer"], recurrent="gru", recurrent_size=4, sequence_length=8, num_minibatches=2),
}
REMEMBERING = {
    "one remembers": {**CONFIGS, "sign": MEMORIES["sign"]},
    "both remember": MEMORIES,
    "in torch": {**MEMORIES, "sign": replace(MEMORIES["sign"], layer_norm=True)},
}
"""Policies with a memory. To add one, add a line."""
STEPS = 2 * 64


def train(**options: Any) -> hybridppo.TrainResult:
    defaults: dict[str, Any] = {
        "env": Unlike, "config": CONFIGS, "total_steps": STEPS, "seed": 5, "placement": SingleDevice("cpu"),
    }  # fmt: skip
    return hybridppo.train(**{**defaults, **options}, progress=False)


def test_rows_are_as_wide_as_the_widest_and_end_with_zeros() -> None:
    environments = make_environments(Unlike, 2)
    rows = environments.reset(0)
    assert rows.shape == (8, 6)
    seen = Unlike().reset(0)[0]
    assert np.array_equal(rows[0], [*np.eye(4)[seen["sign_0"]], 0.0, 0.0])
    assert np.array_equal(rows[1], seen["pointer_0"])
    space = environments.observation_space
    assert isinstance(space, SpacesOfAgents)
    assert space.spaces["sign_1"] == Discrete(4)
    assert space_from_json(space_to_json(space)) == space
    environments.close()


def test_each_policy_draws_by_its_own_distribution() -> None:
    spaces = Discrete(3), MultiDiscrete([2, 4])
    own = [distribution_for(space) for space in spaces]
    together = DistributionOfPolicies(own, spaces, [(0, 2), (1,)])
    together = pickle.loads(pickle.dumps(together))
    assert (together.output_size, together.noise_size, together.action_shape) == (6, own[1].noise_size, (2,))
    assert together.action_dtype == np.int64
    noise = together.draw_noise(np.random.default_rng(0), (5, 6))
    expected = np.random.default_rng(0)
    assert np.array_equal(
        noise[:, [0, 2, 3, 5], : own[0].noise_size], own[0].draw_noise(expected, (5, 2, 2)).reshape(5, 4, -1)
    )
    outputs = np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)
    actions = together.sample(outputs, noise[0])
    of_signs, of_pairs = [0, 2, 3, 5], [1, 4]
    signs = own[0].sample(outputs[of_signs, :3], noise[0][of_signs, : own[0].noise_size])
    pairs = own[1].sample(outputs[of_pairs], noise[0][of_pairs])
    assert np.array_equal(actions[of_signs], np.stack([signs, np.zeros(4, np.int64)], 1))
    assert np.array_equal(actions[of_pairs], pairs)
    assert [np.asarray(action).tolist() for action in together.to_env(actions)] == [
        signs[0], pairs[0].tolist(), signs[1], signs[2], pairs[1].tolist(), signs[3],
    ]  # fmt: skip
    both = torch.from_numpy(np.stack([outputs, outputs])), torch.from_numpy(np.stack([actions, actions]))
    found = together.log_prob(*both)
    assert found.shape == (2, 6)
    assert torch.equal(
        found[0, of_signs], own[0].log_prob(torch.from_numpy(outputs[of_signs, :3]), torch.from_numpy(signs))
    )
    assert torch.equal(
        found[1, of_pairs], own[1].log_prob(torch.from_numpy(outputs[of_pairs]), torch.from_numpy(pairs))
    )
    best = together.mode(outputs)
    assert np.array_equal(best[of_signs, 0], outputs[of_signs, :3].argmax(1))
    assert np.array_equal(best[of_signs, 1], np.zeros(4))


def test_who_samples_and_where_changes_nothing() -> None:
    expected = train()
    assert_same_everywhere(train, expected, {**WAYS, "auto": {"placement": "auto"}})
    assert not torch.equal(values_of(train(seed=6)), values_of(expected))


class UnlikeSight(Unlike):
    """All agents give a choice and a number, whatever they observe."""

    def action_space(self, agent: str) -> Any:
        return Tuple((Discrete(4), Box(-1.0, 1.0, (1,), np.float32)))

    def _reward(self, agent: str, action: Any) -> float:
        assert self.action_space(agent).contains(action), action
        return 0.0


def test_agents_that_only_see_differently_do_what_their_policies_choose() -> None:
    result = train(env=UnlikeSight, evaluation_episodes=2)
    assert result.evaluation is not None
    hybridppo.evaluate_policies(result.agents, UnlikeSight, episodes=2)


@pytest.mark.parametrize("name", only_by_default(("one remembers", "in torch"), REMEMBERING))
def test_each_policy_has_a_memory_of_its_own(name: str, tmp_path: Path) -> None:
    config, run = REMEMBERING[name], tmp_path / "run"
    expected = train(config=config)
    ways = WAYS if name == "one remembers" else {}
    assert_same_everywhere(partial(train, config=config, evaluate_every=64), expected, ways, run=run)
    agents = assert_goes_on_exactly(run, expected, env=Unlike)
    seen = Unlike().reset(3)[0]
    actions, states = agents.agent.act(seen, state=None)
    actions, states = agents.agent.act(seen, state=states)
    assert {*actions} == {*states} == {*seen}
    assert np.shape(states["sign_0"]) == (16,)
    found = hybridppo.evaluate_agent(agents.agent, Unlike, episodes=4, progress=False)
    by_itself = hybridppo.evaluate_policies(agents.agents, Unlike, episodes=4, deterministic=True)
    assert by_itself["sign"].returns == found.of_agents(["sign_0", "sign_1"]).returns


def test_overlapped_it_is_what_its_seed_says() -> None:
    overlap = Mirrored("cpu", "cpu", max_lag=1)
    expected = values_of(train(placement=overlap))
    assert torch.equal(values_of(train(placement=overlap, num_workers=1)), expected)


def test_a_run_goes_on_exactly_and_its_agents_act_evaluate_and_are_exported(tmp_path: Path) -> None:
    whole = train()
    train(run_dir=tmp_path / "run", callbacks=[StopAfter(2)])
    resumed = hybridppo.resume(tmp_path / "run", env=Unlike, progress=False)
    assert torch.equal(values_of(resumed), values_of(whole))
    agent: Any = hybridppo.load(tmp_path / "run")
    actions = agent.act(Unlike().reset(3)[0])
    assert {name: np.shape(action) for name, action in actions.items()} == {
        "sign_0": (), "pointer_0": (2,), "sign_1": (), "pointer_1": (2,),
    }  # fmt: skip
    batches = agent.act({name: np.stack([own] * 2) for name, own in Unlike().reset(3)[0].items()}, batch=True)
    assert {name: np.shape(batch)[0] for name, batch in batches.items()} == dict.fromkeys(actions, 2)
    found = hybridppo.evaluate(tmp_path / "run", env=Unlike, episodes=4, progress=False)
    each = hybridppo.evaluate_policies(agent.agents, Unlike, episodes=4, deterministic=True)
    assert len(found.returns) == 16
    assert len(each["sign"].returns) == len(each["pointer"].returns) == 8
    for policy in CONFIGS:
        hybridppo.export(tmp_path / "run", tmp_path / f"{policy}.npz", policy=policy, check_steps=20)


def test_policies_may_have_names_that_mean_something_in_a_checkpoint(tmp_path: Path) -> None:
    names = {"sign": "agent", "pointer": "sampler"}
    config = {names[kind]: of_kind for kind, of_kind in CONFIGS.items()}
    trained = train(config=config, policy_of=lambda agent: names[agent[:-2]], run_dir=tmp_path / "run")
    loaded = hybridppo.load_policies(tmp_path / "run")
    assert list(loaded) == ["agent", "sampler"]
    assert torch.equal(torch.cat([agent.parameters.values for agent in loaded.values()]), values_of(trained))


@pytest.mark.parametrize("given", ["agent", "run", "file"])
def test_a_policy_that_is_given_is_played_and_not_trained(given: str, tmp_path: Path) -> None:
    before = train(run_dir=tmp_path / "before")
    pointer = before.agents["pointer"]
    fixed: Any = {
        "agent": lambda: pointer,
        "run": lambda: str(tmp_path / "before"),
        "file": lambda: pointer.save(tmp_path / "pointer.safetensors"),
    }[given]()
    config: Any = {"sign": CONFIGS["sign"], "pointer": fixed}
    after = train(config=config, seed=9, run_dir=tmp_path / "run", num_workers=2)
    assert_same_networks(after.agents["pointer"], pointer)
    assert after.agents["sign"].version == after.metrics["iteration"]
    assert after.agents["pointer"].version == 0
    assert "sign/policy_loss" in after.metrics
    assert "pointer/policy_loss" not in after.metrics
    assert after.metrics["pointer/episodes"] > 0
    stopped = {"seed": 9, "callbacks": [StopAfter(2)]}
    train(config=config, run_dir=tmp_path / "stopped", **stopped)
    if given == "run":  # what is played is in the run itself
        shutil.rmtree(tmp_path / "before")
    resumed = hybridppo.resume(tmp_path / "stopped", env=Unlike, progress=False)
    assert torch.equal(values_of(resumed), values_of(after))
    assert_same_networks(resumed.agents["pointer"], pointer)


def assert_same_networks(one: Any, other: Any) -> None:
    theirs = other.actor.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in one.actor.state_dict().items())


def test_sequences_of_what_is_played_are_as_long_as_those_of_what_learns() -> None:
    sign = replace(MEMORIES["sign"], sequence_length=4)
    played = train(config={**CONFIGS, "sign": sign}).agents["sign"]
    after = train(config={"sign": played, "pointer": MEMORIES["pointer"]}, seed=9)
    assert_same_networks(after.agents["sign"], played)
    assert {agent.config.sequence_length for agent in after.agents.values()} == {8}


def test_what_cannot_be_played_is_said(tmp_path: Path) -> None:
    agents = train(total_steps=64, run_dir=tmp_path / "run").agents
    sign = CONFIGS["sign"]
    with pytest.raises(ConfigurationError, match="agents alone, which are not trained"):
        train(config=agents)
    with pytest.raises(ConfigurationError, match="observation_space was"):
        train(config={"sign": sign, "pointer": agents["sign"]})
    with pytest.raises(CheckpointError, match="has the policies sign, pointer, and not 'other'"):
        train(config={"sign": sign, "other": tmp_path / "run"})
    with pytest.raises(ConfigurationError, match=r"an agent's file\); config\['pointer'\] is 3"):
        train(config={"sign": sign, "pointer": 3})
    with pytest.raises(RunDirectoryError, match="no run directory"):
        train(config={"sign": sign, "pointer": str(tmp_path / "nowhere")})


@pytest.mark.slow
def test_both_kinds_learn() -> None:
    config = {
        "sign": ppo_config(num_envs=16, num_steps=32, learning_rate=3e-3, gamma=0.5),
        "pointer": ppo_config(num_envs=16, num_steps=32, learning_rate=3e-3, gamma=0.5),
    }
    result = train(config=config, total_steps=20_000, evaluation_episodes=50)
    assert result.evaluation is not None
    sign, pointer = (result.evaluation.of_agents([f"{kind}_0"]).return_mean for kind in config)
    assert sign > 0.97 * 6
    assert pointer > 0.85 * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": ppo_config()}, r'config=\{"sign": PPOConfig\(\), "pointer": PPOConfig\(\)\}'),
        ({"config": ppo_config(), "policy_of": str}, "or leave policy_of out"),
        ({"policy_of": {"sign_0": "sign"}}, r"policy_of must be a function .*whose.get for a dict.*, got \{'sign_0'"),
        (
            {"policy_of": lambda agent: "sign" if agent != "pointer_1" else "pointer"},
            "of policy 'sign' the observation space of 'sign_0' is Discrete.4., that of 'pointer_0' Box",
        ),
        (
            {"config": {**MEMORIES, "sign": replace(MEMORIES["sign"], sequence_length=4)}},
            "sequence_length must be the same for all policies that are recurrent",
        ),
        ({"config": {"sign": CONFIGS["sign"]}}, "agent 'pointer_0' has the policy 'pointer', and config has sign"),
        ({"config": {**CONFIGS, "third": CONFIGS["sign"]}}, "policy 'third' has no agent, since all agents have"),
    ],
    ids=[
        "one policy",
        "a name for one policy",
        "a dict of policies",
        "a policy of two kinds",
        "lengths of sequences",
        "none for an agent",
        "no agent",
    ],
)
def test_what_cannot_be_trained_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigurationError, EnvError), match=message):
        train(**options)


@pytest.mark.parametrize("config", [CONFIGS["sign"], {"all": CONFIGS["sign"]}])
def test_spaces_that_differ_are_named(config: Any) -> None:
    message = (
        r"the observation space of 'sign_0' is Discrete\(4\), that of 'pointer_0' Box\(.*\)\. Train a policy for each"
    )
    with pytest.raises(ConfigurationError, match=message):
        train(config=config, policy_of=(lambda name: "all") if isinstance(config, dict) else None)


IMAGES: dict[str, tuple[Any, Any]] = {
    "an image": (True, CONFIGS),
    "an image beside numbers": ("beside", CONFIGS),
    "with a memory": (True, MEMORIES),
    "in torch": ("beside", {**CONFIGS, "pointer": replace(CONFIGS["pointer"], layer_norm=True)}),
}


@pytest.mark.parametrize("name", only_by_default(("an image beside numbers", "with a memory"), IMAGES))
def test_only_some_may_see_images(name: str, tmp_path: Path) -> None:
    images, config = IMAGES[name]
    env: Any = partial(Unlike, images=images)
    environments = make_environments(env, 1)
    rows, seen = environments.reset(0), env().reset(0)[0]
    assert rows.dtype == np.float32
    encode = ObservationEncoder(env().observation_space("pointer_0"))
    own = encode.layout.own(rows)
    assert own.dtype == np.uint8
    assert np.array_equal(own[1], encode.one(seen["pointer_0"]))
    assert np.array_equal(rows[0], np.pad(np.eye(4)[seen["sign_0"]], (0, encode.size - 4)))
    run = tmp_path / "run"
    expected = train(env=env, config=config, run_dir=run, checkpoint_seconds=0, evaluation_episodes=2)
    pointer = expected.agents["pointer"]
    joint = torch.from_numpy(rows)
    assert torch.equal(encode.layout.own(joint), torch.from_numpy(own))
    ways = {"mirrored": MIRRORED} if name == "in torch" else {WITH_WORKERS: WAYS[WITH_WORKERS]}
    assert_same_everywhere(partial(train, env=env, config=config), expected, ways)
    assert_goes_on_exactly(run, expected, env=env)
    found = hybridppo.evaluate_policies(hybridppo.load_policies(run), env, episodes=2)
    assert found.keys() == config.keys()
    state = {"state": None} if config["pointer"].recurrent else {}
    loaded = hybridppo.load_policies(run)["pointer"]
    assert repr(loaded.act(seen["pointer_0"], **state)) == repr(pointer.act(seen["pointer_0"], **state))


def test_numbers_beside_images_are_checked() -> None:
    class Wrong(Unlike):
        def _observe(self) -> Any:
            found = super()._observe()
            if self._steps == 2:
                found["pointer_0"]["numbers"][3] = np.nan
            return found

    with pytest.raises(EnvError, match=r"agent 'pointer_0': its observation\['numbers'\]\[3\] is nan"):
        train(env=partial(Wrong, images="beside"))


class OnlySignsHaveMasks(Unlike):
    """Signs may not name what they named last, and their infos say so; pointers, which come first, have no mask."""

    possible_agents = ("pointer_0", "sign_0", "pointer_1", "sign_1")

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.forbidden = {"sign_0": 0, "sign_1": 0}
        return super().reset(seed)[0], self._infos()

    def step(self, actions: dict[str, Any]) -> Any:
        for agent in self.forbidden.keys() & actions.keys():
            assert actions[agent] != self.forbidden[agent]
            self.forbidden[agent] = int(actions[agent])
        return *super().step(actions)[:4], self._infos()

    def _infos(self) -> dict[str, Any]:
        return {agent: {"action_mask": np.arange(4) != number} for agent, number in self.forbidden.items()}


class OnlyPointers(Unlike):
    possible_agents = ("pointer_0", "pointer_1")  # type: ignore[assignment]


@pytest.mark.parametrize("images", [False, "beside"])
def test_only_agents_that_have_choices_need_masks(images: Any, tmp_path: Path) -> None:
    make = partial(OnlySignsHaveMasks, images=images)
    assert check_env(make, seconds=0.1).is_usable
    result = train(env=make, action_masks=True, run_dir=tmp_path / "run", evaluation_episodes=2, num_workers=2)
    hybridppo.evaluate_policies(result.agents, make, episodes=2)
    hybridppo.evaluate(tmp_path / "run", env=make, episodes=2, progress=False)
    with pytest.raises(EnvError, match="action_masks=True needs a Discrete action space"):
        make_environments(OnlyPointers, 1, action_masks=True)


def test_an_agent_of_other_spaces_is_refused_in_an_evaluation() -> None:
    agents = train(total_steps=64).agents
    swapped = {"sign": agents["pointer"], "pointer": agents["sign"]}
    with pytest.raises(EnvError, match="observation_space was"):
        hybridppo.evaluate_policies(swapped, Unlike, episodes=1)


def test_an_agent_that_there_is_already_is_for_its_own_agents() -> None:
    roles, twice = {"player 0": "first", "player 1": "second"}, partial(Matching, 2)
    options: dict[str, Any] = {"env": twice, "config": dict.fromkeys(roles.values(), CONFIGS["sign"])}
    given: Any = train(policy_of=roles.__getitem__, total_steps=64, **options).agent
    options |= {"config": None, "agent": given, "total_steps": 64}
    for policy_of in (None, roles.__getitem__):
        assert train(**{**options, "policy_of": policy_of}).agent is given
    others = dict(zip(roles, reversed(roles.values()), strict=True))
    with pytest.raises(ConfigurationError, match="policy_of gives agents others: leave it out"):
        train(**{**options, "policy_of": others.__getitem__})
    agents = "its agents were player 0, player 1 and are player 0, player 1, player 2, player 3"
    with pytest.raises(ConfigurationError, match=agents):
        train(**{**options, "env": partial(Matching, 4)})
    with pytest.raises(EnvError, match=agents):
        hybridppo.evaluate_agent(given, partial(Matching, 4), episodes=1, progress=False)
    with pytest.raises(ConfigurationError, match="no policy is for an agent 'player 2': the agents are player 0"):
        given.act({"player 2": 1})


def test_agents_whose_names_are_numbers_act() -> None:
    config = PoliciesConfig(dict.fromkeys("01", CONFIGS["sign"])).with_agents(["0", "1"])
    assert Policies(Discrete(4), Discrete(4), config).act({0: 1, 1: 2}).keys() == {0, 1}


def test_the_check_says_that_spaces_differ() -> None:
    report = check_env(Unlike, steps=20)
    assert report.is_usable
    assert "train a policy for each kind" in str(report)
    assert Box(-1.0, 1.0, (6,)) == Unlike().observation_space("pointer_0")


def test_metrics_of_a_policy_that_had_learned_already_are_numbers_after_a_resume() -> None:
    agent: Any = train(total_steps=64).agent
    agent._learned = {"sign": {"explained_variance": float("nan"), "entropy": 1.0}}
    tensors, state = agent.state()
    agent.load_state(tensors, json.loads(json.dumps(state)))
    assert np.isnan(agent._learned["sign"]["explained_variance"])
    assert agent._learned["sign"]["entropy"] == 1.0
