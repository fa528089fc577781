"""Rows of observations as tensors: their numbers, and their images."""

import torch
from torch import Tensor

from hybridppo.spaces.rows import RowLayout


def numbers_of(rows: Tensor, layout: RowLayout) -> Tensor:
    """The numbers of rows, `[..., num_numbers]` of float32; of those without images, the rows themselves."""
    if not layout.images:
        return rows
    # A tensor of larger numbers may only be a view of one whose rows are as many bytes.
    return rows[..., : layout.end_of_numbers].contiguous().view(torch.float32)


def images_of(rows: Tensor, layout: RowLayout) -> list[Tensor]:
    """The images of rows `[..., bytes]`, `[B, *image]` each."""
    return [
        rows[..., part].reshape(-1, *image.shape)
        for image, part in zip(layout.images, layout.image_slices, strict=True)
    ]
