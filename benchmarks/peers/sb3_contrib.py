"""sb3-contrib: its PPO with action masks, here without any."""

from pathlib import Path
from typing import Any

from cases import Case

from peers.sb3 import learn_by_stable_baselines3, their_agent, their_environments


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of its MaskablePPO."""
    environments = their_environments(case, "dummy")
    if not hasattr(environments.action_space, "n"):
        return {"left_out": "MaskablePPO has discrete actions only"}
    agent = their_agent(case, environments, "sb3_contrib", "MaskablePPO")
    return learn_by_stable_baselines3(case, agent, use_masking=False)
