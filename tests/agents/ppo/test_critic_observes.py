"""Critics of several agents that see more than the agents: their rows by hand, and the same bits everywhere."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from everywhere import WAYS, WITH_WORKERS, assert_goes_on_exactly, assert_same_everywhere
from gymnasium.spaces import Box
from ppo_settings import ppo_config
from same_bits import values_of
from selection import only_by_default
from toy_agents import Matching, ScriptedAgents, TakingTurns, Unlike

import hybridppo
from hybridppo import ConfigurationError, EnvError, PPOConfig
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import CriticsOptions

SMALL = ppo_config(num_envs=4, num_steps=24, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16))
STEPS = 4 * 24 * 4
"""Steps of two rollouts: the run continues in an episode that lacks an agent."""


class Stated(Matching):
    """An environment with a state, which shows what each agent must name and how long it goes on."""

    state_space = Box(0.0, 9.0, (4,))

    def state(self) -> Any:
        wanted = [self._wanted.get(agent, 0) for agent in self.possible_agents]
        return np.array([*wanted, self._steps], np.float32)


def turns(masks: bool = False) -> Any:
    return TakingTurns(Observed(masks=masks), within=masks)


class Observed(Matching):
    """An environment in which all agents observe, even those that have left."""


def masked() -> Any:
    return Stated(masks=True)


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (Stated, {}),
    "masked": (masked, {"action_masks": True}),
    "a policy for each kind": (Unlike, {}),
}
"""Sources of the critics' observations. To add one, add a line."""


def train(name: str = "plain", observes: Any = "all", **options: Any) -> hybridppo.TrainResult:
    env, own = SOURCES[name]
    config = options.pop("config", replace(SMALL, critic_observes=observes))
    config = {"sign": config, "pointer": config} if env is Unlike and not isinstance(config, dict) else config
    arguments: dict[str, Any] = {"placement": "cpu", "seed": 0, "config": config, "total_steps": STEPS}
    return hybridppo.train(env, **{**arguments, **own, **options}, progress=False)


def environments_of(make: Any, observes: Any, masks: bool = False) -> Any:
    return make_environments(make, 1, CriticsOptions(action_masks=masks, critic_observes=observes))


def test_rows_have_what_all_others_observe_in_their_order() -> None:
    """Three agents that observe (episode, agent, steps); the second leaves after a step, the others are cut short."""
    scripts = [[(3, "truncated")], [(1, "terminated")], [(3, "truncated")]]
    environments = environments_of(partial(ScriptedAgents, scripts), "all")
    assert environments.observation_space["others"].shape == (6,)
    # The parts of a Dict are in the order of their keys: others, own.
    first = [[0, i, 0] for i in range(3)]
    rows = environments.reset(0)
    assert rows.tolist() == [[*first[1], *first[2], *first[0]], [*first[0], *first[2], *first[1]],
                             [*first[0], *first[1], *first[2]]]  # fmt: skip
    rows, *_ = environments.step(np.zeros(3, np.int64))
    gone = [0, 0, 0]
    a, c = [0, 0, 1], [0, 2, 1]
    assert rows.tolist() == [[*gone, *c, *a], [0] * 9, [*a, *gone, *c]]
    environments.step(np.zeros(3, np.int64))
    rows, *_, finals_of, finals = environments.step(np.zeros(3, np.int64))
    assert finals_of == [0, 2]
    a, c = [0, 0, 3], [0, 2, 3]
    assert [final.tolist() for final in finals] == [[*gone, *c, *a], [*a, *gone, *c]]
    assert rows[0].tolist() == [1, 1, 0, 1, 2, 0, 1, 0, 0]  # of the next episode
    environments.close()


def test_rows_have_the_state_of_the_environment() -> None:
    environments = environments_of(masked, "state", masks=True)
    rows = environments.reset(0)
    (env,) = [environments.sub_environments[0].env.env]
    for _ in range(3):
        for i, agent in enumerate(env.possible_agents):
            own, state, mask = rows[i, :4], rows[i, 4:8], rows[i, 8:]
            assert own.tolist() == np.eye(4)[env._wanted[agent]].tolist()
            assert state.tolist() == env.state().tolist()
            assert mask.tolist() == env._allowed[agent].tolist()
        rows, *_ = environments.step(np.array([env._wanted[agent] for agent in env.possible_agents]))
    environments.close()


