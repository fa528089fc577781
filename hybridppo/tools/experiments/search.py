"""Searches for settings of an environment with optuna (the extra `tune`).

hybridppo.tune("MyEnv-v0", total_steps=100_000, trials=50)
"""

import base64
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
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
from hybridppo.run_directory.lines import as_json
from hybridppo.run_directory.lock import locked
from hybridppo.runs.keywords import TuneKeywords
from hybridppo.runs.loading import start_from
from hybridppo.runs.options import LARGEST_SEED, RunOptions, fields_of, made, takes_options
from hybridppo.runs.settings import name_of_source
from hybridppo.system.figures import shown_number
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import require_whole
from hybridppo.tools.experiments.one_run import RunAsked
from hybridppo.tools.experiments.side_by_side import (
    POLL_SECONDS,
    RunningRun,
    require_same,
    result_of,
    train_missing,
)
from hybridppo.tools.experiments.suites import EVALUATION_EPISODES
from hybridppo.tools.experiments.tuning import Entry, write_entry

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
FIXED = {"clip_range_vf": None}
"""Fixed settings that differ from the default: a clip range of values suits only one scale of returns."""
LOOKS = 5
"""Evaluations during a trial; it may be pruned after each."""
UNJUDGED = 5
"""Trials before the first may be pruned."""
FINALISTS = 3
"""Trials that are trained again on further seeds, since the best of many was also lucky."""
FINAL_SEEDS = 3
NETWORKS = ("hidden_sizes", "activation", "normalize_observations")
"""The searched settings that decide the shapes of the networks."""
TAKEN = (*fields_of(EnvironmentOptions), "start_from")
"""The options of `train` that a search takes. It sets length, seed and evaluations of trials itself, and trials side by
side need no options that change no result, such as worker processes."""


