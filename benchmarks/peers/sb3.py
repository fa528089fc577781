"""stable-baselines3, and what its relatives share with it."""

import importlib
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from cases import Case, Mark, work_done


def their_agent(case: Case, environments: Any, library: str = "stable_baselines3", name: str = "PPO") -> Any:
    """The case's settings for stable-baselines3 or a relative of it, without a log."""
    PPO = getattr(importlib.import_module(library), name)  # noqa: N806 - a class

    heads = list(case.hidden_sizes)
    policy: dict[str, Any] = {"net_arch": {"pi": heads, "vf": heads}}
    if library != "sbx":
        policy["activation_fn"] = torch.nn.Tanh  # that of sbx by itself
    if case.has_images:  # whose features extractor is the convolutions and the first hidden layer
        (features_dim,) = case.hidden_sizes
        policy = {
            "net_arch": {"pi": [], "vf": []},
            "features_extractor_kwargs": {"features_dim": features_dim},
            "share_features_extractor": False,
        }
    return PPO(
        "CnnPolicy" if case.has_images else "MlpPolicy",
        environments,
        n_steps=case.num_steps,
        n_epochs=case.num_epochs,
        batch_size=case.minibatch_size,
        learning_rate=case.learning_rate,
        gamma=case.gamma,
        gae_lambda=case.gae_lambda,
        clip_range=case.clip_range,
        ent_coef=case.entropy_coef,
        vf_coef=case.value_coef / 2,  # its value loss lacks the half
        max_grad_norm=case.max_grad_norm,
        policy_kwargs=policy,
        seed=0,
        device=case.device,
        verbose=0,
    )


def their_environments(case: Case, vector: str) -> Any:
    """Environments without a monitor: `dummy` steps them in turn, `subproc` each in a process of its own.

    Atari games pass through its own preprocessing, as its users have it; but rewards and lives are those of the game.
    """
    from stable_baselines3.common.atari_wrappers import AtariWrapper
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    is_game = case.env_id.startswith("ALE/")

    def make() -> Any:
        if not is_game:
            return gym.make(case.env_id)
        importlib.import_module("ale_py")  # which registers its games, in every process
        game = gym.make(case.env_id, frameskip=1)  # the wrapper skips frames
        return AtariWrapper(game, terminal_on_life_loss=False, clip_reward=False)

    makers = [make] * case.num_envs
    environments = DummyVecEnv(makers) if vector == "dummy" else SubprocVecEnv(makers)
    return VecFrameStack(environments, n_stack=4) if is_game else environments


def run(case: Case, checkouts: Path | None = None, vector: str = "dummy") -> dict[str, Any]:
    """A turn of stable-baselines3, with environments of its own making."""
    environments = their_environments(case, vector)
    return learn_by_stable_baselines3(case, their_agent(case, environments))


def learn_by_stable_baselines3(case: Case, agent: Any, **options: Any) -> dict[str, Any]:
    """Train: sampling is the time in its `collect_rollouts`, learning the rest. Closes the environments.

    `options` are further arguments of its `learn`.
    """
    from stable_baselines3.common.callbacks import BaseCallback

    class Marking(BaseCallback):
        """Notes when rollouts begin and end. A rollout begins when the iteration before it ends."""

        begins: list[float]
        sampled: list[tuple[float, int]]

        def _on_training_start(self) -> None:
            self.begins, self.sampled = [], []

        def _on_rollout_start(self) -> None:
            self.begins.append(time.perf_counter())

        def _on_rollout_end(self) -> None:
            self.sampled.append((time.perf_counter(), self.num_timesteps))

        def _on_training_end(self) -> None:
            self.begins.append(time.perf_counter())

        def _on_step(self) -> bool:
            return True

    torch.set_num_threads(1)
    callback = Marking()
    total_steps = (case.warmup + case.iterations) * case.batch_size
    agent.learn(total_steps, callback=callback, log_interval=None, **options)  # None: never
    agent.get_env().close()
    marks = [
        Mark(end, env_steps, sampled - begin, end - sampled)
        for (begin, end), (sampled, env_steps) in zip(pairwise(callback.begins), callback.sampled, strict=True)
    ]
    return work_done(marks, case)
