"""MPE2's `simple_spread` and `simple_tag` with their physics compiled: the same transitions, many times faster.

    python benchmarks/particles.py

plays both beside MPE2's own, and fails if a number differs by more than rounding. Benchmarks that need millions of
steps learn in these: MPE2 would take most of a training's time, and only how well agents learn is compared. Needs Numba
and MPE2.
"""

import time
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import seeding
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]
DT, DAMPING, CONTACT_FORCE, CONTACT_MARGIN = 0.1, 0.25, 1e2, 1e-3


@njit(cache=True)
def _move(places: Array, speeds: Array, forces: Array, sizes: Array, limits: Array, collides: Array) -> None:
    """`World.step`: the agents come first among `places`, `sizes` and `collides`, then the landmarks, which stay."""
    agents, entities = len(speeds), len(places)
    for a in range(entities):
        for b in range(a + 1, entities):
            if not (collides[a] and collides[b]) or a >= agents:
                continue
            x, y = places[a, 0] - places[b, 0], places[a, 1] - places[b, 1]
            distance = np.sqrt(x * x + y * y)
            depth = -(distance - (sizes[a] + sizes[b])) / CONTACT_MARGIN
            soft = max(depth, 0.0) + np.log1p(np.exp(-abs(depth)))
            penetration = soft * CONTACT_MARGIN
            push_x = CONTACT_FORCE * x / distance * penetration
            push_y = CONTACT_FORCE * y / distance * penetration
            forces[a, 0] += push_x
            forces[a, 1] += push_y
            if b < agents:
                forces[b, 0] -= push_x
                forces[b, 1] -= push_y
    for a in range(agents):
        for of in range(2):
            places[a, of] += speeds[a, of] * DT
            speeds[a, of] = speeds[a, of] * (1 - DAMPING) + forces[a, of] * DT
        if limits[a] > 0:
            speed = np.sqrt(speeds[a, 0] ** 2 + speeds[a, 1] ** 2)
            if speed > limits[a]:
                for of in range(2):
                    speeds[a, of] = speeds[a, of] / speed * limits[a]


@njit(cache=True)
def _touch(places: Array, sizes: Array, a: int, b: int) -> bool:
    x, y = places[a, 0] - places[b, 0], places[a, 1] - places[b, 1]
    return bool(np.sqrt(x * x + y * y) < sizes[a] + sizes[b])


@njit(cache=True)
def _spread_rewards(places: Array, sizes: Array, agents: int, rewards: Array) -> None:
    shared = 0.0
    for landmark in range(agents, len(places)):
        nearest = np.inf
        for a in range(agents):
            x, y = places[a, 0] - places[landmark, 0], places[a, 1] - places[landmark, 1]
            nearest = min(nearest, np.sqrt(x * x + y * y))
        shared -= nearest
    for a in range(agents):
        own = 0.0
        for b in range(agents):
            if a != b and _touch(places, sizes, a, b):
                own -= 1.0
        rewards[a] = shared * 0.5 + own * 0.5


@njit(cache=True)
def _tag_rewards(places: Array, sizes: Array, agents: int, rewards: Array) -> None:
    """Rewards of `simple_tag`; the last agent is the runner."""
    runner, caught = agents - 1, 0.0
    for a in range(runner):
        caught += 10.0 if _touch(places, sizes, runner, a) else 0.0
    outside = 0.0
    for of in range(2):
        x = abs(places[runner, of])
        if x >= 1.0:
            outside += min(np.exp(2 * x - 2), 10.0)
        elif x >= 0.9:
            outside += (x - 0.9) * 10
    rewards[:runner] = caught
    rewards[runner] = -caught - outside


@njit(cache=True)
def _observe(places: Array, speeds: Array, runners: int, seen: Array) -> None:
    """Rows of speed, place, landmarks, others, and the speeds of other runners; the rest of a row stays 0."""
    agents = len(speeds)
    for a in range(agents):
        seen[a, 0], seen[a, 1], seen[a, 2], seen[a, 3] = speeds[a, 0], speeds[a, 1], places[a, 0], places[a, 1]
        at = 4
        for landmark in range(agents, len(places)):
            seen[a, at], seen[a, at + 1] = places[landmark, 0] - places[a, 0], places[landmark, 1] - places[a, 1]
            at += 2
        for b in range(agents):
            if b != a:
                seen[a, at], seen[a, at + 1] = places[b, 0] - places[a, 0], places[b, 1] - places[a, 1]
                at += 2
        for b in range(agents - runners, agents):
            if b != a:
                seen[a, at], seen[a, at + 1] = speeds[b, 0], speeds[b, 1]
                at += 2


