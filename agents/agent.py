"""The base class of PPO and DDPG: `act`, shared updates, noise of modules, saving; and the optimisation loop of both.

For each minibatch the loop computes the gradient, clips it, steps Adam and keeps statistics. A backend computes
gradients and steps along them: by autograd (`fill_gradient`), or written out by hand. An `Exchange` combines the
gradients of several processes. A step may have several passes over its minibatch, such as one for the critics and one
for the actor; each has its own gradient. The backend takes the setting of a pass: PPO's clip range, or the name of the
network that learns.
"""

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import repeat
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, get_origin, get_type_hints

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hybridppo.agents.ppo.loss import TAKEN
from hybridppo.agents.schedules import Scheduled, ScheduleFunction
from hybridppo.distributions.base import Distribution, Drawing
from hybridppo.errors import (
    BadValueError,
    CheckpointError,
    ConfigurationError,
    EnvError,
    TrainingError,
    shown,
    shown_name,
)
from hybridppo.interfaces import Metrics
from hybridppo.networks.actors import Moments
from hybridppo.networks.modes import depend_on_training, float32_products, learning_mode, noise_from, torch_seeded
from hybridppo.networks.parameters import FlatAdam, FlatParameters, require_float32
from hybridppo.placements.crossing import Counters, Crossing, TorchRecurrentActor, torch_actor
from hybridppo.rollouts.rollout import MemoryLayout
from hybridppo.run_directory.checkpoints import write_agent_file
from hybridppo.spaces.kinds import first_of
from hybridppo.spaces.masks import MASK, MaskedObservation, mask_apart
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.serialization import space_to_json
from hybridppo.system.devices import sent
from hybridppo.system.signals import Stopped
from hybridppo.system.threads import limit_threads
from hybridppo.system.validation import (
    held_by_json,
    require_bools,
    require_may_change,
    require_path,
    require_whole,
    whole,
)

ELSEWHERE = {
    **dict.fromkeys(("predict", "compute_single_action", "get_action"), "agent.act(observation)"),
    **dict.fromkeys(("learn", "train"), "hybridppo.train(ENV, total_steps=...), whose result has the agent"),
}
"""What methods of other libraries' agents are called here."""
NO_STATE: Any = object()
"""Default of `act`'s argument `state`."""
Seed = int | np.random.Generator | None
"""A seed of random actions, or their generator."""
SCHEDULES = {"schedules", "anneal_learning_rate", "anneal_clip_range"}
"""The hyperparameters that are schedules."""
RATES = {"learning_rate", "critic_learning_rate"}
"""The hyperparameters that an optimization loop gets at every step."""


class Exchange:
    """Shares an update with other processes; this base class shares nothing.

    A rollout may consist of parts (`Rollout.parts`), each of which becomes a batch. Only the exchanges that support
    several parts get several.
    """

    is_alone = True
    """Whether no other process shares the update."""

    def moments(self, what: str, own: Sequence[Moments]) -> Moments:
        """The moments of all rows of an update, of observations or rewards; `own` are those of each part."""
        (found,) = own
        return found

    def batch(self, own: Sequence[Any]) -> Any:
        """The batch that the epochs learn from, made of the batch of each part."""
        (found,) = own
        return found

    def mean(self, batch: Any, measure: Callable[[Any], Tensor], count: int) -> Tensor:
        """The result of `measure` for the batch, `[count]` means over rows."""
        return measure(batch)

    def minibatches(self, backend: Any, epoch: Any, sizes: Sequence[int]) -> Iterable[Any]:
        """The share of this process of each minibatch of an epoch."""
        return backend.minibatches(epoch, sizes)

    def gradient_by(self, backend: Any) -> Callable[[Any, Any], Any]:
        """A function of a minibatch and a setting, as `backend.gradient`, for the gradient of the whole minibatch."""
        return backend.gradient

    def descent_by(self, backend: Any) -> Callable[[Any], Any]:
        """A function of a setting that steps along the gradient, as `backend.descend`."""
        return backend.descend


