"""Teacher-student distillation: a policy that sees less learns from one that sees more.

    python examples/distillation.py

Ross, Gordon and Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online Learning",
2011; rsl_rl trains robots in this way. The student acts, and the loss is the divergence of its policy from the
teacher's in the states that the student visits. The critic learns the student's returns, so that PPO may go on with it.
Here, the teacher is a pretrained agent that sees the velocities of the cart and of the pole. The student does not see
them, and has a memory.
"""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

import hybridppo
from hybridppo.agents.ppo.loss import Loss, LossInputs

SEEN = gym.spaces.Dict({"seen": gym.spaces.Box(-9.0, 9.0, (2,)), "state": gym.spaces.Box(-np.inf, np.inf, (4,))})


def make() -> Any:
    """CartPole whose observations have the positions, and besides the whole state."""
    return gym.wrappers.TransformObservation(gym.make("CartPole-v1"), lambda x: {"seen": x[::2], "state": x}, SEEN)


class Distillation(hybridppo.PPO):
    """PPO's agent, which learns from a teacher instead of its rewards."""

    def prepared(self, rollout: Any) -> Any:
        """The outputs of the teacher, which sees the last numbers of a row: the part "state"."""
        rows = rollout.raw.observations[:-1, ..., -4:]
        return super().prepared(rollout).with_columns(taught=self.modules_of["teacher"](rows))

    def loss(self, inputs: LossInputs, clip_range: float | Tensor) -> Loss:
        """The divergence from the teacher, and the loss of the critic."""
        loss = super().loss(inputs, clip_range)
        error = self.distribution.kl(inputs.columns["taught"], inputs.outputs).mean()
        return replace(loss, total=error + self.current.value_coef * loss.value, extra={"divergence": error})


if __name__ == "__main__":
    teacher = hybridppo.pretrained("CartPole-v1").actor.requires_grad_(False)
    config = hybridppo.PPOConfig(num_envs=16, recurrent="lstm", actor_keys=("seen",))
    modules = {"teacher": teacher}
    result = hybridppo.train(make, total_steps=50_000, config=config, agent=Distillation, modules=modules)
    print(result.metrics["divergence"], result.metrics["episode_return_mean"])
