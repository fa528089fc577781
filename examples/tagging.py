"""Tag: taggers chase runners, in the plane or on a grid. An environment of two kinds of agents, for any number of each.

    from tagging import tag                                 # with examples/ in PYTHONPATH
    hybridppo.train(tag(taggers=10, runners=100), vectorization="compiled", ...)

A runner is tagged if its nearest tagger is nearer than the tagging distance: the runner gets a penalty, the tagger gets
a reward, and the runner leaves or plays on. Runners that are left at the end get a reward. The game is that of
WarpDrive (Lan, Srinivasa and Zheng, 2021), written from its description; here, starts are drawn for each episode.

All arithmetic is float32, because constants are `np.float32`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

from hybridppo.compiled.definition import Definition, environment
from hybridppo.compiled.random_numbers import integers, uniform
from hybridppo.errors import ConfigurationError, shown
from hybridppo.system.validation import is_number, require_whole

OWN, OTHER = 7, 6
"""Numbers of an observation: those of the agent itself, and those of each agent that it sees."""
SIZE, MARGIN = 480, 16
"""Pixels of a picture, and of the margin around the square."""
TAGGER, RUNNER, TAGGED, GROUND, EDGE = (176, 32, 38), (38, 96, 178), (240, 170, 60), (250, 250, 248), (120, 120, 120)
"""Colours of a picture. A line from an agent is its heading."""
RADIUS = {TAGGER: 6, RUNNER: 4, TAGGED: 5}


class Rules(NamedTuple):
    """The settings of both games, which are arguments of `tag`."""

    taggers: int
    runners: int
    episode_length: int
    tagging_distance: float
    nearest: int
    exits: bool
    tag_reward: float
    tag_penalty: float
    survival_reward: float


def tag(
    *,
    taggers: int = 10,
    runners: int = 100,
    episode_length: int = 500,
    tagging_distance: float = 0.02,
    levels: int = 21,
    max_acceleration: float = 0.004,
    max_turn: float = math.pi / 4,
    tagger_speed: float = 0.012,
    runner_speed: float = 0.012,
    nearest: int = 10,
    unit: float = 0.2,
    egocentric: bool = False,
    exits: bool = True,
    tag_reward: float = 1.0,
    tag_penalty: float = 1.0,
    survival_reward: float = 1.0,
) -> Definition:
    """Tag in a square with sides of 1, with accelerations and turns.

    An action is two levels: an acceleration from `-max_acceleration` to `max_acceleration`, and a turn from `-max_turn`
    to `max_turn`. An observation has the agent's own position (2), speed, heading (2), kind and time. Then it has, for
    each agent that the agent sees, the nearest first: the relative position (2), the velocity (2), whether it is a
    tagger, and 1 (0 if there is no such agent).

    Args:
        taggers: number of taggers.
        runners: number of runners.
        episode_length: steps of an episode, which also ends when no runner is left.
        tagging_distance: a runner is tagged if its nearest tagger is nearer than this.
        levels: number of levels of acceleration and of turning, an odd number: the middle level changes nothing.
        max_acceleration: the most by which a speed changes in a step.
        max_turn: the most radians by which a heading changes in a step.
        tagger_speed: the longest step of a tagger.
        runner_speed: the longest step of a runner.
        nearest: number of agents that an agent sees; 0 for all, in their own order.
        unit: the unit of distances in observations.
        egocentric: whether observations of others are relative to the agent's heading, ahead and to the left, instead
            of along the sides. The best action then does not depend on the heading, so it is learned sooner.
        exits: whether a tagged runner leaves.
        tag_reward: reward of a tagger, for each runner that it tags.
        tag_penalty: penalty of a tagged runner.
        survival_reward: reward of each runner that is left at the end.

    Raises:
        ConfigurationError: naming the invalid argument.
    """
    require_whole("levels", levels, 3)
    if levels % 2 == 0:
        raise ConfigurationError(f"levels must be odd, so that one of them changes nothing, got {levels}")
    _require_positive(
        max_acceleration=max_acceleration, max_turn=max_turn, tagger_speed=tagger_speed, runner_speed=runner_speed
    )
    middle, turns = np.float32(levels // 2), np.float32(2 * math.pi)
    by_level, turn_by_level = (np.float32(most / (levels // 2)) for most in (max_acceleration, max_turn))
    of_tagger, of_runner, nothing, most = (
        np.float32(tagger_speed),
        np.float32(runner_speed),
        np.float32(0),
        np.float32(1),
    )
    num_taggers = taggers

    def reset(agent: int, state: Any, random: Any) -> None:
        """Begin at a random position with a random heading, at rest."""
        state.x[agent] = np.float32(uniform(random, 0.0, 1.0))
        state.y[agent] = np.float32(uniform(random, 0.0, 1.0))
        direction = np.float32(uniform(random, 0.0, 6.283185307179586))
        state.direction[agent], state.heading_x[agent], state.heading_y[agent] = (
            direction,
            np.cos(direction),
            np.sin(direction),
        )
        state.speed[agent] = state.x_speed[agent] = state.y_speed[agent] = nothing
        state.in_game[agent], state.tagged_by[agent] = 1, -1
        state.tags[agent] = state.new_tags[agent] = 0

    def move(agent: int, state: Any, action: Any, random: Any) -> None:
        """Turn, accelerate and move; a wall stops an agent that runs into it."""
        fastest = of_tagger if agent < num_taggers else of_runner
        speed = state.speed[agent] + (np.float32(action[0]) - middle) * by_level
        speed = min(max(speed, nothing), fastest)
        direction = state.direction[agent] + (np.float32(action[1]) - middle) * turn_by_level
        if direction < nothing:
            direction += turns
        elif direction >= turns:
            direction -= turns
        heading_x, heading_y = np.cos(direction), np.sin(direction)
        x_speed, y_speed = speed * heading_x, speed * heading_y
        state.x[agent] = min(max(state.x[agent] + x_speed, nothing), most)
        state.y[agent] = min(max(state.y[agent] + y_speed, nothing), most)
        state.speed[agent], state.direction[agent] = speed, direction
        state.heading_x[agent], state.heading_y[agent] = heading_x, heading_y
        state.x_speed[agent], state.y_speed[agent] = x_speed, y_speed
        state.tagged_by[agent] = -1

    rules = Rules(
        taggers, runners, episode_length, tagging_distance, nearest, exits, tag_reward, tag_penalty, survival_reward
    )
    fastest, space = max(tagger_speed, runner_speed), MultiDiscrete([levels, levels])
    return _tag("Tag", reset, move, space, rules, side=1.0, fastest=fastest, unit=unit, egocentric=egocentric)


def tag_on_grid(
    *,
    taggers: int = 4,
    runners: int = 1,
    side: int = 10,
    episode_length: int = 100,
    tagging_distance: float = 1.0,
    nearest: int = 0,
    exits: bool = True,
    tag_reward: float = 1.0,
    tag_penalty: float = 1.0,
    survival_reward: float = 1.0,
) -> Definition:
    """Tag on a grid: an agent stays, or moves one square to the right, up, to the left or down.

    Args:
        taggers: number of taggers.
        runners: number of runners.
        side: number of squares along a side.
        episode_length: as for `tag`.
        tagging_distance: as for `tag`, in squares; with 1, a runner on the square of a tagger is tagged.
        nearest: as for `tag`.
        exits: as for `tag`.
        tag_reward: as for `tag`.
        tag_penalty: as for `tag`.
        survival_reward: as for `tag`.

    Raises:
        ConfigurationError: naming the invalid argument.
    """
    require_whole("side", side, 2)
    nothing, one, last = np.float32(0), np.float32(1), np.float32(side - 1)

    def reset(agent: int, state: Any, random: Any) -> None:
        """Begin on a random square."""
        state.x[agent] = np.float32(integers(random, side))
        state.y[agent] = np.float32(integers(random, side))
        state.speed[agent] = state.direction[agent] = state.heading_x[agent] = state.heading_y[agent] = nothing
        state.x_speed[agent] = state.y_speed[agent] = nothing
        state.in_game[agent], state.tagged_by[agent] = 1, -1
        state.tags[agent] = state.new_tags[agent] = 0

    def move(agent: int, state: Any, action: Any, random: Any) -> None:
        """Move to the next square, if there is one."""
        x, y = state.x[agent], state.y[agent]
        if action == 1:
            x = min(x + one, last)
        elif action == 2:
            y = min(y + one, last)
        elif action == 3:
            x = max(x - one, nothing)
        elif action == 4:
            y = max(y - one, nothing)
        state.x_speed[agent], state.y_speed[agent] = x - state.x[agent], y - state.y[agent]
        state.x[agent], state.y[agent] = x, y
        state.tagged_by[agent] = -1

    rules = Rules(
        taggers, runners, episode_length, tagging_distance, nearest, exits, tag_reward, tag_penalty, survival_reward
    )
    far = float(side - 1)
    return _tag("TagOnGrid", reset, move, Discrete(5), rules, side=far, fastest=1.0, unit=far, egocentric=False)


def _tag(
    name: str,
    reset: Callable[..., Any],
    move: Callable[..., Any],
    action_space: Any,
    rules: Rules,
    *,
    side: float,
    fastest: float,
    unit: float,
    egocentric: bool,
) -> Definition:
    """The functions that both games have in common."""
    taggers, runners, episode_length, tagging_distance, nearest, exits, tag_reward, tag_penalty, survival_reward = rules
    for what, count in (("taggers", taggers), ("runners", runners), ("episode_length", episode_length)):
        require_whole(what, count)
    require_whole("nearest", nearest, 0)
    _require_positive(tagging_distance=tagging_distance, unit=unit)
    num_agents, length = taggers + runners, episode_length
    num_seen = num_agents - 1 if nearest == 0 else min(nearest, num_agents - 1)
    is_nearest = nearest > 0
    nothing, one, furthest = np.float32(0), np.float32(1), np.float32(np.inf)
    near = np.float32(tagging_distance) * np.float32(tagging_distance)
    by_side, by_unit, by_speed = np.float32(1 / side), np.float32(1 / unit), np.float32(1 / fastest)
    by_length = np.float32(1 / episode_length)
    of_tag, of_being_tagged, of_survival = np.float32(tag_reward), np.float32(-tag_penalty), np.float32(survival_reward)

    def catch(agent: int, state: Any, action: Any, random: Any) -> None:
        """Tag a runner if its nearest tagger is near enough."""
        if agent >= taggers:
            x, y = state.x[agent], state.y[agent]
            least, who = furthest, 0
            for tagger in range(taggers):
                dx, dy = state.x[tagger] - x, state.y[tagger] - y
                distance = dx * dx + dy * dy
                if distance < least:
                    least, who = distance, tagger
            if least < near:
                state.tagged_by[agent] = who
                if exits:
                    state.in_game[agent] = 0

    def count_tags(agent: int, state: Any, action: Any, random: Any) -> None:
        """Count a tagger's tagged runners: those of the game if tagged runners leave, else those of this step."""
        if agent < taggers:
            tags = 0
            for runner in range(taggers, num_agents):
                if state.tagged_by[runner] == agent:
                    tags += 1
            state.new_tags[agent] = tags - state.tags[agent] if exits else tags
            state.tags[agent] = tags

    def reward(agent: int, state: Any, time: int) -> tuple[Any, bool]:
        """Reward taggers for each tag and survivors at the end; penalise tagged runners."""
        if agent < taggers:
            return of_tag * np.float32(state.new_tags[agent]), False
        if state.tagged_by[agent] >= 0:
            return of_being_tagged, exits
        return (of_survival if time >= length else nothing), False

    def end(state: Any, time: int) -> bool:
        """End after all steps, or if no runner is left."""
        if time >= length:
            return True
        in_game = 0
        for runner in range(taggers, num_agents):
            in_game += state.in_game[runner]
        return in_game == 0

    def observe(agent: int, state: Any, time: int, out: Any) -> None:
        """Write the agent's own numbers; then those of others, the nearest first."""
        x, y = state.x[agent], state.y[agent]
        out[0], out[1] = x * by_side, y * by_side
        out[2] = state.speed[agent] * by_speed
        out[3], out[4] = state.heading_x[agent], state.heading_y[agent]
        out[5] = one if agent < taggers else nothing
        out[6] = np.float32(time) * by_length
        found, numbers = 0, OWN + (OTHER - 1) * num_seen
        if is_nearest:
            # Sorted in the place where they are written, their distances at its start and their numbers at its end, so
            # that none is written over before it is read.
            worst = furthest
            xs, ys, in_game = state.x, state.y, state.in_game
            for other in range(num_agents):
                dx, dy = xs[other] - x, ys[other] - y
                distance = dx * dx + dy * dy
                if distance < worst and other != agent and in_game[other] != 0:
                    place = min(found, num_seen - 1)
                    while place > 0 and out[OWN + place - 1] > distance:
                        out[OWN + place], out[numbers + place] = out[OWN + place - 1], out[numbers + place - 1]
                        place -= 1
                    out[OWN + place], out[numbers + place] = distance, np.float32(other)
                    found = min(found + 1, num_seen)
                    if found == num_seen:
                        worst = out[OWN + num_seen - 1]
        for place in range(num_seen):
            at = OWN + OTHER * place
            other = place + (1 if place >= agent else 0)
            is_there = state.in_game[other] != 0
            if is_nearest:
                is_there = place < found
                other = int(out[numbers + place]) if is_there else 0
            if is_there:
                dx, dy = (state.x[other] - x) * by_unit, (state.y[other] - y) * by_unit
                x_speed, y_speed = state.x_speed[other] * by_speed, state.y_speed[other] * by_speed
                if egocentric:
                    ahead, left = state.heading_x[agent], state.heading_y[agent]
                    dx, dy = dx * ahead + dy * left, dy * ahead - dx * left
                    x_speed, y_speed = x_speed * ahead + y_speed * left, y_speed * ahead - x_speed * left
                out[at], out[at + 1] = dx, dy
                out[at + 2], out[at + 3] = x_speed, y_speed
                out[at + 4] = one if other < taggers else nothing
                out[at + 5] = one
            else:
                for number in range(OTHER):
                    out[at + number] = nothing

    def draw(state: Any, time: int) -> Any:
        """Draw the square from above."""
        return picture(state, taggers, side)

    written = (reset, move, catch, count_tags, reward, end, observe, draw)
    functions = {function.__name__: function for function in written}
    numbers = ("x", "y", "speed", "direction", "x_speed", "y_speed", "heading_x", "heading_y")
    whole = ("in_game", "tagged_by", "tags", "new_tags")
    define = environment(
        policies={"tagger": taggers, "runner": runners},
        state={**dict.fromkeys(numbers, np.float32), **dict.fromkeys(whole, np.int32)},
        observation_space=Box(-np.inf, np.inf, (OWN + OTHER * num_seen,), np.float32),
        action_space=action_space,
    )
    return define(type(name, (), {**functions, "phases": (move, catch, count_tags)}))


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not is_number(value) or value <= 0:
            raise ConfigurationError(f"{name} must be a number above 0, got {shown(value)}")


