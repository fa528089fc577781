"""Multi-agent environments: which rows of a rollout are steps, whose they are, and what is refused."""

import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from sampling import sampler_of
from toy_agents import AgentScript, FaultyAgents, Matching, ScriptedAgents, scripted_reward

import hybridppo
from hybridppo import ConfigurationError, EnvError
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.runners.episodes import evaluate

SCRIPTS: list[AgentScript] = [
    [(3, "terminated"), (2, "truncated")],
    [(5, "truncated"), (0, ""), (1, "terminated")],
    [(2, "both"), (4, "terminated")],
]
"""The agents leave at different times, and the second is absent in every third episode."""
SMALL = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))


class FirstAction:
    """An actor that always takes action 0."""

    version = 0

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        assert np.isfinite(observations).all()
        outputs = np.zeros((len(observations), 2), np.float32)
        outputs[:, 0] = 100.0
        return outputs


def expected_column(agent: int, num_rows: int) -> list[dict[str, Any] | None]:
    """What each row of an agent's column must hold; None while it is absent."""
    rows: list[dict[str, Any] | None] = []
    episode = 0
    while len(rows) < num_rows:
        lengths = [script[episode % len(script)][0] for script in SCRIPTS]
        length, end = SCRIPTS[agent][episode % len(SCRIPTS[agent])]
        for step in range(max(lengths)):
            if step >= length:
                rows.append(None)
                continue
            is_last = step + 1 == length
            terminated = is_last and end in ("terminated", "both")
            row = {"observation": (episode, agent, step), "reward": scripted_reward(episode, agent, step)}
            truncated = is_last and not terminated
            rows.append({**row, "terminated": terminated, "truncated": truncated, "next": (episode, agent, step + 1)})
        episode += 1
    return rows[:num_rows]


@pytest.mark.parametrize("num_steps", [7, 40])
def test_every_row_is_what_its_agent_met(num_steps: int) -> None:
    environments = make_environments(partial(ScriptedAgents, SCRIPTS), 2)
    assert environments.agents == ("agent_0", "agent_1", "agent_2")
    assert environments.num_envs == 6
    sampler = sampler_of(environments, num_steps=num_steps, env_seed=5)
    columns = [expected_column(column % 3, 3 * num_steps) for column in range(6)]
    num_seen = num_truncated = 0
    for turn in range(3):
        rollout = sampler.collect(FirstAction())
        finals = dict(zip(rollout.final_rows.tolist(), rollout.final_observations.tolist(), strict=True))
        valid = set(rollout.valid_rows.tolist())
        for t in range(num_steps):
            for column, rows in enumerate(columns):
                row, flat = rows[turn * num_steps + t], 6 * t + column
                assert (row is not None) == (flat in valid)
                if row is None:
                    assert flat not in finals
                    assert rollout.terminated[t, column]  # nothing of it reaches the next episode
                    continue
                num_seen += 1
                assert tuple(rollout.observations[t, column].tolist()) == row["observation"]
                assert rollout.rewards[t, column] == row["reward"]
                assert rollout.terminated[t, column] == row["terminated"]
                assert rollout.truncated[t, column] == row["truncated"]
                if row["truncated"]:
                    num_truncated += 1
                    assert tuple(finals[flat]) == row["next"]
                elif not row["terminated"]:
                    assert tuple(rollout.observations[t + 1, column].tolist()) == row["next"]
        assert len(finals) == sum(bool(rollout.truncated.flatten()[row]) for row in valid)
    assert sampler.counts.env_steps == num_seen
    assert num_truncated > 3


def test_returns_and_lengths_are_those_of_each_agent() -> None:
    environments = make_environments(partial(ScriptedAgents, SCRIPTS), 1)
    sampler = sampler_of(environments, num_steps=9, env_seed=5)  # two episodes of the environment, of 5 and of 4 steps
    sampler.collect(FirstAction())
    first, second = [[(3, 0), (5, 1), (2, 2)], [(2, 0), (4, 2)]]
    returns = [sum(scripted_reward(episode, agent, step) for step in range(length))
               for episode, ends in enumerate((first, second)) for length, agent in ends]  # fmt: skip
    assert sampler.counts.statistics.episodes == 5
    assert sampler.counts.statistics.return_mean == pytest.approx(np.mean(returns))
    assert sampler.counts.statistics.length_mean == np.mean([3, 5, 2, 2, 4])


