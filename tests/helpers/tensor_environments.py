"""Batched environments for the tests to import; those of `hybridppo/environments/torch_cartpole.py` beside them."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor
from toy_environments import Script, scripted_end, scripted_reward

from hybridppo.environments.torch_cartpole import TorchCartPole


class ScriptedTensors:
    """Episodes that no action changes, a script for each environment, like `ScriptedEnv`; reset within the step."""

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
    """CartPole with a state that cannot be saved, and without final observations."""

    get_state = None  # type: ignore[assignment]

    def step(self, actions: Tensor) -> Any:
        return *super().step(actions)[:4], {}


class Guessing:
    """The action that an observation shows is rewarded by 1: the choices, numbers or images of any space.

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


class Grouped(TorchCartPole):
    """CartPole in observation groups, like Isaac Lab's; `critic` has the step of the episode, and two squares."""

    single_observation_space: Any = gym.spaces.Dict(
        policy=TorchCartPole.single_observation_space, critic=Box(-np.inf, np.inf, (3,), np.float32)
    )

    def reset(self, *, seed: int | None = None) -> Any:
        return self._grouped(super().reset(seed=seed)[0]), {}

    def step(self, actions: Tensor) -> Any:
        steps = self._steps + 1
        observations, *others, infos = super().step(actions)
        finals = self._grouped(infos["final_obs"], steps)
        return self._grouped(observations), *others, {"final_obs": finals}

    def _grouped(self, observations: Tensor, steps: Tensor | None = None) -> Any:
        steps = self._steps if steps is None else steps
        goes = observations[:, 1:3]
        return {"policy": observations, "critic": torch.cat((steps[:, None].float(), goes.square()), 1)}


class Broken(TorchCartPole):
    """CartPole; from the third step on, `change` alters the step's five results."""

    def __init__(self, num_envs: int, change: Callable[[list[Any]], Any], device: str = "cpu") -> None:
        super().__init__(num_envs, device)
        self._change, self._calls = change, 0

    def step(self, actions: Tensor) -> Any:
        self._calls += 1
        result = super().step(actions)
        return result if self._calls < 3 else self._change(list(result))


class Flocks:
    """Agents of two kinds, each of which must do what it observes; they leave one after the other.

    A `sign` observes one of four numbers, one-hot in four, and names it. A `pointer` observes numbers, of which the
    second is the target, and gives numbers, of which the first is to be near it. With `alike`, both are signs; with
    `images`, pointers observe an image, whose first pixel is the target. The `i`-th agent of an environment leaves
    after `length - i` steps, and every second one is truncated.
    """

    policies: ClassVar = {"sign": 2, "pointer": 1}

    def __init__(
        self,
        num_envs: int,
        alike: bool = False,
        gives_finals: bool = True,
        length: int = 6,
        device: str = "cpu",
        images: bool = False,
    ) -> None:
        self.num_envs, self.device, self._length, self._gives_finals = num_envs, device, length, gives_finals
        sign = Box(0.0, 1.0, (4,), np.float32), Discrete(4)
        numbers = Box(0, 255, (4, 4, 1), np.uint8) if images else Box(-1.0, 1.0, (6,), np.float32)
        pointer = sign if alike else (numbers, Box(-1.0, 1.0, (2,), np.float32))
        self._images = images
        self.single_observation_space = gym.spaces.Dict({"sign": sign[0], "pointer": pointer[0]})
        self.single_action_space = gym.spaces.Dict({"sign": sign[1], "pointer": pointer[1]})
        self.state_space = Box(-np.inf, np.inf, (2,))
        self.actions: list[Any] = []
        self.time = torch.zeros(num_envs, dtype=torch.int64, device=device)
        """`[N]`, steps of the episodes."""
        self.count = torch.zeros(num_envs, dtype=torch.int64, device=device)
        """`[N]`, total steps: observations follow from these."""
        self.seed = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._ends = self._length - torch.arange(3, device=device)

    def reset(self, *, seed: int | None = None) -> Any:
        if seed is not None:
            self.seed.copy_((seed + torch.arange(self.num_envs, device=self.device)) % 1000)
            self.count.zero_()
        self.time.zero_()
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        self.actions.append(actions)
        seen = self._seen()
        rewards = {kind: self._rewards(seen[kind], actions[kind]) for kind in self.policies}
        self.time += 1
        self.count += 1
        ended = self.time[:, None] == self._ends
        is_cut = torch.arange(3, device=self.device) % 2 == 1
        finals, final_state = self._seen(), self.state()
        self.time.masked_fill_(self.time == self._length, 0)
        infos = {"final_obs": finals, "final_state": final_state} if self._gives_finals else {}
        return self._seen(), rewards, self._by_kind(ended & ~is_cut), self._by_kind(ended & is_cut), infos

    def state(self) -> Any:
        return torch.stack((self.time, self.count), 1).float()

    def get_state(self) -> Any:
        return {"time": self.time, "count": self.count, "seed": self.seed}

    def set_state(self, state: Any) -> None:
        self.time, self.count, self.seed = state["time"], state["count"], state["seed"]

    def _by_kind(self, values: Tensor) -> Any:
        return {"pointer": values[:, 2:], "sign": values[:, :2]}

    def _seen(self) -> Any:
        numbers = (self.count * 7 + self.seed)[:, None, None] + 3 * torch.arange(3, device=self.device)[:, None]
        each = {"sign": numbers[:, :2], "pointer": numbers[:, 2:]}
        return {
            kind: torch.nn.functional.one_hot((own[..., 0] * own[..., 0]) % 11 % 4, 4).float()
            if isinstance(self.single_action_space[kind], Discrete)
            else self._pointed(own)
            for kind, own in each.items()
        }

    def _pointed(self, own: Tensor) -> Tensor:
        if self._images:
            return (17 * own + torch.arange(16, device=self.device)).remainder(256).byte().view(-1, 1, 4, 4, 1)
        return (own + torch.arange(6, device=self.device)).float().sin()

    @staticmethod
    def _rewards(seen: Tensor, actions: Tensor) -> Tensor:
        if actions.dtype == torch.int64:
            return seen.gather(-1, actions[..., None])[..., 0]
        if seen.dtype == torch.uint8:
            return 1.0 - (actions[..., 0] - seen[..., 0, 0, 0] / 255).abs()
        return 1.0 - (actions[..., 0] - seen[..., 1]).abs()
