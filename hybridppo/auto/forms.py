"""Updates in another arithmetic, measured: what `auto` tells of and never takes, for a seed would give other bits."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hybridppo.agents import PPO, PPOConfig
from hybridppo.auto.figures import FormFigures
from hybridppo.auto.portions import single_epoch
from hybridppo.auto.timing import stable_median
from hybridppo.compiled.modules import has_numba
from hybridppo.networks.precision import supports_bf16
from hybridppo.rollouts.rollout import Rollout
from hybridppo.system.threads import limit_threads

SECONDS_TO_LOAD = {"compiled_updates": 1.5, "precision": 0.1}
"""What to set aside until a form has made its first update."""


def measured_forms(
    agent: PPO,
    make_agent: Callable[[PPOConfig], PPO],
    rollout: Rollout,
    *,
    update: float,
    cores: int,
    can_afford: Callable[[float, str], bool],
    left: Callable[[], float],
) -> dict[str, FormFigures]:
    """Seconds of a whole update in other forms, with the configured number of threads and with one for each core.

    Args:
        agent: as configured, but that a rollout is one minibatch: `rollout`. It has learned from it before.
        make_agent: makes others, of other configurations.
        rollout: what is learned from.
        update: seconds of a whole update as configured.
        cores: of the CPU.
        can_afford: whether there is time for something; notes what there was not.
        left: seconds.
    """
    found: dict[str, FormFigures] = {}
    for label, changes in _forms(agent.config).items():
        (name,) = changes
        if not can_afford(SECONDS_TO_LOAD[name], label) or (name == "compiled_updates" and not _is_compiled(agent)):
            continue
        begun = time.perf_counter()
        other = make_agent(replace(agent.config, **changes))
        other.fill_pool(rollout)
        with single_epoch(agent), single_epoch(other):
            first = _seconds(other, rollout)
            loading = time.perf_counter() - begun - first
            reference = stable_median(lambda: _seconds(agent, rollout), 0.1 * left())
            configured = torch.get_num_threads()
            for threads in sorted({configured, cores}):
                if not can_afford(4 * reference, f"{label} with {threads} torch threads"):
                    break
                with limit_threads(threads):
                    start = loading + max(0.0, first - _seconds(other, rollout))
                    seconds = stable_median(partial(_seconds, other, rollout), 0.2 * left())
                said = label if threads == configured else f"{label} and torch_threads={threads}"
                found[said] = FormFigures(update * seconds / reference, start, threads)
    return found


def _forms(config: PPOConfig) -> dict[str, dict[str, Any]]:
    """What to set to learn in another arithmetic on this machine's CPU, by how that is written."""
    found: dict[str, dict[str, Any]] = {}
    if config.fast_updates and not config.compiled_updates and config.precision == "fp32" and has_numba():
        found["compiled_updates=True"] = {"compiled_updates": True}
    if config.precision == "fp32" and supports_bf16(torch.device("cpu")):
        found["precision='bf16'"] = {"precision": "bf16"}
    return found


def _is_compiled(agent: PPO) -> bool:
    """Whether compiled updates know the agent, and were compiled here before, which takes half a minute."""
    from hybridppo.agents.ppo.compiled_backend import MODULE, CompiledBackend

    return agent.memory is None and CompiledBackend.supports(agent) and MODULE.is_kept()


def _seconds(agent: PPO, rollout: Rollout) -> float:
    start = time.perf_counter()
    agent.update(rollout)
    return time.perf_counter() - start
