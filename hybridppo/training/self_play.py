"""Self-play: keeps snapshots of an agent, and their ratings, and tells environments whom to play against."""

import tempfile
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.agents import PPO
from hybridppo.environments.options import EnvironmentOptions, SeatOptions
from hybridppo.environments.seats import Opponent
from hybridppo.environments.steering import Steering
from hybridppo.errors import ConfigurationError, EnvError
from hybridppo.interfaces import Metrics
from hybridppo.placements.base import Placement
from hybridppo.placements.single_device import SingleDevice
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runs.loading import load
from hybridppo.runs.options import RunOptions
from hybridppo.runs.self_play import SelfPlay
from hybridppo.spaces.registry import each_of
from hybridppo.spaces.state_dependent import Drawing

Array = NDArray[Any]

FIRST_RATING = 1200.0
STEP = 16.0
"""The most that a rating changes by a game (Elo, "The Rating of Chessplayers", 1978)."""


@lru_cache(maxsize=64)
def opponent_of(path: Path) -> Opponent:
    """The opponent in an agent's file, which draws its actions.

    Raises:
        EnvError: if the file is gone.
    """
    if not path.is_file():
        raise EnvError(f"the snapshot {path} is gone: self-play needs all that are in its pool")
    agent: Any = load(path)
    placement = SingleDevice("cpu")
    placement.prepare(agent)
    with placement.evaluating(agent) as actor:
        each = each_of(agent.action_space)

        def act(rows: Array, generator: np.random.Generator) -> Sequence[Any]:
            actions = Drawing(agent.distribution, generator, len(rows)).actions(actor, rows)
            return list(each(agent.distribution.to_env(actions)))

        return act


def for_seats(options: EnvironmentOptions, run: RunOptions) -> EnvironmentOptions:
    """The options of the environments that are trained in: with self-play, they have a seat for the agent."""
    if run.self_play is None:
        return options
    own = {each.name: getattr(options, each.name) for each in fields(EnvironmentOptions)}
    return SeatOptions(**own, opponent_of=opponent_of)


def require_self_play(agent: Any, placement: Placement) -> None:
    """Refuse what self-play cannot be had with.

    Raises:
        ConfigurationError: with what to do.
    """
    if not isinstance(agent, PPO):
        raise ConfigurationError("self_play is for one policy of PPO, which has all seats (PPOConfig): leave it out")
    refused = {
        f"recurrent={agent.config.recurrent!r}": agent.memory is not None,
        f"critic_observes={agent.config.critic_observes!r}": agent.config.critic_observes != "own",
        f"max_lag={placement.max_lag}": placement.max_lag > 0,
    }
    for what, is_asked_for in refused.items():
        if is_asked_for:
            raise ConfigurationError(f"{what} cannot be had with self_play: leave it out")


class Ladder:
    """The snapshots of a training, with a rating for each and for the agent.

    Args:
        options: the fields of `SelfPlay`.
        agent: learns.
        placement: of the training.
        sampler: has environments with a seat for the agent.
        folder: for snapshots; None for one that goes with the training.
    """

    def __init__(
        self, options: dict[str, Any], agent: Any, placement: Placement, sampler: BaseSampler, folder: Path | None
    ) -> None:
        require_self_play(agent, placement)
        self._options, self._agent, self._sampler = SelfPlay(**options), agent, sampler
        self._temporary = tempfile.TemporaryDirectory(prefix="hybridppo-") if folder is None else None
        self._folder = folder if folder is not None else Path(self._temporary.name)  # type: ignore[union-attr]
        self.rating = FIRST_RATING
        self.snapshots: dict[str, dict[str, float]] = {}
        """By name, from the oldest to the newest: the rating, and games and score of the agent against it."""

    def begin(self) -> None:
        """Take the first snapshot; or, in a run that goes on, take up those that there were."""
        before = next((each for each in self._sampler.steering if each.name == "set_opponents"), None)
        self._steer("use_folder", str(self._folder))
        if before is None:
            self._take_snapshot()
        else:
            ladder = before.arguments[2]
            self.rating, self.snapshots = ladder["rating"], ladder["snapshots"]
        self._tell()

    def measure(self) -> Metrics:
        """Count the games of an iteration, and take a snapshot if one is due; ratings and win rates."""
        for of_environment in self._steer("take_results"):
            for name, score in of_environment:
                self._count(name, score)
        if self._sampler.env_steps >= self._last + self._options.snapshot_every:
            self._take_snapshot()
        self._tell()
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
            # As if one game had been drawn beforehand: nobody is never met.
            beaten = np.array([(one["score"] + 0.5) / (one["games"] + 1.0) for one in others])
            shares = (1.0 - beaten) ** 2
        latest = self._options.latest
        found: list[float] = [*((1.0 - latest) * shares / shares.sum()), latest]
        return [float(share) for share in found]
