"""What an update learns from: the newest rollout, or with it a pool of older ones.

Source: Queeney, Paschalidis and Cassandras, "Generalized Proximal Policy Optimization with Sample Reuse", NeurIPS 2021
(sections 4 to 6), with advantages by V-trace (Espeholt et al., "IMPALA", 2018, section 4.1).

Their surrogate clips the ratio of the newest policy to that which acted around what it is before the update, by `c`:
`min(r * A, clip(r, w - c, w + c) * A)`, where `w` is that ratio. With `r = w * r'` this is `w` times PPO's own
surrogate of the ratio `r'` to the policy before the update, with a clip range of `c / w` for each sample. So a pooled
batch has log-probabilities of the policy before the update, advantages weighed by `w`, and a clip range for each row;
the loss is PPO's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import Batch, PackedBatch, columns_of
from hybridppo.agents.ppo.rounded_steps import as_steps_see_it, log_probs_now
from hybridppo.rollouts.advantages import next_values, vtrace
from hybridppo.rollouts.rollout import Rollout

if TYPE_CHECKING:
    from hybridppo.agents.ppo.ppo import PPO

LEARNING_RATE_STEP = 0.03
"""By how much the actor's rate is lowered after an update that went too far (the paper's appendix, "adaptation")."""


@dataclass(frozen=True)
class PooledBatch(Batch):
    """Steps that several policies took."""

    weights: Tensor
    """`[B]`, how much more probable each action was before the update than when it was taken."""
    shares: Tensor
    """`[B]`, how much of the clip range is this update's; the same in every row."""

    def only(self, rows: Tensor) -> "PooledBatch":
        """The rows at `[M]` indices, copied."""
        return PooledBatch(*(getattr(self, name).index_select(0, rows) for name in columns_of(PooledBatch)))

    def clip_range(self, clip_range: Any) -> Any:
        """For each row, `[B]`."""
        return clip_range * self.shares / self.weights

    @property
    def advantage_weights(self) -> Tensor:
        """The weights."""
        return self.weights

    def with_columns(self, log_probs: Tensor, values: Tensor, advantages: Tensor, returns: Tensor) -> "PooledBatch":
        """The same steps with other numbers beside them, `[B]` each."""
        columns = (log_probs, values, advantages, returns)
        return PooledBatch(self.observations, self.actions, *columns, self.weights, self.shares)

    def packed(self) -> PackedBatch:
        """The same as arrays, on the CPU."""
        return PackedPool(*self._as_arrays())


class PackedPool(PackedBatch):
    """A pooled batch as arrays: below the columns of a batch are its weights and shares."""

    def clip_range(self, clip_range: float) -> Any:
        """For each row, `[B]`."""
        return clip_range * self._columns[5] / self._columns[4]


class Newest(nn.Module):
    """The newest rollout alone: PPO."""

    rate = 1.0
    """What the actor's learning rate is multiplied by."""

    def batch(self, agent: "PPO", rollout: Rollout, steps: Any) -> Any:
        """What the epochs go over."""
        return agent.prepared(rollout, steps)

    def measures(self, agent: "PPO", batch: Any, steps: Any) -> list[Tensor]:
        """What is to be known of the update that has ended, a scalar each."""
        return []

    def learned(self, agent: "PPO", measured: Sequence[float], clip_range: float) -> dict[str, float]:
        """Take note of it; its metrics."""
        return {}

    def fill(self, rollout: Rollout) -> None:
        """Keep as many rollouts as there will be, all of them this one."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What is kept: tensors by name, and what JSON can hold."""
        return {}, {}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], like: Tensor) -> None:
        """Take it over, to where another tensor lies."""


