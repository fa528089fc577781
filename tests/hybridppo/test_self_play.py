"""Self-play against snapshots: players, opponents, ratings, and exactly resumed runs."""

import os
import shutil
import signal
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from everywhere import assert_goes_on_exactly
from gymnasium.spaces import Box, Dict, Discrete
from ppo_settings import ppo_config
from run_files import remove_last_checkpoint
from same_bits import values_of
from selection import only_by_default
from toy_agents import Matching, TakingTurns, Unlike, noughts_and_crosses
from toy_combined import ToyAgents

import hybridppo
from hybridppo import ConfigurationError, EnvError, Mirrored, RunDirectoryError, SelfPlay
from hybridppo.commands.tools import Evaluate
from hybridppo.environments.base import Steering
from hybridppo.environments.making import make_environments
from hybridppo.environments.multi_agent import ParallelEnvironment, TurnBasedEnvironment
from hybridppo.environments.options import SelfPlayOptions
from hybridppo.environments.self_play_game import SelfPlayGame
from hybridppo.errors import EnvStateError
from hybridppo.runners.process_group import SingleProcess
from hybridppo.runners.sampler import Sampler
from hybridppo.self_play import FIRST_RATING, STEP, OpponentPools, opponent_of

pytestmark = pytest.mark.torch_in_workers

SMALL = ppo_config(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(16, 16))
BATCH = SMALL.batch_size
OFTEN = SelfPlay(snapshot_every=BATCH, pool=3)


class Duel:
    """Rock, paper, scissors at once, three rounds; each player sees the others' last choices."""

    possible_agents = ("left", "right")

    def observation_space(self, agent: str) -> Any:
        return Discrete(4)

    def action_space(self, agent: str) -> Any:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._round = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, 3), {}

    def step(self, actions: dict[str, Any]) -> Any:
        left, right = int(actions["left"]), int(actions["right"])
        won = {0: 0.0, 1: 1.0, 2: -1.0}[(left - right) % 3]
        self._round += 1
        is_over = self._round == 3
        self.agents = [] if is_over else self.agents
        flags = dict.fromkeys(self.possible_agents, is_over)
        seen = {"left": right, "right": left}
        return seen, {"left": won, "right": -won}, flags, dict.fromkeys(self.possible_agents, False), {}


