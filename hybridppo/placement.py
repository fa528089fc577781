"""Placements: where the actor samples, where the agent learns, and when parameters cross.

    placement = Mirrored(sampling="cpu", learning="cuda")
    placement.prepare(agent)
    with placement.sampling(agent) as actor:        # parameters where the environments are
        rollout = sampler.collect(actor)
    with placement.learning(agent):                 # parameters where the FLOPs are
        metrics = agent.update(placement.to_learner(rollout))

This is the only file that moves a module or a rollout between devices. Every crossing is counted in
`placement.counters`. Only the actor ever crosses: sampling needs nothing else.
"""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridppo.acting import sampling_actor
from hybridppo.errors import ConfigurationError, DeviceError
from hybridppo.interfaces import Agent, SamplingActor
from hybridppo.parameters import FlatParameters
from hybridppo.rollout import Rollout
from hybridppo.saved_values import real, whole


@dataclass
class Counters:
    """What crossed between devices since the placement was made."""

    publishes: int = 0
    """Copies of the actor's parameters towards the sampling device."""
    bytes_copied: int = 0
    """Parameters, rollouts and single observations, in either direction."""
    seconds_copying: float = 0.0
    """Spent on it: the host's, or the GPU's where a GPU copies."""
    seconds_crossing: float = 0.0
    """Of these, on single observations and what the actor makes of them: within a rollout."""

    @property
    def seconds_between_rollouts(self) -> float:
        """The rest: publishing and bringing rollouts to the learner."""
        return self.seconds_copying - self.seconds_crossing


def available_device(device: str | torch.device) -> torch.device:
    """The device, if this machine has it.

    Raises:
        DeviceError: where it has not, with the remedy; never another device instead.
    """
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"{device!r} is no device: write cpu, cuda or cuda:0") from error
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError(
                f"device {str(resolved)!r} was asked for, but torch {torch.__version__} sees no CUDA device: "
                "use placement 'cpu', or install a CUDA build of torch and check `nvidia-smi`"
            )
        if resolved.index is not None and resolved.index >= torch.cuda.device_count():
            raise DeviceError(
                f"device {str(resolved)!r} was asked for, but this machine has {torch.cuda.device_count()} "
                f"CUDA device(s): use cuda:0 to cuda:{torch.cuda.device_count() - 1}"
            )
    return resolved


def _wait_for(*devices: torch.device) -> None:
    """Block the host until the devices have done what they were given."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


class _CopyTimer:
    """Seconds of the copies within it, which are over when it ends.

    On a GPU they are those between two events in its stream: what the GPU still had to do before is not theirs, though
    the host waits for it too.
    """

    def __init__(self, *devices: torch.device) -> None:
        self.seconds = 0.0
        self._devices = devices
        self._gpu = next((device for device in devices if device.type == "cuda"), None)

    def __enter__(self) -> "_CopyTimer":
        if self._gpu is None:
            self._start = time.perf_counter()
        else:
            self._begun, self._ended = _timing_event(), _timing_event()
            self._begun.record(torch.cuda.current_stream(self._gpu))
        return self

    def __exit__(self, *exception: object) -> None:
        if self._gpu is None:
            self.seconds = time.perf_counter() - self._start
            return
        self._ended.record(torch.cuda.current_stream(self._gpu))
        _wait_for(*self._devices)
        self.seconds = 1e-3 * self._begun.elapsed_time(self._ended)


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Crossing:
    """Host arrays to one device and back, counted. On the CPU both ways are views."""

    def __init__(self, device: torch.device, counters: Counters) -> None:
        self._device = device
        self._counters = counters

    def to_device(self, array: NDArray[Any]) -> Tensor:
        """The array as a tensor on the device."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        start = time.perf_counter()
        tensor = tensor.to(self._device)
        self._count(tensor.nbytes, start)
        return tensor

    def to_host(self, tensor: Tensor) -> NDArray[Any]:
        """The tensor as an array on the host."""
        if self._device.type == "cpu":
            return tensor.numpy()
        _wait_for(self._device)  # the host needs the result: computing it is not the crossing's time
        start = time.perf_counter()
        array = tensor.cpu().numpy()
        self._count(tensor.nbytes, start)
        return array

    def _count(self, num_bytes: int, start: float) -> None:
        seconds = time.perf_counter() - start
        self._counters.bytes_copied += num_bytes
        self._counters.seconds_copying += seconds
        self._counters.seconds_crossing += seconds


