"""Searches for settings of an environment with optuna (the extra `tune`).

hybridppo.tune("MyEnv-v0", total_steps=100_000, trials=50)
"""

import base64
import json
import math
import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from hybridppo.agents import PPOConfig
from hybridppo.agents.ppo.ppo import PPO
from hybridppo.agents.registry import make_agent
from hybridppo.auto.auto import Auto
from hybridppo.auto.named import PlacementChoice, resolve_placement
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource, is_held_by_json
from hybridppo.environments.pickling import pack
from hybridppo.errors import ConfigurationError, HybridPPOError, pip_install, shown
from hybridppo.keywords import TuneKeywords
from hybridppo.loading import start_from
from hybridppo.options import LARGEST_SEED, RunOptions, fields_of, made, takes_options
from hybridppo.placements.placement import Placement
from hybridppo.reporting.progress import ProgressBar
from hybridppo.run_directory.files import as_json
from hybridppo.run_directory.lock import locked
from hybridppo.settings import name_of_source
from hybridppo.system.messages import shown_number
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import require_bools, require_path, require_whole
from hybridppo.tools.benchmark import EVALUATION_EPISODES
from hybridppo.tools.one_run import RunAsked
from hybridppo.tools.side_by_side import (
    POLL_SECONDS,
    RunningRun,
    require_same,
    result_of,
    stop_all,
    train_missing,
)
from hybridppo.tools.tuned import Entry, write_entry

SPACE: dict[str, tuple[Any, ...]] = {
    "num_envs": (4, 8, 16),
    "num_steps": (64, 128, 256, 512, 1024),
    "minibatch_size": (64, 128, 256, 512),
    "num_epochs": (4, 10, 20),
    "anneal_learning_rate": (False, True),
    "gamma": (0.9, 0.95, 0.98, 0.99, 0.995, 0.999),
    "gae_lambda": (0.8, 0.9, 0.95, 0.98, 1.0),
    "clip_range": (0.1, 0.2, 0.3),
    "entropy_coef": (0.0, 1e-4, 1e-3, 1e-2, 3e-2),
    "value_coef": (0.5, 1.0, 2.0),
    "max_grad_norm": (0.5, 1.0, 5.0),
    "hidden_sizes": ("64,64", "128,128", "256,256"),
    "activation": ("tanh", "relu"),
    "normalize_observations": (False, True),
    "normalize_rewards": (False, True),
}
"""The values to try for each setting; the learning rate lies between `LEARNING_RATES`, on a logarithmic scale."""
LEARNING_RATES = (3e-5, 3e-3)
LOOKS = 5
"""Evaluations during a trial; it may be pruned after each."""
UNJUDGED = 5
"""Number of trials before any may be pruned."""
FINALISTS = 3
"""Number of trials that are trained again on further seeds, because the best of many was also lucky."""
FINAL_SEEDS = 3
NETWORKS = ("hidden_sizes", "activation", "normalize_observations")
"""The searched settings that decide the shapes of the networks."""
TAKEN = (*fields_of(EnvironmentOptions), "start_from")
"""The options of `train` that a search takes. The search itself sets length, seed and evaluations of trials. Options
that change no result, such as worker processes, are of no use for trials that run side by side."""


