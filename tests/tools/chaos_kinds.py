"""The trainings of `chaos.py`: placements, and policies that divide a training among processes. Another is one line."""

from dataclasses import dataclass
from pathlib import Path

RAY = "ray::Remote"
MULTI = "hybridppo.learner_process"
COMMAND = ("-m", "hybridppo")


@dataclass(frozen=True)
class Kind:
    """A kind of training.

    Args:
        settings: flags of the command.
        reference: flags of a training in one process that ends with the same bits; None if a seed does not give the
            same bits again.
        workers: texts in the command lines of the processes that may be lost; empty if there are no such processes.
        replaces: whether a lost process is replaced, and the training continues.
        keeps_bits: whether a replacement changes no bit.
        seconds_to_start: seconds of the start within which faults may hit the trainer.
        command: the arguments of Python.
    """

    settings: str
    reference: str | None
    workers: tuple[str, ...] = ()
    replaces: bool = False
    keeps_bits: bool = True
    seconds_to_start: float = 3.0
    command: tuple[str, ...] = COMMAND


CPU = "--placement cpu"
WORKERS = f"{CPU} --num-workers 2"
OVERLAP = "--placement overlap --sampling-device cpu --learning-device cpu"
COPIES = f"{CPU} --vectorization sync"
"""The reference for REPLACING: restarts need copies, and an environment's own vectorised form has other bits."""
REPLACING = f"{CPU} --on-env-error restart --worker-timeout 20"
GRU = "--recurrent gru --recurrent-size 8 --sequence-length 8"
TENSORS = (str(Path(__file__).with_name("train_torch_cartpole.py")),)

KINDS = {
    "placements": {
        "cpu": Kind(CPU, CPU),
        "hybrid": Kind("--placement hybrid --sampling-device cpu --learning-device cpu", CPU),
        # Workers divide an environment's own vectorised form, and it seeds otherwise.
        "workers": Kind(WORKERS, WORKERS, ("",)),
        "overlap": Kind(OVERLAP, OVERLAP, ("",)),
    },
    "learners": {
        "multi": Kind(
            f"{COPIES} --distributed multi:2:2", f"{COPIES} --distributed multi:1:2", (MULTI,), seconds_to_start=15.0,
        ),
        "multi-gru": Kind(
            f"{COPIES} --distributed multi:2:2 {GRU}", f"{COPIES} --distributed multi:1:2 {GRU}", (MULTI,),
            seconds_to_start=15.0,
        ),
        "gpu": Kind(
            "--distributed gpu:2:2", "--distributed gpu:1:2", (MULTI,), seconds_to_start=15.0, command=TENSORS
        ),
    },
    "ray": {
        "coarse": Kind(
            f"{REPLACING} --distributed coarse:2", COPIES, (RAY,),
            replaces=True, keeps_bits=False, seconds_to_start=20.0,
        ),
        "central": Kind(f"{REPLACING} --distributed central:2", None, (RAY,), replaces=True, seconds_to_start=20.0),
        "fine": Kind(
            f"{REPLACING} --distributed fine:2", COPIES, (RAY,),
            replaces=True, keeps_bits=False, seconds_to_start=20.0,
        ),
    },
}  # fmt: skip
"""Groups of kinds by name."""
