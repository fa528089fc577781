"""Sample Factory in one process. Sampling waits for learning, as with the other libraries."""

import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
from cases import Case, Stopwatch


def make(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> "gym.Env[Any, Any]":
    """Make an environment, with the arguments that Sample Factory passes."""
    return gym.make(name, render_mode=render_mode)


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of its APPO in serial mode: learning is the time in its learner's `train`, sampling the rest."""
    from sample_factory.algo.learning.learner import Learner
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    if case.env_id not in gym.registry:
        return {"left_out": f"it wants gymnasium {gym.__version__}, which has no {case.env_id}"}
    register_env(case.env_id, make)
    train, watch = Learner.train, Stopwatch(case)

    def marked(learner: Any, batch: Any) -> Any:
        sampled = time.perf_counter()
        found = train(learner, batch)
        watch.mark(sampled, int(learner.env_steps))
        return found

    Learner.train = marked
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "env": case.env_id,
            "train_dir": folder,
            "experiment": "field",
            "device": "gpu" if case.device == "cuda" else "cpu",
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
            "learning_rate": case.learning_rate,
            "gamma": case.gamma,
            "gae_lambda": case.gae_lambda,
            "ppo_clip_ratio": case.clip_range,
            "ppo_clip_value": 1e9,
            "value_loss_coeff": case.value_coef / 2,  # its value loss lacks the half
            "exploration_loss_coeff": case.entropy_coef,
            "max_grad_norm": case.max_grad_norm,
            "save_every_sec": 10**6,
        }
        flags = [f"--{name}={value}" for name, value in settings.items()]
        flags += ["--encoder_mlp_layers", *map(str, case.hidden_sizes)]
        parser, _ = parse_sf_args(flags)
        run_rl(parse_full_cfg(parser, flags))
    return watch.work_done()
