"""Sampling on the actor's device: rollout, actor, episode ends and statistics stay there."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hybridppo.distributions.base import words
from hybridppo.environments.base import Environments
from hybridppo.environments.on_device import EnvironmentsOnDevice
from hybridppo.environments.tensors import TensorEnvironments, TensorStep
from hybridppo.errors import DeviceError, EnvError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.counts import Counts, EpisodeStatistics
from hybridppo.runners.filling import process_kept
from hybridppo.runners.sampler import RolloutPlan, Sampler, UnfinishedRollout, load_into, require_like
from hybridppo.system.devices import Record, accelerator_of, tried
from hybridppo.system.validation import part_of, whole

logger = logging.getLogger(__name__)


ROWS = 16
"""The rows of a recording, which are filled before a stop takes effect."""
MOST_PLACES = 2
"""The number of sets of addresses to record for; others would be recorded again in every rollout."""

Place = tuple[int, ...]
"""The addresses of parameters."""


class RecordedRows:
    """Fills rows by replays, if they are whole recordings.

    Args:
        queue_row: launches a row, on tensors at fixed addresses.
        changed: the tensors that rows change and later rows read, except for the rollout.
        rewards: `[T, N]`, of the rollout.
        record: records; it may run the rows a few times first, which is undone.
    """

    def __init__(
        self, queue_row: Callable[[int], None], changed: Sequence[Tensor], rewards: Tensor, record: Record
    ) -> None:
        self._queue_row, self._changed, self._rewards, self._record = queue_row, changed, rewards, record
        self._replays: dict[Place, dict[int, Callable[[], object]]] = {}

    def fill(self, t: int, place: Place) -> int:
        """Fill row `t`, or the recording that begins with it; return the next row.

        Raises:
            DeviceError: if a replay does nothing.
        """
        if t % ROWS or (place not in self._replays and len(self._replays) == MOST_PLACES):
            self._queue_row(t)
            return t + 1
        end = min(t + ROWS, len(self._rewards))
        replays = self._replays.setdefault(place, {})
        if t not in replays:
            replays[t] = self._recorded(t, end)
        replays[t]()
        return end

    def _recorded(self, first: int, end: int) -> Callable[[], object]:
        """A tested recording of rows, which has changed nothing but these rows."""
        rewards = self._rewards[first:end]

        def rows() -> None:
            for t in range(first, end):
                self._queue_row(t)

        def replay(recording: Callable[[], object]) -> None:
            rewards.fill_(torch.nan)
            recording()

        def check() -> None:
            if bool(rewards.isnan().all()):  # waits for the device once for each recording
                raise DeviceError(
                    f"rows {first} to {end - 1} of a rollout were recorded as a CUDA graph, but its replay filled "
                    "none: train with fast_updates=False and cuda_graphs=False, and report this with the versions of "
                    "torch and the driver"
                )

        return tried(lambda: self._record(rows), replay, check, self._changed)


WORD = 2**32


class TensorStatistics(EpisodeStatistics):
    """`EpisodeStatistics` of rollouts on a device; only the latest episodes are copied to the host.

    Args:
        num_envs: `N`.
        device: device of the rollouts.
        window: number of latest episodes for the means.
    """

    def __init__(self, num_envs: int, device: torch.device, window: int = 100) -> None:
        super().__init__(num_envs, window)
        precise = torch.float32 if device.type == "mps" else torch.float64  # which has no other
        self._running_return = torch.zeros(num_envs, dtype=precise, device=device)
        self._running_length = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def measured(self, rewards: Tensor, ended: Tensor, valid: Tensor) -> Tensor:
        """Count a block of steps; return one tensor of numbers for `read`.

        Args:
            rewards: `[T, N]`.
            ended: `[T, N]` bool; only for steps.
            valid: `[T, N]` bool, which rows are steps.
        """
        num_steps, num_envs = rewards.shape
        rows = torch.arange(num_steps, device=rewards.device)[:, None]
        # Sums of each column up to each row, as if no episode had ended in the block.
        sums = self._running_return + (rewards * valid).to(self._running_return.dtype).cumsum(0)
        counts = self._running_length + valid.cumsum(0)
        ends = torch.where(ended, rows, -1).cummax(0).values  # the last end up to each row, or -1
        before = torch.cat((torch.full_like(ends[:1], -1), ends[:-1]))
        is_later, index = before >= 0, before.clamp(min=0)
        # The sum of an episode is the difference between its end and the end before.
        returns = sums - torch.where(is_later, sums.gather(0, index), 0.0)
        lengths = counts - torch.where(is_later, counts.gather(0, index), 0)
        has_ended, last = ends[-1] >= 0, ends[-1:].clamp(min=0)
        self._running_return = sums[-1] - torch.where(has_ended, sums.gather(0, last)[0], 0.0)
        self._running_length = counts[-1] - torch.where(has_ended, counts.gather(0, last)[0], 0)
        # The latest episodes in the order of their ends: rows before columns.
        places = torch.arange(num_steps * num_envs, device=rewards.device)
        order = torch.where(ended.flatten(), places, -1).topk(min(self._window, len(places))).values
        latest = order.clamp(min=0)
        found = (ended.sum().reshape(1), returns.flatten()[latest], lengths.flatten()[latest])
        return torch.cat([numbers.to(self._running_return.dtype) for numbers in found])

    def read(self, numbers: list[float]) -> None:
        """Read the result of `measured` on the host."""
        num_ended, size = int(numbers[0]), (len(numbers) - 1) // 2
        known = min(num_ended, size)
        returns, lengths = numbers[1 : 1 + known][::-1], numbers[1 + size : 1 + size + known][::-1]
        self.add_ended(returns, [int(length) for length in lengths], num_ended)

    def _restore(self, running: Tensor, numbers: list[float]) -> None:
        running.copy_(torch.tensor(numbers, dtype=running.dtype))


class DeviceCounts(Counts):
    """Counts on the device; the numbers of a rollout are copied to the host together."""

    def add_block(self, block: Rollout, is_finite: Tensor) -> bool:
        """Count a rollout, with one wait for the device; whether its numbers are finite, else it is not counted."""
        valid = torch.ones_like(block.terminated) if block.absent is None else ~block.absent
        ended = (block.terminated | block.truncated) & valid
        statistics: list[Any] = [self.statistics, *(policy.statistics for policy in self.by_policy.values())]
        columns: list[Any] = [slice(None), *(policy.columns for policy in self.by_policy.values())]
        episodes = [
            each.measured(block.rewards[:, own], ended[:, own], valid[:, own])
            for each, own in zip(statistics, columns, strict=True)
        ]
        steps = [self.rows_of_steps(valid), *(valid[:, own] for own in columns[1:])]
        numbers = torch.stack([is_finite, *(each.sum() for each in steps)]).to(episodes[0].dtype)
        on_host = iter(torch.cat((numbers, *episodes)).tolist())
        (finite, env_steps, *agent_steps), *ended_episodes = (
            list(islice(on_host, len(each))) for each in (numbers, *episodes)
        )
        if not finite:
            return False
        self.env_steps += int(env_steps)
        for policy, of_policy in zip(self.by_policy.values(), agent_steps, strict=True):
            policy.agent_steps += int(of_policy)
        for each, found in zip(statistics, ended_episodes, strict=True):
            each.read(found)
        return True

    def steps_with(self, rows: Any, filled: int) -> int:  # noqa: D102 - as in the base
        if rows.absent is None:
            return self.env_steps + filled * self.num_columns
        return self.env_steps + int(self.rows_of_steps(~rows.absent[:filled]).sum())


class BaseDeviceSampler(Sampler):
    """The base of samplers on a device. There is one rollout, which is valid until the next begins.

    Args:
        environments: closed with the sampler.
        block: the tensors of the rollout.
        plan: what a rollout is made of; its generator draws the seeds that determine the noise.
    """

    rows_are = "on a device"
    counts: DeviceCounts

    def __init__(self, environments: Environments, block: Rollout, plan: RolloutPlan) -> None:
        self._block, self._device = block, block.rewards.device
        self._accelerator = accelerator_of(self._device)
        statistics = partial(TensorStatistics, device=self._device)
        super().__init__(environments, plan, DeviceCounts(environments, block.rewards.shape[1], statistics=statistics))
        self._buffers = deque([block])
        self._observation = block.observations[0].clone()
        self._all_rows = torch.arange(self.num_steps * self.num_envs, device=self._device)
        self.restart(plan.env_seed)

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._observation.copy_(self._reset(env_seed))

    def _reset(self, env_seed: int) -> Tensor:
        """Reset every environment; the first observations."""
        raise NotImplementedError

    def _begin(self) -> Rollout:
        self._draw_noise()
        return self._next_buffer()

    def _draw_noise(self) -> None:
        """Draw the noise of a rollout's actions."""
        raise NotImplementedError

    def _fill_async(self, unfinished: UnfinishedRollout, actor: SamplingActor) -> None:
        self._actor: Any = actor  # a `TorchActor`, or another that takes tensors

    def _fill_wait(self, unfinished: UnfinishedRollout) -> None:
        start = time.perf_counter()
        with process_kept(), self._accelerator.selected(), torch.no_grad():
            unfinished.filled = self._fill(unfinished.filled)
        self.seconds_filling = time.perf_counter() - start

    def _fill(self, first: int) -> int:
        """Fill rows from `first` on, up to the end or a stop; return the number of filled rows."""
        t, observations = first, self._block.observations
        observations[t].copy_(self._observation)
        while t < self.num_steps and not self._stop[0]:
            t = self._fill_from(t)
        self._observation.copy_(observations[t])
        return t

    def _fill_from(self, t: int) -> int:
        """Fill row `t`, and perhaps rows after it; return the next row."""
        raise NotImplementedError

    def _read(self, unfinished: UnfinishedRollout) -> Rollout:
        """As in the base; only statistics of episodes and numbers of rows are copied to the host."""
        block = self._block
        with self._accelerator.selected(), torch.no_grad():
            valid_rows = self._all_rows if block.absent is None else (~block.absent).flatten().nonzero().squeeze(1)
            final_rows = self._are_final().flatten().nonzero().squeeze(1)
            finals = self._finals(final_rows)
            numbers = self._encode.layout.numbers(block.observations), block.rewards, finals, *block.infos.values()
            is_finite = torch.stack([each.isfinite().all() for each in numbers]).all()
            if not self.counts.env_steps:  # only one row, and only once, because it is copied to the host
                nobody = torch.zeros_like(block.terminated) if block.absent is None else block.absent
                self._encode.warned_of_bounds(block.observations[-2:-1].cpu().numpy(), nobody[-1:].cpu().numpy())
            if not self.counts.add_block(block, is_finite):
                self._refuse_numbers()
            actions = block.actions.reshape(*block.rewards.shape, *self._plan.distribution.action_shape)
            return Rollout(
                observations=block.observations,
                actions=actions,
                # The behaviour log-probabilities, from the same outputs as the actions.
                log_probs=self._plan.distribution.log_prob(block.outputs, actions),
                rewards=block.rewards.clamp(-1.0, 1.0) if self._environments.clips_rewards else block.rewards,
                terminated=block.terminated,
                truncated=block.truncated,
                valid_rows=valid_rows,
                final_rows=final_rows,
                final_observations=finals,
                version=unfinished.version,
                starts=block.starts,
                states=block.states,
                **block.infos,
            )

    def _are_final(self) -> Tensor:
        """`[T, N]` bool, the rows with final observations."""
        block = self._block
        if not self._environments.keeps_finals:
            return cast(Tensor, block.truncated & ~block.terminated)
        ended = block.truncated | block.terminated
        return cast(Tensor, ended if block.absent is None else ended & ~block.absent)

    def _finals(self, rows: Tensor) -> Tensor:
        """The final observations of these rows of the flat rollout."""
        raise NotImplementedError

    def _refuse_numbers(self) -> None:
        """Raise an error that names the first number that is not finite."""
        raise NotImplementedError


