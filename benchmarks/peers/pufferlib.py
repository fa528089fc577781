"""PufferLib's trainer in torch, with gymnasium's environments in one process."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from cases import Case, Stopwatch

from peers import network


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of its `PuffeRL` with Adam, without its dashboard: `evaluate` samples and `train` learns.

    Minibatches are drawn with equal chances, as whole segments of `num_steps`. Rows that environments spend on a reset
    count as steps here, in its favor: it trains on them as on others.
    """
    folder = tempfile.TemporaryDirectory()  # until the process ends
    os.chdir(folder.name)  # where its import leaves a link
    from pufferlib.emulation import GymnasiumPufferEnv
    from pufferlib.pufferl import PuffeRL
    from pufferlib.vector import Serial, make

    if case.env_id not in gym.registry:
        return {"left_out": f"it wants gymnasium {gym.__version__}, which has no {case.env_id}"}
    if case.minibatch_size % case.num_steps:
        return {"left_out": "its minibatches are whole segments of all steps of an environment"}

    def environment(buf: Any = None, seed: int = 0) -> Any:
        return GymnasiumPufferEnv(env_creator=lambda: gym.make(case.env_id), buf=buf, seed=seed)

    vector = make(environment, num_envs=case.num_envs, backend=Serial, seed=0)

    class Policy(torch.nn.Module):
        """The case's two networks, as it takes a policy."""

        def __init__(self) -> None:
            super().__init__()
            space = vector.single_observation_space
            self.actor = network(case, space, int(vector.single_action_space.n))
            self.critic = network(case, space, 1)

        def forward(self, seen: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
            return self.actor(seen), self.critic(seen)

        forward_eval = forward

    watch = Stopwatch(case)
    config = {
        "seed": 0,
        "env": case.env_id,
        "torch_deterministic": True,
        "device": "cpu",
        "cpu_offload": False,
        "use_rnn": False,
        "compile": False,
        "precision": "float32",
        "data_dir": folder.name,
        "checkpoint_interval": 10**9,
        "total_timesteps": 10**9,
        "batch_size": case.batch_size,
        "bptt_horizon": case.num_steps,
        "minibatch_size": case.minibatch_size,
        "max_minibatch_size": case.minibatch_size,
        "update_epochs": case.num_epochs,
        "optimizer": "adam",
        "learning_rate": case.learning_rate,
        "anneal_lr": False,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-5,
        "gamma": case.gamma,
        "gae_lambda": case.gae_lambda,
        "clip_coef": case.clip_range,
        "vf_coef": case.value_coef,
        "vf_clip_coef": 1e9,
        "ent_coef": case.entropy_coef,
        "max_grad_norm": case.max_grad_norm,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.0,
        "prio_beta0": 1.0,
    }
    trainer = PuffeRL(config, vector, Policy())
    trainer.utilization.stop()
    trainer.print_dashboard = lambda *_, **__: None
    for _ in range(case.warmup + case.iterations):
        trainer.evaluate()
        sampled = time.perf_counter()
        trainer.train()
        watch.mark(sampled)
    vector.close()
    return watch.work_done()
