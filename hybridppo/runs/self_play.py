"""The settings of self-play: an agent against snapshots of itself."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from hybridppo.errors import ConfigurationError, shown
from hybridppo.system.validation import is_number, require_whole

Opponents = Literal["uniform", "prioritised"]


@dataclass(frozen=True)
class SelfPlay:
    """An agent learns in one seat of a game, drawn in each episode; its snapshots have the other seats.

    Source: Silver et al., "Mastering the game of Go without human knowledge", 2017, and for prioritised opponents,
    Vinyals et al., "Grandmaster level in StarCraft II using multi-agent reinforcement learning", 2019, "Prioritized
    fictitious self-play".

    Raises:
        ConfigurationError: naming the field, the rule and the value.
    """

    snapshot_every: int = 50_000
    """Environment steps between two snapshots; the first snapshot is the agent at the start."""
    pool: int = 20
    """How many of the newest snapshots are opponents."""
    latest: float = 0.5
    """The share of episodes against the newest snapshot; in the other episodes, an older one is drawn."""
    opponents: Opponents = "uniform"
    """How older snapshots are drawn: "uniform", or "prioritised": the more rarely a snapshot is beaten, the more often.
    """

    def __post_init__(self) -> None:
        for name in ("snapshot_every", "pool"):
            object.__setattr__(self, name, require_whole(name, getattr(self, name)))
        if not (is_number(self.latest) and 0.0 <= self.latest <= 1.0):
            raise ConfigurationError(f"latest must lie between 0 and 1, got {shown(self.latest)}")
        if self.opponents not in get_args(Opponents):
            raise ConfigurationError(
                f"opponents must be one of {', '.join(get_args(Opponents))}, got {shown(self.opponents)}"
            )

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def self_play_of(given: Any) -> SelfPlay | None:
    """A `SelfPlay` from itself, or from a dict of its fields; None for None.

    Raises:
        ConfigurationError: if it is something else.
    """
    if given is None or isinstance(given, SelfPlay):
        return given
    try:
        return SelfPlay(**given)
    except TypeError:
        raise ConfigurationError(
            "self_play must be a hybridppo.SelfPlay, or a dict of its fields (snapshot_every, pool, latest, "
            f"opponents), got {shown(given)}"
        ) from None
