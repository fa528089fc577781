"""Tunes hyperparameters in an environment with optuna (the extra `tune`).

hybridppo.tune("MyEnv-v0", total_steps=100_000, trials=50)
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from hybridppo.agents.registry import AnyConfig, agent_class, default_config, make_agent
from hybridppo.auto.auto import Auto, PlacementChoice, resolve_placement
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource, is_held_by_json
from hybridppo.environments.pickling import pack
from hybridppo.errors import ConfigurationError, HybridPPOError, is_installed, pip_install, shown
from hybridppo.loading import start_agent_from
from hybridppo.placements.placement import Placement
from hybridppo.reporting.callbacks import Callback, TrainingRun
from hybridppo.reporting.progress import ProgressBar
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.run_directory.files import as_json, locked, replace_synced
from hybridppo.running import TrainResult
from hybridppo.settings import LARGEST_SEED, RunOptions, fields_of, made, name_of_source
from hybridppo.system.messages import shown_number
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import require_bools, require_path, require_whole
from hybridppo.tools.hyperparameters import FIRST, NETWORKS, SPACE, Entry, Space, config_from, suggested, write_entry
from hybridppo.tools.jobs import Run, require_same, run_jobs, train_missing
from hybridppo.training import train

EVALUATION_EPISODES = 20
LOOKS = 5
"""Evaluations during a trial; it may be pruned after each."""
UNJUDGED = 5
"""Number of trials before any may be pruned."""
FINALISTS = 3
"""Number of trials that are trained again on further seeds, because the best of many was also lucky."""
FINAL_SEEDS = 3


def tune(
    env: EnvSource,
    *,
    total_steps: int = 100_000,
    trials: int = 50,
    output: str | Path = "tune",
    jobs: int | None = None,
    seed: int = 0,
    fixed: dict[str, Any] | None = None,
    placement: PlacementChoice = "cpu",
    start_from: str | Path | None = None,
    progress: bool = True,
    objective: Callable[[TrainResult], float] | None = None,
    space: Space | None = None,
    seeds: int | Sequence[int] = 1,
    config: AnyConfig | None = None,
    **train_arguments: Any,
) -> Entry:
    """Tune hyperparameters, and train the best ones again on further seeds.

    A trial is a run with one value of every hyperparameter in `SPACE`, suggested by optuna's TPE sampler; the first
    trial has the values nearest to the defaults. A trial is evaluated five times, and is pruned if it is then below the
    median of the others. The three best trials are trained again on three further seeds each. The entry has the
    hyperparameters with the highest mean return.

    The study (`study.log`), the runs and the entry (`tuned.json`) are in `output`. The search may be stopped at any
    time; the same call continues it, and the trials that were running.

    Args:
        env: the environment's id, or a function that makes it, as for `train`.
        total_steps: environment steps of each trial.
        trials: number of trials, including pruned and failed ones.
        output: the folder.
        jobs: number of worker processes, each of which runs one trial at a time; None for one per core.
        seed: seed of the search and of the runs.
        fixed: fields of `PPOConfig` that are not searched.
        placement: the placement of every trial, as for `train`. `auto` is refused, because its measurements would be
            disturbed by the trials beside it.
        start_from: as for `train`; needs `fixed` values of the hyperparameters that decide the shapes of networks.
        progress: whether to show a progress bar.
        objective: a function of the `TrainResult` of a run that returns the number to maximize, in place of the mean
            return of an evaluation. Trials are then not pruned, and evaluated only if `train_arguments` say so.
        space: what is searched, in place of `SPACE`: for each field of the configuration, or `settings.NAME` for a
            setting of your own, a list of values, or a range `(low, high)` or `(low, high, "log")`, of whole numbers if
            both are; or a function of a trial of optuna that returns the fields by name.
        seeds: seeds of a trial, or their number, from `seed` on; a trial's value is their mean.
        config: the hyperparameters that are neither searched nor fixed, which also choose the agent; None for PPO's
            defaults, or those of `agent`.
        **train_arguments: further arguments of `train`, such as `env_kwargs`, `loss`, `agent` or `num_workers`.

    Returns:
        The best hyperparameters with their return, as `hybridppo.tuned(env_id, file=...)` reads them; an environment
        made by a function has the function's name as its id.

    Raises:
        ConfigurationError: if optuna is missing, an argument is invalid, or `output` belongs to another search.
        EnvError: if the environment cannot be made, or cannot be sent to a process.
        HybridPPOError: if no trial could be trained.
    """
    if not is_installed("optuna"):
        raise ConfigurationError(f"tuning needs optuna: {pip_install('tune')}")
    require_bools(progress=progress)
    folder, trials = require_path("output", output), require_whole("trials", trials)
    jobs = cpu_cores() if jobs is None else require_whole("jobs", jobs)
    run = RunOptions(total_steps, seed=seed, start_from=None if start_from is None else str(start_from))
    require_whole("seed", seed, 0, below=LARGEST_SEED - FINAL_SEEDS)
    of_trial = range(seed, seed + require_whole("seeds", seeds)) if isinstance(seeds, int) else seeds
    of_trial = tuple(require_whole("seeds", each, 0, below=LARGEST_SEED - FINAL_SEEDS) for each in of_trial)
    if not of_trial:
        raise ConfigurationError("seeds must have a seed, got none")
    if objective is not None and not callable(objective):
        raise ConfigurationError(f"objective must be a function of a TrainResult, got {shown(objective)}")
    of_runs = ("run_dir", "on_interrupt", "verbose", "debug", "compiled")
    for name in of_runs if objective else (*of_runs, "evaluate_every", "evaluation_episodes"):
        if name in train_arguments:
            raise ConfigurationError(f"{name} does not work with tune: leave it out")
    for name in train_arguments.keys() - inspect.signature(train).parameters.keys():
        raise TypeError(f"tune() got an unexpected keyword argument {name!r}")
    where = resolve_placement(placement)
    if isinstance(where, Auto):
        raise ConfigurationError("placement auto would measure trials beside one another: name a placement")
    environment = made(EnvironmentOptions, train_arguments)
    base: Any = default_config(train_arguments.get("agent")) if config is None else config
    base = replace(base, settings={**base.settings, **train_arguments.pop("settings", {})})
    more = {name: value for name, value in train_arguments.items() if name not in fields_of(EnvironmentOptions)}
    space = SPACE if space is None else space
    search = Search(env, environment, run, fixed or {}, where, folder, base, of_trial, more, objective, space)
    search.require_trainable()
    with locked(folder):
        entry = search.run_all(trials, jobs, progress)
        write_entry(folder / "tuned.json", name_of_source(env), entry)
        return entry


@dataclass(frozen=True)
class Search:
    """A search in its folder: optuna's study, and the runs of trials."""

    env: EnvSource
    environment: EnvironmentOptions
    run: RunOptions
    """Steps and seed of a trial, and the networks that it starts from."""
    fixed: dict[str, Any]
    placement: Placement
    output: Path
    base: AnyConfig
    """The hyperparameters that are neither searched nor fixed."""
    seeds: tuple[int, ...]
    """The seeds of a trial."""
    more: dict[str, Any]
    """Further arguments of `train`."""
    objective: Callable[[TrainResult], float] | None
    space: Space

    @property
    def seed(self) -> int:
        """The seed of the search."""
        return self.run.seed or 0

    def require_trainable(self) -> None:
        """Refuse an environment or hyperparameters that no trial can train, before anything is written.

        Raises:
            HybridPPOError: as `train` would.
        """
        if not is_held_by_json(self.environment.env_kwargs):
            raise ConfigurationError(
                f"env_kwargs of a search must be what JSON can hold, got {shown(self.environment.env_kwargs)}: pass a "
                "function that makes the environment with them"
            )
        pack({"source": (self.env, self.objective, self.space, self.more)}, "")
        config = config_from(self._some(), self.fixed, self.base)
        if self.run.start_from is not None and self.space is SPACE and not {*NETWORKS} <= self.fixed.keys():
            raise ConfigurationError(
                f"start_from needs networks of one form in all trials: give {', '.join(NETWORKS)} in fixed, as the "
                "first run had them"
            )
        with closing(make_environments(self.env, 1, self.environment)) as environments:
            environments.reset(self.seed)
            spaces = environments.observation_space, environments.action_space
            kind: Any = self.more.get("agent") or agent_class(config)
            parts = {name: self.more[name] for name in kind.custom_parts if name in self.more}
            agent = make_agent(kind, *spaces, config, seed=0, **parts)
            if self.run.start_from is not None:
                start_agent_from(agent, self.run.start_from)

    def _some(self) -> dict[str, Any]:
        """Some hyperparameters of the space."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return suggested(optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask(), self.fixed, self.space)

    def study(self, worker: int = 0) -> Any:
        """Optuna's study, new or existing; each worker draws its own suggestions."""
        import optuna
        from optuna.storages import journal

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        log = str(self.output / "study.log")
        lock = journal.JournalFileOpenLock(log)  # the other kind makes links, which Windows allows to few
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(journal.JournalFileBackend(log, lock_obj=lock)),
            study_name=name_of_source(self.env),
            load_if_exists=True,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=UNJUDGED),
        )
        # A search that goes on does not begin with the same suggestions again.
        start = (self.seed + len(study.trials) + worker) % 2**32  # optuna's, which are NumPy's, are below that
        study.sampler = optuna.samplers.TPESampler(seed=start, multivariate=True, constant_liar=True)
        return study

    def run_all(self, trials: int, jobs: int, progress: bool) -> Entry:
        """Run trials in so many processes until this number has ended, then train the best ones again.

        Raises:
            ConfigurationError: if the folder belongs to another search.
            HybridPPOError: if too many trials fail, none was completed, or a run fails.
        """
        asked = {"env_id": name_of_source(self.env), "total_steps": self.run.total_steps, "seed": self.seed}
        asked |= {"fixed": self.fixed, "start_from": self.run.start_from, "placement": self.placement.settings()}
        asked |= asdict(self.environment)
        named = {name: name_of_source(own) if callable(own) else shown(own) for name, own in self.more.items()}
        asked |= {"base": self.base.to_json(), "seeds": self.seeds, "arguments": named}
        asked["objective"] = None if self.objective is None else name_of_source(self.objective)
        asked["space"] = name_of_source(self.space) if callable(self.space) else shown(self.space, 1000)
        require_same(self.output / "search.json", asked)
        replace_synced(self.output / "search.json", as_json(asked).encode())
        study = self.study()
        for trial in [trial for trial in study.trials if trial.state.name == "RUNNING"]:
            study.tell(trial.number, state=type(trial.state).FAIL)
            if "run_dir" in trial.user_attrs:  # its run goes on
                study.enqueue_trial(trial.params, user_attrs={"run_dir": trial.user_attrs["run_dir"]})
        if not study.trials and self.space is SPACE:
            study.enqueue_trial({name: value for name, value in FIRST.items() if name not in self.fixed})
        initial = min(trials, _ended(study))
        with ProgressBar(enabled=progress, has_lines=True, total=trials, initial=initial, unit="trial") as bar:

            def show(_: int) -> None:
                values = [trial.value for trial in _complete(study)]
                bar.move_to(min(_ended(study), trials), f"best {shown_number(max(values))}" if values else "")

            # Each process runs its share of the trials that are left.
            shares = [(trials - initial + worker) // jobs for worker in range(jobs)]
            calls = [
                (partial(self.work, share, worker), self.output / f"worker{worker}.log")
                for worker, share in enumerate(shares)
            ]
            run_jobs(calls, jobs=jobs, on_progress=show)
        best = sorted(_complete(study), key=lambda trial: float(trial.value), reverse=True)[:FINALISTS]
        if not best:
            errors = [trial.user_attrs["error"] for trial in study.trials if "error" in trial.user_attrs]
            raise HybridPPOError(f"none of the trials in {self.output} came to its end: {'; '.join(errors[-1:])}")
        finals = {trial.number: [self._final_run(trial, i) for i in range(FINAL_SEEDS)] for trial in best}
        train_missing([run for own in finals.values() for run in own], jobs=jobs, progress=progress, label="finals")
        means = {number: fmean(run.value() for run in own) for number, own in finals.items()}
        winner = max(means, key=lambda number: means[number])
        source = f"hybridppo tune, trial {winner} of {trials}"
        return Entry(finals[winner][0].config, self.run.total_steps, source, return_here=means[winner])

    def work(self, share: int, worker: int) -> bool:
        """Run so many trials one after the other; False if a trial was interrupted, which a later call continues.

        A trial fails if its training diverges, or needs too much memory.
        """
        from optuna.trial import TrialState as states  # noqa: N813 - an enumeration

        study = self.study(worker)
        every = max(1, self.run.total_steps // LOOKS)
        looks: dict[str, Any] = {"evaluate_every": every, "episodes_per_evaluation": EVALUATION_EPISODES // 2}
        looks = looks if self.objective is None else {}
        for _ in range(share):
            trial = study.ask()
            folder = trial.user_attrs.get("run_dir") or f"trials/{trial.number:04d}"
            trial.set_user_attr("run_dir", folder)
            config = config_from(suggested(trial, self.fixed, self.space), self.fixed, self.base)
            folders = [folder] if len(self.seeds) == 1 else [f"{folder}/seed{seed}" for seed in self.seeds]
            pairs = zip(folders, self.seeds, strict=True)
            runs, judge = [self._run(*pair, config, **looks) for pair in pairs], _Judge(trial, every)
            try:
                for run in runs:  # the first decides whether the trial is pruned
                    if judge.has_pruned:
                        break
                    is_judged = run is runs[0] and self.objective is None
                    if run.result() is None and not run.train([judge] if is_judged else ()):
                        return False
                value = None if judge.has_pruned else fmean(run.value() for run in runs)
                state = states.PRUNED if judge.has_pruned else states.COMPLETE
            except HybridPPOError as error:
                trial.set_user_attr("error", str(error))
                state, value = states.PRUNED if judge.has_pruned else states.FAIL, None
            study.tell(trial, value, state)
        return True

    def _final_run(self, trial: Any, number: int) -> Run:
        seed, folder = max(self.seeds) + 1 + number, self.output / trial.user_attrs["run_dir"]
        tried = RunDirectory.open(folder if len(self.seeds) == 1 else folder / f"seed{self.seeds[0]}").config
        config = replace(self.base, **{**tried["config"], "settings": tried["settings"]})
        return self._run(f"finals/{trial.number:04d}-seed{seed}", seed, config)

    def _run(self, folder: str, seed: int, config: AnyConfig, **further: Any) -> Run:
        options = {**vars(self.environment), "start_from": self.run.start_from, "placement": self.placement}
        options |= {"evaluation_episodes": EVALUATION_EPISODES} if self.objective is None else {}
        options |= {**further, **self.more}
        return Run(self.output / folder, self.env, self.run.total_steps, seed, config, options, self.objective)


class _Judge(Callback):
    """Reports evaluations to optuna, and stops a trial that is below the median of the others after as many steps.

    Args:
        trial: the trial.
        every: steps between evaluations. If iterations are longer, there are fewer evaluations.
    """

    def __init__(self, trial: Any, every: int) -> None:
        self._trial, self._every = trial, every
        self.has_pruned = False

    def on_evaluation(self, run: TrainingRun, evaluation: dict[str, Any]) -> None:
        if run.has_ended:
            return
        self._trial.report(evaluation["evaluation_return_mean"], evaluation["env_steps"] // self._every - 1)
        if self._trial.should_prune():
            self.has_pruned = True
            run.stop("it is below the median of the other trials")


def _complete(study: Any) -> list[Any]:
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]


def _ended(study: Any) -> int:
    """The number of trials that have ended, not those that were interrupted."""
    trials = study.get_trials(deepcopy=False)
    return sum(trial.state.name in ("COMPLETE", "PRUNED") or "error" in trial.user_attrs for trial in trials)
