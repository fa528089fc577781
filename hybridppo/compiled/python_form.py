"""A compiled environment that Python steps, from the same source and without Numba, to explain errors.

    environment = CartPole()                    # a `PythonForm`; of several agents, `PythonAgents`
    problems = phases_that_race(definition)

Compiled code would not notice some errors: an unknown field, an entry of an observation that is not written, a boolean
in place of a reward. Here, an `EnvError` names the function and its line.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from hybridppo.compiled.random_numbers import NUM_WORDS, begin, begin_agent
from hybridppo.errors import EnvError, EnvStateError, shown
from hybridppo.spaces.arrays import Array

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


class State(np.record):  # type: ignore[misc]  # final in NumPy's stubs alone
    """The state of one environment. Fields are attributes, even under a name that NumPy uses."""

    def __getattribute__(self, name: str) -> Any:
        fields = np.void.__getattribute__(self, "dtype").names
        if name in fields:
            return self[name]
        try:
            return np.void.__getattribute__(self, name)
        except AttributeError:
            raise AttributeError(unknown_field(name, fields)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        fields = np.void.__getattribute__(self, "dtype").names
        if name not in fields:
            raise AttributeError(unknown_field(name, fields))
        self[name] = value


def unknown_field(name: str, fields: tuple[str, ...]) -> str:
    """The message for an unknown field."""
    return f"the state has no field {name!r}: its fields are {', '.join(fields)}"


def states_of(spec: EnvironmentSpec, content: bytes | None = None) -> Array:
    """The state of one environment, `[1]`: zeros, or these values."""
    dtype = np.dtype((State, spec.state))
    return np.zeros(1, dtype) if content is None else np.frombuffer(bytearray(content), dtype)


def observed(spec: EnvironmentSpec, name: str, size: int, observe: Callable[[Array], Any]) -> Array:
    """The numbers that `observe` writes, which calls the environment's function of this name.

    Raises:
        EnvError: with the first number that is not written.
    """
    out = np.full(size, np.nan, np.float32)
    observe(out)
    if np.isnan(out).any():
        again = np.zeros_like(out)
        observe(again)
        forgotten = np.flatnonzero(np.isnan(out) & ~np.isnan(again))  # unless it writes NaN itself
        if len(forgotten):
            what = "an observation" if name == "observe" else "a state"
            raise EnvError(
                f"{place_of(spec, name)} does not write out[{forgotten[0]}]: {what} has {size} numbers, write each of "
                "them on every path"
            )
    return out


def reward_and_end(spec: EnvironmentSpec, name: str, returned: Any) -> tuple[float, bool]:
    """The reward and the boolean that `step` or `reward` returned.

    Raises:
        EnvError: if it returned anything else.
    """
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not is_pair or not _is_number(returned[0]) or not isinstance(returned[1], bool | np.bool_):
        raise EnvError(f"{place_of(spec, name)} returned {_shown(returned)}: {wanted_of(name)}")
    return float(returned[0]), bool(returned[1])


def truth(spec: EnvironmentSpec, name: str, returned: Any) -> bool:
    """The boolean that `end` returned.

    Raises:
        EnvError: if it returned anything else.
    """
    if not isinstance(returned, bool | np.bool_):
        raise EnvError(f"{place_of(spec, name)} returned {_shown(returned)}: {wanted_of(name)}")
    return bool(returned)


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _shown(returned: Any) -> str:
    """A value without NumPy's type names."""
    if isinstance(returned, tuple):
        return shown(tuple(part.item() if isinstance(part, np.generic) else part for part in returned))
    return shown(returned.item() if isinstance(returned, np.generic) else returned)


