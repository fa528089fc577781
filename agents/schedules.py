"""Schedules: numbers of a configuration that change in the course of a training.

    hybridppo.train(..., schedules={"learning_rate": "cosine:0.05", "entropy_coef": lambda done: 0.01 * (1.0 - done)})

A function takes the share of the training that is done, 0 to 1, and returns the value. A name is a curve (`CURVES`) by
which the configured value is multiplied. A number after the name is a warm-up: during that share of the training, the
value rises linearly from 0, and the curve takes the rest. `adaptive` is only for the learning rate (`AdaptiveRate`).
"""

import copy
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from hybridppo.errors import ConfigurationError, HybridPPOError, hint, shown
from hybridppo.system.validation import LARGEST_FLOAT, each_once, held_by_json, require

ScheduleFunction = Callable[[float], float]
"""From the progress of the training, 0 to 1, to the value."""
Schedules = Mapping[str, str | ScheduleFunction]
"""Named schedules or functions, by field."""
Config = TypeVar("Config")

CURVES: dict[str, ScheduleFunction] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}
"""By name, the share of the configured value at a progress of 0 to 1."""
ADAPTIVE = "adaptive"
SIZES = ("num_envs", "num_steps")
AT_MOST_ONE = ("gamma", "gae_lambda")
"""Fields whose values must be at most 1."""
RECORDED = ("clip_range_vf", "entropy_coef", "value_coef", "max_grad_norm")
"""Numbers that `cuda_graphs` records as constants."""


def parsed(schedules: object) -> dict[str, Any]:
    """Schedules by the names of fields, from a mapping, or from text: `field=name,field=name`, or JSON.

    Raises:
        ValueError: if the text has another form, or a field twice.
    """
    if isinstance(schedules, Mapping):
        return dict(schedules)
    if not isinstance(schedules, str):
        raise ValueError
    if schedules.lstrip().startswith("{"):
        return dict(json.loads(schedules, object_pairs_hook=each_once))
    pairs = [part.partition("=") for part in schedules.split(",") if part.strip()]
    if any(not (field and equals and name) for field, equals, name in pairs):
        raise ValueError
    return each_once((field.strip(), name.strip()) for field, _, name in pairs)


def check_schedules(config: Any, *, adaptive: bool = False) -> None:
    """Refuse a field `schedules` with invalid schedules; it becomes text for `parsed`.

    Args:
        config: a frozen dataclass, during its creation, with `schedulable` fields.
        adaptive: whether the learning rate may be adaptive.

    Raises:
        ConfigurationError: with the field, the rule and the value.
    """
    names = ", ".join([*CURVES, *([f"{ADAPTIVE} for learning_rate alone"] if adaptive else [])])
    rule = (
        f"must give fields ({', '.join(config.schedulable)}), each once, a schedule ({names}), with a share of the "
        "training for a warm-up if there is one, as learning_rate=cosine:0.05 (functions are for train(..., "
        "schedules=...))"
    )
    try:
        named = parsed(config.schedules)
        for field, name in named.items():
            is_adaptive = adaptive and (field, name) == ("learning_rate", ADAPTIVE)
            if field not in config.schedulable:
                raise ValueError
            if not is_adaptive:
                share_left(name, 1.0)
    except (ValueError, TypeError, KeyError, AttributeError):
        require(config, "schedules", False, rule)
        raise
    for field in named:
        has_start = field == "critic_learning_rate" or getattr(config, field) is not None
        require(config, "schedules", has_start, f"cannot scale {field}, which is None: give it a value, or a function")
    require_not_recorded(config, named)
    text = ",".join(f"{field}={name}" for field, name in named.items())
    object.__setattr__(config, "schedules", text)


def require_not_recorded(config: Any, scheduled: Iterable[str]) -> None:
    """Refuse schedules of numbers that are recorded as constants.

    Raises:
        ConfigurationError: with the name of the number.
    """
    for name in scheduled:
        fits = name not in RECORDED or not config.cuda_graphs
        require(config, "cuda_graphs", fits, f"records {name}, which has a schedule: leave one of them out")


