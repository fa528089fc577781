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
from typing import Any

import torch
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import Batch
from hybridppo.rollouts.parts import in_parts
from hybridppo.rollouts.rollout import Rollout

LEARNING_RATE_STEP = 0.03
"""By how much the actor's rate is lowered after an update that went too far (the paper's appendix, "adaptation")."""


class Pool(nn.Module):
    """The newest rollout and up to `size - 1` older ones, where the agent learns; with a size of 1, PPO.

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
        """What the actor's learning rate is multiplied by."""
        self._kept = nn.ModuleList()  # of modules, whose buffers are moved with the agent
        self._count = 0

    def rollouts(self, newest: Any, version: int) -> tuple[Sequence[Any], float | None]:
        """What an update learns from, the newest first, and the share of the clip range; None without a pool.

        Args:
            newest: of them; the others are in as many parts.
            version: of the agent's parameters.
        """
        if self.size == 1:
            return [newest], None
        num_parts = len(newest.parts)
        pooled = [newest, *(in_parts(kept.rollout(), num_parts) for kept in self._rollouts())][: self.size]
        self._count = len(pooled)
        return pooled, len(pooled) / sum(version - one.version + 1 for one in pooled)

    def measures(self, batch: Batch, log_probs: Tensor) -> list[Tensor]:
        """What is to be known of the update that has ended, by the log-probabilities `[B]` now: a scalar each.

        The first is the total variation between the policies before and after it, as the pool's actions tell it.
        """
        assert batch.weights is not None
        assert batch.shares is not None
        ratio = (log_probs - batch.log_probs).exp()
        return [0.5 * (batch.weights * (ratio - 1.0).abs()).mean(), batch.shares[:1].sum(), batch.weights.mean()]

    def learned(self, newest: Rollout, measured: Sequence[float], clip_range: float) -> dict[str, float]:
        """Keep the rollout, and lower the actor's rate if the update went further than half the clip range.

        Returns:
            Metrics.
        """
        if self.size == 1:
            return {}
        variation, share, weight = measured
        if variation > 0.5 * share * clip_range:
            self.rate /= 1.0 + LEARNING_RATE_STEP
        kept = [_Kept(newest.map(torch.clone)), *self._rollouts()]
        self._kept = nn.ModuleList(kept[: self.size - 1])
        return {"pool_rollouts": float(self._count), "pool_weight_mean": weight, "total_variation": variation}

    def fill(self, rollout: Rollout) -> None:
        """Keep as many rollouts as there will be, all of them this one."""
        self._kept = nn.ModuleList(_Kept(rollout.map(torch.clone)) for _ in range(self.size - 1))

    def _rollouts(self) -> Iterator["_Kept"]:
        for module in self._kept:
            assert isinstance(module, _Kept)
            yield module

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What is kept: tensors by name, and what JSON can hold."""
        if self.size == 1:
            return {}, {}
        versions = [kept.version for kept in self._rollouts()]
        return self._kept.state_dict(), {"pool_rate": self.rate, "pool_versions": versions}

    def load_state(self, tensors: dict[str, Tensor], state: dict[str, Any], like: Tensor) -> None:
        """Take it over, to where another tensor lies."""
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