class Watched(TakingTurns):
    """An environment that shows all agents while one acts."""

    infos: Any = {}  # noqa: RUF012

    def observe(self, agent: str) -> Any:
        return self._seen[agent]

    def last(self) -> Any:
        self.infos = self._infos
        return super().last()


def test_in_turns_all_are_observed_when_one_acts() -> None:
    scripts = [[(3, "truncated")], [(3, "truncated")]]
    environments = environments_of(lambda: Watched(ScriptedAgents(scripts)), "all")
    rows = environments.reset(0)
    assert rows[0].tolist() == [0, 1, 0, 0, 0, 0]
    rows, *_ = environments.step(np.zeros(2, np.int64))
    assert rows[1].tolist() == [0, 0, 0, 0, 1, 0]
    rows, *_ = environments.step(np.zeros(2, np.int64))
    assert rows[0].tolist() == [0, 1, 1, 0, 0, 1]
    environments.close()


def test_in_turns_an_agent_that_was_truncated_is_not_observed_any_more() -> None:
    scripts = [[(3, "truncated")], [(1, "truncated")], [(3, "truncated")]]
    environments = environments_of(lambda: Watched(ScriptedAgents(scripts)), "all")
    environments.reset(0)
    for _ in range(4):  # a round, and the first agent's turn of the next, in which the second leaves
        rows, *_, finals_of, finals = environments.step(np.zeros(3, np.int64))
    a, b, c, gone = [0, 0, 1], [0, 1, 1], [0, 2, 1], [0, 0, 0]
    assert finals_of == [1]
    assert finals[0].tolist() == [*a, *c, *b]
    assert rows[2].tolist() == [*a, *gone, *c]
    environments.close()


class OnlyInTurn(TakingTurns):
    """As in PettingZoo's classic games: the mask of a waiting agent allows nothing, or its info has no mask."""

    @property
    def infos(self) -> dict[str, Any]:
        return {agent: info if agent == self.agent_selection else {} for agent, info in super().infos.items()}

    def observe(self, agent: str) -> Any:
        seen = super().observe(agent)
        waits = self._within and agent != self.agent_selection
        return {**seen, "action_mask": np.zeros(4, np.int8)} if waits else seen


@pytest.mark.parametrize("within", [True, False])
def test_in_turns_who_waits_needs_no_mask(within: bool) -> None:
    make = lambda: OnlyInTurn(Matching(num_agents=2, masks=True), within)  # noqa: E731 - for workers, too
    environments = environments_of(make, "all", masks=True)
    rows = environments.reset(0)
    game: Any = environments.sub_environments[0].env.env
    wanted, allowed = game._env._wanted, game._env._allowed
    first, second = (np.eye(4)[wanted[agent]].tolist() for agent in game.possible_agents)
    assert rows[0].tolist() == [*second, *first, *allowed["player 0"]]
    rows, *_ = environments.step(np.array([wanted["player 0"], 0]))
    assert rows[1].tolist() == [*first, *second, *allowed["player 1"]]
    environments.close()
    config = replace(SMALL, critic_observes="all")
    options: dict[str, Any] = {"config": config, "placement": "cpu", "action_masks": True, "progress": False}
    assert np.isfinite(hybridppo.train(make, total_steps=96, **options).metrics["policy_loss"])


KINDS = [(name, observes) for name in SOURCES for observes in ("all", "state") if (name, observes) != (
    "a policy for each kind", "state")]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "observes"), only_by_default(("plain, state", "masked, all", "a policy for each kind, all"), KINDS)
)
def test_who_samples_and_where_changes_nothing_and_a_run_goes_on(name: str, observes: Any, tmp_path: Path) -> None:
    expected, run = train(name, observes), tmp_path / "run"
    ways = {WITH_WORKERS: WAYS[WITH_WORKERS]}
    assert_same_everywhere(partial(train, name, observes, evaluate_every=100), expected, ways, run=run)
    assert_goes_on_exactly(run, expected, env=SOURCES[name][0], num_workers=2)
    found = hybridppo.evaluate(run, env=SOURCES[name][0], episodes=2, progress=False)
    assert len(found.returns) == len(found.agents)


def test_agents_act_on_their_own_observation_alone(tmp_path: Path) -> None:
    agent = train("masked", run_dir=tmp_path / "run").agent
    assert agent.act(2, action_mask=np.array([1, 0, 0, 0], np.int8)) == 0
    loaded = hybridppo.load(tmp_path / "run")
    assert [loaded.act(i, action_mask=np.ones(4, np.int8)) for i in range(4)] == [
        agent.act(i, action_mask=np.ones(4, np.int8)) for i in range(4)
    ]
    assert hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=50).steps_checked == 50


