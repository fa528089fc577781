"""The actors of several policies as one: each agent of an environment is a column, and belongs to one of them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hybridppo.networks.numpy_forms.form import Sizes, most_outputs
from hybridppo.networks.rows import own_rows


class PoliciesActor(nn.Module):
    """`[N, obs] -> [N, outputs]`: row `i` belongs to agent `i % A` of an environment and passes through its policy.

    Args:
        actors: the actor of each policy.
        agents: for each policy, the indices of its own agents among the `A` of an environment.
        sizes: for each policy, the layout of its rows and the number of its outputs; other outputs are zeros. None if
            all policies take whole rows and have equally many outputs.
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
        """The outputs of all rows in their order."""
        return self.outputs_by(lambda number, rows: self.actors[number](rows), observations)

    def outputs_by(self, act: Callable[[int, Tensor], Tensor], observations: Tensor) -> Tensor:
        """The outputs of all rows in their order; `act` takes the number of a policy and its rows."""
        outputs: Tensor | None = None
        for number in range(len(self.actors)):
            rows = self.rows_of(number, observations)
            found = act(number, rows if self.sizes is None else own_rows(rows, self.sizes[number][0]))
            if outputs is None:
                width = found.shape[-1] if self.sizes is None else most_outputs(self.sizes)
                outputs = found.new_zeros((len(observations), width))
            self.put(outputs, number, found)
        assert outputs is not None  # there is at least one policy
        return outputs

    def rows_of(self, number: int, rows: Tensor) -> Tensor:
        """The rows of one policy."""
        apart = rows.view(-1, self.num_agents, *rows.shape[1:])
        return apart.index_select(1, self.get_buffer(f"_agents_{number}")).flatten(0, 1)

    def put(self, rows: Tensor, number: int, own: Tensor) -> None:
        """Write the first numbers of one policy's rows."""
        apart, agents = rows.view(-1, self.num_agents, rows.shape[1]), self.get_buffer(f"_agents_{number}")
        apart[..., : own.shape[-1]].index_copy_(1, agents, own.view(len(apart), len(agents), -1))


def actors_of(network: nn.Module) -> list[nn.Module]:
    """The actors of several policies; or the network itself, if it is the actor of one policy."""
    return list(network.actors) if isinstance(network, PoliciesActor) else [network]
