"""Actors for samplers: host arrays in, host arrays out."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.interfaces import SamplingActor
from hybridppo.networks.actors import StateDependentActor, exploring_actor_of
from hybridppo.networks.forms import actor_form, arrays_of, cell_of
from hybridppo.networks.numpy_forms.form import NumpyPoliciesActor
from hybridppo.networks.of_policies import PoliciesActor

if TYPE_CHECKING:
    from hybridppo.placements.crossing import Crossing


def sampling_actor(network: nn.Module, crossing: "Crossing", version: int) -> SamplingActor:
    """The fastest form of an actor, with its present parameters on their present device."""
    form = actor_form(network) if not crossing.takes_tensors else None
    if form is not None:
        arrays = arrays_of(network)
        if all(array.device.type == "cpu" for array in arrays):
            return form.actor([array.numpy() for array in arrays], version)
    if isinstance(network, PoliciesActor) and any(map(cell_of, network.actors)):
        return RememberingPolicies(network, crossing, version)
    return torch_actor(network, crossing, version)


def torch_actor(network: nn.Module, crossing: "Crossing", version: int = 0) -> "TorchActor":
    """The torch form of an actor."""
    exploring = exploring_actor_of(network)
    if exploring is not None:
        return TorchExploringActor(network, crossing, version, exploring)
    cell = cell_of(network)
    if cell is None:
        return TorchActor(network, crossing, version)
    return TorchRecurrentActor(network, crossing, version, cell.state_size)


class TorchActor:
    """An actor of any torch module on any device; only `crossing` knows the device."""

    def __init__(self, network: nn.Module, crossing: "Crossing", version: int = 0) -> None:
        self.version = version
        self._network = network
        self._crossing = crossing
        self._outputs: Tensor | None = None
        if network.training:  # a custom network may still be in train()
            network.eval()

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, obs] -> [N, outputs]`."""
        return self._through(self._network, observations)

    def _through(self, compute: Callable[[Tensor], Tensor], observations: NDArray[Any]) -> NDArray[Any]:
        with self._crossing.queue():
            self._outputs = self._crossing.through(compute, observations, self._outputs)
            return self._outputs.numpy()

    @torch.no_grad()
    def on_device(self, observations: Tensor) -> Tensor:
        """`[N, obs] -> [N, outputs]` for tensors on the network's device, without copies."""
        with self._crossing.queue():
            outputs: Tensor = self._network(observations)
            return outputs

    def addresses(self) -> list[int]:
        """The addresses of the network's parameters and buffers."""
        return [tensor.data_ptr() for tensor in (*self._network.parameters(), *self._network.buffers())]


class RememberingPolicies(NumpyPoliciesActor):
    """The actors of several policies, some of them recurrent; also for tensors on their device."""

    def __init__(self, network: PoliciesActor, crossing: "Crossing", version: int) -> None:
        actors = [sampling_actor(actor, crossing, version) for actor in network.actors]
        self._network, self._cells = network, [cell_of(actor) for actor in network.actors]
        state_sizes = [0 if cell is None else cell.state_size for cell in self._cells]
        super().__init__(actors, network.agents, network.sizes, state_sizes)
        self.version = version

    @torch.no_grad()
    def on_device_with(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """As `TorchRecurrentActor.on_device_with`; the state of a policy comes first in its rows, and then zeros."""
        network, states = self._network, torch.zeros_like(state)

        def act(number: int, rows: Tensor) -> Tensor:
            actor, cell = network.actors[number], self._cells[number]
            if cell is None:
                return cast(Tensor, actor(rows))
            before = network.rows_of(number, state)[:, : cell.state_size]
            outputs, after = actor(rows.unsqueeze(0), before, network.rows_of(number, starts).unsqueeze(0))
            network.put(states, number, after[0])
            return cast(Tensor, outputs[0])

        return network.outputs_by(act, observations), states


class TorchExploringActor(TorchActor):
    """An actor with state-dependent exploration; its noise matrices are on the device."""

    def __init__(self, network: nn.Module, crossing: "Crossing", version: int, exploring: StateDependentActor) -> None:
        super().__init__(network, crossing, version)
        self._exploring, self._size = exploring, len(exploring.log_std)
        self._matrices: torch.Tensor | None = None
        self.perturbation: NDArray[Any] = np.zeros((0, self._size), np.float32)
        """The noise that the last call added, `[N, d]`."""

    @torch.no_grad()
    def explore(self, noise: NDArray[Any]) -> None:
        """Use standard normal noise `[N, d * L]` for the next calls."""
        with self._crossing.queue():
            self._matrices = self._exploring.scaled(self._crossing.to_device(noise))

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, obs] -> [N, outputs]`."""
        if self._matrices is None or len(self._matrices) != len(observations):
            return super().__call__(observations)
        everything = self._through(lambda rows: self._network(rows, self._matrices), observations)
        self.perturbation = everything[:, 2 * self._size :]
        return everything[:, : 2 * self._size]


class TorchRecurrentActor(TorchActor):
    """A recurrent actor, whose state stays on the device; each call advances it."""

    def __init__(self, network: nn.Module, crossing: "Crossing", version: int, state_size: int) -> None:
        super().__init__(network, crossing, version)
        self.state_size = state_size
        self._num_rows = -1

    @property
    def state(self) -> NDArray[Any]:
        """`[N, state_size]`, a copy."""
        with self._crossing.queue():
            return self._crossing.to_host(self._state).copy()

    @state.setter
    def state(self, state: NDArray[Any]) -> None:
        self._num_rows = len(state)
        with self._crossing.queue():
            self._state = self._crossing.to_device(state.copy())
            self._starts = self._crossing.to_device(np.zeros((1, len(state)), np.bool_))

    def forget(self, envs: NDArray[Any]) -> None:
        """Set the state of some environments, `[N]` bool, to zero."""
        with self._crossing.queue():
            self._state = self._state.masked_fill(self._crossing.to_device(envs)[:, None], 0.0)

    @torch.no_grad()
    def __call__(self, observations: NDArray[Any]) -> NDArray[Any]:
        """`[N, obs] -> [N, outputs]`."""
        if len(observations) != self._num_rows:
            self.state = np.zeros((len(observations), self.state_size), np.float32)
        return self._through(self._advance, observations)

    def _advance(self, rows: Tensor) -> Tensor:
        outputs, states = self._network(rows.unsqueeze(0), self._state, self._starts)
        self._state = states[0]
        first: Tensor = outputs[0]
        return first

    @torch.no_grad()
    def on_device_with(self, observations: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and the next state for tensors on the network's device, without copies; the actor keeps no state.

        Args:
            observations: `[N, obs]`.
            state: `[N, state_size]`.
            starts: `[N]` bool, which observations are the first of an episode.
        """
        outputs, states = self._network(observations.unsqueeze(0), state, starts.unsqueeze(0))
        return outputs[0], states[0]
