"""The report on an environment, and the judgement of random steps."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hybridppo.spaces.arrays import Array
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.system.messages import shown_seconds

Severity = Literal["error", "warning", "note"]


STEPS_OF_AN_EPISODE = 500
"""Within fewer steps than this, it is normal that no episode ends."""
LARGE = 100.0
"""An agent learns slowly from numbers larger than this."""
SMALL = 1e-4
"""Numbers that never exceed this stay small even if they are normalised, because the variance is raised by 1e-8."""
FEWEST = 100
"""A number with fewer values of float32 than this between its extremes has lost much of what it says."""
LARGEST_WHOLE = 2.0**24
"""From here on, float32 does not have every whole number."""


@dataclass(frozen=True)
class Finding:
    """One thing about an environment."""

    severity: Severity
    what: str
    """The finding, in words."""
    fix: str = ""
    """The remedy."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.what}" + (f" -> {self.fix}" if self.fix else "")


@dataclass
class EnvReport:
    """The findings and measurements."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    steps: int = 0
    """Steps made."""
    seconds_per_step: float = float("nan")
    """Median, without resets."""
    seconds_per_reset: float = float("nan")
    episode_lengths: list[int] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        """Whether it can be trained in."""
        return not any(finding.severity == "error" for finding in self.findings)

    def add(self, severity: Severity, what: str, fix: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(severity, what, fix))

    def __str__(self) -> str:
        order = {"error": 0, "warning": 1, "note": 2}
        lines = [str(finding) for finding in sorted(self.findings, key=lambda finding: order[finding.severity])]
        if self.steps and np.isfinite(self.seconds_per_step):  # there is none where stepping was broken off
            lengths = f", episodes of {np.mean(self.episode_lengths):.0f} steps" if self.episode_lengths else ""
            has_reset = np.isfinite(self.seconds_per_reset)
            resets = f", {shown_seconds(self.seconds_per_reset)} a reset" if has_reset else ""
            lines.append(f"{self.steps:,} steps: {shown_seconds(self.seconds_per_step)} a step{resets}{lengths}")
        lines.append(f"{self.name}: {'can be trained in' if self.is_usable else 'cannot be trained in'}")
        return "\n".join(lines)


class Seen:
    """Statistics of random steps: observations, rewards and times."""

    def __init__(self, encode: ObservationEncoder) -> None:
        self._encode = encode
        self.extremes = np.outer((np.inf, -np.inf), np.ones(encode.layout.num_numbers))
        """The smallest and the largest value of each number of an observation."""
        self.rewards: list[float] = []
        self.step_seconds: list[float] = []
        self.reset_seconds: list[float] = []

    def add(self, rows: Array, rewards: list[float]) -> None:
        """Add rows `[N, *shape]` and rewards."""
        self.rewards += rewards
        numbers = self._encode.layout.numbers(rows)
        if numbers.size:  # images have none
            least, most = self.extremes
            np.minimum(least, numbers.min(0), out=least)
            np.maximum(most, numbers.max(0), out=most)

    def judge(self, report: EnvReport) -> None:
        """Report the times, and frequent reasons why learning fails."""
        report.seconds_per_step = float(np.median(self.step_seconds or self.reset_seconds))
        report.seconds_per_reset = float(np.median(self.reset_seconds))
        if outside := self._encode.warning_of_extremes(self.extremes):
            report.add("warning", outside, "give the space the true bounds (-inf and inf if there are none)")
        largest, rewards = np.abs(self.extremes).max(0), np.asarray(self.rewards)
        if not report.episode_lengths and report.steps >= STEPS_OF_AN_EPISODE:
            fix = "limit them, as by gymnasium.wrappers.TimeLimit(env, max_episode_steps=1000)"
            report.add("warning", f"no episode ended in {report.steps:,} random steps", fix)
        if largest.size and largest.max() > LARGE:
            name = self._encode.names[int(largest.argmax())]
            fix = "PPO normalises observations (normalize_observations); for other agents, scale them to about 1"
            report.add("note", f"observation{name} goes up to {largest.max():g}", fix)
        spread, steps = np.ptp(self.extremes, 0), np.spacing(largest.astype(np.float32))
        coarse = np.flatnonzero((spread < FEWEST * steps) & (largest > np.where(spread > 0.0, LARGE, LARGEST_WHOLE)))
        if coarse.size:
            name, number, step = self._encode.names[coarse[0]], largest[coarse[0]], steps[coarse[0]]
            what = f"observation{name} lies near {number:g}, where numbers of float32 are {step:g} apart"
            report.add("warning", what, "subtract a constant: networks take float32, and hardly see how it varies")
        small = np.flatnonzero((spread > 0.0) & (largest < SMALL))
        if small.size:
            what = f"observation{self._encode.names[small[0]]} never exceeds {largest[small[0]]:g}"
            report.add("warning", what, "scale it to about 1, in other units: normalisation alone leaves it small")
        if np.abs(rewards).max() > LARGE:
            fix = "PPO normalises rewards (normalize_rewards); for other agents, scale them to about 1"
            report.add("note", f"rewards go up to {np.abs(rewards).max():g}", fix)
        if not rewards.any():
            fix = "random actions found none: expect a long training"
            report.add("warning", f"all {len(rewards):,} rewards were 0", fix)
        elif np.ptp(rewards) == 0.0 and len(set(report.episode_lengths)) <= 1:
            of_one_length = ", and all episodes had the same length" if report.episode_lengths else ""
            what = f"all rewards were {rewards[0]:g}{of_one_length}"
            fix = "random actions made no difference: expect a long training, or check the reward"
            report.add("warning", what, fix)


def in_time(steps: int, at_once: int, seconds: float, report: EnvReport) -> Iterator[int]:
    """Count steps, each of `at_once` environments; after `seconds`, stop early and add a note."""
    start = time.perf_counter()
    for step in range(steps):
        yield step
        spent = time.perf_counter() - start
        if spent > seconds and step + 1 < steps:
            fix = "for more, check_env(..., seconds=60), or --seconds 60"
            report.add("note", f"{report.steps:,} of {steps * at_once:,} steps took {spent:.0f} s", fix)
            return
