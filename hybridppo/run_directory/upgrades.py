"""Upgrades checkpoints and `config.json` of earlier format versions: a function for each step.

1: the first. 2: checkpoints have a score. 3: the rollout under way is named `buffer`, and restarts are counted for
sub-environments. 4: networks with a memory have another default number of minibatches. 5: one sampler samples several
policies.
"""

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

logger = logging.getLogger(__name__)

FORMAT_VERSION = 5
"""The format version that is written now."""

Header = dict[str, Any]

_BUFFER = "sampler.buffer."
_BUFFER_OF_2 = "sampler.block."


def upgraded_header(header: Header, version: int) -> Header:
    """A header of an earlier format version, as it would be written now."""
    for step in _STEPS[version - 1 :]:
        header = step(header)
    return header


def upgraded_config(config: dict[str, Any]) -> dict[str, Any]:
    """The contents of an earlier run's `config.json`, as they would be written now; changes are logged."""
    of_agent = config.get("config")
    if config.get("format_version", 1) < 4 and isinstance(of_agent, dict) and of_agent.get("recurrent") is not None:
        of_agent = _with_minibatches_of_3(of_agent)
        config = {**config, "config": of_agent}
    num_envs = of_agent.get("num_envs") if isinstance(of_agent, dict) else None
    if config.get("vectorization") != "async" or num_envs is None:
        return config
    num_workers = config.get("num_workers") or num_envs
    logger.warning(
        "the run was begun with vectorization='async', which is now num_workers=%s; num_workers=0 (--num-workers 0) "
        "steps its environments in one process",
        num_workers,
    )
    return {**config, "vectorization": "sync", "num_workers": num_workers}


def upgraded_names(tensors: dict[str, Tensor], version: int) -> dict[str, Tensor]:
    """Tensors by their present names, without those that are not used any more.

    In the present format, a part of the user's own may have any name.
    """
    if version == FORMAT_VERSION:
        return tensors
    return {now: tensor for name, tensor in tensors.items() if (now := _name_of(name)) is not None}


def _name_of(name: str) -> str | None:
    first, part, rest = (*name.split(".", 2), "", "")[:3]
    if first == "policies":  # a policy may have any name
        return name
    if part == "agent":  # of one of several policies
        return f"policies.{first}.{rest}"
    if part in ("sampler", "rollout", "placement"):
        return None
    if not name.startswith(_BUFFER_OF_2):
        return name
    array = name.removeprefix(_BUFFER_OF_2)
    return _BUFFER + ("restarted" if array == "remade" else array)


def _with_score(header: Header) -> Header:
    """Compute the score from the statistics of the latest 100 episodes."""
    returns = header["state"]["sampler"]["statistics"]["returns"]
    return {**header, "score": sum(returns) / 100.0 if len(returns) == 100 else None}


def _with_sub_environments(header: Header) -> Header:
    environments = header["state"]["sampler"].get("environments", {})
    for state in environments.get("states", []):
        if "copy" in state:
            of_copy = dict(state.pop("copy"))
            state["sub_environment"] = {**of_copy, "times_restarted": of_copy.pop("times_remade")}
    return header


def _with_minibatches_of_3(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with a memory, in which the default number of minibatches of format 3 is written out.

    With whole episodes, the present default is used.
    """
    num_envs, num_steps, length = (config.get(name) for name in ("num_envs", "num_steps", "sequence_length"))
    sizes = [size for size in (num_envs, num_steps, length) if isinstance(size, int) and size > 0]
    is_given = config.get("num_minibatches") is not None or config.get("episodes_per_rollout") is not None
    if is_given or len(sizes) < 3:
        return config
    num_samples, num_sequences = sizes[0] * sizes[1], sizes[0] * -(-sizes[1] // sizes[2])
    most = max(1, min(32, num_samples // 64))
    count = min(next(count for count in range(most, 0, -1) if num_samples % count == 0), num_sequences)
    return {**config, "num_minibatches": count} if num_samples % count == 0 else config


def _with_one_sampler(header: Header) -> Header:
    """Join the samplers of several policies into one. Their rollouts under way are dropped."""
    state = header["state"]
    if "policies" not in state:
        return header
    policies, runner = state["policies"], dict(state["runner"])
    runner.pop("has_sampled")
    samplers = {name: of_policy["sampler"] for name, of_policy in policies.items()}
    statistics = [sampler["statistics"] for sampler in samplers.values()]
    num_columns = sum(len(each["running_return"]) for each in statistics)
    sampler = {
        "env_steps": runner["metrics"].get("env_steps", 0),
        "noise": next(iter(samplers.values()))["noise"],
        "statistics": {
            "episodes": sum(each["episodes"] for each in statistics),
            "running_return": [0.0] * num_columns,
            "running_length": [0] * num_columns,
            "returns": [value for each in statistics for value in each["returns"]][-100:],
            "lengths": [value for each in statistics for value in each["lengths"]][-100:],
        },
        "by_policy": {
            name: {"agent_steps": each["env_steps"], "statistics": each["statistics"]}
            for name, each in samplers.items()
        },
        "environments": {"not_saved": "an earlier release saved those of several policies otherwise"},
    }
    agents = {name: of_policy["agent"] for name, of_policy in policies.items()}
    version = max(agent["version"] for agent in agents.values())
    agent = {"version": version, "policies": agents, "learned": {}}
    return {**header, "state": {"agent": agent, "sampler": sampler, "runner": runner}}


_STEPS: tuple[Callable[[Header], Header], ...] = (
    _with_score,
    _with_sub_environments,
    lambda header: header,
    _with_one_sampler,
)
"""The steps from each earlier format version to the next."""
