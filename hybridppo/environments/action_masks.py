"""Environments whose observations say which actions are allowed."""

from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from hybridppo.errors import BadValueError, EnvError
from hybridppo.spaces.checks import checked_observation
from hybridppo.spaces.masks import MaskedObservation

Array = NDArray[Any]


class MaskInObservation(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with the mask that it gives in `info["action_mask"]` as a part of its observations.

    Raises:
        EnvError: where its actions are not choices, which alone can be masked.
    """

    def __init__(self, env: "gym.Env[Any, Any]") -> None:
        super().__init__(env)
        if not isinstance(env.action_space, gym.spaces.Discrete):
            raise EnvError(
                f"action_masks=True needs a Discrete action space, and this one is {env.action_space}: leave it out"
            )
        self._space = MaskedObservation(env.observation_space, int(env.action_space.n))
        self.observation_space = self._space
        self._has_begun = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The row of the first observation.

        Raises:
            BadValueError: where it has no mask of its actions, or one that allows none.
        """
        result: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            return cast("tuple[Any, dict[str, Any]]", result)  # which is refused as it would be without masks
        observation, info = result
        if not self._has_begun:
            self._has_begun = True
            observation = checked_observation(self._space.observation, observation)
        return self._row(observation, info), info

    def step(self, action: Any) -> Any:
        """The row of the next observation.

        Raises:
            BadValueError: likewise, but where the episode has ended: nothing is to be done there.
        """
        result: Any = self.env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        observation, reward, terminated, truncated, info = result
        has_ended = bool(np.any(terminated) or np.any(truncated))
        return self._row(observation, info, has_ended), reward, terminated, truncated, info

    def _row(self, observation: Any, info: Any, has_ended: bool = False) -> Array:
        mask = info.get("action_mask") if isinstance(info, dict) else None
        if mask is None and has_ended:
            mask = np.zeros(self._space.num_actions, np.int8)
        if mask is None:
            raise BadValueError(
                f"its info has no 'action_mask' ({f'it has {sorted(map(str, info))}' if info else 'it is empty'}): put "
                "it there, or leave action_masks out"
            )
        row = self._space.row(observation, mask)
        if not (has_ended or row[-self._space.num_actions :].any()):
            raise BadValueError("its action mask allows no action, and the episode has not ended")
        return row
