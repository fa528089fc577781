"""Which networks have a NumPy form."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.networks.actors import GaussianActor, MaskedActor, StateDependentActor
from hybridppo.networks.convolutions import ConvolutionOfBytes, ImageNetwork, Nature
from hybridppo.networks.encoders import EncodedNetwork
from hybridppo.networks.initialisation import EmptyConvolution, EmptyLinear
from hybridppo.networks.mlp import MLP
from hybridppo.networks.normalization import NormalizedNetwork
from hybridppo.networks.numpy_forms.actor import NumpyActivation
from hybridppo.networks.numpy_forms.encoders import EncodedForm
from hybridppo.networks.numpy_forms.form import NumpyForm, PoliciesForm
from hybridppo.networks.numpy_forms.recurrent import CellForm
from hybridppo.networks.of_policies import PoliciesActor
from hybridppo.networks.recurrent import CELLS, Cell, RecurrentNetwork
from hybridppo.networks.trunks import HeadedNetwork
from hybridppo.spaces.rows import RowLayout

ACTIVATIONS: dict[type, NumpyActivation] = {nn.Tanh: "tanh", nn.ReLU: "relu"}
"""Activations with a NumPy form."""
LINEAR = nn.Linear, EmptyLinear
"""Linear layers with a NumPy form: a subclass, or one whose weight torch computes (`spectral_norm`), has none."""
OF_CONVOLUTIONS = nn.Conv2d, EmptyConvolution, ConvolutionOfBytes, nn.ReLU
"""Layers of convolutions with a NumPy form, likewise."""


def linears(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of an `MLP`, or of the MLP within another network of this library, first to last."""
    found = _mlp_and_layout(network)
    assert found is not None
    return [layer for layer in found[0] if isinstance(layer, nn.Linear)]


def place_of(parameter: Tensor, values: Tensor) -> int:
    """Where a parameter begins in the buffer of all parameters."""
    return (parameter.data_ptr() - values.data_ptr()) // parameter.element_size()


def layers_in(values: Tensor, *networks: nn.Module) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The layers of networks of equal depth, of which `values` has all parameters.

    Returns:
        `[networks, L + 1]`, the numbers between layers; and `[networks, L, 2]`, where weights and biases begin.
    """
    layers = [linears(network) for network in networks]
    sizes = [[own[0].in_features, *(layer.out_features for layer in own)] for own in layers]
    places = [[[place_of(layer.weight, values), place_of(layer.bias, values)] for layer in own] for own in layers]
    return np.array(sizes, np.int64), np.array(places, np.int64)


def actor_form(network: nn.Module) -> NumpyForm | PoliciesForm | None:
    """Like `numpy_form`, also for the actors of several policies."""
    if type(network) is not PoliciesActor:
        return numpy_form(network)
    forms = [numpy_form(actor) for actor in network.actors]
    known = tuple(form for form in forms if form is not None)
    if len(known) < len(forms) or has_hooks(network):
        return None
    num_arrays = tuple(len(arrays_of(actor)) for actor in network.actors)
    return PoliciesForm(known, num_arrays, network.agents, network.sizes)


def numpy_form(network: nn.Module) -> NumpyForm | None:
    """The NumPy form of a network on a CPU; None if it has none.

    Networks of this library have one if their hidden layers use tanh or ReLU, and if they have no hooks.
    """
    if has_hooks(network):
        return None
    if type(network) is NormalizedNetwork:
        inner_form = numpy_form(network.network)
        return None if inner_form is None else replace(inner_form, normalizes=network.normalizer.layout)
    if type(network) is RecurrentNetwork:
        return _recurrent_form(network)
    found = _mlp_and_layout(network)
    if found is None:
        return None
    layers, layout = found
    activations = _activations_of(layers)
    if len(activations) != 1 or None in activations:
        return None
    inner = network.mean if isinstance(network, GaussianActor) else network
    mask_size = inner.num_actions if isinstance(inner, MaskedActor) else 0
    (activation,) = activations
    encoded = None
    trunk = _trunk_of(network)[0]
    if type(trunk) is EncodedNetwork:
        encoded = _encoded_form(trunk, activation)
        if encoded is None:
            return None
    explores = type(network) is StateDependentActor
    return NumpyForm(activation, mask_size, layout, encoded, explores=explores)


def _recurrent_form(network: RecurrentNetwork) -> NumpyForm | None:
    form, features = numpy_form(network.network), network.features
    if form is None or form.layout is not None:
        return None
    kind = next(kind for kind, made in CELLS.items() if type(network.cell) is made)
    form = replace(form, cell=CellForm(kind, network.cell.size))
    if type(features) is EncodedNetwork:
        encoded = _encoded_form(features, form.activation)
        return None if encoded is None else replace(form, encoded=encoded, layout=features.layout)
    if features is not None and not _has_known_convolutions(features):
        return None
    return replace(form, layout=network.layout if network.layout.images else None)


def _encoded_form(network: EncodedNetwork, activation: NumpyActivation) -> EncodedForm | None:
    encoders = [encoder for encoder in network.encoders if not isinstance(encoder, nn.Identity)]
    activations = _activations_of(layer for encoder in encoders for layer in encoder.children())
    if not _has_known_convolutions(network) or not activations <= {activation}:
        return None
    counts = [sum(isinstance(layer, nn.Linear) for layer in encoder.modules()) for encoder in network.encoders]
    return EncodedForm(network.layout, tuple(zip(network.parts, counts, strict=True)), network.end)


def _activations_of(layers: Iterable[nn.Module]) -> set[Any]:
    """The activations among some layers; None stands for those without a NumPy form."""
    return {ACTIVATIONS.get(type(layer)) for layer in layers if not _is_linear(layer)}


def _is_linear(layer: nn.Module) -> bool:
    return type(layer) in LINEAR and layer.bias is not None


def columns_seen(network: nn.Module) -> Any:
    """The numbers of a row that an MLP sees, as an index: `slice(None)` for all; None if it also sees other parts."""
    trunk = _trunk_of(network)[0]
    if type(trunk) is MLP:
        return slice(None)
    is_plain = type(trunk) is EncodedNetwork and not trunk.layout.images
    if not is_plain or not all(isinstance(each, nn.Identity) for each in trunk.encoders):
        return None
    numbers = np.arange(trunk.layout.num_numbers)
    return np.concatenate([*(numbers[part.numbers] for part in trunk.parts), numbers[trunk.end :]])


def cell_of(network: nn.Module) -> Cell | None:
    """The recurrent cell of a network of this library; None if it has none."""
    inner = network.network if type(network) is NormalizedNetwork else network
    return inner.cell if isinstance(inner, RecurrentNetwork) else None


def has_hooks(network: nn.Module) -> bool:
    """Whether the network has hooks, which only torch would call."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def has_gradient_hooks(*networks: nn.Module) -> bool:
    """Whether networks or their parameters have hooks of gradients, which only autograd would call."""
    parameters = [parameter for network in networks for parameter in network.parameters()]
    modules = [module for network in networks for module in network.modules()]
    of_parameters = any(each._backward_hooks or each._post_accumulate_grad_hooks for each in parameters)
    return of_parameters or any(each._backward_hooks or each._backward_pre_hooks for each in modules)


