"""`Auto`: the placement that is measured.

    result = hybridppo.train("CartPole-v1", total_steps=1_000_000, placement=Auto(max_lag=1))

It calibrates (`calibration.py`), predicts (`prediction.py`), decides (`decision.py`), says what it took in one line,
and is done: training runs under an ordinary placement.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hybridppo.agents import PPOConfig
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.agents.registry import AnyAgent, AnyConfig
from hybridppo.auto.calibration import available_accelerator, calibrate
from hybridppo.auto.decision import Decision, best_form, decide, describe
from hybridppo.auto.figures import Calibration, Figures, Work
from hybridppo.auto.of_candidate import placement_of
from hybridppo.auto.prediction import Candidate, Prediction, candidates, predict
from hybridppo.auto.trials import choose_by_trials
from hybridppo.environments.base import Environments
from hybridppo.environments.many_agents import ManyAgents
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.environments.sync import SyncEnvironments
from hybridppo.errors import ConfigurationError
from hybridppo.networks.forms import numpy_form
from hybridppo.placements.base import Placement
from hybridppo.placements.single_device import SingleDevice
from hybridppo.system.threads import cpu_cores

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What was chosen, and the table behind it."""

    placement: Placement
    num_workers: int | None
    """None where overlap has the worker that it has by itself, which need not be waited for (`make_sampler`)."""
    torch_threads: int
    table: dict[str, Any]
    """What `placements.json` of a run directory holds."""


class Within(Protocol):
    """A training of which a part runs elsewhere, by a distribution policy that has its own candidates."""

    label: str
    """The policy, as text."""

    def work(self, work: Work) -> Work:
        """What of the work is measured here."""
        ...

    def predictions(self, work: Work, figures: Figures) -> list[Prediction]:
        """Of all candidates, the simplest first."""
        ...


