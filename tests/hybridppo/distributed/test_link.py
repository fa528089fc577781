"""Learners that wait for a silent one, as if the network between their machines were cut: none waits for ever."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from processes import start_python
from test_learners import SECONDS, free_port

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot stop a process for a while")

LEARNER = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
from hybridppo.distributed import link as links
from hybridppo.errors import HybridPPOError
from hybridppo.system.signals import Interruption

rank, port, timeout, waits = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
links.SECONDS_TO_STOP = links.SECONDS_TO_EXPLAIN = 1.0
try:
    store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=timedelta(seconds=60))
    link = links.Link(store, rank, 2, timeout=timeout, start_timeout=60.0, store_at=("127.0.0.1", port))
    with Interruption() as interruption:
        link.should_stop = lambda: interruption.requested
        link.gather(b"")
        print("there", flush=True)
        sys.stdin.readline() if rank == 0 else {"gather": lambda: link.gather(b""), "hear": link.hear}[waits]()
except HybridPPOError as error:
    print(type(error).__name__, error, flush=True)
finally:
    link.close()
"""


@contextlib.contextmanager
def pair(timeout: float, waits: str = "gather", **variables: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Two learners; `variables` are those of the second."""
    port, both = free_port(), list["subprocess.Popen[str]"]()
    try:
        for rank, env in enumerate(({**os.environ}, {**os.environ, **variables})):
            arguments = (rank, port, timeout, waits)
            both.append(
                start_python("-c", LEARNER, *arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
        yield both
    finally:
        for process in both:
            process.kill()
            process.wait()


def stop_the_first(both: list["subprocess.Popen[str]"]) -> None:
    """Stop it when both are connected: its connections stay, and nothing answers any more."""
    for process in both:
        assert process.stdout is not None
        assert "there\n" in process.stdout  # after a line of torch 2.10's own
    os.kill(both[0].pid, signal.SIGSTOP)


@pytest.mark.parametrize("waits", ["gather", "hear"])
def test_one_that_waits_for_a_silent_learner_and_its_store_ends_in_time(waits: str) -> None:
    with pair(2.0, waits) as both:
        stop_the_first(both)
        out, err = both[1].communicate(timeout=SECONDS)
        assert out.startswith(f"LearnerLostError learner 0 of 2 (on {os.uname().nodename}) died, or did not"), out + err
        assert "did not answer for 2 s (worker_timeout). Check the network between the machines" in out


@pytest.mark.parametrize("waits", ["gather", "hear"])
def test_one_that_waits_for_a_silent_learner_stops_where_it_is_asked_to(waits: str) -> None:
    with pair(10**4, waits) as both:
        stop_the_first(both)
        os.kill(both[1].pid, signal.SIGTERM)
        out, err = both[1].communicate(timeout=SECONDS)
        assert "did not come as far within 1 s, after this one was asked to stop" in out, out + err


def test_learners_that_cannot_connect_say_so_on_both_sides_and_name_the_variable() -> None:
    with pair(10**4, GLOO_SOCKET_IFNAME="nowhere0") as both:
        first, second = (process.communicate(timeout=SECONDS)[0] for process in both)
        for out in (first, second):
            assert "learner 1 of 2" in out
            assert "cannot connect to the others by gloo" in out
            assert "GLOO_SOCKET_IFNAME, which is nowhere0" in out