def picture(state: Any, taggers: int, side: float) -> NDArray[np.uint8]:
    """A picture `[SIZE, SIZE, 3]` of all agents in the game, tagged ones, and the last positions of those that left.

    Args:
        state: the fields, each an array over all agents.
        taggers: number of taggers; they are the first agents.
        side: the side of the square.
    """
    image = np.empty((SIZE, SIZE, 3), np.uint8)
    image[:] = GROUND
    inner = SIZE - 2 * MARGIN
    for line in (MARGIN - 1, SIZE - MARGIN):
        image[MARGIN - 1 : SIZE - MARGIN + 1, line] = image[line, MARGIN - 1 : SIZE - MARGIN + 1] = EDGE
    columns = MARGIN + np.asarray(state.x, np.float64) / side * inner
    rows = SIZE - MARGIN - np.asarray(state.y, np.float64) / side * inner  # y goes up
    is_tagger = np.arange(len(columns)) < taggers
    is_tagged = np.asarray(state.tagged_by) >= 0
    there = np.asarray(state.in_game) != 0
    # Taggers last: whoever is caught lies below.
    for colour, which in (
        (RUNNER, ~is_tagger & there & ~is_tagged), (TAGGED, ~is_tagger & is_tagged), (TAGGER, is_tagger),
    ):  # fmt: skip
        for agent in np.flatnonzero(which):
            _disc(image, rows[agent], columns[agent], RADIUS[colour], colour)
            _heading(image, rows[agent], columns[agent], state.heading_x[agent], state.heading_y[agent], colour)
    return image


def _disc(image: NDArray[np.uint8], row: float, column: float, radius: int, colour: tuple[int, int, int]) -> None:
    top, left = max(int(row) - radius, 0), max(int(column) - radius, 0)
    bottom, right = min(int(row) + radius + 1, SIZE), min(int(column) + radius + 1, SIZE)
    rows, columns = np.mgrid[top:bottom, left:right]
    image[top:bottom, left:right][(rows - row) ** 2 + (columns - column) ** 2 <= radius**2] = colour


def _heading(
    image: NDArray[np.uint8], row: float, column: float, x: float, y: float, colour: tuple[int, int, int]
) -> None:
    for far in range(2 * RADIUS[colour] + 1):
        at, along = int(row - far * y), int(column + far * x)
        if 0 <= at < SIZE and 0 <= along < SIZE:
            image[at, along] = colour
