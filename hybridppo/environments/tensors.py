"""Batched environments, which step on their own device without copies to the host.

    hybridppo.train(env, ...)       # env has the attributes of `TensorEnv`, or is a function that makes such an object

The interface is that of gymnasium's vectors with torch tensors, and with a reset within the step that ends an episode.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeVar, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor
from torch.nn.functional import pad

from hybridppo.environments.base import Environments, Steering, Step
from hybridppo.environments.checks import describe_error, five_of, require_spaces, two_of
from hybridppo.environments.infos import EntryNames, Sums, is_number, lacking
from hybridppo.errors import BadValueError, EnvError, EnvStateError, failures, shown
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import shown_cast
from hybridppo.spaces.kinds import map_parts
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import CriticRows, SpacesOfAgents, each_observes, joint_space, spaces_with_critics_part
from hybridppo.spaces.on_tensors import CriticRowsOnDevice, TensorEncoder, on_device
from hybridppo.spaces.rows import ObservesOfAgents
from hybridppo.system.devices import accelerator_of
from hybridppo.system.validation import plain

Found = TypeVar("Found")


class TensorEnv(Protocol):
    """The interface of a batched environment. All tensors are on its device.

    With several agents, it also has `policies`, the number of agents of each kind. Spaces, observations, actions,
    rewards, terminated, truncated and `final_obs` are then by kind: a `Dict` with the space of one agent, and dicts of
    tensors `[N, count, ...]`. An agent whose episode has ended leaves, and its values are ignored. When all agents of
    an environment have left, the environment must reset itself.

    If it also has `get_state()`, which returns a dict of tensors by name, and `set_state(state)`, a training in it is
    resumed exactly. `close()` is called if the library made the environment.
    """

    num_envs: int
    """`N`, the number of environments."""
    single_observation_space: "gym.Space[Any]"
    single_action_space: "gym.Space[Any]"
    device: Any
    """The device of its tensors: a `torch.device`, or its name."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset every environment, all from `seed`; return observations `[N, *space]` (or a container) and infos."""

    def step(self, actions: Any, /) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step every environment, and reset those whose episode has ended.

        Args:
            actions: `[N]` integers, `[N, *space]` float32, or a container of them.

        Returns:
            Observations `[N, *space]` for the next action, of a new episode if one has ended; rewards `[N]`; terminated
                and truncated, `[N]` bool; and infos. `infos["final_obs"]`, `[N, *space]`, has the true final
                observations of truncated episodes, if they are known (of all that ended, for agents with
                `keeps_final_observations`); its other rows may hold anything.
        """


@dataclass(frozen=True)
class TensorStep:
    """A step, as rows on the device."""

    observations: Tensor
    """`[N, *row]`."""
    rewards: Tensor
    """`[N]`."""
    terminated: Tensor
    """`[N]` bool."""
    truncated: Tensor
    """`[N]` bool."""
    finals: Tensor | None
    """`[N, *row]`, final observations; None if the environment does not return them."""
    infos: Mapping[str, Tensor]
    """`[N]` float32 each, the entries of `step_infos`."""
    absent: Tensor | None = None
    """`[N]` bool, whose rows are not steps because their agents had left; None if all are steps."""


class TensorAgents:
    """The agents of a batched environment that has `policies`.

    Args:
        env: the environment.
        name: its name, for messages.
        critic_observes: what a row has besides the agent's own observation, like `PPOConfig.critic_observes`.

    Raises:
        EnvError: if its kinds or spaces are invalid.
    """

    def __init__(self, env: Any, name: str, critic_observes: ObservesOfAgents = "own") -> None:
        self._env, self.policies = env, _kinds_of(env, name)
        self.names = tuple(f"{kind}_{i}" for kind, count in self.policies.items() for i in range(count))
        """The names of an environment's agents, kind by kind."""
        observed, observes = self._each(env.single_observation_space), each_observes(critic_observes, self.names)
        spaces = spaces_with_critics_part(observed, observes, env)
        self.observation_space = joint_space(self.names, spaces)
        """The space that all agents share, or `SpacesOfAgents`."""
        self.action_space = joint_space(self.names, self._each(env.single_action_space))
        ends = list(accumulate(self.policies.values(), initial=0))
        self._slots = dict(zip(self.policies, (slice(*ends) for ends in pairwise(ends)), strict=True))
        """The agents of each kind among those of an environment."""
        self._num_envs, self._device = env.num_envs, torch.empty(0, device=env.device).device
        self._row = ObservationEncoder(self.observation_space)
        self._encoders = {
            kind: TensorEncoder(ObservationEncoder(space), (self._num_envs, self.policies[kind]), self._device)
            for kind, space in env.single_observation_space.spaces.items()
        }
        self._written, self._state_size = self._row.size, 0
        """Numbers of a row before critics' parts are added: the own observation, zeros, and the environment's state."""
        self._of_critics: CriticRowsOnDevice | None = None
        if {*observes} != {"own"}:
            of_critics = CriticRows(spaces, observes, self._row.size)
            self._written, self._state_size = of_critics.size, of_critics.state_size
            self._of_critics = CriticRowsOnDevice(of_critics, self._device)
        self.present = torch.ones((self._num_envs, len(self.names)), dtype=torch.bool, device=self._device)
        """`[num_envs, A]`: which agents are present."""

    def encode(self, observations: Any, name: str = "the observations") -> Tensor:
        """Rows `[N, *row]` of observations by kind; what critics see besides is zeros.

        Raises:
            BadValueError: if a part is missing, or is not a tensor of the right shape and type on the device.
        """
        parts = []
        for kind, own in self._by_kind(name, observations).items():
            rows = self._encoders[kind](own, f"{name}[{kind!r}]")
            if isinstance(self.observation_space, SpacesOfAgents) and rows.dtype == torch.uint8:
                is_bad = ~self._encoders[kind].layout.numbers(rows).isfinite().flatten(1).all(1, keepdim=True)
                rows = rows.flatten(1).to(torch.float32).masked_fill(is_bad, torch.nan)  # which is found later
            rows = rows.reshape(self._num_envs, -1, *rows.shape[1:])
            if self._row.image is None:
                rows = pad(rows, (0, self._written - rows.shape[2]))
            parts.append(rows)
        return torch.cat(parts, 1).flatten(0, 1)

    def values(self, name: str, found: Any) -> Tensor:
        """Numbers or flags by kind, as one for each column, `[N]`.

        Raises:
            BadValueError: as `encode`.
        """
        parts = [
            on_device(f"{name}[{kind!r}]", own, (self._num_envs, self.policies[kind]), self._device)
            for kind, own in self._by_kind(name, found).items()
        ]
        return torch.cat(parts, 1).flatten()

    def begin(self, rows: Tensor) -> Tensor:
        """The rows of a reset, in which all agents are present."""
        self.present = torch.ones_like(self.present)
        return self._with_critics_part(rows, self.present.flatten(), self._state())

    def after(self, step: "TensorStep", infos: Any, keeps_finals: bool) -> "TensorStep":
        """The step without the values of absent agents; those whose episode has ended leave.

        Args:
            step: the step.
            infos: its infos.
            keeps_finals: as `Environments.keeps_finals`.

        Raises:
            BadValueError: if critics see the environment's state, and the state is invalid.
        """
        absent = ~self.present.flatten()
        terminated = step.terminated | absent
        truncated = step.truncated & ~terminated
        stay = ~(terminated | truncated)
        have_left = ~stay.view_as(self.present).any(1, keepdim=True)
        self.present = stay.view_as(self.present) | have_left
        finals = step.finals
        if finals is not None:
            are_final = ~(stay | absent) if keeps_finals else truncated
            finals = torch.where(are_final.reshape(-1, *([1] * (finals.ndim - 1))), finals, step.observations)
            finals = self._with_critics_part(finals, are_final | stay, self._state(infos))
        return replace(
            step,
            observations=self._with_critics_part(step.observations, self.present.flatten(), self._state()),
            rewards=step.rewards.masked_fill(absent, 0.0),
            terminated=terminated,
            truncated=truncated,
            finals=finals,
            infos={name: numbers.masked_fill(absent, 0.0) for name, numbers in step.infos.items()},
            absent=absent,
        )

    def divided(self, actions: Any) -> dict[str, Any]:
        """Actions by kind, `[num_envs, count, *action]`.

        Args:
            actions: of all columns, a batch or a container of batches; or a list of `A` batches, one for each agent.
        """
        if isinstance(actions, list):
            return {kind: _stacked(actions[own]) for kind, own in self._slots.items()}
        apart = map_parts(lambda part: part.view(self._num_envs, -1, *part.shape[1:]), actions)
        return {kind: map_parts(operator.itemgetter((slice(None), own)), apart) for kind, own in self._slots.items()}

    def on_host(self, actions: Any) -> Any:
        """Actions of NumPy's distributions for all columns, in the form that `divided` takes, on the host."""
        if not isinstance(actions, list):
            return actions
        spaces = self._each(self._env.single_action_space)
        return [
            concatenate(space, actions[slot :: len(spaces)], cast(Any, create_empty_array(space, self._num_envs)))
            for slot, space in enumerate(spaces)
        ]

    def _each(self, space: Any) -> list[gym.Space[Any]]:
        """The space of each agent."""
        return [space.spaces[kind] for kind, count in self.policies.items() for _ in range(count)]

    def _by_kind(self, name: str, found: Any) -> dict[str, Any]:
        if not isinstance(found, Mapping) or found.keys() != self.policies.keys():
            kinds = ", ".join(self.policies)
            what = ", ".join(map(str, found)) if isinstance(found, Mapping) else f"a {type(found).__name__}"
            raise BadValueError(f"{name} must be a dict of tensors by kind, {kinds}, not {what}")
        return {kind: found[kind] for kind in self.policies}

    def _state(self, infos: Any = None) -> Tensor | None:
        """The environment's state if critics see it; with infos, the final one of episodes that have ended."""
        if not self._state_size:
            return None
        name, shape = "state()", (self._num_envs, *self._env.state_space.shape)
        if infos is not None:
            name, found = "infos['final_state']", infos.get("final_state")
        else:
            try:
                found = self._env.state()
            except failures() as error:
                raise BadValueError(f"state(): {describe_error(error)}") from error
        return on_device(name, found, shape, self._device).to(torch.float32).flatten(1)

    def _with_critics_part(self, rows: Tensor, seen: Tensor, state: Tensor | None) -> Tensor:
        """Rows of the agents that are `seen`, `[N]` bool, with the parts of their critics; the others are zeros."""
        rows = rows.masked_fill(~seen.reshape(-1, *([1] * (rows.ndim - 1))), 0)
        if self._of_critics is None:
            return rows
        if state is not None:
            rows.view(self._num_envs, -1, rows.shape[1])[..., -self._state_size :] = state[:, None]
        return self._of_critics.whole(rows, seen.view_as(self.present))