class Counting:
    """Two players in turn take one or two of five; the one who takes the last wins."""

    possible_agents = ("first", "second")

    def observation_space(self, agent: str) -> Any:
        return Box(0.0, 5.0, (1,))

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection, self._left = ["first", "second"], "first", 5
        self._sums, self._is_over = {"first": 0.0, "second": 0.0}, False

    def last(self) -> Any:
        agent = self.agent_selection
        return np.array([self._left], np.float32), self._sums[agent], self._is_over, False, {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        other = "second" if agent == "first" else "first"
        if self._is_over:
            self.agents.remove(agent)
            self.agent_selection = other
            return
        self._sums[agent] = 0.0
        self._left = max(0, self._left - 1 - int(action))
        if self._left == 0:
            self._is_over = True
            self._sums[agent], self._sums[other] = 1.0, -1.0
        self.agent_selection = other


def masked() -> Any:
    return TakingTurns(Matching(num_agents=2, masks=True), within=True)


GAMES: dict[str, tuple[Any, dict[str, Any]]] = {
    "at once": (Duel, {}),
    "in turns": (Counting, {}),
    "masked": (masked, {"action_masks": True}),
    "with memories": (Counting, {"config": replace(SMALL, recurrent="gru", recurrent_size=8, sequence_length=8)}),
    "masks of booleans": (partial(ToyAgents, masks=True), {"action_masks": True}),
    "two players": (noughts_and_crosses, {"action_masks": True}),
    "policies with memories in turns": (
        Counting,
        {"config": dict.fromkeys(("first", "second"), replace(SMALL, recurrent="gru", sequence_length=4))},
    ),
    "critics see all": (Duel, {"config": {"player": replace(SMALL, critic_observes="all")}}),
    "two policies": (Duel, {"config": {"left": SMALL, "right": SMALL}}),
    "two policies in turns": (Counting, {"config": {"first": SMALL, "second": SMALL}}),
    "teams of kinds": (Unlike, {"config": {"sign": SMALL, "pointer": replace(SMALL, hidden_sizes=(8,))}}),
    "teams of kinds that see images": (partial(Unlike, images=True), {"config": {"sign": SMALL, "pointer": SMALL}}),
}
"""To add a game, add a line."""
WITH_ALL = (
    "at once", "with memories", "masks of booleans", "two players", "critics see all", "teams of kinds that see images",
)  # fmt: skip
"""Games that together have everything that the others have."""
IN_WORKERS = ("at once", "with memories", "teams of kinds", "teams of kinds that see images")


def train(name: str = "at once", iterations: int = 5, **options: Any) -> hybridppo.TrainResult:
    env, own = GAMES[name]
    arguments: dict[str, Any] = {"placement": "cpu", "seed": 0, "config": SMALL, "self_play": OFTEN, **own}
    return hybridppo.train(env, total_steps=iterations * BATCH, **{**arguments, **options}, progress=False)


def ratings_of(result: hybridppo.TrainResult) -> dict[str, float]:
    return {key: value for key, value in result.metrics.items() if "self_play/" in key}


@pytest.mark.parametrize("name", only_by_default(WITH_ALL, GAMES))
def test_who_samples_and_where_changes_nothing_and_a_run_goes_on(name: str, tmp_path: Path) -> None:
    expected, run = train(name), tmp_path / "run"
    ratings = ratings_of(expected)
    assert {value for key, value in ratings.items() if key.endswith("/snapshots")} == {3}
    rates = [value for key, value in ratings.items() if "/score/" in key]
    assert rates
    assert all(0.0 <= rate <= 1.0 for rate in rates)
    # Several ways at once: none of them changes anything.
    ways: dict[str, Any] = {"placement": Mirrored("cpu", "cpu", force_copy=True), "evaluation_episodes": 2}
    found = train(name, run_dir=run, checkpoint_seconds=0, num_workers=2 if name in IN_WORKERS else 0, **ways)
    assert torch.equal(values_of(found), values_of(expected))
    assert ratings_of(found) == ratings
    files = [path for path in (run / "snapshots").rglob("*") if path.is_file()]  # of the pool, and of checkpoints kept
    assert {path.name for path in files} == {f"{i * BATCH:012d}" for i in range(6)}
    assert len(files) == 6 * len(expected.agents)
    assert ratings_of(assert_goes_on_exactly(run, expected, env=GAMES[name][0], num_workers=0)) == ratings


@pytest.mark.parametrize("max_lag", [0, 1])
def test_snapshots_that_neither_games_nor_checkpoints_need_are_removed(
    max_lag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options: dict[str, Any] = {
        "self_play": replace(OFTEN, pool=2),
        "placement": Mirrored("cpu", "cpu", max_lag=max_lag),
    }
    most: list[int] = []
    expected = train(
        iterations=12, **options, on_iteration=lambda metrics: most.append(len([*tmp_path.glob("hybridppo-*/*")]))
    )
    assert max(most) <= 4
    run = tmp_path / "run"
    train(iterations=12, run_dir=run, checkpoint_seconds=0, keep_checkpoints=2, **options)
    (run / "snapshots" / "000000000001").touch()  # somebody else's
    assert_goes_on_exactly(run, expected, env=GAMES["at once"][0])
    names = sorted(path.name for path in (run / "snapshots").iterdir())
    assert names[0] == "000000000001"
    assert names[-2:] == [f"{i * BATCH:012d}" for i in (11, 12)]
    assert len(names) <= 6


@pytest.mark.parametrize("max_lag", only_by_default(("1",), (1, 2)))
def test_it_overlaps_and_goes_on(max_lag: int, tmp_path: Path) -> None:
    """With one rollout ahead, opponents change between rollouts: workers and stops change nothing."""
    options: dict[str, Any] = {"placement": Mirrored("cpu", "cpu", max_lag=max_lag), "num_workers": 1}
    run = tmp_path / "run"
    expected = train(run_dir=run, checkpoint_seconds=0, **options)
    assert expected.metrics["self_play/snapshots"] == 3
    remove_last_checkpoint(run)
    again = hybridppo.resume(run, env=Duel, progress=False)
    assert again.metrics["self_play/snapshots"] == 3
    if max_lag == 1:
        assert torch.equal(values_of(again), values_of(expected))
        assert again.metrics["self_play/rating"] == expected.metrics["self_play/rating"]
        assert torch.equal(values_of(train(**{**options, "num_workers": 0})), values_of(expected))


class Plays:
    """An opponent that always plays the same, and notes its observations."""

    def __init__(self, action: int) -> None:
        self.action, self.rows = action, []

    def __call__(self, path: Path) -> Any:
        def act(rows: Any, generator: Any, states: Any) -> Any:
            self.rows.append(rows.copy())
            return [self.action] * len(rows), states

        return act


def test_the_learner_is_one_player_and_the_opponent_the_other() -> None:
    opponent = Plays(0)
    game = SelfPlayGame(ParallelEnvironment(Duel()), SelfPlayOptions(opponent_of=opponent))
    game.set_opponents({"": {"snapshots": ["somebody"], "weights": [1.0]}})
    sides = set()
    for episode in range(8):
        rows, _ = game.reset(seed=episode)
        assert rows.tolist() == [[0, 0, 0, 1]]  # nothing was done yet
        sides.update(game._match.learners)
        for action, reward in ((1, 1.0), (2, -1.0), (1, 1.0)):  # paper beats rock, scissors do not
            _, rewards, *_ = game.step([action])
            assert rewards.tolist() == [reward]
        assert game.terminated.tolist() == [True]
    assert sides == {0, 1}
    assert opponent.rows[1].tolist() == [[0, 1, 0, 0]]  # the learner's paper
    assert game.take_results() == ([["", "", "somebody", 1.0]] * 8, [])
    assert game.take_results() == ([], [])


def test_in_turns_a_step_is_the_learners_and_the_answer_to_it() -> None:
    game = SelfPlayGame(TurnBasedEnvironment(Counting()), SelfPlayOptions(opponent_of=Plays(0)))  # takes one
    game.set_opponents({"": {"snapshots": ["somebody"], "weights": [1.0]}})
    begun = {}
    for episode in range(8):
        rows, _ = game.reset(seed=episode)
        begun[game._match.learners[0]] = float(rows[0, 0])
    assert begun == {0: 5.0, 1: 4.0}
    while game._match.learners != [0]:
        game.reset()
    rows, rewards, *_ = game.step([1])  # 5 - 2 - 1
    assert (rows.tolist(), rewards.tolist(), game.terminated.tolist()) == ([[2.0]], [0.0], [False])
    _, rewards, *_ = game.step([1])
    assert (rewards.tolist(), game.terminated.tolist()) == ([1.0], [True])
    assert game.take_results()[0][-1] == ["", "", "somebody", 1.0]


def test_random_opponents_do_not_seed_the_spaces_of_the_game() -> None:
    space = Discrete(2)  # which all environments of this process may share

    class Shared(Counting):
        def action_space(self, agent: str) -> Any:
            return space

    game = SelfPlayGame(TurnBasedEnvironment(Shared()), SelfPlayOptions(opponent_of=Plays(0)))
    game.reset(seed=0)
    game.step([0])
    assert space._np_random is None


def test_games_that_ended_before_a_restart_are_rated() -> None:
    class Fails(Duel):
        steps = 0

        def step(self, actions: dict[str, Any]) -> Any:
            Fails.steps += 1
            if Fails.steps == 5:
                raise ValueError("the dice are lost")
            return super().step(actions)

    environments = make_environments(Fails, 1, SelfPlayOptions(opponent_of=Plays(0), on_env_error="restart"))
    environments.steer(Steering("self_play", "set_opponents", [{"": {"snapshots": ["somebody"], "weights": [1.0]}}]))
    take = Steering("once", "take_results", [])
    assert environments.steer(take) == [([], [])]
    environments.reset(0)
    for _ in range(6):
        environments.step(np.array([1]))
    assert environments.steer(take) == [([["", "", "somebody", 1.0]], [])]
    assert environments.steer(take) == [([], [])]


class Striking(Counting):
    """The first move is worth `reward`, and the game ends after so many moves of one."""

    def __init__(self, moves: int, reward: float) -> None:
        self._moves, self._reward = moves, reward

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset()
        self._left = self._moves

    def step(self, action: Any) -> None:
        is_first = self._left == self._moves
        super().step(0)
        if is_first:
            self._sums = {"first": self._reward, "second": -self._reward}


@pytest.mark.parametrize("moves", [1, 3])
@pytest.mark.parametrize("config", [SMALL, {"first": SMALL, "second": SMALL}], ids=["one policy", "two"])
def test_games_and_rewards_before_the_learners_first_turn_are_counted(moves: int, config: Any) -> None:
    env: Any = partial(Striking, moves, 1.0)
    metrics = hybridppo.train(
        env, total_steps=4 * BATCH, seed=0, config=config, self_play=OFTEN, placement="cpu", progress=False
    ).metrics
    assert metrics["episode_return_mean"] == pytest.approx(0.0, abs=0.4)
    assert metrics["episode_length_mean"] == pytest.approx(0.5 * moves, abs=0.15)
    if isinstance(config, dict):
        found = [metrics[f"{policy}/episode_return_mean"] for policy in config]
        assert found == {1: [1.0, -1.0], 3: [2.0, -2.0]}[moves]


class Tugging:
    """Two reds pull against one blue, once: each may pull (1) or not (0). Reds win if more of them pull."""

    possible_agents = ("red_0", "blue_0", "red_1")

    def observation_space(self, agent: str) -> Any:
        return Discrete(4 if agent == "blue_0" else 2)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return {"red_0": 1, "blue_0": 2, "red_1": 0}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        won = float(np.sign(actions["red_0"] + actions["red_1"] - actions["blue_0"]))
        flags = dict.fromkeys(self.possible_agents, True)
        return {}, {"red_0": won, "blue_0": -won, "red_1": won}, flags, dict.fromkeys(self.possible_agents, False), {}


def test_of_several_policies_one_is_all_its_players_and_snapshots_the_others() -> None:
    opponent, names = Plays(1), {"red_0": "red", "blue_0": "blue", "red_1": "red"}
    options = SelfPlayOptions(opponent_of=opponent, policy_of=names.get, policies=("red", "blue"))
    game = SelfPlayGame(ParallelEnvironment(Tugging()), options)
    game.set_opponents({name: {"snapshots": [name[0]], "weights": [1.0]} for name in ("red", "blue")})
    expected = {  # of the learner: who is there, the learner's rewards for pulling with all it has, and what is shown
        "red": ([True, False, True], [1.0, 0.0, 1.0], [[0, 0, 1, 0]], ["red", "blue", "b", 1.0]),
        "blue": ([False, True, False], [0.0, -1.0, 0.0], [[0, 1], [1, 0]], ["blue", "red", "r", 0.0]),
    }
    met = set()
    for episode in range(12):
        rows, _ = game.reset(seed=episode)
        policy = "red" if game.present[0] else "blue"
        present, rewards, shown, result = expected[policy]
        assert game.present.tolist() == present
        assert rows.any(axis=1).tolist() == present  # those of opponents are zeros
        assert rows[1].any() == (policy == "blue")
        assert game.step([1, 1, 1])[1].tolist() == rewards
        assert game.is_over
        assert not game.present.any()
        assert opponent.rows[-1].tolist() == shown
        assert game.take_results() == ([result], [])
        met.add(policy)
    assert met == {"red", "blue"}


def test_a_policy_that_does_not_learn_plays_and_has_one_snapshot(tmp_path: Path) -> None:
    right = hybridppo.PPO(Discrete(4), Discrete(3), SMALL)
    result = train(config={"left": SMALL, "right": right}, run_dir=tmp_path / "run")
    assert result.metrics["left/self_play/snapshots"] == 3
    assert result.metrics["right/self_play/snapshots"] == 1
    assert result.metrics["right/agent_steps"] == 0
    assert torch.equal(result.agents["right"].parameters.values, right.parameters.values)
    assert len([*(tmp_path / "run" / "snapshots" / "right").iterdir()]) == 1


@pytest.mark.parametrize("name", only_by_default(("two policies",), ("at once", "two policies")))
def test_several_learners_count_and_meet_the_same(name: str, tmp_path: Path) -> None:
    """The number of learners changes nothing, nor does a stop between."""
    run = tmp_path / "run"
    expected = train(name, distributed=hybridppo.MultiLearner(learners=1, shards=2))
    found = train(name, distributed=hybridppo.MultiLearner(learners=2, shards=2), run_dir=run, checkpoint_seconds=0)
    assert torch.equal(values_of(found), values_of(expected))
    assert ratings_of(found) == ratings_of(expected)
    assert ratings_of(assert_goes_on_exactly(run, expected, env=GAMES[name][0], num_workers=0)) == ratings_of(expected)


class Steered:
    """Replaces a sampler whose environments give these results."""

    def __init__(self, results: list[Any]) -> None:
        self.steering: list[Any] = []
        self.counts: Any = SimpleNamespace(env_steps=0, add_missed=list)
        self._results, self.told = results, []

    def steer(self, steering: Any) -> list[Any]:
        if steering.name == "take_results":
            return [(self._results, [])]
        self.told.append(steering)
        return []


RUN: Any = None
"""The training, which no method needs."""


def training_of(agent: Any, sampler: Any) -> Any:
    return SimpleNamespace(agent=agent, sampler=sampler, group=SingleProcess())


def pools_of(sampler: Any, tmp_path: Path, **options: Any) -> OpponentPools:
    agent = hybridppo.PPO(Discrete(4), Discrete(3), SMALL)
    return OpponentPools(options, training_of(agent, sampler), tmp_path)


def test_ratings_are_those_of_elo(tmp_path: Path) -> None:
    sampler = Steered([["", "", "000000000000", 1.0]])
    found = pools_of(sampler, tmp_path, snapshot_every=100)
    found.on_start(RUN)
    found.on_rollout(RUN)
    assert found.on_metrics(RUN, {}) == {
        "self_play/rating": FIRST_RATING + STEP / 2, "self_play/snapshots": 1, "self_play/score/0": 1.0,
    }  # fmt: skip
    assert found.pools[""].snapshots["000000000000"]["rating"] == FIRST_RATING - STEP / 2
    expected = 1.0 / (1.0 + 10.0 ** (-STEP / 400.0))
    found.on_rollout(RUN)
    assert found.on_metrics(RUN, {})["self_play/rating"] == pytest.approx(
        FIRST_RATING + STEP / 2 + STEP * (1.0 - expected)
    )


def test_the_score_is_that_of_the_latest_hundred_games(tmp_path: Path) -> None:
    """A learner that lost at first and wins now has the score of now: 200 losses, then 60 wins and 20 draws."""
    sampler = Steered([["", "", "000000000000", score] for score in [0.0] * 200 + [1.0] * 60 + [0.5] * 20])
    found = pools_of(sampler, tmp_path, snapshot_every=100)
    found.on_start(RUN)
    found.on_rollout(RUN)
    assert found.on_metrics(RUN, {})["self_play/score/0"] == pytest.approx((60 + 0.5 * 20) / 100)


def test_snapshots_are_found_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sampler = Steered([])
    pools_of(sampler, Path("run")).on_start(RUN)
    assert sampler.told[0].arguments == [str(tmp_path / "run")]


def test_opponents_are_drawn_by_their_weights(tmp_path: Path) -> None:
    sampler = Steered([])
    found = pools_of(sampler, tmp_path, snapshot_every=100, pool=3, latest=0.4, opponents="prioritised")
    found.on_start(RUN)
    for env_steps in (100, 150, 200, 300):
        sampler.counts.env_steps = env_steps
        found.on_rollout(RUN)
    pool = found.pools[""]
    assert list(pool.snapshots) == ["000000000100", "000000000200", "000000000300"]
    pool.snapshots["000000000100"] |= {"results": "222"}  # of (3.5 / 4), so (1 / 8)^2
    pool.snapshots["000000000200"] |= {"results": "0"}  # (1 - 0.5 / 2)^2
    shares = np.array([1 / 64, 9 / 16])
    assert pool.weights(0.4, prioritised=True) == pytest.approx([*(0.6 * shares / shares.sum()), 0.4])


def test_other_agents_have_no_opponents(tmp_path: Path) -> None:
    agent = hybridppo.TD3(Discrete(4), Box(-1.0, 1.0, (1,)), hybridppo.TD3Config())
    with pytest.raises(ConfigurationError, match="self_play is for PPO"):
        OpponentPools({}, training_of(agent, Steered([])), tmp_path)


def test_a_snapshot_that_is_gone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    rating = train(run_dir=run, checkpoint_seconds=0).metrics["self_play/rating"]
    env: Any = GAMES["at once"][0]
    Evaluate(run, env=env, episodes=1, progress=False).run()  # before: with the rating
    scale = "Elo, from 1200 at the start; 400 more win 10 times as often as they lose"
    assert f"self_play/rating: {rating:.0f} ({scale})" in capsys.readouterr().out
    shutil.rmtree(run / "snapshots")
    with pytest.raises(RunDirectoryError, match=r"3 of the 3 snapshots .* are gone, the first is .*snapshots"):
        hybridppo.resume(run, env=Duel, total_steps=10 * BATCH, progress=False)
    with pytest.raises(EnvError, match=r"the snapshot .* is gone: self-play needs all"):
        opponent_of(run / "snapshots" / "000000000000")


def test_a_full_disk_costs_a_snapshot_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save, names = hybridppo.PPO.save, []

    def full_once(agent: Any, path: Path) -> Path:
        names.append(path.name)
        if len(names) == 3:
            raise RunDirectoryError(f"{path} cannot be written: No space left on device")
        return save(agent, path)

    monkeypatch.setattr(hybridppo.PPO, "save", full_once)
    result = train(run_dir=tmp_path / "run", config=replace(SMALL, num_steps=16))
    assert result.metrics["self_play/snapshots"] == 3
    files = {path.name for path in (tmp_path / "run" / "snapshots").iterdir()}
    assert files == {*names} - {names[2]}
    assert "writing a snapshot to" in caplog.text


def test_the_only_policy_keeps_its_name_in_a_stopped_and_a_resumed_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    Interrupting.steps, Interrupting.stops_at = 0, 5 * BATCH // 2
    options = {"config": {"player": SMALL}, "self_play": OFTEN, "seed": 0, "placement": "cpu", "progress": False}
    with pytest.raises(hybridppo.TrainingInterrupted) as stopped:
        hybridppo.train(Interrupting, total_steps=5 * BATCH, run_dir=run, **options)
    assert [*stopped.value.result.agents] == ["player"]
    assert [*hybridppo.resume(run, env=Interrupting, progress=False).agents] == ["player"]
    assert [*hybridppo.load_policies(run)] == ["player"]


class LosesSnapshots(hybridppo.Callback):
    def on_iteration(self, run: Any, metrics: Any) -> None:
        for snapshot in (run.run_dir / "snapshots").rglob("0*"):
            snapshot.unlink()


def test_a_snapshot_that_goes_in_a_training_is_one_error(tmp_path: Path) -> None:
    """Restarts of the environment would not bring it back."""
    with pytest.raises(EnvError, match=r"^the snapshot \S* is gone: self-play needs all that are in its pool; the"):
        train(run_dir=tmp_path / "run", iterations=100, callbacks=[LosesSnapshots()], on_env_error="restart")


class Failing(hybridppo.Callback):
    def on_start(self, run: Any) -> None:
        raise ValueError("no")


def test_a_training_that_cannot_begin_leaves_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(hybridppo.CallbackError, match="failed in on_start"):
        train(run_dir=tmp_path / "run", callbacks=[Failing()])
    assert not (tmp_path / "run").exists()


class Interrupting(Counting):
    """Asks its process to stop, once, in the middle of the second rollout."""

    steps, stops_at = 0, 0

    def step(self, action: Any) -> None:
        Interrupting.steps += 1
        if Interrupting.steps == Interrupting.stops_at:
            os.kill(os.getpid(), signal.SIGINT)
        super().step(action)


@pytest.mark.parametrize("max_lag", only_by_default(("1",), (0, 1)))
def test_stopped_within_a_rollout_and_moved_it_goes_on_at_that_very_row(max_lag: int, tmp_path: Path) -> None:
    run = {"config": SMALL, "self_play": OFTEN, "seed": 0, "total_steps": 5 * BATCH, "num_workers": 0}
    run["placement"] = Mirrored("cpu", "cpu", max_lag=max_lag)
    expected = hybridppo.train(Counting, **run, progress=False)
    Interrupting.steps, Interrupting.stops_at = 0, 5 * BATCH // 2
    stopped = hybridppo.train(Interrupting, **run, run_dir=tmp_path / "run", on_interrupt="return", progress=False)
    assert stopped.interrupted
    state = max((tmp_path / "run" / "checkpoints").iterdir()) / "state.json"
    assert '"under_way": {' in state.read_text()
    moved = shutil.move(tmp_path / "run", tmp_path / "moved")
    again = hybridppo.resume(moved, env=Interrupting, progress=False, num_workers=2)
    assert torch.equal(values_of(again), values_of(expected))
    assert again.metrics["self_play/rating"] == expected.metrics["self_play/rating"]


def test_moved_and_with_environments_that_cannot_be_restored_it_goes_on_with_its_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise EnvStateError("no")

    expected = train(run_dir=tmp_path / "run", checkpoint_seconds=0)
    remove_last_checkpoint(tmp_path / "run")
    moved = shutil.move(tmp_path / "run", tmp_path / "moved")
    monkeypatch.setattr(Sampler, "_load_environments", refuse)
    again = hybridppo.resume(moved, env=Duel, progress=False)
    assert again.metrics["env_steps"] == expected.metrics["env_steps"]


def always(action: int) -> hybridppo.PPO:
    """An agent that takes the same action whatever it sees, except once in thousands."""
    agent = hybridppo.PPO(Box(0.0, 5.0, (1,)), Discrete(2), SMALL)
    with torch.no_grad():
        last = [layer for layer in agent.actor.modules() if isinstance(layer, torch.nn.Linear)][-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor([20.0, 0.0] if action == 0 else [0.0, 20.0]))
    return agent


class Grab(Counting):
    """Whoever takes one first has won."""

    def step(self, action: Any) -> None:
        self._left = 1 if action == 0 else 9
        super().step(action)


def test_a_game_that_ends_before_the_learners_turn_counts() -> None:
    scores = hybridppo.round_robin({"one": always(0), "other": always(0)}, Grab, games=40)
    assert 0.2 < scores["one"]["other"] < 0.8  # who begins wins


def test_a_round_robin_has_the_score_of_each_against_each(tmp_path: Path) -> None:
    """Taking two beats taking one from either side: 5, 3, 2, 0 and 5, 4, 2, 1, 0. Of two alike, the first wins."""
    agents = {"twos": always(1), "ones": always(0), "saved": always(1).save(tmp_path / "twos")}
    scores = hybridppo.round_robin(agents, Counting, games=40, seed=3)
    assert list(scores) == ["twos", "ones", "saved"]
    assert scores["twos"].keys() == {"ones", "saved"}
    assert scores["twos"]["ones"] == scores["saved"]["ones"] == 1.0
    assert scores["ones"] == {"twos": 0.0, "saved": 0.0}
    assert 0.2 < scores["twos"]["saved"] < 0.8  # half of the games begin with either
    assert scores["twos"]["saved"] + scores["saved"]["twos"] == 1.0
    assert scores == hybridppo.round_robin(agents, Counting, games=40, seed=3)
    assert scores != hybridppo.round_robin(agents, Counting, games=40, seed=4)


def test_a_round_robin_leaves_agents_on_their_devices(second_device: str) -> None:
    agents = {"ones": always(0), "twos": always(1)}
    for agent in agents.values():
        hybridppo.SingleDevice(second_device).prepare(agent)
    assert hybridppo.round_robin(agents, Counting, games=4)["twos"]["ones"] == 1.0
    assert {agent.parameters.values.device for agent in agents.values()} == {torch.device(second_device)}


def test_an_opponent_is_the_one_that_is_in_the_file_now(tmp_path: Path) -> None:
    path, rows = tmp_path / "agent", np.array([[3.0]], np.float32)
    for action in (0, 1):
        path.unlink(missing_ok=True)
        always(action).save(path)
        assert opponent_of(path)(rows, np.random.default_rng(0), [None])[0] == [action]


def test_a_round_robin_refuses_what_cannot_play(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a round robin is for two or more agents, got 1"):
        hybridppo.round_robin({"one": always(0)}, Counting)
    with pytest.raises(ConfigurationError, match="num_envs must be a whole number of at least 1, got 0"):
        hybridppo.round_robin({"one": always(0), "other": always(1)}, Counting, num_envs=0)
    with pytest.raises(EnvError, match="observation_space was Box"):
        hybridppo.round_robin({"one": always(0), "other": always(1)}, Duel)
    with pytest.raises(ConfigurationError, match="self_play, and agents against each other, are for PettingZoo's"):
        hybridppo.round_robin({"one": always(0), "other": always(1)}, lambda: gym.make("CartPole-v1"))
    seen = Dict(own=Box(0.0, 5.0, (1,)), others=Box(-np.inf, np.inf, (1,)))
    sees_all = hybridppo.PPO(seen, Discrete(2), replace(SMALL, critic_observes="all"))
    with pytest.raises(EnvError, match=r"observation_space was Dict.*'others'"):
        hybridppo.round_robin({"one": always(0), "other": sees_all}, Counting)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"self_play": {"pool": 0}}, "pool must be"),
        ({"self_play": {"snapshot_every": 0}}, "snapshot_every must be"),
        ({"self_play": {"latest": 1.5}}, "latest must lie between 0 and 1, got 1.5"),
        ({"self_play": {"opponents": "best"}}, "opponents must be one of uniform, prioritised, got 'best'"),
        ({"self_play": {"every": 3}}, "self_play must be a hybridppo.SelfPlay, or a dict of its fields"),
        ({"self_play": True}, "self_play must be a hybridppo.SelfPlay"),
        ({"env": lambda: gym.make("CartPole-v1")}, "self_play, and agents against each other, are for PettingZoo's"),
        ({"config": {"one": SMALL, "other": SMALL}}, "agent 'left' has the policy 'left'"),
        ({"distributed": hybridppo.Central(learners=2)}, "self_play=.* does not work with distributed=central:2:1"),
        ({"distributed": hybridppo.MultiLearner(learners=2)}, "several learners needs a run directory"),
        ({"env": Unlike}, "whose spaces differ: train a policy for each kind"),
        ({"env": lambda: Matching(num_agents=1)}, "two or more agents with the same spaces"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"env": Duel, "config": SMALL, "self_play": OFTEN, "placement": "cpu", **changes}
    with pytest.raises((ConfigurationError, EnvError), match=message):
        hybridppo.train(total_steps=BATCH, progress=False, **arguments)


@pytest.mark.slow
def test_the_game_is_learned() -> None:
    """The first player takes two and leaves three; whoever faces three loses."""
    config = ppo_config(num_envs=8, num_steps=64, num_minibatches=4, learning_rate=3e-3, entropy_coef=0.01)
    result = hybridppo.train(
        Counting, total_steps=60_000, seed=0, config=config, self_play=SelfPlay(snapshot_every=5_000),
        placement="cpu", progress=False,
    )  # fmt: skip
    act = result.agent.act
    assert act(np.array([5.0], np.float32)) == 1
    assert act(np.array([2.0], np.float32)) == 1
    assert result.metrics["self_play/rating"] > FIRST_RATING