class _Stepped:
    """Common parts of the forms for one and for several agents: state, random numbers, saving, pictures."""

    def __init__(self, spec: EnvironmentSpec, render_mode: str | None = None) -> None:
        self.definition, self.render_mode = spec, render_mode
        self._states = states_of(spec)
        self._randoms = np.zeros((max(1, len(spec.agents)), NUM_WORDS), np.int64)
        self._length = 0
        self._has_begun = False

    @property
    def fields(self) -> Any:
        """The fields by name; with several agents, arrays over agents."""
        return self._states[0]

    def _begin_episode(self, seed: int | None) -> None:
        """Begin the random numbers of the next episode, or with a seed those of its first episode."""
        if seed is not None or not self._has_begun:
            seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
            for random in self._randoms:
                begin(random, seed)
            self._has_begun = True
        else:
            self._randoms[:, 2] += 1
            self._randoms[:, 3] = 0
        self._length = 0

    def _is_cut(self) -> bool:
        return 0 < self.definition.episode_length <= self._length

    def render(self) -> Any:
        """The present picture, `[height, width, 3]`; None without `render_mode`."""
        draw = self.definition.draw
        if self.render_mode is None or draw is None:
            return None
        return draw(self.fields, self._length) if self.definition.policies else draw(self.fields)

    def get_state(self) -> dict[str, Any]:
        """The state for an exact resume."""
        return {"state": self._states.tobytes(), "random": self._randoms.tolist(), "length": self._length}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        if len(state["state"]) != self._states.nbytes:
            raise EnvStateError(f"the saved state is not one of {self.definition.name}")
        self._states = states_of(self.definition, state["state"])
        self._randoms[:] = state["random"]
        self._length, self._has_begun = int(state["length"]), True


