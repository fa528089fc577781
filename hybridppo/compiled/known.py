"""The compiled forms of gymnasium's environments, and how a definition is found."""

from dataclasses import replace
from typing import Any

import gymnasium as gym

from hybridppo.compiled.definition import Definition
from hybridppo.errors import EnvError, shown

CLASSIC = "gymnasium.envs.classic_control"
WRITTEN_HERE = {
    f"{CLASSIC}.cartpole:CartPoleEnv": "hybridppo.compiled.cartpole:CartPole",
    f"{CLASSIC}.acrobot:AcrobotEnv": "hybridppo.compiled.acrobot:Acrobot",
    f"{CLASSIC}.mountain_car:MountainCarEnv": "hybridppo.compiled.mountain_car:MountainCar",
    f"{CLASSIC}.continuous_mountain_car:Continuous_MountainCarEnv": (
        "hybridppo.compiled.mountain_car_continuous:MountainCarContinuous"
    ),
    f"{CLASSIC}.pendulum:PendulumEnv": "hybridppo.compiled.pendulum:Pendulum",
}
"""Entry points of gymnasium's environments, with those of their compiled forms."""


def compiled_form(source: Any) -> Definition:
    """The definition of an id or a function.

    Raises:
        EnvError: if it has no compiled form, with the list of those that have one.
        gymnasium.error.Error: if there is no such environment.
    """
    if isinstance(source, Definition):
        return source
    if not isinstance(source, str):
        name = getattr(source, "__qualname__", shown(source))
        raise EnvError(f"{name} has no compiled form: {_remedy()}")
    spec = gym.spec(source)
    definition = _entry_point(spec.entry_point)
    if definition is None:
        raise EnvError(f"environment {source!r} has no compiled form: {_remedy()}")
    if spec.kwargs or spec.additional_wrappers:
        what = f"the arguments {spec.kwargs}" if spec.kwargs else "wrappers"
        raise EnvError(
            f"environment {source!r} is registered with {what}, which its compiled form does not have: leave "
            "vectorization='compiled' out"
        )
    # Of gymnasium's own, only the id has a limit.
    limits = spec.max_episode_steps, 0 if spec.entry_point in [*WRITTEN_HERE] else definition.episode_length
    return replace(definition, name=source, episode_length=min(filter(None, limits), default=0))


def _entry_point(entry_point: Any) -> Definition | None:
    if isinstance(entry_point, str):
        entry_point = gym.envs.registration.load_env_creator(WRITTEN_HERE.get(entry_point, entry_point))
    return entry_point if isinstance(entry_point, Definition) else None


def _remedy() -> str:
    ids = sorted(spec.id for spec in gym.registry.values() if spec.entry_point in [*WRITTEN_HERE])
    return (
        f"there is one of {', '.join(ids)}, and of what hybridppo.compiled.environment makes (docs/compiled.md); "
        "leave vectorization='compiled' out for the others"
    )
