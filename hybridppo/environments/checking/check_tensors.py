"""What is wrong with an environment of tensors, and how fast it steps: `check_env` for these."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.environments.checking.report import (
    STEPS_OF_AN_EPISODE,
    EnvReport,
    in_time,
    judge_sizes,
    steps_to_repeat,
)
from hybridppo.environments.tensors import TensorEnvironments
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.spaces.distributions import distribution_for
from hybridppo.spaces.on_tensors import TensorActions, words

MOST_STEPS_TO_REPEAT = 50
"""How many steps are made twice, to see whether a seed, or a saved state, gives the same ones."""


def check_tensor_env(env: Any, report: EnvReport, *, steps: int, seconds: float, seed: int) -> None:
    """Step an environment with random actions, and say what was found.

    Args:
        env: a `TensorEnv`.
        report: what is found is added to it.
        steps: to make, of all environments together, or fewer,
        seconds: where those take longer than this.
        seed: of its resets, and of the actions.
    """
    try:
        environments = TensorEnvironments(env, env.num_envs, owns=False)
        check = _TensorCheck(environments, report, seed)
        check.step_randomly(-(-steps // environments.num_envs), seconds)
        check.look_at_repeats()
    except EnvError as error:
        report.add("error", str(error))


class _TensorCheck:
    """One environment under examination."""

    def __init__(self, environments: TensorEnvironments, report: EnvReport, seed: int) -> None:
        self._environments, self._report, self._seed = environments, report, seed
        self._distribution = distribution_for(environments.action_space)
        self._actions = TensorActions(self._distribution, environments.device)

    def _action(self, step: int) -> Any:
        """At random, all choices alike, and numbers from normals of deviation 1."""
        environments, actions = self._environments, self._actions
        noise = actions.noise(
            words(
                (self._seed % 2**32, 0), step, num_steps=1, num_envs=environments.num_envs,
                num_words=actions.num_words, device=environments.device, first=0,
            )
        )[0]  # fmt: skip
        outputs = torch.zeros((environments.num_envs, self._distribution.output_size), device=environments.device)
        return actions.to_env(actions.sample(outputs, noise))

    def step_randomly(self, steps: int, seconds: float) -> None:
        """So many steps of every environment, or as many as there is time for, looked at one by one."""
        environments, report = self._environments, self._report
        numbers_of = environments.on_device.numbers
        report.add("note", f"its tensors are on {environments.device}", "it is sampled there")
        start = time.perf_counter()
        rows = environments.begin(self._seed)
        report.seconds_per_reset = time.perf_counter() - start
        largest = np.zeros(environments.encode.layout.num_numbers)
        rewards: list[float] = []
        step_seconds, lengths = [], torch.zeros(environments.num_envs, dtype=torch.int64, device=environments.device)
        num_cut = num_unknown = 0
        for step in in_time(steps, seconds, report, at_once=environments.num_envs):
            action = self._action(step)
            start = time.perf_counter()
            taken = environments.advance(action)
            environments.require_finite("reward", taken.rewards[None], f"in step {step + 1}")  # which also waits for it
            step_seconds.append(time.perf_counter() - start)
            rows = taken.observations
            environments.require_finite("observation", rows[None], f"in step {step + 1}")
            report.steps += environments.num_envs
            largest = np.maximum(largest, _listed(numbers_of(rows).flatten(1).abs().amax(0)))
            rewards += taken.rewards.tolist()
            lengths += 1
            ended = taken.terminated | taken.truncated
            report.episode_lengths += [
                length for length, has in zip(lengths.tolist(), ended.tolist(), strict=True) if has
            ]
            lengths.masked_fill_(ended, 0)
            cut = int((taken.truncated & ~taken.terminated).sum())
            num_cut += cut
            num_unknown += cut * (taken.finals is None)
        report.seconds_per_step = float(np.median(step_seconds))
        self._judge(largest, np.asarray(rewards), num_cut, num_unknown)

    def _judge(self, largest: Any, rewards: Any, num_cut: int, num_unknown: int) -> None:
        report, names = self._report, self._environments.encode.names
        if not report.episode_lengths and report.steps >= STEPS_OF_AN_EPISODE:
            report.add("warning", f"no episode ended in {report.steps:,} random steps", "limit them, by truncation")
        if num_unknown:
            report.add(
                "warning",
                f"{num_unknown} of {num_cut} truncated episodes came without infos['final_obs']",
                "give it: else the value of the observation before the last action stands for what followed",
            )
        judge_sizes(report, names, largest, rewards)

    def look_at_repeats(self) -> None:
        """Whether a seed gives the same steps again, and whether a saved state does."""
        environments, report = self._environments, self._report

        def begun() -> list[Tensor]:
            return [environments.begin(self._seed).clone()]

        if not _same(*(self._trajectory(begun) for _ in range(2))):
            report.add(
                "warning", "the same seed gave two different beginnings", "draw from what reset(seed=...) seeds alone"
            )
        try:
            saved = environments.tensors_of_state()
            first = self._trajectory(lambda: [])
            environments.load_tensors(saved)
            if not _same(first, self._trajectory(lambda: [])):
                report.add("warning", "its get_state() does not hold all of its state", "a resumed run is not exact")
        except EnvStateError as error:
            report.add("note", f"its state cannot be saved: {error}", "a resumed run starts new episodes")

    def _trajectory(self, begin: Callable[[], list[Tensor]]) -> list[Tensor]:
        seen = begin()
        for step in steps_to_repeat(MOST_STEPS_TO_REPEAT, self._report):
            taken = self._environments.advance(self._action(step))
            seen += [taken.observations.clone(), taken.rewards.clone()]
        return seen


def _listed(tensor: Tensor) -> Any:
    return np.asarray(tensor.tolist(), dtype=np.float64)


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(bool((one == other).all()) for one, other in zip(some, others, strict=True))
