"""SBX: stable-baselines3 in JAX."""

from pathlib import Path
from typing import Any

from cases import Case

from peers.sb3 import learn_by_stable_baselines3, their_agent, their_environments


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of its PPO."""
    if case.has_images:
        return {"left_out": "its PPO has no convolutions"}
    return learn_by_stable_baselines3(case, their_agent(case, their_environments(case, "dummy"), "sbx"))
