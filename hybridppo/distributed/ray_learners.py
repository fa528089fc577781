"""Learners of `Central` in Ray actors, on any machine of the cluster."""

import threading
from queue import SimpleQueue
from typing import Any

from hybridppo.distributed.central_learner import Learner
from hybridppo.distributed.remote import Servant, answered
from hybridppo.errors import EnvError


class RemoteLearner(Servant):
    """A learner in a thread, which waits for each reply of the server."""

    def __init__(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        self._learner = learner = Learner(setup, envs, seed)
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._replies: SimpleQueue[Any] = SimpleQueue()

        def talk(kind: str, value: Any = None) -> Any:
            self._messages.put(("done", (kind, value), 0.0))
            return self._replies.get()

        # It returns only if it fails.
        threading.Thread(target=lambda: self._messages.put(answered(lambda: learner.learn(talk))), daemon=True).start()
        self._messages.get()  # it is ready

    def answer(self, kind: str, value: Any) -> Any:
        """Give the learner a reply; return its next message."""
        self._replies.put((kind, value))
        outcome, message, _ = self._messages.get()
        if outcome == "error":
            raise EnvError(message)
        return message

    def rows(self) -> int:  # noqa: D102 - as in the base
        return int(self._learner.heartbeat[0])

    def close(self) -> None:  # noqa: D102 - as in the base
        self._learner.close()