@dataclass
class _Underway:
    """A trial that is being trained."""

    trial: Any
    run: RunningRun
    seen: int = 0
    """The number of evaluations that were reported."""

    def should_prune(self) -> bool:
        """Report new evaluations; return whether the trial is below the median of the others after as many steps.

        A trial whose iterations are longer than the steps between evaluations has fewer of them.
        """
        self.run.evaluations.read()
        lines, every = list(self.run.evaluations.lines), self.run.asked.options["evaluate_every"]
        for line in lines[self.seen :]:
            self.trial.report(float(line["evaluation_return_mean"]), line["env_steps"] // every - 1)
        self.seen = len(lines)
        return bool(lines) and bool(self.trial.should_prune())


@takes_options(TAKEN)
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
    progress: bool = True,
    **options: Unpack[TuneKeywords],
) -> Entry:
    """Search for settings of PPO, and train the best ones again on further seeds.

    A trial is a run with one value of every setting in `SPACE`, suggested by optuna's TPE sampler; the first trial has
    the values nearest to the defaults. A trial is evaluated five times, and is pruned if it is then below the median of
    the others. The three best trials are trained again on three further seeds each. The entry has the settings with the
    highest mean return.

    The study (`study.log`), the runs and the entry (`tuned.json`) are in `output`. A search may be stopped at any time;
    the same call continues the search, and the trials that were running.

    Args:
        env: the environment's id, or a function that makes it, as for `train`; each trial has its own process.
        total_steps: environment steps of each trial.
        trials: number of trials, including pruned ones.
        output: the folder.
        jobs: number of runs at once; None for one per core.
        seed: seed of the search and of the runs.
        fixed: fields of `PPOConfig` that are not searched.
        placement: the placement of every trial, as for `train`. `auto` is refused, because its measurements would be
            disturbed by the trials beside it.
        progress: whether to show a progress bar.
        **options: replaced by the options of `TAKEN`.

    Returns:
        The best settings with their return, as `hybridppo.tuned(env_id, file=...)` reads them; an environment made by a
        function has the function's name as its id.

    Raises:
        ConfigurationError: if optuna is missing, an argument is invalid, or `output` belongs to another search.
        EnvError: if the environment cannot be made, or cannot be sent to a process.
        HybridPPOError: if no trial could be trained.
    """
    if find_spec("optuna") is None:
        raise ConfigurationError(f"tuning needs optuna: {pip_install('tune')}")
    require_bools(progress=progress)
    folder, trials = require_path("output", output), require_whole("trials", trials)
    jobs = cpu_cores() if jobs is None else require_whole("jobs", jobs)
    given: dict[str, Any] = {**options}
    environment = made(EnvironmentOptions, given)
    run = RunOptions(total_steps, seed=seed, start_from=given.get("start_from"))
    require_whole("seed", seed, 0, below=LARGEST_SEED - FINAL_SEEDS)
    where = resolve_placement(placement)
    if isinstance(where, Auto):
        raise ConfigurationError("placement auto would measure trials beside one another: name a placement")
    search = Search(env, environment, run, fixed or {}, where, folder, jobs, progress)
    search.require_trainable()
    with locked(search.output):
        search.begin()
        search.try_out(trials)
        entry = search.best_of_finals(trials)
        write_entry(search.output / "tuned.json", search.name, entry)
        return entry


