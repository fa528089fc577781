"""Layers that actor and critic share."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn


class SharedTrunk(nn.Module):
    """All layers before the last ones of actor and critic. Within `once`, an input passes through them only once."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._keeps = False
        self._kept: tuple[Tensor, Tensor] | None = None

    def forward(self, observations: Tensor) -> Tensor:
        """`[..., *row] -> [..., features]`."""
        if not self._keeps:
            features: Tensor = self.network(observations)
            return features
        if self._kept is None or self._kept[0] is not observations:
            self._kept = observations, self.network(observations)
        return self._kept[1]

    @contextlib.contextmanager
    def once(self) -> Iterator[None]:
        """A context in which the same tensor passes through only once; gradients of both networks add up there."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps, self._kept = False, None


class HeadedNetwork(nn.Module):
    """`[..., *row] -> [..., outputs]`: a shared trunk and a separate last layer."""

    def __init__(self, trunk: SharedTrunk, head: nn.Linear) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head

    def forward(self, observations: Tensor) -> Tensor:
        """The last layer's outputs."""
        outputs: Tensor = self.head(self.trunk(observations))
        return outputs


def shared_trunk_of(network: nn.Module) -> SharedTrunk | None:
    """The shared trunk within a network; None if it has none."""
    return next((module for module in network.modules() if isinstance(module, SharedTrunk)), None)
