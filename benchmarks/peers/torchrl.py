"""TorchRL."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from cases import Case, Stopwatch

from peers import network


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of TorchRL, assembled as in its own scripts, without its log."""
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
        module, keys = _OfBatches(network(case, seen, int(space.n)), seen), ["logits"]
    else:
        module = torch.nn.Sequential(
            _OfBatches(network(case, seen, 2 * space.shape[0]), seen),  # type: ignore[index]
            NormalParamExtractor(),
        )
        keys = ["loc", "scale"]
    actor = ProbabilisticActor(
        TensorDictModule(module, in_keys=[key], out_keys=keys),
        in_keys=keys,
        spec=environments.action_spec,
        distribution_class=torch.distributions.Categorical if is_discrete else IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(_OfBatches(network(case, seen, 1), seen), in_keys=[key])
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=case.clip_range,
        entropy_coeff=case.entropy_coef,
        critic_coeff=case.value_coef / 2,  # its value loss lacks the half
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    advantages = GAE(gamma=case.gamma, lmbda=case.gae_lambda, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=case.learning_rate, eps=1e-5)
    rollout = TensorDictReplayBuffer(
        storage=LazyTensorStorage(case.batch_size),
        sampler=SamplerWithoutReplacement(),
        batch_size=case.minibatch_size,
    )
    total = (case.warmup + case.iterations) * case.batch_size
    collector = Collector(environments, actor, frames_per_batch=case.batch_size, total_frames=total)
    watch, steps = Stopwatch(case), 0
    for data in collector:
        sampled = time.perf_counter()
        with torch.no_grad():
            advantages(data)
        rollout.extend(data.reshape(-1))
        for _ in range(case.num_epochs * case.num_minibatches):
            losses = loss(rollout.sample())
            sum(losses[key] for key in ("loss_objective", "loss_critic", "loss_entropy")).backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), case.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
        steps += data.numel()
        watch.mark(sampled, steps)
    collector.shutdown()
    return watch.work_done()


class _OfBatches(torch.nn.Module):
    """A network of rows, for observations of environments by steps: convolutions take one leading dimension."""

    def __init__(self, rows: torch.nn.Module, seen: gym.Space[Any]) -> None:
        super().__init__()
        assert seen.shape is not None
        self.rows, self.shape = rows, seen.shape

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        leading = observations.shape[: observations.ndim - len(self.shape)]
        return self.rows(observations.reshape(-1, *self.shape)).reshape(*leading, -1)
