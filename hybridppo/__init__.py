"""A PPO library for PyTorch. It finds the fastest split of sampling and learning between your CPU and GPU.

import hybridppo
result = hybridppo.train("CartPole-v1", total_steps=100_000)
"""

from typing import TYPE_CHECKING

from hybridppo import tensors as tensors
from hybridppo._lazy import lazy_attributes
from hybridppo._version import __version__ as __version__

if TYPE_CHECKING:
    from hybridppo.agents.ddpg import DDPG as DDPG
    from hybridppo.agents.ddpg import TD3 as TD3
    from hybridppo.agents.ddpg import DDPGConfig as DDPGConfig
    from hybridppo.agents.ddpg import TD3Config as TD3Config
    from hybridppo.agents.ppo.config import PPOConfig as PPOConfig
    from hybridppo.agents.ppo.ppo import PPO as PPO
    from hybridppo.auto.auto import Auto as Auto
    from hybridppo.distributions.own import ActionDistribution as ActionDistribution
    from hybridppo.environments.adapters import TupleOfAgents as TupleOfAgents
    from hybridppo.environments.packages import make_env as make_env
    from hybridppo.environments.two_players import TwoPlayers as TwoPlayers
    from hybridppo.environments.wrappers import FrameStack as FrameStack
    from hybridppo.errors import CallbackError as CallbackError
    from hybridppo.errors import CheckpointError as CheckpointError
    from hybridppo.errors import ConfigurationError as ConfigurationError
    from hybridppo.errors import DeviceError as DeviceError
    from hybridppo.errors import DistributedError as DistributedError
    from hybridppo.errors import EnvError as EnvError
    from hybridppo.errors import HybridPPOError as HybridPPOError
    from hybridppo.errors import OutOfMemoryError as OutOfMemoryError
    from hybridppo.errors import RunDirectoryError as RunDirectoryError
    from hybridppo.errors import TrainingError as TrainingError
    from hybridppo.errors import TrainingInterrupted as TrainingInterrupted
    from hybridppo.evaluation import evaluate as evaluate
    from hybridppo.evaluation import evaluate_agent as evaluate_agent
    from hybridppo.evaluation import evaluate_policies as evaluate_policies
    from hybridppo.loading import load as load
    from hybridppo.loading import load_policies as load_policies
    from hybridppo.placements.placement import Migrating as Migrating
    from hybridppo.placements.placement import Mirrored as Mirrored
    from hybridppo.placements.placement import Placement as Placement
    from hybridppo.placements.placement import SingleDevice as SingleDevice
    from hybridppo.reporting.callbacks import Callback as Callback
    from hybridppo.reporting.loggers import Logger as Logger
    from hybridppo.running import TrainResult as TrainResult
    from hybridppo.self_play import round_robin as round_robin
    from hybridppo.settings import Central as Central
    from hybridppo.settings import Environments as Environments
    from hybridppo.settings import GPUOnly as GPUOnly
    from hybridppo.settings import Local as Local
    from hybridppo.settings import MultiLearner as MultiLearner
    from hybridppo.settings import SelfPlay as SelfPlay
    from hybridppo.settings import SingleLearnerCoarse as SingleLearnerCoarse
    from hybridppo.settings import SingleLearnerFine as SingleLearnerFine
    from hybridppo.tools.benchmark import run_benchmark as run_benchmark
    from hybridppo.tools.check import check_env as check_env
    from hybridppo.tools.compare import compare_placements as compare_placements
    from hybridppo.tools.doctor import diagnose as diagnose
    from hybridppo.tools.export import export as export
    from hybridppo.tools.gallery import pretrained as pretrained
    from hybridppo.tools.hub import push_to_hub as push_to_hub
    from hybridppo.tools.hyperparameters import tuned as tuned
    from hybridppo.tools.play import play as play
    from hybridppo.tools.plot import plot_runs as plot_runs
    from hybridppo.tools.report import write_report as write_report
    from hybridppo.tools.tune import tune as tune
    from hybridppo.training import resume as resume
    from hybridppo.training import train as train

_NAMES = {
    "hybridppo.agents.ddpg": "DDPG TD3 DDPGConfig TD3Config",
    "hybridppo.agents.ppo.config": "PPOConfig",
    "hybridppo.agents.ppo.ppo": "PPO",
    "hybridppo.auto.auto": "Auto",
    "hybridppo.distributions.own": "ActionDistribution",
    "hybridppo.environments.packages": "make_env",
    "hybridppo.environments.adapters": "TupleOfAgents",
    "hybridppo.environments.two_players": "TwoPlayers",
    "hybridppo.environments.wrappers": "FrameStack",
    "hybridppo.errors": "CallbackError CheckpointError ConfigurationError DeviceError DistributedError EnvError "
    "HybridPPOError OutOfMemoryError RunDirectoryError TrainingError TrainingInterrupted",
    "hybridppo.evaluation": "evaluate evaluate_agent evaluate_policies",
    "hybridppo.loading": "load load_policies",
    "hybridppo.placements.placement": "Migrating Mirrored Placement SingleDevice",
    "hybridppo.reporting.callbacks": "Callback",
    "hybridppo.reporting.loggers": "Logger",
    "hybridppo.running": "TrainResult",
    "hybridppo.self_play": "round_robin",
    "hybridppo.settings": "Central Environments GPUOnly Local MultiLearner SelfPlay "
    "SingleLearnerCoarse SingleLearnerFine",
    "hybridppo.tools.benchmark": "run_benchmark",
    "hybridppo.tools.check": "check_env",
    "hybridppo.tools.compare": "compare_placements",
    "hybridppo.tools.doctor": "diagnose",
    "hybridppo.tools.export": "export",
    "hybridppo.tools.gallery": "pretrained",
    "hybridppo.tools.hub": "push_to_hub",
    "hybridppo.tools.hyperparameters": "tuned",
    "hybridppo.tools.play": "play",
    "hybridppo.tools.plot": "plot_runs",
    "hybridppo.tools.report": "write_report",
    "hybridppo.tools.tune": "tune",
    "hybridppo.training": "resume train",
}
"""The names of this package by their modules, which are imported on use. Type checkers read the block above."""
_names, __getattr__ = lazy_attributes(__name__, _NAMES)
__all__ = ["__version__", "tensors", *_names]


def __dir__() -> list[str]:
    return __all__
