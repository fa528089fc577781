"""The ways to distribute a training: how it is divided into processes. `docs/distributed.md` says what they exchange.

Source: Zhu et al., "MSRL: Distributed Reinforcement Learning with Dataflow Fragments", 2023, table 2. The option
`distributed` of a run is the text of a policy. This file does not import torch.
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from hybridppo.errors import ConfigurationError, shown
from hybridppo.system.validation import require_whole

REDUCTIONS = ("shards", "all_reduce")
"""How learners may sum their gradients."""


@dataclass(frozen=True)
class Distributed:
    """A way to distribute a training: a name and numbers, which are checked."""

    name: ClassVar[str]
    """Its name on the command line."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "reduce":
                if value not in REDUCTIONS:
                    raise ConfigurationError(f"reduce must be one of {', '.join(REDUCTIONS)}, got {shown(value)}")
            elif value is not None or field.default is not None:
                least = 0 if field.name == "max_lag" else 1
                object.__setattr__(self, field.name, require_whole(field.name, value, least, below=2**16))

    def part_in_result(self) -> str:
        """The part of its text that can change the result of a seed by more than rounding; "local" if no part can."""
        return Local.name

    def __str__(self) -> str:
        values = [getattr(self, field.name) for field in fields(self)]
        return ":".join([self.name, *(str(value) for value in values if value not in (None, "shards"))])


@dataclass(frozen=True)
class Local(Distributed):
    """Everything is in this process (and in worker processes, with `num_workers`)."""

    name = "local"


@dataclass(frozen=True)
class SingleLearnerCoarse(Distributed):
    """One learner, and remote samplers, which step environments with their own actors."""

    samplers: int
    name = "coarse"


@dataclass(frozen=True)
class SingleLearnerFine(Distributed):
    """Remote environments; actor and learner are together on one device."""

    env_workers: int
    name = "fine"


@dataclass(frozen=True)
class Environments(Distributed):
    """Remote environments; actor and learner may be on different devices."""

    workers: int
    name = "environments"


@dataclass(frozen=True)
class MultiLearner(Distributed):
    """Each learner has shards of the environments and of every minibatch; the gradients of all shards are summed.

    Rollouts stay where they are sampled. Any number of learners gives the same bits for the same number of shards, on
    devices of one kind. The processes are started by this one, or by torchrun.
    """

    learners: int | None = None
    """Number of learners; each has its own device if the placement uses cuda. None for all that torchrun has started.
    """
    shards: int | None = None
    """Number of parts of the environments and of every minibatch; each learner has equally many. None for one per
    learner."""
    reduce: Literal["shards", "all_reduce"] = "shards"
    """How gradients are summed: "shards" in the order of the shards; "all_reduce" by torch.distributed, which
    adds in another order (the same up to rounding) and sends less."""
    name = "multi"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learners is not None and self.shards is not None and self.shards % self.learners:
            raise ConfigurationError(
                f"shards must be a multiple of learners = {self.learners}, got {self.shards}: each takes as many"
            )
        if self.learners is None and self.shards is not None:
            raise ConfigurationError(
                f"shards cannot be given without learners: {type(self).__name__}(learners, shards)"
            )

    @property
    def num_shards(self) -> int:
        """The number of shards; one for each learner by default."""
        return self.shards or self.learners or 1

    def part_in_result(self) -> str:  # noqa: D102 - as in the base
        return f"multi, {self.num_shards} shards" if self.num_shards > 1 else Local.name


@dataclass(frozen=True)
class GPUOnly(MultiLearner):
    """`MultiLearner` for environments that each learner steps on its device: environments of tensors, or compiled."""

    name = "gpu"


@dataclass(frozen=True)
class Central(Distributed):
    """Learners that send gradients to a server of parameters, each at its own pace."""

    learners: int
    """Number of learners; the environments, and the minibatches of an epoch, are divided evenly among them."""
    max_lag: int | None = None
    """How many optimizer steps old the parameters of a gradient may be when it is applied; a learner that would exceed
    this waits. None for the number of learners minus one: then learners of equal speed do not wait."""
    name = "central"

    @property
    def lag(self) -> int:
        """`max_lag`, with its default."""
        return self.learners - 1 if self.max_lag is None else self.max_lag

    def part_in_result(self) -> str:  # noqa: D102 - as in the base
        return f"central:{self.learners}:{self.lag}"


POLICIES: dict[str, type[Distributed]] = {
    kind.name: kind
    for kind in (Local, SingleLearnerCoarse, SingleLearnerFine, Environments, MultiLearner, GPUOnly, Central)
}
"""Every policy by its name on the command line."""


def distributed_from(value: object) -> Distributed:
    """A policy from itself, or from its text, such as `multi:2` or `multi:2:4`.

    Raises:
        ConfigurationError: if it is neither.
    """
    return value if isinstance(value, Distributed) else _parsed(value)


def _parsed(value: object) -> Distributed:
    names = ", ".join(POLICIES)
    if not isinstance(value, str):
        raise ConfigurationError(f"distributed must be a policy or its text, as multi:2, got {shown(value)}")
    name, *given = value.split(":")
    kind = POLICIES.get(name)
    if kind is None:
        raise ConfigurationError(f"unknown distributed={shown(value)}: use one of {names}, with its numbers (multi:2)")
    takes = [field.name for field in fields(kind)]
    words = {"reduce": given.pop()} if "reduce" in takes and given and given[-1] in REDUCTIONS else {}
    numbers = [each for each in takes if each != "reduce"]
    if len(given) > len(numbers) or not all(number.isascii() and number.isdigit() for number in given):
        form = ":".join([name, *(each.upper() for each in takes)])
        raise ConfigurationError(f"distributed={name} is written {form}, with whole numbers, got {shown(value)}")
    try:
        return kind(*map(int, given), **words)
    except TypeError:
        raise ConfigurationError(f"distributed={name} needs {takes[0]}: {name}:2, for example") from None
