"""rsl_rl, whose environments are tensors: here gymnasium's own vector environments behind its `VecEnv`."""

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from cases import Case, Stopwatch


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of its runner without a log: learning is the time in its `update`, sampling the rest."""
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    space = gym.make(case.env_id).action_space
    if isinstance(space, gym.spaces.Discrete):
        return {"left_out": "its actions are continuous"}

    class Environments(VecEnv):
        """Gymnasium's environments as rsl_rl takes them."""

        num_envs, num_actions, device, cfg = case.num_envs, space.shape[0], "cpu", {}
        max_episode_length = 10**9  # gymnasium truncates

        def __init__(self) -> None:
            same_step = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
            self.vector = gym.make_vec(case.env_id, num_envs=case.num_envs, vector_kwargs=same_step)
            self.episode_length_buf = torch.zeros(case.num_envs, dtype=torch.long)
            self.seen = self.vector.reset(seed=0)[0]

        def get_observations(self) -> TensorDict:
            seen = torch.as_tensor(self.seen, dtype=torch.float32)
            if case.has_images:
                seen = seen.movedim(-1, 1) / 255
            return TensorDict({"seen": seen}, batch_size=[case.num_envs])

        def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
            moves = actions.numpy().clip(space.low, space.high)
            self.seen, rewards, ended, truncated, _ = self.vector.step(moves)
            done, late = torch.as_tensor(ended | truncated), torch.as_tensor(truncated)
            rewards = torch.as_tensor(rewards, dtype=torch.float32)
            return self.get_observations(), rewards, done, {"time_outs": late.float()}

    layers: dict[str, Any] = {"class_name": "rsl_rl.models.MLPModel", "activation": "tanh"}
    if case.has_images:
        convolutions = {"output_channels": (32, 64, 64), "kernel_size": (8, 4, 3), "stride": (4, 2, 1)}
        layers = {
            "class_name": "rsl_rl.models.CNNModel",
            "activation": "relu",
            "cnn_cfg": {**convolutions, "activation": "relu"},
        }
    layers["hidden_dims"] = case.hidden_sizes
    config = {
        "obs_groups": {"actor": ["seen"], "critic": ["seen"]},
        "actor": {**layers, "distribution_cfg": {"class_name": "rsl_rl.modules.GaussianDistribution"}},
        "critic": dict(layers),
        "num_steps_per_env": case.num_steps,
        "save_interval": 10**9,
        "algorithm": {
            "class_name": "rsl_rl.algorithms.PPO",
            "num_learning_epochs": case.num_epochs,
            "num_mini_batches": case.num_minibatches,
            "clip_param": case.clip_range,
            "gamma": case.gamma,
            "lam": case.gae_lambda,
            "value_loss_coef": case.value_coef / 2,  # its value loss lacks the half
            "entropy_coef": case.entropy_coef,
            "learning_rate": case.learning_rate,
            "max_grad_norm": case.max_grad_norm,
            "schedule": "fixed",
            "use_clipped_value_loss": False,
            "normalize_advantage_per_mini_batch": True,
        },
    }
    runner = OnPolicyRunner(Environments(), config, log_dir=None, device="cpu")
    update, watch = runner.alg.update, Stopwatch(case)

    def marked() -> Any:
        sampled = time.perf_counter()
        losses = update()
        watch.mark(sampled)
        return losses

    runner.alg.update = marked
    runner.learn(case.warmup + case.iterations)
    return watch.work_done()
