"""Learning from actions of older policies: corrections for policy lag, and a pool of the newest rollouts.

Source: Queeney, Paschalidis and Cassandras, "Generalized Proximal Policy Optimization with Sample Reuse", NeurIPS 2021
(sections 4 to 6), with advantages by V-trace (Espeholt et al., "IMPALA", 2018, section 4.1).

Let `r` be the ratio of the new policy to the one that acted, and `w` its value before the update. Their surrogate is
`min(r * A, clip(r, w - c, w + c) * A)`. With `r = w * r'` this is `w` times PPO's own surrogate of the ratio `r'` to
the policy before the update, with a clip range of `c / w` for each sample. So a pooled batch has log-probabilities of
the policy before the update, advantages multiplied by `w`, and a clip range for each row; the loss is PPO's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.config import LagCorrection
from hybridppo.rollouts.rollout import Rollout, in_parts

LEARNING_RATE_STEP = 0.03
"""By how much the actor's learning rate is reduced after an update that went too far (appendix of the paper,
"adaptation")."""


def corrected(
    rollout: Rollout, backend: Any, share: float | None, correction: LagCorrection
) -> tuple[Rollout, dict[str, Tensor]]:
    """The rollout with the ratios of the current policy to the one that acted, and further columns of its batch.

    Ratios of an update are clipped around the current policy, by its log-probabilities and the weights of the columns.
    V-trace alone clips them around the policy that acted, and leaves the log-probabilities as they are.

    Args:
        rollout: the rollout, with observations as the networks take them.
        backend: computes the current log-probabilities of the actions.
        share: the share of the clip range; None without a pool.
        correction: how lag is corrected without a pool.
    """
    steps = Batch(observations=rollout.observations[:-1], actions=rollout.actions, log_probs=rollout.log_probs)
    now = backend.log_probs(steps.map(lambda column: column.flatten(0, 1))).view_as(rollout.log_probs)
    ratios = (now - rollout.log_probs).exp()
    if share is not None:
        columns = {"weights": ratios, "shares": torch.full_like(ratios, share)}
        return replace(rollout, ratios=ratios, log_probs=now), columns
    if correction == "decoupled":
        return replace(rollout, ratios=ratios, log_probs=now), {"weights": ratios.clamp(max=1.0)}
    return replace(rollout, ratios=ratios), {}


class Pool(nn.Module):
    """The newest rollout and up to `size - 1` older ones, on the agent's device; a size of 1 is PPO.

    All have the same weight. The clip range is divided by the mean number of updates from the policies that acted to
    the new one (theorem 2 of the paper). For equal weights, which give the largest effective sample, that is `2 / (size
    + 1)` of it.

    Args:
        size: the largest number of rollouts.
    """

    num_measures = 3
    """How many `measures` returns."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.rate = 1.0
        """Factor of the actor's learning rate."""
        self._kept: Any = nn.ModuleList()  # modules, so that their buffers move with the agent
        self._count = 0

    def rollouts(self, newest: Any, version: int) -> tuple[list[Any], float]:
        """The rollouts of an update, the newest first, and the share of the clip range.

        Args:
            newest: the newest rollout; the others are cut into as many parts.
            version: version of the agent's parameters.
        """
        num_parts = len(newest.parts)
        pooled = [newest, *(in_parts(kept.rollout(), num_parts) for kept in self._kept)][: self.size]
        self._count = len(pooled)
        return pooled, len(pooled) / sum(version - one.version + 1 for one in pooled)

    def measures(self, batch: Batch, log_probs: Tensor) -> list[Tensor]:
        """Measures of the update that has ended, from the present log-probabilities `[B]`: a scalar each.

        The first is the total variation between the policies before and after it, estimated from the pooled actions.
        """
        ratio = (log_probs - batch.log_probs).exp()
        return [0.5 * (batch.weights * (ratio - 1.0).abs()).mean(), batch.shares[:1].sum(), batch.weights.mean()]

    def learned(self, newest: Any, measured: Sequence[float], clip_range: float) -> dict[str, float]:
        """Keep the rollout, and reduce the actor's learning rate if the update went further than half the clip range.

        Returns:
            Metrics.
        """
        variation, share, weight = measured
        if variation > 0.5 * share * clip_range:
            self.rate /= 1.0 + LEARNING_RATE_STEP
        kept = [_Kept(newest.whole().map(torch.clone)), *self._kept]
        self._kept = nn.ModuleList(kept[: self.size - 1])
        return {"pool_rollouts": float(self._count), "pool_weight_mean": weight, "total_variation": variation}

    def fill(self, rollout: Rollout) -> None:
        """Fill the pool with copies of this rollout."""
        self._kept = nn.ModuleList(_Kept(rollout.map(torch.clone)) for _ in range(self.size - 1))

    def state(self) -> dict[str, Any]:
        """The state of `load_state` besides its tensors, as JSON."""
        return {"pool_rate": self.rate, "pool_versions": [kept.version for kept in self._kept]}

    def load_state(self, tensors: Mapping[str, Tensor], state: dict[str, Any], like: Tensor) -> None:
        """Restore the result of `state`, on the device of `like`, with room for the rollouts of a checkpoint."""
        self.rate = float(state["pool_rate"])
        kept = []
        for i, version in enumerate(state["pool_versions"]):
            prefix = f"pool._kept.{i}."
            saved = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            own = {name: like.new_empty(t.shape, dtype=t.dtype) for name, t in saved.items()}
            kept.append(_Kept(Rollout(**own, version=int(version))))
        self._kept = nn.ModuleList(kept)


class _Kept(nn.Module):
    """A rollout as buffers."""

    def __init__(self, rollout: Rollout) -> None:
        super().__init__()
        self.version = rollout.version
        for name, tensor in rollout.columns().items():
            self.register_buffer(name, tensor)

    def rollout(self) -> Rollout:
        return Rollout(**dict(self.named_buffers()), version=self.version)
