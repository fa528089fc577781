"""Rows of observations made from torch tensors on a device."""

import math
from typing import Any

import torch
from torch import Tensor

from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.items import VaryingKind
from hybridppo.spaces.kinds import ChoicesKind, Kind, MultiBinaryKind
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import CriticRows


class TensorEncoder:
    """Encodes batches of observations as rows `[N, *row]` on their device, like `ObservationEncoder`.

    A choice that the space does not have becomes nan, which the check of rows finds later.

    Args:
        encode: the encoder of the space.
        leading: the first dimensions of a batch, whose product is `N`.
        device: the device that observations must be on.
    """

    def __init__(self, encode: ObservationEncoder, leading: tuple[int, ...], device: torch.device) -> None:
        self._encode, self._num_rows, self._device = encode, math.prod(leading), device
        self.layout = encode.layout
        if any(isinstance(leaf, VaryingKind) for leaf, _ in encode.parts):
            raise EnvError(f"batched environments cannot have observations of {encode.space}: use a Dict of Box")
        self.dtype = torch.uint8 if encode.layout.images else torch.float32
        """Type of a row."""
        self._shapes = {id(leaf): (*leading, *(leaf.space.shape or ())) for leaf, _ in encode.parts}
        self._writes_one = len(encode.parts) == 1 and encode.parts[0][0].image is None

    def __call__(self, observations: Any, name: str = "the observations") -> Tensor:
        """Encode a batch, a tensor or a container of tensors, as rows, which may share the memory of the batch.

        Raises:
            BadValueError: if a part is not a tensor of the right shape and type on the device.
        """
        encode = self._encode
        values = encode.values(observations)
        parts = [self._part(leaf, value, name) for (leaf, _), value in zip(encode.parts, values, strict=True)]
        if encode.image is not None or self._writes_one:
            return parts[0].reshape(self._num_rows, *encode.shape)
        numbers = [part for part, (leaf, _) in zip(parts, encode.parts, strict=True) if leaf.image is None]
        rows = torch.cat(numbers, 1) if numbers else torch.empty((self._num_rows, 0), device=self._device)
        if not encode.layout.images:
            return rows
        images = [
            part.reshape(self._num_rows, -1) for part, (leaf, _) in zip(parts, encode.parts, strict=True) if leaf.image
        ]
        return torch.cat((rows.view(torch.uint8), *images), 1)

    def _part(self, leaf: Kind[Any], value: Any, name: str) -> Tensor:
        """Encode one part: float32 `[N, size]`, or an unchanged image."""
        tensor = on_device(f"{name}{leaf.path}", value, self._shapes[id(leaf)], self._device)
        if leaf.image is not None:
            if tensor.dtype == torch.bool:  # booleans become black or white, as for other environments
                return tensor.to(torch.uint8) * 255
            if tensor.dtype != torch.uint8:
                raise BadValueError(f"{name}{leaf.path} are an image, and must be torch.uint8, not {tensor.dtype}")
            return tensor
        if isinstance(leaf, ChoicesKind) and not isinstance(leaf, MultiBinaryKind):
            if tensor.is_floating_point():
                raise BadValueError(f"{name}{leaf.path} are choices, and must be of whole numbers, not {tensor.dtype}")
            return _one_hot(leaf, tensor.reshape(self._num_rows, -1))
        return tensor.reshape(self._num_rows, -1).to(torch.float32)


class CriticRowsOnDevice:
    """Makes whole rows from written ones, like `CriticRows`, of tensors on a device."""

    def __init__(self, rows: CriticRows, device: torch.device) -> None:
        self._source = torch.as_tensor(rows.source.ravel(), device=device)
        self._beside = torch.as_tensor(rows.beside, device=device)

    def whole(self, rows: Tensor, are_there: Tensor) -> Tensor:
        """Whole rows `[E * A, W]` from written ones `[E * A, size]`; `are_there` is `[E, A]`, which are present."""
        apart = rows.reshape(len(are_there), -1).index_select(1, self._source)
        found = apart.view(*are_there.shape, -1).masked_fill(self._beside | ~are_there[..., None], 0.0)
        return found.flatten(0, 1)


def _one_hot(kind: ChoicesKind, choices: Tensor) -> Tensor:
    """Choices `[N, choices]` one-hot, `[N, size]`; nan for an invalid choice."""
    parts = []
    for at, (size, start) in enumerate(zip(kind.sizes, kind.starts.tolist(), strict=True)):
        hot = (choices[:, at, None] == torch.arange(start, start + size, device=choices.device)).to(torch.float32)
        parts.append(hot.masked_fill(hot.sum(1, keepdim=True) == 0.0, float("nan")))
    return torch.cat(parts, 1)


def on_device(name: str, value: Any, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The value, which must be a tensor of this shape on this device; without its gradient.

    Raises:
        BadValueError: if it is not.
    """
    if not isinstance(value, Tensor):
        raise BadValueError(f"{name} must be a torch tensor on {device}, not a {type(value).__name__}")
    if value.shape != shape:
        raise BadValueError(f"{name} must be of shape {list(shape)}, not {list(value.shape)}")
    if value.device != device:
        raise BadValueError(f"{name} must be on {device}, as the environments say they are, not on {value.device}")
    if value.is_complex():
        raise BadValueError(f"{name} must be real numbers, not {value.dtype}")
    return value.detach() if value.requires_grad else value
