"""The processes of learners on this machine: started, told what to do, and never left behind. Or torchrun's."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import Any

from hybridppo.runners.workers.interpreter import command_of
from hybridppo.runners.workers.process import signals_blocked

SECONDS_TO_CLOSE = 10.0
"""How long learners may take to end in good order before they are killed."""

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells the processes that it starts."""


def is_joining() -> bool:
    """Whether torchrun has started this process."""
    return set(TORCHRUN) <= os.environ.keys()


class Launched:
    """Learners 1 to `size - 1`, each `python -m hybridppo.training.learner_process`.

    Each reads what it is told from its standard input, and ends when that does: with this process, however it ends.

    Args:
        size: how many learners there are, with that of this process.
        port: of the store that they meet at, on this machine.
        setup: what all are told, pickled.
    """

    def __init__(self, size: int, port: int, setup: bytes) -> None:
        message = len(setup).to_bytes(8, "little") + setup
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for rank in range(1, size):
                command = command_of("hybridppo.training.learner_process", str(port), str(rank), str(size))
                with signals_blocked():
                    process = subprocess.Popen(command, stdin=subprocess.PIPE)
                self._processes[rank] = process
            for process in self._processes.values():
                # Not here: whoever does not read would hold this up for ever.
                threading.Thread(target=_tell, args=(process.stdin, message), daemon=True).start()
        except BaseException:
            self.close(0.0)
            raise

    def how_it_ended(self, rank: int) -> str | None:
        """Of a learner that has ended; "" of one that runs."""
        if rank not in self._processes:
            return None
        code = self._processes[rank].poll()
        if code is None:
            return ""
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    @property
    def pids(self) -> dict[int, int]:
        """The number of each learner's process, by its rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def close(self, seconds: float = SECONDS_TO_CLOSE) -> None:
        """Wait for all to end, and kill those that have not within so many seconds."""
        deadline = time.monotonic() + seconds
        for process in self._processes.values():
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()


def _tell(stdin: Any, message: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # it has died, or was let go of, which shows when it is waited for
        stdin.write(message)
        stdin.flush()
