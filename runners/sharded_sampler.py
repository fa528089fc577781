"""Sampling in shards, each with its own environments, noise and rollout."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

from torch import Tensor

from hybridppo.environments.base import Environments, Steering, from_json, latest
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError, HybridPPOError
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.rollout import RolloutParts, in_parts
from hybridppo.runners.counts import Counts, InfoMetrics
from hybridppo.runners.process_group import SingleProcess, on_host
from hybridppo.runners.processes import WorkerLostError
from hybridppo.runners.sampler import Sampler
from hybridppo.system.validation import part_of

_IN_SHARDS = "they were saved in shards, each of which goes on by itself: as many shards go on exactly"


class EnvironmentShards(Environments):
    """Environments in parts, which have their own samplers; they cannot be stepped together.

    Args:
        parts: of one kind; closed with this.
    """

    def __init__(self, parts: Sequence[Environments]) -> None:
        first = parts[0]
        super().__init__(sum(part.num_envs for part in parts), first.observation_space, first.action_space)
        self.parts = list(parts)
        self.agents, self.device, self.clips_rewards = first.agents, first.device, first.clips_rewards

    def reset(self, seed: int) -> NoReturn:  # noqa: D102 - as in the base
        raise NotImplementedError("each part is reset separately")

    def step(self, actions: Any) -> NoReturn:  # noqa: D102 - as in the base
        raise NotImplementedError("each part is stepped separately")

    def _close(self) -> None:
        for part in self.parts:
            part.close()


class ShardsSampler(Sampler):
    """Samples the shards of this process. All processes call every method together, except `request_stop` and `close`.

    A rollout that was begun is always finished. The division of shards among processes changes no result.

    Args:
        samplers: the samplers of this process's shards, each with the same number of environments.
        environments: their environments.
        first: number of the first of these shards.
        num_shards: number of shards of all processes.
        group: the processes.
    """

    def __init__(
        self,
        samplers: Sequence[Sampler],
        environments: EnvironmentShards,
        first: int,
        num_shards: int,
        group: SingleProcess,
    ) -> None:
        one = samplers[0]
        counts = Counts(environments, one.num_envs * num_shards)
        super().__init__(environments, one._plan, counts)
        self._samplers, self._shard, self._num_shards = list(samplers), first, num_shards
        self._envs_per_shard, self._group = one.num_envs // environments.num_agents, group
        self.infos = InfoMetrics(environments.parts[0], warns=first == 0)

    # Rollouts

    def sample_async(self, actor: SamplingActor) -> None:  # noqa: D102 - as in the base
        for sampler in self._samplers:
            sampler.sample_async(actor)

    def prepare(self, actor: SamplingActor) -> None:  # noqa: D102 - as in the base
        for sampler in self._samplers:
            sampler.prepare(actor)

    def sample_wait(self) -> RolloutParts:  # type: ignore[override]
        """The rollouts of this process's shards; statistics are of all shards."""
        before = [sampler.counts.numbers() for sampler in self._samplers]
        parts = [sampler.sample_wait() for sampler in self._samplers]
        self.seconds_filling = sum(sampler.seconds_filling for sampler in self._samplers)
        own = [
            (*sampler.counts.since(each), sampler.metrics, sampler.infos.taken())
            for sampler, each in zip(self._samplers, before, strict=True)
        ]
        *counted, of_shards, infos = zip(*chain(*self._group.gather(own)), strict=True)
        self.infos.sums += chain(*infos)
        self.counts.add_parts(*counted)
        self.metrics = {name: _metric_of_shards(name, [each[name] for each in of_shards]) for name in of_shards[0]}
        return RolloutParts(parts)

    def steer(self, steering: Steering) -> list[Any]:
        """As in the base, in all processes; only the first raises errors of the call or the change."""
        found: list[Any] = []
        problem: HybridPPOError | None = None
        try:
            for sampler in self._samplers:
                found += sampler.steer(steering)
        except (ConfigurationError, EnvError) as error:
            if isinstance(error, WorkerLostError):
                raise
            problem = error
        answers = self._group.gather((found, problem))
        problem = next((problem for _, problem in answers if problem is not None), None)
        if problem is not None and self._shard == 0:
            raise problem
        if problem is None:
            self.steering = latest(self.steering, steering)
        return [result for results, _ in answers for result in results]

    def pause(self) -> None:
        """Wait for the rollout under way, because other processes wait for this one's part."""
        for sampler in self._samplers:
            sampler.wait()

    def request_stop(self) -> None:
        """Do nothing: a rollout that was begun is finished."""

    def give_up(self, reason: str) -> None:  # noqa: D102 - as in the base
        super().give_up(reason)
        for sampler in self._samplers:
            sampler.give_up(reason)

    @property
    def broken_by(self) -> HybridPPOError | None:  # noqa: D102 - as in the base
        return next((sampler.broken_by for sampler in self._samplers if sampler.broken_by is not None), None)

    @property
    def is_under_way(self) -> bool:  # noqa: D102 - as in the base
        return self._samplers[0].is_under_way

    @property
    def is_paused(self) -> bool:  # noqa: D102 - as in the base
        return all(sampler.is_paused for sampler in self._samplers)

    @property
    def steps_sampled(self) -> int:
        """As in the base; a rollout under way counts as a whole, because it is always finished."""
        return self.counts.env_steps + self.is_under_way

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        for i, sampler in enumerate(self._samplers):
            sampler.restart(env_seed + (self._shard + i) * self._envs_per_shard)

    def close(self) -> None:  # noqa: D102 - as in the base
        for sampler in self._samplers:
            sampler.request_stop()
        for sampler in self._samplers:
            sampler.close()

    # Checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As in the base, of all shards, in every process."""
        _, of_all = super().state()
        of_all |= {"infos": self.infos.sums, "infos_so_far": []}
        if self.failure is not None:  # the other processes are not reached any more
            return {}, {**of_all, "shards": [None] * self._num_shards}
        states = [(on_host(tensors), state) for tensors, state in (sampler.state() for sampler in self._samplers)]
        found = list(chain(*self._group.gather(states)))
        named = {
            f"shard{number}.{name}": tensor for number, (own, _) in enumerate(found) for name, tensor in own.items()
        }
        return named, {**of_all, "steering_due": found[0][1]["steering_due"], "shards": [state for _, state in found]}

    def _state_of_environments(self) -> NoReturn:
        raise EnvStateError(_IN_SHARDS)  # for a sampler without shards

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """As in the base. A run with another number of shards begins new episodes."""
        self.counts.load_state(state)
        self.steering = from_json(state["steering"])
        shards = state.get("shards")
        if not isinstance(shards, list) or len(shards) != self._num_shards:
            self.counts.drop_running()
            for sampler in self._samplers:
                sampler._load_steering(state)
                sampler._steer_due()  # the rollout that it waited for is lost
            self.restart(env_seed)
            found = f"{len(shards)} shards" if isinstance(shards, list) else "one piece"
            return f"the run was in {found} and is now in {self._num_shards} shards, which also cut its minibatches"
        self.infos.load_state(state)
        reasons: list[str | None] = []
        for i, sampler in enumerate(self._samplers):
            number = self._shard + i
            seed = env_seed + number * self._envs_per_shard
            if shards[number] is None:
                sampler._load_steering(state)
                sampler.restart(seed)
                reasons.append("they had failed, or others that train with them")
                continue
            own = part_of(tensors, f"shard{number}.")
            reasons.append(sampler.load_state(own, shards[number], env_seed=seed))
        return next(filter(None, chain(*self._group.gather(reasons))), None)

    def own_parts(self, rollout: Any) -> Any:
        """This process's shards of a rollout of all shards."""
        parts = in_parts(rollout, self._num_shards).parts[self._shard : self._shard + len(self._samplers)]
        return RolloutParts([sampler.own_parts(part) for sampler, part in zip(self._samplers, parts, strict=True)])


def _metric_of_shards(name: str, of_shards: Sequence[float]) -> float:
    """A metric of all shards: the sum if it is a count, else the mean."""
    return sum(of_shards) if name == "steps_dropped" else sum(of_shards) / len(of_shards)
