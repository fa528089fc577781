"""Makes the networks of an agent: the library's, or custom ones.

Custom networks are a function like `actor_and_critic`, for `hybridppo.train(..., networks=my_networks)`:

    def my_networks(observation_space, action_space, config, generator):
        return actor, critic

Both are modules that take observations as stored rows, `[B, *ObservationEncoder(observation_space).shape]`. The actor
returns the outputs of the action distribution, `[B, output_size]`; the critic returns `[B, 1]`. All parameters
are float32. Any modules will do, but only the library's have a NumPy twin: others sample and learn through torch, and
cannot act in worker processes.

Modules are in `train()` while gradients are computed, and in `eval()` otherwise (`modes.py`). To freeze a part, let its
`train` do nothing. Dropout draws from a generator that follows from the seed. Statistics of a batch normalisation are
saved, and published with the parameters.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any
from weakref import WeakSet

import gymnasium as gym
import torch
from torch import Tensor, nn

from hybridppo.distributions.base import Distribution
from hybridppo.distributions.of_space import distribution_for
from hybridppo.errors import ConfigurationError, EnvError, message_of, shown, shown_error
from hybridppo.networks.actors import Network, SharedTrunk
from hybridppo.networks.items import NumbersWithItems
from hybridppo.networks.layers import (
    CONVOLUTIONS,
    MLP,
    EmptyLinear,
    EncodedNetwork,
    MakeLayer,
    initialised,
    unchanged,
    uniformly_initialised,
)
from hybridppo.networks.modes import torch_seeded
from hybridppo.networks.parameters import require_float32
from hybridppo.networks.recurrent import CELLS, RecurrentNetwork
from hybridppo.spaces.kinds import kind_of
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.rows import RowLayout, RowPart

logger = logging.getLogger(__name__)

Networks = Callable[[gym.Space[Any], gym.Space[Any], Any, torch.Generator], tuple[nn.Module, nn.Module]]
"""Maps observation space, action space, configuration and generator to actor and critic."""

OF_NETWORKS = {
    "hidden_sizes", "critic_hidden_sizes", "activation", "encoder_sizes", "layer_norm", "shared_trunk",
    "orthogonal_init", "log_std_init", "convolutions",
}  # fmt: skip
"""The fields of a configuration that have no effect if custom networks do not read them."""
_MADE: "WeakSet[nn.Module]" = WeakSet()
"""The learning layers that functions of this process have returned for agents."""

ACTOR_GAIN, CRITIC_GAIN = 0.01, 1.0
"""Gain of the last layer, so that all actions are about equally likely at first ("37 details", detail 2)."""


def actor_and_critic(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    config: Any,
    generator: torch.Generator,
    distribution: Distribution | None = None,
) -> tuple[nn.Module, nn.Module]:
    """The library's networks: multilayer perceptrons, after convolutions if observations have images.

    With `recurrent`, each network has its own recurrent cell before its multilayer perceptron (`RecurrentNetwork`).

    Args:
        observation_space: space of one environment.
        action_space: space of one environment.
        config: a configuration with the fields of `PPOConfig` about networks.
        generator: draws the initial weights.
        distribution: of the actions, whose parameters the actor returns; None for the library's.

    Raises:
        ConfigurationError: if there are masks for a distribution of one's own without as many logits.
        EnvError: for unsupported spaces.
    """
    encode, usual = ObservationEncoder(observation_space), distribution_for(action_space)
    mask_size = 0
    if distribution is None or config.use_sde:  # whose networks return means alone
        distribution = usual
    if isinstance(observation_space, MaskedObservation):
        mask_size = distribution.mask_size
        if mask_size != usual.mask_size:
            raise ConfigurationError(
                f"action_masks=True needs a distribution whose first {usual.mask_size} outputs are logits (mask_size), "
                f"and action_distribution has {mask_size}: leave one of them out"
            )
        if observation_space.mask_sizes != [size for _, size in kind_of(action_space).mask_parts]:
            raise EnvError(f"{observation_space} does not have the mask of {action_space}: make them of one size")
    make = _Maker(encode, mask_size, config, generator)
    seen = make.parts("actor_parts")
    num_outputs, log_std = distribution.output_size - distribution.free_size, None
    if config.use_sde:  # of a `Box`: `distribution_for` refuses other spaces
        log_std = torch.full((num_outputs, config.hidden_sizes[-1]), config.log_std_init)
    elif distribution.free_size:
        initial = distribution.free_init or [config.log_std_init] * distribution.free_size
        log_std = torch.tensor(initial, dtype=torch.float32)
    sizes = config.hidden_sizes
    trunk = SharedTrunk(make.body(seen, sizes)) if config.shared_trunk else None
    actor = make.network(seen, trunk, sizes, num_outputs, ACTOR_GAIN, mask_size=mask_size, log_std=log_std)
    if distribution.bias_init is not None:
        head: Any = actor.network.head if isinstance(actor, RecurrentNetwork) else actor.head
        head.bias.data.copy_(torch.tensor(distribution.bias_init, dtype=torch.float32))
    return actor, make.network(make.parts("critic_keys"), trunk, sizes_of_critic(config), 1, CRITIC_GAIN)


def sizes_of_critic(config: Any) -> tuple[int, ...]:
    """The sizes of the critic's hidden layers in a configuration."""
    own: tuple[int, ...] | None = config.critic_hidden_sizes
    return config.hidden_sizes if own is None else own


