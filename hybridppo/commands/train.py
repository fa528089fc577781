"""`hybridppo train` and `hybridppo resume`."""

import argparse
import json
import math
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from hybridppo._lazy import helps
from hybridppo.agents import PPOConfig
from hybridppo.agents.policies import PoliciesConfig, policy_by_name
from hybridppo.agents.registry import AnyConfig, agent_class
from hybridppo.auto.auto import Auto, PlacementOptions, options_of
from hybridppo.commands.parsing import (
    EXIT_DONE,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    Command,
    EnvId,
    OwnAgent,
    RunDir,
    flags_of_command,
    parse,
    show,
)
from hybridppo.config_files import USUAL_STEPS, config_type, is_config_file, of_policies, own_agent, read_config
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.environments.packages import source_of
from hybridppo.errors import ConfigurationError
from hybridppo.errors import command as command_line
from hybridppo.placements.placement import require_devices
from hybridppo.run_directory.directory import RunDirectory, fresh_path
from hybridppo.run_directory.files import TakenError, locked
from hybridppo.running import TrainResult
from hybridppo.settings import GROUPS, RunOptions, Settings, fields_of, made, tell_what_runs
from hybridppo.system.messages import shown_return
from hybridppo.system.seeds import fresh_seed
from hybridppo.system.threads import cpu_cores
from hybridppo.system.validation import require_whole
from hybridppo.training import resume, train

AgentName = Annotated[str, tyro.conf.arg(metavar="{ppo,ddpg,td3}|MODULE:CLASS")]


