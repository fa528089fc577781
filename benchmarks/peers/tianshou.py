"""Tianshou."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from cases import Case, Stopwatch


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of Tianshou's procedural API: a collector and an algorithm, without its trainer and its log."""
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor
    from tianshou.utils.torch_utils import policy_within_training_step
    from torch.distributions import Categorical, Independent, Normal

    if case.has_images:
        return {"left_out": "images are not tried"}
    environments = DummyVectorEnv([partial(gym.make, case.env_id)] * case.num_envs)
    one = gym.make(case.env_id)
    space, shape = one.action_space, one.observation_space.shape

    def net() -> Any:
        return Net(state_shape=shape, hidden_sizes=list(case.hidden_sizes), activation=torch.nn.Tanh)

    if isinstance(space, gym.spaces.Discrete):
        actor = DiscreteActor(preprocess_net=net(), action_shape=(int(space.n),), softmax_output=False)
        distribution: Any = lambda logits: Categorical(logits=logits)  # noqa: E731 - its own form
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=net(), action_shape=space.shape, unbounded=True)
        distribution = lambda outputs: Independent(Normal(*outputs), 1)  # noqa: E731 - its own form
    algorithm = PPO(
        policy=ProbabilisticActorPolicy(
            actor=actor, dist_fn=distribution, action_space=space, action_scaling=False, action_bound_method=None
        ),
        critic=ContinuousCritic(preprocess_net=net()),
        optim=AdamOptimizerFactory(lr=case.learning_rate, eps=1e-5),
        eps_clip=case.clip_range,
        vf_coef=case.value_coef / 2,  # its value loss lacks the half
        ent_coef=case.entropy_coef,
        max_grad_norm=case.max_grad_norm,
        gae_lambda=case.gae_lambda,
        gamma=case.gamma,
        max_batchsize=case.batch_size,
    )
    buffer = VectorReplayBuffer(case.batch_size, case.num_envs)
    collector = Collector(algorithm, environments, buffer)
    collector.reset()
    watch = Stopwatch(case)
    for _ in range(case.warmup + case.iterations):
        with policy_within_training_step(algorithm.policy):
            collector.collect(n_step=case.batch_size)
            sampled = time.perf_counter()
            algorithm.update(buffer=buffer, batch_size=case.minibatch_size, repeat=case.num_epochs)
        collector.reset_buffer(keep_statistics=True)
        watch.mark(sampled)
    return watch.work_done()
