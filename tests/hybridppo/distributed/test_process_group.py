"""A group of two processes, one of which is silent or cannot be reached: the other ends with an error that names it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from processes import start_python
from test_learners import SECONDS, free_port

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot stop a process for a while"),
    pytest.mark.extras,
]

LEARNER = """
import sys
from datetime import timedelta
from types import SimpleNamespace
from torch.distributed import TCPStore
from hybridppo.errors import HybridPPOError
from hybridppo.runners import process_group

rank, port, timeout = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
process_group.SECONDS_TO_EXPLAIN = 1.0
try:
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=timedelta(seconds=60))
    group = process_group.ProcessGroup(store, rank, 2, timeout=timeout, start_timeout=60.0, is_local=sys.argv[4] == "1")
    group.own.requested = rank == 1
    assert group.gather(rank) == [0, 1] and group.asked
    assert group.broadcast({"rank": rank}) == {"rank": 0}
    print("there", flush=True)
    sys.stdin.readline() if rank == 0 else group.gather(None)
except HybridPPOError as error:
    print(type(error).__name__, error, flush=True)
"""


@contextlib.contextmanager
def pair(timeout: float, is_local: str = "1", **variables: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Two learners; `variables` are those of the second."""
    port, both = free_port(), list["subprocess.Popen[str]"]()
    try:
        for rank, env in enumerate(({**os.environ}, {**os.environ, **variables})):
            arguments = (rank, port, timeout, is_local)
            both.append(
                start_python("-c", LEARNER, *arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
        yield both
    finally:
        for process in both:
            process.kill()
            process.wait()


def test_one_that_waits_for_a_silent_learner_and_its_store_ends_in_time() -> None:
    with pair(2.0) as both:
        for process in both:
            assert process.stdout is not None
            assert "there\n" in process.stdout  # after a line of torch 2.10's own
        os.kill(both[0].pid, signal.SIGSTOP)  # its connections stay, and nothing answers any more
        out, err = both[1].communicate(timeout=SECONDS)
        assert out.startswith("LearnerLostError learner 0 of 2 died, or did not answer for 2 s (worker_timeout)"), err


def test_learners_that_cannot_connect_name_the_variable() -> None:
    with pair(10.0, "0", GLOO_SOCKET_IFNAME="nowhere0") as both:
        for process in both:
            out, err = process.communicate(timeout=SECONDS)
            assert out.startswith("DistributedError learner"), out + err
            assert "cannot connect to the others" in out
            assert "GLOO_SOCKET_IFNAME" in out
