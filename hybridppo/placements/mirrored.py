"""The placement with a replica of the actor where it samples."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from hybridppo.errors import ConfigurationError, DeviceError
from hybridppo.interfaces import Agent, SamplingActor, agents_of
from hybridppo.networks.actors import actors_of
from hybridppo.networks.parameters import FlatParameters
from hybridppo.placements.placement import CopyTimer, Placement, sampling_actor
from hybridppo.system.devices import accelerator_of
from hybridppo.system.validation import require_bools, require_whole, whole


class Mirrored(Placement):
    """Keeps a replica of the actor on the sampling device, which each publish brings up to date.

    A publish is one flat copy of the actor's parameters, and one copy of each of its buffers. It happens before a
    rollout if the replica is `publish_every` updates behind, and before the first rollout. If both devices are the
    same, the replica is the actor itself, unless `force_copy` is set.

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

    name = "hybrid"
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
        require_bools(verify=verify, force_copy=force_copy)
        if max_lag > 0 and publish_every > 1:
            raise ConfigurationError(f"publish_every must be 1 where max_lag is {max_lag}, got {publish_every}")
        super().__init__(sampling, learning)
        self.verify = verify
        self.force_copy = force_copy
        # The parameters of a sampler that works during an update must not change.
        self._is_alias = self.sampling_device == self.learning_device and not force_copy and max_lag == 0

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
        num_bytes = 0
        # This waits on purpose: no step of sampling may see half a copy.
        with CopyTimer(self.sampling_device, self.learning_device) as timer:
            for theirs, ours in self._pairs(agent):
                theirs.copy_(ours, non_blocking=True)
                num_bytes += ours.nbytes
        self.counters.add(num_bytes=num_bytes, seconds=timer.seconds, publishes=1)
        self._published = agent.version
        if self.verify:
            self._verify(agent)

    def _verify(self, agent: Agent) -> None:
        # Compared through the modules instead of the flat buffers, because this also finds views that have come loose.
        replica = self._replica.state_dict()
        for name, tensor in agent.actor.state_dict().items():
            if not torch.equal(tensor.cpu(), replica[name].cpu()):
                raise DeviceError(
                    f"the replica on {self.sampling_device} differs from the actor on {self.learning_device} in "
                    f"{name!r} after publishing version {agent.version}: its rollouts would be stale"
                )

    def _pairs(self, agent: Agent) -> list[tuple[Tensor, Tensor]]:
        theirs = [*(each.parameters.of("actor") for each in agents_of(agent)), *agent.actor.buffers()]
        return list(zip((tensor for _, tensor in self._mirrored()), theirs, strict=True))

    def settings(self) -> dict[str, Any]:  # noqa: D102 - as in the base
        options = {name: getattr(self, name) for name in ("publish_every", "max_lag", "verify", "force_copy")}
        return {**super().settings(), **options}
