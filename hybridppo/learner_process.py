"""A learner's process, started by `Launched` as `python -m hybridppo.learner_process PORT RANK SIZE`.

It makes its share of the environments and an agent, takes the first learner's parameters, and trains with it. It ends
with the training, or when its standard input ends, so that no learner outlives the first.
"""

import os
import sys
import threading
from typing import Any

import cloudpickle
from torch.distributed import Store  # type: ignore[attr-defined]

from hybridppo.agents.registry import make_agent
from hybridppo.distributed.launching import join_store
from hybridppo.distributed.learners import MultiLearnerStrategy, start_timeout
from hybridppo.distributed.link import Link, text_of
from hybridppo.environments.registration import import_modules, source_here
from hybridppo.job import Job
from hybridppo.placements.by_name import placement_from_settings
from hybridppo.placements.placement import Placement
from hybridppo.reporting.observers import Reporting
from hybridppo.runners.processes import leave_signals_to_the_trainer
from hybridppo.self_play import for_seats
from hybridppo.settings import Settings
from hybridppo.system.seeds import seed_globals, seed_of
from hybridppo.system.signals import Interruption
from hybridppo.training import run_to_the_end


def main() -> None:
    """Read the first learner's message, and train."""
    leave_signals_to_the_trainer()
    port, rank, size = map(int, sys.argv[1:])
    told = _message()
    threading.Thread(target=_end_with_input, daemon=True).start()
    setup = cloudpickle.loads(told)
    settings: Settings = setup["settings"]
    timeout = settings.environment.worker_timeout
    store = join_store(port, start_timeout(timeout))
    try:
        _train(setup, settings, store, rank, size)
    except BaseException as error:
        # If the first learner has written an error for this rank already, it shows that one.
        if not store.check([f"gone/{rank}"]):
            store.set(f"gone/{rank}", text_of(error))
        raise SystemExit(1) from None


def _train(setup: dict[str, Any], settings: Settings, store: Store, rank: int, size: int) -> None:
    import_modules(settings.environment.imports)  # a module may register the device
    source = source_here(setup["source"], settings.environment.imports)
    timeout = settings.environment.worker_timeout
    kind: type[MultiLearnerStrategy] = setup["strategy"]
    with kind(setup["policy"], rank, timeout, settings.run.address) as strategy:
        placement = strategy.placement(placement_from_settings(settings.placement))
        assert isinstance(placement, Placement)  # as it was for the first
        seed_globals(settings.seed, f"environments of learner {rank}")
        options = for_seats(settings.environment, settings.run, settings.config)
        environments = strategy.environments(source, settings.config.num_envs, options, settings.run.num_workers)
        try:
            spaces = environments.observation_space, environments.action_space
            seed = seed_of(settings.seed, "agent")
            agent = make_agent(setup["kind"], *spaces, settings.config, seed=seed, **setup["own"])
            strategy.link = Link(store, rank, size, timeout=timeout, start_timeout=start_timeout(timeout))
            quiet = Reporting(progress=False)
            job = Job(source, settings, environments, agent, placement, Interruption(), reporting=quiet)
            run_to_the_end(job, strategy)
        finally:
            environments.close()


def _message() -> bytes:
    """The message of the first learner: its length, and as many bytes."""
    length = int.from_bytes(sys.stdin.buffer.read(8), "little")
    data = sys.stdin.buffer.read(length)
    if not data or len(data) < length:  # the first learner is gone
        os._exit(1)
    return data


def _end_with_input() -> None:
    os.read(0, 1)  # it returns when the other end of the pipe is gone, because nothing more is ever written
    os._exit(1)


if __name__ == "__main__":
    main()
