"""A compiled environment that Python steps, from the same source and without Numba, to explain errors.

    environment = CartPole()                    # a `PythonEnv`; of several agents, `PythonAgents`

Compiled code would not notice some errors: an unknown field, an entry of an observation that is not written, a boolean
in place of a reward. Here, an `EnvError` names the function and its line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from hybridppo.compiled.random_numbers import NUM_WORDS, begin, begin_agent
from hybridppo.errors import EnvError, EnvStateError, shown
from hybridppo.spaces.arrays import Array
from hybridppo.system.validation import plain

ActionKind = Literal["choice", "choices", "numbers"]


@dataclass(frozen=True, repr=False)
class EnvironmentSpec:
    """The functions of an environment, and their arguments."""

    name: str
    state: np.dtype[Any]
    """A record type: the fields by name."""
    observation_space: gym.spaces.Box
    """One-dimensional, float32."""
    action_space: gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.Box
    """A `Box` is one-dimensional; `step` takes a number for `Discrete`, else an array."""
    episode_length: int
    """Steps after which an episode is truncated; 0 for never."""
    functions: dict[str, Callable[..., Any]]
    """As in the class: `reset`, `step` and `observe`; with several agents `reset`, phases, `reward`, `end` and
    `observe`."""
    policies: dict[str, int] = field(default_factory=dict)
    """With several agents, their kinds and the number of agents of each."""
    phases: tuple[str, ...] = ()
    """With several agents, the names of the phases."""
    state_space: gym.spaces.Box | None = None
    """With several agents, the space of what critics may see: what `observe_state` writes. One-dimensional, float32."""
    draw: Callable[..., Any] | None = None
    """Makes a picture of a state, `[height, width, 3]` of bytes; plain Python that is never compiled."""

    @property
    def action_kind(self) -> ActionKind:
        """The kind of the action space."""
        if isinstance(self.action_space, gym.spaces.Box):
            return "numbers"
        return "choice" if isinstance(self.action_space, gym.spaces.Discrete) else "choices"

    @property
    def action_size(self) -> int:
        """Numbers in an action."""
        return int(np.prod(self.action_space.shape or ()))

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents, kind by kind; empty for a single agent."""
        return tuple(f"{kind}_{number}" for kind, count in self.policies.items() for number in range(count))


class State:
    """The fields of a state as attributes."""

    def __init__(self, record: Any) -> None:
        object.__setattr__(self, "_record", record)

    def __getattr__(self, name: str) -> Any:
        return self._record[self._known(name)]

    def __setattr__(self, name: str, value: Any) -> None:
        self._record[self._known(name)] = value

    def _known(self, name: str) -> str:
        fields = self._record.dtype.names
        if name not in fields:
            raise AttributeError(unknown_field(name, fields))
        return name


def unknown_field(name: str, fields: tuple[str, ...]) -> str:
    """The message for an unknown field."""
    return f"the state has no field {name!r}: its fields are {', '.join(fields)}"


def checked(spec: EnvironmentSpec, name: str, returned: Any) -> Any:
    """What `step`, `reward` or `end` returned.

    Raises:
        EnvError: if it is not what the function must return.
    """
    truths = bool | np.bool_
    if name == "end":
        is_right = isinstance(returned, truths)
    else:
        is_right = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], truths)
        numbers = int | float | np.integer | np.floating
        is_right = is_right and isinstance(returned[0], numbers) and not isinstance(returned[0], bool)
    returned = tuple(map(plain, returned)) if isinstance(returned, tuple) else plain(returned)
    if not is_right:
        raise EnvError(f"{place_of(spec, name)} returned {shown(returned)}: {wanted_of(name)}")
    return returned


def wanted_of(name: str) -> str:
    """The values that a function must return, for messages."""
    if name == "end":
        return "`end` returns a truth, whether the episode is over for all: True or False"
    what = "the episode is over" if name == "step" else "the agent leaves"
    return f"`{name}` returns a reward and a truth, in this order: a number, and True or False for whether {what}"


def place_of(spec: EnvironmentSpec, name: str) -> str:
    """A function with its place in the source, for messages."""
    code = spec.functions[name].__code__
    return f"{spec.name}.{name} ({code.co_filename}:{code.co_firstlineno})"