@dataclass
class _Underway:
    trial: Any
    run: RunningRun
    seen: int = 0


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

    A trial is a run with one setting of everything in `SPACE`, suggested by optuna's TPE sampler; the first has those
    nearest to the defaults. It is evaluated five times, and given up when it is below the median of others there. The
    three best are then trained on three further seeds each, and the one of the highest mean return is the entry.

    The study (`study.log`), the runs and the entry (`tuned.json`) lie in `output`. Stopped at any time and asked for
    again, it goes on, trials that were under way included.

    Args:
        env: the environment's id, or a function that makes it, as for `train`; each trial gets it in a process.
        total_steps: of each trial.
        trials: how many, those that were given up included.
        output: the folder.
        jobs: runs at once; None for as many as there are cores.
        seed: of the search and of the runs.
        fixed: fields of `PPOConfig` that are not searched.
        placement: of every trial, as for `train`. `auto` is refused: it would measure trials beside one another.
        progress: whether to show a progress bar.
        **options: replaced by the options of `TAKEN`.

    Returns:
        The best settings with what they have reached, as `hybridppo.tuned(env_id, file=...)` reads them; the name of a
        function stands for the id.

    Raises:
        ConfigurationError: if optuna is missing, an argument cannot be meant, or `output` is of another search.
        EnvError: if the environment cannot be made, or not be sent to a process.
        HybridPPOError: if no trial could be trained.
    """
    try:
        import optuna
        from optuna.storages import journal
    except ImportError:
        raise ConfigurationError(f"tuning needs optuna: {pip_install('tune')}") from None
    trials = require_whole("trials", trials)
    jobs = cpu_cores() if jobs is None else require_whole("jobs", jobs)
    output, fixed = Path(output), {**FIXED, **(fixed or {})}
    given: dict[str, Any] = {**options}
    environment = made(EnvironmentOptions, given)
    run = RunOptions(total_steps, seed=seed, start_from=given.get("start_from"))
    total_steps, seed = run.total_steps, require_whole("seed", seed, 0, below=LARGEST_SEED - FINAL_SEEDS)
    where = resolve_placement(placement)
    if isinstance(where, Auto):
        raise ConfigurationError("placement auto would measure trials beside one another: name a placement")
    config = config_from({**{name: values[0] for name, values in SPACE.items()}, "learning_rate": 1e-3}, fixed)
    _require_trainable(env, environment, config, run, fixed)
    packed = "" if isinstance(env, str) else base64.b64encode(pack({"source": env}, "")).decode()
    if not is_held_by_json(environment.env_kwargs):
        raise ConfigurationError(
            f"env_kwargs of a search must be what JSON can hold, got {shown(environment.env_kwargs)}: pass a function "
            "that makes the environment with them"
        )
    name = name_of_source(env)
    chosen = {**asdict(environment), "start_from": run.start_from, "placement": where.settings()}
    asked = {"env_id": name, "total_steps": total_steps, "fixed": fixed, "seed": seed, **chosen}
    with locked(output):
        require_same(output / "search.json", asked)
        (output / "search.json").write_text(as_json(asked), encoding="utf-8")
        study = _study(output, name, seed, optuna, journal)

        def asked_for(folder: str, seed: int, config: dict[str, Any], **further: Any) -> RunAsked:
            every = {**chosen, "evaluation_episodes": EVALUATION_EPISODES, **further}
            return RunAsked(str(output / folder), name, total_steps, seed, "ppo", config, every, packed)

        def begin(trial: Any) -> RunAsked:
            folder = trial.user_attrs.get("run_dir") or f"trials/{trial.number:04d}"
            trial.set_user_attr("run_dir", folder)
            config = config_from(suggested(trial, fixed), fixed).to_json()
            looks = {"evaluate_every": max(1, total_steps // LOOKS), "evaluate_episodes": EVALUATION_EPISODES // 2}
            return asked_for(folder, seed, config, **looks)

        def final_run(trial: Any, seed: int) -> RunAsked:
            tried = json.loads((output / trial.user_attrs["run_dir"] / "config.json").read_text(encoding="utf-8"))
            return asked_for(f"finals/{trial.number:04d}-seed{seed}", seed, tried["config"])

        _take_up_again(study, optuna)
        if not study.trials:
            study.enqueue_trial({name: value for name, value in _nearest(PPOConfig()).items() if name not in fixed})
        _search(study, optuna, begin, trials, jobs, progress)
        finals = {
            trial.number: [final_run(trial, seed + 1 + number) for number in range(FINAL_SEEDS)]
            for trial in _best_trials(study, optuna, output)
        }
        entry = _best_of(finals, jobs, trials, progress)
        write_entry(output / "tuned.json", name, entry)
        return entry


def _require_trainable(
    env: EnvSource, environment: EnvironmentOptions, config: PPOConfig, run: RunOptions, fixed: dict[str, Any]
) -> None:
    """Refuse an environment or settings that no trial can train, before anything is written.

    Raises:
        HybridPPOError: as `train` would.
    """
    if run.start_from is not None and not {*NETWORKS} <= fixed.keys():
        raise ConfigurationError(
            f"start_from needs networks of one form in all trials: give {', '.join(NETWORKS)} in fixed, as the first "
            "run had them"
        )
    environments = make_environments(env, 1, environment)
    try:
        environments.reset(run.seed or 0)
        agent = make_agent(PPO, environments.observation_space, environments.action_space, config, seed=0)
        if run.start_from is not None:
            start_from(agent, run.start_from)
    finally:
        environments.close()


def _study(output: Path, env_id: str, seed: int, optuna: Any, journal: Any) -> Any:
    """Optuna's study in the folder, new or existing."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    log = str(output / "study.log")
    lock = journal.JournalFileOpenLock(log)  # the other kind makes links, which Windows allows to few
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(journal.JournalFileBackend(log, lock_obj=lock)),
        study_name=env_id,
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=UNJUDGED),
    )
    # A search that goes on does not begin with the same suggestions again.
    start = (seed + len(study.trials)) % 2**32  # optuna's, which are NumPy's, are below that
    study.sampler = optuna.samplers.TPESampler(seed=start, multivariate=True, constant_liar=True)
    return study


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
        if size is not None and "num_minibatches" not in settings:
            settings["num_minibatches"] = max(1, settings["num_envs"] * settings["num_steps"] // size)
        return PPOConfig(**settings)
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


def _take_up_again(study: Any, optuna: Any) -> None:
    """Enqueue the trials that were running when the search was stopped again; their runs go on."""
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if "run_dir" in trial.user_attrs:
            study.enqueue_trial(trial.params, user_attrs={"run_dir": trial.user_attrs["run_dir"]})


def _search(study: Any, optuna: Any, begin: Callable[[Any], RunAsked], trials: int, jobs: int, progress: bool) -> None:
    states = optuna.trial.TrialState
    underway: list[_Underway] = []
    errors: list[str] = []

    def finished() -> int:
        return len(study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED)))

    def end(one: _Underway, **outcome: Any) -> None:
        one.run.stop()
        underway.remove(one)
        study.tell(one.trial, **outcome)

    done = finished()
    with tqdm(total=trials, initial=min(done, trials), unit="trial", disable=not progress) as bar:
        try:
            while done < trials or underway:
                while done + len(underway) < trials and len(underway) < jobs:
                    trial = study.ask()
                    underway.append(_Underway(trial, RunningRun(begin(trial))))
                for one in underway.copy():
                    try:
                        if one.run.ended():
                            result = result_of(one.run.asked)
                            value = math.nan if result is None else float(result["evaluation_return_mean"])
                            if not math.isfinite(value):  # counted, or a search of nothing else would never end
                                raise HybridPPOError(f"{one.run.asked.run_dir} has no return that is a number")
                            end(one, values=value)
                        elif _should_prune(one):
                            end(one, state=states.PRUNED)
                            one.run.log.unlink(missing_ok=True)
                    except HybridPPOError as error:  # settings that diverge, or that memory cannot hold
                        errors.append(str(error))
                        end(one, state=states.FAIL)
                        if len(errors) >= max(UNJUDGED, trials):
                            raise HybridPPOError(f"{len(errors)} trials failed, the last so: {error}") from error
                done = finished()
                bar.update(min(done, trials) - bar.n)
                if study.get_trials(deepcopy=False, states=(states.COMPLETE,)):
                    bar.set_postfix_str(f"best {shown_number(study.best_value)}", refresh=False)
                if underway:
                    time.sleep(POLL_SECONDS)
        finally:
            for one in underway:
                one.run.close()
            for one in underway:
                one.run.stop()


