"""A compiled environment as gymnasium has it, stepped by Python: the same source without Numba, for looking into."""

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.compiled.checked import observed, reward_and_end, states_of
from hybridppo.compiled.random_numbers import NUM_WORDS, begin
from hybridppo.errors import EnvStateError

if TYPE_CHECKING:
    from hybridppo.compiled.definition import Definition


class PythonForm(gym.Env[Any, Any]):
    """One environment of a definition."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, definition: "Definition", render_mode: str | None = None) -> None:
        self.definition, self.render_mode = definition, render_mode
        self.observation_space, self.action_space = definition.observation_space, definition.action_space
        self._states = states_of(definition)
        self._random = np.zeros(NUM_WORDS, np.int64)
        self._length = 0
        self._has_begun = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The next episode; with a seed, the first one of it, as compiled environments have it."""
        super().reset(seed=seed)
        if seed is not None or not self._has_begun:
            begin(self._random, int(self.np_random.integers(2**32)) if seed is None else seed)
            self._has_begun = True
        else:
            self._random[2] += 1
            self._random[3] = 0
        self._length = 0
        self.definition.reset(self._states[0], self._random)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        action = int(action) if self.definition.action_kind == "choice" else np.asarray(action)
        returned = self.definition.step(self._states[0], action, self._random)
        reward, terminated = reward_and_end(self.definition, "step", returned)
        self._length += 1
        is_cut = 0 < self.definition.episode_length <= self._length
        return self._observation(), reward, terminated, is_cut, {}

    def render(self) -> Any:
        """The picture of now, `[height, width, 3]`; None where none was asked for."""
        return (
            None if self.render_mode is None or self.definition.draw is None else self.definition.draw(self._states[0])
        )

    def get_state(self) -> dict[str, Any]:
        """All that it is in the middle of."""
        return {"state": self._states.tobytes(), "random": self._random.tolist(), "length": self._length}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from it."""
        if len(state["state"]) != self._states.nbytes:
            raise EnvStateError(f"the state that was saved is not one of {self.definition.name}")
        self._states = states_of(self.definition, state["state"])
        self._random[:] = state["random"]
        self._length, self._has_begun = int(state["length"]), True

    def _observation(self) -> NDArray[Any]:
        return observed(self.definition, lambda out: self.definition.observe(self._states[0], out))
