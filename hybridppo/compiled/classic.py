"""The compiled forms of gymnasium's classic environments, and how the compiled form of an environment is found."""

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from hybridppo.compiled.definition import Definition, environment
from hybridppo.compiled.random_numbers import uniform
from hybridppo.errors import EnvError, shown


def box(*high: Any, low: Any = None) -> Box:
    """A space of float32 from `low`, or else from `-high`, to `high`."""
    top = np.array(high, np.float32)
    return Box(-top if low is None else np.array(low, np.float32), top, dtype=np.float32)


CARTPOLE_GRAVITY, CARTPOLE_FORCE, CARTPOLE_SECONDS = 9.8, 10.0, 0.02
POLE_MASS, HALF_LENGTH = 0.1, 0.5
TOTAL_MASS, MASS_LENGTH = POLE_MASS + 1.0, POLE_MASS * HALF_LENGTH
FURTHEST, LARGEST_ANGLE = 2.4, 12 * 2 * math.pi / 360
CARTPOLE_OBSERVATIONS = box(FURTHEST * 2, np.inf, LARGEST_ANGLE * 2, np.inf)


@environment(
    state={"x": np.float64, "x_speed": np.float64, "angle": np.float64, "angle_speed": np.float64},
    observation_space=CARTPOLE_OBSERVATIONS,
    action_space=Discrete(2),
    episode_length=500,
)
class CartPole:
    """A pole on a cart that is pushed left or right; a step is worth 1.

    CartPole, bit for bit as gymnasium's (Barto, Sutton and Anderson, 1983).
    """

    def reset(state: Any, random: Any) -> None:
        """Almost upright."""
        state.x = uniform(random, -0.05, 0.05)
        state.x_speed = uniform(random, -0.05, 0.05)
        state.angle = uniform(random, -0.05, 0.05)
        state.angle_speed = uniform(random, -0.05, 0.05)

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """A step by Euler's method."""
        force = CARTPOLE_FORCE if action == 1 else -CARTPOLE_FORCE
        cos, sin = np.cos(state.angle), np.sin(state.angle)
        angle_speed = state.angle_speed
        push = (force + MASS_LENGTH * (angle_speed * angle_speed) * sin) / TOTAL_MASS
        turn = (CARTPOLE_GRAVITY * sin - cos * push) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS)
        )
        acceleration = push - MASS_LENGTH * turn * cos / TOTAL_MASS
        state.x += CARTPOLE_SECONDS * state.x_speed
        state.x_speed += CARTPOLE_SECONDS * acceleration
        state.angle += CARTPOLE_SECONDS * angle_speed
        state.angle_speed += CARTPOLE_SECONDS * turn
        return 1.0, abs(state.x) > FURTHEST or abs(state.angle) > LARGEST_ANGLE

    def observe(state: Any, out: Any) -> None:
        """Position, speed, angle and angular speed."""
        out[0], out[1], out[2], out[3] = state.x, state.x_speed, state.angle, state.angle_speed


FASTEST_1, FASTEST_2 = 4 * math.pi, 9 * math.pi
"""Largest speeds of both angles."""
ACROBOT_SECONDS = 0.2
LENGTH, CENTRE, MASS, INERTIA, ACROBOT_GRAVITY = 1.0, 0.5, 1.0, 1.0, 9.8
"""Length, mass and inertia of both links."""


def accelerations(angle_1: float, angle_2: float, speed_1: float, speed_2: float, torque: float) -> Any:
    """The angular accelerations of both links."""
    cos, sin = np.cos(angle_2), np.sin(angle_2)
    d1 = MASS * CENTRE**2 + MASS * (LENGTH**2 + CENTRE**2 + 2 * LENGTH * CENTRE * cos) + INERTIA + INERTIA
    d2 = MASS * (CENTRE**2 + LENGTH * CENTRE * cos) + INERTIA
    phi2 = MASS * CENTRE * ACROBOT_GRAVITY * np.cos(angle_1 + angle_2 - math.pi / 2.0)
    phi1 = (
        -MASS * LENGTH * CENTRE * speed_2**2 * sin
        - 2 * MASS * LENGTH * CENTRE * speed_2 * speed_1 * sin
        + (MASS * CENTRE + MASS * LENGTH) * ACROBOT_GRAVITY * np.cos(angle_1 - math.pi / 2)
        + phi2
    )
    second = (torque + d2 / d1 * phi1 - MASS * LENGTH * CENTRE * speed_1**2 * sin - phi2) / (
        MASS * CENTRE**2 + INERTIA - d2**2 / d1
    )
    return -(d2 * second + phi1) / d1, second


def wrapped(angle: float) -> float:
    """Between -math.pi and math.pi."""
    while angle > math.pi:
        angle -= 2 * math.pi
    while angle < -math.pi:
        angle += 2 * math.pi
    return angle