class PythonForm:
    """Steps one environment, of one agent or several; subclasses have the interfaces of libraries."""

    def __init__(self, spec: EnvironmentSpec, render_mode: str | None = None) -> None:
        num_agents = max(1, len(spec.agents))
        self.definition, self.render_mode = spec, render_mode
        self.present: Array = np.zeros(num_agents, np.bool_)
        """`[A]`: which agents are present."""
        self._states = np.zeros(1, spec.state)
        self._randoms = np.zeros((num_agents, NUM_WORDS), np.int64)
        self._length, self._has_begun = 0, False

    @property
    def fields(self) -> Any:
        """The fields by name; with several agents, arrays over agents."""
        return State(self._states[0])

    def begin(self, seed: int | None) -> None:
        """Begin the next episode, or with a seed the first one, as compiled environments do."""
        if seed is not None or not self._has_begun:
            seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
            for random in self._randoms:
                begin(random, seed)
        else:
            self._randoms[:, 2] += 1
        self._length, self._has_begun = 0, True
        self.present[:] = True
        for agent, random in enumerate(self._randoms):
            begin_agent(random, agent)
            self.definition.functions["reset"](*self._number(agent), self.fields, random)

    def advance(self, actions: Mapping[int, Any]) -> dict[int, tuple[Array, float, bool, bool]]:
        """Make one step with the actions of present agents.

        Returns:
            For each of these agents the observation, the reward, and whether it is terminated and truncated.
        """
        spec, functions = self.definition, self.definition.functions
        is_choice = spec.action_kind == "choice"
        actions = {agent: int(action) if is_choice else np.asarray(action) for agent, action in actions.items()}
        for phase in spec.phases:
            self._run(functions[phase], actions)
        self._length += 1
        is_over = bool(spec.policies) and checked(spec, "end", functions["end"](self.fields, self._length))
        is_cut = 0 < spec.episode_length <= self._length
        results = {}
        for agent, action in actions.items():
            if spec.policies:
                reward, has_left = checked(spec, "reward", functions["reward"](agent, self.fields, self._length))
            else:
                reward, has_left = checked(spec, "step", functions["step"](self.fields, action, self._randoms[0]))
            terminated = has_left or is_over
            truncated = is_cut and not (terminated and spec.policies)  # of both, PettingZoo takes one, gymnasium both
            self.present[agent] = not (terminated or is_cut)
            results[agent] = self.observation(agent), float(reward), terminated, truncated
        return results

    def _run(self, phase: Any, actions: Mapping[int, Any]) -> None:
        for agent, action in actions.items():
            phase(agent, self.fields, action, self._randoms[agent])

    def observation(self, agent: int) -> Array:
        """The observation of an agent."""
        number = self._number(agent)
        arguments = (*number, self.fields, self._length) if number else (self.fields,)
        return self._observed("observe", self.definition.observation_space, *arguments)

    def _number(self, agent: int) -> tuple[int, ...]:
        """The first arguments of an agent's functions: its number, if there are several agents."""
        return (agent,) if self.definition.policies else ()

    def _observed(self, name: str, space: gym.spaces.Box, *arguments: Any) -> Array:
        """The numbers that a function writes.

        Raises:
            EnvError: with the first number that is not written.
        """
        observe, size = self.definition.functions[name], space.shape[0]
        out = np.full(size, np.nan, np.float32)
        observe(*arguments, out)
        if np.isnan(out).any():
            again = np.zeros_like(out)
            observe(*arguments, again)
            forgotten = np.flatnonzero(np.isnan(out) & ~np.isnan(again))  # unless it writes NaN itself
            if len(forgotten):
                what = "an observation" if name == "observe" else "a state"
                raise EnvError(
                    f"{place_of(self.definition, name)} does not write out[{forgotten[0]}]: {what} has {size} numbers, "
                    "write each of them on every path"
                )
        return out

    def render(self) -> Any:
        """The present picture, `[height, width, 3]`; None without `render_mode`."""
        draw = self.definition.draw
        if self.render_mode is None or draw is None:
            return None
        return draw(self.fields, self._length) if self.definition.policies else draw(self.fields)

    def get_state(self) -> dict[str, Any]:
        """The state for an exact resume."""
        arrays = {"random": self._randoms.tolist(), "present": self.present.tolist()}
        return {"state": self._states.tobytes(), "length": self._length, **arrays}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        if len(state["state"]) != self._states.nbytes:
            raise EnvStateError(f"the saved state is not one of {self.definition.name}")
        self._states[:] = np.frombuffer(state["state"], self._states.dtype)
        self._randoms[:], self.present[:] = state["random"], state["present"]
        self._length, self._has_begun = int(state["length"]), True


class PythonEnv(PythonForm, gym.Env[Any, Any]):
    """One environment with gymnasium's interface."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, spec: EnvironmentSpec, render_mode: str | None = None) -> None:
        super().__init__(spec, render_mode)
        self.observation_space, self.action_space = spec.observation_space, spec.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode, or with a seed the first one, as compiled environments do."""
        super().reset(seed=seed)
        self.begin(seed)
        return self.observation(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make one step."""
        return *self.advance({0: action})[0], {}


class PythonAgents(PythonForm):
    """One multi-agent environment, with the interface of PettingZoo's `ParallelEnv`."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - as PettingZoo has it
        "name": "compiled", "render_modes": ["rgb_array"], "render_fps": 20,
    }  # fmt: skip

    def __init__(self, spec: EnvironmentSpec, render_mode: str | None = None) -> None:
        super().__init__(spec, render_mode)
        self.possible_agents, self.state_space = list(spec.agents), spec.state_space

    @property
    def agents(self) -> list[str]:
        """The names of the present agents."""
        return [self.possible_agents[agent] for agent in np.flatnonzero(self.present)]

    def observation_space(self, agent: str) -> gym.spaces.Box:
        """The observation space of each agent."""
        return self.definition.observation_space

    def action_space(self, agent: str) -> "gym.Space[Any]":
        """The action space of each agent."""
        return self.definition.action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode, or with a seed the first one, as compiled environments do."""
        self.begin(seed)
        observations = {name: self.observation(agent) for agent, name in enumerate(self.possible_agents)}
        return observations, {name: {} for name in observations}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Make one step with the actions of all present agents."""
        there = np.flatnonzero(self.present).tolist()
        results = self.advance({agent: actions[self.possible_agents[agent]] for agent in there})
        named: dict[str, tuple[Any, ...]] = {
            self.possible_agents[agent]: (*result, {}) for agent, result in results.items()
        }
        return tuple({name: result[part] for name, result in named.items()} for part in range(5))

    def state(self) -> Array:
        """The result of `observe_state`, if the environment has a `state_space`."""
        assert self.state_space is not None
        return self._observed("observe_state", self.state_space, self.fields, self._length)

    def close(self) -> None:
        """Do nothing."""
