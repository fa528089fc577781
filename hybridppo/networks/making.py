"""Makes the networks of an agent: the library's, or custom ones.

Custom networks are a function like `actor_and_critic`, for `hybridppo.train(..., networks=my_networks)`:

    def my_networks(observation_space, action_space, config, generator):
        return actor, critic

Both are modules that take observations as stored rows, `[B, *ObservationEncoder(observation_space).shape]`. The actor
returns the outputs of `distribution_for(action_space)`, `[B, output_size]`; the critic returns `[B, 1]`. All parameters
are float32. Any modules will do, but only the library's have a NumPy twin: others sample and learn through torch, and
cannot act in worker processes.

Modules are in `train()` while gradients are computed, and in `eval()` otherwise (`modes.py`). To freeze a part, let its
`train` do nothing. Dropout draws from a generator that follows from the seed. Statistics of a batch normalisation are
saved, and published with the parameters.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any
from weakref import WeakSet

import gymnasium as gym
import torch
from torch import Tensor, nn

from hybridppo.distributions.of_space import distribution_for
from hybridppo.errors import ConfigurationError, EnvError, shown
from hybridppo.networks.actors import GaussianActor, HeadedNetwork, MaskedActor, SharedTrunk, StateDependentActor
from hybridppo.networks.encoders import CONVOLUTIONS, EncodedNetwork, parts_with_sizes
from hybridppo.networks.mlp import MLP, EmptyLinear, Initialise, initialised, uniformly_initialised
from hybridppo.networks.modes import torch_seeded
from hybridppo.networks.recurrent import CELLS, RecurrentNetwork
from hybridppo.spaces.kinds import kind_of
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.rows import ImageLayout, RowLayout, RowPart

Networks = Callable[[gym.Space[Any], gym.Space[Any], Any, torch.Generator], tuple[nn.Module, nn.Module]]
"""Maps observation space, action space, configuration and generator to actor and critic."""

_MADE: "WeakSet[nn.Module]" = WeakSet()
"""The learning layers that functions of this process have returned for agents."""

ACTOR_GAIN, CRITIC_GAIN = 0.01, 1.0
"""Gain of the last layer, so that all actions are about equally likely at first ("37 details", detail 2)."""


def actor_and_critic(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], config: Any, generator: torch.Generator
) -> tuple[nn.Module, nn.Module]:
    """The library's networks: multilayer perceptrons, after convolutions if observations have images.

    With `recurrent`, each network has its own recurrent cell before its multilayer perceptron (`RecurrentNetwork`).

    Args:
        observation_space: space of one environment.
        action_space: space of one environment.
        config: a configuration with the fields of `PPOConfig` about networks.
        generator: draws the initial weights.

    Raises:
        EnvError: for unsupported spaces.
    """
    encode, distribution = ObservationEncoder(observation_space), distribution_for(action_space)
    mask_size = 0
    if isinstance(observation_space, MaskedObservation):
        mask_size = distribution.mask_size
        if observation_space.mask_sizes != [size for _, size in kind_of(action_space).mask_parts]:
            raise EnvError(f"{observation_space} does not have the mask of {action_space}: make them of one size")
    parts = _Parts(encode, mask_size, config, generator, "actor_parts")
    of_critic = parts.seeing("critic_keys")
    num_outputs = distribution.output_size - distribution.free_size
    if config.use_sde:  # only means: `PPOConfig` and `distribution_for` refuse other spaces
        features = parts.network(None, 1.0) if parts.trunk is None else parts.trunk
        exploring = StateDependentActor(features, parts.head(num_outputs, ACTOR_GAIN), config.log_std_init)
        return exploring, of_critic.whole(1, CRITIC_GAIN)
    actor = parts.whole(num_outputs, ACTOR_GAIN)
    if mask_size:
        actor = MaskedActor(actor, mask_size, parts.layout)
    if distribution.free_size:
        actor = GaussianActor(actor, distribution.free_size, config.log_std_init)
    return parts.remembering(actor), of_critic.remembering(of_critic.whole(1, CRITIC_GAIN))


class _Parts:
    """Makes the parts of an actor or a critic. Initial weights are drawn from one generator, in the order of making.

    Args:
        encode: encodes the observations.
        mask_size: length of the mask in a row.
        config: the settings of the networks.
        generator: draws the initial weights.
        keys: name of the field with the keys of the parts of observations that are seen.
    """

    def __init__(
        self, encode: ObservationEncoder, mask_size: int, config: Any, generator: torch.Generator, keys: str
    ) -> None:
        self._config, self._generator, self._mask_size = config, generator, mask_size
        self._initialise: Initialise = initialised if config.orthogonal_init else uniformly_initialised
        self._mlp = partial(
            MLP, activation=config.activation, generator=generator, layer_norm=config.layer_norm,
            initialise=self._initialise,
        )  # fmt: skip
        self._encode, self._rows = encode, encode.layout
        self._encoders = self._parts_seen(keys)
        self.layout = self._rows if config.recurrent is None else RowLayout(config.recurrent_size + mask_size)
        """The input of an actor's layers: rows, or the recurrent cell's outputs with the mask."""
        self.trunk = SharedTrunk(self.network(None, 1.0)) if config.shared_trunk else None
        """The layers that both networks share; None if they share none."""

    def _parts_seen(self, keys: str) -> list[tuple[RowPart, Sequence[int]]] | None:
        asked, rows = getattr(self._config, keys), self._rows
        parts = parts_with_sizes(self._encode, self._config.encoder_sizes, asked, keys.replace("parts", "keys"))
        if parts is None and rows.images:  # numbers and images are one part
            return [(RowPart(slice(0, rows.num_numbers), slice(0, len(rows.images))), ())]
        return parts

    def seeing(self, keys: str) -> "_Parts":
        """A copy for a network that sees other parts of observations."""
        other = copy(self)
        other._encoders = self._parts_seen(keys)
        return other

    def whole(self, outputs: int, gain: float) -> nn.Module:
        """A network with so many outputs: all its layers, or a last layer on the shared trunk."""
        if self.trunk is None:
            return self.network(outputs, gain)
        return HeadedNetwork(self.trunk, self.head(outputs, gain))

    def network(self, outputs: int | None, gain: float) -> nn.Module:
        """All layers; without the last one if `outputs` is None."""

        def last(inputs: int) -> MLP:
            return self._mlp(inputs, self._config.hidden_sizes, outputs, output_gain=gain)

        if self._config.recurrent is not None:
            return last(self.layout.num_numbers)
        return self._after_encoders(self.layout, last)

    def head(self, outputs: int, gain: float) -> nn.Linear:
        """A last layer."""
        head: nn.Linear = self._initialise(EmptyLinear(self._config.hidden_sizes[-1], outputs), gain, self._generator)
        return head

    def remembering(self, network: nn.Module) -> nn.Module:
        """The network behind a recurrent cell, if the configuration has one."""
        recurrent, rows = self._config.recurrent, self._rows
        if recurrent is None:
            return network
        has_features = self._encoders is not None
        features: Any = self._after_encoders(rows, lambda inputs: nn.Identity()) if has_features else None
        num_features = rows.num_numbers if features is None else features.num_features
        cell = CELLS[recurrent](num_features, self._config.recurrent_size, self._generator)
        return RecurrentNetwork(features, cell, network, rows, self._mask_size)

    def _after_encoders(self, rows: RowLayout, make: Callable[[int], nn.Module]) -> nn.Module:
        """The result of `make` behind convolutions and the separate layers of the parts of a row, if there are any."""
        if self._encoders is not None:
            ends = [part.numbers.stop for part, _ in self._encoders]
            end = max(rows.num_numbers - self._mask_size, *ends)
            return EncodedNetwork(rows, self._encoders, end, make, self._mlp, self._convolve)
        return make(rows.num_numbers)

    def _convolve(self, image: ImageLayout) -> tuple[nn.Module, int]:
        return CONVOLUTIONS[self._config.convolutions](image, self._generator, self._initialise)


def checked_networks(
    networks: Networks, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: Any, seed: int
) -> tuple[nn.Module, nn.Module]:
    """Custom networks, tried on two observations. Their draws from torch's generator follow from the seed.

    Raises:
        ConfigurationError: if `networks` is no function, or they are not two modules, their inputs or outputs have
            wrong shapes, or another agent has some of their layers.
    """
    if not callable(networks) or isinstance(networks, nn.Module):
        raise ConfigurationError(
            f"networks must be a function that makes actor and critic (docs/networks.md, Networks of your own), got "
            f"{shown(networks)}"
        )
    usual = {"recurrent": None, "use_sde": False, "actor_keys": None, "critic_keys": None, "critic_observes": "own"}
    for field, value in ((field, getattr(config, field, default)) for field, default in usual.items()):
        if value != usual[field]:
            raise ConfigurationError(
                f"{field}={value!r} is for the library's networks, and networks= was given: leave one of them out"
            )
    encode, distribution = ObservationEncoder(observation_space), distribution_for(action_space)
    with torch_seeded(seed):
        try:
            made = networks(observation_space, action_space, config, torch.Generator().manual_seed(seed))
        except TypeError as error:
            raise ConfigurationError(
                f"networks={shown(networks)} failed: {error}: it must be a function of observation_space, "
                "action_space, config and generator (docs/networks.md, Networks of your own)"
            ) from error
    if not (isinstance(made, tuple) and len(made) == 2 and all(isinstance(module, nn.Module) for module in made)):
        raise ConfigurationError(
            f"networks must return two modules, actor and critic, and returned {type(made).__name__}"
        )
    for module in made:
        module.eval()  # the trial must not change the statistics of a batch normalisation
    rows = torch.zeros((2, *encode.shape), dtype=torch.uint8 if encode.layout.images else torch.float32)
    for name, module, size in (("actor", made[0], distribution.output_size), ("critic", made[1], 1)):
        found = _outputs(name, module, rows)
        if not (isinstance(found, Tensor) and found.shape == (2, size)):
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigurationError(
                f"the {name} must return [2, {size}] for observations {list(rows.shape)}, got {shape}"
            )
        others = sorted({str(p.dtype) for p in module.parameters() if p.dtype != torch.float32})
        if others:
            raise ConfigurationError(f"the parameters of the {name} must be float32, and some are {', '.join(others)}")
    every = {layer for module in made for layer in module.modules()}
    layers = {layer for layer in every if any(each.requires_grad for each in layer.parameters(recurse=False))}
    if not layers.isdisjoint(_MADE):
        raise ConfigurationError(
            "networks returned modules that it returned before, and that another agent trains: let every call make new "
            "ones, or return copies, copy.deepcopy(module). It is called for each agent, also by load and resume"
        )
    _MADE.update(layers)
    return made


@torch.no_grad()
def _outputs(name: str, module: nn.Module, rows: Tensor) -> Any:
    try:
        return module(rows)
    except Exception as error:  # a custom module may raise any error
        raise ConfigurationError(
            f"the {name} fails for observations {list(rows.shape)} of {rows.dtype}: {type(error).__name__}: {error} "
            "(a row has all parts of an observation: docs/networks.md, Networks of your own)"
        ) from error