@dataclass(frozen=True)
class Train(Command):
    """Train an agent in a gymnasium environment."""

    env_id: EnvId
    """The environment: an id, as registered with gymnasium, or a function that makes one, as module:function."""
    agent: AgentName = "ppo"
    """The algorithm, or a subclass of your own as module:Class. Its settings are flags: --agent td3 --help shows those
    of TD3."""
    options: RunOptions = field(default_factory=lambda: RunOptions(total_steps=USUAL_STEPS))
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    environment: EnvironmentOptions = field(default_factory=EnvironmentOptions)
    tuned: bool = False
    """Use settings and steps that are known to suit the environment; other flags change them. Not every environment has
    an entry."""
    tuned_from: Path | None = None
    """Use the settings and steps in this file, which `hybridppo tune` has written; other flags change them."""
    settings_of: Annotated[Path | None, tyro.conf.arg(name="config", metavar="FILE")] = None
    """Use the options in a file, .yaml, .json or .toml (`hybridppo config ENV_ID` prints one), or those of a run, in
    its config.json. Other flags win over them, and ENV_ID may be left out if the file names it."""
    run_dir: Path | None = None
    """The folder to make and write to; None for a new one under runs/."""
    seeds: int = 1
    """Train so many seeds side by side, --seed (else 0) and the next ones, each on one core and in a run directory of
    its own in the folder. If stopped, the same command with that --run-dir continues."""
    compiled: bool = False
    """Let Numba compile the environments, if they have a compiled form, and the updates of multilayer perceptrons on a
    CPU. This is --vectorization compiled and --compiled-updates in one flag (needs the extra "compiled")."""
    profile: bool = False
    """Write a trace of a few iterations into the run directory, for chrome://tracing or https://ui.perfetto.dev."""
    progress: bool = True
    """Show a progress bar."""
    verbose: bool = False
    """Show a table of the metrics every few seconds, and at the end."""
    debug_training: bool = False
    """Train so that a debugger can follow: one process, gradients by autograd alone."""
    policies: dict[str, Any] | None = None
    """Train several policies: a JSON object with the name of each policy and the settings in which it differs from the
    flags, as '{"tagger": {"hidden_sizes": [128, 128]}, "runner": {}}'. With a run directory in place of settings, the
    policy acts and does not learn."""
    config: AnyConfig = field(default_factory=PPOConfig)

    def tuned_defaults(self) -> dict[str, Any]:
        """The tuned hyperparameters and steps, as defaults of the flags.

        Raises:
            ConfigurationError: if the environment has no tuned hyperparameters, or the agent is not PPO.
        """
        from hybridppo.tools.hyperparameters import tuned_entry

        if self.agent != "ppo":
            raise ConfigurationError("--tuned has hyperparameters of PPO: leave --agent out, or --tuned")
        if self.settings_of is not None:
            raise ConfigurationError("--tuned and --config both say which hyperparameters to begin with: leave one out")
        entry = tuned_entry(self.env_id, self.tuned_from)
        return {"options": RunOptions(total_steps=entry.total_steps), "config": entry.config, "tuned": True}

    def run(self) -> int:
        """Train, and print the result. If torchrun starts the command again after a loss, the run is resumed."""
        if self.run_dir is not None and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            return report(
                resume(self.run_dir, agent=own_agent(self.agent), progress=self.progress, on_interrupt="return")
            )
        if self.settings_of is not None:
            tell_what_runs(self.settings_of, self.env_id, self.environment, self.options)
        if self.tuned:
            from hybridppo.tools.hyperparameters import tuned_entry

            show(f"tuned: {tuned_entry(self.env_id, self.tuned_from)}")
        several = require_whole("seeds", self.seeds) > 1
        seed = self.options.seed
        seed = seed if seed is not None else 0 if several else fresh_seed()
        own = ("compiled", "profile", "progress", "verbose")
        given = {**{name: getattr(self, name) for name in own}, **asdict(self.options), **asdict(self.environment)}
        given |= {"placement": self.placement.resolve(), "config": of_policies(self.config, self.policies)}
        given |= {"seed": seed, "agent": own_agent(self.agent), "debug": self.debug_training}
        if several:
            return self._train_seeds(seed, given)
        result = None
        while result is None:
            run_dir = self.run_dir or fresh_path(self.env_id, seed)
            try:
                result = train(self.env_id, run_dir=run_dir, on_interrupt="return", **given)
            except TakenError:  # by a command that began in the same second
                if self.run_dir is not None:
                    raise
        return report(result)

    def _train_seeds(self, first: int, given: dict[str, Any]) -> int:
        """Train several seeds, or go on with them, and print their returns; `given` are the arguments of `train`."""
        from hybridppo.tools.jobs import Run, train_missing
        from hybridppo.tools.plot import find_runs, groups_of, table_of

        if self.policies is not None:
            raise ConfigurationError("--seeds is for one policy: leave --policies out, or train one seed at a time")
        folder = self.run_dir or fresh_path(self.env_id, first)
        if (folder / "config.json").exists():
            raise ConfigurationError(f"{folder} is the folder of one run: name another one for {self.seeds} seeds")
        source_of(self.env_id)  # processes find what is found here
        if isinstance(given["placement"], Auto):
            given["placement"] = "cpu"
        steps, config = given.pop("total_steps"), given.pop("config")
        options = {name: value for name, value in given.items() if name not in ("progress", "verbose", "seed")}
        seeds = range(first, first + self.seeds)
        runs = [Run(folder / f"seed{seed}", self.env_id, steps, seed, config, options) for seed in seeds]
        try:
            with locked(folder):
                train_missing(runs, jobs=min(cpu_cores(), len(runs)), progress=self.progress)
        except KeyboardInterrupt:
            show(f"interrupted; go on with the same command, and --run-dir {folder} --seed {first}", file=sys.stderr)
            return EXIT_INTERRUPTED
        for run in runs:
            found = run.result() or {}
            means = {"training": found.get("episode_return_mean"), "evaluation": found.get("evaluation_return_mean")}
            texts = [f"{name}: {shown_return(mean)}" for name, mean in means.items() if mean is not None]
            show(f"seed {run.seed}: {', '.join(texts) or 'no whole episode'}")
        show(table_of(groups_of(find_runs(folder))))
        show(f"run directories: {folder}")
        return EXIT_DONE


