"""rl_games, whose own vectors of gymnasium's environments need Ray: here gymnasium's vectors behind its `IVecEnv`."""

import importlib
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
from cases import Case, Stopwatch


def run(case: Case, checkouts: Path | None = None) -> dict[str, Any]:
    """A turn of its PPO without a log: `play_steps` samples, and the rest of an iteration learns.

    It does not shuffle rows: minibatches are the same in every epoch.
    """
    from rl_games.common import env_configurations, vecenv
    from rl_games.common.ivecenv import IVecEnv
    from rl_games.torch_runner import Runner

    class Environments(IVecEnv):
        """Gymnasium's environments as rl_games takes them."""

        def __init__(self, *_: Any, **__: Any) -> None:
            restarts = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
            if is_game:  # ale-py's own vector, which preprocesses in C++
                options: dict[str, Any] = {"vectorization_mode": "vector_entry_point", "num_threads": 1, **restarts}
            else:  # CartPole's own vector does not restart in the same step
                options = {"vectorization_mode": "sync", "vector_kwargs": restarts}
            self.vector = gym.make_vec(case.env_id, num_envs=case.num_envs, **options)

        def reset(self) -> Any:
            return self.vector.reset(seed=0)[0]

        def step(self, actions: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
            seen, rewards, ended, truncated, _ = self.vector.step(actions)
            return seen, rewards, ended | truncated, {"time_outs": truncated}

        def get_env_info(self) -> dict[str, Any]:
            vector = self.vector
            return {
                "observation_space": vector.single_observation_space, "action_space": vector.single_action_space,
                "agents": 1, "value_size": 1,
            }  # fmt: skip

    if is_game := case.env_id.startswith("ALE/"):
        importlib.import_module("ale_py")  # which registers its games
    vecenv.register("gymnasium", Environments)
    env_configurations.register("case", {"vecenv_type": "gymnasium", "env_creator": Environments})
    is_discrete = isinstance(gym.make(case.env_id).action_space, gym.spaces.Discrete)
    plain = {"name": "default"}
    continuous = {
        "mu_activation": "None", "sigma_activation": "None", "mu_init": plain, "fixed_sigma": True,
        "sigma_init": {"name": "const_initializer", "val": 0},
    }  # fmt: skip
    convolutions = [
        {"filters": filters, "kernel_size": size, "strides": stride, "padding": 0}
        for filters, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    ]
    activation = "relu" if case.has_images else "tanh"
    network = {
        "name": "actor_critic",
        "separate": True,
        "space": {"discrete": {}} if is_discrete else {"continuous": continuous},
        "mlp": {"units": list(case.hidden_sizes), "activation": activation, "initializer": plain},
    }
    if case.has_images:
        network["cnn"] = {"type": "conv2d", "activation": "relu", "initializer": plain, "convs": convolutions}
        network["cnn"]["permute_input"] = not is_game  # whose channels are first
    watch = Stopwatch(case)
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "name": "case",
            "env_name": "case",
            "train_dir": folder,
            "device": case.device,
            "num_actors": case.num_envs,
            "horizon_length": case.num_steps,
            "minibatch_size": case.minibatch_size,
            "mini_epochs": case.num_epochs,
            "ppo": True,
            "reward_shaper": {"scale_value": 1.0},
            "lr_schedule": None,
            "learning_rate": case.learning_rate,
            "gamma": case.gamma,
            "tau": case.gae_lambda,
            "e_clip": case.clip_range,
            "clip_value": False,
            "critic_coef": case.value_coef,
            "entropy_coef": case.entropy_coef,
            "bounds_loss_coef": 0.0,
            "grad_norm": case.max_grad_norm,
            "truncate_grads": True,
            "normalize_advantage": True,
            "normalize_input": False,
            "normalize_value": False,
            "print_stats": False,
        }
        runner = Runner()
        runner.load_config({
            "seed": 1, "torch_threads": 1, "algo": {"name": "a2c_discrete" if is_discrete else "a2c_continuous"},
            "model": {"name": "discrete_a2c" if is_discrete else "continuous_a2c_logstd"}, "network": network,
            "config": config,
        })  # fmt: skip
        agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
        agent.init_tensors()
        agent.obs = agent.env_reset()
        play, sampled = agent.play_steps, 0.0

        def played() -> Any:
            nonlocal sampled
            batch = play()
            sampled = time.perf_counter()
            return batch

        agent.play_steps = played
        for _ in range(case.warmup + case.iterations):
            agent.update_epoch()
            agent.train_epoch()
            watch.mark(sampled)
    return watch.work_done()
