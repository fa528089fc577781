"""Environments of rarely installed packages: by their name, or by a function that makes one.

    make extras

To add a package, add a line to `IDS`.
"""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from everywhere import WAYS, WITH_WORKERS, assert_goes_on_exactly, assert_same_everywhere
from gymnasium.spaces import Box, Dict
from gymnasium.vector import VectorEnv
from ppo_settings import ppo_config
from run_files import remove_last_checkpoint
from same_bits import values_of
from sampling import sampler_of
from toy_agents import noughts_and_crosses

import hybridppo
from hybridppo import ConfigurationError, EnvError, SingleDevice
from hybridppo.commands.main import main
from hybridppo.environments.making import make_environments
from hybridppo.environments.multi_agent import TurnBasedEnvironment
from hybridppo.environments.packages import to_send

pytestmark = [
    pytest.mark.extras,
    # What gymnasium and the packages warn of is theirs.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]

IDS = {
    "ALE/Breakout-v5": "ale_py",
    "BipedalWalker-v3": "Box2D",
    "HalfCheetah-v5": "mujoco",
    "LunarLander-v3": "Box2D",
    "MinAtar/Breakout-v1": "minatar",
    "MiniGrid-DoorKey-5x5-v0": "minigrid",
    "envpool/CartPole-v1": "envpool",
    "envpool/Pong-v5": "envpool",
}
"""Environment ids, each with the module that it needs."""
OWN_VECTORS = ("ALE/Breakout-v5", "envpool/CartPole-v1", "envpool/Pong-v5")
SMALL = ppo_config(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(16,))
STEPS = 96

every_id = pytest.mark.parametrize("env_id", IDS)


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    if "env_id" in request.fixturenames:
        pytest.importorskip(IDS[request.getfixturevalue("env_id")])


def train(env: Any, **options: Any) -> hybridppo.TrainResult:
    arguments = {"total_steps": STEPS, "seed": 0, "placement": SingleDevice("cpu"), "config": SMALL} | options
    return hybridppo.train(env, progress=False, **arguments)


@every_id
def test_who_samples_and_where_changes_nothing(env_id: str) -> None:
    expected = train(env_id)
    assert not torch.equal(values_of(train(env_id, seed=1)), values_of(expected))
    assert_same_everywhere(partial(train, env_id), expected, {WITH_WORKERS: WAYS[WITH_WORKERS]})


@every_id
def test_it_is_resumed_exactly_or_says_why_not(env_id: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hybridppo")
    run = tmp_path / "run"
    expected = train(env_id, run_dir=run, checkpoint_seconds=0)
    remove_last_checkpoint(run)
    again = hybridppo.resume(run, progress=False)
    assert again.metrics["env_steps"] >= STEPS
    said = [record.getMessage() for record in caplog.records]
    is_exact = torch.equal(values_of(again), values_of(expected))
    assert is_exact == (not any("cannot be saved" in line for line in said)), said
    if env_id.startswith("Mini") or env_id.startswith("MinAtar"):
        assert is_exact


@every_id
def test_it_is_evaluated_in_whole_episodes(env_id: str, tmp_path: Path) -> None:
    result = train(env_id, run_dir=tmp_path / "run")
    if env_id in ("envpool/Pong-v5", "MiniGrid-DoorKey-5x5-v0"):
        return  # whose episodes are long
    evaluation = hybridppo.evaluate(tmp_path / "run", episodes=2, progress=False)
    assert len(evaluation.returns) == 2
    assert evaluation == hybridppo.evaluate(tmp_path / "run", episodes=2, progress=False)
    assert result.agent.observation_space == hybridppo.load(tmp_path / "run").observation_space


@every_id
def test_it_is_checked(env_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", env_id, "--steps", "150"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"OK: hybridppo can train in {env_id}" in said
    assert ("mission" in said) == env_id.startswith("MiniGrid")


@every_id
def test_another_of_its_package_is_not_there(env_id: str) -> None:
    name = f"{env_id[: env_id.index('-')]}Nowhere-v9"
    with pytest.raises(EnvError, match="cannot be made"):
        make_environments(name, 1)


@pytest.mark.parametrize("env_id", OWN_VECTORS)
def test_one_by_itself_is_one_of_many(env_id: str) -> None:
    """Environments that are made one by one here, for restarts or processes, equal those of the vectorized form."""
    many, single = make_environments(env_id, 2), make_environments(env_id, 2, vectorization="sync")
    assert many.clips_rewards == single.clips_rewards == ("CartPole" not in env_id)
    np.testing.assert_array_equal(many.reset(7), single.reset(7))
    for step in range(30):
        (observations, rewards, terminated, truncated, *_) = many.step(np.full(2, step % 2))
        (ours, of_ours, *ends, _, _) = single.step(np.full(2, step % 2))
        if terminated.any() or truncated.any():
            break  # from here on, they spend other rows on their resets
        np.testing.assert_array_equal(observations, ours)
        np.testing.assert_allclose(rewards, of_ours)
        assert not np.any(ends)
    assert step > 5


@pytest.mark.parametrize("env_id", ["envpool/CartPole-v1", "envpool/Pong-v5"])
def test_a_pool_that_is_asynchronous_gives_the_result_of_one_that_is_not(env_id: str, tmp_path: Path) -> None:
    config = replace(SMALL, num_envs=4)
    expected = train(env_id, config=config)
    run = tmp_path / "run"
    found = train(env_id, config=config, env_kwargs={"batch_size": 2}, run_dir=run, evaluation_episodes=0)
    assert torch.equal(values_of(found), values_of(expected))
    assert hybridppo.resume(run, total_steps=2 * STEPS, progress=False).metrics["env_steps"] >= 2 * STEPS
    if env_id == "envpool/CartPole-v1":  # Pong's episodes are long
        plain = hybridppo.evaluate_agent(found.agent, env_id, episodes=3, seed=5)
        assert hybridppo.evaluate(run, episodes=3, seed=5, progress=False).returns == plain.returns


@pytest.mark.parametrize(
    ("env_kwargs", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 3}, "batch_size must divide the 2 environments of a vector, got 3"),
        ({"seed": 3}, "env_kwargs has seed: use the training's own options"),
        ({"stacks": 3}, "takes other arguments than env_kwargs has"),
    ],
)
def test_arguments_that_a_pool_does_not_take_are_refused(env_kwargs: dict[str, Any], message: str) -> None:
    pytest.importorskip("envpool")
    with pytest.raises(ConfigurationError, match=message):
        make_environments("envpool/Pong-v5", 2, env_kwargs=env_kwargs)
    with pytest.raises(ConfigurationError, match="vectorization='sync' does not work with batch_size in env_kwargs"):
        make_environments("envpool/Pong-v5", 2, env_kwargs={"batch_size": 1}, vectorization="sync")


def test_a_pool_takes_its_own_arguments() -> None:
    pytest.importorskip("envpool")
    environments = make_environments("envpool/Pong-v5", 2, env_kwargs={"stack_num": 2, "batch_size": 1})
    assert environments.reset(0).shape == (2, 2, 84, 84)
    env = hybridppo.make_env("envpool/Pong-v5", stack_num=2, batch_size=1)
    assert env.reset(seed=0)[0].shape == (2, 84, 84)


def test_minigrid_is_seen_without_its_mission() -> None:
    pytest.importorskip("minigrid")
    space = make_environments("MiniGrid-DoorKey-5x5-v0", 1).observation_space
    assert isinstance(space, Dict)
    assert list(space.spaces) == ["direction", "image"]


def test_agents_act_on_what_minatar_and_minigrid_themselves_give() -> None:
    for env_id, module in (("MinAtar/Breakout-v1", "minatar"), ("MiniGrid-DoorKey-5x5-v0", "minigrid")):
        pytest.importorskip(module)
        import gymnasium as gym

        agent = train(env_id).agent
        observation, _ = hybridppo.make_env(env_id).reset(seed=0)
        assert gym.make(env_id).action_space.contains(agent.act(observation))
        if module == "minatar":  # whose truths are pixels
            raw, _ = gym.make(env_id).reset(seed=0)
            assert raw.dtype == np.bool_
            assert agent.act(raw) == agent.act(observation)


@every_id
def test_workers_import_the_package_themselves(env_id: str) -> None:
    is_gymnasiums = IDS[env_id] in ("Box2D", "mujoco")
    assert (to_send(env_id) == env_id) != is_gymnasiums


# Atari


@pytest.fixture
def ale() -> None:
    pytest.importorskip("ale_py")


@pytest.mark.usefixtures("ale")
def test_atari_is_preprocessed_as_usual() -> None:
    environments = make_environments("ALE/Pong-v5", 2)
    assert environments.observation_space == Box(0, 255, (4, 84, 84), np.uint8)
    assert environments.clips_rewards
    assert not make_environments("ALE/Pong-v5", 2, clip_rewards=False).clips_rewards


@pytest.mark.usefixtures("ale")
def test_no_other_vector_is_told_how_ataris_resets() -> None:
    before = dict(VectorEnv.metadata)
    make_environments("ALE/Pong-v5", 1)
    assert before == VectorEnv.metadata


def lengths(env_id: str, steps: int, **options: Any) -> list[int]:
    environments = make_environments(env_id, 1, **options)
    environments.reset(0)
    generator, ends = np.random.default_rng(0), [0]
    for step in range(steps):
        _, _, terminated, truncated, *_ = environments.step(generator.integers(0, 4, 1))
        if terminated[0] or truncated[0]:
            ends.append(step + 1)
    return np.diff(ends).tolist()


@pytest.mark.usefixtures("ale")
@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_lives_are_episodes_where_that_is_asked_for(vectorization: Any) -> None:
    games = lengths("ALE/Breakout-v5", 1500, vectorization=vectorization)
    lives = lengths("ALE/Breakout-v5", 1500, vectorization=vectorization, episodic_life=True)
    assert len(games) >= 3
    assert 4 * len(games) <= len(lives)
    assert np.cumsum(games)[0] in np.cumsum(lives)  # the end of a game is that of its last life


@pytest.mark.usefixtures("ale")
def test_scores_are_not_clipped() -> None:
    """In Ms. Pac-Man a pill is worth 10 points."""
    environments = make_environments("ALE/MsPacman-v5", 1)
    environments.reset(0)
    rewards = {float(environments.step(np.array([step % 9]))[1][0]) for step in range(300)}
    assert max(rewards) >= 10.0


@pytest.mark.usefixtures("ale")
def test_whole_games_can_be_rollouts() -> None:
    config = ppo_config(num_envs=1, episodes_per_rollout=1, num_minibatches=4, num_epochs=1, hidden_sizes=(8,))
    assert train("ALE/Breakout-v5", total_steps=10, config=config).metrics["episodes"] == 1


# Several agents


SPREAD = ppo_config(num_envs=2, num_steps=32, num_epochs=1, num_minibatches=2, hidden_sizes=(16,))


def test_agents_of_pettingzoo_share_a_policy(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    simple_spread = pytest.importorskip("mpe2.simple_spread_v3")
    run = partial(train, simple_spread.parallel_env, total_steps=400, config=SPREAD)
    result = run(evaluation_episodes=2, run_dir=tmp_path / "run", checkpoint_seconds=0)
    assert result.metrics["env_steps"] == 3 * 2 * 32 * 3  # rollouts of 192 steps: of 3 agents in 2 environments
    assert result.metrics["episode_length_mean"] == 25
    assert result.evaluation is not None
    assert sorted(result.evaluation.agents) == sorted(["agent_0", "agent_1", "agent_2"] * 2)
    assert torch.equal(values_of(run(num_workers=2)), values_of(result))
    assert_goes_on_exactly(tmp_path / "run", result, env=simple_spread.parallel_env)
    assert hybridppo.check_env(simple_spread.parallel_env, steps=60).is_usable


@pytest.mark.parametrize("name", ["tictactoe_v3", "connect_four_v3"])
def test_games_of_pettingzoo_are_played_in_turns(name: str, tmp_path: Path) -> None:
    make = pytest.importorskip(f"pettingzoo.classic.{name}").env
    config = replace(SPREAD, num_steps=64)
    run = partial(train, make, total_steps=300, config=config, action_masks=True)
    result = run(run_dir=tmp_path / "run")
    assert torch.equal(run(num_workers=2).agent.parameters.values, result.agent.parameters.values)
    found = hybridppo.evaluate(tmp_path / "run", env=make, episodes=3, progress=False)
    assert len(found.returns) == 6
    assert sum(found.returns) == 0.0  # what one wins the other loses, and nobody moves where it may not
    assert hybridppo.check_env(make, steps=60).is_usable


class Says:
    """Takes these actions, one in each turn, whichever agent's turn it is."""

    version = 0

    def __init__(self, actions: list[int], size: int) -> None:
        self._outputs = iter(1e4 * np.eye(size, dtype=np.float32)[actions])

    def __call__(self, rows: Any) -> Any:
        return np.tile(next(self._outputs), (len(rows), 1))


# Of each player, the rewards of its steps. Three in a column of tic-tac-toe, which counts cells down the columns; four
# on top of each other in the first column of connect four.
GAMES = {
    "tictactoe_v3": ([0, 3, 1, 4, 2], [[0.0, 0.0, 1.0], [0.0, -1.0]]),
    "connect_four_v3": ([0, 1, 0, 1, 0, 1, 0], [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]),
}
"""To add a game, add a line."""


@pytest.mark.parametrize("name", GAMES)
def test_each_players_steps_are_those_worked_out_by_hand(name: str) -> None:
    make, (actions, rewards) = pytest.importorskip(f"pettingzoo.classic.{name}").env, GAMES[name]
    environments = make_environments(make, 1, action_masks=True)
    size = environments.action_space.n
    sampler = sampler_of(environments, num_steps=len(actions))
    rollout = sampler.collect(Says(actions, int(size)))
    number = rollout.rewards.shape[1]
    for player, own in enumerate(rewards):
        rows = [int(row) // number for row in rollout.valid_rows if int(row) % number == player]
        assert rollout.rewards[rows, player].tolist() == own
        assert rollout.actions[rows, player].tolist() == actions[player::2]
        assert rollout.terminated[rows, player].tolist() == [False] * (len(own) - 1) + [True]
        boards = rollout.observations[rows, player, :-size].reshape(len(own), -1, 2)
        # Own pieces, and the other's: one more of each at each turn of the player's.
        assert boards[:, :, 0].sum(1).tolist() == list(range(len(own)))
        assert boards[:, :, 1].sum(1).tolist() == [turn + player for turn in range(len(own))]
        masks = rollout.observations[rows, player, -size:]
        assert all(bool(mask[action]) for mask, action in zip(masks, actions[player::2], strict=True))
    sampler.close()


@pytest.mark.parametrize("self_play", [None, hybridppo.SelfPlay(snapshot_every=64)])
def test_a_gymnasium_tic_tac_toe_is_that_of_pettingzoo(self_play: Any) -> None:
    make = pytest.importorskip("pettingzoo.classic.tictactoe_v3").env
    run = partial(train, total_steps=600, config=replace(SPREAD, num_steps=64), action_masks=True, self_play=self_play)
    assert torch.equal(values_of(run(noughts_and_crosses)), values_of(run(make)))


def test_a_card_game_of_pettingzoo_is_played_in_turns() -> None:
    """Leduc hold'em, if there is rlcard, which is not among the extras."""
    pytest.importorskip("rlcard")
    make = pytest.importorskip("pettingzoo.classic.leduc_holdem_v4").env
    run = partial(train, make, total_steps=600, config=replace(SPREAD, num_steps=64), action_masks=True)
    result = run()
    assert torch.equal(values_of(run(num_workers=2)), values_of(result))
    assert abs(result.metrics["episode_return_mean"]) < 1e-6  # what one wins the other loses


def test_what_wrappers_say_of_a_turn_is_asked_within() -> None:
    environment = TurnBasedEnvironment(
        pytest.importorskip("pettingzoo.classic.connect_four_v3").env(), action_masks=True
    )
    environment.reset(seed=0)
    assert environment._game is not environment.env
    for _ in range(7):
        found, asked = environment._last(), environment.env.last()
        assert all(np.array_equal(found[0][key], asked[0][key]) for key in asked[0])
        assert found[1:] == asked[1:]
        environment.step([0, 0])
    environment.close()


def test_the_turns_of_pettingzoos_own_form_of_an_environment_give_its_steps() -> None:
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    result = train(spread.env, total_steps=600, config=SPREAD)
    assert result.metrics["env_steps"] >= 600
    assert result.metrics["episode_length_mean"] == pytest.approx(75, abs=3)  # turns of 25 rounds of three


@pytest.mark.parametrize(
    ("name", "policy_of"),
    [
        ("simple_tag_v3", None),
        ("simple_adversary_v3", None),
        # The good agents observe alike; the leader of the adversaries says something, too.
        ("simple_world_comm_v3", {"leadadversary_0": "leader"}),
    ],
)
def test_kinds_of_agents_of_pettingzoo_have_a_policy_each(name: str, policy_of: Any, tmp_path: Path) -> None:
    make = pytest.importorskip(f"mpe2.{name}").parallel_env
    whose = policy_of or {}
    names = ("adversary", "agent", *whose.values())
    run = partial(
        train,
        make,
        total_steps=200,
        config=dict.fromkeys(names, SPREAD),
        policy_of=lambda agent: whose.get(agent, agent.rpartition("_")[0]),
    )
    result = run(run_dir=tmp_path / "run")
    values = torch.cat([agent.parameters.values for agent in result.agents.values()])
    workers = run(num_workers=2)
    assert torch.equal(torch.cat([agent.parameters.values for agent in workers.agents.values()]), values)
    found = hybridppo.evaluate(tmp_path / "run", env=make, episodes=2, progress=False)
    assert len(found.returns) == 2 * len(make().possible_agents)
    assert hybridppo.check_env(make, steps=30).is_usable


def test_agents_of_pettingzoo_that_differ_in_their_spaces_have_no_policy_in_common() -> None:
    simple_tag = pytest.importorskip("mpe2.simple_tag_v3")
    with pytest.raises(ConfigurationError, match=r'config=\{"adversary": PPOConfig\(\), "agent": PPOConfig\(\)\}'):
        train(simple_tag.parallel_env)
