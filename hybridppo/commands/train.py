"""`hybridppo train`: train an agent."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from hybridppo.agents import PPOConfig
from hybridppo.agents.registry import AGENTS
from hybridppo.auto.named import PlacementOptions
from hybridppo.commands.exits import EXIT_DONE, EXIT_INTERRUPTED, report
from hybridppo.commands.parsing import parse
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import ConfigurationError, pip_install
from hybridppo.reporting.pictures import has_matplotlib, plot_learning_curve
from hybridppo.run_directory.directory import fresh_path
from hybridppo.runs.options import RunOptions
from hybridppo.system.seeds import fresh_seed
from hybridppo.training.train import train

AgentName = Literal["ppo", "ddpg", "td3"]


@dataclass(frozen=True)
class Train:
    """Train an agent in a gymnasium environment."""

    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
    """The environment, as registered with gymnasium."""
    agent: AgentName = "ppo"
    """What learns. Its settings are flags: --agent td3 --help shows those of TD3."""
    options: Annotated[RunOptions, tyro.conf.arg(name="")] = field(
        default_factory=lambda: RunOptions(total_steps=500_000)
    )
    placement: Annotated[PlacementOptions, tyro.conf.arg(name="")] = field(default_factory=PlacementOptions)
    environment: Annotated[EnvironmentOptions, tyro.conf.arg(name="")] = field(default_factory=EnvironmentOptions)
    tuned: bool = False
    """Begin with settings and steps that are known to suit the environment; other flags change them. Not every
    environment has an entry."""
    tuned_from: Path | None = None
    """Likewise, from a file of one's own, as `hybridppo tune` writes it."""
    run_dir: Path | None = None
    """The folder to make and write to; without it, a fresh one under runs/."""
    compiled: bool = False
    """Let Numba compile the environments, if they have a compiled form, and the updates of multilayer perceptrons on a
    CPU: --vectorization compiled and --compiled-updates in one (needs the extra "compiled")."""
    profile: bool = False
    """Write a trace of a few iterations into the run directory, for chrome://tracing or https://ui.perfetto.dev."""
    plot: bool = False
    """Draw the learning curve into the run directory, where matplotlib is installed."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""
    config: Annotated[PPOConfig, tyro.conf.arg(name="")] = field(default_factory=PPOConfig)

    def with_tuned_defaults(self, default: "Train | None" = None) -> "Train":
        """The command as it is without other flags than `--tuned` and `--tuned-from`.

        Args:
            default: the command without any flag; None for the library's.

        Raises:
            ConfigurationError: for an environment without an entry, and for another agent than PPO.
        """
        from hybridppo.tools.experiments.tuning import tuned_entry

        if type(self) is not Train:
            raise ConfigurationError("--tuned has settings of PPO: leave --agent out, or --tuned")
        default = Train(self.env_id) if default is None else default
        entry = tuned_entry(self.env_id, self.tuned_from)
        options = replace(default.options, total_steps=entry.total_steps)
        return replace(default, options=options, tuned=True, tuned_from=self.tuned_from, config=entry.config)

    def run(self) -> int:
        """Train, and say what came of it."""
        if self.tuned:
            from hybridppo.tools.experiments.tuning import tuned_entry

            print(f"tuned: {tuned_entry(self.env_id, self.tuned_from)}")
        seed = fresh_seed() if self.options.seed is None else self.options.seed
        result = train(
            self.env_id,
            placement=self.placement.resolve(),
            config=self.config,
            run_dir=self.run_dir or fresh_path(self.env_id, seed),
            compiled=self.compiled,
            profile=self.profile,
            progress=self.progress,
            on_interrupt="return",
            **{**asdict(self.options), **asdict(self.environment), "seed": seed},
        )
        if result.run_dir is None:  # of learners that torchrun has started, the first says it
            return EXIT_INTERRUPTED if result.interrupted else EXIT_DONE
        if self.plot and result.metrics:
            if has_matplotlib():
                print(f"learning curve: {plot_learning_curve(result.run_dir)}")
            else:
                print(f"no learning curve: matplotlib is not installed ({pip_install('plot')})")
        return report(result)


def train_command(arguments: Sequence[str]) -> type[Train]:
    """`Train` with the flags of the agent that the arguments name."""
    name = _agent_among(arguments)
    if name == "ppo" or name not in AGENTS:  # what there is not, its own flag refuses
        return Train
    config = AGENTS[name].config
    fields: list[Any] = [
        ("agent", AgentName, field(default=name)),
        ("config", Annotated[config, tyro.conf.arg(name="")], field(default_factory=config)),
    ]
    made = make_dataclass("Train", fields, bases=(Train,), frozen=True, namespace={"__module__": __name__})
    made.__doc__ = Train.__doc__
    return made


def parse_train(arguments: Sequence[str], default: Train, **options: Any) -> Train:
    """`train` alone, without its name, from `default` and flags; `options` as for `parse`."""
    kind = train_command(arguments)
    if kind is not Train:  # whose settings are not those of `default`
        kept = {
            each.name: getattr(default, each.name) for each in fields(Train) if each.name not in ("agent", "config")
        }
        default = kind(**kept)
    parsed: Train = tuned_or(
        lambda tuned: parse(kind, arguments=arguments, default=tuned or default, **options), default
    )
    return parsed


def tuned_or(parse_from: Callable[["Train | None"], Any], default: Train | None = None) -> Any:
    """What `parse_from` finds; with `--tuned` or `--tuned-from`, its flags change the tuned settings instead.

    Args:
        parse_from: parses the arguments, from another command than its own default where one is given.
        default: the command without any flag; None for the library's.
    """
    command = parse_from(None)
    if isinstance(command, Train) and (command.tuned or command.tuned_from is not None):
        return parse_from(command.with_tuned_defaults(default))
    return command


def _agent_among(arguments: Sequence[str]) -> str:
    """The last value that the flag is given; PPO where it is not."""
    name = "ppo"
    for i, argument in enumerate(arguments):
        if argument == "--agent" and i + 1 < len(arguments):
            name = arguments[i + 1]
        elif argument.startswith("--agent="):
            name = argument.partition("=")[2]
    return name
