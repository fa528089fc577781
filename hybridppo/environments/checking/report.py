"""What is said of an environment that was checked."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hybridppo.system.figures import shown_seconds

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something about an environment."""

    severity: Severity
    what: str
    """What was seen."""
    mend: str = ""
    """What to do about it."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.what}" + (f" -> {self.mend}" if self.mend else "")


@dataclass
class EnvReport:
    """What was found, and what was measured."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    steps: int = 0
    """How many were made."""
    seconds_per_step: float = float("nan")
    """Median, resets left out."""
    seconds_per_reset: float = float("nan")
    episode_lengths: list[int] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        """Whether it can be trained in."""
        return not any(finding.severity == "error" for finding in self.findings)

    def add(self, severity: Severity, what: str, mend: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(severity, what, mend))

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