class PythonForm(_Stepped, gym.Env[Any, Any]):
    """One environment with gymnasium's interface."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, spec: EnvironmentSpec, render_mode: str | None = None) -> None:
        super().__init__(spec, render_mode)
        self.observation_space, self.action_space = spec.observation_space, spec.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode, or with a seed its first one, as compiled environments do."""
        super().reset(seed=seed)
        self._begin_episode(seed)
        self.definition.functions["reset"](self.fields, self._randoms[0])
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make one step."""
        action = int(action) if self.definition.action_kind == "choice" else np.asarray(action)
        returned = self.definition.functions["step"](self.fields, action, self._randoms[0])
        reward, terminated = reward_and_end(self.definition, "step", returned)
        self._length += 1
        return self._observation(), reward, terminated, self._is_cut(), {}

    def _observation(self) -> Array:
        spec = self.definition
        size = spec.observation_space.shape[0]
        return observed(spec, "observe", size, lambda out: spec.functions["observe"](self.fields, out))


class PythonAgents(_Stepped):
    """One environment of several agents, with the interface of PettingZoo's `ParallelEnv`."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - as PettingZoo has it
        "name": "compiled", "render_modes": ["rgb_array"], "render_fps": 20,
    }  # fmt: skip

    def __init__(self, spec: EnvironmentSpec, render_mode: str | None = None) -> None:
        super().__init__(spec, render_mode)
        self.possible_agents = list(spec.agents)
        self.agents: list[str] = []
        self._present = np.zeros(len(self.possible_agents), np.bool_)
        self.state_space = spec.state_space

    def observation_space(self, agent: str) -> gym.spaces.Box:
        """The observation space of each agent."""
        return self.definition.observation_space

    def action_space(self, agent: str) -> "gym.Space[Any]":
        """The action space of each agent."""
        return self.definition.action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode, or with a seed its first one, as compiled environments do."""
        self._begin_episode(seed)
        self._present[:] = True
        self.agents = [name for _, name in self._those_there()]
        for agent, random in enumerate(self._randoms):
            begin_agent(random, agent)
            self.definition.functions["reset"](agent, self.fields, random)
        observations = {name: self._observation(agent) for agent, name in self._those_there()}
        return observations, {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Make one step with the actions of all present agents."""
        functions, there = self.definition.functions, self._those_there()
        is_choice = self.definition.action_kind == "choice"
        of_agents = {agent: int(actions[name]) if is_choice else np.asarray(actions[name]) for agent, name in there}
        for phase in self.definition.phases:
            self._run(functions[phase], of_agents)
        self._length += 1
        is_over = truth(self.definition, "end", functions["end"](self.fields, self._length))
        is_cut = self._is_cut()
        observations, rewards, terminations, truncations = {}, {}, {}, {}
        for agent, name in there:
            returned = functions["reward"](agent, self.fields, self._length)
            rewards[name], has_left = reward_and_end(self.definition, "reward", returned)
            terminations[name] = terminated = has_left or is_over
            truncations[name] = is_cut and not terminated
            observations[name] = self._observation(agent)
            self._present[agent] = not (terminated or is_cut)
        self.agents = [name for _, name in self._those_there()]
        return observations, rewards, terminations, truncations, {name: {} for _, name in there}

    def _run(self, phase: Any, actions: dict[int, Any]) -> None:
        for agent, action in actions.items():
            phase(agent, self.fields, action, self._randoms[agent])

    def get_state(self) -> dict[str, Any]:
        """The state for an exact resume."""
        return {**super().get_state(), "present": self._present.tolist()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        super().set_state(state)
        self._present[:] = state["present"]
        self.agents = [name for _, name in self._those_there()]

    def state(self) -> Array:
        """The result of `observe_state`, if the environment has a `state_space`."""
        assert self.state_space is not None
        observe, size = self.definition.functions["observe_state"], self.state_space.shape[0]
        return observed(self.definition, "observe_state", size, lambda out: observe(self.fields, self._length, out))

    def close(self) -> None:
        """Do nothing."""

    def _those_there(self) -> list[tuple[int, str]]:
        return [(agent, self.possible_agents[agent]) for agent in np.flatnonzero(self._present).tolist()]

    def _observation(self, agent: int) -> Array:
        spec = self.definition
        observe, size = spec.functions["observe"], spec.observation_space.shape[0]
        return observed(spec, "observe", size, lambda out: observe(agent, self.fields, self._length, out))


class _InAnyOrder(PythonAgents):
    """Runs each phase twice from the same state, with two orders of agents, and notes differences."""

    def __init__(self, definition: EnvironmentSpec, seed: int) -> None:
        super().__init__(definition)
        self._order = np.random.default_rng(seed)
        self.problems: dict[str, str] = {}

    def _run(self, phase: Any, actions: dict[int, Any]) -> None:
        before, randoms = self._states.copy(), self._randoms.copy()
        super()._run(phase, actions)
        once, drawn = self._states.copy(), self._randoms.copy()
        self._states[:], self._randoms[:] = before, randoms
        super()._run(phase, {agent: actions[agent] for agent in self._order.permutation(list(actions)).tolist()})
        for name in self.definition.state.names or ():
            one, other = once[name][0], self._states[name][0]
            if not np.array_equal(one, other, equal_nan=True):
                agent = int(np.argwhere(one != other)[0][0])
                self.problems.setdefault(
                    phase.__name__,
                    f"phase {phase.__name__} gives another {name} of {self.possible_agents[agent]} where agents act in "
                    "another order: a phase may write its own agent's fields alone, and of others read only fields "
                    "that no agent writes in it (make two phases of it)",
                )
        self._states[:], self._randoms[:] = once, drawn


def phases_that_race(definition: EnvironmentSpec, steps: int = 50, seed: int = 0) -> list[str]:
    """Differences between orders of agents in a definition's phases, which must not exist.

    Args:
        definition: a definition with several agents.
        steps: number of random steps; each phase of a step is run twice.
        seed: seed of starts, actions and orders.

    Returns:
        A sentence for each phase that depends on the order.
    """
    environment = _InAnyOrder(definition, seed)
    space = definition.action_space
    space.seed(seed)
    environment.reset(seed=seed)
    for _ in range(steps):
        if not environment.agents:
            environment.reset()
        environment.step({agent: space.sample() for agent in environment.agents})
    return list(environment.problems.values())