class OptimizationLoop:
    """The steps of an update.

    Args:
        agent: whose parameters learn.
        backend: computes gradients (`gradient`) and steps along them (`descend`), such as `agents/ppo/by_autograd.py`.
        exchange: what the update shares with other processes.
    """

    def __init__(self, agent: Any, backend: Any, exchange: Exchange) -> None:
        self._agent, self.backend, self.exchange = agent, backend, exchange
        self._gradient, self._descend = exchange.gradient_by(backend), exchange.descent_by(backend)
        self.whole_step: Any = None
        """Makes steps in place of `step`, with the same arguments: a recorded one (`recorded_step.py`), or compiled."""

    def epoch(self, epoch: Any, sizes: Sequence[int], setting: Any) -> Tensor:
        """Cut an epoch's batch into minibatches of these sizes, and step on each.

        Returns:
            The statistics of every step, the last of which is the norm of the gradient, `[len(sizes), K]`.

        Raises:
            Stopped: before a step if the agent's `should_stop` returns True.
        """
        if self.exchange.is_alone and self.backend.all_steps is not None:
            table: Tensor | None = self.backend.all_steps(epoch, sizes, setting)
            if table is not None:
                return table
        minibatches = self.exchange.minibatches(self.backend, epoch, sizes)
        statistics, norms = zip(*self.steps(zip(minibatches, repeat((setting,)), strict=False)), strict=True)
        return torch.cat((_stacked(statistics), _stacked(norms).unsqueeze(1)), 1)

    def steps(self, minibatches: Iterable[tuple[Any, tuple[Any, ...]]]) -> list[list[Any]]:
        """Step on each minibatch, which comes with the settings of its passes; return what each step measured.

        Raises:
            Stopped: before a step if the agent's `should_stop` returns True.
        """
        step = self.step if self.whole_step is None else self.whole_step
        measured: list[list[Any]] = []
        for minibatch, passes in minibatches:
            if self._agent.should_stop():
                raise Stopped
            measured.append(step(minibatch, passes))
        return measured

    def step(self, minibatch: Any, passes: tuple[Any, ...]) -> list[Any]:
        """For each pass, compute the gradient, clip it, and step Adam.

        Returns:
            For each pass the statistics, and the norm of the gradient if it is measured.
        """
        measured = []
        for setting in passes:
            measured.append(self._gradient(minibatch, setting))
            if (norm := self._descend(setting)) is not None:
                measured.append(norm)
        return measured

    def metrics(self) -> dict[str, float]:
        """Further metrics since the last call."""
        return {} if self.whole_step is None else self.whole_step.metrics()


