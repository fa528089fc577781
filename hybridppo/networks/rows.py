"""Rows of observations as tensors: their numbers, and their images.

Rows with images are bytes (`RowLayout`). In an exported policy they are float32, with a number for each byte of an
image, since network formats cannot read four bytes as a number.
"""

import math

import torch
from torch import Tensor

from hybridppo.spaces.rows import RowLayout


def numbers_of(rows: Tensor, layout: RowLayout) -> Tensor:
    """The numbers of rows, float32 `[..., num_numbers]`; rows without images are returned unchanged."""
    if not layout.images:
        return rows
    if not layout.num_numbers:
        return rows.new_empty((*rows.shape[:-1], 0), dtype=torch.float32)
    if rows.is_floating_point():
        return rows[..., : layout.num_numbers]
    # A copy, because bytes can be viewed as float32 only if each row begins at a multiple of four bytes.
    own = rows[..., : layout.end_of_numbers].clone(memory_format=torch.contiguous_format)
    return own.view(torch.float32)


def with_numbers(rows: Tensor, layout: RowLayout, numbers: Tensor) -> Tensor:
    """Rows with the same images and other numbers `[..., num_numbers]`."""
    if not layout.images:
        return numbers
    if rows.is_floating_point():
        return torch.cat((numbers, rows[..., layout.num_numbers :]), dim=-1)
    return torch.cat((numbers.contiguous().view(torch.uint8), rows[..., layout.end_of_numbers :]), dim=-1)


def images_of(rows: Tensor, layout: RowLayout) -> list[Tensor]:
    """The images of rows `[..., bytes]`, `[B, *image]` each."""
    if not layout.images:  # a graph cannot be saved with a split into nothing
        return []
    sizes = [image.num_bytes for image in layout.images]
    images = rows[..., layout.num_numbers if rows.is_floating_point() else layout.end_of_numbers :]
    parts = torch.split(images, sizes, dim=-1)
    return [part.reshape(-1, *image.shape) for image, part in zip(layout.images, parts, strict=True)]


def own_rows(rows: Tensor, layout: RowLayout) -> Tensor:
    """As `RowLayout.own`, of tensors."""
    own = rows[..., : math.prod(layout.shape)]
    return own.to(torch.uint8).reshape(*rows.shape[:-1], *layout.shape) if layout.images else own
