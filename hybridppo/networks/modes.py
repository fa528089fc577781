"""Networks that behave differently in `train()` and `eval()`, such as those with dropout or batch normalisation.

Networks are in `train()` while gradients are computed, and in `eval()` otherwise. The library's own networks do not
depend on the mode, and are never switched.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import nn

from hybridppo.errors import ConfigurationError

INDEPENDENT = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.Embedding, nn.Sequential, nn.ModuleList, nn.ModuleDict,
    nn.Identity, nn.Flatten, nn.MaxPool2d, nn.AvgPool2d, nn.Tanh, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU,
    nn.Sigmoid, nn.Softplus,
)  # fmt: skip
"""Modules of torch that do not depend on the mode; any other module may."""

HOST = torch.device("cpu")
_one_thread = threading.RLock()


def depend_on_training(*networks: nn.Module) -> bool:
    """Whether some module may behave differently in `train()` and `eval()`."""
    kinds = {type(module) for network in networks for module in network.modules()}
    return any(kind not in INDEPENDENT and not kind.__module__.startswith("hybridppo.") for kind in kinds)


def require_same_everywhere(*networks: nn.Module) -> None:
    """Refuse networks that would differ between several learners.

    Raises:
        ConfigurationError: with the remedy.
    """
    if depend_on_training(*networks):
        raise ConfigurationError(
            "networks with dropout, batch normalisation or modules that may depend on train() cannot be shared by "
            "several learners, whose noise and statistics would differ: use distributed='local', or normalise with "
            "nn.LayerNorm"
        )


def learning_mode(*networks: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Put the networks in `eval()`; return a function that makes contexts in which they are in `train()`."""
    for network in networks:
        network.eval()
    return partial(_training, networks) if depend_on_training(*networks) else nullcontext


def share_buffers(network: nn.Module, with_network: nn.Module) -> None:
    """Share the buffers of a network with its copy, so that a target network has the newest statistics, too."""
    for module, other in zip(network.modules(), with_network.modules(), strict=True):
        module._buffers.update(other._buffers)


@contextmanager
def _training(networks: Sequence[nn.Module]) -> Iterator[None]:
    try:
        for network in networks:
            network.train()
        yield
    finally:
        for network in networks:
            network.eval()


@contextmanager
def noise_from(seed: Sequence[int], device: torch.device) -> Iterator[None]:
    """A context in which modules draw random numbers that follow from `seed`; it restores torch's generators.

    Dropout can only draw from torch's global generators.
    """
    with torch_seeded(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) >> 1, device):
        yield


@contextmanager
def torch_seeded(seed: int, device: torch.device = HOST) -> Iterator[None]:
    """A context in which torch's global generators have this seed; it restores them.

    Other threads wait for its end, because their trainings have the same generators.
    """
    is_on_host = device.type == "cpu"
    devices, kind = ([], "cuda") if is_on_host else ([device], device.type)
    with _one_thread, torch.random.fork_rng(devices, device_type=kind):
        torch.manual_seed(seed)
        yield