class PolicyAgent:
    """An agent with one policy. A subclass makes its networks, `parameters`, `optimizer` and loop.

    Args:
        observation_space: space of one environment.
        action_space: space of one environment.
        config: the hyperparameters.
        seed: seed of the initial parameters, and of the order in which the agent learns.
        schedules: functions of the progress of the training, 0 to 1, by field.
        modules: further networks by name, of which the agent trains copies.

    Raises:
        ConfigurationError: if torch makes tensors on another device than the CPU, or a module is not valid.
    """

    name: ClassVar[str]
    """Name of the agent in files."""
    config_type: ClassVar[Any]
    """The class of its hyperparameters. A subclass may have a dataclass with further fields."""
    custom_parts: ClassVar[tuple[str, ...]] = ("modules", "schedules")
    """Names of the arguments for custom parts."""
    keeps_final_observations: ClassVar[bool] = False
    """Whether a subclass needs the last observations of episodes that terminated: then `final_rows` and
    `final_observations` of rollouts have them beside those of truncated episodes, from which the library bootstraps."""
    learning_rates: ClassVar[Mapping[str, float]] = {}
    """Learning rates of modules of a subclass, by name; the others learn at the actor's. May be a property."""
    observation_space: gym.Space[Any]
    """The space of one environment."""
    action_space: gym.Space[Any]
    """The space of one environment."""
    current: Any
    """The hyperparameters with the values that schedules have now (`anneal`)."""
    actor: nn.Module
    """The policy network, which takes observations in the environment's units."""
    critic: nn.Module
    """The value network, like `actor`."""
    modules_of: "Modules"
    """The modules of `make_modules`, by name."""
    distribution: Distribution
    """The distribution of actions, which the actor's outputs define."""
    parameters: FlatParameters
    optimizer: FlatAdam
    memory: MemoryLayout | None
    """Layout of the actor's state, if the actor is recurrent; else None."""
    version: int
    """The number of updates so far."""
    should_stop: Callable[[], bool]
    """Whether an update is to break off; called before each optimizer step."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        config: Any,
        seed: int,
        schedules: Mapping[str, ScheduleFunction] | None,
        modules: Mapping[str, nn.Module] | None,
    ) -> None:
        if (default := torch.get_default_device()).type != "cpu":
            raise ConfigurationError(
                f"torch's default device is {default}, and agents are made on the CPU, from which a placement moves "
                "them: turn it off, torch.set_default_device('cpu')"
            )
        if isinstance(observation_space, str):  # as in stable-baselines3
            raise ConfigurationError(
                f"an agent is made for two spaces, got {observation_space!r}: train one with hybridppo.train(ENV, "
                "total_steps=..., config=...)"
            )
        self.config = config = self.config_type() if config is None else config
        self._schedules = Scheduled(schedules, config)
        self.observation_space, self.action_space = observation_space, action_space
        self._encode = ObservationEncoder(observation_space)
        self._initial_seed, order = np.random.SeedSequence(seed).generate_state(2, np.uint64).tolist()
        self._order, self._noise_seed = np.random.default_rng(order), order
        self.version = 0
        self.should_stop = _never
        self._make_exchange: Callable[[], Exchange] = Exchange
        self._loop: OptimizationLoop | None = None
        self._loop_is_for: tuple[int, tuple[slice, ...]] = (0, ())
        self._depends_on_training = False
        self._parts: dict[str, Any] = {"modules": modules} if modules else {}
        """Custom parts by the names of `train`'s arguments."""
        self.modules_of = Modules()
        if self._parts or type(self).make_modules is not PolicyAgent.make_modules:
            # Initial values depend on the number of threads, and starting threads takes longer than the work.
            with torch_seeded(self._initial_seed >> 1), limit_threads(1):
                self.modules_of.take(self.make_modules())

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Further modules by name, which are trained and saved with the agent (`modules_of`).

        Called once, before networks are made; initial values follow from the seed. The default is copies of `modules=`.
        A subclass may have others, whose sizes follow from `self.config`, `self.settings` and the spaces.
        """
        return copy.deepcopy(self._parts.get("modules", {}))

    @property
    def _learning_modules(self) -> dict[str, nn.Module]:
        """The modules with parameters, by name."""
        return {name: module for name, module in self.modules_of.items() if any(True for _ in module.parameters())}

    def __str__(self) -> str:
        spaces = self.observation_space, self.action_space
        seen, acts = (f"Box{each.shape}" if isinstance(each, gym.spaces.Box) else shown(each, 80) for each in spaces)
        sizes = [f"{sum(each.numel() for each in net.parameters()):,}" for net in (self.actor, self.critic)]
        device = self.parameters.values.device
        return (
            f"{type(self).__name__}: observations {seen}, actions {acts}\n"
            f"parameters: actor {sizes[0]}, critic {sizes[1]}; on {device}\nupdates: {self.version:,}"
        )

    if not TYPE_CHECKING:  # for which there are no other attributes

        def __getattr__(self, name: str) -> Any:
            """An error, which names what another library's method is called here."""
            remedy = f": use {ELSEWHERE[name]}" if name in ELSEWHERE else ""
            what = f"{type(self).__name__!r} object has no attribute {name!r}{remedy}"
            raise AttributeError(what, name=name, obj=self)

    def __getstate__(self) -> dict[str, Any]:
        """The attributes for copies and pickles, without the loop and what a training has put in."""
        own = {"should_stop": _never, "_make_exchange": Exchange, "_loop": None}
        return {**vars(self), **own}

    @property
    def config(self) -> Any:
        """The hyperparameters. New ones take effect in the next update; those that cannot take effect are refused.

        A checkpoint does not have them: a resumed training begins with the hyperparameters that its run began with.
        """
        return self._config

    @config.setter
    def config(self, config: Any) -> None:
        if not isinstance(config, self.config_type):
            raise ConfigurationError(f"config must be {self.config_type.__name__}(...), got {shown(config)}")
        before = vars(self).get("_config", config)
        changed = {name for name, value in vars(config).items() if getattr(before, name) != value}
        if changed:
            require_may_change(config, changed, is_training=self.should_stop is not _never)
            self._schedules.require_free(config, changed)
        if changed & SCHEDULES:
            self._schedules = Scheduled(self._schedules.functions, config)
        self._config = self.current = config
        if changed & RATES:
            self.optimizer.set_learning_rates(self._learning_rates())
        if changed - RATES:
            self._loop = None  # recorded and compiled steps hold some hyperparameters

    @property
    def settings(self) -> dict[str, Any]:
        """Hyperparameters of one's own: `train(..., settings=...)`, and the further fields of a `config_type`."""
        return self._config.all_settings()

    def _learning_rates(self) -> dict[str, float]:
        """The present learning rate of each network, by name."""
        rate, critic, known = self.current.learning_rate, self.current.critic_learning_rate, self._learning_modules
        for name in self.learning_rates:
            self._require_network("learning_rates", name, known)
        rates = {"actor": rate, "critic": rate if critic is None else critic, **dict.fromkeys(known, rate)}
        return {**rates, **self.learning_rates}

    def _require_network(self, what: str, name: str, known: Collection[str]) -> None:
        if name not in known:
            learning = ", ".join(known) or "no module"
            raise ConfigurationError(f"{what} has the name {name!r}, and the agent trains {learning}")

    @property
    def modules(self) -> list[nn.Module]:
        """All modules with tensors."""
        return [self.actor, self.critic, self.modules_of]

    @property
    def _learning_networks(self) -> list[nn.Module]:
        """The networks that optimizer steps change."""
        return [self.actor, self.critic, *self.modules_of.values()]

    @property
    def records_graphs(self) -> bool:
        """Whether repeated work of a CUDA device is recorded as graphs."""
        is_alone = self._make_exchange is Exchange
        return self.config.cuda_graphs or (self.config.fast_updates and is_alone and self._can_be_recorded)

    @property
    def _can_be_recorded(self) -> bool:
        """Whether an optimizer step does the same on every minibatch, as far as the library knows."""
        return "agent" not in self.own

    def _made_loop(self, exchange: Exchange) -> OptimizationLoop:
        """A loop with the fastest backend for the device of the parameters."""
        raise NotImplementedError

    def act(
        self,
        observation: Any,
        deterministic: bool = True,
        action_mask: Any = None,
        state: Any = NO_STATE,
        batch: bool = False,
        seed: Seed = None,
    ) -> Any:
        """The action for one observation, as the environment's `step` takes it; or a batch of actions.

        Args:
            observation: as the environment returns it; with `actor_keys`, other parts may be missing. With `batch`, as
                gymnasium's vector environments return it: an array `[N, *shape]`, or a container of arrays.
            deterministic: True for the deterministic action, which is the most probable (for DDPG and TD3, the actor's
                own); False for a random one.
            action_mask: the allowed actions, as `action_space.sample(mask)` takes them: the environment's
                `info["action_mask"]`, if the agent was trained with `action_masks=True`. None if the observation has a
                part "action_mask". With `batch`, a sequence with a mask for each observation.
            state: the state of a recurrent agent: None at the start of an episode, then the state that the last call
                returned. With `batch`, `[N, size]`, in which a row of zeros starts an episode.
            batch: whether `observation` is a batch; the result is then a batch, too.
            seed: a generator of NumPy's that draws a random action; or a seed, which gives the same draw in each call.
                None for a seed of the operating system.

        Returns:
            The action; with `state=...`, a pair of the action and the next state, which is None for an agent without
            memory.

        Raises:
            ConfigurationError: if `deterministic` or `batch` is neither True nor False, or `seed` is invalid.
            EnvError: if an observation, a mask or a state is missing, unexpected or invalid.
        """
        require_bools(deterministic=deterministic, batch=batch)
        device = self.parameters.values.device
        actor = torch_actor(self.actor, Crossing(device, Counters()))
        rows = self._rows(observation, action_mask, batch)
        if isinstance(actor, TorchRecurrentActor):
            actor.state = _checked_state(state, (len(rows), actor.state_size) if batch else (actor.state_size,))
        elif state is not NO_STATE and state is not None:
            raise EnvError(f"state must be None for an agent that is not recurrent, got {shown(state)}")
        with float32_products(self.config.precision, device):
            if deterministic:
                actions = self.distribution.mode(actor(rows))
            else:
                actions = Drawing(self.distribution, generator_of(seed), len(rows)).actions(actor, rows)
        found = self.distribution.to_env(actions)
        found = found if batch else first_of(self.action_space)(found)
        if state is NO_STATE:
            return found
        if not isinstance(actor, TorchRecurrentActor):
            return found, None
        return found, actor.state if batch else actor.state[0]

    def _rows(self, observation: Any, action_mask: Any, batch: bool) -> Any:
        """The rows of the arguments of `act`, `[N, *row]`."""
        return encoded_rows(observation, action_mask, self.observation_space, self._encode, batch)

    def anneal(self, progress: float) -> None:
        """Set `current` to the values that schedules have at `progress` of the training, 0 to 1.

        Raises:
            ConfigurationError: if a schedule is invalid, or a parameter of a network was replaced.
        """
        self.parameters.require_all_of(*self._learning_networks)
        if self._schedules.fields:
            self.current = self._schedules.at(self.config, progress)
        self.optimizer.set_learning_rates(self._learning_rates())

    def drop_episodes(self) -> None:
        """Forget what is kept of unfinished episodes: nothing, unless a subclass keeps something."""

    def loop(self) -> OptimizationLoop:
        """The optimisation loop; a new one after the parameters have moved, or their `requires_grad` has changed."""
        self.parameters.attach_gradients()
        frozen = self.parameters.frozen
        now = self.parameters.binding, frozen
        if self._loop is None or self._loop_is_for != now:
            self._depends_on_training = depend_on_training(*self._learning_networks)
            self.optimizer.keep_learning_rates_on_host()  # except for recorded steps
            self._loop, self._loop_is_for = self._made_loop(self._make_exchange()), now
            self.optimizer.forget(frozen)
        return self._loop

    def share(self, make_exchange: Callable[[], Exchange] | None) -> None:
        """Share updates with other processes from now on; None to learn alone.

        Args:
            make_exchange: makes the exchange with them; called again after the parameters have moved.
        """
        self._make_exchange, self._loop = make_exchange or Exchange, None

    @contextmanager
    def _updating(self) -> Iterator[OptimizationLoop]:
        """A context for an update, with its loop. Numbers that are not finite are looked for after it."""
        # A program may have turned gradients off.
        with torch.enable_grad(), np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            loop = self.loop()
            self.parameters.gradient.zero_()  # gradients by hand leave those of modules as they are
            with self._seeded(lambda: (self._noise_seed, self.version)):
                yield loop

    def _seeded(self, seed: Callable[[], Sequence[int]]) -> AbstractContextManager[None]:
        """A context in which modules such as dropout draw noise that follows from a seed."""
        return noise_from(seed(), self.parameters.values.device) if self._depends_on_training else nullcontext()

    @contextmanager
    def _undone_if_broken_off(self) -> Iterator[None]:
        """A context after which all is as before if a stop or an error, such as a custom loss's, has ended it."""
        tensors, order = [tensor.clone() for tensor in self._changing()], self._order.bit_generator.state
        try:
            yield
        except TrainingError:  # numbers that are not finite stay to be seen
            raise
        except BaseException:
            for tensor, before in zip(self._changing(), tensors, strict=True):
                tensor.copy_(before)
            self._order.bit_generator.state = order
            raise

    def after_update(self, rollout: Any, metrics: Metrics) -> Mapping[str, Any] | None:
        """Called at the end of every update, for a subclass; an error in it undoes the update.

        Args:
            rollout: what the update learned from, in the environment's units. For DDPG and TD3, the last transitions
                `[G, B, ...]`.
            metrics: those of the update. For DDPG and TD3 there are none: they are read once per iteration.

        Returns:
            Further metrics by name, numbers or tensors of one number; or None. For DDPG and TD3, those of the last
            update of an iteration are logged.
        """
        return None

    def _further_metrics(self, rollout: Any, metrics: Metrics) -> dict[str, Tensor]:
        """The metrics of `after_update`.

        Raises:
            ConfigurationError: if it returns something else.
        """
        found, what = self.after_update(rollout, metrics) or {}, "{!r} of after_update"
        if not isinstance(found, Mapping):
            raise ConfigurationError(f"after_update must return metrics by name, or None, got {shown(found)}")
        numbers = scalars(found, (*found,), self.parameters.values.device, what, {*TAKEN, *metrics})
        return dict(zip(found, numbers, strict=True))

    def optimize(
        self,
        loss: Callable[..., Tensor],
        columns: Mapping[str, Tensor],
        *,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        networks: Sequence[str] | None = None,
    ) -> float:
        """Optimizer steps on a loss of your own, in shuffled minibatches; the gradient is clipped as in an update.

        In `after_update`, they are a part of the update; before a training, they imitate demonstrations.

        Args:
            loss: a function of the columns of a minibatch, `[M, ...]` as keyword arguments, that returns a scalar.
            columns: `[B, ...]` by name, on the device of the agent.
            num_epochs: how often to learn from each row.
            minibatch_size: rows of a minibatch, of which the last of an epoch may have fewer; None for all rows.
            networks: what learns: "actor", "critic", or modules by name; None for all.

        Returns:
            The mean loss of the minibatches.

        Raises:
            ConfigurationError: if an argument is invalid, or several learners share the updates.
            Stopped: before a step if the training is to stop.
            TrainingError: if a loss or the parameters are not finite.
        """
        if self._make_exchange is not Exchange:
            raise ConfigurationError(
                f"{type(self).__name__}.optimize takes steps that several learners cannot share: leave distributed out"
            )
        names = [*self.optimizer.learning_rates] if networks is None else networks
        sizes = {name: len(each) for name, each in columns.items()}
        for name in names or [""]:
            self._require_network("networks of optimize", name, self.optimizer.learning_rates)
        if len({*sizes.values()}) != 1 or not min(sizes.values()):
            raise ConfigurationError(f"columns of optimize must have equally many rows, at least one, got {sizes}")
        size, losses = min(sizes.values()), list[Tensor]()
        at_once = size if minibatch_size is None else require_whole("minibatch_size", minibatch_size, 1)
        self.loop()  # attaches gradients
        learning, device = learning_mode(*self._learning_networks), self.parameters.values.device
        with self._seeded(lambda: (int(self._order.integers(2**63)),)):
            for _ in range(require_whole("num_epochs", num_epochs, 1)):
                for rows in torch.split(sent(self._order.permutation(size), device), at_once):
                    if self.should_stop():
                        raise Stopped
                    with torch.enable_grad(), learning():
                        found = loss(**{name: column.index_select(0, rows) for name, column in columns.items()})
                        losses.append(self._step_along(found, names))
        if not math.isfinite(mean := float(torch.stack(losses).mean())):
            raise diverged("in optimize", [("a loss", torch.stack(losses))], self.current)
        return mean

    def _step_along(self, loss: Any, networks: Sequence[str]) -> Tensor:
        """Step these networks along the gradient of a loss, which is returned; clipped if an update clips."""
        if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
            raise ConfigurationError(
                f"a loss of optimize must return a scalar computed by the agent's networks, got {shown(loss)}"
            )
        self.parameters.gradient.zero_()
        fill_gradient(self.parameters, loss, *networks)
        if (limit := getattr(self.current, "max_grad_norm", None)) is not None:
            nn.utils.clip_grad_norm_([self.parameters.values], limit)
        self.optimizer.step(networks)
        return loss.detach()

    def _changing(self) -> list[Tensor]:
        """All tensors that an update changes before its end."""
        slots = self.optimizer.state[self.parameters.values].values()
        return [self.parameters.values.data, *slots, *self.modules_of.buffers(), *self.learned_buffers()]

    @property
    def own(self) -> dict[str, object]:
        """Custom parts that a file cannot hold, by the names of `train`'s arguments."""
        parts: dict[str, object] = {} if library_class(self) is type(self) else {"agent": type(self)}
        return parts | self._parts | ({"schedules": self._schedules.functions} if self._schedules.functions else {})

    def require_own_names(self) -> None:
        """Refuse attributes of a subclass that have the name of something that the library's class needs itself.

        Raises:
            ConfigurationError: with the attribute.
        """
        kind = library_class(self)
        hints = {name: hint for name, hint in get_type_hints(kind).items() if hint is not Any}
        # On Python 3.10, dict[str, int] is a type, too, and isinstance refuses it.
        plain = {name: hint for name, hint in hints.items() if get_origin(hint) in (None, UnionType)}
        needed = {name: hint for name, hint in plain.items() if isinstance(hint, type | UnionType)}
        for name, value in vars(self).items():
            if hasattr(kind, name) or not isinstance(value, needed.get(name, object)):
                mine = type(self).__name__
                raise ConfigurationError(f"{mine} sets self.{name}, which {kind.__name__} needs: give it another name")

    def like(self, config: Any, *, seed: int = 0) -> Any:
        """A new agent of the same class, with the same spaces and copies of custom parts, which may keep a state."""
        parts = {name: _copied(part) for name, part in self.own.items() if name != "agent"}
        make: Callable[..., Any] = type(self)
        return make(self.observation_space, self.action_space, config, seed=seed, **parts)

    @property
    def _saved(self) -> dict[str, nn.Module]:
        """The modules of a checkpoint, by the first part of their tensors' names."""
        modules = {"modules": self.modules_of} if self.modules_of else {}
        return {"actor": self.actor, "critic": self.critic, **modules}

    def extra_state(self) -> dict[str, Any]:
        """What a subclass keeps besides networks, as JSON: it is saved in checkpoints and files of the agent."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `extra_state`."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Networks, optimizer and generators: tensors by name, and a JSON object."""
        tensors = {
            f"{part}.{name}": tensor
            for part, module in self._saved.items()
            for name, tensor in module.state_dict().items()
        }
        slots = self.optimizer.state[self.parameters.values]
        tensors |= {f"optimizer.{name}": self.parameters.dense(tensor) for name, tensor in slots.items()}
        state: dict[str, Any] = {"version": self.version, "order": self._order.bit_generator.state}
        if extra := self.extra_state():
            state["extra"] = held_by_json("the result of extra_state", extra)
        frozen = [i for i, each in enumerate(self.parameters.everything()) if not each.requires_grad]
        return tensors, state | ({"frozen": frozen} if frozen else {})

    def load_state(self, tensors: Mapping[str, Tensor], state: dict[str, Any]) -> None:
        """Restore the result of `state`, on the current device of the agent.

        Without an optimizer's tensors, as in an agent's file, it is left as it is. Parameters of this agent that are
        frozen stay so.

        Raises:
            CheckpointError: if there are tensors of an unknown part.
            RuntimeError: if tensors are missing, unknown or of another shape.
        """
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in (*self._saved, "optimizer")}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            if part not in parts:
                raise CheckpointError(f"it has a tensor {name!r}: the parts of an agent are {', '.join(parts)}")
            parts[part][rest] = tensor
        for part, module in self._saved.items():
            if parts[part] or part in ("actor", "critic"):
                module.load_state_dict(parts[part])
        for name, slot in self.optimizer.state[self.parameters.values].items() if parts["optimizer"] else ():
            saved = self.parameters.spread(parts["optimizer"][name])
            if saved.shape != slot.shape:  # which `copy_` might broadcast
                raise RuntimeError(f"optimizer.{name} is of shape {list(saved.shape)}, not {list(slot.shape)}")
            slot.copy_(saved)
        for i, parameter in enumerate(self.parameters.everything()):
            parameter.requires_grad_(parameter.requires_grad and i not in state.get("frozen", []))
        if "extra" in state:
            self.load_extra_state(state["extra"])
        self.version = whole(state, "version")
        self._order.bit_generator.state = state["order"]

    def learned_buffers(self) -> list[Tensor]:
        """The buffers that optimizer steps change, such as the statistics of a batch normalisation."""
        networks = self._learning_networks if self._depends_on_training else ()
        return [buffer for network in networks for buffer in network.buffers()]

    def save(self, path: str | Path) -> Path:
        """Write the agent to one file that `hybridppo.load` reads on any machine, without the state of a training."""
        return save_agent(self, path)