def _kinds_of(env: Any, name: str) -> dict[str, int]:
    policies = env.policies
    if not isinstance(policies, Mapping) or not policies:
        raise EnvError(f"policies of {name} must map each kind of agents to their number, got {shown(policies)}")
    policies = {kind: plain(count) for kind, count in policies.items()}
    for kind, count in policies.items():
        if not isinstance(kind, str) or not isinstance(count, int) or count < 1:
            raise EnvError(f"policies of {name} must have a name and a number of agents, got {kind!r}: {shown(count)}")
    for what in ("single_observation_space", "single_action_space"):
        space = getattr(env, what)
        if not isinstance(space, gym.spaces.Dict) or space.spaces.keys() != policies.keys():
            kinds = ", ".join(policies)
            raise EnvError(f"{what} of {name} must be a Dict with a space for each kind, {kinds}, got {shown(space)}")
    return policies


def _stacked(batches: list[Any]) -> Any:
    """Batches of actions of one form, `[num_envs, *action]` each, as one `[num_envs, count, *action]`."""
    first = batches[0]
    if isinstance(first, dict):
        return {key: _stacked([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked([*parts]) for parts in zip(*batches, strict=True))
    return torch.stack(batches, 1)


class TensorEnvironments(Environments):
    """A batched environment whose steps are checked: shapes, types and device.

    `begin` and `advance` stay on the device. `reset` and `step` are those of all environments, for evaluations; each
    step is copied to the host and back.

    Args:
        env: a `TensorEnv`.
        num_envs: the number of environments that it must have; None for any.
        owns: whether it is closed with this object.
        critic_observes: what rows have besides an agent's own observation, like `PPOConfig.critic_observes`.

    Raises:
        EnvError: if it is not such an environment, or has another number.
    """

    def __init__(
        self, env: Any, num_envs: int | None, *, owns: bool, critic_observes: ObservesOfAgents = "own"
    ) -> None:
        self.env: Any = env
        self._owns = owns
        self.name = type(env).__name__
        if num_envs is not None and env.num_envs != num_envs:
            raise EnvError(f"{self.name} has {env.num_envs} environments, but num_envs is {num_envs}: make them equal")
        require_spaces(
            env, "single_", "give it one, or wrap the environment (hybridppo.tensors has IsaacLab and Mjlab)"
        )
        self.of_agents: TensorAgents | None = None
        """The agents of each environment; None if an environment is one agent."""
        spaces = env.single_observation_space, env.single_action_space
        if hasattr(env, "policies"):
            self.of_agents = TensorAgents(env, self.name, critic_observes)
            spaces = self.of_agents.observation_space, self.of_agents.action_space
        names = () if self.of_agents is None else self.of_agents.names
        super().__init__(env.num_envs * max(1, len(names)), *spaces)
        self.agents = names
        self.device: torch.device = torch.empty(0, device=env.device).device  # "cuda" with its number
        self.on_device = TensorEncoder(self.encode, (self.num_envs,), self.device)
        """Encodes rows of the whole environment."""
        self._rows: Callable[[Any, str], Tensor] = self.on_device
        self._values: Callable[[str, Any], Tensor] = partial(on_device, shape=(self.num_envs,), device=self.device)
        """Encodes observations; and checks a number or a flag for each column."""
        if self.of_agents is not None:
            self._rows, self._values = self.of_agents.encode, self.of_agents.values
        self._num_steps = 0
        self.title = f"{self.num_envs} batched environments, {self.name}"
        self._accelerator = accelerator_of(self.device)
        self._entries = EntryNames(())
        self._totals: dict[str, tuple[Any, Any]] = {}
        """The sum and the number of values of each entry of infos that is a metric."""
        self._counted = torch.ones(env.num_envs, dtype=torch.bool, device=self.device)

    def begin(self, seed: int) -> Tensor:
        """Reset every environment; return observations `[N, *row]`.

        Raises:
            EnvError: if it fails, or returns invalid values.
        """
        self._seed, self._num_steps = seed, 0
        rows = self._guarded("in its reset", lambda: self._reset(seed))
        self.require_finite("observation", rows[None], "in its reset")
        return rows

    def _reset(self, seed: int) -> Tensor:
        # Seeds of torch's generators have 64 bits with a sign, and those of most simulators 32 bits.
        observations, _ = two_of(self.env.reset(seed=seed % 2**31))
        rows: Tensor = self._rows(observations, "the observations")
        return rows if self.of_agents is None else self.of_agents.begin(rows)

    def advance(self, actions: Any) -> TensorStep:
        """Step every environment with actions on the device (`Distribution.to_env`).

        Raises:
            EnvError: if it fails, or returns anything but tensors of the right shape and type on the device. Numbers
                that are not finite are not detected, because that would wait for the device.
        """
        self._num_steps += 1
        if self.of_agents is not None:
            actions = self.of_agents.divided(actions)
        return self._guarded(f"in step {self._num_steps}", lambda: self._step_of(self.env.step(actions)))

    def _step_of(self, result: Any) -> TensorStep:
        of = "gymnasium's vectors: observations, rewards, terminated, truncated, infos"
        observations, rewards, terminated, truncated, infos = five_of(result, of)
        flags = {}
        for name, found in {"terminated": terminated, "truncated": truncated}.items():
            flags[name] = self._values(name, found)
            if flags[name].dtype != torch.bool:
                raise BadValueError(
                    f"{name} must be torch.bool, not {flags[name].dtype}: write {name}.bool(), or if the step returns "
                    "the values of rsl_rl (observations, privileged observations, rewards, dones, extras), wrap the "
                    "environment in hybridppo.tensors.RslRlVecEnv"
                )
        infos = infos if isinstance(infos, Mapping) else {}
        if "final_observation" in infos:  # its name before gymnasium 1.0
            raise BadValueError("infos has 'final_observation', which must have the name 'final_obs'")
        finals, further = infos.get("final_obs"), self._infos_of_step(infos, **flags) if self.step_infos else {}
        if self.info_names or "log" in infos or "episode" in infos:
            self._add_infos(infos)
        if finals is not None:
            finals = self._rows(finals, "the final observations")
        rewards = self._values("the rewards", rewards)
        if rewards.dtype in (torch.bool, torch.bfloat16):  # which NumPy cannot add
            rewards = rewards.type(torch.float32)
        step = TensorStep(self._rows(observations, "the observations"), rewards, **flags, finals=finals, infos=further)
        return step if self.of_agents is None else self.of_agents.after(step, infos, self.keeps_finals)

    def measure_infos(self, names: Sequence[str], steps: Sequence[str] = ()) -> None:
        """As in the base. An entry is in `infos["log"]` or in `infos`, one number or one for each environment."""
        self.info_names, self.step_infos = tuple(names), tuple(steps)
        self._entries, self._totals = EntryNames(names), {}
        self._counted.fill_(True)

    def leave_out_infos(self, env: int) -> None:  # noqa: D102 - as in the base
        if self.info_names:
            self._counted[env] = False

    def _infos_of_step(self, infos: Mapping[str, Any], terminated: Tensor, truncated: Tensor) -> dict[str, Tensor]:
        """The entries of `step_infos`; of episodes that have ended, those in `infos["final_info"]`, if it has them."""
        found, finals = {}, infos.get("final_info")
        for name in self.step_infos:
            if name not in infos:
                raise lacking(name, infos)
            numbers = self._values(f"infos[{name!r}]", infos[name])
            if isinstance(finals, Mapping) and name in finals:
                last = self._values(f"infos['final_info'][{name!r}]", finals[name])
                numbers = torch.where(terminated | truncated, last, numbers)
            found[name] = numbers.to(torch.float32)
        return found

    def _add_infos(self, infos: Mapping[str, Any]) -> None:
        """Add the entries that are metrics: those that are asked for, and all that the environment logs."""
        logged = infos.get("log", infos.get("episode"))
        logged = logged if isinstance(logged, Mapping) else {}
        entries, numbers = {**infos, **logged}, [name for name, value in logged.items() if is_number(value)]
        for name in dict.fromkeys((*numbers, *self._entries.among(entries))):
            if (value := entries.get(name)) is None:
                continue
            try:
                where = None if isinstance(value, bool | int | float) else self.device
                found = torch.as_tensor(value, dtype=torch.float32, device=where)
            except (TypeError, ValueError, RuntimeError):
                raise BadValueError(f"infos[{name!r}] must be numbers (info_metrics), and is {shown(value)}") from None
            total, number = self._totals.get(name, (0.0, 0.0))
            if found.shape[:1] == self._counted.shape:
                each = found.flatten(1).mean(1) if found.ndim > 1 else found
                self._totals[name] = total + each.where(self._counted, 0.0).sum(), number + self._counted.sum()
            else:
                self._totals[name] = total + found.mean(), number + 1.0

    def take_infos(self) -> Sums:
        """As in the base; it waits for the device once. Numbers that nobody asked for are left out if not finite."""
        totals, self._totals = self._totals, {}
        as_number = partial(torch.as_tensor, dtype=torch.float32, device=self.device)
        numbers = [torch.stack([as_number(number) for number in pair]) for pair in totals.values()]
        found = torch.stack(numbers).tolist() if numbers else []
        sums: Sums = {name: [*pair, 0.0, 0.0] for name, pair in zip(totals, found, strict=True)}
        asked = {*self._entries.among(dict.fromkeys(totals, 0.0))}
        for name in [name for name, (total, *_) in sums.items() if not math.isfinite(total)]:
            if name in asked:
                raise EnvError(f"{self.name}: infos[{name!r}] must be finite numbers (info_metrics), and are not")
            del sums[name]
        return sums

    def _guarded(self, when: str, call: Callable[[], Found]) -> Found:
        """The result of a call; errors of the environment name it."""
        try:
            # Simulators launch kernels on the current device, and mean it by a bare "cuda".
            with self._accelerator.selected(), torch.no_grad():
                return call()
        except EnvError:
            raise
        except failures() as error:
            raise self.failure(when, describe_error(error)) from error

    def require_finite(self, what: str, values: Tensor, when: str = "") -> None:
        """Refuse observations `[T, N, *row]`, or rewards or entries of infos `[T, N]`, that are not finite.

        It waits for the device.

        Args:
            what: "observation", "final observation", "reward", or the entry.
            values: a row for each step.
            when: the time of the values, for messages; "" to compute it from the number of steps.

        Raises:
            EnvError: naming the first environment and number.
        """
        numbers = values[..., None] if values.ndim == 2 else self.encode.layout.numbers(values)
        is_bad = ~numbers.isfinite()
        if not bool(is_bad.any()):
            return
        step, env, number = is_bad.nonzero()[0].tolist()
        name = what if values.ndim == 2 else f"observation{self.encode.names[number]}"
        value = float(numbers[step, env, number])
        if not when:
            when = f"in step {self._num_steps - len(values) + 1 + step}"
        raise self.failure(when, f"the {what} of environment {env}: {name} is {shown_cast(value)}")

    # For evaluations

    def steer(self, steering: Steering) -> list[Any]:
        """As in the base; all environments are one object."""
        return [steering.apply(self.env)]

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        return on_host(self.begin(seed))

    def step(self, actions: Any) -> Step:
        """As in the base; numbers that are not finite are an error of the step."""
        if self.of_agents is not None:
            actions = self.of_agents.on_host(actions)
        taken = self.advance(tensors_of(actions, self.device))
        if taken.absent is not None:
            self.absent = on_host(taken.absent)
        when = f"in step {self._num_steps}"
        self.require_finite("observation", taken.observations[None], when)
        self.require_finite("reward", taken.rewards[None], when)
        flags = taken.rewards, taken.terminated, taken.truncated
        rewards, terminated, truncated = map(on_host, flags)
        finals_of: list[int] = []
        finals: list[Array] = []
        if taken.finals is not None:
            finals_of = np.flatnonzero(truncated & ~terminated).tolist()
            everything = on_host(taken.finals) if finals_of else None
            finals = [everything[env].copy() for env in finals_of] if everything is not None else []
        return on_host(taken.observations), rewards, terminated, truncated, finals_of, finals

    # Its state

    def tensors_of_state(self) -> dict[str, Tensor]:
        """The state for `load_tensors`: copies of the environment's own tensors by name.

        Raises:
            EnvStateError: if it has no state.
        """
        if not (callable(getattr(self.env, "get_state", None)) and callable(getattr(self.env, "set_state", None))):
            raise EnvStateError(f"{self.name} has no get_state() and set_state(state)")
        with self._accelerator.selected():
            found = self.env.get_state()
        pairs = found.items() if isinstance(found, dict) else [(None, None)]
        if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in pairs):
            raise EnvStateError(f"get_state() of {self.name} must return a dict of tensors by name")
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore the result of `tensors_of_state` of the same environment.

        Raises:
            EnvStateError: if the tensors do not fit; the environment must then be reset.
        """
        now = self.tensors_of_state()
        differences = sorted(
            name for name in now.keys() | tensors.keys() if _form(now.get(name)) != _form(tensors.get(name))
        )
        if differences:
            name = differences[0]
            was, found = _form(tensors.get(name)), _form(now.get(name))
            raise EnvStateError(f"what was saved is not the state of {self.name}: {name} is {found} and was {was}")
        # Each tensor keeps its device: the state of a generator is on the host, for example.
        placed = {name: torch.empty_like(mine).copy_(tensors[name]) for name, mine in now.items()}
        try:
            with self._accelerator.selected():
                self.env.set_state(placed)
        except failures() as error:
            raise EnvStateError(f"set_state() of {self.name} failed: {describe_error(error)}") from error

    def _close(self) -> None:
        if self._owns and callable(getattr(self.env, "close", None)):
            self.env.close()


def on_host(tensor: Tensor) -> Array:
    """A tensor as an array on the host."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).numpy()


def tensors_of(actions: Any, device: torch.device) -> Any:
    """Actions of NumPy's distributions, for gymnasium's vectors, on the device."""
    if isinstance(actions, list):
        return [tensors_of(part, device) for part in actions]
    return map_parts(partial(_tensor_of, device), actions)


def _tensor_of(device: torch.device, actions: Any) -> Tensor:
    tensor = torch.as_tensor(np.ascontiguousarray(actions), device=device)
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def _form(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
