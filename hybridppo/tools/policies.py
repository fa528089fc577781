"""A policy by itself: from an observation to the most probable action, without the agent that trained it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents import PPO
from hybridppo.errors import ConfigurationError
from hybridppo.networks.actors import GaussianActor, MaskedActor
from hybridppo.networks.exploring import StateDependentActor
from hybridppo.networks.mlp import ACTIVATIONS
from hybridppo.networks.normalization import NormalizedNetwork
from hybridppo.networks.recurrent import RecurrentNetwork
from hybridppo.networks.trunks import HeadedNetwork
from hybridppo.spaces.categorical import Categorical, MultiCategorical
from hybridppo.spaces.gaussian import DiagonalGaussian, SquashedGaussian
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.state_dependent import StateDependentGaussian

Array = NDArray[Any]


class TorchPolicy(nn.Module):
    """The policy as a module: `(observation[, action_mask][, state]) -> (action, outputs[, next_state])`.

    A batch of observations, `[B, *Box]` of a `Box` and `[B, row]` of other spaces; `action_mask` `[B, n]` and `state`
    `[B, state_size]`, zeros where an episode starts, where there are such.

    Raises:
        ConfigurationError: for spaces whose rows or actions are no plain arrays.
    """

    low: Tensor
    high: Tensor
    center: Tensor
    half_width: Tensor

    def __init__(self, agent: PPO) -> None:
        super().__init__()
        self.actor = agent.actor
        found = agent.distribution
        # The most probable action is the same, however others are drawn.
        self.distribution = found.normal if isinstance(found, StateDependentGaussian) else found
        space = agent.observation_space
        self.mask_size = space.num_actions if isinstance(space, MaskedObservation) else 0
        self._masked = space if isinstance(space, MaskedObservation) else None
        self.space = space.observation if isinstance(space, MaskedObservation) else space
        self.encode = ObservationEncoder(self.space)
        self.state_size = 0 if agent.memory is None else agent.memory.state_size
        if self.encode.layout.images and (self.mask_size or not self.encode.layout.is_one_image):
            raise ConfigurationError("a policy of images together with numbers or masks cannot be exported")
        if not isinstance(self.distribution, (Categorical, MultiCategorical, DiagonalGaussian)):
            raise ConfigurationError(f"a policy of composite actions, {agent.action_space}, cannot be exported")
        if isinstance(self.distribution, DiagonalGaussian):
            for name in ("low", "high", "half_width", "center"):
                if hasattr(self.distribution, name):
                    bound = torch.as_tensor(getattr(self.distribution, name), dtype=torch.float32)
                    self.register_buffer(name, bound, persistent=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one observation as it is passed."""
        return tuple(self.space.shape or ()) if self.encode.is_array else self.encode.shape

    @property
    def input_names(self) -> list[str]:
        """Of the arguments."""
        return ["observation", *(["action_mask"] if self.mask_size else []), *(["state"] if self.state_size else [])]

    def example(self, size: int) -> tuple[Tensor, ...]:
        """Arguments of a batch of so many."""
        dtype = torch.uint8 if self.encode.layout.images else torch.float32
        mask = [torch.ones(size, self.mask_size)] if self.mask_size else []
        state = [torch.zeros(size, self.state_size)] if self.state_size else []
        return torch.zeros((size, *self.shape), dtype=dtype), *mask, *state

    def inputs(self, observation: Any, action_mask: Any, state: Array | None) -> list[Array]:
        """The arguments for one observation of the environment, a batch of one each."""
        dtype: Any = np.uint8 if self.encode.layout.images else np.float32
        found = np.asarray(observation, dtype) if self.encode.is_array else self.encode.one(observation)
        arrays = [found[None]]
        if self._masked is not None:
            arrays.append(self._masked.row(observation, action_mask)[None, -self.mask_size :])
        if self.state_size:
            arrays.append(np.zeros((1, self.state_size), np.float32) if state is None else state)
        return arrays

    def forward(self, observation: Tensor, second: Tensor | None = None, third: Tensor | None = None) -> Any:
        """As the class says, of as many arguments as `input_names` has; the exporter wants no `*arguments`."""
        rows = observation if self.encode.layout.images else observation.flatten(1)
        state = second
        if self.mask_size:
            assert second is not None
            rows, state = torch.cat((rows, second), dim=-1), third
        if state is None:
            outputs = self.actor(rows)
            return self.action(outputs), outputs
        starts = torch.zeros_like(state[:, 0], dtype=torch.bool)
        outputs, states = self.actor(rows.unsqueeze(0), state, starts.unsqueeze(0))
        return self.action(outputs[0]), outputs[0], states[0]

    def action(self, outputs: Tensor) -> Tensor:
        """The most probable, `[B, *space]`: choices of int64, numbers of float32."""
        distribution = self.distribution
        if isinstance(distribution, Categorical):
            return outputs.argmax(-1) + distribution.start
        if isinstance(distribution, MultiCategorical):
            best = [part.argmax(-1) for part in torch.split(outputs, distribution.sizes, dim=-1)]
            chosen = torch.stack(best, dim=-1).reshape(-1, *distribution.shape)
            return chosen if distribution.start is None else chosen + torch.as_tensor(distribution.start)
        assert isinstance(distribution, DiagonalGaussian)
        mean = outputs[:, : distribution.size].reshape(-1, *distribution.shape)
        if isinstance(distribution, SquashedGaussian):
            mean = self.center + self.half_width * mean.tanh()
        return torch.minimum(torch.maximum(mean, self.low), self.high)