def arrays_of(network: nn.Module) -> list[Tensor]:
    """The arrays of its NumPy form: its parameters, and the moments of its normalisation."""
    if type(network) is PoliciesActor:
        return [array for actor in network.actors for array in arrays_of(actor)]
    parameters: list[Tensor] = [parameter.detach() for parameter in network.parameters()]
    if type(network) is NormalizedNetwork:
        moments = network.normalizer.moments
        return [*parameters, moments.mean, moments.variance]
    return parameters


def is_on_cpu(network: nn.Module) -> bool:
    """Whether all parameters are on the CPU."""
    return all(parameter.device.type == "cpu" for parameter in network.parameters())


def _mlp_and_layout(network: nn.Module) -> tuple[list[nn.Module], RowLayout | None] | None:
    """The layers of the MLP in a network of this library, and the layout of rows if layers precede the MLP."""
    trunk, last = _trunk_of(network)
    if type(trunk) in (ImageNetwork, EncodedNetwork):
        if not _has_known_convolutions(trunk):
            return None
        layout = RowLayout(0, (trunk.image,), is_one_image=True) if type(trunk) is ImageNetwork else trunk.layout
        return [*trunk.mlp, *last], layout
    return ([*trunk, *last], None) if type(trunk) is MLP else None


def _trunk_of(network: nn.Module) -> tuple[Any, list[nn.Module]]:
    """A network of this library without the additions of an actor, and its last layer if that is separate."""
    trunk: Any = network
    if type(trunk) is GaussianActor:
        trunk = trunk.mean
    if type(trunk) is MaskedActor:
        trunk = trunk.logits
    if type(trunk) is HeadedNetwork:
        return trunk.trunk.network, [trunk.head]
    if type(trunk) is StateDependentActor:
        return trunk.feature_layers, [trunk.head]
    return trunk, []


def _has_known_convolutions(network: nn.Module) -> bool:
    """Whether the convolutions of an image network have a NumPy form."""
    convolutions: Any = network.convolutions
    each: list[nn.Module] = list(convolutions) if isinstance(convolutions, nn.ModuleList) else [convolutions]
    # Images that no network sees need no convolutions.
    of_known = (type(layer) in OF_CONVOLUTIONS for layers in each for layer in layers.children())
    return all(type(layers) in (Nature, nn.Identity) for layers in each) and all(of_known)
