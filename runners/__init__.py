"""What drives: the loops and the samplers."""

from typing import TYPE_CHECKING

from hybridppo._lazy import lazy_attributes

if TYPE_CHECKING:
    from hybridppo.runners.episode_sampler import EpisodeSampler
    from hybridppo.runners.evaluation import Evaluation, evaluate
    from hybridppo.runners.overlapping import OverlappingRunner
    from hybridppo.runners.runner import Runner
    from hybridppo.runners.sampler import Sampler
    from hybridppo.runners.workers import WorkerSampler

__all__ = ["EpisodeSampler", "Evaluation", "OverlappingRunner", "Runner", "Sampler", "WorkerSampler", "evaluate"]

__getattr__ = lazy_attributes(
    __name__,
    {
        "EpisodeSampler": "hybridppo.runners.episode_sampler",
        **dict.fromkeys(("Evaluation", "evaluate"), "hybridppo.runners.evaluation"),
        "OverlappingRunner": "hybridppo.runners.overlapping",
        "Runner": "hybridppo.runners.runner",
        "Sampler": "hybridppo.runners.sampler",
        "WorkerSampler": "hybridppo.runners.workers",
    },
)