def test_only_those_who_are_there_act() -> None:
    environments = make_environments(partial(ScriptedAgents, SCRIPTS), 1)
    sampler_of(environments, num_steps=9, env_seed=5).collect(FirstAction())
    (env,) = [sub_env.env.env for sub_env in environments.sub_environments]  # type: ignore[attr-defined]
    who = [
        [f"agent_{i}" for i in there] for there in ([0, 1, 2], [0, 1, 2], [0, 1], [1], [1], [0, 2], [0, 2], [2], [2])
    ]
    assert [list(actions) for actions in env.actions] == who
    assert all(action == 0 for actions in env.actions for action in actions.values())


def test_environments_are_seeded_by_their_number_and_closed_once() -> None:
    environments = make_environments(partial(ScriptedAgents, SCRIPTS), 2, first=4)
    environments.reset(5)
    envs: list[Any] = [sub_env.env.env for sub_env in environments.sub_environments]  # type: ignore[attr-defined]
    assert [env.seeds for env in envs] == [[5], [6]]
    environments.close()
    environments.close()
    assert [env.times_closed for env in envs] == [1, 1]


def test_what_of_a_configuration_counts_environments() -> None:
    """`num_envs` counts environments, and a rollout has a column for each agent of each."""
    result = hybridppo.train(
        partial(ScriptedAgents, [[(4, "terminated")], [(4, "truncated")]]), total_steps=200, seed=0, placement="cpu",
        config=SMALL, progress=False,
    )  # fmt: skip
    assert result.metrics["env_steps"] == 256  # 4 rollouts of 2 environments x 2 agents x 16 steps
    assert result.metrics["iteration"] == 4


def test_evaluation_is_of_whole_episodes_and_of_each_agent() -> None:
    environments = make_environments(partial(ScriptedAgents, SCRIPTS), 2)
    distribution = distribution_for(Discrete(2))
    counted: list[None] = []
    evaluation = evaluate(
        FirstAction(), distribution, environments, episodes=3, seed=0, on_episode=lambda: counted.append(None)
    )
    assert len(counted) == 3  # two episodes of the first environment, and one of the second
    agents = [("agent_2", 0, 2), ("agent_0", 0, 3), ("agent_1", 0, 5)] * 2 + [("agent_0", 1, 2), ("agent_2", 1, 4)]
    expected = [(name, sum(scripted_reward(episode, int(name[-1]), step) for step in range(length)), length)
                for name, episode, length in agents]  # fmt: skip
    assert sorted(zip(evaluation.agents, evaluation.returns, evaluation.lengths, strict=True)) == sorted(expected)


def test_of_one_agent_an_evaluation_names_none() -> None:
    environments = make_environments("CartPole-v1", 2)
    evaluation = evaluate(FirstAction(), distribution_for(Discrete(2)), environments, episodes=3, seed=0)
    assert evaluation.agents == ()
    assert len(evaluation.returns) == 3


# What an environment may not do


def at(step: int, change: Callable[[Any], Any], index: int = 0) -> Callable[[], FaultyAgents]:
    """Apply `change` to the results of one step of an environment; 0 is its first reset."""

    def look(env: FaultyAgents, result: Any) -> Any:
        is_now = env.steps == step and (len(result) == 5 or step == 0) and (env.seed or 0) % 2 == index
        return change(result) if is_now else result

    return partial(FaultyAgents, look)


def part(number: int, agent: str, value: Any) -> Callable[[Any], Any]:
    """Replace one value of one agent, or remove it with None."""

    def change(result: Any) -> Any:
        parts = [dict(of) for of in result]
        if value is None:
            del parts[number][agent]
        else:
            parts[number][agent] = value
        return tuple(parts)

    return change


