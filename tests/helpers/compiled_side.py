"""A sampler assembled by hand, to compare compiled loops with the plain form."""

from typing import Any

import numpy as np

from hybridppo.environments.base import Environments
from hybridppo.networks.actors import arrays_of, twin_of
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.filling import Stepper, fused


class Side:
    """A stepper with its buffer and its actor, the NumPy form of the agent's."""

    def __init__(self, environments: Environments, agent: Any, num_steps: int, seed: int = 0) -> None:
        self.environments: Any = environments
        self.agent = agent
        form = twin_of(agent.actor)
        assert form is not None
        self.actor = form.actor([array.numpy() for array in arrays_of(agent.actor)])
        columns = environments.num_envs
        layout = Rollout.layout(num_steps, columns, environments.encode, agent.distribution)
        self.buffer = Rollout(**{name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()})
        self.buffer.noise[:] = agent.distribution.draw_noise(np.random.default_rng(9), (num_steps, columns))
        self.stepper = Stepper(environments, agent.distribution, seed)

    def is_fused(self) -> bool:
        """Whether a compiled loop fills its rows."""
        return fused(self.environments, self.agent.distribution, self.actor) is not None
