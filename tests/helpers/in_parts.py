"""An asynchronous vector in Python, as EnvPool is one in C++, whose order is drawn from a seed."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space


class InParts(VectorEnv[Any, Any, Any]):
    """Vectors of one environment each, which step as soon as they get an action, and are received in a drawn order.

    Args:
        vectors: the vectors.
        batch_size: how many are received at a time.
        order: the seed of the order; None for the slowest order there is: always those that have waited least.
    """

    def __init__(self, vectors: Sequence[Any], batch_size: Any, order: int | None = 0) -> None:
        self.num_envs, self.batch_size, self.metadata = len(vectors), batch_size, vectors[0].metadata
        self.single_observation_space = vectors[0].single_observation_space
        self.single_action_space = vectors[0].single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.vectors, self.order, self.drawn = list(vectors), order, random.Random(order)
        self.queue: list[Any] = []
        """What was not received: the number of an environment and its step."""
        self.parts: list[list[int]] = []
        """What was received: the numbers of environments."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
        found = [vector.reset(seed=own) for vector, own in zip(self.vectors, seeds, strict=True)]
        return np.concatenate([observations for observations, _ in found]), {}

    def send(self, actions: Any, env_id: Any) -> None:
        for action, env in zip(actions, env_id.tolist(), strict=True):
            self.queue.append((env, self.vectors[env].step(np.asarray(action)[None])))

    def recv(self) -> Any:
        assert len(self.queue) >= self.batch_size, f"{len(self.queue)} wait for {self.batch_size}, for ever"
        if self.order is not None:
            self.drawn.shuffle(self.queue)
        part = [self.queue.pop() for _ in range(self.batch_size)]
        envs, steps = zip(*part, strict=True)
        *arrays, infos = zip(*steps, strict=True)
        self.parts.append([*envs])
        return *(np.concatenate(each) for each in arrays), joined(infos) | {"env_id": np.array(envs, np.int32)}


def joined(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The infos of several vectors of one, in the form of a vector's."""
    names = dict.fromkeys(name for info in infos for name in info)
    found: dict[str, Any] = {}
    for name in names:
        given = [info.get(name) for info in infos]
        first = next(each for each in given if each is not None)
        if isinstance(first, dict):
            found[name] = joined([each or {} for each in given])
        else:
            found[name] = np.concatenate([np.zeros_like(first) if each is None else each for each in given])
    return found


def in_parts(makes: Sequence[Callable[[], Any]], mode: Any, batch_size: Any, order: int | None = 0) -> InParts:
    """An asynchronous vector of what these functions make."""
    return InParts([SyncVectorEnv([make], autoreset_mode=mode) for make in makes], batch_size, order)
