"""What is wrong with an environment, how to fix it, and how fast it steps.

    report = hybridppo.check_env("CartPole-v1")
    print(report)

An environment that can be trained in has no errors. Warnings name frequent reasons why learning fails.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from hybridppo.environments.action_masks import has_mask
from hybridppo.environments.checking.check_tensors import check_tensor_env
from hybridppo.environments.checking.report import (
    EnvReport,
    Seen,
    global_generators,
    in_time,
    steps_to_repeat,
    timed,
)
from hybridppo.environments.checks import checked_step, describe_error
from hybridppo.environments.making import WHERE_TO_LOOK, is_tensor_env, require_single
from hybridppo.environments.named import make_env, note_of
from hybridppo.environments.new_objects import make_new
from hybridppo.environments.options import EnvSource
from hybridppo.environments.parallel import ParallelEnvironment, is_parallel
from hybridppo.environments.pickling import pack
from hybridppo.environments.registration import source_of
from hybridppo.environments.state.describing import describe
from hybridppo.environments.turns import agents_environment, takes_turns
from hybridppo.errors import BadValueError, ConfigurationError, EnvError, EnvStateError, shown
from hybridppo.spaces.distributions import distribution_for
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import SpacesOfAgents
from hybridppo.system.figures import shown_seconds
from hybridppo.system.validation import is_seconds, require_whole

Array = NDArray[Any]

STEPS_TO_REPEAT = 100
"""How many steps are repeated, to see whether a seed gives the same episode."""
SECONDS_WORTH_WORKERS = 100e-6
"""Worker processes make steps faster that are slower than this, if there are cores for them."""
SECONDS_TO_STEP = 10.0
"""The time limit for steps."""


def check_env(env: EnvSource, *, steps: int = 2000, seconds: float = SECONDS_TO_STEP, seed: int = 0) -> EnvReport:
    """Make an environment, step it with random actions, and report.

    Args:
        env: an environment's id; a function that makes one, also of several agents or of tensors; or an environment of
            tensors.
        steps: how many steps to make at most.
        seconds: stop stepping after this time; the report has the number of steps made.
        seed: of the resets and of the actions.

    Raises:
        ConfigurationError: for invalid numbers, and for a function that makes a vector: check one of its environments.
    """
    steps = require_whole("steps", steps)
    if not is_seconds(seconds):
        raise ConfigurationError(f"seconds must be a number of at least 0, got {shown(seconds)}")
    name = env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__name__)
    report = EnvReport(name)
    if note := note_of(env):
        report.add("note", note)
    if is_tensor_env(env):
        check_tensor_env(env, report, steps=steps, seconds=seconds, seed=seed)
        return report
    env = source_of(env)
    source = require_single(env, "the check")
    made_by = (make_env, source) if isinstance(source, str) else (source,)
    make: Callable[[], Any] = partial(make_new, *made_by)
    if isinstance(env, str):  # gymnasium makes environments of one agent alone
        entry_point: Any = getattr(gym.registry.get(env), "entry_point", None)
        make = entry_point if getattr(entry_point, "policies", None) else make
    with _reported(report, "it cannot be made"):
        made = make()
        if is_tensor_env(made):
            check_tensor_env(made, report, steps=steps, seconds=seconds, seed=seed)
            return report
        if isinstance(made, VectorEnv):
            made.close()
            raise ConfigurationError(f"{name} makes a {type(made).__name__}: check one of its environments")
        if is_parallel(made) or takes_turns(made):
            definition = getattr(made, "definition", None)
            masks = all(has_mask(made.observation_space(agent)) for agent in made.possible_agents)
            there = [made]
            made = agents_environment(there.pop, masks)
            check: _Check = _AgentsCheck(made, partial(agents_environment, make, masks), report, seed)
        elif isinstance(made, gym.Env):
            check = _Check(made, make, report, seed)
        else:
            report.add(
                "error",
                f"it is a {type(made).__name__}",
                "derive it from gymnasium.Env, or, of several agents, from pettingzoo.ParallelEnv or AECEnv",
            )
            return report
        try:
            if isinstance(check, _AgentsCheck) and definition is not None:
                check.look_for_races(definition)
            check.run(source, steps, seconds)
        finally:
            made.close()
    return report


class _Step(NamedTuple):
    """What a step of an environment of one agent or several gave."""

    rows: Array
    """Observations of the agents that are present, `[agents present, *shape]`."""
    rewards: list[float]
    """Rewards of the agents that acted."""
    acted: Array
    """Which agents acted, `[agents]`."""
    ended: Array
    """Whose episode ended, `[agents]`."""
    is_over: bool
    """Whether the environment must be reset."""


class _Check:
    """A check of an environment of one agent."""

    _num_agents = 1

    def __init__(self, env: Any, make: Callable[[], Any], report: EnvReport, seed: int) -> None:
        self._env, self._make, self._report, self._seed = env, make, report, seed
        self._spaces: Any = env
        """The object that has an agent's spaces."""
        self._saved: object = env
        """The object whose state a checkpoint saves."""

    def run(self, source: EnvSource, steps: int, seconds: float) -> None:
        """Run all checks; `source` is what environments are made from."""
        if not self._has_spaces():
            return
        with _reported(self._report, "it fails"):
            self._judge(self._step_randomly(steps, seconds))
            self._check_repeats()
        self._check_sending(source)
        self._check_saving()

    def _has_spaces(self) -> bool:
        env, report = self._spaces, self._report
        for kind in ("observation_space", "action_space"):
            if not isinstance(getattr(env, kind, None), gym.Space):
                report.add("error", f"it has no {kind}", f"set self.{kind} to a gymnasium.spaces.Space in __init__")
                return False
        try:
            distribution_for(env.action_space)
            self._encode = ObservationEncoder(env.observation_space)
        except EnvError as error:
            report.add("error", str(error))
        actions = env.action_space
        if isinstance(actions, gym.spaces.Box) and np.issubdtype(actions.dtype, np.floating):
            bounds = np.concatenate((actions.low.ravel(), actions.high.ravel()))
            if not np.isfinite(bounds).all():
                report.add("note", "its actions are not bounded", "actions begin as normals of deviation 1")
            elif bounds.size and (np.abs(bounds).max() > 10.0 or np.abs(bounds).max() < 0.1):
                report.add(
                    "warning",
                    f"its actions go up to {np.abs(bounds).max():g}, and begin as normals of deviation 1",
                    "scale them to -1 to 1: gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)",
                )
        return report.is_usable

    def _step_randomly(self, steps: int, seconds: float) -> Seen:
        env, report, seen = self._env, self._report, Seen(self._encode)
        self._seed_actions(env)
        seen.add(self._begin(env, self._seed), [])
        if any(mask is not None for mask in self._masks(env)):
            report.add(
                "note",
                "it says which actions are allowed ('action_mask')",
                "train with action_masks=True (--action-masks)",
            )
        lengths = np.zeros(self._num_agents, np.int64)
        for _ in in_time(steps, seconds, report):
            actions = self._sample_actions(env)
            with timed(seen.step_seconds):
                result = env.step(actions)
            # As in training: values out of bounds are an error in the first step, and a warning later.
            found = self._read(env, result, bounds=not report.steps)
            report.steps += 1
            seen.add(found.rows, found.rewards)
            lengths += found.acted
            report.episode_lengths += lengths[found.ended].tolist()
            lengths[found.ended] = 0
            if found.is_over:
                with timed(seen.reset_seconds):
                    rows = self._begin(env, None, bounds=False)
                seen.add(rows, [])
        return seen

    def _judge(self, seen: Seen) -> None:
        report, rewards = self._report, np.asarray(seen.rewards)
        if outside := self._encode.warning_of_extremes(seen.extremes):
            report.add("warning", outside, "give the space the true bounds (-inf and inf where there are none)")
        seen.judge(report, "limit them: gymnasium.wrappers.TimeLimit(env, max_episode_steps=1000)")
        if rewards.any() and np.ptp(rewards) == 0.0 and len(set(report.episode_lengths)) <= 1:
            report.add(
                "warning",
                f"all rewards were {rewards[0]:g}, and all episodes of one length",
                "random actions made no difference: expect a long training, or check the reward",
            )
        if report.seconds_per_step > SECONDS_WORTH_WORKERS:
            report.add(
                "note",
                f"a step takes {shown_seconds(report.seconds_per_step)}",
                "worker processes may pay: num_workers=2 and more, or placement auto, which measures it",
            )

    def _check_repeats(self) -> None:
        """Check that a seed gives the same episode, also with other states of the global generators."""
        first = self._trajectory(global_seed=0)
        if not _same(first, self._trajectory(global_seed=0)):
            self._report.add(
                "warning",
                "the same seed gave two different episodes",
                "draw from self.np_random alone, after super().reset(seed=seed)",
            )
        elif not _same(first, self._trajectory(global_seed=1)):
            self._report.add(
                "warning",
                "it draws from Python's or NumPy's global generator",
                "draw from self.np_random: else a resumed run is not exact",
            )

    def _trajectory(self, global_seed: int) -> list[Array]:
        env = self._make()
        try:
            with global_generators(global_seed):
                self._seed_actions(env)
                seen = [self._begin(env, self._seed)]
                for step in steps_to_repeat(STEPS_TO_REPEAT, self._report):
                    found = self._read(env, env.step(self._sample_actions(env)), bounds=step == 0)
                    seen += [found.rows, np.asarray(found.rewards)]
                    if found.is_over:
                        break
                return seen
        finally:
            env.close()

    def _check_sending(self, source: EnvSource) -> None:
        try:
            pack({"source": source})
        except EnvError as error:
            self._report.add("note", str(error))

    def _check_saving(self) -> None:
        try:
            describe(self._saved)
        except EnvStateError as error:
            remedy = "a resumed run starts new episodes; get_state() and set_state(state) would make it exact"
            self._report.add("note", f"its state cannot be saved: {error}", remedy)

    def _seed_actions(self, env: Any) -> None:
        self._action_space = env.action_space  # a reset may replace it, as highway-env's does
        self._action_space.seed(self._seed)

    def _begin(self, env: Any, seed: int | None, *, bounds: bool = True) -> Array:
        """Reset; the rows of observations, `[agents, *shape]`."""
        result: Any = env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2:
            raise BadValueError("its reset did not return two values, as gymnasium.Env.reset: observation, info")
        observation, self._info = self._encode.checked(result[0], bounds=bounds), result[1]
        return self._encode.one(observation)[None]

    def _masks(self, env: Any) -> list[Any]:
        """The action mask of each agent, or None."""
        return [self._info.get("action_mask") if isinstance(self._info, dict) else None]

    def _sample_actions(self, env: Any) -> Any:
        return self._action_space.sample(self._masks(env)[0])

    def _read(self, env: Any, result: Any, *, bounds: bool) -> _Step:
        observation, reward, terminated, truncated, self._info = checked_step(self._encode, result, bounds=bounds)
        has_ended = bool(terminated or truncated)
        ones = np.ones(1, bool)
        return _Step(self._encode.one(observation)[None], [reward], ones, ones & has_ended, has_ended)


