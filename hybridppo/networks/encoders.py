"""Networks with separate layers for each part of an observation, before the parts are joined."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from hybridppo.errors import ConfigurationError
from hybridppo.networks.convolutions import Convolve, features_of
from hybridppo.networks.rows import images_of, numbers_of
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.rows import RowLayout, RowPart

EncoderSizes = Mapping[str, Sequence[int]]
"""Widths of the layers of each part that has layers, by the key of the part."""


class EncodedNetwork(nn.Module):
    """`[..., *row] -> [..., outputs]`: each part is encoded by itself; an MLP takes all of them together.

    A part is encoded as its numbers and the convolutions' output for its images, passed through hidden layers if it has
    widths. The rest of a row (a mask) is joined unchanged.

    Args:
        layout: the layout of a row.
        parts: the parts to use, in the order of a row, each with the widths of its layers (empty for no layers).
        end: index after the last of the row's numbers that belong to a part.
        make_mlp: makes the MLP for a number of inputs.
        make_encoder: makes hidden layers for a number of inputs and widths.
        convolve: makes the convolutions of an image.
    """

    def __init__(
        self,
        layout: RowLayout,
        parts: Sequence[tuple[RowPart, Sequence[int]]],
        end: int,
        make_mlp: Callable[[int], nn.Module],
        make_encoder: Callable[[int, Sequence[int]], nn.Module],
        convolve: Convolve,
    ) -> None:
        super().__init__()
        seen = {number for part, _ in parts for number in range(part.images.start, part.images.stop)}
        made = [convolve(image) if i in seen else (nn.Identity(), 0) for i, image in enumerate(layout.images)]
        self.convolutions = nn.ModuleList([module for module, _ in made])
        encoders: list[nn.Module] = []
        width = layout.num_numbers - end
        for part, sizes in parts:
            inputs = part.numbers.stop - part.numbers.start + sum(size for _, size in made[part.images])
            encoders.append(make_encoder(inputs, sizes) if sizes else nn.Identity())
            width += sizes[-1] if sizes else inputs
        self.encoders = nn.ModuleList(encoders)
        self.num_features = width
        self.mlp = make_mlp(width)
        self.layout, self.parts, self.end = layout, [part for part, _ in parts], end

    def forward(self, observations: Tensor) -> Tensor:
        """The MLP's outputs."""
        rows = observations.reshape(-1, observations.shape[-1])
        numbers, images = numbers_of(rows, self.layout), images_of(rows, self.layout)
        seen = [
            numbers[:, :0] if isinstance(convolutions, nn.Identity) else features_of(batch, image, convolutions)
            for batch, image, convolutions in zip(images, self.layout.images, self.convolutions, strict=True)
        ]
        features = [
            encoder(torch.cat((numbers[:, part.numbers], *seen[part.images]), dim=-1))
            for part, encoder in zip(self.parts, self.encoders, strict=True)
        ]
        rest = numbers[:, self.end :]
        outputs: Tensor = self.mlp(torch.cat((*features, rest), dim=-1))
        return outputs.view(*observations.shape[:-1], outputs.shape[-1])


def parts_with_sizes(
    encode: ObservationEncoder, sizes: EncoderSizes | None, keys: Sequence[str] | None, field: str
) -> list[tuple[RowPart, Sequence[int]]] | None:
    """The parts of a row that a network sees, each with the widths of its layers; None for the whole row.

    Args:
        encode: encodes the observations.
        sizes: widths of the layers of each part that has layers.
        keys: the keys of the parts; None for all parts.
        field: name of the configuration field that the keys come from, for messages.

    Raises:
        ConfigurationError: if observations have no parts, or lack a part that is named.
    """
    if sizes is None and keys is None:
        return None
    parts = encode.by_key
    for name, asked in (("encoder_sizes", sizes), (field, keys)):
        unknown = [key for key in asked or () if key not in parts]
        if unknown:
            have = f"has {', '.join(parts)}" if parts else "is no Dict or Tuple"
            raise ConfigurationError(
                f"{name} names the part {unknown[0]!r}, and the observation space {have}: name parts that there are"
            )
    return [(part, (sizes or {}).get(key, ())) for key, part in parts.items() if keys is None or key in keys]
