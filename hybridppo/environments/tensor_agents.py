"""Several agents in each environment of tensors: converts dicts by kind to a column for each agent, and back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, cast

import gymnasium as gym
import torch
from gymnasium.vector.utils import concatenate, create_empty_array
from torch import Tensor
from torch.nn.functional import pad

from hybridppo.environments.checks import describe_error
from hybridppo.errors import ENV_FAILURES, BadValueError, EnvError, shown
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import CriticRows, SpacesOfAgents, each_observes, joint_space, spaces_with_critics_part
from hybridppo.spaces.on_tensors import TensorEncoder, numbers_of, on_device
from hybridppo.spaces.rows import ObservesOfAgents
from hybridppo.system.validation import plain


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
    absent: Tensor | None = None
    """`[N]` bool, whose rows are not steps because their agents had left; None if all are steps."""


class TensorAgents:
    """The agents of an environment of tensors that has `policies`.

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
        self._of_critics: CriticRows | None = None
        if {*observes} != {"own"}:
            self._of_critics = CriticRows(spaces, observes, self._row.size)
            self._source = torch.as_tensor(self._of_critics.source.ravel(), device=self._device)
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
                is_bad = ~numbers_of(rows, self._encoders[kind].layout).isfinite().flatten(1).all(1, keepdim=True)
                rows = rows.flatten(1).to(torch.float32).masked_fill(is_bad, torch.nan)  # which is found later
            rows = rows.reshape(self._num_envs, -1, *rows.shape[1:])
            if self._row.image is None:
                rows = self._placed(rows, kind)
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

    def after(self, step: "TensorStep", infos: Any) -> "TensorStep":
        """The step without the values of absent agents; those whose episode has ended leave.

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
            was_cut = truncated.reshape(-1, *([1] * (finals.ndim - 1)))
            finals = torch.where(was_cut, finals, step.observations)
            finals = self._with_critics_part(finals, truncated | stay, self._state(infos))
        return replace(
            step,
            observations=self._with_critics_part(step.observations, self.present.flatten(), self._state()),
            rewards=step.rewards.masked_fill(absent, 0.0),
            terminated=terminated,
            truncated=truncated,
            finals=finals,
            absent=absent,
        )

    def divided(self, actions: Any) -> dict[str, Any]:
        """Actions by kind, `[num_envs, count, *action]`.

        Args:
            actions: of all columns, a batch or a container of batches; or a list of `A` batches, one for each agent.
        """
        if isinstance(actions, list):
            return {
                kind: _join_parts(actions[own], lambda each: torch.stack(each, 1)) for kind, own in self._slots.items()
            }
        apart = _join_parts([actions], lambda each: each[0].view(self._num_envs, -1, *each[0].shape[1:]))
        return {kind: _join_parts([apart], partial(_columns, own)) for kind, own in self._slots.items()}

    def on_host(self, actions: Any) -> Any:
        """Actions of NumPy's distributions for all columns, in the form that `divided` takes, on the host."""
        if not isinstance(actions, list):
            return actions
        spaces = self._each(self._env.single_action_space)
        return [
            concatenate(space, actions[slot :: len(spaces)], cast(Any, create_empty_array(space, self._num_envs)))
            for slot, space in enumerate(spaces)
        ]

    def _placed(self, rows: Tensor, kind: str) -> Tensor:
        """Own observations `[num_envs, count, own]` of a kind, at their places in rows `[num_envs, count, W]`."""
        beside = self._row.size - rows.shape[2]
        if self._of_critics is None:
            return pad(rows, (0, beside))
        starts = [own.start for own in self._of_critics.own[self._slots[kind]]]
        if {*starts} == {starts[0]}:
            return pad(rows, (starts[0], beside - starts[0]))
        apart = zip(rows.unbind(1), starts, strict=True)
        return torch.stack([pad(own, (start, beside - start)) for own, start in apart], 1)

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
        if self._of_critics is None or not self._of_critics.state_size:
            return None
        name, shape = "state()", (self._num_envs, *self._env.state_space.shape)
        if infos is not None:
            name, found = "infos['final_state']", infos.get("final_state")
        else:
            try:
                found = self._env.state()
            except ENV_FAILURES as error:
                raise BadValueError(f"state(): {describe_error(error)}") from error
        return on_device(name, found, shape, self._device).to(torch.float32).flatten(1)

    def _with_critics_part(self, rows: Tensor, seen: Tensor, state: Tensor | None) -> Tensor:
        """Rows of the agents that are `seen`, `[N]` bool, with the parts of their critics; the others are zeros."""
        hidden = ~seen.reshape(-1, *([1] * (rows.ndim - 1)))
        rows = rows.masked_fill(hidden, 0)
        if self._of_critics is None:
            return rows
        flat = rows.view(self._num_envs, -1)
        if state is not None:
            flat = torch.cat((flat, state), 1)
        return flat.index_select(1, self._source).view_as(rows).masked_fill(hidden, 0)


def _columns(own: slice, each: list[Tensor]) -> Tensor:
    return each[0][:, own]


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
            raise EnvError(
                f"{what} of {name} must be a Dict with the space of an agent of each kind, {', '.join(policies)}, "
                f"got {shown(space)}"
            )
    return policies


def _join_parts(values: list[Any], join: Callable[[list[Tensor]], Tensor]) -> Any:
    """Join the tensors of values of one form, part by part."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _join_parts([value[key] for value in values], join) for key in first}
    if isinstance(first, tuple):
        return tuple(_join_parts(list(parts), join) for parts in zip(*values, strict=True))
    return join(values)
