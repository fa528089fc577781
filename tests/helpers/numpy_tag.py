"""Tag in vectorized NumPy, for `E` environments at once: compiled Tag is tested and measured against it.

Written independently, from the description in `examples/tagging.py`. All arrays are `[E, A]`, taggers first.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
F = np.float32


class NumpyTag:
    """Multi-agent environments; each starts a new episode when one is over.

    Args:
        num_envs: `E`.
            taggers: number of taggers.
            runners: number of runners.
            episode_length: steps.
            tagging_distance: a runner nearer than this is tagged.
            nearest: how many others each sees; 0 for all.
            exits: whether a tagged runner leaves.
            egocentric: whether others are seen from one's own heading.
            on_grid: squares from one side of the grid to the other; None for the plane.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        taggers: int = 10,
        runners: int = 100,
        episode_length: int = 500,
        tagging_distance: float = 0.02,
        nearest: int = 10,
        exits: bool = True,
        egocentric: bool = False,
        on_grid: int | None = None,
        levels: int = 21,
        max_acceleration: float = 0.004,
        max_turn: float = math.pi / 4,
        tagger_speed: float = 0.012,
        runner_speed: float = 0.012,
        unit: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.num_envs, self.taggers, self.num_agents = num_envs, taggers, taggers + runners
        self.episode_length, self.exits, self.on_grid = episode_length, exits, on_grid
        self.egocentric = egocentric
        self.near = F(tagging_distance) * F(tagging_distance)
        self.num_seen = self.num_agents - 1 if nearest == 0 else min(nearest, self.num_agents - 1)
        self.sees_all = nearest == 0
        self.middle = levels // 2
        self.acceleration, self.turn = F(max_acceleration / self.middle), F(max_turn / self.middle)
        speeds = [tagger_speed] * taggers + [runner_speed] * runners
        self.fastest = np.array(speeds, F)
        side = 1.0 if on_grid is None else on_grid - 1
        self.side, self.unit = F(1 / side), F(1 / (unit if on_grid is None else side))
        self.by_speed = F(1.0 if on_grid is not None else 1 / max(speeds))
        self.is_tagger = (np.arange(self.num_agents) < taggers).astype(F)
        self._random = np.random.default_rng(seed)
        shape = num_envs, self.num_agents
        self.x, self.y, self.speed, self.direction, self.x_speed, self.y_speed = (np.zeros(shape, F) for _ in range(6))
        self.heading_x, self.heading_y = np.zeros(shape, F), np.zeros(shape, F)
        self.in_game = np.ones(shape, np.bool_)
        self.time = np.zeros(num_envs, np.int64)
        others = [[other for other in range(self.num_agents) if other != agent] for agent in range(self.num_agents)]
        self._others = np.array(others)
        self.observations = np.zeros((*shape, 7 + 6 * self.num_seen), F)
        self._begin(np.ones(num_envs, np.bool_))
        self.observe()

    def _begin(self, which: Array) -> None:
        shape = int(which.sum()), self.num_agents
        if self.on_grid is None:
            self.x[which], self.y[which] = (self._random.random(shape, F) for _ in range(2))
            direction = self._random.random(shape, F) * F(2 * math.pi)
            self.direction[which] = direction
            self.heading_x[which], self.heading_y[which] = np.cos(direction), np.sin(direction)
        else:
            self.x[which], self.y[which] = (self._random.integers(0, self.on_grid, shape).astype(F) for _ in range(2))
        self.speed[which] = self.x_speed[which] = self.y_speed[which] = 0
        self.in_game[which], self.time[which] = True, 0

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        """Step by levels `[E, A, 2]` or moves `[E, A]`; returns observations, rewards, who ended, who was there."""
        was_there = self.in_game.copy()
        if self.on_grid is None:
            self._move(actions, was_there)
        else:
            self._go(actions, was_there)
        rewards = self._catch(was_there)
        self.time += 1
        is_late = self.time >= self.episode_length
        is_over = is_late | ~self.in_game[:, self.taggers :].any(1)
        survivors = is_late[:, None] & self.in_game[:, self.taggers :] & (rewards[:, self.taggers :] == 0)
        rewards[:, self.taggers :] += survivors
        ended = was_there & (is_over[:, None] | ~self.in_game)
        if is_over.any():
            self._begin(is_over)
        self.observe()
        return self.observations, rewards, ended, was_there

    def _move(self, actions: Array, there: Array) -> None:
        levels = (actions - self.middle).astype(F)
        speed = np.clip(self.speed + levels[..., 0] * self.acceleration, F(0), self.fastest)
        direction = self.direction + levels[..., 1] * self.turn
        direction[direction < 0] += F(2 * math.pi)
        direction[direction >= F(2 * math.pi)] -= F(2 * math.pi)
        heading_x, heading_y = np.cos(direction), np.sin(direction)
        x_speed, y_speed = speed * heading_x, speed * heading_y
        for name, now in (
            ("x", np.clip(self.x + x_speed, F(0), F(1))),
            ("y", np.clip(self.y + y_speed, F(0), F(1))),
            ("speed", speed), ("direction", direction), ("x_speed", x_speed), ("y_speed", y_speed),
            ("heading_x", heading_x), ("heading_y", heading_y),
        ):  # fmt: skip
            np.copyto(getattr(self, name), now, where=there)

    def _go(self, actions: Array, there: Array) -> None:
        assert self.on_grid is not None
        x = np.clip(self.x + (actions == 1) - (actions == 3), 0, self.on_grid - 1).astype(F)
        y = np.clip(self.y + (actions == 2) - (actions == 4), 0, self.on_grid - 1).astype(F)
        for name, now in (("x_speed", x - self.x), ("y_speed", y - self.y), ("x", x), ("y", y)):
            np.copyto(getattr(self, name), now, where=there)

    def _catch(self, was_there: Array) -> Array:
        taggers, runners = slice(None, self.taggers), slice(self.taggers, None)
        dx = self.x[:, None, taggers] - self.x[:, runners, None]  # [E, runners, taggers]
        dy = self.y[:, None, taggers] - self.y[:, runners, None]
        dx *= dx
        dy *= dy
        dx += dy
        who = dx.argmin(-1)
        least = np.take_along_axis(dx, who[..., None], -1)[..., 0]
        tagged = (least < self.near) & was_there[:, runners]
        rewards = np.zeros((self.num_envs, self.num_agents), F)
        envs, which = np.nonzero(tagged)
        np.add.at(rewards, (envs, who[envs, which]), 1.0)
        rewards[:, runners][tagged] = -1.0
        if self.exits:
            self.in_game[:, runners] &= ~tagged
        return rewards

    def observe(self) -> None:
        """Write the observations, with zeros for agents that have left."""
        out, seen = self.observations, self.num_seen
        out[..., 0], out[..., 1] = self.x * self.side, self.y * self.side
        out[..., 2] = self.speed * self.by_speed
        out[..., 3], out[..., 4] = self.heading_x, self.heading_y
        out[..., 5], out[..., 6] = self.is_tagger, (self.time * (1 / self.episode_length))[:, None]
        if self.sees_all:
            others = np.broadcast_to(self._others, (self.num_envs, *self._others.shape))
            there = self.in_game[:, None, :].repeat(self.num_agents, 1)
            there = np.take_along_axis(there, others, -1)
        else:
            distance = self.x[:, None, :] - self.x[:, :, None]
            distance *= distance
            dy = self.y[:, None, :] - self.y[:, :, None]
            dy *= dy
            distance += dy
            np.copyto(distance, np.inf, where=~self.in_game[:, None, :])
            distance[:, np.arange(self.num_agents), np.arange(self.num_agents)] = np.inf
            if seen < self.num_agents - 1:
                others = np.sort(np.argpartition(distance, seen, -1)[..., :seen], -1)
                of_others = np.take_along_axis(distance, others, -1)
            else:
                others, of_others = np.broadcast_to(np.arange(self.num_agents), distance.shape), distance
            order = of_others.argsort(-1, kind="stable")[..., :seen]
            others = np.take_along_axis(others, order, -1)
            there = np.isfinite(np.take_along_axis(of_others, order, -1))
        rows = np.arange(self.num_envs)[:, None, None]
        parts = out[..., 7:].reshape(self.num_envs, self.num_agents, seen, 6)
        parts[..., 0] = (self.x[rows, others] - self.x[..., None]) * self.unit
        parts[..., 1] = (self.y[rows, others] - self.y[..., None]) * self.unit
        parts[..., 2], parts[..., 3] = (
            self.x_speed[rows, others] * self.by_speed,
            self.y_speed[rows, others] * self.by_speed,
        )
        if self.egocentric:
            ahead, left = self.heading_x[..., None], self.heading_y[..., None]
            for to_x in (0, 2):
                along_x, along_y = parts[..., to_x].copy(), parts[..., to_x + 1].copy()
                parts[..., to_x] = along_x * ahead + along_y * left
                parts[..., to_x + 1] = along_y * ahead - along_x * left
        parts[..., 4], parts[..., 5] = self.is_tagger[others], 1.0
        parts *= there[..., None]
        out[..., 7:] = parts.reshape(*out.shape[:2], -1)
        out[~self.in_game] = 0
