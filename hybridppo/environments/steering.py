"""Calls of methods and changes of attributes in environments, between two rollouts."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from hybridppo.errors import ConfigurationError, EnvError, shown


class Steering(NamedTuple):
    """One call of a method, or one attribute that is set."""

    kind: Literal["call", "set", "seat", "once"]
    """"call", "set", or "seat": a call of a method of self-play's wrapper (`Seat`) instead of the game; or "once": such
    a call that is not repeated in a new environment."""
    name: str
    """Name of the method or the attribute."""
    arguments: Sequence[Any]
    """Arguments of the call, or the value."""

    def apply(self, env: Any) -> Any:
        """Apply it to the unwrapped environment; return the result of the method.

        Raises:
            EnvError: if the environment has no such method or attribute.
        """
        inner = env if self.kind in ("seat", "once") else getattr(env, "unwrapped", env)
        known = getattr(inner, self.name, None)
        if not hasattr(inner, self.name) or (self.kind != "set" and not callable(known)):
            what = "method" if self.kind == "call" else "attribute"
            raise EnvError(
                f"environments.{self.kind}({self.name!r}): {type(inner).__name__} has no {what} {self.name!r}: define "
                "it in the environment itself, not in a wrapper"
            )
        if self.kind != "set":
            return known(*self.arguments)  # type: ignore[misc]  # it was looked at above
        setattr(inner, self.name, self.arguments[0])
        return None


def refused(what: str, remedy: str) -> ConfigurationError:
    """The error for environments that cannot be steered."""
    return ConfigurationError(f"environments.call and environments.set cannot reach {what}: {remedy}")


def latest(done: Sequence[Steering], one: Steering) -> list[Steering]:
    """The steering to repeat in a new environment: the latest of each name."""
    if one.kind == "once":
        return list(done)
    kept = [each for each in done if (each.kind, each.name) != (one.kind, one.name)]
    return [*kept, one]


def from_json(found: Any) -> list[Steering]:
    """Steering from a checkpoint.

    Raises:
        ValueError: if it is invalid.
    """
    if not (isinstance(found, list) and all(isinstance(each, list) and len(each) == 3 for each in found)):
        raise ValueError(f"steering must be a list of calls, got {shown(found)}")
    return [Steering(*each) for each in found]