class Particles:
    """Like `parallel_env()` of MPE2.

    Args:
        game: "spread", of 3 agents and 3 landmarks, or "tag", of 3 taggers, a runner and 2 landmarks.
        max_cycles: steps of an episode.
    """

    def __init__(self, game: str, max_cycles: int = 25) -> None:
        self._is_tag, self._max_cycles = game == "tag", max_cycles
        names = (
            ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
            if self._is_tag
            else ["agent_0", "agent_1", "agent_2"]
        )
        self.possible_agents, self.agents = names, list(names)
        count, landmarks = len(names), 2 if self._is_tag else 3
        self._runners = 1 if self._is_tag else 0
        sizes = [0.075] * 3 + [0.05] + [0.2] * 2 if self._is_tag else [0.15] * 3 + [0.05] * 3
        collides = [self._is_tag or entity < count for entity in range(count + landmarks)]
        self._sizes, self._collides = np.array(sizes), np.array(collides)
        self._powers = np.array([3.0] * 3 + [4.0] if self._is_tag else [5.0] * 3)
        self._limits = np.array([1.0] * 3 + [1.3] if self._is_tag else [0.0] * 3)
        self._places, self._speeds = np.zeros((count + landmarks, 2)), np.zeros((count, 2))
        self._rewards, self._steps = np.zeros(count), 0
        most = 4 + 2 * landmarks + 2 * (count - 1)
        widths = [most + 2 * (self._runners - (a >= count - self._runners)) for a in range(count)]
        self._widths = widths if self._is_tag else [most + 2 * (count - 1)] * count  # what the silent others say
        self._seen = np.zeros((count, max(self._widths)))
        self._spaces = [Box(-np.inf, np.inf, (width,), np.float32) for width in self._widths]
        self.state_space = Box(-np.inf, np.inf, (sum(self._widths),), np.float32)
        self.np_random, _ = seeding.np_random(None)

    def observation_space(self, agent: str) -> Box:  # noqa: D102 - PettingZoo's
        return self._spaces[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Discrete:  # noqa: D102 - PettingZoo's
        return Discrete(5)

    def state(self) -> Array:
        """The observations of all agents, one after the other."""
        return np.concatenate(list(self._observations().values()))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:  # noqa: D102 - PettingZoo's
        if seed is not None:
            self.np_random, _ = seeding.np_random(seed)
        self.agents, self._steps = list(self.possible_agents), 0
        self._speeds[:] = 0
        for entity in range(len(self._places)):
            bound = 0.9 if self._is_tag and entity >= len(self._speeds) else 1.0
            self._places[entity] = self.np_random.uniform(-bound, bound, 2)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:  # noqa: D102 - PettingZoo's
        forces = PUSHES[[int(actions[agent]) for agent in self.agents]] * self._powers[:, None]
        _move(self._places, self._speeds, forces, self._sizes, self._limits, self._collides)
        rewards = _tag_rewards if self._is_tag else _spread_rewards
        rewards(self._places, self._sizes, len(self._speeds), self._rewards)
        self._steps += 1
        is_over = self._steps >= self._max_cycles
        found: tuple[Any, ...] = (
            self._observations(),
            dict(zip(self.agents, self._rewards.tolist(), strict=True)),
            dict.fromkeys(self.agents, False),
            dict.fromkeys(self.agents, is_over),
            {agent: {} for agent in self.agents},
        )
        if is_over:
            self.agents = []
        return found

    def close(self) -> None:  # noqa: D102 - PettingZoo's
        pass

    def _observations(self) -> dict[str, Array]:
        _observe(self._places, self._speeds, self._runners, self._seen)
        rows = self._seen.astype(np.float32)
        return {agent: row[:width] for agent, row, width in zip(self.possible_agents, rows, self._widths, strict=True)}


PUSHES = np.array([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])


def greatest_difference(game: str, episodes: int = 200) -> float:
    """Greatest difference between transitions here and in MPE2, with the same seeds and actions."""
    from mpe2 import simple_spread_v3, simple_tag_v3

    ours = Particles(game)
    theirs = {"spread": simple_spread_v3, "tag": simple_tag_v3}[game].parallel_env()
    generator, worst = np.random.default_rng(0), 0.0
    for episode in range(episodes):
        both = [env.reset(seed=episode)[0] for env in (ours, theirs)]
        kept = generator.integers(5, size=len(theirs.agents))
        while True:
            found = [np.concatenate([seen[agent] for agent in ours.possible_agents]) for seen in both]
            worst = max(worst, float(np.abs(found[0] - found[1]).max()))
            if not theirs.agents:
                break
            worst = max(worst, float(np.abs(ours.state() - theirs.state()).max()))
            if generator.random() < 0.2:  # kept for a while, so that agents become fast and leave the square
                kept = generator.integers(5, size=len(theirs.agents))
            chosen = dict(zip(theirs.agents, kept.tolist(), strict=True))
            steps = [env.step(chosen) for env in (ours, theirs)]
            both = [step[0] for step in steps]
            for mine, other in zip(steps[0][1:4], steps[1][1:4], strict=True):
                worst = max(worst, *(abs(float(mine[agent]) - float(other[agent])) for agent in chosen))
    return worst


def main() -> None:
    """Compare, and time."""
    for game in ("spread", "tag"):
        difference = greatest_difference(game)
        print(f"{game}: the greatest difference is {difference:.1e}")
        if difference > 1e-5:
            raise SystemExit(f"{game} is not MPE2's")
        env = Particles(game)
        env.reset(seed=0)
        start, steps = time.perf_counter(), 20_000
        for step in range(steps):
            env.step(dict.fromkeys(env.agents, step % 5))
            if not env.agents:
                env.reset()
        print(f"{game}: {(time.perf_counter() - start) / steps * 1e6:.0f} us a step")


if __name__ == "__main__":
    main()
