"""What is wrong with an environment of tensors, and how fast it steps: `check_env` for these."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybridppo.environments.checking.report import EnvReport, Seen, in_time, steps_to_repeat, timed
from hybridppo.environments.tensors import TensorEnvironments, on_host
from hybridppo.errors import EnvError, EnvStateError
from hybridppo.spaces.distributions import distribution_for
from hybridppo.spaces.on_tensors import TensorActions, words

MOST_STEPS_TO_REPEAT = 50
"""How many steps are repeated, to see whether a seed and a saved state give the same steps."""


def check_tensor_env(env: Any, report: EnvReport, *, steps: int, seconds: float, seed: int) -> None:
    """Step an environment with random actions, and add to the report.

    Args:
        env: a `TensorEnv`.
        report: findings are added to it.
        steps: how many steps to make at most, of all environments together.
        seconds: stop stepping after this time.
        seed: of the resets and of the actions.
    """
    try:
        environments = TensorEnvironments(env, env.num_envs, owns=False)
        check = _TensorCheck(environments, report, seed)
        check.step_randomly(-(-steps // environments.num_envs), seconds)
        check.look_at_repeats()
    except EnvError as error:
        report.add("error", str(error))


class _TensorCheck:
    """A check of an environment of tensors."""

    def __init__(self, environments: TensorEnvironments, report: EnvReport, seed: int) -> None:
        self._environments, self._report, self._seed = environments, report, seed
        self._distribution = distribution_for(environments.action_space)
        self._actions = TensorActions(self._distribution, environments.device)

    def _action(self, step: int) -> Any:
        """Random actions: all choices with equal probability, numbers from normals of deviation 1."""
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
        """Make this many steps of every environment, or as many as there is time for, and report."""
        environments, report, seen = self._environments, self._report, Seen(self._environments.encode)
        report.add("note", f"its tensors are on {environments.device}", "it is sampled there")
        with timed(seen.reset_seconds):
            environments.begin(self._seed)
        lengths = np.zeros(environments.num_envs, np.int64)
        num_truncated = num_unknown = 0
        for step in in_time(steps, seconds, report, at_once=environments.num_envs):
            action = self._action(step)
            with timed(seen.step_seconds):
                taken = environments.advance(action)
                # This also waits for the step.
                environments.require_finite("reward", taken.rewards[None], f"in step {step + 1}")
            environments.require_finite("observation", taken.observations[None], f"in step {step + 1}")
            report.steps += environments.num_envs
            seen.add(on_host(taken.observations), taken.rewards.tolist())
            terminated, truncated = on_host(taken.terminated), on_host(taken.truncated)
            lengths += 1
            report.episode_lengths += lengths[terminated | truncated].tolist()
            lengths[terminated | truncated] = 0
            found = int((truncated & ~terminated).sum())
            num_truncated += found
            num_unknown += found * (taken.finals is None)
        if num_unknown:
            report.add(
                "warning",
                f"{num_unknown} of {num_truncated} truncated episodes came without infos['final_obs']",
                "give it: else the value of the observation before the last action stands for what followed",
            )
        seen.judge(report, "limit them, by truncation")

    def look_at_repeats(self) -> None:
        """Check that a seed and a saved state give the same steps again."""
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


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(bool((one == other).all()) for one, other in zip(some, others, strict=True))
