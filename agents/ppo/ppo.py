"""Proximal policy optimization.

    agent = PPO(env.single_observation_space, env.single_action_space, PPOConfig(), seed=0)
    metrics = agent.update(rollout)

Source: Schulman et al., "Proximal Policy Optimization Algorithms", 2017, with the details that the field's
implementations share: Huang et al., "The 37 Implementation Details of PPO", 2022. Where implementations differ:
values are half the squared error and metrics are means over all minibatches; `target_kl` is compared with the
mean over an epoch, after it (CleanRL looks at its last minibatch, stable-baselines3 at each).

The update reads from top to bottom in four files: this one, `batch.py`, `by_autograd.py` and `loss.py`. Its loop is
that of every agent, `agents/agent.py`.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any, ClassVar

import gymnasium as gym
import torch
from torch import Tensor, nn

from hybridppo.agents.agent import Exchange, OptimizationLoop, PolicyAgent, diverged, encoded_rows
from hybridppo.agents.ppo.batch import Batch, CriticMemory, Normalization, Together, require_rows
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.by_numpy import NumpyBackend, NumpyNetworks
from hybridppo.agents.ppo.config import LagCorrection, PPOConfig
from hybridppo.agents.ppo.loss import STATISTICS, Loss, LossFunction, LossInputs, ppo_loss
from hybridppo.agents.ppo.older_policies import Pool, corrected
from hybridppo.agents.recorded_step import RecordedStep, recorder_for
from hybridppo.agents.schedules import RECORDED, ScheduleFunction, with_values
from hybridppo.distributions.base import Distribution
from hybridppo.distributions.of_space import distribution_for
from hybridppo.distributions.own import MakeDistribution
from hybridppo.errors import ConfigurationError, message_of, shown
from hybridppo.interfaces import Metrics
from hybridppo.networks.actors import NormalizedNetwork
from hybridppo.networks.making import Networks, actor_and_critic, checked_networks
from hybridppo.networks.modes import has_gradient_hooks, require
from hybridppo.networks.parameters import FlatAdam, FlatParameters
from hybridppo.rollouts.advantages import AdvantageFunction, gae, next_values, vtrace
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.spaces.rows import OWN
from hybridppo.system.threads import limit_threads
from hybridppo.system.validation import real

logger = logging.getLogger(__name__)
MEASURED = len(STATISTICS) - 1
"""The number of statistics that a backend measures; the last is the norm of the gradient."""


class PPO(PolicyAgent):
    """PPO with separate actor and critic networks.

    Args:
        observation_space: space of one environment, of any kind in `hybridppo/spaces/`, or a `MaskedObservation`.
        action_space: space of one environment, of any kind in `hybridppo/spaces/`.
        config: the hyperparameters.
        seed: seed of the initial parameters and of the order of minibatches.
        loss: a custom loss, see `loss.py`; None for PPO's.
        networks: custom networks, see `hybridppo/networks/making.py`; None for the library's.
        advantages: a function with the arguments of the library's `gae` that replaces it.
        action_distribution: a subclass of `hybridppo.ActionDistribution`, or a function of the action space that
            makes one.
        modules: further networks by name. The agent copies them (`modules_of`) and trains the copies; a custom loss
            uses them.
        schedules: functions of the progress of the training, 0 to 1, by the names of the fields whose values they
            return. Named schedules are in the configuration.

    Raises:
        ConfigurationError: if a schedule is for a field that cannot have one, or a module or the loss is not valid.
        EnvError: if a space is not supported.
    """

    name: ClassVar[str] = "ppo"
    """Name of the agent in files."""
    config_type = PPOConfig
    custom_parts = ("loss", "networks", "advantages", "action_distribution", "modules", "schedules")
    config: PPOConfig
    current: PPOConfig

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        config: PPOConfig | None = None,
        *,
        seed: int = 0,
        loss: LossFunction | None = None,
        networks: Networks | None = None,
        advantages: AdvantageFunction | None = None,
        action_distribution: MakeDistribution | None = None,
        modules: Mapping[str, nn.Module] | None = None,
        schedules: Mapping[str, ScheduleFunction] | None = None,
    ) -> None:
        for name, part in {"loss": loss, "advantages": advantages}.items():
            if part is not None and (not callable(part) or isinstance(part, type)):
                raise ConfigurationError(f"{name} must be a function, got {shown(part)}")
        if hasattr(loss, "state_dict"):
            raise ConfigurationError(
                "a loss has no state of its own (state_dict): keep it in buffers of a module, train(..., modules=...)"
            )
        super().__init__(observation_space, action_space, config, seed, schedules, modules)
        config = self.config
        self._loss: LossFunction = loss if loss is not None else ppo_loss
        parts: dict[str, Any] = {"loss": loss, "networks": networks, "advantages": advantages}
        parts |= {"action_distribution": action_distribution}
        self._parts |= {name: part for name, part in parts.items() if part not in (None, ppo_loss, gae)}
        self._advantages: AdvantageFunction = advantages if advantages is not None else gae
        self.distribution: Distribution = self.make_distribution()
        require_rows(config, self._encode)
        # Initial values depend on the number of threads, and starting threads takes longer than the work.
        with limit_threads(1):
            self.actor, self.critic = self.make_networks(self._initial_seed)
        self.normalization = Normalization(config, self._encode)
        self.actor, self.critic = self.normalization.before(self.actor), self.normalization.before(self.critic)
        self._pool = Pool(config.pool_size)
        self.memory = config.memory
        self.critic_memory = None if self.memory is None else CriticMemory(self.memory)
        self.parameters = FlatParameters({"actor": self.actor, "critic": self.critic, **self._learning_modules})
        # eps as in the original ("37 details", 3).
        self.optimizer = FlatAdam(self.parameters, self._learning_rates(), eps=1e-5)

    def make_distribution(self) -> Distribution:
        """The distribution of actions; called once. A subclass may have another."""
        config, own = self.config, self._parts.get("action_distribution")
        for name in () if own is None else ("squash_actions", "use_sde", "log_std_init"):
            if (value := getattr(config, name)) != getattr(PPOConfig, name):
                raise ConfigurationError(
                    f"{name}={value!r} is for the library's normal distributions, and action_distribution= was given: "
                    "leave one of them out"
                )
        options: dict[str, Any] = {"squash": config.squash_actions, "exploration": config.exploration}
        return distribution_for(self.action_space, own=own, **options)

    def make_networks(self, seed: int) -> tuple[nn.Module, nn.Module]:
        """Actor and critic; called once. A subclass may have others."""
        spaces = self.observation_space, self.action_space
        if (networks := self._parts.get("networks")) is not None:
            return checked_networks(networks, spaces, self.config, seed, self.distribution.output_size)
        return actor_and_critic(*spaces, self.config, torch.Generator().manual_seed(seed), self.distribution)

    @property
    def actor_network(self) -> Any:
        """The actor as it learns, which takes normalised observations if they are normalised."""
        return self.actor.network if isinstance(self.actor, NormalizedNetwork) else self.actor

    @property
    def critic_network(self) -> Any:
        """The critic as it learns, like `actor_network`."""
        return self.critic.network if isinstance(self.critic, NormalizedNetwork) else self.critic

    @property
    def given_space(self) -> gym.Space[Any]:
        """The space of observations that `act` takes, without masks: what the environment returns for one agent."""
        space: Any = self.observation_space
        given: Any = space.observation if isinstance(space, MaskedObservation) else space
        return given if self.config.critic_observes == "own" else given[OWN]

    @property
    def modules(self) -> list[nn.Module]:  # noqa: D102 - as in the base
        parts = (self.actor, self.critic, self.critic_memory, self._pool, self.normalization, self.modules_of)
        return [part for part in parts if part is not None]

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss is a custom one, which only autograd can differentiate."""
        return self._loss is not ppo_loss or type(self).loss is not PPO.loss

    @property
    def _can_be_recorded(self) -> bool:
        config, scheduled = self.config, {*self.config.named_schedules, *self._schedules.functions}
        return config.recurrent is None and self.is_the_librarys and scheduled.isdisjoint(RECORDED)

    @property
    def is_the_librarys(self) -> bool:
        """Whether the loss and the networks are the library's, which treat each row alone."""
        return not self.own.keys() - {"advantages", "schedules"}

    def loss(self, inputs: LossInputs, clip_range: float | Tensor) -> Loss:
        """The loss of a minibatch; a subclass may have another."""
        return self._loss(inputs, self.current, clip_range)

    def advantages(self, **steps: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Advantages `[T, N]`, or a pair of advantages and returns, by `gae` or a custom function.

        Args:
            **steps: the arguments of `hybridppo.rollouts.advantages.gae`.

        Raises:
            ConfigurationError: if a custom function does not take them.
        """
        try:
            return self._advantages(**steps)
        except TypeError as error:
            raise ConfigurationError(
                f"advantages={shown(self._advantages)} failed: {message_of(error)}: it must be a function with the "
                f"arguments {', '.join(steps)}"
            ) from error

    def _rows(self, observation: Any, action_mask: Any, batch: bool) -> Any:
        own = observation if self.config.critic_observes == "own" else {OWN: observation}
        return encoded_rows(own, action_mask, self.observation_space, self._encode, batch, self.config.actor_parts)

    def drop_episodes(self) -> None:
        """Forget the returns so far that normalise rewards. A critic's memory begins where a rollout says so."""
        if self.normalization.rewards is not None:
            self.normalization.rewards.returns.zero_()

    def _learning_rates(self) -> dict[str, float]:
        rates = super()._learning_rates()
        return rates | {"actor": rates["actor"] * self._pool.rate}

    def _set_adaptive_rate(self, rate: float) -> None:
        assert self._schedules.adaptive is not None
        self._schedules.adaptive.rate = rate
        self.current = with_values(self.current, learning_rate=rate)
        self.optimizer.set_learning_rates(self._learning_rates())

    def update(self, rollout: Rollout) -> Metrics:
        """Train `num_epochs` epochs on the rollout, in freshly shuffled minibatches.

        Raises:
            TrainingError: if a loss, a gradient or the parameters are not finite. The agent cannot be used any more.
        """
        num_columns = sum(part.rewards.shape[1] for part in rollout.parts)
        with self._updating() as loop, loop.backend.updating():
            if self.critic_memory is not None:
                self.critic_memory.fit(num_columns)
            self.normalization.fit(num_columns)
            with self._undone_if_broken_off():
                batch = self.batch_of(rollout, loop)
                sizes = self.minibatch_sizes(batch)
                order_before = self._order.bit_generator.state
                statistics: list[Tensor] = []
                """For each epoch, those of its minibatches, `[M, 5 + E + 1]`, with the norm last."""
                for epoch in self._epochs(batch, sizes):
                    statistics.append(loop.epoch(epoch, sizes, self.current.clip_range))
                    if self._has_gone_too_far(statistics[-1]):
                        # The generator is left as if only these epochs had been drawn.
                        self._order.bit_generator.state = order_before
                        batch.orders(self._order, len(statistics))
                        break
                self.normalization.learned(rollout.parts, loop.exchange.moments)
                if self.critic_memory is not None:
                    self.critic_memory.learned()
                metrics, of_pool = self._metrics(rollout, batch, statistics, loop)
                metrics |= {name: float(value) for name, value in self._further_metrics(rollout, metrics).items()}
            self.version += 1
            return metrics | (self._pool.learned(rollout, of_pool, self.current.clip_range) if of_pool else {})

    def _epochs(self, batch: Any, sizes: Sequence[int]) -> Iterable[Any]:
        """The batch of each epoch, freshly shuffled; a rollout without steps has no epochs."""
        if not sizes:
            return ()
        orders = batch.orders(self._order, self.config.num_epochs)
        return batch.epochs(orders, sizes, self.config.normalize_advantage)

    def _metrics(
        self, rollout: Rollout, batch: Any, epochs: list[Tensor], loop: OptimizationLoop
    ) -> tuple[Metrics, list[float]]:
        """The metrics of an update, whose numbers must be finite; and what `Pool.learned` takes."""
        if not epochs:
            width = len(STATISTICS) + len(loop.backend.extra_names or ())
            epochs = [torch.full((1, width), torch.nan, device=self.parameters.values.device)]
        means = torch.cat(epochs).mean(0)
        (*measured, of_step), (explained,), (norm,), (variance,), of_pool = (
            read_together(  # the only wait for the device
                means,
                batch.explained_variance(),
                self._squared_norm(),
                self.normalization.largest_variance(means),
                self._measures_of_pool(batch, loop),
            )
        )
        statistics, extras = [*measured[:MEASURED], of_step], measured[MEASURED:]
        if not all(map(math.isfinite, (*(statistics if len(batch) else ()), norm, variance))):
            quantities = self._quantities(rollout.whole(), batch.steps(), epochs)
            raise diverged(f"in iteration {self.version + 1}", quantities, self.current)
        metrics: Metrics = {
            **dict(zip(STATISTICS, statistics, strict=True)),
            "explained_variance": explained,
            "learning_rate": self.optimizer.learning_rates["actor"],
            # A learner that has had no row of this policy does not know the names yet.
            **dict(zip(loop.backend.extra_names or (), extras, strict=False)),
            **(self._schedules.metrics(self.current) if self._schedules.fields else {}),
            **loop.metrics(),
        }
        return metrics, of_pool

    def _quantities(self, rollout: Rollout, rows: Batch, epochs: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The quantities of an update by name, in the order of computation."""
        for name, part in self.normalization.parts.items():
            remedy = f"too large for float32: give smaller ones, or set normalize_{name}=False"
            of_numbers = self._encode.names if name == "observations" else [""]
            for number, variance in zip(of_numbers, part.moments.variance.reshape(-1), strict=False):
                yield f"the variance of {name}{number}, {remedy}", variance
        yield "an observation", rows.observations
        yield "a reward", rollout.steps(rollout.rewards)
        yield "a log-probability of an action, from the actor's outputs while sampling", rows.log_probs
        yield "a value, from the critic", rows.values
        yield "an advantage, from rewards and values", rows.advantages
        yield "a return, from rewards and values", rows.returns
        for count, epoch in enumerate(epochs, start=1):
            for row, numbers in enumerate(epoch, start=1):
                for name, value in zip(STATISTICS, (*numbers[:MEASURED], numbers[-1]), strict=True):
                    yield f"{name} in minibatch {row} of epoch {count}", value
        yield "the norm of the parameters after the last optimizer step", self._squared_norm()

    @torch.no_grad()
    def batch_of(self, rollout: Rollout, loop: OptimizationLoop) -> Any:
        """What the epochs learn from: the prepared steps of the rollout, and of the pool's older ones."""
        rollouts, share = [rollout], None
        if self.config.pool_size > 1:
            rollouts, share = self._pool.rollouts(rollout, self.version)
        is_current = share is not None or rollout.version == self.version
        is_current |= self._correction_of(rollout) == "decoupled"
        together = loop.exchange.moments
        seen = [self._seen(one, together if one is rollout else None) for one in rollouts]
        batches: list[Any] = []
        for parts in zip(*seen, strict=True):
            found = [self._steps_of(part, loop.backend, share) for part in parts]
            batch = found[0] if len(found) == 1 else Batch.joined(found)
            batches.append(self._completed(batch, loop.backend, is_current=is_current))
        return loop.exchange.batch(batches)

    def _seen(self, rollout: Any, together: Together | None) -> Sequence[Rollout]:
        """The parts of a rollout as `prepared` sees them; arguments as of `Normalization.rewarded`."""
        parts = [self.normalization.seen(part) for part in rollout.parts]
        if type(self).rewards is not PPO.rewards:
            parts = [part.with_columns(rewards=self._own_rewards(part)) for part in parts]
        return self.normalization.rewarded(parts, self.current.gamma, together)

    def _own_rewards(self, rollout: Rollout) -> Tensor:
        if rollout.returns_so_far is not None and self.normalization.rewards is not None:
            raise ConfigurationError(
                f"{type(self).__name__}.rewards does not work with normalize_rewards=True if max_lag is above 1 or "
                "agents take turns, for the returns so far are those of the environment: set normalize_rewards=False"
            )
        rewards = self.rewards(rollout)
        _require_like(f"{type(self).__name__}.rewards", rollout.rewards, (rewards,))
        return rewards.to(rollout.rewards.dtype)

    def _steps_of(self, rollout: Rollout, backend: Backend, share: float | None) -> Batch:
        """The rows, or sequences, of a rollout that `_seen` returned; `share` as of `corrected`."""
        columns: dict[str, Tensor] = {}
        if share is not None or self._correction_of(rollout) != "none":
            rollout, columns = corrected(rollout, backend, share, self._correction_of(rollout))
        if self.has_own_loss and self.normalization.observations is not None:
            columns["raw_observations"] = self.normalization.of_observations(rollout.raw, raw=True)[0][:-1]
        steps, memory = self.prepared(rollout).with_columns(**columns), self.critic_memory
        return steps.map(rollout.steps) if memory is None else memory.sequences(steps, rollout)

    def prepared(self, rollout: Rollout) -> Batch:
        """The steps of a rollout with what an update learns from: columns `[T, N, ...]` by name.

        Args:
            rollout: the rollout, or a part of its environments, as the update sees it: `observations` and
                `final_observations` as the networks take them, `rewards` as learned from. `rollout.raw` is in the
                environment's units.
        """
        acted = {"actions": rollout.actions, "log_probs": rollout.log_probs}
        steps = Batch(observations=rollout.observations[:-1], **acted, **rollout.infos)
        values, following = self.values(rollout)
        advantages, returns = self.targets(rollout, rewards=rollout.rewards, values=values, next_values=following)
        return steps.with_columns(values=values, advantages=advantages, returns=returns)

    def rewards(self, rollout: Rollout) -> Tensor:
        """The rewards to learn from before they are normalised, `[T, N]`; a subclass may have others.

        Args:
            rollout: as `prepared` gets it, with the rewards of the environment.
        """
        return rollout.rewards

    @torch.no_grad()
    def values(self, rollout: Rollout, critic: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The values of the observations that were acted on, and of what each step led to, `[T, N]`, without gradient.

        Args:
            rollout: as `prepared` gets it.
            critic: a module or function, `[B, *row] -> [B]` or `[B, 1]`; None for the agent's critic.
        """
        observations, finals, backend = rollout.observations, rollout.final_observations, self.loop().backend
        if critic is None and self.critic_memory is not None:
            values, of_finals = self.critic_memory.values(backend.critic, observations, finals, rollout)
        else:  # one batched pass
            rows = torch.cat((observations.flatten(0, 1), finals))  # [(T + 1) * N + K, *row]
            found = backend.values(rows) if critic is None else critic(rows)
            if found.numel() != len(rows):
                raise ConfigurationError(
                    f"a critic must return one value for each of {len(rows)} observations, got {shown(found)}"
                )
            values, of_finals = found.flatten().tensor_split([len(rows) - len(finals)])
            values = values.view(observations.shape[:2])
        following = next_values(values=values, final_rows=rollout.final_rows, final_values=of_finals)
        return values[:-1], following

    def targets(self, rollout: Rollout, **steps: Any) -> tuple[Tensor, Tensor]:
        """The advantages and the returns, `[T, N]` each.

        Args:
            rollout: as `prepared` gets it. If it has `ratios`, V-trace corrects for older policies, but it does not
                correct a custom function of advantages.
            **steps: the arguments of `hybridppo.rollouts.advantages.gae`: `rewards`, `values` and `next_values`
                (`[T, N]` each), and others if they are not those of the agent (`gamma`, `gae_lambda`) and of the
                rollout (`terminated`, `truncated`).
        """
        usual = {"terminated": rollout.terminated, "truncated": rollout.truncated}
        usual |= {"gamma": self.current.gamma, "gae_lambda": self.current.gae_lambda}
        steps |= {name: value for name, value in usual.items() if name not in steps}
        has_own = self._advantages is not gae or type(self).advantages is not PPO.advantages
        if rollout.ratios is not None and not has_own:
            return vtrace(weights=rollout.ratios, **steps)
        given = self.advantages(**steps)
        found = given if isinstance(given, tuple) and len(given) == 2 else (given,)
        _require_like("advantages", steps["rewards"], found)
        advantages, *returns = (each.to(steps["rewards"].dtype) for each in found)  # NumPy's have 64 bits
        return advantages, returns[0] if returns else advantages + steps["values"]

    def _correction_of(self, rollout: Any) -> LagCorrection:
        """The correction for older parameters, which may have acted if rows have versions."""
        return "none" if rollout.parts[0].versions is None else self.config.lag_correction

    def _completed(self, batch: Batch, backend: Backend, *, is_current: bool) -> Batch:
        """Add what a custom loss sees, and correct log-probabilities for the rounding of optimizer steps.

        Actions are drawn in float32. If optimizer steps round products (`precision="bf16"`), the same parameters give
        other log-probabilities, and rounding would look like a change of the policy, above all if deviations are small.
        Log-probabilities of older parameters are corrected by the difference that rounding makes for the current ones.
        """
        if not len(batch) or (self.config.precision == "fp32" and not self.has_own_loss):
            return batch
        sizes = self.minibatch_sizes(batch)
        outputs = backend.outputs_of(batch, sizes)
        if self.config.precision != "fp32":
            log_probs = self.distribution.log_prob(outputs, batch.actions)
            if not is_current:
                log_probs = batch.log_probs + log_probs - Backend(self, "fp32").log_probs(batch, sizes)
            batch = batch.with_columns(log_probs=log_probs)
        return batch.with_columns(old_outputs=outputs) if self.has_own_loss else batch

    def minibatch_sizes(self, batch: Any) -> list[int]:
        """The sizes of the minibatches of a batch, which differ by at most one.

        There are fewer minibatches than configured if too few rows are steps: no minibatch may be empty, and none that
        is normalised may have only one row.
        """
        config, size = self.config, len(batch)
        samples = config.batch_size if config.episodes_per_rollout is None else len(batch.steps())
        if config.minibatch_size is not None and config.episodes_per_rollout is None:
            samples = -(-size * config.batch_size // config.units)  # also of several agents, and without resets
        count = min(config.minibatches_of(samples), batch.most_minibatches(config.normalize_advantage))
        return [(i + 1) * size // count - i * size // count for i in range(count)]

    def _has_gone_too_far(self, epoch: Tensor) -> bool:
        """Whether to skip the further epochs. An adaptive learning rate changes after each epoch."""
        limit, adaptive = self.current.target_kl, self._schedules.adaptive
        if limit is None and adaptive is None:
            return False
        # Waits for the device once per epoch, because the next epoch depends on it.
        kl = float(epoch[:, STATISTICS.index("approx_kl")].mean())
        if adaptive is not None and adaptive.follow(kl, self.current.desired_kl):
            self._set_adaptive_rate(adaptive.rate)
        return limit is not None and kl > limit

    @torch.no_grad()
    def _measures_of_pool(self, batch: Any, loop: OptimizationLoop) -> Tensor:
        if self.config.pool_size == 1:
            return self.parameters.values.new_empty(0)

        def measure(part: Any) -> Tensor:
            sizes = None if self.config.precision == "fp32" else self.minibatch_sizes(part)
            return torch.stack(self._pool.measures(part, loop.backend.log_probs(part, sizes)))

        return loop.exchange.mean(batch, measure, self._pool.num_measures)

    def _squared_norm(self) -> Tensor:
        """The squared norm of the parameters, `[1]`; not finite if a parameter is not finite or is too large."""
        flat = self.parameters.values.data
        return flat.dot(flat).reshape(1)

    @contextmanager
    def _undone_if_broken_off(self) -> Iterator[None]:
        rate = self.current.learning_rate
        try:
            with super()._undone_if_broken_off():
                yield
        except BaseException:
            if self._schedules.adaptive is not None:
                self._set_adaptive_rate(rate)
            raise

    def _changing(self) -> list[Tensor]:
        memory = [] if self.critic_memory is None else [self.critic_memory.critic_state]
        return [*super()._changing(), *self.normalization.buffers(), *memory]

    @property
    def _learning_networks(self) -> list[nn.Module]:
        return [self.actor_network, self.critic_network, *self.modules_of.values()]

    def _made_loop(self, exchange: Exchange) -> OptimizationLoop:
        require(self.config.precision, self.parameters.values.device)
        learning = (*self.parameters.of_network("actor"), *self.parameters.of_network("critic"))
        by_hand = self.config.fast_updates and all(each.requires_grad for each in learning)
        by_hand = by_hand and not has_gradient_hooks(self.actor_network, self.critic_network)
        backend = backend_for(self, by_hand=by_hand)(self)
        loop, record = OptimizationLoop(self, backend, exchange), recorder_for(self)
        if record is not None and type(backend) is Backend:
            usual = self.config.samples_per_minibatch if self.is_the_librarys else None
            loop.whole_step = RecordedStep(loop, self, record, usual_size=usual)
        return loop

    @property
    def _saved(self) -> dict[str, nn.Module]:
        further = {
            "memory": self.critic_memory,
            "rewards": self.normalization.rewards,
            "pool": self._pool if self.config.pool_size > 1 else None,
        }
        return {**super()._saved, **{name: part for name, part in further.items() if part is not None}}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:  # noqa: D102 - as in the base
        tensors, state = super().state()
        if self.config.pool_size > 1:
            state |= self._pool.state()
        adaptive = self._schedules.adaptive
        return tensors, state | ({} if adaptive is None else {"learning_rate": adaptive.rate})

    def load_state(self, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:  # noqa: D102 - as in the base
        if self.critic_memory is not None and "memory.critic_state" in tensors:
            self.critic_memory.fit(len(tensors["memory.critic_state"]))
        if "rewards.returns" in tensors:
            self.normalization.fit(tensors["rewards.returns"].numel())
        if self.config.pool_size > 1:
            self._pool.load_state(tensors, state, self.parameters.values.data)
        super().load_state(tensors, state)
        if self._schedules.adaptive is not None:
            self._set_adaptive_rate(real(state["learning_rate"], "learning_rate"))


def backend_for(agent: Any, *, by_hand: bool) -> type[Backend]:
    """The fastest backend; autograd if the gradient is not to be computed by hand."""
    kinds: list[Any] = [NumpyBackend, NumpyNetworks] if by_hand else []
    if by_hand and agent.config.compiled_updates:
        from hybridppo.agents.ppo.by_numba import CompiledBackend

        kinds.insert(0, CompiledBackend)
    found: Any = next((kind for kind in kinds if kind.supports(agent)), Backend)
    agrees = found.written_in is None or has_gradient_of_the_loss(found, agent.config.clip_range_vf)
    return found if agrees else Backend


@cache
@torch.enable_grad()
def has_gradient_of_the_loss(kind: type[Backend], clip_range_vf: float | None) -> bool:
    """Whether a hand-written backend computes the gradient of the loss; if not, a warning says so.

    They are compared for a small agent, with numbers that reach every case of the formulas.
    """
    config = PPOConfig(hidden_sizes=(8,), entropy_coef=0.1, clip_range_vf=clip_range_vf)
    agent, generator = PPO(gym.spaces.Box(-1.0, 1.0, (4,)), gym.spaces.Discrete(3), config), torch.Generator()
    numbers = torch.randn(8, 64, generator=generator.manual_seed(0))
    columns = dict(zip(("log_probs", "values", "advantages", "returns"), numbers, strict=False))
    batch = Batch(observations=numbers[4:].T.contiguous(), actions=torch.arange(64) % 3, **columns)
    found: list[Tensor] = []
    for backend in (Backend(agent), kind(agent)):
        (minibatch,) = backend.minibatches(batch, [len(batch)])
        statistics = torch.as_tensor(backend.gradient(minibatch, config.clip_range))
        found.append(torch.cat((statistics, agent.parameters.gradient)))
    agrees = torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-4)
    if not agrees:
        logger.warning(
            "the two forms of the optimizer step differ: autograd's, from the loss in agents/ppo/loss.py, and that by "
            "hand, in %s. This training uses autograd, which is slower. If you changed a formula, change it in both, "
            "or take autograd alone: train(..., loss=my_loss), or fast_updates=False (--no-fast-updates)",
            kind.written_in,
        )
    return agrees


def _require_like(what: str, rewards: Tensor, found: Sequence[Any]) -> None:
    """Refuse the result of a custom function that has another shape than the rewards."""
    if not all(isinstance(each, Tensor) and each.shape == rewards.shape for each in found):
        or_pair = ", or two, advantages and returns" if what == "advantages" else ""
        raise ConfigurationError(
            f"{what} must return a tensor {list(rewards.shape)}, one for each reward{or_pair}: got "
            f"{', '.join(map(shown, found))}"
        )


def read_together(*tensors: Tensor) -> list[list[float]]:
    """The numbers of several tensors, with one wait for the device."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    numbers = iter(torch.cat(flat).tolist())
    return [list(islice(numbers, len(part))) for part in flat]