def encoded_rows(
    observation: Any,
    action_mask: Any,
    space: Any,
    encode: ObservationEncoder,
    batch: bool,
    keys: Sequence[str] | None = None,
) -> NDArray[Any]:
    """An observation and its mask as the actor takes them, `[1, *row]`; a batch of them, `[N, *row]`.

    If `keys` are given, the actor sees these parts of an observation alone, and other parts may be missing.

    Raises:
        EnvError: if they are not valid.
    """
    is_masked = isinstance(space, MaskedObservation)
    if is_masked and action_mask is None and isinstance(observation, Mapping) and MASK in observation:
        observation, info = mask_apart(observation)  # as the environment returns it
        action_mask = info[MASK]
    if action_mask is not None and not is_masked:
        raise EnvError("action_mask was given to an agent that was trained without masks: leave it out")
    if keys is not None:
        space, encode = (space.seeing(keys), encode) if is_masked else (space, encode.seeing(keys))
    try:
        if is_masked:
            rows = _masked_rows(observation, action_mask, space, batch)
        elif encode.is_array:
            rows = encode(_shaped(np.asarray(observation), space, encode, batch))
        elif not batch:
            rows = encode.one(observation)[None]
        elif not (number := _number_of(encode.values(observation)[0])):
            raise BadValueError(f"a batch of observations needs an axis for them, got {shown(observation)}")
        else:
            encode.check_shapes(observation, number)
            rows = encode(observation)
        if not np.isfinite(encode.layout.numbers(rows)).all():
            for number, row in enumerate(rows):
                name = f"in observation {number}: observation" if batch else "the observation"
                encode.require_finite(name, row, None if batch else observation)
    except (BadValueError, EnvError, ValueError) as error:  # ValueError: NumPy makes no array of it
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise EnvError("act got the pair that reset returns: write `observation, info = env.reset()`") from None
        raise error if isinstance(error, EnvError) else EnvError(f"the agent cannot act: {error}") from None
    return rows


