"""TorchRL."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from cases import (
    CLIP_RANGE,
    ENTROPY_COEF,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE_COEF,
    Case,
    Mark,
    work_done,
)

from peers import network


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of TorchRL, as its own scripts put the parts together, without its log."""
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    environments = SerialEnv(case.num_envs, partial(GymEnv, case.env_id, categorical_action_encoding=True))
    one = gym.make(case.env_id)
    space, seen = one.action_space, one.observation_space
    key = "pixels" if case.has_images else "observation"
    is_discrete = isinstance(space, gym.spaces.Discrete)
    if isinstance(space, gym.spaces.Discrete):
        module, keys = network(case, seen, int(space.n)), ["logits"]
    else:
        module = torch.nn.Sequential(network(case, seen, 2 * space.shape[0]), NormalParamExtractor())  # type: ignore[index]
        keys = ["loc", "scale"]
    actor = ProbabilisticActor(
        TensorDictModule(module, in_keys=[key], out_keys=keys),
        in_keys=keys,
        spec=environments.action_spec,
        distribution_class=torch.distributions.Categorical if is_discrete else IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(network(case, seen, 1), in_keys=[key])
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=CLIP_RANGE,
        entropy_coeff=ENTROPY_COEF,
        critic_coeff=VALUE_COEF / 2,  # its value loss lacks the half
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    advantages = GAE(gamma=GAMMA, lmbda=GAE_LAMBDA, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE, eps=1e-5)
    rollout = TensorDictReplayBuffer(
        storage=LazyTensorStorage(case.batch_size),
        sampler=SamplerWithoutReplacement(),
        batch_size=case.minibatch_size,
    )
    total = (case.warmup + case.iterations) * case.batch_size
    collector = Collector(environments, actor, frames_per_batch=case.batch_size, total_frames=total)
    marks: list[Mark] = []
    ended, steps = time.perf_counter(), 0
    for data in collector:
        sampled = time.perf_counter()
        with torch.no_grad():
            advantages(data)
        rollout.extend(data.reshape(-1))
        for _ in range(case.num_epochs * case.num_minibatches):
            losses = loss(rollout.sample())
            sum(losses[key] for key in ("loss_objective", "loss_critic", "loss_entropy")).backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad()
        now, steps = time.perf_counter(), steps + data.numel()
        marks.append(Mark(now, steps, sampled - ended, now - sampled))
        ended = now
    collector.shutdown()
    return work_done(marks, case)
