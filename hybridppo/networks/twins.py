"""The NumPy twin of a network, the linear layers of its MLP, and hooks, which only torch would call."""

from torch import nn

from hybridppo.networks.numpy_twin import NumpyTwin, PoliciesTwin, twin_within

KNOWN = (nn.Linear, nn.Conv2d, nn.Tanh, nn.ReLU, nn.Identity, nn.ModuleList)
"""Modules of torch that a network with a twin may have, by exact type: a subclass may compute something else."""


def twin_of(network: nn.Module) -> NumpyTwin | PoliciesTwin | None:
    """The NumPy twin of a network on a CPU; None if it has none.

    Networks of this library have one if their hidden layers use tanh or ReLU, and if they have no hooks.
    """
    modules = list(network.modules())
    if any(type(each) not in KNOWN and not type(each).__module__.startswith("hybridppo.") for each in modules):
        return None
    if any(each._forward_hooks or each._forward_pre_hooks for each in modules):
        return None
    twin: NumpyTwin | PoliciesTwin | None = twin_within(network)
    return twin


def mlp_twin(network: nn.Module) -> NumpyTwin:
    """The twin of a network that has one and belongs to one policy."""
    twin = twin_of(network)
    assert isinstance(twin, NumpyTwin)
    return twin


def linears(network: nn.Module) -> list[nn.Linear]:
    """The linear layers of a network, first to last."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def has_gradient_hooks(*networks: nn.Module) -> bool:
    """Whether networks or their parameters have hooks of gradients, which only autograd would call."""
    parameters = [parameter for network in networks for parameter in network.parameters()]
    modules = [module for network in networks for module in network.modules()]
    of_parameters = any(each._backward_hooks or each._post_accumulate_grad_hooks for each in parameters)
    return of_parameters or any(each._backward_hooks or each._backward_pre_hooks for each in modules)
