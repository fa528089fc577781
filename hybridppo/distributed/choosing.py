"""Placement `auto` within a way to distribute, measured by the first learner on a part of the training."""

from dataclasses import replace
from typing import Any

from hybridppo.agents import PPOConfig
from hybridppo.auto.auto import Auto, Choice, Within, not_measured
from hybridppo.distributed_policies import Central, MultiLearner
from hybridppo.system.threads import cpu_cores


def choose_for_learners(
    policy: MultiLearner | Central,
    *,
    config: PPOConfig,
    total_steps: int,
    num_workers: int | None = None,
    seconds_to_make: float = 0.0,
    **training: Any,
) -> Choice:
    """Choose the number of torch threads of each learner, which samples and learns in turns on its part of the cores.

    The number of threads changes rounding, so it is chosen only if `torch_threads` is None.

    Args:
        policy: the policy, with the number of learners.
        config: the configuration of the training.
        total_steps: environment steps of the run; trials take at most 5 % of its time.
        num_workers: ignored, because trials have no workers.
        seconds_to_make: ignored, because trials make few environments.
        **training: the other arguments of `Auto.choose`.
    """
    learners = policy.learners
    assert learners is not None
    cores = max(1, cpu_cores() // learners)
    if config.torch_threads is not None:
        line = f"cpu within {policy}, the only candidate with torch_threads={config.torch_threads}"
        return not_measured("cpu", 0, config.torch_threads, line)
    if cores == 1:
        return not_measured(
            "cpu", 0, 1, f"cpu within {policy}, the only candidate: a learner has one of {cpu_cores()} cores"
        )
    part = share_of(config, policy)
    within = Within(str(policy), ("cpu",), cores)
    return Auto().choose(config=part, total_steps=total_steps // learners, within=within, **training)


def share_of(config: PPOConfig, policy: MultiLearner | Central) -> PPOConfig:
    """The configuration of a training with the work of one learner."""
    learners = policy.learners
    assert learners is not None
    if isinstance(policy, Central):
        num_minibatches = config.minibatches // learners
    else:  # each shard's gradient is computed separately
        num_minibatches = config.minibatches * (policy.num_shards // learners)
    share = replace(config, num_envs=config.num_envs // learners, num_minibatches=1)
    most = min(num_minibatches, share.units, share.batch_size // 2)
    possible = (count for count in range(most, 0, -1) if share.batch_size % count == 0)
    return replace(share, num_minibatches=next(possible, 1))