class DeviceSampler(BaseDeviceSampler):
    """Samples compiled environments on a device.

    Args:
        on_device: the environments, closed with the sampler.
        plan: what a rollout is made of.
        record: records rows as graphs, for actors that can be recorded; None to launch them one by one.
    """

    def __init__(self, on_device: EnvironmentsOnDevice, plan: RolloutPlan, record: Record | None = None) -> None:
        self._on_device, self._noise_seed = on_device, [0, 0]
        super().__init__(on_device.host, on_device.rollout, plan)
        self._recorded: RecordedRows | None = None
        if record is not None:
            self._recorded = RecordedRows(self._queue_row, on_device.changed, self._block.rewards, record)

    def _reset(self, env_seed: int) -> Tensor:
        self._on_device.restart(env_seed)
        return cast(Tensor, self._block.observations[0])

    def _draw_noise(self) -> None:
        self._noise_seed = self._plan.noise.integers(WORD, size=2).tolist()

    def _fill(self, first: int) -> int:
        """As in the base; the device has finished when this returns, so that the host's clock measures it."""
        self._place = tuple(self._actor.addresses()) if self._recorded is not None else ()
        self._on_device.set_seed(*self._noise_seed)
        filled = super()._fill(first)
        self._accelerator.wait()
        return filled

    def _fill_from(self, t: int) -> int:
        if self._recorded is not None:
            return self._recorded.fill(t, self._place)
        self._queue_row(t)
        return t + 1

    def _queue_row(self, t: int) -> None:
        self._block.outputs[t].copy_(self._actor.on_device(self._block.observations[t]))
        self._on_device.act(t)
        self._on_device.step(t)

    def _finals(self, rows: Tensor) -> Tensor:
        return self._on_device.finals(rows)

    def _refuse_numbers(self) -> None:
        block, when = self._block, f"in the {self.num_steps} steps of a rollout"
        environments = self._environments
        environments.require_finite(self._on_device.written.cpu().numpy(), block.rewards.cpu().numpy(), when)
        rows = (block.truncated & ~block.terminated).cpu().numpy()
        finals, columns = block.finals.cpu().numpy()[rows], np.nonzero(rows)[1]
        environments.require_finite_rows("final observation", finals, columns, when)

    def _state_of_environments(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._on_device.take()
        return {"observation": self._observation.cpu()}, {"states": self._environments.state()}

    def _load_environments(self, tensors: dict[str, Tensor], environments: dict[str, Any]) -> None:
        require_like("observation", tensors["observation"], self._observation)
        if not tensors["observation"].isfinite().all():
            raise ValueError("the saved observations are not finite")
        try:
            self._environments.load_state(environments["states"])
        finally:
            self._on_device.put()
        self._observation.copy_(tensors["observation"])

    def _noise_under_way(self) -> dict[str, Any]:
        return {"noise_seed": self._noise_seed}

    def _load_rows(self, rows: dict[str, Tensor], state: dict[str, Any], filled: int) -> None:
        seed = state["noise_seed"]
        if len(seed) != 2 or not all(type(word) is int and 0 <= word < WORD for word in seed):
            raise ValueError("noise_seed is not two words of 32 bits")
        super()._load_rows(rows, state, filled)
        self._noise_seed = seed


class TensorSampler(BaseDeviceSampler):
    """Steps a batched environment with an actor on its device.

    The noise of an action depends only on the run's seed, the number of the rollout, its row and the number of the
    environment. It is the same on every device, up to the rounding of a logarithm.

    If the environment does not return the final observation of a truncated episode, the value of the observation before
    the last action replaces that of the final one, as in rsl_rl ("last observation"); a warning says so once.

    Args:
        environments: closed with the sampler.
        plan: what a rollout is made of; the next two numbers of its generator are the key of all noise.
    """

    def __init__(self, environments: TensorEnvironments, plan: RolloutPlan) -> None:
        low, high = plan.noise.integers(WORD, size=2).tolist()
        self._key = int(low), int(high)
        distribution, num_envs = plan.distribution, environments.num_envs
        self._actions = distribution.on(environments.device)
        sizes, infos = (plan.num_steps, num_envs), environments.step_infos
        layout = Rollout.layout(*sizes, environments.encode, distribution, plan.memory, infos)
        shape, dtype = layout["observations"]
        layout["finals"] = ((plan.num_steps, *shape[1:]), dtype)
        for name in ("restarted", "waiting", "noise", *(() if environments.agents else ("absent",))):
            del layout[name]
        block = Rollout.on_device(layout, environments.device)
        self._number = 0
        """The number of the rollout."""
        self._state_of_actor: Tensor
        self._starts: Tensor
        self._has_compared = False
        """Whether final observations were compared with the next episode's first ones."""
        self._rows_unknown: list[int] = []
        """The rows of this rollout for which the environment gave no final observations."""
        super().__init__(environments, block, plan)
        self.infos.are_there = True

    def _reset(self, env_seed: int) -> Tensor:
        if self._plan.memory is not None:
            self._state_of_actor = torch.zeros((self.num_envs, self._plan.memory.state_size), device=self._device)
            self._starts = torch.ones(self.num_envs, dtype=torch.bool, device=self._device)
        return cast(Tensor, self._environments.begin(env_seed))

    # Filling

    def _begin(self) -> Rollout:
        self._number += 1
        self._rows_unknown = []
        return super()._begin()

    def _draw_noise(self) -> None:
        self._noise_of_rollout = self._actions.noise_from(
            words(
                self._key, self._number, num_steps=self.num_steps, num_envs=self.num_envs,
                num_words=self._actions.num_words, device=self._device, first=0,
            )
        )  # fmt: skip

    def _fill_from(self, t: int) -> int:
        block, actions = self._block, self._actions
        outputs = self._outputs(t)
        drawn = actions.sample(outputs, self._noise_of_rollout[t])
        block.outputs[t].copy_(outputs)
        block.actions[t].copy_(drawn)
        self._keep(t, self._environments.advance(actions.to_env(drawn)))
        return t + 1

    def _outputs(self, t: int) -> Tensor:
        block, rows, memory = self._block, self._block.observations[t], self._plan.memory
        if memory is None:
            return self._actor.on_device(rows)
        block.starts[t].copy_(self._starts)
        if t % memory.sequence_length == 0:
            state = self._state_of_actor.masked_fill(self._starts[:, None], 0.0)
            block.states[t // memory.sequence_length].copy_(state)
        outputs, self._state_of_actor = self._actor.on_device_with(rows, self._state_of_actor, self._starts)
        return outputs

    def _keep(self, t: int, step: TensorStep) -> None:
        block = self._block
        block.observations[t + 1].copy_(step.observations)
        block.rewards[t].copy_(step.rewards)
        block.terminated[t].copy_(step.terminated)
        block.truncated[t].copy_(step.truncated)
        if block.absent is not None:
            assert step.absent is not None  # of environments with agents
            block.absent[t].copy_(step.absent)
        for name, numbers in step.infos.items():
            block.infos[name][t].copy_(numbers)
        if step.finals is None:
            self._rows_unknown.append(t)
        block.finals[t].copy_(block.observations[t] if step.finals is None else step.finals)
        if self._plan.memory is not None:
            self._starts = step.terminated | step.truncated

    # Reading

    def _finals(self, rows: Tensor) -> Tensor:
        if len(rows) and self._rows_unknown and not self._has_warned:  # it waits for the device until it has warned
            unknown = self._all_rows.new_tensor(self._rows_unknown)
            self._has_warned = bool(torch.isin(rows // self.num_envs, unknown).any())
            if self._has_warned and self._environments.keeps_finals:
                raise EnvError(
                    f"{self._environments.name} gives no final observations (infos['final_obs']), which the agent's "
                    "class needs (keeps_final_observations): let its steps return them, or leave it out"
                )
            if self._has_warned:
                logger.warning(
                    "%s gives no final observations (infos['final_obs']) of episodes that are truncated: the value of "
                    'the observation before the last action stands for theirs (the approximation "last observation", '
                    "as in rsl_rl)",
                    self._environments.name,
                )
        finals = self._block.finals.flatten(0, 1).index_select(0, rows)
        if len(rows) and not self._has_compared:  # once, because it waits for the device
            self._has_compared = True
            following = self._block.observations[1:].flatten(0, 1).index_select(0, rows)
            if bool((finals == following).flatten(1).all(1).any()):
                logger.warning(
                    "%s: a final observation is the first of the next episode, to the bit. If the environment reuses "
                    "its tensor, let infos['final_obs'] be a copy (clone())",
                    self._environments.name,
                )
        return cast(Tensor, finals)

    def _refuse_numbers(self) -> None:
        block, environments = self._block, self._environments
        is_cut = self._are_final().reshape(*block.rewards.shape, *[1] * (block.finals.ndim - 2))
        environments.require_finite("observation", block.observations[1:])
        environments.require_finite("reward", block.rewards)
        for name, column in block.infos.items():
            environments.require_finite(f"info[{name!r}]", column)
        environments.require_finite("final observation", block.finals.masked_fill(~is_cut, 0.0))

    # Checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:  # noqa: D102 - as in the base
        tensors, state = super().state()
        is_dropped = self._unfinished is not None and "not_saved" in state["environments"]
        return tensors, {
            **state, "key": list(self._key), "number": self._number - is_dropped, "has_warned": self._has_warned
        }  # fmt: skip

    def _state_of_environments(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        environment = self._environments.tensors_of_state()
        tensors = {f"environment.{name}": tensor for name, tensor in environment.items()}
        return {**tensors, **self._own_tensors()}, {"is_saved": True}

    def _own_tensors(self) -> dict[str, Tensor]:
        """The tensors that the sampler carries from step to step, by name."""
        own = {"observation": self._observation}
        if self._environments.of_agents is not None:
            own["present"] = self._environments.of_agents.present
        if self._plan.memory is not None:
            own |= {"memory.state": self._state_of_actor, "memory.starts": self._starts}
        return own

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """As in the base, for a run in the same kind of environment."""
        if "key" not in state:
            raise ValueError("it was sampled in environments that are not tensors")
        low, high = state["key"]
        self._key = whole({"key": low}, "key"), whole({"key": high}, "key")
        self._number, self._has_warned = whole(state, "number"), bool(state["has_warned"])
        return super().load_state(tensors, state, env_seed=env_seed)

    def _load_environments(self, tensors: dict[str, Tensor], environments: dict[str, Any]) -> None:
        self._environments.load_tensors(part_of(tensors, "environment."))
        for name, mine in self._own_tensors().items():
            load_into(name, mine, tensors.get(name))

    def _load_rows(self, rows: dict[str, Tensor], state: dict[str, Any], filled: int) -> None:
        super()._load_rows(rows, state, filled)
        self._draw_noise()
