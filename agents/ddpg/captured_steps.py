"""The gradient steps of DDPG and TD3 recorded as CUDA graphs, and replayed: one launch a step instead of a hundred.

There are two recordings at most, of a step of the critics alone and of one that the actor's follows: minibatches are
all of one size. Each is made when its kind of step is due first.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hybridppo.agents.common.recording import tried_step
from hybridppo.agents.ddpg.gradient_steps import AutogradSteps
from hybridppo.rollouts.replay import Transitions
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.recording import GraphRecorder, Record

if TYPE_CHECKING:
    from hybridppo.agents.ddpg.ddpg import DDPG


class CapturedSteps:
    """`AutogradSteps`, each kind of step recorded and then replayed; equal to them up to rounding.

    Args:
        agent: with its parameters where they stay.
        record: how; a recording may run the step some times first, which is undone.
    """

    def __init__(self, agent: "DDPG", record: Record | None = None) -> None:
        self._agent, self._plain = agent, AutogradSteps(agent)
        self._parameters, self._optimizer = agent.parameters, agent.optimizer
        device = agent.parameters.values.device
        self._record = record if record is not None else GraphRecorder(accelerator_of(device))
        self._batch: Transitions | None = None
        self._noise: Tensor | None = None
        self._replays: dict[bool, Callable[[], object]] = {}
        self._counts = _no_counts()

    def metrics(self) -> dict[str, float]:
        """How many kinds of step were recorded, and how many steps replayed, since the last call."""
        counts, self._counts = self._counts, _no_counts()
        return counts

    def step(self, batch: Transitions, noise: Tensor, *, moves_actor: bool) -> None:
        """A step of the critics on a minibatch; one of the actor too, and of the target networks, where asked for."""
        if self._batch is None or self._noise is None:
            self._batch, self._noise = batch.map(torch.clone), noise.clone()
        else:  # to where recordings look for it
            for field in fields(Transitions):
                getattr(self._batch, field.name).copy_(getattr(batch, field.name))
            self._noise.copy_(noise)
        if moves_actor not in self._replays:
            self._replays[moves_actor] = self._recorded(self._batch, self._noise, moves_actor)
            self._counts["graph_recordings"] += 1
        self._replays[moves_actor]()
        self._counts["graph_replays"] += 1

    def _recorded(self, batch: Transitions, noise: Tensor, moves_actor: bool) -> Callable[[], object]:
        slots = self._optimizer.state[self._parameters.values]
        return tried_step(
            lambda: self._record(lambda: self._plain.step(batch, noise, moves_actor=moves_actor)),
            lambda replay: replay(),
            [self._parameters.values.data, *slots.values(), *self._agent.learned_buffers()],
            slots["step_critic"],
        )


def _no_counts() -> dict[str, float]:
    return {"graph_recordings": 0, "graph_replays": 0}