class Pool(Newest):
    """The newest rollout and up to `size - 1` older ones, where the agent learns.

    Each counts alike. How far an update may go in all is shared by the policies between it and the oldest: the clip
    range is divided by the mean number of updates from one that acted to the new one (the paper's theorem 2; for equal
    weights, which leave the largest effective sample, `2 / (size + 1)` of it).

    Args:
        size: how many rollouts at most.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.rate = 1.0
        self._kept = nn.ModuleList()  # of modules, whose buffers are moved with the agent
        self._new: Rollout | None = None
        self._count = 0

    @torch.no_grad()
    def batch(self, agent: "PPO", rollout: Rollout, steps: Any) -> PooledBatch:  # noqa: D102 - as in the base
        self._new = rollout
        pooled = [rollout, *(kept.rollout() for kept in self._rollouts())][: self.size]
        self._count = len(pooled)
        distances = [agent.version - one.version + 1 for one in pooled]
        share = len(pooled) / sum(distances)
        parts = [self._part(agent, one, steps, share, is_new=one is rollout) for one in pooled]
        columns = ([getattr(part, name) for part in parts] for name in columns_of(PooledBatch))
        return as_steps_see_it(agent, PooledBatch(*map(torch.cat, columns)), steps, is_current=True)

    def _part(self, agent: "PPO", rollout: Rollout, steps: Any, share: float, *, is_new: bool) -> PooledBatch:
        """What one rollout adds, seen from the policy as it is now."""
        config = agent.config
        observations, finals = agent.normalization.of_observations(rollout)
        values, final_values = agent.cut.values(steps, observations, finals, rollout)
        rows, actions = observations[:-1].flatten(0, 1), rollout.actions.flatten(0, 1)
        log_probs = steps.log_probs(rows, actions)
        weights = (log_probs - rollout.log_probs.flatten()).exp()
        advantages, returns = vtrace(
            rewards=agent.normalization.of_rewards(rollout, is_new=is_new),
            values=values[:-1],
            next_values=next_values(values=values, final_rows=rollout.final_rows, final_values=final_values),
            weights=weights.view_as(rollout.rewards),
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        everything = PooledBatch(
            observations=rows,
            actions=actions,
            log_probs=log_probs,
            values=values[:-1].flatten(),
            advantages=advantages.flatten(),
            returns=returns.flatten(),
            weights=weights,
            shares=torch.full_like(weights, share),
        )
        return everything if len(rollout.valid_rows) == len(rows) else everything.only(rollout.valid_rows)

    @torch.no_grad()
    def measures(self, agent: "PPO", batch: PooledBatch, steps: Any) -> list[Tensor]:
        """The total variation between the policies before and after the update, as the pool's actions tell it."""
        ratio = (log_probs_now(agent, batch, steps) - batch.log_probs).exp()
        return [0.5 * (batch.weights * (ratio - 1.0).abs()).mean(), batch.shares[:1].sum(), batch.weights.mean()]

    def learned(self, agent: "PPO", measured: Sequence[float], clip_range: float) -> dict[str, float]:
        """Keep the rollout, and lower the actor's rate where the update went further than half the clip range."""
        variation, share, weight = measured
        if variation > 0.5 * share * clip_range:
            self.rate /= 1.0 + LEARNING_RATE_STEP
        assert self._new is not None  # `batch` was before
        kept = [_Kept(self._new.map(torch.clone)), *self._rollouts()]
        self._kept = nn.ModuleList(kept[: self.size - 1])
        self._new = None
        return {"pool_rollouts": float(self._count), "pool_weight_mean": weight, "total_variation": variation}

    def fill(self, rollout: Rollout) -> None:  # noqa: D102 - as in the base
        self._kept = nn.ModuleList(_Kept(rollout.map(torch.clone)) for _ in range(self.size - 1))

    def _rollouts(self) -> Iterator["_Kept"]:
        for module in self._kept:
            assert isinstance(module, _Kept)
            yield module

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:  # noqa: D102 - as in the base
        versions = [kept.version for kept in self._rollouts()]
        return self._kept.state_dict(), {"pool_rate": self.rate, "pool_versions": versions}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], like: Tensor) -> None:  # noqa: D102
        self.rate = float(state["pool_rate"])
        kept = []
        for i, version in enumerate(state["pool_versions"]):
            saved = {name.partition(".")[2]: t for name, t in tensors.items() if name.partition(".")[0] == str(i)}
            own = {name: like.new_empty(t.shape, dtype=t.dtype).copy_(t) for name, t in saved.items()}
            kept.append(_Kept(Rollout(**own, version=int(version))))
        self._kept = nn.ModuleList(kept)


class _Kept(nn.Module):
    """A rollout as buffers."""

    def __init__(self, rollout: Rollout) -> None:
        super().__init__()
        self.version = rollout.version
        for name, tensor in rollout.tensors().items():
            self.register_buffer(name, tensor)

    def rollout(self) -> Rollout:
        tensors: dict[str, Any] = dict(self.named_buffers())
        return Rollout(**tensors, version=self.version)


def experience(pool_size: int) -> Newest:
    """What an update learns from."""
    return Newest() if pool_size == 1 else Pool(pool_size)
