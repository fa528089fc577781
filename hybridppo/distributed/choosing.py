"""The strategy of a training, and the run directory that it resumes."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hybridppo.distributed.strategy import Strategy, is_joining
from hybridppo.errors import ConfigurationError
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.settings import Central, Distributed, Local, MultiLearner, RunOptions, distributed_from

STARTERS = {
    "WORLD_SIZE": "torchrun", "SLURM_STEP_NUM_TASKS": "srun", "OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpiexec",
}  # fmt: skip
"""The variables in which programs that start several processes write their number."""


def require_alone(what: str, instead: str = "start") -> None:
    """Refuse to do the same in each of several processes that another program has started.

    Args:
        what: what each would do.
        instead: the remedy before "one process".

    Raises:
        ConfigurationError: if there are several.
    """
    for name, starter in STARTERS.items():
        if (number := os.environ.get(name, "1")) not in ("", "0", "1"):
            raise ConfigurationError(
                f"{starter} has started {number} processes ({name}), and {what}: {instead} one process. For work that "
                f"differs, unset {name}"
            )


def strategy_of(run: RunOptions, timeout: float) -> Strategy:
    """The strategy of the run. A process without an answer for `timeout` seconds is lost.

    Raises:
        ConfigurationError: if another program has started several processes, and this policy does not join them.
    """
    policy = distributed_from(run.distributed)
    if not (isinstance(policy, MultiLearner) and is_joining()):
        joined = "use torchrun and distributed='multi' (--distributed multi), or start"
        require_alone(f"with distributed={policy} each would train the same", joined)
    if isinstance(policy, MultiLearner):
        from hybridppo.distributed.learners import MultiLearnerStrategy  # loads torch.distributed

        return MultiLearnerStrategy(policy, timeout)
    if not isinstance(policy, Local):
        from hybridppo.distributed.ray_strategy import CentralStrategy, RayStrategy

        if isinstance(policy, Central):
            return CentralStrategy(policy, run.address)
        return RayStrategy(policy, run.address)
    return Strategy(policy)


@contextlib.contextmanager
def telling_others() -> Iterator[None]:
    """A context around a training, whose errors also reach the processes of torchrun that wait for this one."""
    Strategy.has_joined = False
    try:
        yield
    except BaseException as error:
        if is_joining() and not Strategy.has_joined:
            from hybridppo.distributed.learners import tell_others

            tell_others(error)
        raise


def run_directory_of(run_dir: str | Path, distributed: str | Distributed | None) -> RunDirectory:
    """Open the directory of a run to resume, and lock it until it is closed.

    If torchrun has started several learners, only the first needs it, and sends its settings to the others.

    Args:
        run_dir: the path of the run directory.
        distributed: how the resumed run is distributed; None for the run's own.
    """
    is_multi = distributed is None or isinstance(distributed_from(distributed), MultiLearner)
    if is_multi and is_joining() and os.environ["WORLD_SIZE"] != "1":
        from hybridppo.distributed.learners import run_directory_of_first

        return run_directory_of_first(run_dir, distributed)
    return RunDirectory.open_to_train(run_dir)