def test_with_a_memory(tmp_path: Path) -> None:
    config = replace(SMALL, critic_observes="all", recurrent="gru", recurrent_size=8, sequence_length=8)
    expected = values_of(train(config=config))
    assert torch.equal(values_of(train(config=config, num_workers=2)), expected)


def test_policies_are_evaluated_by_themselves() -> None:
    agents = train("a policy for each kind").agents
    found = hybridppo.evaluate_policies(agents, Unlike, episodes=3)
    assert set(found) == {"sign", "pointer"}


@pytest.mark.parametrize(
    ("make", "config", "error", "message"),
    [
        (Matching, {"critic_observes": "state"}, EnvError, r"needs an environment with state\(\) and a state_space"),
        (lambda: gym.make("CartPole-v1"), {"critic_observes": "all"}, ConfigurationError, "multi-agent environments"),
        (
            partial(Matching, space=Box(0, 255, (4, 4, 1), np.uint8)), {"critic_observes": "all"}, EnvError,
            "is for agents that observe numbers, and some observe images",
        ),
        (Matching, {"critic_observes": "everything"}, ConfigurationError, "must be one of own, all, state"),
        (Matching, {"critic_observes": "all", "shared_trunk": True}, ConfigurationError, "work with shared_trunk"),
        (Matching, {"critic_observes": "all", "actor_keys": ("own",)}, ConfigurationError, "work with actor_keys"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make: Any, config: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        hybridppo.train(make, total_steps=64, config=PPOConfig(**config), placement="cpu", progress=False)


class Kinds(Stated):
    """Agents of one kind, each with its own name."""


def one_by_one(name: str) -> str:
    return "first" if name == Kinds().possible_agents[0] else "others"


EACH: dict[str, tuple[Any, dict[str, Any]]] = {
    "all and own": (Unlike, {"config": {"sign": replace(SMALL, critic_observes="all"), "pointer": SMALL}}),
    "state and all": (
        Kinds,
        {
            "config": {
                "first": replace(SMALL, critic_observes="state"), "others": replace(SMALL, critic_observes="all"),
            },
            "policy_of": one_by_one,
        },
    ),
    "masked": (
        masked,
        {
            "config": {"first": SMALL, "others": replace(SMALL, critic_observes="state", normalize_observations=True)},
            "policy_of": one_by_one, "action_masks": True,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", only_by_default(("all and own", "state and all"), EACH))
def test_each_policy_has_a_critic_of_its_own(name: str, tmp_path: Path) -> None:
    env, own = EACH[name]
    run = tmp_path / "run"

    def trained(**options: Any) -> Any:
        arguments: dict[str, Any] = {"placement": "cpu", "seed": 0, "total_steps": 4 * 24 * 4, "progress": False}
        return hybridppo.train(env, **{**arguments, **own, **options})

    expected = trained(run_dir=run, checkpoint_seconds=0, evaluation_episodes=2)
    assert_same_everywhere(trained, expected, {WITH_WORKERS: WAYS[WITH_WORKERS]})
    assert_goes_on_exactly(run, expected, env=env)
    assert hybridppo.evaluate(run, env=env, episodes=2, progress=False).returns
    agents = hybridppo.load_policies(run)
    for policy, agent in agents.items():
        assert agent.config.critic_observes == own["config"][policy].critic_observes
        played = {**own["config"], policy: agent}
        assert torch.equal(trained(config=played).agents[policy].parameters.values, agent.parameters.values)
    if name != "masked":
        found = hybridppo.evaluate_policies(agents, env, episodes=2, policy_of=own.get("policy_of"))
        assert found.keys() == agents.keys()


def test_rows_of_agents_have_what_each_critic_sees() -> None:
    scripts = [[(3, "truncated")], [(1, "terminated")], [(3, "truncated")]]
    each = {"agent_0": "all", "agent_1": "own", "agent_2": "own"}
    environments = environments_of(partial(ScriptedAgents, scripts), each)
    first = [[0, i, 0] for i in range(3)]
    nothing = [0] * 6
    rows = environments.reset(0)
    assert rows.tolist() == [[*first[1], *first[2], *first[0]], [*first[1], *nothing], [*first[2], *nothing]]
    environments.close()
