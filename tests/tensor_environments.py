"""Environments of tensors for the tests to import; those of `hybridppo/environments/torch_cartpole.py` beside them."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor
from toy_environments import Script, scripted_end, scripted_reward

from hybridppo.environments.torch_cartpole import TorchCartPole


class ScriptedTensors:
    """Episodes that no action changes, a script for each environment, as `ScriptedEnv`; reset within the step."""

    single_observation_space: gym.Space[Any] = Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(
        self, scripts: Sequence[Script], *, gives_finals: bool = True, action_space: gym.Space[Any] | None = None
    ) -> None:
        self.num_envs, self.device = len(scripts), "cpu"
        self.single_action_space: gym.Space[Any] = Discrete(2) if action_space is None else action_space
        self.actions: list[Any] = []
        self._scripts, self._gives_finals = scripts, gives_finals
        self._episodes, self._steps = [-1] * self.num_envs, [0] * self.num_envs

    def reset(self, *, seed: int | None = None) -> Any:
        self._episodes, self._steps = [episode + 1 for episode in self._episodes], [0] * self.num_envs
        return self._observation(), {}

    def step(self, actions: Tensor) -> Any:
        self.actions.append(actions)
        now = list(zip(self._scripts, self._episodes, self._steps, strict=True))
        rewards = torch.tensor([scripted_reward(episode, step) for _, episode, step in now])
        ends = [scripted_end(script, episode, step) for script, episode, step in now]
        self._steps = [step + 1 for step in self._steps]
        finals = self._observation()
        for env, end in enumerate(ends):
            if any(end):
                self._episodes[env], self._steps[env] = self._episodes[env] + 1, 0
        terminated, truncated = (torch.tensor(flags) for flags in zip(*ends, strict=True))
        infos = {"final_obs": finals} if self._gives_finals else {}
        return self._observation(), rewards, terminated, truncated, infos

    def _observation(self) -> Tensor:
        return torch.tensor([self._episodes, self._steps], dtype=torch.float32).T.clone()


class Forgetful(TorchCartPole):
    """CartPole whose state cannot be saved, and that gives no final observations."""

    get_state = None  # type: ignore[assignment]

    def step(self, actions: Tensor) -> Any:
        return *super().step(actions)[:4], {}


class Guessing:
    """The action that an observation shows is worth 1: the choices, numbers or images of any space.

    Every episode has four steps, and all that is shown follows from the number of the step and of the environment.
    """

    def __init__(self, num_envs: int, observation: gym.Space[Any], action: gym.Space[Any], device: str = "cpu") -> None:
        self.num_envs, self.device = num_envs, device
        self.single_observation_space, self.single_action_space = observation, action
        self.actions: list[Any] = []
        self._time = 0

    def reset(self, *, seed: int | None = None) -> Any:
        self._time = 0
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        self.actions.append(actions)
        self._time += 1
        rewards = torch.ones(self.num_envs, device=self.device)
        nothing = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        is_cut = nothing | (self._time % 4 == 0)
        return self._seen(), rewards, nothing, is_cut, {"final_obs": self._seen(1)}

    def _seen(self, plus: int = 0) -> Any:
        self.single_observation_space.seed(self._time + plus)
        samples = [self.single_observation_space.sample() for _ in range(self.num_envs)]
        return batched(samples, self.device)


def batched(samples: Sequence[Any], device: str) -> Any:
    """Samples of a space as a batch of tensors, or a container of such."""
    first = samples[0]
    if isinstance(first, dict):
        return {key: batched([sample[key] for sample in samples], device) for key in first}
    if isinstance(first, tuple):
        return tuple(batched(list(part), device) for part in zip(*samples, strict=True))
    return torch.as_tensor(np.stack([np.asarray(sample) for sample in samples]), device=device)


class Broken(TorchCartPole):
    """CartPole whose step, from the third on, gives what `change` makes of its five results."""

    def __init__(self, num_envs: int, change: Callable[[list[Any]], Any], device: str = "cpu") -> None:
        super().__init__(num_envs, device)
        self._change, self._calls = change, 0

    def step(self, actions: Tensor) -> Any:
        self._calls += 1
        result = super().step(actions)
        return result if self._calls < 3 else self._change(list(result))
