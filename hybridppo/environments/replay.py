"""Resume by replay: a new environment repeats the episode in which another was saved.

It is reset with the random generators from before the reset of that episode, and repeats the actions since. This also
restores states that only C++ knows, such as that of a simulator. Plain data is written (`state.py`).
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridppo.environments.base import EnvState, columns_of
from hybridppo.environments.checks import describe_error
from hybridppo.environments.state import (
    REMEDY,
    Walk,
    decoded,
    encoded,
    generators_of,
    require_same,
    set_generator,
    state_of_generator,
    write,
)
from hybridppo.errors import ENV_FAILURES, EnvStateError
from hybridppo.spaces.arrays import Array

MAX_SECONDS = 60.0
"""An episode whose sampling took longer is not replayed."""
OTHER_ROWS = (
    "the replay of its episode led to another observation: it draws from a global generator, or something that lives "
    "across episodes is not plain data"
)


class EpisodeStart:
    """How the present episode of an environment began."""

    def __init__(self) -> None:
        self._start: dict[str, Any] = {}
        """The seed and the options of the reset, and the states of random generators before it."""
        self._began: dict[str, str] = {}
        """Digests of the data after the first reset."""
        self._generators: list[tuple[str, Any, Any]] = []
        self._resets = 0

    def note(self, env: Any, seed: int | None, options: dict[str, Any] | None) -> None:
        """Note what a replay of the episode needs, before the reset that begins it."""
        if self._resets < 2:  # gymnasium makes its generator in the first
            self._resets += 1
            with contextlib.suppress(EnvStateError):  # `state` raises it again
                self._generators = generators_of(env)
        random = {}
        for path, owner, key in self._generators:
            with contextlib.suppress(KeyError, IndexError):  # it has gone
                random[path] = state_of_generator(owner[key])
        self._start = {"seed": seed, "options": options, "random": random}

    def find_generators_again(self) -> None:
        """The environment is a new one."""
        self._resets = 0

    def remember(self, env: Any) -> None:
        """Remember the data after the first reset: `state` leaves out what has not changed since."""
        self._began = self._began or Walk(env).digests()

    def state(self, env: Any) -> dict[str, Any]:
        """The state of an environment for `restore`: its plain data, and the start of its episode."""
        walk = Walk(env)
        return {"leaves": walk.since(self._began), "hidden": walk.hidden[:1], "started": encoded(self._start)}

    def restore(
        self,
        env: Any,
        saved: dict[str, Any],
        actions: Sequence[Any] | None,
        reset: Callable[[int | None, dict[str, Any] | None], Any],
        step: Callable[[Any], Any],
        is_as_saved: Callable[[Any], bool],
    ) -> None:
        """Restore the result of `state` in a new environment that was reset.

        If all of it is plain data, the data is written. Otherwise, the episode is replayed, and then the data written.

        Args:
            env: the environment.
            saved: the state.
            actions: the actions of its episode; None if they were not saved.
            reset: resets the environment, and returns its rows.
            step: its `step`.
            is_as_saved: whether the last rows of a replay are those that were saved; None for those of the reset.

        Raises:
            EnvStateError: if the state does not fit, or the episode cannot be replayed.
        """
        start, hidden, problem = decoded(saved["started"]), saved["hidden"], "its actions were not saved"
        has_begun = bool(hidden) and saved["started"] == encoded(self._start)  # with all that no walk finds
        require_same(env, saved["leaves"])
        if not has_begun:
            self._start = start
            try:
                write(env, saved["leaves"])
                if not hidden:
                    return
            except EnvStateError as error:  # what it names may come to exist in the replay
                problem = str(error)
        if actions is None:
            raise EnvStateError(problem)
        if hidden and not has_begun and start["seed"] is None and not start["random"]:
            raise EnvStateError(f"it has no random generator that the library knows, and {hidden[0]}: {REMEDY}")
        rows = None
        try:
            if not has_begun:
                for path, owner, key in generators_of(env):
                    if path in start["random"]:
                        set_generator(owner[key], start["random"][path])
                rows = reset(start["seed"], start["options"])
            for action in actions:
                rows = step(action)[0]
        except ENV_FAILURES as error:
            raise EnvStateError(f"its episode cannot be replayed: {describe_error(error)}") from error
        if not is_as_saved(rows):
            raise EnvStateError(f"{OTHER_ROWS} ({' '.join(hidden)}): {REMEDY}")
        write(env, saved["leaves"])


class ActionHistory:
    """The last actions of environments that may have to replay them."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[Array, float]] = deque()

    def add(self, actions: Array, seconds: float, longest: int | None) -> None:
        """Add the actions of some steps.

        Args:
            actions: `[t, N, *action]`; copied.
            seconds: how long the steps took.
            longest: steps of the longest unfinished episode; older actions are dropped. None if it is not known.
        """
        self._blocks.append((actions.copy(), seconds))
        steps, total = sum(len(block) for block, _ in self._blocks), sum(taken for _, taken in self._blocks)
        while len(self._blocks) > 1:
            block, taken = self._blocks[0]
            if total <= MAX_SECONDS and (longest is None or steps - len(block) < longest):
                break
            self._blocks.popleft()
            steps, total = steps - len(block), total - taken

    def put_into(self, states: list[EnvState]) -> None:
        """Add the actions of its episode to each state.

        Raises:
            EnvStateError: if a state that is not plain data has an episode that is too long.
        """
        block = np.concatenate([block for block, _ in self._blocks]) if self._blocks else None
        for number, (state, columns) in enumerate(zip(states, columns_of(states), strict=True)):
            steps = state.get("episode_steps", 0)
            if block is not None and 0 < steps <= len(block):
                state["actions"] = encoded(block[len(block) - steps :, columns])
            elif steps and (hidden := state["state"]["hidden"]):
                raise EnvStateError(
                    f"the episode of environment {number} of {len(states)} takes more than {MAX_SECONDS:g} seconds, "
                    f"too long to be replayed, and {hidden[0]}: {REMEDY}"
                )

    def take_from(self, states: list[EnvState], row: Array) -> Array:
        """The actions of saved states, `[t, N, *action]`, in their last steps; they become the history.

        Args:
            states: the states.
            row: `[N, *action]`, for the steps before an environment's episode.
        """
        found = [decoded(state["actions"]) if "actions" in state else row[:0, None] for state in states]
        actions = np.repeat(row[None], max(map(len, found), default=0), 0)
        for own, columns in zip(found, columns_of(states), strict=True):
            if len(own):
                actions[len(actions) - len(own) :, columns] = own
        self._blocks.clear()
        self.add(actions, 0.0, None)
        return actions
