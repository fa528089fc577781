"""The actors of several policies as one: each agent of an environment is a column, and belongs to one of them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class PoliciesActor(nn.Module):
    """`[N, obs] -> [N, outputs]`, where row `i` is of agent `i % A` of an environment and goes through its policy.

    Args:
        actors: of the policies; all give as many outputs.
        agents: of each policy, which of the `A` agents of an environment are its own.
    """

    def __init__(self, actors: Sequence[nn.Module], agents: Sequence[Sequence[int]]) -> None:
        super().__init__()
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
            found = actor(rows.index_select(1, own).flatten(0, 1)).view(len(rows), len(own), -1)
            if outputs is None:
                outputs = found.new_empty((len(rows), self.num_agents, found.shape[-1]))
            outputs.index_copy_(1, own, found)
        assert outputs is not None  # there is a policy at least
        return outputs.flatten(0, 1)


def actors_of(network: nn.Module) -> list[nn.Module]:
    """The actors of several policies; or the network itself, if it is of one."""
    return list(network.actors) if isinstance(network, PoliciesActor) else [network]