@dataclass(frozen=True)
class Config(Train):
    """Print a file of options for `train --config`: hybridppo config CartPole-v1 > my.yaml.

    It has every option with its words and its default, or the value of a flag. Any line may be left out.
    """

    def run(self) -> int:
        """Print the options as YAML."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        lines = [f"# {command_line('hybridppo', 'train', '--config', 'FILE')}"]
        section = ""
        for flag in sorted(flags_of_command(Train, values), key=lambda flag: flag.name != "env_id"):
            if flag.name in ("debug", "settings_of", "tuned", "tuned_from", "seeds", "debug_training"):
                continue
            if flag.section != section:
                section = flag.section
                lines += ["", f"# -------- {self.agent.upper() if section == 'agent' else section} --------"]
            lines += ["", *textwrap.wrap(flag.words, 100, initial_indent="# ", subsequent_indent="# ")]
            lines.append(f"{'env' if flag.name == 'env_id' else flag.name}: {_as_yaml(flag.default)}")
        show("\n".join(lines))
        return EXIT_DONE


def _as_yaml(value: Any) -> str:
    """A value as YAML: as JSON, of which YAML has no infinity."""
    if value == math.inf:
        return ".inf"
    return json.dumps(str(value) if isinstance(value, Path) else value, allow_nan=False)


def train_command(arguments: Sequence[str], kind: type[Train] = Train) -> Train:
    """The command `train` with the flags of the agent that the arguments name, and their file of settings as defaults.

    Raises:
        RunDirectoryError: if there is no such file, or it is damaged.
        ConfigurationError: if an argument is wrong, the run has parts that only Python can make, or another agent than
            `--agent`.
    """
    first = None if not arguments or arguments[0].startswith("-") else arguments[0]
    defaults = _defaults(arguments, first)
    command = parse(kind, arguments, defaults)
    if command.tuned or command.tuned_from is not None:
        return parse(kind, arguments, command.tuned_defaults())
    if command.settings_of is not None and command.env_id != defaults.get("env_id"):  # its flags stood before it
        return parse(kind, arguments, _defaults(arguments, command.env_id))
    return command


def _defaults(arguments: Sequence[str], env_id: str | None) -> dict[str, Any]:
    """The defaults of the flags for the agent and the file that the arguments name."""
    agent, path = _value_among(arguments, "--agent"), _value_among(arguments, "--config")
    if path is None:
        return {} if agent is None else {"agent": agent, "config": config_type(agent)()}
    if is_config_file(path):
        found = read_config(path, env_id, agent)
        return {**found.groups, **{"env_id" if name == "env" else name: value for name, value in found.own.items()}}
    settings = Settings.read(RunDirectory.open(path))
    config, policies, own = settings.config, None, own_agent(agent)
    _require_no_python(path, settings, own)
    if isinstance(config, PoliciesConfig):
        config, policies = _shared_and_own(config)
    name = agent_class(config).name
    if agent is not None and own is not None:
        config, name = config.in_class(own.config_type), agent
    if agent not in (None, name):
        raise ConfigurationError(f"{path} has the settings of {name}: leave --agent out, or --config")
    has_placement = _value_among(arguments, "--placement") is not None
    environment = made(EnvironmentOptions, vars(settings.environment))
    if env_id not in (None, settings.env_id):  # which gets neither the arguments nor the imports of this one
        environment = replace(environment, env_kwargs=None, imports="")
    return {
        "env_id": env_id or settings.env_id,
        "agent": name,
        "options": settings.run,
        "placement": PlacementOptions() if has_placement else options_of(settings.placement),
        "environment": environment,
        "policies": policies,
        "config": config,
    }


def _require_no_python(path: str, settings: Settings, agent: type[Any] | None) -> None:
    """Refuse the settings of a run with parts that only Python can make again, except its agent if it is given."""
    needs = {name: part for name, part in settings.own.items() if name != "agent" or agent is None}
    agents = settings.config.agents if isinstance(settings.config, PoliciesConfig) else {}
    if any(policy_by_name(name) != policy for name, policy in agents.items()):
        needs["policy_of"] = "a function"
    if needs:
        parts = ", ".join(f"{name} ({value})" for name, value in needs.items())
        raise ConfigurationError(f"the run of {path} was given what only Python can make again: {parts}")


def _shared_and_own(config: PoliciesConfig) -> tuple[PPOConfig, dict[str, Any]]:
    """The settings of the first policy; and for every policy, the settings that differ from these."""
    of_each = {policy: each.to_json() for policy, each in config.policies.items()}
    shared = next(iter(of_each.values()))
    own = {
        policy: {name: value for name, value in each.items() if value != shared[name]}
        for policy, each in of_each.items()
    }
    return next(iter(config.policies.values())), own


def _value_among(arguments: Sequence[str], flag: str) -> str | None:
    """The value of the last flag of this name; None if there is none."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(flag, nargs="?", dest="value")
    return parser.parse_known_args(arguments)[0].value


