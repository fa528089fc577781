"""Sample Factory, whose sampling waits for learning here as that of the others does, in one process."""

import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
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


def make(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> "gym.Env[Any, Any]":
    """An environment, as it asks for one."""
    return gym.make(name, render_mode=render_mode)


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of its APPO in serial mode: learning is what its learner's `train` does, sampling the rest."""
    from sample_factory.algo.learning.learner import Learner
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    if case.env_id not in gym.registry:
        return {"left_out": f"it wants gymnasium {gym.__version__}, which has no {case.env_id}"}
    register_env(case.env_id, make)
    marks: list[Mark] = []
    train, ended = Learner.train, time.perf_counter()

    def marked(learner: Any, batch: Any) -> Any:
        nonlocal ended
        begun = time.perf_counter()
        found = train(learner, batch)
        now = time.perf_counter()
        marks.append(Mark(now, int(learner.env_steps), begun - ended, now - begun))
        ended = now
        return found

    Learner.train = marked
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "env": case.env_id,
            "train_dir": folder,
            "experiment": "field",
            "device": "cpu",
            "serial_mode": True,
            "async_rl": False,
            "num_workers": 1,
            "num_envs_per_worker": case.num_envs,
            "worker_num_splits": 1,
            "decorrelate_envs_on_one_worker": False,
            "decorrelate_experience_max_seconds": 0,
            "rollout": case.num_steps,
            "batch_size": case.minibatch_size,
            "num_batches_per_epoch": case.num_minibatches,
            "num_epochs": case.num_epochs,
            "shuffle_minibatches": True,
            "train_for_env_steps": (case.warmup + case.iterations) * case.batch_size,
            "use_rnn": False,
            "recurrence": 1,
            "nonlinearity": "tanh",
            "actor_critic_share_weights": False,
            "normalize_input": False,
            "normalize_returns": False,
            "learning_rate": LEARNING_RATE,
            "gamma": GAMMA,
            "gae_lambda": GAE_LAMBDA,
            "ppo_clip_ratio": CLIP_RANGE,
            "ppo_clip_value": 1e9,
            "value_loss_coeff": VALUE_COEF / 2,  # its value loss lacks the half
            "exploration_loss_coeff": ENTROPY_COEF,
            "max_grad_norm": MAX_GRAD_NORM,
            "save_every_sec": 10**6,
        }
        flags = [f"--{name}={value}" for name, value in settings.items()]
        flags += ["--encoder_mlp_layers", *map(str, case.hidden_sizes)]
        parser, _ = parse_sf_args(flags)
        run_rl(parse_full_cfg(parser, flags))
    return work_done(marks, case)
