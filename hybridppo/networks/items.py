"""Encoders of texts, sequences and graphs in rows (`ItemsLayout`). Empty places change nothing."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, one_hot, relu

from hybridppo.networks.layers import EmptyLinear, MakeLayer
from hybridppo.spaces.rows import ItemsLayout

WIDTH = 64
"""Numbers of each item, and of the mean over items."""


class NumbersWithItems(nn.Module):
    """`[B, numbers] -> [B, num_features]`: the numbers in a slice of a row, and in place of items their features.

    Args:
        numbers: the slice.
        items: the layouts of the items in it, each with its first number in the row.
        make_layer: initialises a layer.
    """

    def __init__(
        self, numbers: "slice[int, int, None]", items: Sequence[tuple[int, ItemsLayout]], make_layer: MakeLayer
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleList([ItemsEncoder(each, make_layer) for _, each in items])
        self._places = [slice(start - numbers.start, start - numbers.start + each.size) for start, each in items]
        sizes = [ItemsEncoder.num_features - each.size for _, each in items]
        self.num_features = numbers.stop - numbers.start + sum(sizes)

    def forward(self, numbers: Tensor) -> Tensor:
        """The numbers and features."""
        parts, end = [], 0
        for place, encoder in zip(self._places, self.encoders, strict=True):
            parts += [numbers[:, end : place.start], encoder(numbers[:, place])]
            end = place.stop
        return torch.cat([*parts, numbers[:, end:]], -1)


class ItemsEncoder(nn.Module):
    """`[B, items.size] -> [B, WIDTH + 1]`: the mean over items, each after two layers, and the share of places in use.

    Zaheer et al., 2017, "Deep Sets", equation 4. The first layer of a character takes the character and its place, both
    one-hot. A node of a graph, after its first layer, takes the mean of its neighbours' messages along edges (Hamilton
    et al., 2017, "Inductive Representation Learning on Large Graphs", algorithm 1, with edges as in Gilmer et al.,
    2017, "Neural Message Passing for Quantum Chemistry", section 2).

    Args:
        items: the layout.
        make_layer: initialises a layer.
    """

    num_features = WIDTH + 1

    def __init__(self, items: ItemsLayout, make_layer: MakeLayer) -> None:
        super().__init__()
        self._items = items
        (most, width), *edges = items.places

        def layer(inputs: int) -> nn.Linear:
            return make_layer(EmptyLinear(inputs, WIDTH), math.sqrt(2.0))

        self.first = layer(items.num_characters + most if items.num_characters else width - 1)
        self.message = layer(WIDTH + edges[0][1] - 3) if edges else None
        self.second = layer(2 * WIDTH if edges else WIDTH)

    def forward(self, numbers: Tensor) -> Tensor:
        """The features."""
        items, *edges = self._items.tables(numbers)
        is_there = items[..., :1]
        if self._items.num_characters:
            characters, places = torch.split(self.first.weight.T, [self._items.num_characters, items.shape[1]])
            hidden = embedding(items[..., 1].long(), characters) + places + self.first.bias
        else:
            hidden = self.first(items[..., 1:])
        hidden = relu(hidden)
        if self.message is not None:
            hidden = torch.cat((hidden, self._received(hidden, edges[0])), -1)
        hidden = relu(self.second(hidden)) * is_there
        count = is_there.sum(1)
        return torch.cat((hidden.sum(1) / count.clamp(min=1.0), count / items.shape[1]), -1)

    def _received(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """The mean of the messages to each node, `[B, nodes, WIDTH]`."""
        assert self.message is not None
        is_there, ends = edges[..., :1], one_hot(edges[..., 1:3].long(), nodes.shape[1]).to(nodes.dtype)
        sources, targets = ends[..., 0, :], (ends[..., 1, :] * is_there).transpose(1, 2)
        messages = relu(self.message(torch.cat((sources @ nodes, edges[..., 3:]), -1)))
        return targets @ messages / targets.sum(-1, keepdim=True).clamp(min=1.0)