def _number_of(values: Any) -> int:
    """The number of values in a batch of one part; 0 if it is no batch."""
    return len(values) if isinstance(values, tuple) or np.ndim(values) else 0


def _shaped(array: NDArray[Any], space: gym.Space[Any], encode: ObservationEncoder, batch: bool) -> NDArray[Any]:
    """An array as a batch of observations; refuse another shape than theirs.

    A single observation may be flat, or have axes of length 1 more or less.
    """
    shape, expected = array.shape, tuple(space.shape or ())
    if encode.frames is not None and shape[int(batch) :] != expected:
        number = encode.frames.num_frames
        raise EnvError(
            f"this agent acts on stacks of {number} observations, of shape {expected}, got one of shape "
            f"{shape[int(batch) :]}: let hybridppo.FrameStack(env, {number}) give them"
        )
    if batch:
        if len(shape) != len(expected) + 1 or shape[1:] != expected or not shape[0]:
            raise EnvError(f"a batch of observations must be of shape {('N', *expected)}, and is of shape {shape}")
        return array
    sizes, wanted = ([size for size in each if size != 1] for each in (shape, expected))
    if sizes not in (wanted, [math.prod(expected)]):
        raise EnvError(
            f"an observation must be of shape {expected}, and is of shape {shape} (batch=True is for several)"
        )
    return array.reshape(1, *expected)


