"""The cases' work in the words of other libraries, and a turn of each."""

import time
from functools import partial
from itertools import pairwise
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


def their_agent(case: Case, environments: Any) -> Any:
    """The case's work in the words of stable-baselines3: on the CPU, without a log."""
    from stable_baselines3 import PPO

    heads = list(case.hidden_sizes)
    policy: dict[str, Any] = {"net_arch": {"pi": heads, "vf": heads}, "activation_fn": torch.nn.Tanh}
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
        learning_rate=LEARNING_RATE,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP_RANGE,
        ent_coef=ENTROPY_COEF,
        vf_coef=VALUE_COEF / 2,  # its value loss lacks the half
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs=policy,
        seed=0,
        device="cpu",
        verbose=0,
    )


def their_environments(case: Case, vector: str, start_method: str | None = None) -> Any:
    """Its environments without a monitor: `dummy` steps them in turn, `subproc` each in a process of its own."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    makers = [partial(gym.make, case.env_id)] * case.num_envs
    if vector == "dummy":
        return DummyVecEnv(makers)
    return SubprocVecEnv(makers, start_method=start_method)


def run_stable_baselines3(case: Case, vector: str = "dummy", start_method: str | None = None) -> dict[str, Any]:
    """A turn of stable-baselines3, in environments that it makes."""
    environments = their_environments(case, vector, start_method)
    return learn_by_stable_baselines3(case, their_agent(case, environments))


def learn_by_stable_baselines3(case: Case, agent: Any) -> dict[str, Any]:
    """Its training: sampling is what its `collect_rollouts` does, learning the rest. Closes the environments."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Marking(BaseCallback):
        """Notes when rollouts begin and end; a rollout's beginning is the end of the iteration before."""

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
    agent.learn(total_steps, callback=callback, log_interval=None)  # None: never
    agent.get_env().close()
    marks = [
        Mark(end, env_steps, sampled - begin, end - sampled)
        for (begin, end), (sampled, env_steps) in zip(pairwise(callback.begins), callback.sampled, strict=True)
    ]
    return work_done(marks, case)


def run_skrl(case: Case) -> dict[str, Any]:
    """A turn of skrl on gymnasium's own vectorised environments: learning is what its `update` does, sampling the rest.

    Rows that environments spend on a reset count as steps here, in its favour: it trains on them like on others.
    """
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    def mlp(inputs: int, outputs: int) -> torch.nn.Sequential:
        layers: list[torch.nn.Module] = []
        for before, after in pairwise((inputs, *case.hidden_sizes)):
            layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(case.hidden_sizes[-1], outputs))

    class Policy(CategoricalMixin, Model):
        """Logits of the actions."""

        def __init__(self, environments: Any) -> None:
            spaces = {"observation_space": environments.observation_space, "action_space": environments.action_space}
            Model.__init__(self, **spaces, device="cpu")
            CategoricalMixin.__init__(self)
            self.net = mlp(self.num_observations, self.num_actions)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
            return self.net(inputs["observations"]), {}

    class Value(DeterministicMixin, Model):
        """A value."""

        def __init__(self, environments: Any) -> None:
            spaces = {"observation_space": environments.observation_space, "action_space": environments.action_space}
            Model.__init__(self, **spaces, device="cpu")
            DeterministicMixin.__init__(self)
            self.net = mlp(self.num_observations, 1)

        def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Any, dict[str, Any]]:
            return self.net(inputs["observations"]), {}

    torch.set_num_threads(1)
    torch.manual_seed(0)
    environments = wrap_env(gym.make_vec(case.env_id, num_envs=case.num_envs), verbose=False)
    marks: list[Mark] = []

    class Marked(PPO):
        """Notes when updates begin and end."""

        ended = 0.0

        def update(self, *, timestep: int, timesteps: int) -> None:
            begun = time.perf_counter()
            super().update(timestep=timestep, timesteps=timesteps)
            now = time.perf_counter()
            marks.append(Mark(now, (timestep + 1) * case.num_envs, begun - self.ended, now - begun))
            self.ended = now

    agent = Marked(
        models={"policy": Policy(environments), "value": Value(environments)},
        memory=RandomMemory(memory_size=case.num_steps, num_envs=case.num_envs, device="cpu"),
        observation_space=environments.observation_space,
        action_space=environments.action_space,
        device="cpu",
        cfg={
            "rollouts": case.num_steps,
            "learning_epochs": case.num_epochs,
            "mini_batches": case.num_minibatches,
            "discount_factor": GAMMA,
            "gae_lambda": GAE_LAMBDA,
            "learning_rate": LEARNING_RATE,
            "grad_norm_clip": MAX_GRAD_NORM,
            "ratio_clip": CLIP_RANGE,
            "value_clip": 0.0,
            "entropy_loss_scale": ENTROPY_COEF,
            "value_loss_scale": VALUE_COEF / 2,  # its value loss lacks the half
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
    )
    timesteps = (case.warmup + case.iterations) * case.num_steps
    settings = {"timesteps": timesteps, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=environments, agents=agent, cfg=settings).train()
    return work_done(marks, case)