Parts = list[tuple[RowPart, Sequence[int]]] | None
"""The parts of a row that a network sees, each with the widths of its layers; None for whole rows of numbers."""


class _Maker:
    """Makes an actor or a critic. Initial weights are drawn from one generator, in the order of making.

    Args:
        encode: encodes the observations.
        mask_size: length of the mask in a row.
        config: the settings of the networks.
        generator: draws the initial weights.
    """

    def __init__(self, encode: ObservationEncoder, mask_size: int, config: Any, generator: torch.Generator) -> None:
        self._encode, self._rows, self._mask_size = encode, encode.layout, mask_size
        self._config, self._generator = config, generator
        initialise: Any = initialised if config.orthogonal_init else uniformly_initialised
        self._make_layer: MakeLayer = partial(initialise, generator=generator)
        self._mlp = partial(
            MLP, activation=config.activation, generator=generator, layer_norm=config.layer_norm, initialise=initialise
        )

    def parts(self, keys: str) -> Parts:
        """The parts whose keys are in this field of the configuration.

        Raises:
            ConfigurationError: if observations have no parts, or lack a part that is named.
        """
        sizes, asked, by_key = self._config.encoder_sizes, getattr(self._config, keys), self._encode.by_key
        if sizes is None and asked is None:
            if not self._rows.images and not self._rows.items:
                return None
            # Everything is one part.
            numbers = slice(0, self._rows.num_numbers - self._mask_size)
            return [(RowPart(numbers, slice(0, len(self._rows.images))), ())]
        for name, named in (("encoder_sizes", sizes), (keys.replace("parts", "keys"), asked)):
            unknown = [key for key in named or () if key not in by_key]
            if unknown:
                have = f"has {', '.join(by_key)}" if by_key else "is no Dict or Tuple"
                raise ConfigurationError(
                    f"{name} names the part {unknown[0]!r}, and the observation space {have}: name parts that there are"
                )
        return [(part, (sizes or {}).get(key, ())) for key, part in by_key.items() if asked is None or key in asked]

    def body(self, seen: Parts, sizes: Sequence[int]) -> nn.Module:
        """All layers but the last, with hidden layers of these sizes; behind a recurrent cell, the hidden layers."""
        make = partial(self._mlp, hidden_sizes=sizes)
        if self._config.recurrent is None:
            return self._encoded(seen, make)
        return make(self._config.recurrent_size + self._mask_size)

    def network(
        self, seen: Parts, trunk: SharedTrunk | None, sizes: Sequence[int], outputs: int, gain: float, **more: Any
    ) -> Any:
        """A network with hidden layers of these sizes and so many outputs, on the shared trunk if there is one."""
        config, body = self._config, self.body(seen, sizes) if trunk is None else trunk
        is_recurrent = config.recurrent is not None
        layout = RowLayout(config.recurrent_size + self._mask_size) if is_recurrent else self._rows
        width = sizes[-1] if sizes else getattr(body, "num_features", layout.num_numbers)
        head = self._make_layer(EmptyLinear(width, outputs), gain)
        network = Network(body, head, layout=layout, **more)
        if not is_recurrent:
            return network
        features: Any = None if seen is None else self._encoded(seen, lambda inputs: nn.Identity())
        num_features = self._rows.num_numbers if features is None else features.num_features
        cell = CELLS[config.recurrent](num_features, config.recurrent_size, self._generator)
        return RecurrentNetwork(features, cell, network, self._rows, self._mask_size)

    def _encoded(self, seen: Parts, make: Callable[[int], nn.Module]) -> nn.Module:
        """The result of `make` behind convolutions and the separate layers of the parts of a row, if there are any."""
        if seen is None:
            return make(self._rows.num_numbers)
        end = max(self._rows.num_numbers - self._mask_size, *(part.numbers.stop for part, _ in seen))
        convolve = partial(CONVOLUTIONS[self._config.convolutions], make_layer=self._make_layer)
        return EncodedNetwork(self._rows, seen, end, make, self._mlp, convolve, self._encode_numbers)

    def _encode_numbers(self, numbers: "slice[int, int, None]") -> tuple[nn.Module, int]:
        items = [(start, each) for start, each in self._rows.items if numbers.start <= start < numbers.stop]
        if not items:
            return unchanged(numbers)
        made = NumbersWithItems(numbers, items, self._make_layer)
        return made, made.num_features


