"""Copies of an environment, stepped one after the other in this process."""

from collections.abc import Callable
from math import isfinite
from typing import Any

import gymnasium as gym
import numpy as np

from hybridppo.environments.base import Step
from hybridppo.environments.checks import as_flag, require_same_spaces
from hybridppo.environments.options import OnEnvError
from hybridppo.environments.sub_environment import SubEnvironments, made_alike
from hybridppo.errors import ENV_FAILURES, BadValueError
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.checks import finite_test, require_finite
from hybridppo.spaces.kinds import each_of


class SyncEnvironments(SubEnvironments):
    """Steps each copy; a copy whose episode has ended is reset before `step` returns.

    Every row is a step, unless an environment was restarted. The arrays that `step` returns are copies of the
    environments' values; the next step overwrites all but final observations.

    Args:
        make: makes one environment.
        num_envs: number of environments.
        first: number of the first environment among those of the run, for messages.
        on_error: for an environment that fails or returns invalid values: "raise" an error, or "restart" it.

    Raises:
        EnvError: if the environments' spaces differ.
    """

    _has_infos = True

    def __init__(
        self, make: Callable[[], "gym.Env[Any, Any]"], num_envs: int, first: int = 0, on_error: OnEnvError = "raise"
    ) -> None:
        sub_environments = made_alike([make] * num_envs, require_same_spaces, first, on_error, gives_rows=True)
        model = sub_environments[0].env
        space = model.observation_space
        super().__init__(sub_environments, 1, space, model.action_space)
        self._shape = space.shape if isinstance(space, gym.spaces.Box) else None
        self._dtype = None if self._shape is None or self.encode.image is None else self.encode.dtype
        """The type of images, which other numbers would be cut to."""
        self._each_action = each_of(model.action_space)
        # Observations (arrays [N, *space], else rows [N, *obs]) and rewards [N] share one array, so that one test finds
        # numbers that are not finite. Bytes have a separate array, and a test of the numbers among them.
        shape = (num_envs, *(self._shape if self._shape is not None else self.encode.shape))
        is_float = not self.encode.layout.images
        size = int(np.prod(shape)) if is_float else 0
        self._numbers = np.zeros(size + num_envs, np.float32)
        self._rows = self._numbers[:size].reshape(shape) if is_float else np.zeros(shape, np.uint8)
        self._encoded = self.encode if self.encode.is_array else lambda rows: rows
        self._rewards = self._numbers[size:]
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        self._ended: list[int] = []
        """The environments whose episodes ended in the last step."""
        self._sum = finite_test(self._numbers.size)
        if self.encode.layout.images and self.encode.layout.num_numbers:
            self._sum = self._sum_with_bytes(self._sum, self.encode.finite_test(num_envs))

    def reset(self, seed: int) -> Array:  # noqa: D102 - as in the base
        self._num_steps = 0
        for i in range(self.num_envs):
            self._reset(i, seed + i)
        return self._encoded(self._rows).copy()

    def step(self, actions: Any) -> Step:
        """Final observations are the environments' own results of `step`."""
        rows, rewards, terminated, truncated = self._rows, self._rewards, self._terminated, self._truncated
        shape, dtype, infos, sub_environments = self._shape, self._dtype, self._infos, self.sub_environments
        for i in self._ended:  # in the last step
            terminated[i] = truncated[i] = False
        self._ended = ended = list[int]()
        if self.restarted:
            self.restarted = {}
        self._num_steps += 1
        for i, action in enumerate(self._each_action(actions)):
            try:
                observation, rewards[i], is_terminated, is_truncated, info = sub_environments[i].step(action)
                if shape is not None and getattr(observation, "shape", None) != shape:  # a list has none
                    observation = self.encode.checked(observation, bounds=False)
                if dtype is not None and observation.dtype != dtype:
                    observation = self.encode.checked(observation)
                rows[i] = observation
                if infos is not None:
                    infos.step(i, info)
                if is_terminated or is_truncated:
                    terminated[i] = as_flag("its terminated", is_terminated)
                    truncated[i] = as_flag("its truncated", is_truncated)
                    ended.append(i)
            except ENV_FAILURES as error:
                self._recover(i, action, error)
        if not isfinite(self._sum(self._numbers)):
            self._recover_from_numbers(actions)
        finals_of: list[int] = []
        finals: list[Array] = []
        for i in ended:
            if i in self.restarted:
                continue  # its last numbers were not finite
            if not terminated[i]:
                finals_of.append(i)
                finals.append(self._encoded(rows[i : i + 1])[0].copy())
            if infos is not None:
                infos.end(i)
            self._reset(i)
        return self._encoded(rows), rewards, terminated, truncated, finals_of, finals

    def _sum_with_bytes(self, of_rewards: Callable[[Array], Any], of_rows: Callable[[Array], Any]) -> Any:
        """A test of rewards, and of the numbers among the bytes of rows."""
        flat = self._rows.reshape(-1)
        return lambda numbers: of_rewards(numbers) + of_rows(flat)

    def _recover_from_numbers(self, actions: Any) -> None:
        for i, action in enumerate(self._each_action(actions)):
            try:
                self.encode.require_finite("its observation", self._rows[i])
                require_finite("its reward", self._rewards[i])
            except BadValueError as error:
                self._recover(i, action, error)
