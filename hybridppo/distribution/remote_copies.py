"""Environments in a process that Ray has started, anywhere, stepped by whoever acts. Free of torch."""

import os
import platform
from typing import Any

import cloudpickle
from threadpoolctl import threadpool_limits

from hybridppo.distribution.messages import packed, unpacked
from hybridppo.distribution.remote_share import Answer, answered, import_from, versions_here
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.registration import source_here
from hybridppo.errors import EnvStateError
from hybridppo.system.seeds import seed_globals


class RemoteCopies:
    """What Ray makes an actor of."""

    def __init__(self) -> None:
        self._environments: Environments | None = None
        self._limits = threadpool_limits(1)  # the processes are the parallelism

    def begin(self, setup: bytes, path: list[str], envs: slice) -> Answer:
        """Make the environments; which process of which machine this is, and its versions."""

        def make() -> dict[str, Any]:
            import_from(path)
            told = cloudpickle.loads(setup)
            source, options = source_here(told["source"], told["options"].imports), told["options"]
            made = make_environments(source, envs.stop - envs.start, options, first=envs.start, threads=1)
            self._environments = made
            spaces = made.observation_space, made.action_space
            return {"pid": os.getpid(), "host": platform.node(), "versions": versions_here(), "spaces": spaces}

        return answered(make)

    def step(self, actions: Any) -> Any:
        """As `Environments.step`, and what else is known of the step: which were restarted, and who was absent.

        Packed, as the actions are.
        """

        def step() -> Any:
            assert self._environments is not None  # `begin` was before
            parts = self._environments.step(unpacked(actions))
            return (*parts, self._environments.restarted, self._environments.absent)

        answer = answered(step)
        return packed(answer, answer[1][0].nbytes if answer[0] == "done" else 0)

    def call(self, method: str, *arguments: Any) -> Answer:
        """Another of its methods: what comes of it, and why a state cannot be saved or put back, if so."""

        def act() -> Any:
            if method == "reset":
                seed_globals(arguments[0], "stepping environments")
            try:
                return getattr(self._environments, method)(*arguments), None
            except EnvStateError as error:
                return None, str(error)

        return answered(act)

    def close(self) -> None:
        """Release the environments."""
        if self._environments is not None:
            self._environments.close()
