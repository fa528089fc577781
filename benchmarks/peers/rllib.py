"""RLlib."""

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from cases import Case, Mark, work_done


def scaled(env_id: str) -> gym.Env[Any, Any]:
    """The environment with images as numbers from 0 to 1, because RLlib's convolutions take no bytes."""
    env = gym.make(env_id)
    seen = gym.spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)
    return gym.wrappers.TransformObservation(env, lambda image: image.astype(np.float32) / 255, seen)


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of its PPO: on one core in one process, on more with a sampler on each."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    cores = len(os.sched_getaffinity(0))
    samplers = 0 if cores == 1 else cores
    ray.init(
        address="local",
        num_cpus=samplers + 1,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}},  # samplers import this file
    )
    register_env("scaled images", lambda _: scaled(case.env_id))
    widths = list(case.hidden_sizes)
    layers: dict[str, Any] = {"fcnet_hiddens": widths, "fcnet_activation": "tanh", "head_fcnet_hiddens": []}
    if case.has_images:
        layers = {
            "conv_filters": [(32, 8, 4), (64, 4, 2), (64, 3, 1)],
            "conv_activation": "relu",
            "head_fcnet_hiddens": widths,
            "head_fcnet_activation": "relu",
        }
    config = (
        PPOConfig()
        .environment("scaled images" if case.has_images else case.env_id)
        .env_runners(
            num_env_runners=samplers,
            num_envs_per_env_runner=case.num_envs // max(1, samplers),
            rollout_fragment_length=case.num_steps,
        )
        .learners(num_learners=0)
        .rl_module(model_config=DefaultModelConfig(vf_share_layers=False, **layers))
        .training(
            train_batch_size_per_learner=case.batch_size,
            minibatch_size=case.minibatch_size,
            num_epochs=case.num_epochs,
            lr=case.learning_rate,
            gamma=case.gamma,
            lambda_=case.gae_lambda,
            clip_param=case.clip_range,
            entropy_coeff=case.entropy_coef,
            vf_loss_coeff=case.value_coef / 2,  # its value loss lacks the half
            use_kl_loss=False,
            grad_clip=case.max_grad_norm,
        )
        .debugging(seed=1, log_level="ERROR")
    )
    algorithm = config.build_algo()
    marks: list[Mark] = []
    for _ in range(case.warmup + case.iterations):
        found = algorithm.train()
        marks.append(Mark(time.perf_counter(), int(found["env_runners"]["num_env_steps_sampled_lifetime"])))
    algorithm.stop()
    ray.shutdown()
    return work_done(marks, case)
