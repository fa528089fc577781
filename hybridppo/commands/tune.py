"""`hybridppo tune`: search for settings."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from hybridppo.commands.exits import EXIT_DONE
from hybridppo.commands.parsing import flags_of
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import command
from hybridppo.placements.by_name import make_placement
from hybridppo.runs.options import fields_of


@dataclass(frozen=True)
class Tune:
    """Search for settings of PPO with optuna; can be stopped, and asked for again to go on."""

    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
    """The environment."""
    total_steps: int = 100_000
    """Environment steps of each trial."""
    trials: int = 50
    """How many settings to try."""
    fixed: dict[str, Any] | None = None
    """Settings that are not searched: fields of PPOConfig, such as '{"recurrent": "lstm"}'."""
    environment: Annotated[EnvironmentOptions, tyro.conf.arg(name="")] = field(default_factory=EnvironmentOptions)
    start_from: str | None = None
    """A run directory, or a file that an agent was saved to, whose networks every trial starts from. Needs
    hidden_sizes, activation and normalize_observations in --fixed."""
    placement: Literal["cpu", "cuda", "migrate", "hybrid", "overlap"] = "cpu"
    """Where every trial samples and learns. Trials share the cores, and each is to have one."""
    sampling_device: str | None = None
    """Where migrate, hybrid and overlap sample; not given: cpu."""
    learning_device: str | None = None
    """Where migrate, hybrid and overlap learn; not given: cuda."""
    output: Path = Path("tune")
    """The folder of the search."""
    jobs: int | None = None
    """Runs at once; not given: as many as there are cores."""
    seed: int = 0
    """Of the search and of the runs."""
    progress: bool = True
    """Show a progress bar."""
    debug: bool = False
    """Show the traceback of an error."""

    def run(self) -> int:
        """Search, and say what was found."""
        from hybridppo.tools.experiments.search import tune

        where = {"sampling_device": self.sampling_device, "learning_device": self.learning_device}
        entry = tune(
            self.env_id,
            total_steps=self.total_steps,
            trials=self.trials,
            output=self.output,
            jobs=self.jobs,
            seed=self.seed,
            fixed=self.fixed,
            placement=make_placement(self.placement, **where),
            progress=self.progress,
            start_from=self.start_from,
            **asdict(self.environment),
        )
        print(f"best: return {entry.return_here:.1f}, mean of its seeds ({entry.source})")
        print(f"train with it: {command('hybridppo', 'train', self.env_id, *self._flags_of_train())}")
        return EXIT_DONE

    def _flags_of_train(self) -> list[str]:
        """The flags with which `train` trains what was searched for, by the settings that were found."""
        names = [*fields_of(EnvironmentOptions), "start_from", "placement", "sampling_device", "learning_device"]
        given = {**asdict(self), **asdict(self.environment)}
        usual = {**asdict(Tune(self.env_id)), **asdict(EnvironmentOptions())}
        changed = {name: given[name] for name in names if given[name] != usual[name]}
        return ["--tuned-from", str(self.output / "tuned.json"), *flags_of(changed)]