@dataclass(frozen=True)
class Auto:
    """Measures the user's own work for some moments, and takes the placement that is predicted to be the fastest.

    Only what leaves the result what the seed says it is: no overlap, no division of environments that share a
    generator, no other number of torch threads, but where they are allowed.

    Args:
        max_lag: 1 allows sampling and learning to overlap, whose rollouts come from parameters one update old.
    """

    max_lag: int = 0

    def __post_init__(self) -> None:
        if self.max_lag not in (0, 1):
            raise ConfigurationError(f"max_lag must be 0 or 1, got {self.max_lag}")

    def choose(
        self,
        source: EnvSource,
        environments: Environments,
        config: AnyConfig,
        *,
        total_steps: int,
        num_workers: int | None = None,
        options: EnvironmentOptions | None = None,
        agent: AnyAgent | None = None,
        seconds_to_make: float = 0.0,
        within: Within | None = None,
    ) -> Choice:
        """Calibrate, and choose.

        Args:
            source: what the environments are made from; calibration makes its own.
            environments: as made for training, all or some of them; not touched.
            config: of the agent. For PPO, figures are measured and an iteration is predicted of them; off-policy agents
                are trained for some moments under each candidate.
            total_steps: of the run.
            num_workers: as asked for by the user; None leaves it open.
            options: how the environments are made and stepped.
            agent: what is to be trained, for calibration to make others like it; None for PPO as it comes.
            seconds_to_make: what it took to make `environments`.
            within: the policy that the training is spread by; None for none.
        """
        if environments.device is not None:
            line = f"{environments.device}, where the environments' tensors are"
            logger.info("placement auto: %s", line)
            placement = SingleDevice(environments.device)
            table = {"seconds": 0.0, "left_out": [], "chosen": str(environments.device), "line": line}
            return Choice(placement, num_workers or 0, config.torch_threads or 1, table)
        seconds_to_make *= config.num_envs * environments.num_agents / environments.num_envs  # of all
        if not isinstance(config, PPOConfig):
            candidate, table = choose_by_trials(
                source,
                config,
                accelerator=available_accelerator(),
                cores=cpu_cores(),
                max_lag=self.max_lag,
                total_steps=total_steps,
                num_workers=num_workers,
                options=options,
                agent=agent,
                seconds_to_make=seconds_to_make,
            )
            logger.info("placement auto: %s", table["line"])
            return _choice(candidate, table, num_workers)
        assert agent is None or isinstance(agent, PPO)  # as its configuration is
        work = work_of(environments, config, total_steps=total_steps, num_workers=num_workers)
        if agent is not None:
            work = replace(work, has_workers=numpy_form(agent.actor) is not None)
        if within is not None:
            work = within.work(work)
        try:
            calibration = calibrate(
                source,
                work,
                config,
                max_lag=self.max_lag,
                any_threads=config.torch_threads is None,
                accelerator=available_accelerator(),
                options=options,
                make_agent=agent.like if agent is not None else None,
                seconds_to_make=seconds_to_make,
            )
        except Exception as error:
            # Training without a choice is better than none, and whatever is wrong with it will say so itself.
            logger.warning("placement auto: not measured, because of %s: %s", type(error).__name__, error)
            calibration = Calibration(left_out=[f"all: {type(error).__name__}: {error}"])
        return self._decide(work, config, calibration, within)

    def _decide(self, work: Work, config: PPOConfig, calibration: Calibration, within: Within | None) -> Choice:
        table: dict[str, Any] = {"seconds": calibration.seconds, "left_out": calibration.left_out}
        if calibration.figures is None:
            workers = work.num_workers or 0 if within is None else 0
            candidate = Candidate("cpu", num_workers=workers, torch_threads=work.torch_threads)
            line = f"{candidate.label}; not measured ({calibration.left_out[0]})"
            logger.info("placement auto: %s", line)
            return _choice(candidate, {**table, "chosen": candidate.label, "line": line}, work.num_workers)
        predictions, decision = self.predictions(work, config, calibration, within)
        line = describe(decision, work, calibration.figures)
        line = line if within is None else f"within {within.label}, {line}"
        logger.info("placement auto: %s (measured in %.2g s)", line, calibration.seconds)
        table |= {
            "chosen": decision.chosen.candidate.label,
            "line": line,
            "seconds_once": calibration.seconds_once,
            "stages": calibration.stages,
            "figures": calibration.figures.to_json(),
            "predictions": [prediction.to_json() for prediction in predictions],
        }
        return _choice(decision.chosen.candidate, table, work.num_workers)

    def predictions(
        self, work: Work, config: PPOConfig, calibration: Calibration, within: Within | None = None
    ) -> tuple[Sequence[Prediction], Decision]:
        """All predictions from a calibration's figures, and the decision."""
        figures = calibration.figures
        assert figures is not None
        if within is not None:
            found = within.predictions(work, figures)
        else:
            found = [predict(work, figures, each) for each in candidates(work, figures)]
        decision = decide(found, work, max_lag=self.max_lag, torch_threads=config.torch_threads)
        if within is None:
            decision = replace(decision, with_form=best_form(decision.chosen, work, figures))
        return found, decision


def work_of(environments: Environments, config: PPOConfig, *, total_steps: int, num_workers: int | None) -> Work:
    """What is to be done, from what training is given."""
    return Work(
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        iterations=-(-total_steps // (config.batch_size * environments.num_agents)),
        cores=cpu_cores(),
        num_workers=num_workers,
        # Single copies are seeded one by one; an environment's own vectorised form has one generator for all.
        splits=isinstance(environments, (SyncEnvironments, ManyAgents)),
        draws_on_device=environments.is_compiled,
        has_workers=config.activation in ("tanh", "relu") and len(config.hidden_sizes) > 0,
        torch_threads=config.torch_threads or 1,
    )


def _choice(candidate: Candidate, table: dict[str, Any], asked_for: int | None) -> Choice:
    is_its_own = asked_for is None and candidate.max_lag > 0 and candidate.num_workers == 1
    num_workers = None if is_its_own else candidate.num_workers
    return Choice(placement_of(candidate), num_workers, candidate.torch_threads, table)