class Placement(ABC):
    """What all placements share: two devices, the counters, and the rollout's way to the learner."""

    name: ClassVar[str]
    """What the command line calls it."""
    max_lag: int = 0
    """How many updates the parameters that sample may be behind because sampling and learning overlap."""

    def __init__(self, sampling: str | torch.device, learning: str | torch.device) -> None:
        self.sampling_device = available_device(sampling)
        self.learning_device = available_device(learning)
        self.counters = Counters()
        self._crossing = Crossing(self.sampling_device, self.counters)

    @property
    def pins_rollouts(self) -> bool:
        """Whether rollouts should lie in page-locked host memory, from where a GPU copies fastest."""
        return self.learning_device.type == "cuda"

    def prepare(self, agent: Agent) -> None:
        """Put the agent where it learns. Once, before the first `sampling`."""
        parameters = agent.parameters
        parameters.rebind(parameters.values.data.to(self.learning_device))
        for module in (agent.actor, agent.critic):
            module.to(self.learning_device)  # what is left: buffers, which no flat tensor holds
        for slots in agent.optimizer.state.values():
            for name, slot in slots.items():
                if isinstance(slot, Tensor):
                    slots[name] = slot.to(self.learning_device)

    @abstractmethod
    def sampling(self, agent: Agent) -> AbstractContextManager[SamplingActor]:
        """A context with the actor on the sampling device, for a sampler to call."""

    def resuming(self, agent: Agent) -> AbstractContextManager[SamplingActor]:
        """Like `sampling`, but with the parameters that it gave last, for a rollout that was broken off."""
        return self.sampling(agent)

    def evaluating(self, agent: Agent) -> AbstractContextManager[SamplingActor]:
        """Like `sampling`, but always with the agent's latest parameters."""
        return self.sampling(agent)

    @contextmanager
    def learning(self, agent: Agent) -> Iterator[None]:
        """A context in which the agent is on the learning device; between samplings it always is.

        Its end waits for the device, so that the host's clock says how long learning took.
        """
        yield
        _wait_for(self.learning_device)

    def to_learner(self, rollout: Rollout) -> Rollout:
        """The rollout on the learning device; itself where it is there already."""
        if rollout.observations.device == self.learning_device:
            return rollout
        with _CopyTimer(self.sampling_device, self.learning_device) as timer:
            moved = rollout.map(lambda tensor: tensor.to(self.learning_device, non_blocking=True))
        # It has waited: the sampler may write its buffers again as soon as this returns.
        self.counters.bytes_copied += rollout.num_bytes
        self.counters.seconds_copying += timer.seconds
        return moved

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What `load_state` takes: tensors by name, and what JSON can hold."""
        return {}, {"settings": self.settings(), "counters": asdict(self.counters)}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on, once prepared, from where a placement with the same settings was; from another's, start anew."""
        if state["settings"] == self.settings():
            counted = state["counters"]
            self.counters.publishes = whole(counted, "publishes")
            self.counters.bytes_copied = whole(counted, "bytes_copied")
            for name in ("seconds_copying", "seconds_crossing"):
                setattr(self.counters, name, real(counted[name], name))
            self._load(tensors, state)

    def _load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing more
        """Take over what a kind of placement has beyond its counters."""

    def settings(self) -> dict[str, Any]:
        """The arguments that would make this placement again, as JSON can hold them."""
        return {
            "name": self.name,
            "sampling": str(self.sampling_device),
            "learning": str(self.learning_device),
        }

    def __repr__(self) -> str:
        settings = self.settings()
        del settings["name"]
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"


