"""The base of placements: two devices, the counters, and the copy of a rollout to the learner.

Only the actor ever crosses: sampling needs nothing else. Every crossing is counted in `Placement.counters`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from hybridppo.interfaces import Agent, SamplingActor, SomeExperience, agents_of
from hybridppo.placements.crossing import CopyTimer, Counters, Crossing, available_device, moved, wait_for
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.validation import real, whole


class Placement(ABC):
    """The base of placements: two devices, the counters, and the copy of a rollout to the learner."""

    name: ClassVar[str]
    """Its name on the command line."""
    max_lag: int = 0
    """How many updates the sampling parameters may be behind, because sampling and learning overlap."""
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
    def pins_rollouts(self) -> bool:
        """Whether rollouts should be in page-locked host memory, from which a GPU copies fastest."""
        return accelerator_of(self.learning_device).is_asynchronous

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

    @abstractmethod
    def sampling(self, agent: Agent) -> AbstractContextManager[SamplingActor]:
        """A context with the actor on the sampling device, for a sampler to call."""

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

    def to_learner(self, rollout: SomeExperience) -> SomeExperience:
        """The rollout, or other data to learn from, on the learning device; the same object if it is already there."""
        if rollout.observations.device == self.learning_device:
            return rollout
        num_bytes = 0

        def move(tensor: Tensor) -> Tensor:
            nonlocal num_bytes
            kept = self._crossing.kept(tensor)
            rest = tensor[len(kept) :]
            num_bytes += rest.nbytes
            there = moved(rest, self.learning_device)
            return torch.cat([torch.stack(kept), there]) if kept else there

        with CopyTimer(self.sampling_device, self.learning_device) as timer:
            learned: SomeExperience = rollout.map(move)
            self._crossing.keep(False)
        # The copy is over: the sampler may overwrite its buffers as soon as this returns.
        self.counters.add(num_bytes=num_bytes, seconds=timer.seconds)
        return learned

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The state for `load_state`: tensors by name, and a JSON object."""
        return {}, {"settings": self.settings(), "counters": asdict(self.counters)}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the state of a placement with the same settings, after `prepare`; the state of another is ignored."""
        if state["settings"] == self.settings():
            counted = state["counters"]
            self.counters.publishes = whole(counted, "publishes")
            self.counters.bytes_copied = whole(counted, "bytes_copied")
            for name in ("seconds_copying", "seconds_crossing"):
                setattr(self.counters, name, real(counted[name], name))
            self._load(tensors, state)

    def _load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing more
        """Restore the state of a subclass."""

    def settings(self) -> dict[str, Any]:
        """The arguments that make an equal placement, as JSON."""
        return {"name": self.name, "sampling": str(self.sampling_device), "learning": str(self.learning_device)}

    def __repr__(self) -> str:
        settings = self.settings()
        del settings["name"]
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.items())})"
