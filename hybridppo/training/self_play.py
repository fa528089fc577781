"""Self-play: keeps snapshots of an agent and their ratings, and gives environments their opponents."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.agents import PPO
from hybridppo.agents.registry import AnyAgent
from hybridppo.environments.checks import require_spaces_of
from hybridppo.environments.options import CriticsOptions, EnvironmentOptions, EnvSource, SeatOptions, for_critics
from hybridppo.environments.seats import Opponent
from hybridppo.environments.steering import Steering
from hybridppo.errors import ConfigurationError, EnvError, RunDirectoryError, shown
from hybridppo.interfaces import Metrics
from hybridppo.placements.single_device import SingleDevice
from hybridppo.runners.evaluation import evaluate as run_episodes
from hybridppo.runners.evaluation import made_for
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runs.loading import load
from hybridppo.runs.options import RunOptions
from hybridppo.runs.self_play import SelfPlay
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.registry import each_of
from hybridppo.spaces.state_dependent import Drawing
from hybridppo.system.seeds import seed_of
from hybridppo.system.validation import require_whole

Array = NDArray[Any]

ONE_POLICY = "self_play is for one policy of PPO, which has all seats (PPOConfig): leave it out"
FIRST_RATING = 1200.0
STEP = 16.0
"""The most that a rating changes by a game (Elo, "The Rating of Chessplayers", 1978)."""


def opponent_of(path: Path) -> Opponent:
    """The opponent in an agent's file, which draws its actions.

    Raises:
        EnvError: if the file is gone.
    """
    try:
        state = path.stat()
    except OSError:
        raise EnvError(f"the snapshot {path} is gone: self-play needs all that are in its pool") from None
    return _loaded(path, state.st_ino, state.st_mtime_ns)


@lru_cache(maxsize=64)
def _loaded(path: Path, inode: int, written: int) -> Opponent:
    """The opponent in a file as it is now: another run may have had one of the same name."""
    return opponent(load(path))


def opponent(agent: Any) -> Opponent:
    """An agent as an opponent, which draws its actions."""
    placement = SingleDevice("cpu")
    placement.prepare(agent)
    with placement.evaluating(agent) as evaluated:
        actor: Any = evaluated
    each, memory = each_of(agent.action_space), agent.memory

    def act(rows: Array, generator: np.random.Generator, states: list[Any]) -> tuple[Sequence[Any], list[Any]]:
        if memory is not None:
            nothing = np.zeros(memory.state_size, np.float32)
            actor.state = np.stack([nothing if state is None else state for state in states])
        actions = Drawing(agent.distribution, generator, len(rows)).actions(actor, rows)
        after = states if memory is None else list(actor.state)
        return list(each(agent.distribution.to_env(actions))), after

    return act


def for_seats(options: EnvironmentOptions, run: RunOptions) -> EnvironmentOptions:
    """The options of the environments that are trained in: with self-play, they have a seat for the agent."""
    return options if run.self_play is None else _with_opponents(options, opponent_of)


def _with_opponents(options: EnvironmentOptions, opponents: Callable[[Path], Opponent]) -> EnvironmentOptions:
    own = {each.name: getattr(options, each.name) for each in fields(CriticsOptions) if hasattr(options, each.name)}
    return SeatOptions(**own, opponent_of=opponents)


def round_robin(
    agents: Mapping[str, AnyAgent | str | Path],
    env: EnvSource,
    *,
    games: int = 100,
    num_envs: int = 10,
    seed: int = 0,
    env_kwargs: dict[str, Any] | None = None,
    imports: str = "",
) -> dict[str, dict[str, float]]:
    """Let each agent play against each other; the score of each against each: a win is 1, a draw 0.5.

    Agents draw their actions. In every game, a seat is drawn for one of the two, and the other has all others.

    Args:
        agents: two or more, by their names: agents of PPO, run directories, or files of `agent.save`.
        env: an environment of two or more agents with the same spaces.
        games: of each pair.
        num_envs: games side by side.
        seed: of the environments, seats and actions.
        env_kwargs: as for `train`.
        imports: as for `train`.

    Raises:
        ConfigurationError: if there are fewer than two agents, or one is not of one policy of PPO.
        EnvError: if the environment has not several agents with the same spaces, or has other spaces than an agent.
    """
    require_whole("games", games)
    players: dict[str, Any] = {
        name: load(given) if isinstance(given, (str, Path)) else given for name, given in agents.items()
    }
    if len(players) < 2:
        raise ConfigurationError(f"a round robin is for two or more agents, got {len(players)}")
    for name, player in players.items():
        if not isinstance(player, PPO):
            raise ConfigurationError(
                f"a round robin is for agents of one policy of PPO, and {name} is {shown(player)}: evaluate_policies "
                "lets several policies play together"
            )
    options = EnvironmentOptions(env_kwargs=env_kwargs, imports=imports)
    scores: dict[str, dict[str, float]] = {name: {} for name in players}
    for one, other in combinations(players, 2):
        score = _score(players[one], players[other], env, options, games, min(num_envs, games), seed)
        scores[one][other], scores[other][one] = score, 1.0 - score
    return scores


def _score(
    agent: PPO, other: PPO, env: EnvSource, options: EnvironmentOptions, games: int, num_envs: int, seed: int
) -> float:
    """The mean score of an agent in games against another."""
    masks = isinstance(agent.observation_space, MaskedObservation)
    against = opponent(other)
    options = _with_opponents(for_critics(replace(options, action_masks=masks), agent.config), lambda path: against)
    environments = made_for(agent, env, num_envs, options, own_number=True)
    placement = SingleDevice("cpu")
    placement.prepare(agent)
    try:
        require_spaces_of(other, environments)
        environments.steer(Steering("seat", "set_opponents", [["other"], [1.0], {}]))
        with placement.evaluating(agent) as actor:
            run_episodes(
                actor,
                agent.distribution,
                environments,
                episodes=games,
                seed=seed_of(seed, "evaluation"),
                deterministic=False,
                memory=agent.memory,
            )
        played = environments.steer(Steering("seat", "take_results", []))
    finally:
        environments.close()
    # The number of games of each environment is fixed beforehand: else short ones would count more.
    counts = [games // num_envs + (number < games % num_envs) for number in range(num_envs)]
    counted = [score for count, results in zip(counts, played, strict=True) for _, score in results[:count]]
    return float(np.mean(counted))


class Ladder:
    """The snapshots of a training, with a rating for each and for the agent.

    Args:
        options: the fields of `SelfPlay`.
        agent: learns.
        sampler: has environments with a seat for the agent.
        folder: for snapshots; None for one that goes with the training.

    Raises:
        ConfigurationError: if the agent is not one policy of PPO.
    """

    def __init__(self, options: dict[str, Any], agent: Any, sampler: BaseSampler, folder: Path | None) -> None:
        if not isinstance(agent, PPO):
            raise ConfigurationError(ONE_POLICY)
        self._options, self._agent, self._sampler = SelfPlay(**options), agent, sampler
        self._temporary = tempfile.TemporaryDirectory(prefix="hybridppo-") if folder is None else None
        self._folder = folder if folder is not None else Path(self._temporary.name)  # type: ignore[union-attr]
        self.rating = FIRST_RATING
        self.snapshots: dict[str, dict[str, float]] = {}
        """By name, from the oldest to the newest: the rating, and games and score of the agent against it."""

    def begin(self) -> None:
        """Take the first snapshot; or, in a run that goes on, take up those that there were.

        Raises:
            RunDirectoryError: if one of those is gone.
        """
        before = next((each for each in self._sampler.steering if each.name == "set_opponents"), None)
        # A run directory may have been moved: opponents of the rollout that is under way are there now.
        self._sampler.steer(Steering("seat", "use_folder", [str(self._folder)]), while_paused=True)
        if before is None:
            self._take_snapshot()
            self._tell()
        else:
            ladder = before.arguments[2]
            self.rating, self.snapshots = ladder["rating"], ladder["snapshots"]
            missing = [name for name in self.snapshots if not (self._folder / name).is_file()]
            if missing:
                raise RunDirectoryError(
                    f"{len(missing)} of the {len(self.snapshots)} snapshots that self-play goes on with are gone, the "
                    f"first is {self._folder / missing[0]}: put them back, or begin a new run with start_from"
                )

    def look(self) -> None:
        """Count the games of a rollout that has ended, take a snapshot if one is due, and weigh the opponents."""
        for of_environment in self._steer("take_results"):
            for name, score in of_environment:
                self._count(name, score)
        if self._sampler.env_steps >= self._last + self._options.snapshot_every:
            self._take_snapshot()
        self._tell()

    def metrics(self) -> Metrics:
        """Ratings and win rates."""
        played = {name: one for name, one in self.snapshots.items() if one["games"]}
        return {
            "self_play/rating": self.rating,
            "self_play/snapshots": len(self.snapshots),
            **{f"self_play/win_rate/{int(name)}": one["score"] / one["games"] for name, one in played.items()},
        }

    def close(self) -> None:
        """Remove the folder if it goes with the training."""
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def _last(self) -> int:
        """Environment steps at the newest snapshot."""
        return int(next(reversed(self.snapshots)))

    def _steer(self, name: str, *arguments: Any) -> list[Any]:
        return self._sampler.steer(Steering("seat", name, list(arguments)))

    def _take_snapshot(self) -> None:
        name = f"{self._sampler.env_steps:012d}"
        self._agent.save(self._folder / name)
        self.snapshots[name] = {"rating": self.rating, "games": 0.0, "score": 0.0}
        while len(self.snapshots) > self._options.pool:
            del self.snapshots[next(iter(self.snapshots))]

    def _count(self, name: str, score: float) -> None:
        snapshot = self.snapshots.get(name)
        if snapshot is None:  # it has left the pool in the course of the game
            return
        expected = 1.0 / (1.0 + 10.0 ** ((snapshot["rating"] - self.rating) / 400.0))
        change = STEP * (score - expected)
        self.rating += change
        snapshot["rating"] -= change
        snapshot["games"] += 1.0
        snapshot["score"] += score

    def _tell(self) -> None:
        names = list(self.snapshots)
        ladder = {"rating": self.rating, "snapshots": self.snapshots}
        self._steer("set_opponents", names, self._weights(), ladder)

    def _weights(self) -> list[float]:
        """How probable each snapshot is, from the oldest to the newest."""
        *others, _ = self.snapshots.values()
        if not others:
            return [1.0]
        shares = np.ones(len(others))
        if self._options.opponents == "prioritised":
            # As if one game had been a draw before: every opponent is met at times.
            beaten = np.array([(one["score"] + 0.5) / (one["games"] + 1.0) for one in others])
            shares = (1.0 - beaten) ** 2
        latest = self._options.latest
        found: list[float] = [*((1.0 - latest) * shares / shares.sum()), latest]
        return [float(share) for share in found]
