"""Evaluation between two iterations, in this process."""

from collections.abc import Callable
from types import SimpleNamespace

from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.interfaces import SamplingActor
from hybridppo.rollouts.memory import MemoryLayout
from hybridppo.runners.evaluation import Evaluation, evaluate, made_for
from hybridppo.spaces.distributions import Distribution


class InBetween:
    """Runs episodes while the training waits.

    Args:
        source: makes the environments of evaluations.
        num_envs: number of environments.
        options: how environments are made.
        spaces: an object with the required `observation_space` and `action_space`.
        distribution: the action distribution.
        episodes: episodes of an evaluation.
        seed: seed of every evaluation.
        should_stop: called before each step.
        memory: layout of the state of a recurrent actor.
    """

    is_beside = False

    def __init__(
        self,
        source: EnvSource,
        num_envs: int,
        options: EnvironmentOptions,
        spaces: SimpleNamespace,
        distribution: Distribution,
        *,
        episodes: int,
        seed: int,
        should_stop: Callable[[], bool],
        memory: MemoryLayout | None = None,
    ) -> None:
        self._environments = made_for(spaces, source, num_envs, options)
        self._distribution, self._episodes, self._seed = distribution, episodes, seed
        self._should_stop, self._memory = should_stop, memory
        self._result: Evaluation | None = None

    def begin(self, actor: SamplingActor) -> None:
        """As in `Evaluator`."""
        self._result = evaluate(
            actor,
            self._distribution,
            self._environments,
            episodes=self._episodes,
            seed=self._seed,
            should_stop=self._should_stop,
            memory=self._memory,
        )

    def result(self) -> Evaluation:
        """As in `Evaluator`."""
        assert self._result is not None, "no evaluation was begun"
        return self._result

    def close(self) -> None:
        """As in `Evaluator`."""
        self._environments.close()
