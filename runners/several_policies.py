"""The loop for several policies in the same environments: sample for all, then let each learn.

Each policy has an agent, a sampler and a placement of its own, as a run of its own would have them. What they share
is the environments, the run directory, and the count of steps: `env_steps` are those of environments, `agent_steps`
those of their agents.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hybridppo.errors import EnvError
from hybridppo.interfaces import Agent, Metrics
from hybridppo.placements.base import Placement
from hybridppo.reporting.callbacks import Callbacks
from hybridppo.reporting.progress import ProgressBar
from hybridppo.rollouts.rollout import Rollout
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.lines import finite
from hybridppo.runners.rescue import rescuing
from hybridppo.runners.workers.transport import WorkerLostError
from hybridppo.system.figures import shown_return
from hybridppo.system.interruption import Interruption, Stopped, stoppable
from hybridppo.system.validation import real, whole

if TYPE_CHECKING:
    from hybridppo.runners.samplers.on_device import DeviceSampler
    from hybridppo.runners.samplers.together import PolicySampler


@dataclass(frozen=True)
class Policy:
    """All that one policy has of its own."""

    agent: Agent
    """Learns; prepared by the placement."""
    sampler: "PolicySampler | DeviceSampler"
    placement: Placement
    """Without lag."""


class SeveralPoliciesRunner:
    """Drives several policies by turns: all rollouts together, then an update of each.

    Args:
        policies: by name.
        num_envs: environments, `E`.
        total_steps: environment steps after which to stop; an iteration once begun is ended.
        run_directory: where metrics and checkpoints go; None keeps nothing.
        checkpoint_seconds: a checkpoint at least this often, at the start and at the end.
        keep_checkpoints: how many of the newest stay.
        progress: whether to show a progress bar.
        callbacks: told of each iteration.
        interruption: asks everybody to stop.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        *,
        num_envs: int,
        total_steps: int,
        run_directory: RunDirectory | None,
        checkpoint_seconds: float,
        keep_checkpoints: int,
        progress: bool,
        callbacks: Callbacks,
        interruption: Interruption,
    ) -> None:
        self.policies, self.total_steps = dict(policies), total_steps
        self.iteration, self.seconds = 0, 0.0
        self.metrics: Metrics = {}
        self.interrupted = self.saved = False
        self._samplers = [policy.sampler for policy in policies.values()]
        self._num_envs = num_envs
        self._steps_of_rollout: int = num_envs * self._samplers[0].num_steps
        self.run_directory, self._progress, self._callbacks = run_directory, progress, callbacks
        self._checkpoint_seconds, self._keep_checkpoints = checkpoint_seconds, keep_checkpoints
        self._interruption = interruption
        self.is_rescued = False
        """Whether an error has been dealt with, on its way out (`rescuing`)."""
        for policy in policies.values():
            interruption.tell(policy.sampler.request_stop)
        self._rollouts: dict[str, Rollout] = {}
        """Of the iteration under way: those that are still to be learned from."""
        self._learned: dict[str, Metrics] = {}
        """Of the iteration under way: what has been learned."""
        self._has_sampled = False
        self._ended_at: float | None = None
        self._number, self._numbered = -1, (-1, -1, -1)

    @property
    def env_steps(self) -> int:
        """Steps of environments that were sampled and learned from."""
        return self.iteration * self._steps_of_rollout

    @property
    def share_done(self) -> float:
        """How much of the training is done."""
        return self.env_steps / self.total_steps

    def run(self) -> Metrics:
        """Train until `total_steps`, or until asked to stop; the metrics of the last iteration."""
        with contextlib.ExitStack() as stack:
            for policy in self.policies.values():
                stack.enter_context(stoppable(policy.agent, self._interruption))
            stack.enter_context(rescuing(self, between_updates=False))
            return self._run()

    def _run(self) -> Metrics:
        if self.iteration == 0 and not self._has_sampled:
            self.save()
        saved_at = self._ended_at = time.perf_counter()
        bar = ProgressBar(
            enabled=self._progress, total=self.total_steps, initial=self.env_steps, unit="step", unit_scale=True,
            dynamic_ncols=True,
        )  # fmt: skip
        with bar:
            while self.share_done < 1.0 and not self._interruption.requested:
                try:
                    self.metrics = self.iterate()
                except Stopped:
                    break
                run = self._callbacks.run
                run.iteration, run.env_steps = self.iteration, self.env_steps
                if self.run_directory is not None:
                    self.run_directory.log(self.metrics)
                with rescuing(self):
                    self._callbacks.iteration(self.metrics)
                if time.perf_counter() - saved_at > self._checkpoint_seconds:
                    self.save()
                    saved_at = time.perf_counter()
                bar.move_to(min(self.env_steps, self.total_steps), self._summary())
            self.interrupted = self.share_done < 1.0
            self.save()
        return self.metrics

    def leaves_agent_whole(self, error: Exception) -> bool:
        """Whether an error from anywhere in the loop came from outside an update; see `Runner`."""
        if not isinstance(error, EnvError) or isinstance(error, WorkerLostError):
            return False
        for sampler in self._samplers:
            sampler.give_up(str(error))
        return True

    def iterate(self) -> Metrics:
        """A rollout and an update of every policy; what all measured.

        Raises:
            Stopped: where a stop was requested; the next call goes on from there.
        """
        start = time.perf_counter()
        for policy in self.policies.values():
            policy.agent.anneal(self.share_done)
        if not self._has_sampled:
            self._sample()
        sampled = time.perf_counter()
        for name in list(self._rollouts):
            policy = self.policies[name]
            learned: Metrics = {}
            if len(self._rollouts[name].valid_rows) > 1:  # else nobody of its kind was there to learn from
                with policy.placement.learning(policy.agent):
                    learned = policy.agent.update(policy.placement.to_learner(self._rollouts[name]))
            self._learned[name] = learned
            del self._rollouts[name]
        end = time.perf_counter()
        before = start if self._ended_at is None else self._ended_at
        self._ended_at = end
        learned_by, self._learned, self._has_sampled = self._learned, {}, False
        self.iteration += 1
        self.seconds += end - before
        copying = sum(policy.placement.counters.seconds_copying for policy in self.policies.values())
        metrics: Metrics = {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "agent_steps": sum(sampler.env_steps for sampler in self._samplers),
            "seconds": self.seconds,
            "steps_per_second": self._steps_of_rollout / (end - before),
            "seconds_sampling": sampled - start,
            "seconds_learning": end - sampled,
            "seconds_other": start - before,
            "seconds_copying_in_all": copying,
        }
        for name, policy in self.policies.items():
            statistics = policy.sampler.statistics
            of_policy = {
                "agent_steps": policy.sampler.env_steps,
                "episodes": statistics.episodes,
                "episode_return_mean": statistics.return_mean,
                "episode_length_mean": statistics.length_mean,
                **learned_by[name],
            }
            metrics |= {f"{name}/{what}": value for what, value in of_policy.items()}
        return metrics

    def _sample(self) -> None:
        with contextlib.ExitStack() as stack:
            for policy in self.policies.values():
                is_under_way = policy.sampler.is_under_way
                acting = policy.placement.resuming if is_under_way else policy.placement.sampling
                actor = stack.enter_context(acting(policy.agent))
                (policy.sampler.go_on if is_under_way else policy.sampler.start)(actor)
            self._rollouts = {name: policy.sampler.finish() for name, policy in self.policies.items()}
            self._has_sampled = True

    def save(self) -> None:
        """Write a checkpoint, where there is a run directory. Rollouts under way are paused, and saved as they are."""
        if self.run_directory is None:
            return
        tensors: dict[str, Tensor] = {}
        states: dict[str, Any] = {}
        for sampler in self._samplers:
            sampler.pause()
        for name, policy in self.policies.items():
            parts = {
                "agent": policy.agent.state(),
                "sampler": policy.sampler.state(),
                "placement": policy.placement.state(),
            }
            rollout = self._rollouts.get(name)
            if rollout is not None:
                parts["rollout"] = rollout.tensors(), {"version": rollout.version}
            for part, (of_part, _) in parts.items():
                tensors |= {f"{name}.{part}.{what}": tensor for what, tensor in of_part.items()}
            states[name] = {part: of_part for part, (_, of_part) in parts.items()}
            if name in self._learned:
                states[name]["learned"] = finite(self._learned[name])
        loop = {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "metrics": finite(self.metrics),
            "number": self.number,
            "has_sampled": self._has_sampled,
        }
        folder = self.run_directory.checkpoint(self.number)
        is_new = not folder.exists()
        self.saved = self.run_directory.save_checkpoint(
            self.number, tensors, {"policies": states, "runner": loop}, self._keep_checkpoints
        )
        if self.saved and is_new:
            with rescuing(self):
                self._callbacks.checkpoint(folder)

    @property
    def number(self) -> int:
        """Of a checkpoint written now: it grows with what was done, and is about the environment steps sampled."""
        rows, learned = self._samplers[0].rows_filled, len(self._learned)
        done = self.iteration, rows + self._samplers[0].num_steps * self._has_sampled, learned
        if done != self._numbered:
            self._numbered = done
            self._number = max(self.iteration * self._steps_of_rollout + done[1] * self._num_envs, self._number + 1)
        return self._number

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], *, env_seed: int) -> str | None:
        """Go on from a checkpoint, whose agents have been restored, and the placements prepared.

        Returns:
            Why the environments could not go on, and start anew from `env_seed`; None where everything is as it was.
        """
        loop = state["runner"]
        self.iteration, self.seconds = whole(loop, "iteration"), real(loop["seconds"], "seconds")
        self.metrics, self._number = dict(loop["metrics"]), whole(loop, "number")
        if type(loop["has_sampled"]) is not bool:
            raise ValueError("has_sampled is no truth")
        self._has_sampled = loop["has_sampled"]
        problem = None
        for name, policy in self.policies.items():
            of_policy = state["policies"][name]
            if "rollout" in of_policy:
                rollout = tensors_of(tensors, f"{name}.rollout.")
                self._rollouts[name] = Rollout(**rollout, version=whole(of_policy["rollout"], "version"))
                policy.sampler.check(self._rollouts[name])
            if "learned" in of_policy:
                self._learned[name] = dict(of_policy["learned"])
            policy.placement.load_state(tensors_of(tensors, f"{name}.placement."), of_policy["placement"])
            reason = policy.sampler.load_state(
                tensors_of(tensors, f"{name}.sampler."), of_policy["sampler"], env_seed=env_seed
            )
            problem = problem if reason is None else reason
        if self._has_sampled and {*self._rollouts, *self._learned} != {*self.policies}:
            raise ValueError("of a policy, neither a rollout nor what was learned from it is there")
        done = self._samplers[0].rows_filled + self._samplers[0].num_steps * self._has_sampled
        self._numbered = self.iteration, done, len(self._learned)
        return problem

    def _summary(self) -> str:
        """What the progress bar says."""
        means = {name: self.metrics[f"{name}/episode_return_mean"] for name in self.policies}
        returns = ", ".join(f"{name}: {shown_return(mean)}" for name, mean in means.items())
        return f"{returns}, {self.metrics['steps_per_second']:,.0f} steps/s"


def tensors_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