def run(make: Callable[[], Any], steps: int = 12, **options: Any) -> Environments:
    """Two environments, for some steps, with an even and an odd seed."""
    environments = make_environments(make, 2, **options)
    environments.reset(0)
    for _ in range(steps):
        environments.step(np.zeros(4, np.int64))
    return environments


NAN = np.array([0.0, np.nan, 0.0], np.float32)
BAD: dict[str, tuple[Callable[[], FaultyAgents], str]] = {
    "an observation that is no number": (
        at(7, part(0, "agent_1", NAN)),
        "environment 0 (seed 0) failed in step 7 of its episode, 7 after the first reset, action "
        "{'agent_0': 0, 'agent_1': 0}: agent 'agent_1': its observation[1] is nan",
    ),
    "of the second environment": (
        at(7, part(0, "agent_0", NAN), index=1),
        "environment 1 (seed 1) failed in step 7 of its episode, 7 after the first reset, action "
        "{'agent_0': 0, 'agent_1': 0}: agent 'agent_0': its observation[1] is nan",
    ),
    "a reward that is no number": (at(3, part(1, "agent_0", float("inf"))), "agent 'agent_0': its reward is inf"),
    "a reward of several numbers": (
        at(3, part(1, "agent_0", np.zeros(2))),
        "agent 'agent_0': its reward must be one number, and is of shape (2,)",
    ),
    "a final observation that is no number": (
        at(10, part(0, "agent_0", NAN)),
        "agent 'agent_0': its final observation[1] is nan",
    ),
    "an observation in a reset that is no number": (
        at(0, part(0, "agent_1", NAN)),
        "failed in a reset, 0 steps after the first: agent 'agent_1': its observation[1] is nan",
    ),
    "an observation of another shape": (
        at(5, part(0, "agent_1", np.zeros(4, np.float32))),
        "agent 'agent_1': its observation is of shape (4,), and that of its space is (3,)",
    ),
    "an agent forgotten": (
        at(4, part(1, "agent_1", None)),
        "its step returned no rewards of agent 'agent_1', which has not left",
    ),
    "an agent not observed": (
        at(4, part(0, "agent_1", None)),
        "its step returned no observation of agent 'agent_1', which has not left",
    ),
    "a truncated agent not observed": (
        at(10, part(0, "agent_0", None)),
        "agent 'agent_0' was truncated, and its step returned no final observation",
    ),
    "a stranger in a reset": (
        at(0, part(0, "agent_7", np.zeros(3, np.float32))),
        "its agent 'agent_7' is not in its possible_agents",
    ),
    "a stranger in a step": (
        at(2, part(0, "agent_7", np.zeros(3, np.float32))),
        "agent 'agent_7' appeared in the middle of an episode, and is not in its possible_agents",
    ),
    "a step of a single agent": (
        at(2, lambda result: (np.zeros(3, np.float32), 0.0, False, False, {})),
        "its step did not return five mappings, as pettingzoo.ParallelEnv: observations, rewards, terminations,",
    ),
    "an exit": (at(2, lambda result: sys.exit()), "failed in step 2 of its episode, 2 after the first reset, action"),
    "a reset of a single agent": (
        at(0, lambda result: (np.zeros(3, np.float32), {})),
        "its reset did not return two mappings, as pettingzoo.ParallelEnv: observations, infos",
    ),
    "nobody there": (at(0, lambda result: ({}, {})), "its reset returned no observation of an agent"),
}


@pytest.mark.parametrize("fault", BAD)
def test_what_cannot_be_used_is_refused(fault: str) -> None:
    make, words = BAD[fault]
    with pytest.raises(EnvError, match=re.escape(words)):
        run(make)


def test_a_worker_says_which_agent_it_was() -> None:
    make = partial(FaultyAgents, lambda env, result: part(0, "agent_1", NAN)(result) if env.steps == 5 else result)
    with pytest.raises(
        EnvError, match=r"environment [01] \(seed \d+\) failed in step 5 .*agent 'agent_1': its observat"
    ):
        hybridppo.train(make, total_steps=200, seed=0, placement="cpu", config=SMALL, progress=False, num_workers=2)


