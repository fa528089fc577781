"""What can be set about environments."""

from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv

EnvSource = str | Callable[[], "gym.Env[Any, Any] | VectorEnv[Any, Any, Any]"]

Vectorization = Literal["auto", "sync", "async"]

AutoresetName = Literal["next_step", "same_step", "disabled"]

WORKER_TIMEOUT = 300.0
"""Seconds without a step after which a worker process counts as hung, unless told otherwise."""
MODES: dict[str, AutoresetMode] = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


OnEnvError = Literal["raise", "restart"]
