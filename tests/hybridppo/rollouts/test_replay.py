"""The replay buffer: n-step targets and episode ends against numbers worked out by hand, the ring, rows of files."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from sampling import sampler_of
from toy_environments import MODES, Script, ScriptedEnv, scripted_reward, scripted_vector

from hybridppo.distributions.deterministic import DeterministicActions
from hybridppo.environments.making import make_environments
from hybridppo.rollouts.replay import Replay, Transitions
from hybridppo.rollouts.rollout import Rollout


def rollout_of(
    rewards: list[list[float]],
    *,
    terminated: Any = (),
    truncated: Any = (),
    invalid: Any = (),
    finals: Any = (),
    first: int = 0,
) -> Rollout:
    """`[T, N]` rewards; observation `t` of environment `n` is `10 n + t`, counted from `first`."""
    block = torch.tensor(rewards)
    num_steps, num_envs = block.shape

    def flags(rows: Any) -> torch.Tensor:
        made = torch.zeros(num_steps, num_envs, dtype=torch.bool)
        for row in rows:
            made[row] = True
        return made

    times = torch.arange(first, first + num_steps + 1, dtype=torch.float32)
    observations = (times[:, None] + 100 * torch.arange(num_envs)).unsqueeze(-1)
    return Rollout(
        observations=observations,
        actions=-observations[:-1],
        log_probs=torch.zeros_like(block),
        rewards=block,
        terminated=flags(terminated),
        truncated=flags(truncated),
        valid_rows=(~flags(invalid)).flatten().nonzero().flatten(),
        final_rows=torch.tensor([t * num_envs + n for t, n, _ in finals], dtype=torch.int64),
        final_observations=torch.tensor([[value] for *_, value in finals]).reshape(-1, 1),
        version=0,
    )


def replay_of(capacity: int, num_envs: int = 1) -> Replay:
    return Replay(capacity, num_envs, observation=(1,), action=(1,))


def filled(capacity: int, *rollouts: Rollout) -> Replay:
    replay = replay_of(capacity, rollouts[0].rewards.shape[1])
    for rollout in rollouts:
        replay.add(rollout, rollout)
    return replay


def gathered(replay: Replay, rows: list[int], n_steps: int, gamma: float = 0.5) -> list[tuple[float, ...]]:
    """For each row: observation, action, return, discount, next observation."""
    found = replay.gather(np.array(rows), np.zeros((*np.shape(rows), 1), np.float32), n_steps=n_steps, gamma=gamma)
    columns = (found.observations, found.actions, found.returns, found.discounts, found.next_observations)
    return [tuple(row) for row in torch.stack([column.reshape(len(rows)) for column in columns], dim=1).tolist()]


def test_one_step_is_a_reward_and_what_followed() -> None:
    replay = filled(10, rollout_of([[1.0], [2.0], [4.0]]))
    assert gathered(replay, [0, 2], 1) == [(0, 0, 1, 0.5, 1), (2, -2, 4, 0.5, 3)]


def test_two_and_three_steps_by_hand() -> None:
    replay = filled(10, rollout_of([[1.0], [2.0], [4.0], [8.0]]))
    # 1 + 2/2; 2 + 4/2; 4 + 8/2; the last has one step so far
    assert gathered(replay, [0, 1, 2, 3], 2) == [
        (0, 0, 2, 0.25, 2),
        (1, -1, 4, 0.25, 3),
        (2, -2, 8, 0.25, 4),
        (3, -3, 8, 0.5, 4),
    ]
    # 1 + 2/2 + 4/4; 2 + 4/2 + 8/4; 4 + 8/2; 8
    assert [row[2:4] for row in gathered(replay, [0, 1, 2, 3], 3)] == [(3, 0.125), (6, 0.125), (8, 0.25), (8, 0.5)]


@pytest.mark.parametrize("n_steps", [1, 2, 3, 5])
def test_what_is_terminated_is_followed_by_nothing(n_steps: int) -> None:
    replay = filled(10, rollout_of([[1.0], [2.0], [4.0], [8.0]], terminated=[(1, 0)]))
    rows = gathered(replay, [0, 1, 2], n_steps)
    assert rows[0][2:4] == ((1, 0.5) if n_steps == 1 else (2, 0))
    assert rows[1][2:4] == (2, 0)
    assert rows[2][2] == (4 if n_steps == 1 else 8)


@pytest.mark.parametrize("n_steps", [1, 2, 3, 5])
def test_what_is_truncated_is_followed_by_its_true_final_observation(n_steps: int) -> None:
    replay = filled(10, rollout_of([[1.0], [2.0], [4.0], [8.0]], truncated=[(1, 0)], finals=[(1, 0, 77.0)]))
    rows = gathered(replay, [0, 1], n_steps)
    assert rows[0][2:] == ((1, 0.5, 1) if n_steps == 1 else (2, 0.25, 77))
    assert rows[1][2:] == (2, 0.5, 77)


def test_nothing_reaches_over_steps_that_were_lost() -> None:
    # Row 2 is no step: the one before is bootstrapped where it is left, and the next begins anew.
    replay = filled(10, rollout_of([[1.0], [2.0], [4.0], [8.0]], invalid=[(2, 0)]))
    assert [row[2:] for row in gathered(replay, [0, 1, 3], 3)] == [(2, 0.25, 2), (2, 0.5, 2), (8, 0.5, 4)]
    assert replay.num_valid == 3


def test_rollouts_continue_each_other_but_after_a_cut() -> None:
    first, second = rollout_of([[1.0], [2.0]]), rollout_of([[4.0], [8.0]], first=2)
    assert gathered(filled(10, first, second), [1], 2) == [(1, -1, 4, 0.25, 3)]
    replay = filled(10, first)
    replay.cut()
    replay.add(second, second)
    assert gathered(replay, [1, 2], 2) == [(1, -1, 2, 0.5, 2), (2, -2, 8, 0.25, 4)]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_end_at_the_end_of_a_rollout_ends_there(end: str) -> None:
    ended: dict[str, Any] = {end: [(1, 0)]}
    replay = filled(10, rollout_of([[1.0], [2.0]], **ended), rollout_of([[4.0], [8.0]], first=2))
    assert gathered(replay, [1], 3)[0][2:4] == (2, 0.0 if end == "terminated" else 0.5)


def test_environments_keep_to_themselves() -> None:
    replay = filled(10, rollout_of([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]], terminated=[(1, 0)]))
    # Rows are t * N + n.
    assert gathered(replay, [0, 1, 2, 3], 2) == [
        (0, 0, 2, 0, 2),
        (100, -100, 20, 0.25, 102),
        (1, -1, 2, 0, 2),
        (101, -101, 40, 0.25, 103),
    ]


def test_the_oldest_make_room_and_nothing_reaches_from_the_newest_to_the_oldest() -> None:
    replay = filled(3, *(rollout_of([[float(i)]], first=i) for i in range(5)))
    assert (replay.total, replay.size, replay.num_valid) == (5, 3, 3)
    # Row 3 lies where row 0 was, 4 where 1 was, and 2 is still there.
    assert gathered(replay, [2, 0, 1], 3) == [
        (2, -2, 2 + 1.5 + 1, 0.125, 5),
        (3, -3, 3 + 2, 0.25, 5),
        (4, -4, 4, 0.5, 5),
    ]


def test_a_rollout_goes_around_the_end_of_the_ring() -> None:
    at_once = filled(5, rollout_of([[1.0]] * 3), rollout_of([[float(i)] for i in range(4)], first=3))
    one_by_one = filled(5, rollout_of([[1.0]] * 3), *(rollout_of([[float(i)]], first=3 + i) for i in range(4)))
    assert gathered(at_once, list(range(5)), 3) == gathered(one_by_one, list(range(5)), 3)
    with pytest.raises(ValueError, match="6 rows do not fit into a replay buffer of 5"):
        filled(5, rollout_of([[1.0]] * 6))


def test_only_steps_are_drawn_each_as_likely() -> None:
    replay = filled(10, rollout_of([[0.0, 0.0]] * 4, invalid=[(1, 0), (3, 1)]))
    drawn = replay.draw(np.random.default_rng(0), (60, 100))
    counts = np.bincount(drawn.ravel(), minlength=8)
    assert drawn.shape == (60, 100)
    assert counts[[2, 7]].tolist() == [0, 0]
    # 6000 draws of 6 rows: a thousand each, give or take five deviations of sqrt(1000 * 5 / 6)
    assert np.abs(counts[[0, 1, 3, 4, 5, 6]] - 1000).max() < 5 * 29
    with pytest.raises(ValueError, match="no transition yet"):
        replay_of(3).draw(np.random.default_rng(0), (1,))


def test_a_rollout_may_be_written_over_once_it_is_added() -> None:
    rollout = rollout_of([[1.0], [2.0]])
    replay = filled(5, rollout)
    for tensor in rollout.columns().values():
        tensor.zero_()
    assert gathered(replay, [1], 1) == [(1, -1, 2, 0.5, 2)]


def test_minibatches_keep_their_shape() -> None:
    replay = filled(5, rollout_of([[1.0], [2.0], [4.0]]))
    found = replay.gather(np.array([[0, 1], [1, 2]]), np.zeros((2, 2, 1), np.float32), n_steps=2, gamma=0.5)
    assert found.observations.shape == found.actions.shape == (2, 2, 1)
    assert found.returns.tolist() == [[2.0, 4.0], [4.0, 4.0]]
    assert found.num_bytes == sum(tensor.nbytes for tensor in vars(found).values())
    assert isinstance(found.map(torch.clone), Transitions)


# Environments: in every mode, all that is drawn is what happened

SCRIPTS: list[Script] = [((3, "terminated"), (4, "truncated")), ((2, "truncated"), (5, "both"), (1, "truncated"))]
ACTIONS = Box(-1.0, 1.0, (1,), np.float32)


def true_transition(script: Script, episode: int, step: int, n_steps: int, gamma: float) -> tuple[Any, float, float]:
    """Next observation, return and discount of a step of a scripted environment."""
    length, end = script[episode % len(script)]
    done = min(n_steps, length - step)
    total = sum(gamma**i * scripted_reward(episode, step + i) for i in range(done))
    is_terminated = step + done == length and end in ("terminated", "both")
    return (episode, step + done), total, 0.0 if is_terminated else gamma**done


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("num_steps", [1, 5])
@pytest.mark.parametrize("mode", [*MODES, None], ids=lambda mode: "the library's own" if mode is None else mode.name)
def test_transitions_are_what_happened_in_every_mode(mode: Any, num_steps: int, n_steps: int) -> None:
    def vector() -> gym.vector.VectorEnv:
        return scripted_vector(SCRIPTS, mode, action_space=ACTIONS)

    scripts = SCRIPTS if mode is not None else [SCRIPTS[1]]
    source = vector if mode is not None else (lambda: ScriptedEnv(SCRIPTS[1], ACTIONS))
    environments = make_environments(source, len(scripts))
    actions = DeterministicActions(ACTIONS.low, ACTIONS.high, std=0.1)
    sampler = sampler_of(environments, actions, num_steps=num_steps)
    replay = Replay(100, len(scripts), observation=(2,), action=(1,))

    class Actor:
        version = 0

        def __call__(self, observations: Any) -> Any:
            return np.zeros((len(observations), 1), np.float32)

    while replay.total < 60:
        rollout = sampler.collect(Actor())
        replay.add(rollout, rollout)
    rows = np.flatnonzero(replay._valid)
    found, checked = replay.gather(rows, np.zeros((*rows.shape, 1), np.float32), n_steps=n_steps, gamma=0.5), 0
    newest = (replay.total - 1) * len(scripts)
    for i, row in enumerate(rows.tolist()):
        if row >= newest - (n_steps - 1) * len(scripts) * 2:  # which may be cut short by the end of what there is
            continue
        episode, step = (int(value) for value in found.observations[i].tolist())
        script = scripts[row % len(scripts)]
        following, total, discount = true_transition(script, episode, step, n_steps, 0.5)
        assert found.returns[i].item() == pytest.approx(total)
        assert found.discounts[i].item() == discount
        if discount:
            assert tuple(found.next_observations[i].tolist()) == following
        checked += 1
    assert checked > 30
    assert len(rows) == sampler.counts.env_steps


# Rows, as files have them


def assert_same(one: Replay, other: Replay) -> None:
    assert one.state() == other.state()
    assert one.num_valid == other.num_valid
    oldest = max(0, one.total - one.capacity)
    ours, theirs = one.rows(oldest, one.total), other.rows(oldest, other.total)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("total", [2, 5, 8, 13])
@pytest.mark.parametrize("piece", [1, 3, 5])
def test_what_is_read_back_is_what_was_there(total: int, piece: int) -> None:
    replay = replay_of(5, 2)
    pieces: list[tuple[int, Any]] = []
    for i in range(total):
        rollout = rollout_of([[float(i), -float(i)]], first=i, invalid=[(0, 1)] if i % 3 == 0 else [])
        replay.add(rollout, rollout)
        if replay.total % piece == 0:
            pieces.append((replay.total - piece, replay.rows(replay.total - piece, replay.total)))
    saved = sum(len(rows["valid"]) for _, rows in pieces)
    if saved < total:
        pieces.append((saved, replay.rows(saved, total)))
    other = replay_of(5, 2)
    other.load_state(replay.state(), pieces)
    assert_same(replay, other)
    following = rollout_of([[9.0, 9.0]], first=total)
    for each in (replay, other):
        each.add(following, following)
    assert_same(replay, other)


def test_rows_that_do_not_fit_are_refused() -> None:
    replay = filled(5, rollout_of([[1.0], [2.0], [3.0]]))
    state, rows = replay.state(), replay.rows(0, 3)
    for pieces, message in (
        ([], "end with row 0, and 3 were added"),
        ([(1, replay.rows(1, 3))], "go on with row 1, not 0"),
    ):
        with pytest.raises(ValueError, match=message):
            replay_of(5).load_state(state, pieces)
    with pytest.raises(ValueError, match="not a list of 1 booleans"):
        replay_of(5).load_state({**state, "must_begin": [1]}, [(0, rows)])
    with pytest.raises(ValueError, match="are not among the newest 3 of 3"):
        replay.rows(2, 4)