def _masked_rows(observation: Any, action_mask: Any, space: MaskedObservation, batch: bool) -> NDArray[Any]:
    """Rows `[N, *row]` of observations with their masks.

    Raises:
        BadValueError: if they are not in their spaces.
        EnvError: if a mask is missing or allows nothing.
    """
    needs = "this agent takes an action that a mask allows: pass action_mask=info['action_mask'], which allows at "
    if action_mask is None:
        raise EnvError(f"{needs}least one, got None")
    masks = list(action_mask) if batch else [action_mask]
    rows = space.rows(observation, masks) if batch else space.row(observation, action_mask)[None]
    for row, mask in zip(rows, masks, strict=True):
        try:
            space.require_allowed(row)
        except BadValueError:
            raise EnvError(f"{needs}least one, got {shown(mask)}") from None
    return rows


def _checked_state(state: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """The state `[N, size]` of a recurrent actor, from the one passed to `act`, which has this shape.

    Raises:
        EnvError: if the state is missing or invalid.
    """
    if state is NO_STATE:
        raise EnvError(
            "this agent is recurrent, so act takes and returns its state: write "
            "`action, state = agent.act(observation, state=state)`, with state=None at the start of an episode"
        )
    if state is None:
        state = np.zeros(shape, np.float32)
    given = np.asarray(state)
    if given.shape != shape or given.dtype != np.float32 or not np.isfinite(given).all():
        raise EnvError(
            f"state must be what the last call of act returned, an array {shape} of float32, or None where an episode "
            f"starts, got {shown(state)}"
        )
    return given.reshape(-1, shape[-1])


def generator_of(seed: Seed) -> np.random.Generator:
    """The generator itself; or a new one with this seed, or with one of the operating system.

    Raises:
        ConfigurationError: if it is no seed.
    """
    is_given = seed is None or isinstance(seed, np.random.Generator)
    return np.random.default_rng(seed if is_given else require_whole("seed", seed, 0, below=2**128))


class Modules(nn.ModuleDict):
    """Modules by name."""

    def take(self, modules: Any) -> None:
        """Take these modules.

        Raises:
            ConfigurationError: if a value is no module, has parameters that are not float32, or a name is not allowed.
        """
        if not isinstance(modules, Mapping):
            raise ConfigurationError(f"modules must be a mapping of names to modules, got {shown(modules)}")
        for name, module in modules.items():
            is_word = isinstance(name, str) and name.isidentifier()
            if not is_word or hasattr(nn.ModuleDict, name) or name in ("actor", "critic"):
                rule = "the name of a module must be a word of letters and digits, and not that of another network"
                raise ConfigurationError(f"{rule}, got {shown(name)}")
            if not isinstance(module, nn.Module):
                raise ConfigurationError(f"modules[{name!r}] must be a torch.nn.Module, got {shown(module)}")
            require_float32(f"modules[{name!r}]", module)
        self.update(modules)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise ConfigurationError(
                f"the agent has no module {name!r}, which a custom part asks for: pass modules={{{name!r}: ...}}, or "
                "return it from make_modules"
            )
        return super().__getitem__(name)


def library_class(agent: Any) -> Any:
    """The library's class of an agent, of which a subclass is the user's own part."""
    return next(kind for kind in type(agent).__mro__ if kind.__module__.startswith("hybridppo.agents."))


def save_agent(agent: Any, path: str | Path) -> Path:
    """Write an agent's networks, spaces and configuration to a file for `hybridppo.load`.

    Raises:
        ConfigurationError: if it is no path.
        RunDirectoryError: if the disk refuses it.
    """
    path = require_path("path", path)
    tensors, state = agent.state()
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")}
    description = {
        "agent": library_class(agent).name,
        "config": agent.config.to_json(),
        "observation_space": space_to_json(agent.observation_space),
        "action_space": space_to_json(agent.action_space),
        "own": {
            what: ", ".join(part) if isinstance(part, Mapping) else shown_name(part) for what, part in agent.own.items()
        },
        "state": state,
    }
    write_agent_file(path, kept, description)
    return path


def _never() -> bool:
    return False


def diverged(when: str, quantities: Iterable[tuple[str, Tensor]], config: Any) -> TrainingError:
    """The error with the name of the first quantity that is not finite.

    Args:
        when: the iteration or update.
        quantities: by name, in the order of computation.
        config: the hyperparameters, which may be the cause.
    """
    found = ((name, tensor.reshape(-1)) for name, tensor in quantities)
    bad = ((name, numbers[~numbers.isfinite()]) for name, numbers in found)
    what = next((f"{name} ({float(numbers[0]):g})" for name, numbers in bad if len(numbers)), "a sum of statistics")
    return TrainingError(
        f"training stopped {when}: the first quantity that is not finite is {what}. Usual causes: a learning rate that "
        f"is too large (learning_rate is {config.learning_rate:g}), rewards or observations that are not normalised, a "
        f"gamma of 1 without ends (gamma is {config.gamma:g}). The parameters are lost, and nothing of them was saved: "
        "fix the cause, and start anew or from the last checkpoint, which was written before"
    )


def scalars(
    extra: Mapping[str, Any],
    names: tuple[str, ...],
    device: torch.device,
    what: str = "extra[{!r}] of a loss",
    taken: Collection[str] = TAKEN,
) -> Tensor:
    """Metrics that a user's function returned, such as the extra ones of a loss, `[E]`.

    Args:
        extra: numbers or tensors of one number, by name.
        names: the names in the first minibatch.
        device: where the result is.
        what: the words for one of them in an error, with a place for its name.
        taken: the names of other metrics.

    Raises:
        ConfigurationError: if a value is no scalar, another metric has the name, or the names have changed.
    """
    if tuple(extra) != names:
        raise ConfigurationError(
            f"extra of a loss must have the same names in every minibatch, had {', '.join(names) or 'none'} and then "
            f"{', '.join(extra) or 'none'}"
        )
    found = torch.zeros(len(extra), device=device)
    for i, (name, value) in enumerate(extra.items()):
        if name in taken:
            raise ConfigurationError(f"{what.format(name)} has the name of another metric: give it another")
        number = torch.as_tensor(value, dtype=torch.float32, device=device).detach()
        if number.numel() != 1:
            shape = list(number.shape)
            raise ConfigurationError(f"{what.format(name)} must be a scalar, got {shape}: take its mean")
        found[i] = number.reshape(())
    return found


def fill_gradient(parameters: FlatParameters, loss: Tensor, *networks: str) -> None:
    """Fill the gradient of the parameters, or of these networks, with that of a loss; no other gradient is computed."""
    if not networks:
        parameters.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        return
    for network in networks:
        parameters.gradient[parameters.range_of(network)].zero_()
    learning = [each for network in networks for each in parameters.of_network(network) if each.requires_grad]
    if learning:
        loss.backward(inputs=learning)  # type: ignore[no-untyped-call]


def _stacked(numbers: Sequence[Any]) -> Tensor:
    """Tensors, or numbers and arrays of NumPy, as one tensor."""
    if isinstance(numbers[0], Tensor):
        return torch.stack(list(numbers))
    return torch.from_numpy(np.array(numbers, np.float32))


def _copied(part: object) -> object:
    try:
        return copy.deepcopy(part)
    except TypeError:  # such as an open file, which both must share
        return part