@environment(
    state={"angle_1": np.float64, "angle_2": np.float64, "speed_1": np.float64, "speed_2": np.float64},
    observation_space=box(1.0, 1.0, 1.0, 1.0, FASTEST_1, FASTEST_2),
    action_space=Discrete(3),
    episode_length=500,
)
class Acrobot:
    """Two hanging links, to be swung above a line by a torque between them; a step costs 1.

    Acrobot, as in gymnasium up to rounding (Sutton, 1996; the equations of Sutton and Barto's book).
    """

    def reset(state: Any, random: Any) -> None:
        """Almost hanging; in float32, as in gymnasium."""
        state.angle_1 = np.float32(uniform(random, -0.1, 0.1))
        state.angle_2 = np.float32(uniform(random, -0.1, 0.1))
        state.speed_1 = np.float32(uniform(random, -0.1, 0.1))
        state.speed_2 = np.float32(uniform(random, -0.1, 0.1))

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """The Runge-Kutta method of fourth order."""
        torque, half = action - 1.0, ACROBOT_SECONDS / 2.0
        a, b, va, vb = state.angle_1, state.angle_2, state.speed_1, state.speed_2
        wa1, wb1 = accelerations(a, b, va, vb, torque)
        va2, vb2 = va + half * wa1, vb + half * wb1
        wa2, wb2 = accelerations(a + half * va, b + half * vb, va2, vb2, torque)
        va3, vb3 = va + half * wa2, vb + half * wb2
        wa3, wb3 = accelerations(a + half * va2, b + half * vb2, va3, vb3, torque)
        va4, vb4 = va + ACROBOT_SECONDS * wa3, vb + ACROBOT_SECONDS * wb3
        wa4, wb4 = accelerations(a + ACROBOT_SECONDS * va3, b + ACROBOT_SECONDS * vb3, va4, vb4, torque)
        sixth = ACROBOT_SECONDS / 6.0
        state.angle_1 = wrapped(a + sixth * (va + 2 * va2 + 2 * va3 + va4))
        state.angle_2 = wrapped(b + sixth * (vb + 2 * vb2 + 2 * vb3 + vb4))
        state.speed_1 = min(max(va + sixth * (wa1 + 2 * wa2 + 2 * wa3 + wa4), -FASTEST_1), FASTEST_1)
        state.speed_2 = min(max(vb + sixth * (wb1 + 2 * wb2 + 2 * wb3 + wb4), -FASTEST_2), FASTEST_2)
        is_above = -np.cos(state.angle_1) - np.cos(state.angle_2 + state.angle_1) > 1.0
        return (0.0 if is_above else -1.0), is_above

    def observe(state: Any, out: Any) -> None:
        """Both angles as points on the circle, and the speeds."""
        out[0], out[1] = np.cos(state.angle_1), np.sin(state.angle_1)
        out[2], out[3] = np.cos(state.angle_2), np.sin(state.angle_2)
        out[4], out[5] = state.speed_1, state.speed_2


CAR_LEFT, CAR_RIGHT, CAR_FASTEST, CAR_GOAL = -1.2, 0.6, 0.07, 0.5
CAR_FORCE, CAR_GRAVITY = 0.001, 0.0025


@environment(
    state={"place": np.float64, "speed": np.float64},
    observation_space=box(CAR_RIGHT, CAR_FASTEST, low=[CAR_LEFT, -CAR_FASTEST]),
    action_space=Discrete(3),
    episode_length=200,
)
class MountainCar:
    """A car too weak for the hill in front of it; a step costs 1.

    MountainCar, bit for bit as gymnasium's (Moore, 1990).
    """

    def reset(state: Any, random: Any) -> None:
        """At rest, near the bottom."""
        state.place, state.speed = uniform(random, -0.6, -0.4), 0.0

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """Push left, not at all, or right."""
        speed = state.speed + ((action - 1) * CAR_FORCE + math.cos(3 * state.place) * -CAR_GRAVITY)
        speed = min(max(speed, -CAR_FASTEST), CAR_FASTEST)
        place = min(max(state.place + speed, CAR_LEFT), CAR_RIGHT)
        if place == CAR_LEFT and speed < 0:
            speed = 0.0
        state.place, state.speed = place, speed
        return -1.0, place >= CAR_GOAL and speed >= 0.0

    def observe(state: Any, out: Any) -> None:
        """Position and speed."""
        out[0], out[1] = state.place, state.speed


CAR_2_LEFT, CAR_2_RIGHT, CAR_2_FASTEST = np.float32(-1.2), np.float32(0.6), np.float32(0.07)
CAR_2_GOAL, POWER, NOTHING, CAR_2_MOST = np.float32(0.45), np.float32(0.0015), np.float32(0.0), np.float32(1.0)


