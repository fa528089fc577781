"""What drives: the loops and the samplers."""

from hybridppo.runners.evaluation import Evaluation, evaluate
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import Sampler

__all__ = ["Evaluation", "Runner", "Sampler", "evaluate"]
