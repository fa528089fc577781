"""The options of `train` and `resume` as editors and type checkers see them.

`tests/hybridppo/test_keywords.py` compares them with the fields of the dataclasses in `GROUPS`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import Required, TypedDict

from hybridppo.distributed_policies import Distributed
from hybridppo.environments.options import AutoresetName, OnEnvError, Vectorization
from hybridppo.options import SelfPlay
from hybridppo.reporting.loggers import Logger


class EnvironmentKeywords(TypedDict, total=False):
    """The fields of `EnvironmentOptions`."""

    vectorization: Vectorization
    env_threads: int
    autoreset_mode: AutoresetName | None
    on_env_error: OnEnvError
    worker_timeout: float
    env_kwargs: dict[str, Any] | None
    imports: str
    action_masks: bool
    frame_stack: int
    clip_rewards: bool | None
    episodic_life: bool
    info_metrics: tuple[str, ...]


class TrainKeywords(EnvironmentKeywords, total=False):
    """The options of `train`: also the fields of `RunOptions`."""

    total_steps: Required[int]
    total_episodes: int | None
    seed: int | None
    num_workers: int | None
    evaluation_episodes: int
    evaluate_every: int
    evaluate_episodes: int
    evaluate_beside: bool | None
    target_return: float | None
    track: str | Logger | Sequence[str | Logger]
    start_from: str | Path | None
    self_play: SelfPlay | dict[str, Any] | None
    checkpoint_seconds: float
    keep_checkpoints: int
    distributed: str | Distributed
    address: str | None


class ResumeKeywords(TypedDict, total=False):
    """The options that `resume` may change; None keeps the run's own."""

    env_threads: int | None
    on_env_error: OnEnvError | None
    worker_timeout: float | None
    total_steps: int | None
    total_episodes: int | None
    num_workers: int | None
    evaluation_episodes: int | None
    evaluate_every: int | None
    evaluate_episodes: int | None
    evaluate_beside: bool | None
    target_return: float | None
    track: str | Logger | Sequence[str | Logger] | None
    checkpoint_seconds: float | None
    keep_checkpoints: int | None
    distributed: str | Distributed | None
    address: str | None