class SingleDevice(Placement):
    """Both halves on one device, one set of parameters. On a GPU, observations cross every step."""

    name = "single"

    def __init__(self, device: str | torch.device = "cpu") -> None:
        super().__init__(device, device)

    @contextmanager
    def sampling(self, agent: Agent) -> Iterator[SamplingActor]:  # noqa: D102 - as in the base
        yield sampling_actor(agent.actor, self._crossing, agent.version)

    def settings(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        return {"name": self.name, "device": str(self.learning_device)}


class Migrating(Placement):
    """The actor itself moves: to the sampling device for the rollout, and home again to learn.

    The textbook form, tensor by tensor as `module.to` does it, kept as the reference that mirrors are
    measured against. `force_copy=True` moves between equal devices too, which is how the move is
    tested without a GPU.
    """

    name = "migrate"

    def __init__(
        self,
        sampling: str | torch.device = "cpu",
        learning: str | torch.device = "cuda",
        *,
        force_copy: bool = False,
    ) -> None:
        super().__init__(sampling, learning)
        self.force_copy = force_copy
        self._moves = force_copy or self.sampling_device != self.learning_device

    @contextmanager
    def sampling(self, agent: Agent) -> Iterator[SamplingActor]:  # noqa: D102 - as in the base
        if not self._moves:
            yield sampling_actor(agent.actor, self._crossing, agent.version)
            return
        tensors = [*agent.actor.parameters(), *agent.actor.buffers()]
        homes = [tensor.data for tensor in tensors]
        with _CopyTimer(self.sampling_device, self.learning_device) as timer:
            for tensor in tensors:
                tensor.data = tensor.data.to(self.sampling_device, copy=True)
        self._count(homes, timer)
        self.counters.publishes += 1
        try:
            yield sampling_actor(agent.actor, self._crossing, agent.version)
        finally:  # also when sampling raised: an agent is never left scattered
            with _CopyTimer(self.sampling_device, self.learning_device) as timer:
                for tensor, home in zip(tensors, homes, strict=True):
                    home.copy_(tensor.data)
                    tensor.data = home
            self._count(homes, timer)

    def _count(self, tensors: list[Tensor], timer: _CopyTimer) -> None:
        self.counters.bytes_copied += sum(tensor.nbytes for tensor in tensors)
        self.counters.seconds_copying += timer.seconds

    def settings(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        return {**super().settings(), "force_copy": self.force_copy}


class Mirrored(Placement):
    """The actor has a replica on the sampling device, brought up to date by publishing.

    A publish is one flat copy of the actor's parameters, and one of each of its buffers. It happens when a
    rollout is about to start and the replica is `publish_every` updates behind (and before the first).
    Where both devices are the same, the replica is the actor itself, unless `force_copy`.

    Args:
        sampling: device of the replica.
        learning: device of the agent.
        publish_every: updates per publish; above 1, rollouts come from older parameters (`policy_lag`).
        max_lag: 0 samples and learns by turns; 1 samples the next rollout while learning from the last, so that each
            rollout comes from parameters at most one update old.
        verify: compare both sides after each publish, and raise where they differ.
        force_copy: a real replica even on one device, with which mirroring is tested without a GPU.
    """

    name = "hybrid"

    def __init__(
        self,
        sampling: str | torch.device = "cpu",
        learning: str | torch.device = "cuda",
        *,
        publish_every: int = 1,
        max_lag: int = 0,
        verify: bool = False,
        force_copy: bool = False,
    ) -> None:
        if publish_every < 1:
            raise ConfigurationError(f"publish_every must be at least 1, got {publish_every}")
        if max_lag not in (0, 1):
            raise ConfigurationError(f"max_lag must be 0 or 1, got {max_lag}")
        if max_lag > 0 and publish_every > 1:
            raise ConfigurationError(f"publish_every must be 1 where max_lag is {max_lag}, got {publish_every}")
        super().__init__(sampling, learning)
        self.publish_every = publish_every
        self.max_lag = max_lag
        self.verify = verify
        self.force_copy = force_copy
        # A sampler that works while the agent learns needs parameters that stay as they are.
        self._is_alias = self.sampling_device == self.learning_device and not force_copy and max_lag == 0

    def prepare(self, agent: Agent) -> None:  # noqa: D102 - as in the base
        super().prepare(agent)
        self._replica = agent.actor if self._is_alias else self._make_replica(agent)
        if not self._is_alias:
            self._publish(agent)

    @contextmanager
    def sampling(self, agent: Agent) -> Iterator[SamplingActor]:  # noqa: D102 - as in the base
        if self._is_alias:
            self._published = agent.version
        elif agent.version - self._published >= self.publish_every:
            self._publish(agent)
        yield sampling_actor(self._replica, self._crossing, self._published)

    @contextmanager
    def resuming(self, agent: Agent) -> Iterator[SamplingActor]:  # noqa: D102 - as in the base
        yield sampling_actor(self._replica, self._crossing, agent.version if self._is_alias else self._published)

    def evaluating(self, agent: Agent) -> AbstractContextManager[SamplingActor]:  # noqa: D102 - as in the base
        if not self._is_alias and agent.version > self._published:
            self._publish(agent)
        return self.sampling(agent)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:  # noqa: D102 - as in the base
        tensors, state = super().state()
        if self._is_alias:
            return tensors, state
        return {f"replica.{i}": tensor for i, tensor in enumerate(self._mirrored())}, {
            **state,
            "published": self._published,
        }

    def _load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if self._is_alias:
            return
        for i, ours in enumerate(self._mirrored()):
            theirs = tensors[f"replica.{i}"]
            if theirs.shape != ours.shape:
                raise ValueError(f"replica.{i} is of shape {list(theirs.shape)}, not {list(ours.shape)}")
            ours.copy_(theirs)
        self._published = whole(state, "published")

    def _mirrored(self) -> list[Tensor]:
        return [self._values.values.data, *self._replica.buffers()]

    def _make_replica(self, agent: Agent) -> torch.nn.Module:
        replica = copy.deepcopy(agent.actor).to(self.sampling_device)
        self._values = FlatParameters({"actor": replica})
        if self.sampling_device.type == "cpu" and self.learning_device.type == "cuda":
            self._values.rebind(self._values.values.data.pin_memory())
        return replica

    def _publish(self, agent: Agent) -> None:
        num_bytes = 0
        # Not a step of sampling may see half a copy: this waits, on purpose.
        with _CopyTimer(self.sampling_device, self.learning_device) as timer:
            for theirs, ours in self._pairs(agent):
                theirs.copy_(ours, non_blocking=True)
                num_bytes += ours.nbytes
        self.counters.publishes += 1
        self.counters.bytes_copied += num_bytes
        self.counters.seconds_copying += timer.seconds
        self._published = agent.version
        if self.verify:
            self._verify(agent)

    def _verify(self, agent: Agent) -> None:
        # Compared through the modules, not the flat buffers: views that came loose show here.
        replica = self._replica.state_dict()
        for name, tensor in agent.actor.state_dict().items():
            if not torch.equal(tensor.cpu(), replica[name].cpu()):
                raise DeviceError(
                    f"the replica on {self.sampling_device} differs from the actor on {self.learning_device} in "
                    f"{name!r} after publishing version {agent.version}: its rollouts would be stale"
                )

    def _pairs(self, agent: Agent) -> list[tuple[Tensor, Tensor]]:
        theirs = [agent.parameters.of("actor"), *agent.actor.buffers()]
        return list(zip(self._mirrored(), theirs, strict=True))

    def settings(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        options = {name: getattr(self, name) for name in ("publish_every", "max_lag", "verify", "force_copy")}
        return {**super().settings(), **options}


PLACEMENT_NAMES = ("cpu", "cuda", "migrate", "hybrid", "overlap", "auto")


def make_placement(name: str, *, sampling_device: str = "cpu", learning_device: str = "cuda") -> Placement:
    """The placement that the command line calls `name`; the devices fill in those that take two.

    Raises:
        ConfigurationError: for an unknown name, and for `auto`, which is no placement but chooses one.
        DeviceError: where a device is not there.
    """
    if name in ("cpu", "cuda"):
        return SingleDevice(name)
    if name == "migrate":
        return Migrating(sampling_device, learning_device)
    if name in ("hybrid", "overlap"):
        return Mirrored(sampling_device, learning_device, max_lag=int(name == "overlap"))
    if name in PLACEMENT_NAMES:
        raise ConfigurationError(f"placement {name!r} must be measured first: pass its name or Auto() to train")
    raise ConfigurationError(f"unknown placement {name!r}: use one of {', '.join(PLACEMENT_NAMES)}")


def placement_from_settings(settings: dict[str, Any]) -> Placement:
    """The placement whose `settings()` these are."""
    kinds: dict[str, type[Placement]] = {kind.name: kind for kind in (SingleDevice, Migrating, Mirrored)}
    arguments = dict(settings)
    return kinds[arguments.pop("name")](**arguments)
