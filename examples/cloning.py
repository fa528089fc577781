"""Behaviour cloning, then PPO: an agent that imitates demonstrations first.

    python examples/cloning.py

Pomerleau, "Efficient Training of Artificial Neural Networks for Autonomous Navigation", 1991. Here, a pretrained agent
makes the demonstrations; observations and actions from elsewhere serve as well. The actor maximises the
log-probabilities of their actions, and PPO goes on from it. Only the critic learns in the first updates, because its
values are wrong at first. Observations are not normalised: the statistics of the first rollouts would change what the
actor has learned.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

import hybridppo


def demonstrations(teacher: Any, env: Any, number: int, seed: int) -> tuple[Any, Any]:
    """Observations and actions of an agent."""
    observations, actions = [], []
    observation, _ = env.reset(seed=seed)
    for _ in range(number):
        observations.append(observation)
        actions.append(teacher.act(observation))
        observation, _, terminated, truncated, _ = env.step(actions[-1])
        if terminated or truncated:
            observation, _ = env.reset()
    return torch.as_tensor(np.array(observations)), torch.as_tensor(np.array(actions))


def imitate(agent: Any, observations: Tensor, actions: Tensor, epochs: int) -> float:
    """Let the actor maximise the log-probabilities of the actions; returns the mean loss."""

    def loss(observations: Tensor, actions: Tensor) -> Tensor:
        return -agent.distribution.log_prob(agent.actor(observations), actions).mean()

    columns = {"observations": observations, "actions": actions}
    return agent.optimize(loss, columns, num_epochs=epochs, minibatch_size=64, networks=["actor"])


class CriticFirst(hybridppo.Callback):
    """In the first three iterations, only the critic learns."""

    def on_start(self, run: Any, metrics: Any = None) -> None:  # noqa: D102 - as in the base
        run.agent.actor.requires_grad_(run.iteration >= 3)

    on_iteration = on_start


if __name__ == "__main__":
    env, config = gym.make("CartPole-v1"), hybridppo.PPOConfig(normalize_observations=False)
    agent = hybridppo.PPO(env.observation_space, env.action_space, config)
    demonstrated = demonstrations(hybridppo.pretrained("CartPole-v1"), env, 2_000, seed=0)
    print("loss of the demonstrations:", imitate(agent, *demonstrated, epochs=60))
    result = hybridppo.train("CartPole-v1", total_steps=20_000, agent=agent, callbacks=[CriticFirst()])
    print(result.metrics["episode_return_mean"])