def checked_networks(
    networks: Networks, spaces: tuple[gym.Space[Any], gym.Space[Any]], config: Any, seed: int, output_size: int
) -> tuple[nn.Module, nn.Module]:
    """Custom networks, tried on two observations. Their draws from torch's generator follow from the seed.

    The actor has `output_size` outputs.

    Raises:
        ConfigurationError: if `networks` is no function, or they are not two modules, their inputs or outputs have
            wrong shapes, or another agent has some of their layers.
    """
    for field in ("recurrent", "use_sde", "actor_keys", "critic_keys", "critic_observes"):
        if (value := getattr(config, field)) != getattr(type(config), field):
            raise ConfigurationError(
                f"{field}={value!r} is for the library's networks, and networks= was given: leave one of them out"
            )
    encode = ObservationEncoder(spaces[0])
    seen, read = _watched(config)
    with torch_seeded(seed):
        try:
            made = networks(*spaces, seen, torch.Generator().manual_seed(seed))
        except TypeError as error:
            raise ConfigurationError(
                f"networks={shown(networks)} failed: {message_of(error)}: it must be a function of observation_space, "
                "action_space, config and generator (docs/networks.md, Networks of your own)"
            ) from error
    for name in OF_NETWORKS - read:
        if (given := getattr(config, name)) != getattr(type(config), name):
            _warn_of_no_effect(name, str(given))
    if not (isinstance(made, tuple) and len(made) == 2 and all(isinstance(module, nn.Module) for module in made)):
        raise ConfigurationError(
            f"networks must return two modules, actor and critic, and returned {type(made).__name__}"
        )
    for module in made:
        module.eval()  # the trial must not change the statistics of a batch normalisation
    rows = torch.zeros((2, *encode.shape), dtype=torch.uint8 if encode.layout.images else torch.float32)
    for name, module, size in (("actor", made[0], output_size), ("critic", made[1], 1)):
        found = _outputs(name, module, rows)
        if not (isinstance(found, Tensor) and found.shape == (2, size)):
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ConfigurationError(
                f"the {name} must return [2, {size}] for observations {list(rows.shape)}, got {shape}"
            )
        require_float32(f"the {name}", module)
    every = {layer for module in made for layer in module.modules()}
    layers = {layer for layer in every if any(each.requires_grad for each in layer.parameters(recurse=False))}
    if not layers.isdisjoint(_MADE):
        raise ConfigurationError(
            "networks returned modules that it returned before, and that another agent trains: let every call make new "
            "ones, or return copies, copy.deepcopy(module). It is called for each agent, also by load and resume"
        )
    _MADE.update(layers)
    return made


@cache  # one warning for all agents of a training
def _warn_of_no_effect(field: str, given: Any) -> None:
    logger.warning("%s=%s has no effect: networks= was given, and does not read it", field, given)


def _watched(config: Any) -> tuple[Any, set[str]]:
    """A copy of a configuration, and the names of its attributes that are read, as they are read."""
    kind, seen, read = type(config), copy.copy(config), set[str]()

    def watched(own: Any, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(own, name)

    object.__setattr__(seen, "__class__", type(kind.__name__, (kind,), {"__getattribute__": watched}))
    return seen, read


@torch.no_grad()
def _outputs(name: str, module: nn.Module, rows: Tensor) -> Any:
    try:
        return module(rows)
    except Exception as error:  # a custom module may raise any error
        raise ConfigurationError(
            f"the {name} fails for observations {list(rows.shape)} of {rows.dtype}: {shown_error(error)} "
            "(a row has all parts of an observation: docs/networks.md, Networks of your own)"
        ) from error
