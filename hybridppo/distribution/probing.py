"""The other of two learners, for as long as it takes to measure what crosses between them (`measuring.py`).

Started as `python -m hybridppo.distribution.probing ADDRESS`; it does what it is told to, and ends with the connection.
"""

from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch

from hybridppo.distribution.exchange import InSharedMemory
from hybridppo.distribution.link import Link
from hybridppo.distribution.meeting import join_store
from hybridppo.distribution.team import SECONDS_TO_START
from hybridppo.runners.workers.process import main


def serve(connection: "Connection[Any, Any]") -> None:
    """Meet the first, and then do what each message says, as often as it says."""
    connection.recv()  # which environments it has: none
    setup = cloudpickle.loads(connection.recv_bytes())
    torch.set_num_threads(1)
    store = join_store(setup["port"], SECONDS_TO_START)
    link = Link(store, 1, 2, timeout=SECONDS_TO_START, start_timeout=SECONDS_TO_START)
    exchange = InSharedMemory(link, 1, setup["columns"])
    connection.send(("ready", None, None))
    part = bytes(setup["bytes"])
    try:
        while True:
            kind, times = connection.recv()
            if kind == "close":
                return
            if kind == "answer":
                connection.send(("done", times, None))
                continue
            for _ in range(times):
                if kind == "exchange":
                    exchange.to_fill()
                    exchange.filled(asks=False)
                else:
                    link.gather(part)
    finally:
        exchange.close()
        link.close()


if __name__ == "__main__":
    main(serve)