def _should_prune(one: _Underway) -> bool:
    """Report new evaluations; whether the trial is below the median of others."""
    one.run.evaluations.read()
    lines = list(one.run.evaluations.lines)
    for number, line in enumerate(lines[one.seen :], one.seen):
        one.trial.report(float(line["evaluation_return_mean"]), number)
    one.seen = len(lines)
    return bool(lines) and bool(one.trial.should_prune())


def _best_trials(study: Any, optuna: Any, output: Path) -> list[Any]:
    """The best trials, the best first.

    Raises:
        HybridPPOError: if no trial was completed.
    """
    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if not complete:
        raise HybridPPOError(f"none of the trials in {output} came to its end")
    return sorted(complete, key=lambda trial: float(trial.value or 0.0), reverse=True)[:FINALISTS]


def _best_of(runs: dict[int, list[RunAsked]], jobs: int, trials: int, progress: bool) -> Entry:
    """Train the missing runs of the finalists; the settings with the highest mean return."""
    every = [run for of_a_trial in runs.values() for run in of_a_trial]
    train_missing(every, jobs=jobs, progress=progress, label="finals")
    means = {
        number: sum(float((result_of(run) or {})["evaluation_return_mean"]) for run in of_a_trial) / len(of_a_trial)
        for number, of_a_trial in runs.items()
    }
    winner = max(means, key=lambda number: means[number])
    run = runs[winner][0]
    return Entry(
        config=PPOConfig(**run.config),
        total_steps=run.total_steps,
        source=f"hybridppo tune, trial {winner} of {trials}",
        published_return=None,
        return_here=means[winner],
        left_out=None,
    )
