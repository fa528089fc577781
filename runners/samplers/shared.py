"""Sampling by several processes: each steps some of the environments, and all get the whole rollout."""

import json
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridppo.environments.base import Environments, EnvState
from hybridppo.errors import EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.runners.samplers.base import BaseSampler
from hybridppo.runners.samplers.in_process import allocate_for
from hybridppo.runners.samplers.stepping import Stepper, StepperState
from hybridppo.spaces.distributions import Distribution

Array = NDArray[Any]

Gather = Callable[[bytes], list[bytes]]
"""What this process has to say, to what all have to say, in their order. All must call it, or none goes on."""


class SharedSampler(BaseSampler):
    """Steps a share of the environments; every method but `request_stop` and `close` is called by all, or by none.

    Noise is drawn for all environments, and environments are seeded by their number: how many processes there are
    changes nothing. A rollout once begun is ended.

    Args:
        environments: this process's share; closed with the sampler.
        distribution: of the action space.
        rank: which of the processes this is.
        num_processes: how many there are, with as many environments each.
        num_steps: `T`.
        env_seed: the `i`-th environment of all starts from `env_seed + i`.
        noise: owner of the actions' randomness; the same in all processes.
        gather: brings together what the processes have.
        memory: the actors', where they have one; what is remembered of an environment stays with who steps it.
    """

    def __init__(
        self,
        environments: Environments,
        distribution: Distribution,
        *,
        rank: int,
        num_processes: int,
        num_steps: int,
        env_seed: int,
        noise: np.random.Generator,
        gather: Gather,
        memory: MemoryLayout | None = None,
    ) -> None:
        num_envs = num_processes * environments.num_envs
        layout = RolloutBuffer.layout(num_steps, num_envs, environments.encode, distribution, memory)
        buffer = RolloutBuffer(**{name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()})
        skips_row_after_end = environments.skips_row_after_end
        super().__init__(
            bytearray(1), [buffer], distribution, environments.encode, skips_row_after_end=skips_row_after_end,
            noise=noise, memory=memory, num_agents=environments.num_agents, clips_rewards=environments.clips_rewards,
        )  # fmt: skip
        self._has_warned = rank > 0  # the first says it for all
        self._environments, self._rank, self._gather = environments, rank, gather
        size = environments.num_envs
        self._shares = [slice(i * size, (i + 1) * size) for i in range(num_processes)]
        self._mine = self._shares[rank]
        self._own = allocate_for(environments, distribution, num_steps, None, memory)
        self._first = self._mine.start // environments.num_agents  # an environment has a column for each of its agents
        self._stepper = Stepper(environments, distribution, env_seed + self._first, memory)

    def _fill_async(self, buffer: RolloutBuffer, actor: SamplingActor, first: int) -> None:
        self._work = buffer, actor, first

    def _fill_wait(self) -> tuple[int, FinalObservations]:
        buffer, actor, first = self._work
        for name, array in self._own.arrays.items():
            array[:] = buffer.arrays[name][:, self._mine]
        filled, finals = self._stepper.fill(self._own, actor, first=first)
        names = [name for name in self._own.arrays if name != "noise"]
        own = [self._own.arrays[name].tobytes() for name in names]
        everything: FinalObservations = []
        # In one message: to meet takes longer than to send.
        for envs, part in zip(self._shares, self._gather(b"".join((*own, self._packed(finals)))), strict=True):
            start = 0
            for name in names:
                array = self._own.arrays[name]
                rows = np.frombuffer(part, array.dtype, array.size, start).reshape(array.shape)
                buffer.arrays[name][:, envs] = rows
                start += array.nbytes
            everything += [(step, envs.start + env, final) for step, env, final in self._unpacked(part[start:])]
        return filled, sorted(everything, key=lambda final: final[:2])  # as one process would have found them

    def _packed(self, finals: FinalObservations) -> bytes:
        """Where episodes were cut, and the observations there."""
        places = np.array([(step, env) for step, env, _ in finals], np.int64)
        return b"".join((places.tobytes(), *(final.tobytes() for _, _, final in finals)))

    def _unpacked(self, part: bytes) -> FinalObservations:
        row = self._no_row(1)[0]
        count = len(part) // (16 + row.nbytes)
        places = np.frombuffer(part, np.int64, 2 * count).reshape(count, 2).tolist()
        rows = np.frombuffer(part, row.dtype, count * row.size, 16 * count).reshape(count, *row.shape)
        return [(step, env, final.copy()) for (step, env), final in zip(places, rows, strict=True)]

    def _stepper_state(self) -> StepperState:
        try:
            states, observation, remembered = self._stepper.state()
            own: dict[str, Any] = {"states": states}
        except EnvStateError as error:
            own = {"not_saved": str(error)}
        found = [json.loads(part) for part in self._gather(json.dumps(own, allow_nan=False).encode())]
        for each in found:  # where one fails, all do
            if "not_saved" in each:
                raise EnvStateError(each["not_saved"])
        states = [state for each in found for state in each["states"]]
        return states, self._rows_of_all(observation), self._rows_of_all(remembered)

    def _rows_of_all(self, rows: Array) -> Array:
        """Those of each process, `[n, ...]`, below each other."""
        parts = self._gather(np.ascontiguousarray(rows).tobytes())
        return np.concatenate([np.frombuffer(part, rows.dtype).reshape(rows.shape) for part in parts])

    def _load_stepper_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        ends = list(accumulate(state["num_envs"] for state in states))
        if not {envs.stop for envs in self._shares} <= set(ends):
            raise EnvStateError(
                f"they were saved as vectors of {[state['num_envs'] for state in states]} environments each, which "
                f"cannot be divided among {len(self._shares)} learners"
            )
        mine, problem = self._mine, ""
        part = [state for state, end in zip(states, ends, strict=True) if mine.start < end <= mine.stop]
        try:
            self._stepper.load_state(part, observation[mine], remembered[mine])
        except EnvStateError as error:
            problem = str(error)
        for each in self._gather(problem.encode()):
            if each:
                raise EnvStateError(each.decode())

    @property
    def seconds_filling(self) -> float:  # noqa: D102 - as in the base
        return self._stepper.seconds

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._stepper.restart(env_seed + self._first)

    def close(self) -> None:  # noqa: D102 - as in the base
        self._environments.close()
