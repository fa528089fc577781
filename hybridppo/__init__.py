"""PPO that samples on the CPU and learns on the GPU; the placement decides which half runs where.

import hybridppo
result = hybridppo.train("CartPole-v1", total_steps=100_000)
"""

from typing import TYPE_CHECKING

from hybridppo import tensors
from hybridppo._lazy import lazy_attributes
from hybridppo._version import __version__
from hybridppo.errors import (
    CallbackError,
    CheckpointError,
    ConfigurationError,
    DeviceError,
    DistributionError,
    EnvError,
    HybridPPOError,
    OutOfMemoryError,
    RunDirectoryError,
    TrainingError,
    TrainingInterrupted,
)

if TYPE_CHECKING:
    from hybridppo.agents.ddpg.config import DDPGConfig, TD3Config
    from hybridppo.agents.ddpg.ddpg import DDPG, TD3
    from hybridppo.agents.ppo.config import PPOConfig
    from hybridppo.agents.ppo.ppo import PPO
    from hybridppo.auto.auto import Auto
    from hybridppo.environments.checking.check import check_env
    from hybridppo.environments.frame_stack import FrameStack
    from hybridppo.environments.named import make_env
    from hybridppo.placements.base import Placement
    from hybridppo.placements.migrating import Migrating
    from hybridppo.placements.mirrored import Mirrored
    from hybridppo.placements.single_device import SingleDevice
    from hybridppo.reporting.callbacks import Callback
    from hybridppo.reporting.trackers.base import Tracker
    from hybridppo.runs.distribution_policies import (
        Central,
        Environments,
        GPUOnly,
        Local,
        MultiLearner,
        SingleLearnerCoarse,
        SingleLearnerFine,
    )
    from hybridppo.runs.loading import load, load_policies
    from hybridppo.tools.diagnosis.comparing import compare_distributions
    from hybridppo.tools.diagnosis.doctor import diagnose
    from hybridppo.tools.experiments.search import tune
    from hybridppo.tools.experiments.suites import run_benchmark
    from hybridppo.tools.experiments.tuning import tuned
    from hybridppo.tools.export.exporting import export
    from hybridppo.tools.views.playing import play, record_video
    from hybridppo.tools.views.plotting import plot_runs
    from hybridppo.tools.views.report import write_report
    from hybridppo.training.evaluate import evaluate, evaluate_agent, evaluate_policies
    from hybridppo.training.resume import resume
    from hybridppo.training.train import TrainResult, train

__all__ = [
    "DDPG",
    "PPO",
    "TD3",
    "Auto",
    "Callback",
    "CallbackError",
    "Central",
    "CheckpointError",
    "ConfigurationError",
    "DDPGConfig",
    "DeviceError",
    "DistributionError",
    "EnvError",
    "Environments",
    "FrameStack",
    "GPUOnly",
    "HybridPPOError",
    "Local",
    "Migrating",
    "Mirrored",
    "MultiLearner",
    "OutOfMemoryError",
    "PPOConfig",
    "Placement",
    "RunDirectoryError",
    "SingleDevice",
    "SingleLearnerCoarse",
    "SingleLearnerFine",
    "TD3Config",
    "Tracker",
    "TrainResult",
    "TrainingError",
    "TrainingInterrupted",
    "__version__",
    "check_env",
    "compare_distributions",
    "diagnose",
    "evaluate",
    "evaluate_agent",
    "evaluate_policies",
    "export",
    "load",
    "load_policies",
    "make_env",
    "play",
    "plot_runs",
    "record_video",
    "resume",
    "run_benchmark",
    "tensors",
    "train",
    "tune",
    "tuned",
    "write_report",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "PPO": "hybridppo.agents.ppo.ppo",
        "PPOConfig": "hybridppo.agents.ppo.config",
        **dict.fromkeys(("DDPG", "TD3"), "hybridppo.agents.ddpg.ddpg"),
        **dict.fromkeys(("DDPGConfig", "TD3Config"), "hybridppo.agents.ddpg.config"),
        "Auto": "hybridppo.auto.auto",
        "Migrating": "hybridppo.placements.migrating",
        "Mirrored": "hybridppo.placements.mirrored",
        "Placement": "hybridppo.placements.base",
        "SingleDevice": "hybridppo.placements.single_device",
        **dict.fromkeys(
            (
                "Central",
                "Environments",
                "GPUOnly",
                "Local",
                "MultiLearner",
                "SingleLearnerCoarse",
                "SingleLearnerFine",
            ),
            "hybridppo.runs.distribution_policies",
        ),
        "compare_distributions": "hybridppo.tools.diagnosis.comparing",
        **dict.fromkeys(("TrainResult", "train"), "hybridppo.training.train"),
        **dict.fromkeys(("evaluate", "evaluate_agent", "evaluate_policies"), "hybridppo.training.evaluate"),
        "Callback": "hybridppo.reporting.callbacks",
        "Tracker": "hybridppo.reporting.trackers.base",
        "check_env": "hybridppo.environments.checking.check",
        "diagnose": "hybridppo.tools.diagnosis.doctor",
        **dict.fromkeys(("load", "load_policies"), "hybridppo.runs.loading"),
        "FrameStack": "hybridppo.environments.frame_stack",
        "make_env": "hybridppo.environments.named",
        "plot_runs": "hybridppo.tools.views.plotting",
        "write_report": "hybridppo.tools.views.report",
        "play": "hybridppo.tools.views.playing",
        "record_video": "hybridppo.tools.views.playing",
        "export": "hybridppo.tools.export.exporting",
        "tuned": "hybridppo.tools.experiments.tuning",
        "tune": "hybridppo.tools.experiments.search",
        "run_benchmark": "hybridppo.tools.experiments.suites",
        "resume": "hybridppo.training.resume",
    },
)


def __dir__() -> list[str]:
    return __all__
