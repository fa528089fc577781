"""The workers of a sampler: each steps some of the environments with its own actor, and may be lost and replaced."""

import contextlib
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from hybridppo.distributions.base import Distribution
from hybridppo.environments.base import Environments, EnvState
from hybridppo.environments.info_metrics import Sums
from hybridppo.environments.making import to_send
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.steering import Steering, latest
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError
from hybridppo.interfaces import SamplingActor
from hybridppo.networks.forms import actor_form, arrays_of
from hybridppo.networks.numpy_forms.actor import ArrayActor
from hybridppo.networks.numpy_forms.form import NumpyForm, PoliciesForm
from hybridppo.rollouts.buffer import RolloutBuffer
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.runners.samplers.stepping import StepperState
from hybridppo.runners.workers.losses import Losses
from hybridppo.runners.workers.pool import Transport
from hybridppo.runners.workers.processes import Processes
from hybridppo.runners.workers.transport import Work, WorkerLostError
from hybridppo.spaces.arrays import Array
from hybridppo.system.interruption import Stopped


class Workers:
    """Steps environments in processes of their own, started by a `Transport`.

    A worker is a fresh interpreter that loads gymnasium and NumPy, not torch. Environments are seeded by their number,
    so the number of workers changes no result, except for an environment's own vectorised form, whose copies share one
    generator.

    Args:
        source: makes the environments, as for `make_environments`.
        template: environments made in this process, for their spaces and autoreset mode; not stepped.
        distribution: distribution of the actions.
        network: the actor, for the shapes of its parameters.
        lost: called with the number of a worker that was lost and replaced.
        num_envs: number of environments; None for as many as in the template.
        num_workers: processes, at most as many as environments, which are divided as evenly as possible.
        num_steps: steps that a worker fills at a time.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        options: how the environments are made and stepped.
        pin_for: the device that rollouts are copied to, if it copies faster from page-locked memory; else None.
        memory: layout of the state of a recurrent actor.
        transport: starts the workers, and carries messages and rollouts.
        num_buffers: number of buffers.

    Raises:
        EnvError: if a worker fails, dies or hangs; it names the worker, and has its traceback or signal.
    """

    def __init__(
        self,
        source: EnvSource,
        template: Environments,
        distribution: Distribution,
        network: nn.Module,
        lost: Callable[[int], None],
        *,
        num_envs: int | None = None,
        num_workers: int,
        num_steps: int,
        env_seed: int,
        options: EnvironmentOptions | None = None,
        pin_for: torch.device | None = None,
        memory: MemoryLayout | None = None,
        transport: Callable[[Work], Transport] = Processes,
        num_buffers: int = 2,
    ) -> None:
        self.encode, self.num_agents = template.encode, template.num_agents
        self.skips_row_after_end, self.clips_rewards = template.skips_row_after_end, template.clips_rewards
        agents = template.num_agents
        num_envs = num_envs if num_envs is not None else template.num_envs // agents
        options = options if options is not None else EnvironmentOptions()
        shares = divided(num_envs, num_workers)
        self.columns = [slice(share.start * agents, share.stop * agents) for share in shares]
        """The columns of each worker; the agents of an environment are together."""
        layout = RolloutBuffer.layout(num_steps, num_envs * agents, template.encode, distribution, memory)
        form, arrays = _form_of(network), arrays_of(network)
        setup = {
            "source": to_send(source),
            "options": options,
            "fields": list(layout),
            "shapes": [tuple(array.shape) for array in arrays],
            "form": form,
            "distribution": distribution,
            "memory": memory,
            "num_envs": num_envs,
            "spaces": SimpleNamespace(observation_space=template.observation_space, action_space=template.action_space),
        }
        size = sum(array.numel() for array in arrays)
        self.work = Work(shares, self.columns, layout, num_buffers, size, setup, options, pin_for)
        self.pool = transport(self.work)
        self.losses = Losses(self.pool, num_workers, EnvError, "a whole rollout", "its unfinished episodes are")
        self.infos: list[Sums] = []
        """Sums of entries of infos, of the rollout under way."""
        self._lost, self._restarts, self._env_seed = lost, options.restarts, env_seed
        self._info_names: Sequence[str] = ()
        self._steering: list[Steering] = []
        self.pool.start_all([self._seed_of(worker) for worker in range(num_workers)])

    def _seed_of(self, worker: int) -> int:
        """The seed of a worker's first environment."""
        return self._env_seed + int(self.work.shares[worker].start)

    def publish(self, actor: SamplingActor) -> None:
        """Let workers use a copy of this actor's parameters in everything that they begin from now on."""
        # The form of such a network on the CPU.
        assert isinstance(actor, ArrayActor)
        self.pool.publish(actor.parameters, actor.version)

    def fill(self, worker: int, turn: int, first: int) -> bool:
        """Let a worker fill its columns of a buffer from row `first` on; False if it was lost and replaced instead."""
        try:
            self.pool.fill(worker, turn, first)
        except WorkerLostError as lost:
            self.replace(worker, lost)
            return False
        return True

    def replace(self, worker: int, error: WorkerLostError) -> None:
        """Start another worker in place of a lost one, if `on_env_error` is "restart"; else raise the error."""
        if not self._restarts:
            raise error

        def begin(seed: int) -> None:
            again: list[tuple[str, Any]] = [("steer", (steering,)) for steering in self._steering]
            if self._info_names:
                again.append(("measure_infos", (self._info_names,)))
            for message in again:
                self.pool.ask(worker, *message)
                for _, answer in self.pool.answers([worker]):
                    if isinstance(answer, WorkerLostError):
                        raise answer
                    (_, problem), _ = answer
                    if problem is not None:
                        raise problem

        try:
            self.losses.replace(worker, error, self._seed_of(worker), begin)
        except Stopped:  # there is no time to start another
            raise error from None
        self._lost(worker)

    def _ask(self, kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method in each worker (`Share.answer`), each with its arguments; return the results.

        A worker that is lost is replaced, and asked again.
        """
        answers: dict[int, tuple[Any, float]] = {}
        while waiting := [worker for worker in self.pool.workers if worker not in answers]:
            for worker in waiting:
                with contextlib.suppress(WorkerLostError):  # `answers` returns it
                    self.pool.ask(worker, kind, arguments[worker])
            for worker, answer in self.pool.answers(waiting):
                if isinstance(answer, WorkerLostError):
                    self.replace(worker, answer)
                else:
                    answers[worker] = answer
        results = [answers[worker][0] for worker in self.pool.workers]
        for _, error in results:
            if error is not None:
                raise error
        return [result for result, _ in results]

    def measure_infos(self, names: Sequence[str]) -> None:
        """As `Environments.measure_infos`."""
        self._ask("measure_infos", [(names,)] * len(self.columns))
        self._info_names = names

    def take_infos(self) -> Sums:
        """As `Environments.take_infos`, of all workers."""
        found, self.infos = self.infos, []
        return {
            name: np.sum([[0.0] * 4, *(sums[name] for sums in found)], axis=0).tolist() for name in self._info_names
        }

    def steer(self, steering: Steering) -> list[Any]:
        """As `Environments.steer`."""
        found = self._ask("steer", [(steering,)] * len(self.columns))
        self._steering = latest(self._steering, steering)
        return [result for of_worker in found for result in of_worker]

    def restart(self, env_seed: int) -> None:
        """Reset every environment, the `i`-th with `env_seed + i`."""
        self._env_seed = env_seed
        self._ask("restart", [(self._seed_of(worker),) for worker in range(len(self.columns))])

    def state(self) -> StepperState:
        """As `Stepper.state`."""
        parts = self._ask("state", [()] * len(self.columns))
        states, observations, remembered = zip(*parts, strict=True)
        return [state for part in states for state in part], np.concatenate(observations), np.concatenate(remembered)

    def load_state(self, states: list[EnvState], observation: Array, remembered: Array) -> None:
        """As `Stepper.load_state`, also for another number of workers if each environment was saved separately."""
        apart = states_of_workers(states, self.columns, f": num_workers={len(states)} goes on exactly")
        pairs = zip(apart, self.columns, strict=True)
        self._ask("load_state", [(own, observation[columns], remembered[columns]) for own, columns in pairs])

    def close(self) -> None:
        """End all workers; a second call does nothing."""
        self._lost = lambda worker: None  # the owner's function would keep its owner alive
        self.pool.close()


def divided(num_envs: int, num_workers: int) -> "list[slice[int, int, None]]":
    """The environments of each worker, divided as evenly as possible."""
    if not 1 <= num_workers <= num_envs:
        raise ConfigurationError(
            f"num_workers must be 0 (this process), or 1 to num_envs = {num_envs}, got {num_workers}"
        )
    bounds = [i * num_envs // num_workers for i in range(num_workers + 1)]
    return [slice(start, end) for start, end in pairwise(bounds)]


def states_of_workers(states: list[EnvState], columns: Sequence[slice], remedy: str = "") -> list[list[EnvState]]:
    """The saved states of each worker's columns.

    Raises:
        EnvStateError: if a state belongs to several workers; `remedy` ends its message.
    """
    ends = list(accumulate(state["num_envs"] for state in states))
    if not {own.stop for own in columns} <= set(ends):
        raise EnvStateError(
            f"they were saved as vectors of {[state['num_envs'] for state in states]} environments each, which "
            f"cannot be divided among {len(columns)} workers{remedy}"
        )
    return [[state for state, end in zip(states, ends, strict=True) if own.start < end <= own.stop] for own in columns]


def _form_of(network: nn.Module) -> NumpyForm | PoliciesForm:
    form = actor_form(network)
    if form is None:
        raise ConfigurationError(
            "worker processes sample in NumPy, with the library's own networks of tanh or relu only, without "
            "layer_norm, a3c and impala convolutions: choose such a network, or num_workers=0"
        )
    return form
