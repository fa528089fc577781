"""The networks of DDPG and TD3: a deterministic actor, and critics of observations and actions."""

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from hybridppo.agents.ddpg.config import DDPGConfig
from hybridppo.errors import EnvError
from hybridppo.networks.mlp import MLP
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder

ACTOR_GAIN, CRITIC_GAIN = 0.01, 1.0
"""Gains of the last layers: initially, every action is near the middle of its bounds."""


class Critics(nn.Module):
    """`[B, obs]` and `[B, d]` -> `[B, C]`: the value of an action by each of `C` critics."""

    def __init__(self, critics: list[MLP]) -> None:
        super().__init__()
        self.critics = nn.ModuleList(critics)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The values of all critics."""
        inputs = torch.cat((observations, actions), dim=-1)
        return torch.cat([critic(inputs) for critic in self.critics], dim=-1)

    def first(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The value of the first critic, `[B, 1]`."""
        values: Tensor = self.critics[0](torch.cat((observations, actions), dim=-1))
        return values


def actor_and_critics(
    observation_space: gym.Space[Any],
    num_actions: int,
    config: DDPGConfig,
    generator: torch.Generator,
    num_outputs: int,
) -> tuple[MLP, Critics]:
    """Make multilayer perceptrons.

    Args:
        observation_space: space of one environment.
        num_actions: numbers in an action.
        config: hidden layers, their activation, and the number of critics.
        generator: generator of the initial weights.
        num_outputs: number of the actor's outputs.

    Raises:
        EnvError: if observations are images or stacks of frames, or have action masks.
    """
    if isinstance(observation_space, MaskedObservation):
        raise EnvError(
            "action_masks=True is for choices among few actions, and DDPG and TD3 act in a Box: leave it out"
        )
    encode = ObservationEncoder(observation_space)
    if encode.frames is not None:
        raise EnvError(
            f"frame_stack={encode.frames.num_frames} is for PPO: leave it out, or stack within the environment"
        )
    if encode.layout.images:
        raise EnvError(
            f"the observation space {observation_space} has images, which DDPG and TD3 have no convolutions for: use "
            "PPO, or a wrapper that makes numbers of them"
        )

    def mlp(inputs: int, outputs: int, gain: float) -> MLP:
        return MLP(
            inputs, config.hidden_sizes, outputs, activation=config.activation, output_gain=gain, generator=generator
        )

    actor = mlp(encode.size, num_outputs, ACTOR_GAIN)
    return actor, Critics([mlp(encode.size + num_actions, 1, CRITIC_GAIN) for _ in range(config.num_critics)])
