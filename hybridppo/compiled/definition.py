"""The definition of a compiled environment: its state, its spaces, and a few functions.

@compiled.environment(
    state={"x": np.float64, "speed": np.float64},
    observation_space=Box(-1.0, 1.0, (2,), np.float32),
    action_space=Discrete(2),
    episode_length=500,
)
class Slide:
    def reset(state, random):               # set every field; numbers from compiled.uniform(random, low, high)
        state.x, state.speed = compiled.uniform(random, -0.1, 0.1), 0.0

    def step(state, action, random):        # change the state; the reward, and whether the episode is over
        state.speed += 0.01 * (2 * action - 1)
        state.x += state.speed
        return -abs(state.x), abs(state.x) > 1.0

    def observe(state, out):                # write the observation
        out[0], out[1] = state.x, state.speed

    def draw(state):                        # may be left out: a picture [height, width, 3] of bytes, in plain Python
        return picture_of(state.x)

Several agents act in phases, each phase by all agents: `examples/tagging.py` is such an environment, and
`docs/compiled.md` the guide.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import gymnasium as gym
import numpy as np

from hybridppo.compiled import kernels, perceptrons
from hybridppo.compiled.python_form import EnvironmentSpec, PythonAgents, PythonEnv
from hybridppo.compiled.sources import Gathering, Sources, Texts
from hybridppo.errors import ConfigurationError, shown
from hybridppo.system.validation import require_whole

FUNCTIONS = {"reset": ("state", "random"), "step": ("state", "action", "random"), "observe": ("state", "out")}
"""The functions of an environment, with their arguments."""
AGENT_FUNCTIONS = {
    "reset": ("agent", "state", "random"),
    "reward": ("agent", "state", "time"),
    "observe": ("agent", "state", "time", "out"),
}
"""The functions of an environment with several agents, besides its phases."""
PHASE, END = ("agent", "state", "action", "random"), ("state", "time")
OBSERVE_STATE = ("state", "time", "out")
DRAW, DRAW_OF_AGENTS = ("state",), ("state", "time")
"""The arguments of the optional function that draws pictures."""


@dataclass(frozen=True, repr=False)
class Definition(EnvironmentSpec):
    """A compiled environment. Calling it makes an environment that Python steps, from the same source.

    It can be passed wherever an environment is expected: `train(Slide, compiled=True)`.
    """

    shows_state: bool = False
    """Whether the state follows an agent's own observation in the rows that loops write."""

    def __call__(self, render_mode: str | None = None) -> PythonEnv | PythonAgents:
        """An environment that Python steps, with gymnasium's interface, or PettingZoo's for several agents.

        Args:
            render_mode: None, or "rgb_array" if the environment can draw.

        Raises:
            UnsupportedMode: for another mode.
        """
        if render_mode is not None and (render_mode != "rgb_array" or self.draw is None):
            arguments = ", ".join(DRAW_OF_AGENTS if self.policies else DRAW)
            remedy = f"write `def draw({arguments})` in the class" if self.draw is None else "it draws for 'rgb_array'"
            raise gym.error.UnsupportedMode(f"{self.name} has no render_mode {render_mode!r}: {remedy}")
        return PythonAgents(self, render_mode) if self.policies else PythonEnv(self, render_mode)

    def __repr__(self) -> str:
        return f"<compiled environment {self.name}>"

    def __getattr__(self, name: str) -> Any:
        # As in the class, for pickle and for messages.
        known = self.__dict__
        if name in known.get("functions", ()):
            return known["functions"][name]
        if name in ("__name__", "__qualname__") and "name" in known:
            return known["name"]
        raise AttributeError(f"{type(self).__name__} object has no attribute {name!r}")

    @cached_property
    def sources(self) -> Sources:
        """The functions, all that they call, and the loops around them; sent with the definition to other processes.

        Raises:
            EnvError: if they refer to something that cannot be compiled, with the line.
        """
        return self.gathered(kernels.LOOPS, kernels.ON_CPU, perceptrons.GIVEN, kernels.DECORATORS)

    @cached_property
    def showing_state(self) -> Definition:
        """The definition for critics that see the environment's state."""
        return replace(self, shows_state=True)

    def gathered(
        self,
        loops: Iterable[Callable[..., Any]],
        written: Texts,
        given: Collection[Callable[..., Any]],
        decorators: Texts,
    ) -> Sources:
        """The functions with these loops around them; arguments as of `sources.Gathering`."""
        own: Texts = {
            kernels.num_agents: str(max(1, len(self.agents))),
            kernels.given: "action[0]" if self.action_kind == "choice" else "action",
            kernels.choose: kernels.choose_numbers if self.action_kind == "numbers" else kernels.choose_among,
            **(kernels.OF_AGENTS if self.policies else kernels.OF_ONE),
        }
        if self.shows_state:
            end = self.observation_space.shape[0]
            own[kernels.observe] = (
                f"(observe(agent, state, time, out[:{end}]), observe_state(state, time, out[{end}:]))"
            )
        phases = {kernels.phase.__name__: [self.functions[name] for name in self.phases]}
        gathering = Gathering(self.name, given, {**own, **written}, {kernels.phases: phases}, decorators)
        return gathering.sources({**self.functions, **{loop.__name__: loop for loop in loops}})


