"""CartPole in torch, on any device: an example of a batched environment, which tests and benchmarks use.

    config = hybridppo.PPOConfig(num_envs=1024, num_steps=32)
    hybridppo.train(TorchCartPole, total_steps=1_000_000, config=config, env_kwargs={"device": "cuda"})

Each step is that of gymnasium (Barto, Sutton and Anderson, 1983); starts come from other random numbers.
"""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from hybridppo.compiled import classic

NUM_STARTS = 2**16
"""Number of different starts; each episode begins with one of them."""


class TorchCartPole:
    """`num_envs` poles on carts that are pushed left or right; the reward of a step is 1.

    Args:
        num_envs: number of environments.
        device: device of all tensors.
        episode_length: steps after which an episode is truncated.
        dtype: type of the computation; gymnasium uses float64. Observations are always float32.
    """

    single_observation_space = classic.CARTPOLE_OBSERVATIONS
    single_action_space = Discrete(2)

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        episode_length: int = 500,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.num_envs, self.device, self._length, self._dtype = num_envs, device, episode_length, dtype
        self.state = torch.zeros((num_envs, 4), dtype=dtype, device=device)
        """`[N, 4]`: position, speed, angle and angular speed."""
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._episodes = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._numbers = torch.arange(num_envs, device=device)
        self._starts = torch.zeros((NUM_STARTS, 4), dtype=dtype, device=device)

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Begin every episode, with the pole almost upright; without a seed, at other ones of the starts."""
        if seed is not None:
            # Drawn on the host, so that a seed gives the same starts on every device; and once, so that no step draws.
            starts = np.random.default_rng(seed).uniform(-0.05, 0.05, (NUM_STARTS, 4))
            self._starts.copy_(torch.from_numpy(starts))
            self._episodes.zero_()
        self._episodes += 1
        self._steps.zero_()
        self.state.copy_(self._new())
        return self.state.float(), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Make a step by Euler's method."""
        _, x_speed, angle, angle_speed = self.state.unbind(1)
        force = torch.where(actions == 1, classic.CARTPOLE_FORCE, -classic.CARTPOLE_FORCE).to(self.state.dtype)
        cos, sin = angle.cos(), angle.sin()
        push = (force + classic.MASS_LENGTH * angle_speed.square() * sin) / classic.TOTAL_MASS
        inertia = classic.HALF_LENGTH * (4.0 / 3.0 - classic.POLE_MASS * cos.square() / classic.TOTAL_MASS)
        turn = (classic.CARTPOLE_GRAVITY * sin - cos * push) / inertia
        acceleration = push - classic.MASS_LENGTH * turn * cos / classic.TOTAL_MASS
        change = torch.stack((x_speed, acceleration, angle_speed, turn), 1)
        after = self.state + classic.CARTPOLE_SECONDS * change
        self._steps += 1
        terminated = (after[:, 0].abs() > classic.FURTHEST) | (after[:, 2].abs() > classic.LARGEST_ANGLE)
        truncated = self._steps >= self._length
        ended = terminated | truncated
        self._episodes += ended
        self._steps.masked_fill_(ended, 0)
        self.state = torch.where(ended[:, None], self._new(), after)
        rewards = torch.ones_like(force, dtype=torch.float32)
        return self.state.float(), rewards, terminated, truncated, {"final_obs": after.float()}

    def _new(self) -> Tensor:
        """The starts of the present episodes, `[N, 4]`, spread over all starts."""
        return self._starts[(self._numbers * 40503 + self._episodes * 30011) % NUM_STARTS]

    def get_state(self) -> dict[str, Tensor]:
        """The state, by name."""
        return {"state": self.state, "steps": self._steps, "episodes": self._episodes, "starts": self._starts}

    def set_state(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `get_state`."""
        self.state, self._steps = state["state"], state["steps"]
        self._episodes, self._starts = state["episodes"], state["starts"]