def share_left(name: str, done: float) -> float:
    """The share of the configured value at a progress of `done`, 0 to 1.

    Raises:
        KeyError: if there is no such curve.
        ValueError: if its warm-up is no share below 1.
    """
    curve, colon, share = name.partition(":")
    warmup = float(share) if colon else 0.0
    if not 0.0 <= warmup < 1.0:
        raise ValueError
    if done < warmup:
        return done / warmup
    return CURVES[curve](min(1.0, (done - warmup) / (1.0 - warmup)))


def with_values(config: Config, **values: float) -> Config:
    """A copy of the configuration with other values, unchecked: at the end of a schedule they may be 0."""
    changed = copy.copy(config)
    vars(changed).update(values)
    return changed


def sizes_of(config: Any) -> dict[str, int]:
    """The numbers of environments and steps in a configuration, its class or its fields."""
    given: dict[str, Any]
    given = config if isinstance(config, dict) else {name: getattr(config, name, None) for name in SIZES}
    return {name: given[name] for name in SIZES if type(given.get(name)) is int}


class OfOnePolicy:
    """What the library reads of every configuration, as that of several policies (`policies.py`) has it."""

    agents: ClassVar[Mapping[str, str]] = {}
    """The policies of agents by name: there is one policy, and it has no name."""
    played: ClassVar[tuple[str, ...]] = ()
    """The policies that act and do not learn."""
    settings: dict[str, Any]

    def __new__(cls, *_: Any, **named: Any) -> Any:
        """A new configuration; refuses a field that it does not have, with the field that was probably meant."""
        fields: Mapping[str, object] = cls.__dataclass_fields__  # type: ignore[attr-defined]
        for name, value in named.items():
            if name not in fields:
                meant = hint(name, value, fields, sizes_of(cls) | sizes_of(named))
                raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {name!r}{meant}")
        return super().__new__(cls)

    @property
    def policies(self) -> dict[str, Any]:
        """The configuration of each policy."""
        return {"": self}

    def with_policies(self, policies: Mapping[str, Any]) -> Any:
        """The configuration with others of its `policies`."""
        return policies[""]

    def require_agents(self, agents: Sequence[str], error: type[HybridPPOError]) -> None:
        """Refuse environments with other agents than those that it is for: any will do."""

    @classmethod
    def own_fields(cls) -> list[str]:
        """The fields that a user's class adds to those of the library's class.

        Raises:
            ConfigurationError: if the class is no dataclass.
        """
        if "__dataclass_fields__" not in vars(cls):
            raise ConfigurationError(f"{cls.__name__} must be a dataclass: write @dataclass(frozen=True) above it")
        library = next(kind for kind in cls.__mro__ if kind.__module__.startswith("hybridppo."))
        ours = {each.name for each in fields(library)}
        return [each.name for each in fields(cls) if each.name not in ours]  # type: ignore[arg-type]

    def all_settings(self) -> dict[str, Any]:
        """Hyperparameters of the user's by name: `settings`, and the fields of a user's class."""
        return type(self.settings)(self.settings, **{name: getattr(self, name) for name in self.own_fields()})

    def in_class(self, kind: Any) -> Any:
        """The configuration in a user's class, whose further fields have the values of the settings of their names."""
        if isinstance(self, kind) or not issubclass(kind, type(self)):
            return self
        own = {name: self.settings[name] for name in kind.own_fields() if name in self.settings}
        settings = {name: value for name, value in self.settings.items() if name not in own}
        return kind(**{**vars(self), **own, "settings": settings})

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object, with which the library's class restores it; those of a user's are settings."""
        own = {
            name: held_by_json(f"{name} of {type(self).__name__}", getattr(self, name)) for name in self.own_fields()
        }
        found = {name: copy.deepcopy(value) for name, value in vars(self).items() if name not in own}
        return found | {"settings": {**self.settings, **own}}


class Scheduled:
    """The fields of a configuration that have schedules.

    Args:
        functions: schedules that are functions, by field; named ones are in the configuration.
        config: an agent's configuration, with `named_schedules` and `schedulable` fields.

    Raises:
        ConfigurationError: if a field cannot have a schedule, or has two.
    """

    def __init__(self, functions: Mapping[str, ScheduleFunction] | None, config: Any) -> None:
        self.functions = dict(functions or {})
        for field, function in self.functions.items():
            if field not in config.schedulable:
                raise ConfigurationError(f"schedules are for {', '.join(config.schedulable)}, got {shown(field)}")
            if not callable(function):
                raise ConfigurationError(f"schedules[{field!r}] must be a name or a function, got {shown(function)}")
            if field in config.named_schedules:
                raise ConfigurationError(
                    f"{field} has two schedules, {config.named_schedules[field]!r} in config and a function in "
                    "schedules=...: leave one of them out"
                )
        require_not_recorded(config, self.functions)
        self.fields = [*self.functions, *config.named_schedules]
        is_adaptive = config.named_schedules.get("learning_rate") == ADAPTIVE
        self.adaptive = AdaptiveRate(config.learning_rate) if is_adaptive else None

    def require_free(self, config: Any, names: Collection[str]) -> None:
        """Refuse a new configuration that records the value of a schedule, or changes one that it does not begin with.

        Raises:
            ConfigurationError: with the field.
        """
        require_not_recorded(config, self.functions)
        for name in {*names} & {*self.fields}:
            is_free = name not in self.functions and config.named_schedules.get(name) != ADAPTIVE
            require(config, name, is_free, "has a schedule that gives its values: leave one of the two out")

    def at(self, config: Any, done: float) -> Any:
        """The configuration at a progress of `done`.

        Args:
            config: the configuration.
            done: progress of the training, 0 to 1.

        Raises:
            ConfigurationError: if a function returns an invalid value.
        """
        values: dict[str, float] = {}
        for field, name in config.named_schedules.items():
            if name != ADAPTIVE:
                start = getattr(config, field)
                values[field] = share_left(name, done) * (config.learning_rate if start is None else start)
        for field, function in self.functions.items():
            values[field] = _checked(field, function(done), done)
        if self.adaptive is not None:
            values["learning_rate"] = self.adaptive.rate
        return with_values(config, **values)

    def metrics(self, config: Any) -> dict[str, float]:
        """The current values by field, except the learning rate, which is a metric anyway."""
        return {field: getattr(config, field) for field in self.fields if field != "learning_rate"}


def _checked(field: str, value: Any, done: float) -> float:
    most = 1.0 if field in AT_MOST_ONE else LARGEST_FLOAT
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number <= most:
        rule = "a number from 0 to 1" if most == 1.0 else "a number of at least 0"
        raise ConfigurationError(
            f"schedules[{field!r}] must return {rule}, got {shown(value)} for {done:g}, the share of the training "
            "that is done"
        )
    return number


class AdaptiveRate:
    """A learning rate that falls if the policy changes too much, and rises if it changes too little.

    The rule is rsl_rl's. rsl_rl applies it to the analytic KL divergence of each minibatch. Here, it is applied to the
    mean `approx_kl` of each epoch, which every backend measures.
    """

    least, most = 1e-5, 1e-2
    rounding = 1e-9
    """Below it, a KL divergence is a rounding error: before the first step of an update, the policy is unchanged."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def follow(self, kl: float, desired: float) -> bool:
        """Change the rate after an epoch with this mean KL divergence; return whether it has changed."""
        before = self.rate
        if kl > 2.0 * desired:
            self.rate = max(self.least, self.rate / 1.5)
        elif self.rounding < kl < 0.5 * desired:
            self.rate = min(self.most, self.rate * 1.5)
        return self.rate != before