class LateArrival(ScriptedAgents):
    """The second agent leaves after 2 of 6 steps, and is there again at the fourth."""

    def __init__(self, says_it_has_left: bool) -> None:
        super().__init__([[(6, "terminated")], [(2, "terminated")]])
        self._says = says_it_has_left

    def step(self, actions: dict[str, Any]) -> Any:
        observations, rewards, terminated, *others = super().step(actions)
        if self._step == 4:
            observations["agent_1"], terminated["agent_1"] = np.zeros(3, np.float32), self._says
        return observations, rewards, terminated, *others


def test_an_agent_that_comes_back_within_an_episode_is_refused() -> None:
    words = "agent 'agent_1' appeared in the middle of an episode, and was not in its reset, or has left"
    with pytest.raises(EnvError, match=re.escape(words)):
        run(partial(LateArrival, False))


def test_one_that_has_left_may_still_be_spoken_of() -> None:
    run(partial(LateArrival, True)).close()


def test_a_terminated_agent_need_not_be_observed() -> None:
    class Silent(ScriptedAgents):
        def step(self, actions: dict[str, Any]) -> Any:
            observations, rewards, terminated, *others = super().step(actions)
            seen = {agent: of for agent, of in observations.items() if not terminated[agent]}
            return seen, rewards, terminated, *others

    environments = make_environments(lambda: Silent([[(3, "terminated")], [(4, "terminated")]]), 1)
    environments.reset(0)
    ends = [environments.step(np.zeros(2, np.int64))[2].tolist() for _ in range(4)]
    assert ends == [[False, False], [False, False], [True, False], [True, True]]


def test_environments_that_differ_in_their_agents_are_refused() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(None)
        return ScriptedAgents(SCRIPTS[: 2 if len(made) == 2 else 3])

    with pytest.raises(EnvError, match=r"the agents of environment 1 are .*, those of environment 0 .*: make copies"):
        make_environments(make, 2)


def test_an_environment_without_agents_is_refused() -> None:
    with pytest.raises(EnvError, match="has no agents: possible_agents must list all that may ever be there"):
        make_environments(partial(ScriptedAgents, []), 2)


def test_rollouts_of_whole_episodes_are_refused() -> None:
    config = ppo_config(num_envs=1, episodes_per_rollout=2, num_epochs=1, hidden_sizes=(8,))
    with pytest.raises(ConfigurationError, match="whole episodes come from one environment"):
        hybridppo.train(Matching, total_steps=100, placement="cpu", config=config, progress=False)


def test_more_workers_than_environments_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"num_workers must be 0 \(this process\), or 1 to num_envs = 2, got 3"
    ):
        hybridppo.train(Matching, total_steps=100, placement="cpu", config=SMALL, num_workers=3, progress=False)


def test_a_mask_that_allows_nothing_names_the_agent() -> None:
    class Forbidding(Matching):
        def _mask(self, wanted: int) -> np.ndarray:
            return np.zeros(4, np.int8)

    with pytest.raises(EnvError, match="agent 'player 0': its action mask allows no action"):
        run(partial(Forbidding, masks=True), action_masks=True)


def test_masks_that_are_missing_name_the_agent() -> None:
    with pytest.raises(EnvError, match="agent 'player 0': its info has no 'action_mask'"):
        run(Matching, action_masks=True)


# Restarts


def raise_at(*steps: int) -> Callable[[FaultyAgents, Any], Any]:
    def look(env: FaultyAgents, result: Any) -> Any:
        if env.steps in steps and len(result) == 5 and env.seed == 5:
            raise ValueError("the motor is stuck")
        return result

    return look