def arrays_of(policy: TorchPolicy) -> tuple[dict[str, Any], dict[str, Array]]:
    """What `numpy_policy.py` needs: what it is, and its arrays.

    Raises:
        ConfigurationError: for networks that it has no form of.
    """
    arrays: dict[str, Array] = {}
    about: dict[str, Any] = {"memory": None, "memory_size": 0, "state_size": policy.state_size}
    network: nn.Module = policy.actor
    if isinstance(network, NormalizedNetwork):
        moments = network.normalizer.moments
        times = (policy.encode.size + policy.mask_size) // len(
            moments.mean
        )  # of stacks of frames, whose moments are one frame's
        arrays |= {"mean": np.tile(_host(moments.mean), times), "variance": np.tile(_host(moments.variance), times)}
        network = network.network
    if isinstance(network, RecurrentNetwork) and network.features is None:
        cell = network.cell
        about |= {"memory": type(cell).__name__.lower(), "memory_size": cell.size}
        arrays |= {name: _host(parameter) for name, parameter in cell.named_parameters()}
        network = network.network
    if isinstance(network, GaussianActor):
        arrays["log_std"] = _host(network.log_std)
        network = network.mean
    if isinstance(network, MaskedActor):
        network = network.logits
    layers: list[nn.Module] = [network]
    if isinstance(network, StateDependentActor):
        arrays["feature_log_std"] = _host(network.log_std)
        layers = [network.feature_layers, network.head]
    if isinstance(network, HeadedNetwork):
        layers = [network.trunk.network, network.head]
    layers = [each for layer in layers for each in (layer if isinstance(layer, nn.Sequential) else [layer])]
    names = {kind: name for name, kind in ACTIVATIONS.items()}
    about["layers"] = []
    for number, layer in enumerate(layers):
        if isinstance(layer, (nn.Linear, nn.LayerNorm)):
            arrays |= {f"{number}.weight": _host(layer.weight), f"{number}.bias": _host(layer.bias)}
            about["layers"].append("linear" if isinstance(layer, nn.Linear) else "layer_norm")
        elif type(layer) in names:
            about["layers"].append(names[type(layer)])
        else:
            raise ConfigurationError(
                f"NumPy's form of a policy has no {type(layer).__name__}: only perceptrons, with a memory or without; "
                "export it as .onnx"
            )
    about |= {"observation_size": policy.encode.size, "mask_size": policy.mask_size}
    distribution = policy.distribution
    if isinstance(distribution, DiagonalGaussian):
        squashed = isinstance(distribution, SquashedGaussian)
        about["action"] = {"kind": "numbers", "shape": list(distribution.shape), "squashed": squashed}
        arrays |= {name: _host(buffer) for name, buffer in policy.named_buffers(recurse=False)}
    elif isinstance(distribution, Categorical):
        about["action"] = {"kind": "choices", "shape": [], "sizes": [distribution.mask_size]}
        about["action"]["start"] = [distribution.start]
    else:
        assert isinstance(distribution, MultiCategorical)
        start = np.zeros(len(distribution.sizes), np.int64) if distribution.start is None else distribution.start
        about["action"] = {"kind": "choices", "shape": list(distribution.shape), "sizes": distribution.sizes}
        about["action"]["start"] = start.ravel().tolist()
    return about, arrays


def _host(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array
