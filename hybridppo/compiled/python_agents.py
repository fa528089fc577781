"""A compiled environment of several agents as PettingZoo has it, stepped by Python: for looking into, and for checking.

problems = phases_that_race(definition)
"""

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.compiled.checked import observed, reward_and_end, states_of, truth
from hybridppo.compiled.random_numbers import NUM_WORDS, begin, begin_agent
from hybridppo.errors import EnvStateError

if TYPE_CHECKING:
    from hybridppo.compiled.definition import Definition

Array = NDArray[Any]


class PythonAgents:
    """One environment of a definition, with the methods of PettingZoo's `ParallelEnv`."""

    metadata: dict[str, Any] = {  # noqa: RUF012 - as PettingZoo has it
        "name": "compiled", "render_modes": ["rgb_array"], "render_fps": 20,
    }  # fmt: skip

    def __init__(self, definition: "Definition", render_mode: str | None = None) -> None:
        self.definition, self.render_mode = definition, render_mode
        self.possible_agents = list(definition.agents)
        self.agents: list[str] = []
        num_agents = len(self.possible_agents)
        self._states = states_of(definition)
        self._randoms = np.zeros((num_agents, NUM_WORDS), np.int64)
        self._present = np.zeros(num_agents, np.bool_)
        self._length = 0
        self._has_begun = False
        self._phases = [definition.functions[name] for name in definition.phases]

    def observation_space(self, agent: str) -> gym.spaces.Box:
        """Of each agent."""
        return self.definition.observation_space

    def action_space(self, agent: str) -> "gym.Space[Any]":
        """Of each agent."""
        return self.definition.action_space

    @property
    def fields(self) -> Any:
        """The fields by name, an array of all agents each."""
        return self._states[0]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The next episode; with a seed, the first one of it, as compiled environments have it."""
        if seed is not None or not self._has_begun:
            seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
            for random in self._randoms:
                begin(random, seed)
            self._has_begun = True
        else:
            self._randoms[:, 2] += 1
        self._length = 0
        self._present[:] = True
        self.agents = [name for _, name in self._those_there()]
        for agent, random in enumerate(self._randoms):
            begin_agent(random, agent)
            self.definition.functions["reset"](agent, self.fields, random)
        return {name: self._observation(agent) for agent, name in self._those_there()}, {
            name: {} for name in self.agents
        }

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """One step by the actions of all that are there."""
        functions, there = self.definition.functions, self._those_there()
        is_choice = self.definition.action_kind == "choice"
        of_agents = {agent: int(actions[name]) if is_choice else np.asarray(actions[name]) for agent, name in there}
        for phase in self._phases:
            self._run(phase, of_agents)
        self._length += 1
        is_over = truth(self.definition, "end", functions["end"](self.fields, self._length))
        is_cut = 0 < self.definition.episode_length <= self._length
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

    def render(self) -> Any:
        """The picture of now, `[height, width, 3]`; None where none was asked for."""
        draw = self.definition.draw
        return None if self.render_mode is None or draw is None else draw(self.fields, self._length)

    def get_state(self) -> dict[str, Any]:
        """All that it is in the middle of."""
        return {
            "state": self._states.tobytes(),
            "random": self._randoms.tolist(),
            "present": self._present.tolist(),
            "length": self._length,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from it."""
        if len(state["state"]) != self._states.nbytes:
            raise EnvStateError(f"the state that was saved is not one of {self.definition.name}")
        self._states = states_of(self.definition, state["state"])
        self._randoms[:], self._present[:] = state["random"], state["present"]
        self._length, self._has_begun = int(state["length"]), True
        self.agents = [name for _, name in self._those_there()]

    def close(self) -> None:
        """Nothing is held."""

    def _those_there(self) -> list[tuple[int, str]]:
        return [(agent, self.possible_agents[agent]) for agent in np.flatnonzero(self._present).tolist()]

    def _observation(self, agent: int) -> Array:
        observe = self.definition.functions["observe"]
        return observed(self.definition, lambda out: observe(agent, self.fields, self._length, out))


class _InAnyOrder(PythonAgents):
    """Runs each phase twice from the same state, in two orders of its agents, and notes what differs."""

    def __init__(self, definition: "Definition", seed: int) -> None:
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


def phases_that_race(definition: "Definition", steps: int = 50, seed: int = 0) -> list[str]:
    """What is wrong with a definition's phases: run in random order of agents, each must do the same.

    Args:
        definition: of several agents.
        steps: with random actions, each phase run twice.
        seed: of starts, actions and orders.

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