def test_a_restart_breaks_off_the_episodes_of_all_agents_of_the_environment_alone() -> None:
    environments = make_environments(partial(FaultyAgents, raise_at(7)), 2, on_env_error="restart")
    sampler = sampler_of(environments, num_steps=20, env_seed=5)
    rollout = sampler.collect(FirstAction())
    valid = np.zeros(80, bool)
    valid[rollout.valid_rows.numpy()] = True
    valid = valid.reshape(20, 4)
    # Seven rows of the first environment are lost: six steps and that which failed. The new episodes are of 10 steps.
    assert valid.sum(0).tolist() == [13, 13, 20, 20]
    assert not valid[:7, :2].any()
    assert rollout.terminated[6].tolist() == [True, True, False, False]
    assert sampler.counts.env_restarts == 1
    assert sampler.counts.statistics.episodes == 6
    assert sampler.counts.statistics.length_mean == 10.0


class OneLeavesFirst(ScriptedAgents):
    """The first agent leaves in the first step of three; the first environment raises once in the step `fails_in`."""

    failed: list[int]

    def __init__(self, failed: list[int], fails_in: int) -> None:
        super().__init__([[(1, "terminated")], [(3, "terminated")]])
        self.failed, self._fails_in = failed, fails_in

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._look(3)
        return super().reset(seed)

    def step(self, actions: Any) -> Any:
        found = super().step(actions)
        if self._step < 3:
            self._look(self._step)
        return found

    def _look(self, now: int) -> None:
        if now == self._fails_in == self._step and not self.failed:
            self.failed.append(1)
            raise ValueError("the motor is stuck")


@pytest.mark.parametrize("fails_in", [2, 3], ids=["in a step", "in the reset after the episode"])
def test_an_evaluation_leaves_out_who_had_left_an_episode_that_a_restart_broke_off(fails_in: int) -> None:
    failed: list[int] = []
    environments = make_environments(partial(OneLeavesFirst, failed, fails_in), 1, on_env_error="restart")
    evaluation = evaluate(FirstAction(), distribution_for(Discrete(2)), environments, episodes=2, seed=0)
    assert failed
    assert sorted(evaluation.agents) == ["agent_0", "agent_0", "agent_1", "agent_1"]


def test_an_environment_that_keeps_failing_is_an_error() -> None:
    def look(env: FaultyAgents, result: Any) -> Any:
        if len(result) == 5:
            raise ValueError("the motor is stuck")
        return result

    with pytest.raises(EnvError, match="4 failures in a row, the last: environment 0"):
        run(partial(FaultyAgents, look), on_env_error="restart")


def test_numbers_that_are_none_restart_their_environment() -> None:
    make = at(4, part(0, "agent_1", NAN))
    environments = make_environments(make, 2, on_env_error="restart")
    environments.reset(0)
    for step in range(1, 8):
        observations = environments.step(np.zeros(4, np.int64))[0]
        assert np.isfinite(observations).all()
        assert environments.restarted == ({0: 1, 1: 1} if step == 4 else {})


def test_observations_of_images_are_bytes() -> None:
    environments = make_environments(partial(Matching, space=Box(0, 255, (4, 4, 1), np.uint8)), 2)
    observations = environments.reset(0)
    assert observations.dtype == np.uint8
    assert observations.shape == (6, 4, 4, 1)
    assert set(np.unique(observations)) == {0, 255}


class Numbered(ScriptedAgents):
    """Its agents are numbers."""

    def __init__(self) -> None:
        super().__init__([[(3, "terminated")], [(4, "truncated")]])
        self.possible_agents = [0, 1]  # type: ignore[list-item]


@pytest.mark.parametrize("self_play", [None, hybridppo.SelfPlay(snapshot_every=1000)])
def test_policy_of_gets_the_id_that_the_environment_has_for_an_agent(self_play: Any) -> None:
    config = {"even": SMALL, "odd": SMALL}
    options: dict[str, Any] = {"policy_of": lambda number: ("even", "odd")[number % 2], "self_play": self_play}
    train = partial(hybridppo.train, total_steps=64, seed=0, placement="cpu", progress=False)
    agents = train(Numbered, config=config, **options).agents
    found = hybridppo.evaluate_policies(agents, Numbered, episodes=1, policy_of=options["policy_of"])
    assert {name: each.lengths for name, each in found.items()} == {"even": (3,), "odd": (4,)}