def environment(
    *,
    state: Mapping[str, Any],
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    episode_length: int = 0,
    policies: Mapping[str, int] | None = None,
    state_space: gym.Space[Any] | None = None,
) -> Callable[[type], Definition]:
    """A decorator for the class of an environment.

    Args:
        state: the type of each field by name: a NumPy type of numbers, or a type and a shape. With several agents, each
            agent has every field.
        observation_space: a one-dimensional float32 `Box`; of each agent.
        action_space: `Discrete`, or a one-dimensional `MultiDiscrete` or float32 `Box`; of each agent.
        episode_length: steps after which an episode is truncated; 0 for never.
        policies: with several agents, their kinds with the number of agents of each.
        state_space: with several agents, a one-dimensional float32 `Box`, for critics that see the environment's state:
            the space of what `observe_state(state, time, out)` writes.

    Raises:
        ConfigurationError: with the argument that is not valid.
    """
    kinds = _kinds(policies)
    fields = _fields(state, sum(kinds.values()))
    require_whole("episode_length", episode_length, 0)
    if state_space is not None and not kinds:
        raise ConfigurationError("state_space is for critics of several agents: leave it out, or pass policies")
    for what, space in {"observation_space": observation_space, "state_space": state_space}.items():
        if space is not None and not _is_vector(space):
            remedy = "write Box(low, high, (size,), np.float32)"
            raise ConfigurationError(f"{what} must be a Box of one dimension and float32, got {space}: {remedy}")
    is_several = isinstance(action_space, gym.spaces.MultiDiscrete) and len(action_space.shape) == 1
    if not (isinstance(action_space, gym.spaces.Discrete) or is_several or _is_vector(action_space)):
        raise ConfigurationError(
            f"action_space must be Discrete, "
            f"or of one dimension a MultiDiscrete or a Box of float32, got {action_space}"
        )

    def define(written: type) -> Definition:
        own, phases = vars(written), _phases(written) if kinds else ()
        expected = {**(AGENT_FUNCTIONS if kinds else FUNCTIONS), **dict.fromkeys(phases, PHASE)}
        if kinds and "end" in own:
            expected["end"] = END
        if state_space is not None:
            expected["observe_state"] = OBSERVE_STATE
        functions = {name: _function(written, name, arguments) for name, arguments in expected.items()}
        return Definition(
            written.__name__,
            fields,
            cast("gym.spaces.Box", observation_space),
            cast("gym.spaces.Discrete", action_space),
            episode_length,
            {**functions, "end": functions.get("end", _never)} if kinds else functions,
            kinds,
            phases,
            cast("gym.spaces.Box | None", state_space),
            _function(written, "draw", DRAW_OF_AGENTS if kinds else DRAW) if "draw" in own else None,
        )

    return define


def _never(state: Any, time: int) -> bool:
    """The default of `end`."""
    return False


def _kinds(policies: Mapping[str, int] | None) -> dict[str, int]:
    if policies is None:
        return {}
    if not isinstance(policies, Mapping) or not policies:
        raise ConfigurationError(f"policies must map each kind to its number of agents, got {shown(policies)}")
    for kind, count in policies.items():
        if not (isinstance(kind, str) and kind.isidentifier()):
            raise ConfigurationError(f"a kind of agents must be a Python name, got {shown(kind)}")
        require_whole(f"policies[{kind!r}]", count)
    return dict(policies)


def _phases(written: type) -> tuple[str, ...]:
    name, found = written.__name__, vars(written).get("phases")
    own = {function: name for name, function in vars(written).items() if inspect.isfunction(function)}
    if not isinstance(found, tuple) or not found or not all(function in own for function in found):
        raise ConfigurationError(
            f"{name} must say what its agents do in a step, as a tuple of functions of the class: write `phases = "
            f"(move, catch)` below them, got {shown(found)}"
        )
    return tuple(own[function] for function in found)


def _fields(state: Mapping[str, Any], num_agents: int) -> np.dtype[Any]:
    if not isinstance(state, Mapping) or not state:
        raise ConfigurationError(f"state must be types by the name of the field, got {shown(state)}")
    fields = []
    for name, of in state.items():
        try:
            dtype = np.dtype(object if of is None else of)  # NumPy takes None for float64
        except (TypeError, ValueError):
            dtype = np.dtype(object)
        # Numba compiles no numbers of 16 or 128 bits, and none in another byte order than the machine's.
        is_number = dtype.base.kind in "biuf" and dtype.base.char not in "eg" and dtype.base.isnative
        if not (isinstance(name, str) and name.isidentifier()) or not is_number:
            raise ConfigurationError(
                f"state[{name!r}] must be a type of numbers under a Python name, such as np.float64, or "
                f"(np.float64, (3,)) for an array of three, got {shown(of)}"
            )
        if name == "view":
            raise ConfigurationError("state['view'] needs another name: compiled states have a method view")
        shape = (num_agents, *dtype.shape) if num_agents else dtype.shape
        fields.append((name, dtype.base, shape) if shape else (name, dtype))
    return np.dtype(fields, align=True)


def _is_vector(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and space.dtype == np.float32


def _function(written: type, name: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
    found = inspect.getattr_static(written, name, None)
    expected = f"def {name}({', '.join(arguments)})"
    if not inspect.isfunction(found):
        raise ConfigurationError(f"{written.__name__} has no function {name}: write `{expected}` in the class")
    given = list(inspect.signature(found).parameters)
    if len(given) != len(arguments):
        raise ConfigurationError(
            f"{written.__name__}.{name} takes ({', '.join(given)}): write `{expected}`, without self: there is no "
            "object, everything an environment remembers is in its state"
        )
    return found
