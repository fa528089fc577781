"""The environments of one worker, on any machine. Workers use this file without torch."""

import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridppo.environments.checks import describe_error, require_same_spaces
from hybridppo.environments.info_metrics import Sums
from hybridppo.environments.making import make_environments
from hybridppo.environments.registration import source_here
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError, HybridPPOError
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.stepping import Flag, Stepper
from hybridppo.spaces.arrays import Array
from hybridppo.system.seeds import seed_globals


class Filled(NamedTuple):
    """A worker's answer when it has filled rows."""

    rows: int
    """The number of filled rows."""
    finals: FinalObservations
    """The final observations of the new rows."""
    version: int
    """The version of the parameters that acted."""
    infos: Sums | None
    """Sums of entries of infos, if they are measured."""


class Share:
    """Steps some of the environments with its own actor.

    Args:
        setup: sent to all workers: `source` and `options` of the environments, their number `num_envs` and
            `spaces`; `form` and `shapes` of the actor and its parameters; `distribution`; `memory`; `fields` of a
            rollout.
        envs: the environments of this worker.
        seed: the seed of the first of them.

    Raises:
        EnvError: if they cannot be made, or have other spaces.
    """

    def __init__(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        source, num_envs = source_here(setup["source"], setup["options"].imports), envs.stop - envs.start
        seed_globals(seed, "making environments")
        # One thread each, because the processes are the parallelism.
        self._environments = make_environments(source, num_envs, setup["options"], first=envs.start, threads=1)
        seed_globals(seed, "stepping environments")  # again, because making environments may have loaded torch
        try:
            require_same_spaces(
                self._environments,
                setup["spaces"],
                f"environments {envs.start} to {envs.stop - 1}, made in a worker process,",
                "those made in the trainer",
                setup["num_envs"],
            )
            # An environment is a column of a rollout, or as many columns as it has agents.
            agents = self._environments.num_agents
            self.columns = slice(envs.start * agents, envs.stop * agents)
            self._form = setup["form"]
            self.stepper = Stepper(self._environments, setup["distribution"], seed, setup["memory"])
        except BaseException:
            self.close()
            raise

    def fill(
        self, buffer: RolloutBuffer, parameters: Sequence[Array], version: int, stop: Flag, first: int, end: int | None
    ) -> Filled:
        """As `Stepper.fill`, with an actor of these parameters, whose version is `version`."""
        rows, finals = self.stepper.fill(buffer, self._form.actor(parameters), stop, first, end)
        return Filled(rows, finals, version, self._environments.take_infos() if self._environments.info_names else None)

    def answer(self, kind: str, arguments: Sequence[Any]) -> tuple[Any, HybridPPOError | None]:
        """The result of a method of the stepper or of the environments, or the error if they cannot do that."""
        owner = self._environments if kind in ("measure_infos", "steer") else self.stepper
        try:
            return getattr(owner, kind)(*arguments), None
        except (EnvError, ConfigurationError) as error:
            if kind == "restart":  # the environments have failed
                raise
            return None, error
        except Exception as error:
            if kind == "steer":  # the environment's own method has failed, and its worker goes on
                return None, EnvError(describe_error(error))
            if kind != "load_state":
                raise
            # for data that are not a state
            text = f"what was saved of them cannot be read: {type(error).__name__}: {error}"
            return None, EnvStateError(text)

    def close(self) -> None:
        """Close the environments."""
        self._environments.close()


def parameters_of(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Views of a flat array with these shapes, one after the other."""
    parameters, start = [], 0
    for shape in shapes:
        size = 1
        for length in shape:
            size *= length
        parameters.append(flat[start : start + size].reshape(shape))
        start += size
    return parameters


def text_of_failure(error: BaseException) -> str:
    """An error as its worker reports it: the library's own errors of environments need no traceback."""
    return str(error) if isinstance(error, EnvError) else f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