class Search:
    """A search in its folder: optuna's study, and the runs of trials.

    Args:
        env: as for `tune`.
        environment: how environments are made.
        run: steps and seed of a trial, and the networks that it starts from.
        fixed: settings that are not searched.
        placement: the placement of every trial.
        output: the folder.
        jobs: number of runs at once.
        progress: whether to show a progress bar.

    Raises:
        ConfigurationError: if `env_kwargs` cannot be held by JSON.
        EnvError: if the function that makes the environment cannot be sent to a process.
    """

    def __init__(
        self,
        env: EnvSource,
        environment: EnvironmentOptions,
        run: RunOptions,
        fixed: dict[str, Any],
        placement: Placement,
        output: Path,
        jobs: int,
        progress: bool,
    ) -> None:
        if not is_held_by_json(environment.env_kwargs):
            raise ConfigurationError(
                f"env_kwargs of a search must be what JSON can hold, got {shown(environment.env_kwargs)}: pass a "
                "function that makes the environment with them"
            )
        self.env, self.environment, self.run, self.fixed, self.output = env, environment, run, fixed, output
        self.name, self.seed = name_of_source(env), run.seed or 0
        self._jobs, self._progress = jobs, progress
        self._packed = "" if isinstance(env, str) else base64.b64encode(pack({"source": env}, "")).decode()
        self._chosen = {**asdict(environment), "start_from": run.start_from, "placement": placement.settings()}
        self._underway: list[_Underway] = []
        self._errors: list[str] = []

    def require_trainable(self) -> None:
        """Refuse an environment or settings that no trial can train, before anything is written.

        Raises:
            HybridPPOError: as `train` would.
        """
        first = {name: values[0] for name, values in SPACE.items()}
        config = config_from({**first, "learning_rate": 1e-3}, self.fixed)
        if self.run.start_from is not None and not {*NETWORKS} <= self.fixed.keys():
            raise ConfigurationError(
                f"start_from needs networks of one form in all trials: give {', '.join(NETWORKS)} in fixed, as the "
                "first run had them"
            )
        with closing(make_environments(self.env, 1, self.environment)) as environments:
            environments.reset(self.seed)
            agent = make_agent(PPO, environments.observation_space, environments.action_space, config, seed=0)
            if self.run.start_from is not None:
                start_from(agent, self.run.start_from)

    def begin(self) -> None:
        """Open the study, new or existing. Trials that were running when it was stopped continue.

        Raises:
            ConfigurationError: if the folder belongs to another search.
        """
        import optuna
        from optuna.storages import journal

        steps = {"env_id": self.name, "total_steps": self.run.total_steps, "fixed": self.fixed, "seed": self.seed}
        asked = {**steps, **self._chosen}
        require_same(self.output / "search.json", asked)
        (self.output / "search.json").write_text(as_json(asked), encoding="utf-8")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        log = str(self.output / "study.log")
        lock = journal.JournalFileOpenLock(log)  # the other kind makes links, which Windows allows to few
        self.study = study = optuna.create_study(
            storage=optuna.storages.JournalStorage(journal.JournalFileBackend(log, lock_obj=lock)),
            study_name=self.name,
            load_if_exists=True,
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=UNJUDGED),
        )
        self._states = optuna.trial.TrialState
        # A search that goes on does not begin with the same suggestions again.
        start = (self.seed + len(study.trials)) % 2**32  # optuna's, which are NumPy's, are below that
        study.sampler = optuna.samplers.TPESampler(seed=start, multivariate=True, constant_liar=True)
        for trial in study.get_trials(states=(self._states.RUNNING,)):
            study.tell(trial.number, state=self._states.FAIL)
            if "run_dir" in trial.user_attrs:  # its run goes on
                study.enqueue_trial(trial.params, user_attrs={"run_dir": trial.user_attrs["run_dir"]})
        if not study.trials:
            nearest = _nearest(PPOConfig()).items()
            study.enqueue_trial({name: value for name, value in nearest if name not in self.fixed})

    def try_out(self, trials: int) -> None:
        """Train trials until this number has ended, several at once.

        Raises:
            HybridPPOError: if too many fail.
        """
        done, best = self._ended(), ""
        initial = min(done, trials)
        with ProgressBar(enabled=self._progress, has_lines=True, total=trials, initial=initial, unit="trial") as bar:
            try:
                while done < trials or self._underway:
                    while done + len(self._underway) < trials and len(self._underway) < self._jobs:
                        trial = self.study.ask()
                        self._underway.append(_Underway(trial, RunningRun(self._run_of(trial))))
                    for one in self._underway.copy():
                        self._look_at(one, most_errors=max(UNJUDGED, trials))
                    done = self._ended()
                    if self.study.get_trials(deepcopy=False, states=(self._states.COMPLETE,)):
                        best = f"best {shown_number(self.study.best_value)}"
                    bar.move_to(min(done, trials), best)
                    if self._underway:
                        time.sleep(POLL_SECONDS)
            finally:
                stop_all([one.run for one in self._underway])

    def best_of_finals(self, trials: int) -> Entry:
        """Train the best trials on further seeds; the settings with the highest mean return.

        Raises:
            HybridPPOError: if no trial was completed, or a run fails.
        """
        complete = self.study.get_trials(deepcopy=False, states=(self._states.COMPLETE,))
        if not complete:
            raise HybridPPOError(f"none of the trials in {self.output} came to its end")
        best = sorted(complete, key=lambda trial: float(trial.value or 0.0), reverse=True)[:FINALISTS]
        finals = {trial.number: [self._final_run(trial, i) for i in range(FINAL_SEEDS)] for trial in best}
        every = [run for of_a_trial in finals.values() for run in of_a_trial]
        train_missing(every, jobs=self._jobs, progress=self._progress, label="finals")
        means = {
            number: sum(float((result_of(run) or {})["evaluation_return_mean"]) for run in of_a_trial) / FINAL_SEEDS
            for number, of_a_trial in finals.items()
        }
        winner = max(means, key=lambda number: means[number])
        return Entry(
            config=PPOConfig(**finals[winner][0].config),
            total_steps=self.run.total_steps,
            source=f"hybridppo tune, trial {winner} of {trials}",
            published_return=None,
            return_here=means[winner],
            left_out=None,
        )

    def _ended(self) -> int:
        """The number of trials that have ended, without failed ones."""
        return len(self.study.get_trials(deepcopy=False, states=(self._states.COMPLETE, self._states.PRUNED)))

    def _look_at(self, one: "_Underway", most_errors: int) -> None:
        """End a trial if its run has ended or failed, or if it is to be pruned."""
        try:
            if one.run.ended():
                result = result_of(one.run.asked)
                value = math.nan if result is None else float(result["evaluation_return_mean"])
                if not math.isfinite(value):  # counted, or a search of nothing else would never end
                    raise HybridPPOError(f"{one.run.asked.run_dir} has no return that is a number")
                self._end(one, values=value)
            elif one.should_prune():
                self._end(one, state=self._states.PRUNED)
                one.run.log.unlink(missing_ok=True)
        except HybridPPOError as error:  # training diverges with these settings, or needs too much memory
            self._errors.append(str(error))
            self._end(one, state=self._states.FAIL)
            if len(self._errors) >= most_errors:
                raise HybridPPOError(f"{len(self._errors)} trials failed, the last so: {error}") from error

    def _end(self, one: "_Underway", **outcome: Any) -> None:
        one.run.stop()
        self._underway.remove(one)
        self.study.tell(one.trial, **outcome)

    def _run_of(self, trial: Any) -> RunAsked:
        """The run of a trial, with its evaluations."""
        folder = trial.user_attrs.get("run_dir") or f"trials/{trial.number:04d}"
        trial.set_user_attr("run_dir", folder)
        config = config_from(suggested(trial, self.fixed), self.fixed).to_json()
        looks = {"evaluate_every": max(1, self.run.total_steps // LOOKS), "evaluate_episodes": EVALUATION_EPISODES // 2}
        return self._asked(folder, self.seed, config, **looks)

    def _final_run(self, trial: Any, number: int) -> RunAsked:
        seed = self.seed + 1 + number
        tried = json.loads((self.output / trial.user_attrs["run_dir"] / "config.json").read_text(encoding="utf-8"))
        return self._asked(f"finals/{trial.number:04d}-seed{seed}", seed, tried["config"])

    def _asked(self, folder: str, seed: int, config: dict[str, Any], **further: Any) -> RunAsked:
        every = {**self._chosen, "evaluation_episodes": EVALUATION_EPISODES, **further}
        path, steps = str(self.output / folder), self.run.total_steps
        return RunAsked(path, self.name, steps, seed, "ppo", config, every, self._packed)


def suggested(trial: Any, fixed: dict[str, Any]) -> dict[str, Any]:
    """The settings that a trial tries, without the fixed ones."""
    found = {name: trial.suggest_categorical(name, values) for name, values in SPACE.items() if name not in fixed}
    if "learning_rate" not in fixed:
        found["learning_rate"] = trial.suggest_float("learning_rate", *LEARNING_RATES, log=True)
    return found


def config_from(parameters: dict[str, Any], fixed: dict[str, Any]) -> PPOConfig:
    """The configuration with these parameters; `minibatch_size` gives the number of minibatches.

    Raises:
        ConfigurationError: if a fixed setting is invalid.
    """
    settings = {**parameters, **fixed}
    size = settings.pop("minibatch_size", None)
    if isinstance(settings.get("hidden_sizes"), str):
        settings["hidden_sizes"] = tuple(int(width) for width in settings["hidden_sizes"].split(","))
    try:
        made = PPOConfig(**settings)
        if size is None or "num_minibatches" in settings:
            return made
        most = max(1, min(made.batch_size // size, made.units))
        return replace(made, num_minibatches=next(n for n in range(most, 0, -1) if made.batch_size % n == 0))
    except TypeError as error:
        raise ConfigurationError(f"fixed must hold fields of PPOConfig: {error}") from error


def _nearest(config: PPOConfig) -> dict[str, Any]:
    """The values of the space that are nearest to a configuration's."""
    mine: dict[str, Any] = {**config.to_json(), "minibatch_size": config.minibatch_size}
    found: dict[str, Any] = {"learning_rate": min(max(config.learning_rate, LEARNING_RATES[0]), LEARNING_RATES[1])}
    for name, values in SPACE.items():
        value = ",".join(map(str, mine[name])) if name == "hidden_sizes" else mine[name]
        if value not in values:
            value = min(values, key=lambda one: abs(one - value)) if isinstance(value, (int, float)) else values[0]
        found[name] = value
    return found
