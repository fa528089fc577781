"""The environments of one worker, on any machine. Workers use this file without torch."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from hybridppo.environments.checks import require_same_spaces
from hybridppo.environments.info_metrics import Sums
from hybridppo.environments.making import make_environments
from hybridppo.environments.registration import source_here
from hybridppo.environments.steering import Steering
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError
from hybridppo.rollouts.buffer import FinalObservations, RolloutBuffer
from hybridppo.runners.samplers.stepping import Flag, Stepper
from hybridppo.system.seeds import seed_globals

Array = NDArray[Any]


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
        self._measures_infos = False
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
        return Filled(rows, finals, version, self._environments.take_infos() if self._measures_infos else None)

    def answer(self, kind: str, value: Any) -> Any:
        """The answer to any message but "fill"."""
        if kind == "restart":
            return self.stepper.restart(value)
        if kind == "state":
            return self._state()
        if kind == "measure_infos":
            return self._measure_infos(value)
        if kind == "steer":
            return self._steer(value)
        assert kind == "load_state"
        return self._load_state(*value)

    def _measure_infos(self, names: Sequence[str]) -> str | None:
        """Why infos are not available, if so."""
        try:
            self._environments.measure_infos(names)
        except ConfigurationError as error:
            return str(error)
        self._measures_infos = True
        return None

    def _steer(self, steering: Steering) -> tuple[Any, str | None]:
        """The result of each environment, or why it could not be steered."""
        try:
            return self._environments.steer(steering), None
        except (EnvError, ConfigurationError) as error:
            return None, str(error)

    def _state(self) -> tuple[Any, str | None]:
        """The environments' state, or why it cannot be saved."""
        try:
            return self.stepper.state(), None
        except EnvStateError as error:
            return None, str(error)

    def _load_state(self, states: list[Any], observation: Array, remembered: Array) -> str | None:
        """Why the state cannot be restored; None if it was."""
        try:
            self.stepper.load_state(states, observation, remembered)
        except EnvStateError as error:
            return str(error)
        except Exception as error:  # for data that is no such state at all
            return f"what was saved of them cannot be read: {type(error).__name__}: {error}"
        return None

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
