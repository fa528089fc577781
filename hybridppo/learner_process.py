"""The process of a learner, which another learner has started.

It makes its shards of the environments and an agent, takes the first learner's parameters, and trains with it. It ends
with the training, or with the process that has started it.
"""

import os
import sys
import threading
from typing import Any

import cloudpickle
from torch.distributed import Store  # type: ignore[attr-defined]

from hybridppo.agents.registry import make_agent
from hybridppo.distributed.learners import MultiLearnerStrategy, join_store
from hybridppo.environments.packages import import_modules, source_here
from hybridppo.placements.placement import Placement, placement_from_settings
from hybridppo.runners.process_group import report
from hybridppo.runners.processes import end_with_parent, leave_signals_to_the_trainer
from hybridppo.running import run_to_the_end
from hybridppo.self_play import with_self_play
from hybridppo.settings import Plan, Settings
from hybridppo.system.seeds import seed_globals, seed_of
from hybridppo.system.signals import Interruption


def main() -> None:
    """Train as the learner `RANK`; arguments: the PORT of the store, which has the setup, and RANK."""
    leave_signals_to_the_trainer()
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    store, rank = join_store(int(sys.argv[1])), int(sys.argv[2])
    try:
        _train(cloudpickle.loads(store.get("setup")), store, rank)
    except BaseException as error:
        report(store, rank, error)
        raise SystemExit(1) from None


def _train(setup: dict[str, Any], store: Store, rank: int) -> None:
    settings: Settings = setup["settings"]
    import_modules(settings.environment.imports)  # a module may register the device
    source = source_here(setup["source"], settings.environment.imports)
    with MultiLearnerStrategy(setup["policy"], settings.environment.worker_timeout, rank) as strategy:
        placement = strategy.placement(placement_from_settings(settings.placement))
        assert isinstance(placement, Placement)  # as it was for the first
        seed_globals(settings.seed, f"environments of learner {rank}")
        options = with_self_play(settings.environment, settings.run, settings.config)
        environments = strategy.environments(source, settings.config.num_envs, options, settings.run.num_workers)
        try:
            spaces = environments.observation_space, environments.action_space
            seed = seed_of(settings.seed, "agent")
            agent = make_agent(setup["kind"], *spaces, settings.config, seed=seed, **setup["own"])
            strategy.connect(store)
            run_to_the_end(Plan(source, settings, environments, agent, placement, Interruption()), strategy)
        finally:
            environments.close()


if __name__ == "__main__":
    main()