def _changes() -> type[Any]:
    """The options that `resume` may change, and those of a placement; None keeps the run's own."""
    groups = (*GROUPS, PlacementOptions)
    sentences = {name: text for group in groups for name, text in helps(group).items()}
    flags = []
    for name, option in fields_of(*groups).items():
        is_of_placement = name in fields_of(PlacementOptions)
        if is_of_placement or option.metadata.get("changeable"):
            kind: Any = option.type
            more = "Needs --placement." if is_of_placement and name != "placement" else "None keeps the run's own."
            flag = tyro.conf.arg(help=f"{sentences.get(name, '')} {more}")
            flags.append((name, Annotated[kind | None, flag], field(default=None)))
    return make_dataclass("Changes", flags, frozen=True)


Changes = _changes()


@dataclass(frozen=True)
class Resume(Command):
    """Continue a run from its newest checkpoint."""

    run_dir: RunDir
    """The run's folder."""
    agent: OwnAgent = None
    """The class of the agent, if it is one of your own."""
    changes: Changes = field(default_factory=Changes)  # type: ignore[valid-type]
    progress: bool = True
    """Show a progress bar."""
    verbose: bool = False
    """Show a table of the metrics every few seconds, and at the end."""
    debug_training: bool = False
    """Train so that a debugger can follow: one process, gradients by autograd alone."""

    def run(self) -> int:
        """Resume, and print the result."""
        changes = asdict(self.changes)
        asked = {name: changes.pop(name) for name in fields_of(PlacementOptions)}
        placement = None if asked["placement"] is None else PlacementOptions(**asked).resolve()
        if placement is None:
            lag = asked.pop("max_lag")
            require_devices(**asked)
            if lag is not None:
                raise ConfigurationError(f"max_lag={lag} needs a placement that takes it: give --placement")
        further: dict[str, Any] = {"placement": placement, "progress": self.progress, "verbose": self.verbose}
        further |= {"debug": self.debug_training, "on_interrupt": "return", "agent": own_agent(self.agent)}
        return report(resume(self.run_dir, **further, **changes))


def report(result: TrainResult) -> int:
    """Print the result of a training and the path of its run directory; return the exit code."""
    if result.run_dir is None:  # one of several learners that torchrun has started: only the first reports
        return EXIT_INTERRUPTED if result.interrupted else EXIT_DONE
    if not result.saved:
        show(
            f"hybridppo: error: the last checkpoint is not on the disk (see above): {result.run_dir} ends with the one "
            "before it, or has none; make room and resume",
            file=sys.stderr,
        )
        return EXIT_ERROR
    if result.interrupted:
        show(f"interrupted; go on with: {command_line('hybridppo', 'resume', result.run_dir)}", file=sys.stderr)
        return EXIT_INTERRUPTED
    show(result)
    return EXIT_DONE
