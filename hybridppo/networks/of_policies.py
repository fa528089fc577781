"""The actors of several policies as one: each agent of an environment is a column, and belongs to one of them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hybridppo.networks.numpy_forms.form import Sizes, most_outputs


class PoliciesActor(nn.Module):
    """`[N, obs] -> [N, outputs]`, where row `i` is of agent `i % A` of an environment and goes through its policy.

    Args:
        actors: of the policies.
        agents: of each policy, which of the `A` agents of an environment are its own.
        sizes: of each policy, how many numbers of a row it takes, and how many outputs it gives; the other outputs are
            zeros. None if all take whole rows and give as many outputs.
    """

    def __init__(
        self, actors: Sequence[nn.Module], agents: Sequence[Sequence[int]], sizes: Sizes | None = None
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.actors = nn.ModuleList(actors)
        self.agents = tuple(tuple(of_policy) for of_policy in agents)
        self.num_agents = sum(map(len, self.agents))
        """`A`."""
        for number, of_policy in enumerate(self.agents):
            self.register_buffer(f"_agents_{number}", torch.tensor(of_policy, dtype=torch.int64), persistent=False)

    def forward(self, observations: Tensor) -> Tensor:
        """Outputs of all rows, in their order."""
        rows = observations.view(-1, self.num_agents, *observations.shape[1:])
        outputs: Tensor | None = None
        for number, actor in enumerate(self.actors):
            own = self.get_buffer(f"_agents_{number}")
            taken = rows.index_select(1, own).flatten(0, 1)
            if self.sizes is not None:
                taken = taken[:, : self.sizes[number][0]]
            found = actor(taken).view(len(rows), len(own), -1)
            if outputs is None:
                width = found.shape[-1] if self.sizes is None else most_outputs(self.sizes)
                outputs = found.new_zeros((len(rows), self.num_agents, width))
            outputs[..., : found.shape[-1]].index_copy_(1, own, found)
        assert outputs is not None  # there is a policy at least
        return outputs.flatten(0, 1)


def actors_of(network: nn.Module) -> list[nn.Module]:
    """The actors of several policies; or the network itself, if it is of one."""
    return list(network.actors) if isinstance(network, PoliciesActor) else [network]
