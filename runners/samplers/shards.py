"""Sampling of environments of tensors in shards: each has environments and a rollout of its own, wherever it is."""

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from torch import Tensor

from hybridppo.environments.base import EnvState
from hybridppo.errors import EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.on_tensors import TensorSampler
from hybridppo.runners.samplers.stepping import StepperState
from hybridppo.system.validation import whole

Gather = Callable[[bytes], list[bytes]]
"""What this process has to say, to what all have to say, in their order. All must call it, or none goes on."""
GatherTensors = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""The tensors of this process, by names that no other has, to those of all, on the host."""


class ShardsSampler(BaseSampler):
    """The shards of this process, one after the other; every method but `close` is called by all processes, or by none.

    A rollout once begun is ended. How the shards are divided among processes changes nothing.

    Args:
        samplers: of this process's shards.
        first: the number of the first of them.
        num_shards: how many there are in all, each of as many environments.
        join: makes one rollout of those of the shards.
        gather: brings together what the processes have.
        gather_tensors: likewise, of tensors.
    """

    def __init__(
        self,
        samplers: Sequence[TensorSampler],
        *,
        first: int,
        num_shards: int,
        join: Callable[[Sequence[Rollout]], Rollout],
        gather: Gather,
        gather_tensors: GatherTensors,
    ) -> None:
        one = samplers[0]
        shape = one.num_steps, one.num_envs * num_shards
        # The base is asked for no more than what it keeps of the whole: its shape, and its statistics.
        whole_buffer = cast(RolloutBuffer, SimpleNamespace(rewards=np.empty(shape, np.bool_)))
        super().__init__(
            bytearray(1), [whole_buffer], one._distribution, one._encode, skips_row_after_end=False, noise=one._noise
        )
        self._samplers, self._shard, self._num_shards = list(samplers), first, num_shards
        self._join, self._gather, self._gather_tensors = join, gather, gather_tensors

    def collect(self, actor: SamplingActor) -> Rollout:
        """The next `T` steps of every environment of this process; statistics are of all."""
        rollout = self._join([sampler.collect(actor) for sampler in self._samplers])
        own = json.dumps([sampler.latest for sampler in self._samplers], allow_nan=False).encode()
        for part in self._gather(own):
            for latest in json.loads(part):
                self.statistics.add_ended(*latest)
        self.env_steps += self.num_steps * self.num_envs
        return rollout

    def give_up(self, reason: str) -> None:  # noqa: D102 - as in the base
        super().give_up(reason)
        for sampler in self._samplers:
            sampler.give_up(reason)

    def request_stop(self) -> None:
        """Nothing: a rollout that has begun is ended, for others would wait for this one's part."""

    @property
    def steps_sampled(self) -> int:  # noqa: D102 - as in the base
        return self.env_steps

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return sum(sampler.seconds_filling for sampler in self._samplers)

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        for i, sampler in enumerate(self._samplers):
            sampler.restart(env_seed + self._shard + i)

    def close(self) -> None:  # noqa: D102 - as in the base
        for sampler in self._samplers:
            sampler.close()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As in the base, of all shards, in every process."""
        tensors: dict[str, Tensor] = {}
        states = []
        for i, sampler in enumerate(self._samplers):
            own, state = sampler.state()
            tensors |= {f"shard{self._shard + i}.{name}": tensor for name, tensor in own.items()}
            states.append(state)
        of_all = {"env_steps": self.env_steps, "statistics": self.statistics.state()}
        if self.failure is not None:  # the others are not met any more, and nothing is known of theirs
            before, after = self._shard, self._num_shards - self._shard - len(states)
            return {}, {**of_all, "shards": [*[None] * before, *states, *[None] * after]}
        shards = [
            state for part in self._gather(json.dumps(states, allow_nan=False).encode()) for state in json.loads(part)
        ]
        return self._gather_tensors(tensors), {**of_all, "shards": shards}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """As in the base, of a run of as many shards, however they were divided."""
        shards = state.get("shards")
        if not isinstance(shards, list) or len(shards) != self._num_shards:
            found = len(shards) if isinstance(shards, list) else "no"
            raise ValueError(f"it has {found} shards, and there are {self._num_shards}: resume with as many")
        self.env_steps = whole(state, "env_steps")
        self.statistics.load_state(state["statistics"])
        reasons: list[str | None] = []
        for i, sampler in enumerate(self._samplers):
            number = self._shard + i
            if shards[number] is None:
                sampler.restart(env_seed + number)
                reasons.append("they had failed, or others that train with them")
                continue
            own = {
                name.removeprefix(f"shard{number}."): tensor
                for name, tensor in tensors.items()
                if name.startswith(f"shard{number}.")
            }
            reasons.append(sampler.load_state(own, shards[number], env_seed=env_seed + number))
        said = [part.decode() for part in self._gather((next(filter(None, reasons), "")).encode())]
        return next(filter(None, said), None)

    def check(self, rollout: Rollout) -> None:
        """No rollout is ever saved: an update that has begun is ended."""
        raise ValueError("it holds a rollout, which this sampler never leaves behind")

    # What the base would call, of a rollout that it fills itself.

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        raise NotImplementedError("shards are filled by samplers of their own: call collect")

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        raise NotImplementedError("shards are filled by samplers of their own: call collect")

    def _stepper_state(self) -> StepperState:
        raise EnvStateError("shards are saved as tensors")

    def _load_stepper_state(self, states: list[EnvState], observation: Any, remembered: Any) -> None:
        raise EnvStateError("shards are saved as tensors")