@environment(
    state={"place": np.float32, "speed": np.float32},
    observation_space=box(CAR_RIGHT, CAR_FASTEST, low=[CAR_LEFT, -CAR_FASTEST]),
    action_space=Box(-1.0, 1.0, (1,), np.float32),
    episode_length=999,
)
class MountainCarContinuous:
    """The car with a force between -1 and 1; the goal is worth 100, and a force costs its square.

    MountainCarContinuous, bit for bit as gymnasium's: its state is float32 from the first step on.
    """

    def reset(state: Any, random: Any) -> None:
        """At rest, near the bottom."""
        state.place, state.speed = np.float32(uniform(random, -0.6, -0.4)), NOTHING

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """Push the car."""
        force = min(max(action[0], -CAR_2_MOST), CAR_2_MOST)
        speed = state.speed + (
            force * POWER - np.float32(CAR_GRAVITY * math.cos(np.float64(np.float32(3.0) * state.place)))
        )
        speed = min(max(speed, -CAR_2_FASTEST), CAR_2_FASTEST)
        place = min(max(state.place + speed, CAR_2_LEFT), CAR_2_RIGHT)
        if place == CAR_2_LEFT and speed < NOTHING:
            speed = NOTHING
        state.place, state.speed = place, speed
        is_there = bool(place >= CAR_2_GOAL and speed >= NOTHING)
        cost = np.float64(action[0]) * np.float64(action[0]) * 0.1
        return (100.0 if is_there else 0.0) - cost, is_there

    def observe(state: Any, out: Any) -> None:
        """Position and speed."""
        out[0], out[1] = state.place, state.speed


PENDULUM_FASTEST, PENDULUM_GRAVITY, PENDULUM_SECONDS = 8.0, 10.0, 0.05
PENDULUM_MOST, THREE, TORQUE_COST = np.float32(2.0), np.float32(3.0), np.float32(0.001)


@environment(
    state={"angle": np.float64, "speed": np.float64},
    observation_space=box(1.0, 1.0, PENDULUM_FASTEST),
    action_space=Box(-2.0, 2.0, (1,), np.float32),
    episode_length=200,
)
class Pendulum:
    """A pendulum to swing up and hold with a weak torque; angle, speed and torque cost.

    Pendulum, bit for bit as gymnasium's: the torque's term is float32, as its actions are.
    """

    def reset(state: Any, random: Any) -> None:
        """Any angle and speed."""
        state.angle, state.speed = uniform(random, -math.pi, math.pi), uniform(random, -1.0, 1.0)

    def step(state: Any, action: Any, random: Any) -> tuple[float, bool]:
        """A step; episodes never end by themselves."""
        torque = min(max(action[0], -PENDULUM_MOST), PENDULUM_MOST)
        angle, speed = state.angle, state.speed
        from_top = (angle + math.pi) % (2 * math.pi) - math.pi
        cost = from_top * from_top + 0.1 * (speed * speed) + TORQUE_COST * (torque * torque)
        speed += (3 * PENDULUM_GRAVITY / 2 * np.sin(angle) + THREE * torque) * PENDULUM_SECONDS
        state.speed = min(max(speed, -PENDULUM_FASTEST), PENDULUM_FASTEST)
        state.angle = angle + state.speed * PENDULUM_SECONDS
        return -cost, False

    def observe(state: Any, out: Any) -> None:
        """The angle as a point on the circle, and the speed."""
        out[0], out[1], out[2] = np.cos(state.angle), np.sin(state.angle), state.speed


_CLASSIC = "gymnasium.envs.classic_control"
WRITTEN_HERE: dict[str, Any] = {
    f"{_CLASSIC}.cartpole:CartPoleEnv": CartPole,
    f"{_CLASSIC}.acrobot:AcrobotEnv": Acrobot,
    f"{_CLASSIC}.mountain_car:MountainCarEnv": MountainCar,
    f"{_CLASSIC}.continuous_mountain_car:Continuous_MountainCarEnv": MountainCarContinuous,
    f"{_CLASSIC}.pendulum:PendulumEnv": Pendulum,
}
"""The compiled forms of gymnasium's environments by their entry points."""


def compiled_form(source: Any) -> Definition:
    """The definition of an id or a function.

    Raises:
        EnvError: if it has no compiled form, with the list of those that have one.
        gymnasium.error.Error: if there is no such environment.
    """
    if isinstance(source, Definition):
        return source
    ids = sorted(spec.id for spec in gym.registry.values() if spec.entry_point in [*WRITTEN_HERE])
    remedy = (
        f"there is one of {', '.join(ids)}, and of what hybridppo.compiled.environment makes (docs/compiled.md); "
        "leave vectorization='compiled' out for the others"
    )
    if not isinstance(source, str):
        raise EnvError(f"{getattr(source, '__qualname__', shown(source))} has no compiled form: {remedy}")
    spec = gym.spec(source)
    entry: Any = spec.entry_point
    of_gymnasium = WRITTEN_HERE.get(entry) if isinstance(entry, str) else None
    if of_gymnasium is None and isinstance(entry, str):
        entry = gym.envs.registration.load_env_creator(entry)
    definition = entry if of_gymnasium is None else of_gymnasium
    if not isinstance(definition, Definition):
        raise EnvError(f"environment {source!r} has no compiled form: {remedy}")
    if spec.kwargs or spec.additional_wrappers:
        what = f"the arguments {spec.kwargs}" if spec.kwargs else "wrappers"
        raise EnvError(
            f"environment {source!r} is registered with {what}, which its compiled form does not have: leave "
            "vectorization='compiled' out"
        )
    # Of gymnasium's own, only the id has a limit.
    limits = spec.max_episode_steps, definition.episode_length if of_gymnasium is None else 0
    return replace(definition, name=source, episode_length=min(filter(None, limits), default=0))
