"""Placements: where the actor samples, where the agent learns, and when parameters cross between them.

To add one, write a subclass of `Placement`, and add it to `KINDS` and to `PlacementOptions.resolve`.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hybridppo.errors import ConfigurationError, DeviceError
from hybridppo.interfaces import Agent, SamplingActor, agents_of, has_policies
from hybridppo.networks.actors import actors_of
from hybridppo.networks.parameters import FlatParameters, bind
from hybridppo.placements.crossing import (
    CopyTimer,
    Counters,
    Crossing,
    available_device,
    moved,
    sampling_actor,
    wait_for,
)
from hybridppo.system.devices import accelerator_of
from hybridppo.system.validation import part_of, real, require_bools, require_whole, whole


class Placement:
    """The base of placements: two devices, the counters, and the copy of a rollout to the learner."""

    name: str
    """Its name on the command line: cpu, cuda, migrate, hybrid or overlap."""
    reason: str = "asked for"
    """Why a training uses it: the measurement of `auto`, or because it was asked for."""
    max_lag: int = 0
    """How many updates the sampling parameters may be behind, because sampling and learning overlap."""
    options: ClassVar[tuple[str, ...]] = ()
    """The names of its arguments besides the devices."""
    changes_result: ClassVar[Mapping[str, Any]] = {}
    """The settings that can change the result of a seed beyond rounding, each with the value that does not."""

    def __init__(self, sampling: str | torch.device, learning: str | torch.device) -> None:
        self.sampling_device = available_device(sampling)
        self.learning_device = available_device(learning)
        self._count_from_zero()

    def _count_from_zero(self) -> None:
        self.counters = Counters()
        self._crossing = Crossing(self.sampling_device, self.counters)

    @property
    def pin_for(self) -> torch.device | None:
        """The device that copies rollouts, or rows of them, fastest from page-locked memory; None if there is none."""
        devices = self.learning_device, self.sampling_device
        return next((device for device in devices if accelerator_of(device).is_asynchronous), None)

    def prepare(self, agent: Agent) -> None:
        """Move the agent to the learning device. Call it once for each training, before the first `sampling`."""
        self._count_from_zero()
        for each in agents_of(agent):
            parameters = each.parameters
            laid_out = parameters.align(accelerator_of(self.learning_device).alignment)
            parameters.rebind(parameters.values.data.to(self.learning_device))
            for module in each.modules:
                module.to(self.learning_device)  # buffers, which the flat tensor does not hold
            for slots in each.optimizer.state.values():
                for name, slot in slots.items():
                    if isinstance(slot, Tensor):
                        slots[name] = laid_out(slot).to(self.learning_device)
        agent.actor.to(self.learning_device)  # an agent of several policies has its own buffers

    def act_on_tensors(self) -> None:
        """Let actors be modules on the sampling device that take tensors (`TorchActor.on_device`)."""
        self._crossing.takes_tensors = True

    @contextmanager
    def sampling(self, agent: Agent) -> Iterator[SamplingActor]:
        """A context with the actor on the sampling device, for a sampler to call."""
        yield sampling_actor(agent.actor, self._crossing, agent.version)

    def resuming(self, agent: Agent) -> AbstractContextManager[SamplingActor]:
        """Like `sampling`, but with the parameters of the last `sampling`, to finish a rollout that was broken off."""
        return self.sampling(agent)

    def evaluating(self, agent: Agent) -> AbstractContextManager[SamplingActor]:
        """Like `sampling`, but always with the agent's latest parameters."""
        return self.sampling(agent)

    @contextmanager
    def learning(self, agent: Agent) -> Iterator[None]:
        """A context in which the agent is on the learning device.

        Its end waits for the device, so that the host's clock measures learning.
        """
        yield
        wait_for(self.learning_device)

    def to_learner(self, rollout: Any) -> Any:
        """The rollout, or other data to learn from, on the learning device; the same object if it is already there."""
        if rollout.observations.device == self.learning_device:
            return rollout
        with self._copying(rollout.num_bytes):  # at its end, the sampler may overwrite its buffers
            return rollout.map(lambda tensor: moved(tensor, self.learning_device))

    @contextmanager
    def _copying(self, num_bytes: int, publishes: int = 0) -> Iterator[None]:
        """A context for copies between the devices, which are counted, and finished at its end."""
        with CopyTimer(self.sampling_device, self.learning_device) as timer:
            yield
        self.counters.add(num_bytes=num_bytes, seconds=timer.seconds, publishes=publishes)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state for `load_state`: tensors by name, and a JSON object."""
        return {}, {"settings": self.settings(), "counters": asdict(self.counters)}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the state of a placement with the same settings, after `prepare`; the state of another is ignored."""
        if {**state["settings"], "name": self.name} == self.settings():  # older versions had other names
            counted = state["counters"]
            for name in ("publishes", "bytes_copied"):
                setattr(self.counters, name, whole(counted, name))
            for name in ("seconds_copying", "seconds_crossing"):
                setattr(self.counters, name, real(counted[name], name))
            self._load(tensors, state)

    def _load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the state of a subclass."""

    def settings(self) -> dict[str, Any]:
        """The arguments that make an equal placement, as JSON."""
        devices = {"sampling": str(self.sampling_device), "learning": str(self.learning_device)}
        return {"name": self.name, **devices, **{name: getattr(self, name) for name in self.options}}

    def __repr__(self) -> str:
        settings = self.settings()
        del settings["name"]
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"


class SingleDevice(Placement):
    """Samples and learns on one device with one set of parameters. On a GPU, observations are copied in every step."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        super().__init__(device, device)
        self.name = self.learning_device.type

    def settings(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        return {"name": self.name, "device": str(self.learning_device)}


class Migrating(Placement):
    """Moves the actor to the sampling device for a rollout, and back to learn.

    This is the usual `.to(device)` approach, tensor by tensor, and the reference that mirrors are measured against.
    `force_copy=True` also moves between equal devices, which tests the move without a GPU.
    """

    name = "migrate"
    options = ("force_copy",)

    def __init__(
        self, sampling: str | torch.device = "cpu", learning: str | torch.device = "cuda", *, force_copy: bool = False
    ) -> None:
        super().__init__(sampling, learning)
        require_bools(force_copy=force_copy)
        self.force_copy = force_copy
        self._moves = force_copy or self.sampling_device != self.learning_device

    @contextmanager
    def sampling(self, agent: Agent) -> Iterator[SamplingActor]:  # noqa: D102 - as in the base
        if not self._moves:
            with super().sampling(agent) as actor:
                yield actor
            return
        tensors = [*agent.actor.parameters(), *agent.actor.buffers()]
        homes, gradients = [tensor.data for tensor in tensors], [tensor.grad for tensor in tensors]
        num_bytes = sum(tensor.nbytes for tensor in homes)
        with self._copying(num_bytes, publishes=1):
            for tensor in tensors:
                bind(tensor, tensor.data.to(self.sampling_device, copy=True))
        try:
            with super().sampling(agent) as actor:
                yield actor
        finally:  # also if sampling failed: actor and critic must be on one device again
            with self._copying(num_bytes):
                for tensor, home, gradient in zip(tensors, homes, gradients, strict=True):
                    home.copy_(tensor.data)
                    bind(tensor, home)
                    tensor.grad = gradient


class Mirrored(Placement):
    """Keeps a replica of the actor on the sampling device, which each publish brings up to date.

    A publish is one flat copy of the actor's parameters, and one copy of each of its buffers. It happens before a
    rollout if the replica is `publish_every` updates behind, and before the first rollout. If both devices are the
    same, the replica is the actor itself, unless the sampler is behind or `force_copy` is set.

    Args:
        sampling: device of the replica.
        learning: device of the agent.
        publish_every: updates per publish; above 1, older parameters sample some rollouts (`policy_lag`).
        max_lag: 0 samples and learns by turns. 1 samples the next rollout while the agent learns from the last, with
            parameters that are at most one update old. Above 1, worker processes sample without waiting for each other
            or for an update, and a rollout has the steps that are ready first, by parameters that are at most `max_lag`
            updates old (DDPG and TD3 also use older steps). The content then depends on timing, so a seed does not
            give the same result again.
        verify: compare both sides after each publish, and raise an error if they differ.
        force_copy: make a real replica even on one device, to test mirroring without a GPU.
    """

    options = ("publish_every", "max_lag", "verify", "force_copy")
    changes_result: ClassVar[Mapping[str, Any]] = {"publish_every": 1, "max_lag": 0}

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
        self.publish_every = require_whole("publish_every", publish_every)
        self.max_lag = require_whole("max_lag", max_lag, 0)
        self.name = "overlap" if self.max_lag else "hybrid"
        require_bools(verify=verify, force_copy=force_copy)
        if max_lag > 0 and publish_every > 1:
            raise ConfigurationError(f"publish_every must be 1 where max_lag is {max_lag}, got {publish_every}")
        super().__init__(sampling, learning)
        self.verify = verify
        self.force_copy = force_copy
        # The parameters of a sampler that works during an update, or is behind, must not change.
        is_current = max_lag == 0 and publish_every == 1
        self._is_alias = self.sampling_device == self.learning_device and is_current and not force_copy

    def prepare(self, agent: Agent) -> None:  # noqa: D102 - as in the base
        super().prepare(agent)
        self._replica = agent.actor if self._is_alias else self._make_replica(agent)
        if self.max_lag > 0:
            # In the learner's stream, every step would wait for the learner's work.
            self._crossing.use_a_stream_of_its_own()
        # The first `sampling` publishes, not this: callbacks may change the agent before.
        self._published = agent.version - self.publish_every

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
        if self._is_alias or not self.counters.publishes:
            return tensors, state
        replicas = {f"replica.{i}": flat.dense(tensor) for i, (flat, tensor) in enumerate(self._mirrored())}
        return replicas, {**state, "published": self._published}

    def _load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        if self._is_alias or not self.counters.publishes:
            return
        for i, (flat, ours) in enumerate(self._mirrored()):
            theirs = flat.spread(tensors[f"replica.{i}"])
            if theirs.shape != ours.shape:
                raise ValueError(f"replica.{i} is of shape {list(theirs.shape)}, not {list(ours.shape)}")
            ours.copy_(theirs)
        self._published = whole(state, "published")

    def _mirrored(self) -> list[tuple[FlatParameters, Tensor]]:
        """All tensors of the replica, each with its flat parameters; a buffer's entry has no effect on it."""
        buffers = [(self._flat[0], buffer) for buffer in self._replica.buffers()]
        return [*((flat, flat.values.data) for flat in self._flat), *buffers]

    def _make_replica(self, agent: Agent) -> torch.nn.Module:
        replica = copy.deepcopy(agent.actor).to(self.sampling_device)
        self._flat = [  # copied with its gaps
            FlatParameters({"actor": actor}, each.parameters.alignment)
            for actor, each in zip(actors_of(replica), agents_of(agent), strict=True)
        ]
        if self.sampling_device.type == "cpu":
            for flat in self._flat:
                flat.rebind(accelerator_of(self.learning_device).page_locked(flat.values.data))
        return replica

    def _publish(self, agent: Agent) -> None:
        tensors = [*(each.parameters.of("actor") for each in agents_of(agent)), *agent.actor.buffers()]
        # This waits on purpose: no step of sampling may see half a copy.
        with self._copying(sum(tensor.nbytes for tensor in tensors), publishes=1):
            for (_, mirrored), tensor in zip(self._mirrored(), tensors, strict=True):
                mirrored.copy_(tensor, non_blocking=True)
        self._published = agent.version
        if not self.verify:
            return
        # Compared through the modules instead of the flat buffers, because this also finds views that have come loose.
        replica = self._replica.state_dict()
        for name, tensor in agent.actor.state_dict().items():
            if not torch.equal(tensor.cpu(), replica[name].cpu()):
                raise DeviceError(
                    f"the replica on {self.sampling_device} differs from the actor on {self.learning_device} in "
                    f"{name!r} after publishing version {agent.version}: its rollouts would be stale"
                )


KINDS: dict[str, type[Placement]] = {"migrate": Migrating, "hybrid": Mirrored, "overlap": Mirrored}
"""Every placement on two devices by its name in a run's settings. A new one is a line here, and a line in
`PlacementOptions.resolve`."""
TAKE_DEVICES: tuple[Literal["migrate", "hybrid", "overlap"], ...] = ("migrate", "hybrid", "overlap")
"""The names of placements whose two devices can be chosen."""


def require_devices(placement: str | None, **devices: str | None) -> None:
    """Check devices, by the names of their options; None for a device that was not chosen.

    Args:
        placement: name of the placement; None for the placement of an existing run.
        **devices: devices by the names of their options.

    Raises:
        DeviceError: if a device is missing.
        ConfigurationError: if the placement does not take devices.
    """
    for option, device in devices.items():
        if device is None:
            continue
        available_device(device)
        if placement not in TAKE_DEVICES:
            whose = "the placement that the run has" if placement is None else f"placement {placement}"
            raise ConfigurationError(
                f"{option}={device!r} cannot be used with {whose}: leave it out, or use placement migrate, hybrid or "
                "overlap"
            )


def placement_from_settings(settings: dict[str, Any]) -> Placement:
    """The placement that `settings()` describes."""
    arguments = dict(settings)
    name = arguments.pop("name")
    return SingleDevice(**arguments) if "device" in arguments else KINDS[name](**arguments)


def shown_placement(settings: Mapping[str, Any]) -> str:
    """The name of the placement with these `settings()`, and its devices if there are two."""
    does = {"sampling": "samples", "learning": "learns"}
    devices = [f"{does[part]} on {settings[part]}" for part in does if part in settings]
    return ", ".join([str(settings.get("device", settings.get("name"))), *devices])


def settings_of_result(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a placement that can change the result of a seed beyond rounding."""
    usual = {name: value for kind in KINDS.values() for name, value in kind.changes_result.items()}
    return {name: settings.get(name, value) for name, value in usual.items()}


def snapshot(agent: Agent, device: torch.device, tensors: dict[str, Tensor] | None = None) -> SamplingActor:
    """A copy of the agent's actor on a device; the counters do not count it.

    The training's own replica and its publishes stay as they are, so an evaluation during training changes nothing.

    Args:
        agent: an agent that is not updating.
        device: device of the copy.
        tensors: tensors of another time, with the names of `Agent.state`; None for the present ones.
    """
    network = copy.deepcopy(agent.actor).to(device)
    if tensors is not None:
        parts = [f"policies.{name}.actor." for name in agent.agents] if has_policies(agent) else ["actor."]
        for actor, part in zip(actors_of(network), parts, strict=True):
            actor.load_state_dict(part_of(tensors, part))
    return sampling_actor(network, Crossing(device, Counters()), agent.version)