class _AgentsCheck(_Check):
    """A check of an environment of several agents, whose values `ParallelEnvironment` checks."""

    def __init__(self, env: ParallelEnvironment, make: Callable[[], Any], report: EnvReport, seed: int) -> None:
        super().__init__(env, make, report, seed)
        self._spaces, self._saved, self._num_agents = env.agent, env.env, len(env.agents)
        names = ", ".join(map(str, env.agents))
        is_one = not isinstance(env.agent.observation_space, SpacesOfAgents)
        is_one = is_one and not isinstance(env.agent.action_space, SpacesOfAgents)
        share = "which may share a policy" if is_one else "whose spaces differ: train a policy for each kind"
        report.add("note", f"it has {len(env.agents)} agents, {share}: {names}", "a row for each of them")

    def look_for_races(self, definition: Any) -> None:
        """Report the phases of a compiled environment that race."""
        from hybridppo.compiled.python_form import phases_that_race

        for problem in phases_that_race(definition):
            self._report.add("error", problem)

    def _seed_actions(self, env: Any) -> None:
        env.action_space.seed(self._seed)

    def _begin(self, env: Any, seed: int | None, *, bounds: bool = True) -> Array:
        rows, _ = env.reset(seed=seed)
        return self._present_rows(env, rows)

    def _present_rows(self, env: Any, rows: Array) -> Array:
        self._acting = env.present.copy()
        present: Array = rows[self._acting]
        return present

    def _masks(self, env: Any) -> list[Any]:
        told = [(env.infos.get(agent) or {}).get("action_mask") for agent in env.agents]
        return [info if mask is None else mask for info, mask in zip(told, env.masks, strict=True)]

    def _sample_actions(self, env: Any) -> list[Any]:
        masks = self._masks(env)
        return [space.sample(mask) for space, mask in zip(env.action_space.spaces, masks, strict=True)]

    def _read(self, env: Any, result: Any, *, bounds: bool) -> _Step:
        rows, rewards, terminated, truncated, _ = result
        env.require_finite()
        acted = self._acting
        return _Step(
            self._present_rows(env, rows),
            rewards[acted].tolist(),
            acted,
            terminated | truncated,
            not env.present.any(),
        )


@contextlib.contextmanager
def _reported(report: EnvReport, what: str) -> Iterator[None]:
    """Report what an environment raises, and unusable values that it returns, as errors."""
    try:
        yield
    except (ConfigurationError, KeyboardInterrupt):
        raise
    except BadValueError as error:
        after = f" after {report.steps} steps" if report.steps else ""
        report.add("error", f"{error}{after}")
    except EnvError as error:
        report.add("error", str(error))
    except gym.error.Error as error:
        report.add("error", f"{what}: {error}", WHERE_TO_LOOK)
    except Exception as error:
        after = f" after {report.steps} steps" if report.steps else ""
        report.add("error", f"{what}{after}: {describe_error(error)}")


def _same(some: list[Array], others: list[Array]) -> bool:
    return len(some) == len(others) and all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))
