"""The common part of PPO and DDPG: what an agent keeps beside its networks, and how its updates are shared."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from torch import Tensor, nn

from hybridppo.agents.common.loop import Exchange, OptimizationLoop
from hybridppo.agents.common.saving import save_agent
from hybridppo.agents.common.schedules import Scheduled, ScheduleFunction
from hybridppo.networks.adam import FlatAdam
from hybridppo.networks.modes import depend_on_training, noise_from
from hybridppo.networks.parameters import FlatParameters
from hybridppo.spaces.observations import ObservationEncoder


class PolicyAgent:
    """An agent with one policy. A subclass makes its networks, `parameters`, `optimizer` and loop.

    Args:
        observation_space: space of one environment.
        action_space: space of one environment.
        config: the settings.
        seed: seed of the initial parameters, and of the order in which the agent learns.
        schedules: functions of the progress of the training, 0 to 1, by field.
        schedulable: fields that may have a schedule.
    """

    name: ClassVar[str]
    """Name of the agent in files."""
    config: Any
    parameters: FlatParameters
    optimizer: FlatAdam

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        config: Any,
        seed: int,
        schedules: Mapping[str, ScheduleFunction] | None,
        schedulable: Collection[str],
    ) -> None:
        self.config = config
        self._schedules = Scheduled(schedules, schedulable, config)
        self.observation_space, self.action_space = observation_space, action_space
        self._encode = ObservationEncoder(observation_space)
        self._initial_seed, order = np.random.SeedSequence(seed).generate_state(2, np.uint64).tolist()
        self._order, self._noise_seed = np.random.default_rng(order), order
        self.version, self.records_graphs = 0, config.cuda_graphs
        self.should_stop: Callable[[], bool] = _never
        self._make_exchange: Callable[[], Exchange] = Exchange
        self._loop: OptimizationLoop | None = None
        self._loop_binding = 0
        self._depends_on_training = False

    @property
    def _learning_networks(self) -> list[nn.Module]:
        """The networks that optimizer steps change."""
        raise NotImplementedError

    def _made_loop(self, exchange: Exchange) -> OptimizationLoop:
        """A loop with the fastest backend for the device of the parameters."""
        raise NotImplementedError

    def loop(self) -> OptimizationLoop:
        """The optimisation loop, made anew after the parameters have moved."""
        if self._loop is None or self._loop_binding != self.parameters.binding:
            self._depends_on_training = depend_on_training(*self._learning_networks)
            self.optimizer.keep_learning_rates_on_host()  # except for recorded steps
            self._loop, self._loop_binding = self._made_loop(self._make_exchange()), self.parameters.binding
        return self._loop

    def share(self, make_exchange: Callable[[], Exchange] | None) -> None:
        """Share updates with other processes from now on; None to learn alone.

        Args:
            make_exchange: makes the exchange with them; called again after the parameters have moved.
        """
        self._make_exchange, self._loop = make_exchange or Exchange, None

    def _own_noise(self) -> AbstractContextManager[None]:
        """A context in which modules such as dropout draw noise that follows from the seed."""
        if not self._depends_on_training:
            return nullcontext()
        return noise_from((self._noise_seed, self.version), self.parameters.values.device)

    def _changing(self) -> list[Tensor]:
        """All tensors that an update changes before its end."""
        slots = self.optimizer.state[self.parameters.values].values()
        return [self.parameters.values.data, *slots, *self.learned_buffers()]

    def learned_buffers(self) -> list[Tensor]:
        """The buffers that optimizer steps change, such as the statistics of a batch normalisation."""
        networks = self._learning_networks if self._depends_on_training else ()
        return [buffer for network in networks for buffer in network.buffers()]

    def save(self, path: str | Path) -> Path:
        """Write the agent to one file that `hybridppo.load` reads on any machine, without the state of a training."""
        return save_agent(self, path)


def _never() -> bool:
    return False
