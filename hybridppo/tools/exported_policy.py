"""A policy without its agent: maps an observation to the most probable action."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from hybridppo._version import __version__
from hybridppo.agents import PPO
from hybridppo.agents.ddpg.ddpg import DDPG
from hybridppo.distributions.base import Distribution
from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.deterministic import DeterministicActions
from hybridppo.distributions.gaussian import DiagonalGaussian, SquashedGaussian
from hybridppo.distributions.joint import Factor, JointDistribution
from hybridppo.distributions.state_dependent import StateDependentGaussian
from hybridppo.errors import ConfigurationError
from hybridppo.networks.actors import GaussianActor, HeadedNetwork, MaskedActor, StateDependentActor
from hybridppo.networks.encoders import EncodedNetwork
from hybridppo.networks.mlp import ACTIVATIONS
from hybridppo.networks.normalization import NormalizedNetwork
from hybridppo.networks.recurrent import RecurrentNetwork
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.base import Kind
from hybridppo.spaces.kinds import kind_of
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.serialization import space_to_json

Player = PPO | DDPG
"""An agent with one policy; TD3 is a DDPG."""
_NUMBERS, _SQUASHED = (DiagonalGaussian, DeterministicActions), (SquashedGaussian, DeterministicActions)
"""Distributions of actions that are numbers, and those whose means are squashed by tanh."""


class TorchPolicy(nn.Module):
    """The policy as a module: maps a tuple of inputs (`input_names`) to a tuple of outputs (`output_names`).

    An observation of a `Box` is `[B, *Box]`, of other spaces `[B, numbers]`. Images beside other parts are separate
    inputs, `[B, *image]` of bytes. `action_mask` is `[B, n]`, and `state` is `[B, state_size]`, zeros at the start of
    an episode.

    Raises:
        ConfigurationError: for actions that cannot be exported.
    """

    def __init__(self, agent: Player) -> None:
        super().__init__()
        self._keys: Sequence[str] | None = None
        self.actor: nn.Module = agent.actor
        self.space: gym.Space[Any] = agent.observation_space
        if isinstance(agent, PPO):
            self._keys, self.space = agent.config.actor_keys, agent.given_space
        found = agent.distribution
        # The most probable action does not depend on how others are drawn.
        self.distribution = found.normal if isinstance(found, StateDependentGaussian) else found
        space = agent.observation_space
        self._masked = space if isinstance(space, MaskedObservation) else None
        self.mask_size = 0 if self._masked is None else self._masked.num_actions
        if self._keys is not None:
            spaces = _own_parts(self.space.spaces, self._keys)  # type: ignore[attr-defined]  # a Dict or Tuple has them
            self.space = gym.spaces.Dict(spaces) if isinstance(spaces, dict) else gym.spaces.Tuple(spaces)
        self.encode = ObservationEncoder(self.space)
        self.state_size = 0 if agent.memory is None else agent.memory.state_size
        layout = self.encode.layout
        self.is_one_array = self.encode.is_array and not (layout.images and self.mask_size)
        """Whether an observation is one input, in its own shape, and the whole row."""
        parts: list[tuple[Any, slice]] = [] if self.is_one_array else self.encode.parts
        self.images = {f"observation{leaf.path}": (leaf, at) for leaf, at in parts if leaf.image is not None}
        """The images that are separate inputs, and the place of each in a row of bytes."""
        self._shapes: dict[str, tuple[int, ...]] = {}
        """The shape of each input, without the batch."""
        if self.is_one_array:
            self._shapes["observation"] = tuple(self.space.shape or ())
        elif layout.num_numbers:
            self._shapes["observation"] = (layout.num_numbers,)
        self._shapes |= {name: leaf.image.shape for name, (leaf, _) in self.images.items()}
        if self.mask_size:
            self._shapes["action_mask"] = (self.mask_size,)
        if self.state_size:
            self._shapes["state"] = (self.state_size,)
        self.input_names = list(self._shapes)
        self._lay_out_row(agent)
        self.action_space = agent.action_space
        self.actions = list(zip(kind_of(agent.action_space).leaves, _factors(self.distribution), strict=True))
        """The parts of an action: the space and how it is drawn."""
        actions = [f"action{leaf.path}" for leaf, _ in self.actions]
        self.output_names = [*actions, "outputs", *(["next_state"] if self.state_size else [])]
        """The parts of an action, the outputs of the network, and the next state of a memory."""
        for number, (leaf, factor) in enumerate(self.actions):
            part = factor.distribution
            if not isinstance(part, (Categorical, *_NUMBERS)):
                raise ConfigurationError(f"a policy of actions in {leaf.space} cannot be exported")
            for name, array in _bounds_of(part).items():
                with np.errstate(over="ignore"):  # beyond float32, a bound is as good as none
                    bound = torch.from_numpy(np.array(array, np.float32))
                self.register_buffer(f"{name}_{number}", bound, persistent=False)

    def _lay_out_row(self, agent: Player) -> None:
        """Find the places of the inputs in a row of the actor; the actor ignores other parts, which become zeros."""
        whole = ObservationEncoder(agent.observation_space)
        seen = agent.config.actor_parts if isinstance(agent, PPO) else None
        parts = [part for key, part in whole.by_key.items() if seen is not None and key in seen]
        end, images = whole.layout.num_numbers, whole.layout.images
        kept = [i for part in parts for i in range(end)[part.numbers]] if parts else list(range(end - self.mask_size))
        self.kept = [*kept, *range(end - self.mask_size, end)]
        """Which numbers of the actor's row the inputs have, in their order."""
        places = np.full(end, len(self.kept))  # of a zero, after the inputs
        places[self.kept] = np.arange(len(self.kept))
        self.register_buffer("places", torch.from_numpy(places), persistent=False)
        own = [i for part in parts for i in range(len(images))[part.images]] if parts else list(range(len(images)))
        names = dict(zip(own, self.images, strict=False))
        self._images = [(names.get(i), image.num_bytes) for i, image in enumerate(images)]
        """The input, if there is one, and the size of each image in a row."""

    def example(self, size: int) -> tuple[Tensor, ...]:
        """Inputs of a batch of this size."""
        of_bytes = {*self.images, *(["observation"] if self.is_one_array and self.encode.layout.images else [])}
        dtypes = {name: torch.uint8 if name in of_bytes else torch.float32 for name in self.input_names}
        return tuple(torch.zeros(size, *shape, dtype=dtypes[name]) for name, shape in self._shapes.items())

    def inputs(self, observation: Any, action_mask: Any, state: Array | None) -> list[Array]:
        """The inputs for one observation of the environment, a batch of one each."""
        arrays: list[Array] = []
        if self.is_one_array:
            arrays.append(self.encode(np.asarray(observation)[None]).reshape(1, *self._shapes["observation"]))
        else:
            own = observation if self._keys is None else _own_parts(observation, self._keys)
            row = self.encode.one(own).reshape(-1)
            if self.encode.layout.num_numbers:
                arrays.append(self.encode.layout.numbers(row)[None])
            arrays += [row[at].reshape(1, *leaf.image.shape) for leaf, at in self.images.values()]
        if self._masked is not None:
            arrays.append(self._masked.mask_row(action_mask)[None])
        if self.state_size:
            arrays.append(np.zeros((1, self.state_size), np.float32) if state is None else state)
        return arrays

    def parts_of(self, action: Any) -> list[Array]:
        """The parts of one action of the environment, in the order of `actions`."""
        return [np.asarray(part) for part in kind_of(self.action_space).values(action)]

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Outputs of a batch of inputs."""
        given = dict(zip(self.input_names, inputs, strict=True))
        size = inputs[0].shape[0]
        if self.is_one_array and self.encode.layout.images:
            rows = given["observation"]
        else:
            parts = [given["action_mask"]] if self.mask_size else []
            if self.is_one_array or self.encode.layout.num_numbers:
                parts = [given["observation"].reshape(size, self.encode.layout.num_numbers), *parts]
            nothing = inputs[0].new_zeros((size, 1), dtype=torch.float32)
            numbers = torch.cat((*parts, nothing), dim=-1)[:, self.get_buffer("places")]
            images = [given[name].flatten(1).float() if name else nothing.expand(size, n) for name, n in self._images]
            rows = torch.cat((numbers, *images), dim=-1)
        if not self.state_size:
            outputs = self.actor(rows)
            return *self._action(outputs), outputs
        starts = torch.zeros_like(given["state"][:, 0], dtype=torch.bool)
        outputs, states = self.actor(rows.unsqueeze(0), given["state"], starts.unsqueeze(0))
        return *self._action(outputs[0]), outputs[0], states[0]

    def _action(self, outputs: Tensor) -> list[Tensor]:
        """The parts of the most probable action, `[B, *space]`: choices are int64, numbers float32."""
        return [self._part(number, factor, outputs) for number, (_, factor) in enumerate(self.actions)]

    def _part(self, number: int, factor: Factor, outputs: Tensor) -> Tensor:
        part, own = factor.distribution, outputs[:, factor.outputs]
        if isinstance(part, Categorical):
            choice = part.on("cpu")
            action: Tensor = choice.to_env(choice.mode(own))
            return action
        assert isinstance(part, _NUMBERS)
        bounds = {name: getattr(self, f"{name}_{number}") for name in ("low", "high")}
        mean = own.reshape(own.shape[0], *part.shape)
        if isinstance(part, _SQUASHED):
            mean = getattr(self, f"center_{number}") + getattr(self, f"half_width_{number}") * mean.tanh()
        return torch.minimum(torch.maximum(mean, bounds["low"]), bounds["high"])

    def about(self) -> dict[str, Any]:
        """A description of the inputs and outputs as JSON: their parts, by name and in order."""
        observation = []
        for leaf, at in self.encode.parts:
            is_input = leaf.image is not None
            own = f"observation{leaf.path}" if f"observation{leaf.path}" in self.images else "observation"
            place = {} if is_input else {"start": at.start, "stop": at.stop}
            observation.append({"name": leaf.path, "input": own, **place, "space": space_to_json(leaf.space)})
        choices = kind_of(self.action_space).mask_parts if self.mask_size else []
        examples = zip(self.input_names, self.example(1), strict=True)
        inputs = [{"name": name, "shape": list(x.shape[1:]), "dtype": str(x.dtype)[6:]} for name, x in examples]
        return {
            "hybridppo": __version__,
            "inputs": inputs,
            "outputs": self.output_names,
            "observation": observation,
            "action_mask": [{"name": name, "size": size} for name, size in choices],
            "action_space": space_to_json(self.action_space),
            "action": [self._about_part(leaf, factor) for leaf, factor in self.actions],
        }

    def _about_part(self, leaf: Kind[Any], factor: Factor) -> dict[str, Any]:
        part: Any = factor.distribution
        place = {"start": factor.outputs.start, "stop": factor.outputs.stop}
        found = {"name": leaf.path, "output": f"action{leaf.path}", **place, "space": space_to_json(leaf.space)}
        if isinstance(part, _NUMBERS):
            return {**found, "kind": "numbers", "squashed": isinstance(part, _SQUASHED)}
        start = np.broadcast_to(part.start, leaf.space.shape)
        return {**found, "kind": "choices", "sizes": part.sizes, "first": start.ravel().tolist()}


def arrays_of(policy: TorchPolicy) -> tuple[dict[str, Any], dict[str, Array]]:
    """The description and the arrays that `numpy_policy.py` reads.

    Raises:
        ConfigurationError: for networks that it cannot compute.
    """
    arrays: dict[str, Array] = {}
    about: dict[str, Any] = {**policy.about(), "memory": None, "memory_size": 0, "state_size": policy.state_size}
    network: nn.Module = policy.actor
    if isinstance(network, NormalizedNetwork):
        moments = network.normalizer.moments
        # The moments of stacked frames are those of one frame.
        times = policy.get_buffer("places").numel() // len(moments.mean)
        for name, moment in (("mean", moments.mean), ("variance", moments.variance)):
            arrays[name] = np.tile(_host(moment), times)[policy.kept]
        network = network.network
    if isinstance(network, RecurrentNetwork) and isinstance(_joined(network.features), nn.Identity | None):
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
    layers = [_joined(layer) for layer in layers]
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
                "export it as .onnx or .pt2"
            )
    about |= {"observation_size": policy.encode.size, "mask_size": policy.mask_size}
    for number, (_, factor) in enumerate(policy.actions):
        arrays |= {f"{name}_{number}": array for name, array in _bounds_of(factor.distribution).items()}
    return about, arrays


def _own_parts(whole: Any, keys: Sequence[str]) -> Any:
    if isinstance(whole, Mapping):
        return {key: part for key, part in whole.items() if str(key) in keys}
    return tuple(part for number, part in enumerate(whole) if str(number) in keys)


def _joined(network: Any) -> Any:
    """The layers that take all parts of an observation together, if no part has layers of its own."""
    if not isinstance(network, EncodedNetwork):
        return network
    has_layers = network.layout.images or not all(isinstance(each, nn.Identity) for each in network.encoders)
    return network if has_layers else network.mlp


def _factors(distribution: Distribution) -> list[Factor]:
    """The independent parts of a distribution; the distribution itself if it has none."""
    if isinstance(distribution, JointDistribution):
        return distribution.factors
    end = distribution.output_size - distribution.free_size
    if isinstance(distribution, _NUMBERS):
        end = distribution.size  # what a custom distribution has besides is no mean
    return [Factor(distribution, slice(0, end), slice(end, None), slice(0, None), slice(0, None))]


def _bounds_of(distribution: Distribution) -> dict[str, Array]:
    """The arrays that clip and squash actions that are numbers."""
    names = ("low", "high", "half_width", "center")
    return {name: getattr(distribution, name) for name in names if hasattr(distribution, name)}


def _host(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array
