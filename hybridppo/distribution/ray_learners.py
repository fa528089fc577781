"""Learners of `Central` in actors of Ray's, on any machine of its cluster."""

import pickle
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, ClassVar

import ray

from hybridppo.distribution.central_learner import Learner
from hybridppo.distribution.ray_pool import RayPool
from hybridppo.distribution.remote import RemoteActor, answered


class RemoteLearner(RemoteActor):
    """A learner in a thread, which waits for each reply of the server."""

    concurrency_groups: ClassVar[dict[str, int]] = {"control": 1}
    _learner: Learner | None = None

    def _make(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        self._learner = learner = Learner(setup, envs, seed)
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._replies: SimpleQueue[Any] = SimpleQueue()

        def talk(kind: str, value: Any = None) -> Any:
            self._messages.put(("done", (kind, value), 0.0))
            return self._replies.get()

        # It returns only if it fails.
        threading.Thread(target=lambda: self._messages.put(answered(lambda: learner.learn(talk))), daemon=True).start()
        self._messages.get()  # it is ready

    def reply(self, message: bytes) -> bytes:
        """Give the learner a reply; return its next message."""
        self._replies.put(pickle.loads(message))
        return pickle.dumps(self._messages.get())

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    def rows(self) -> int:
        """How many rows of the rollout are sampled; -1 before `begin`."""
        return -1 if self._learner is None else int(self._learner.heartbeat[0])

    def close(self) -> None:  # noqa: D102 - as in the base
        if self._learner is not None:
            self._learner.close()


class LearnerActors(RayPool):
    """Learners in actors.

    Args:
        shares: the environments of each.
        setup: what they are made from.
        timeout: seconds without a sign of life after which one is lost.
    """

    def __init__(self, shares: Sequence[slice], setup: dict[str, Any], timeout: float) -> None:
        super().__init__(RemoteLearner, shares, setup, timeout, "learner")

    def send(self, learner: int, message: tuple[str, Any]) -> None:
        """Send a message."""
        self.call(learner, "reply", pickle.dumps(message))
