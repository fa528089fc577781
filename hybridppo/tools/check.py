"""Finds faults of an environment, says how to fix them, and measures the speed of its steps.

    report = hybridppo.check_env("CartPole-v1")
    print(report)

The environment is made and stepped as in a training. If there are errors, a training would fail. Warnings name frequent
reasons why learning fails.
"""

import contextlib
import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.base import Environments
from hybridppo.environments.checks import describe_error, doubts_about
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvSource
from hybridppo.environments.packages import import_modules, package_of, source_of
from hybridppo.environments.pickling import pack
from hybridppo.environments.sub_environments import SubEnvironments
from hybridppo.environments.vector import VectorEnvironments
from hybridppo.environments.wrappers import mask_for_sample
from hybridppo.errors import ConfigurationError, EnvError, EnvStateError, failures, shown_name
from hybridppo.spaces.arrays import Array
from hybridppo.spaces.observations import ObservationEncoder
from hybridppo.spaces.of_agents import SpacesOfAgents
from hybridppo.system.messages import shown_seconds
from hybridppo.system.seeds import generators_untouched
from hybridppo.system.validation import require_seconds, require_whole

STEPS_TO_REPEAT, TIMES_REPEATED = 100, 6
"""The most steps that are repeated, to check that a seed gives the same episode and that a state can be restored; and
how often they are, each time after a reset and at most in a new environment."""
SECONDS_WORTH_WORKERS = 100e-6
"""If a step takes longer than this, worker processes make steps faster, if there are cores for them."""
SECONDS_TO_CHECK = 10.0
"""The time limit; random steps have half of it."""
MORE_TIME = "for more, check_env(..., seconds=60), or --seconds 60"
Severity = Literal["error", "warning", "note"]

STEPS_OF_AN_EPISODE = 500
"""Within fewer steps than this, it is normal that no episode ends."""
LARGE = 100.0
"""An agent learns slowly from numbers larger than this."""


@dataclass(frozen=True)
class Finding:
    """One thing about an environment."""

    severity: Severity
    what: str
    """The finding, in words."""
    fix: str = ""
    """The remedy."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.what}" + (f" -> {self.fix}" if self.fix else "")


@dataclass
class EnvReport:
    """The findings and measurements."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    steps: int = 0
    """Steps made."""
    seconds_per_step: float = float("nan")
    """Median, without resets."""
    seconds_per_reset: float = float("nan")
    episode_lengths: list[int] = field(default_factory=list)

    @property
    def is_usable(self) -> bool:
        """Whether it can be trained in."""
        return not any(finding.severity == "error" for finding in self.findings)

    def add(self, severity: Severity, what: str, fix: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(severity, what, fix))

    def __str__(self) -> str:
        order = get_args(Severity).index
        lines = [str(finding) for finding in sorted(self.findings, key=lambda finding: order(finding.severity))]
        if self.steps and np.isfinite(self.seconds_per_step):  # there is none where stepping was broken off
            times = [f"{self.steps:,} steps: {shown_seconds(self.seconds_per_step)} a step"]
            times += [f"{shown_seconds(self.seconds_per_reset)} a reset"] if np.isfinite(self.seconds_per_reset) else []
            times += [f"episodes of {np.mean(self.episode_lengths):.0f} steps"] if self.episode_lengths else []
            lines.append(", ".join(times))
        lines.append(f"{'OK: hybridppo can' if self.is_usable else 'hybridppo cannot'} train in {self.name}")
        return "\n".join(lines)


class Seen:
    """Statistics of random steps: observations, rewards and times."""

    def __init__(self, encode: ObservationEncoder) -> None:
        self._encode = encode
        self.extremes = np.outer((np.inf, -np.inf), np.ones(encode.layout.num_numbers))
        """The smallest and the largest value of each number of an observation."""
        self.outside: str | None = None
        """A warning of an observation out of bounds."""
        self.rewards: list[float] = []
        self.step_seconds: list[float] = []
        self.reset_seconds: list[float] = []

    def add(self, rows: Array, left_out: Array, rewards: list[float]) -> None:
        """Add rows `[N, *shape]`, but those left out, and rewards."""
        self.rewards += rewards
        self.outside = self.outside or self._encode.warning_of_bounds(rows[None], left_out[None])
        numbers = self._encode.layout.numbers(rows[~left_out])
        if numbers.size:  # images have none
            least, most = self.extremes
            np.minimum(least, numbers.min(0), out=least)
            np.maximum(most, numbers.max(0), out=most)

    def judge(self, report: EnvReport) -> None:
        """Report the times, and frequent reasons why learning fails."""
        report.seconds_per_step = float(np.median(self.step_seconds or self.reset_seconds))
        report.seconds_per_reset = float(np.median(self.reset_seconds))
        if self.outside is not None:
            report.add("warning", self.outside, "give the space the true bounds (-inf and inf if there are none)")
        if others := self._encode.others:
            report.add("warning", others, "they are ignored: add them to the space, or leave them out")
        largest, rewards = np.abs(self.extremes).max(0), np.asarray(self.rewards)
        if not report.episode_lengths and report.steps >= STEPS_OF_AN_EPISODE:
            fix = "limit them, as by gymnasium.wrappers.TimeLimit(env, max_episode_steps=1000)"
            report.add("warning", f"no episode ended in {report.steps:,} random steps", fix)
        fix = "PPO normalises {0} (normalize_{0}); for other agents, scale them to about 1"
        if largest.size and largest.max() > LARGE:
            name = self._encode.names[int(largest.argmax())]
            report.add("note", f"observation{name} goes up to {largest.max():g}", fix.format("observations"))
        if np.abs(rewards).max() > LARGE:
            report.add("note", f"rewards go up to {np.abs(rewards).max():g}", fix.format("rewards"))
        if not rewards.any():
            fix = "random actions found none: expect a long training"
            report.add("warning", f"all {len(rewards):,} rewards were 0", fix)
        elif np.ptp(rewards) == 0.0 and len(set(report.episode_lengths)) <= 1:
            of_one_length = ", and all episodes had the same length" if report.episode_lengths else ""
            fix = "random actions made no difference: expect a long training, or check the reward"
            report.add("warning", f"all rewards were {rewards[0]:g}{of_one_length}", fix)


def check_env(
    env: EnvSource,
    *,
    env_kwargs: dict[str, Any] | None = None,
    imports: str = "",
    reward_weights: tuple[float, ...] = (),
    max_items: int = 0,
    steps: int = 2000,
    seconds: float = SECONDS_TO_CHECK,
    seed: int = 0,
) -> EnvReport:
    """Make an environment, step it with random actions, and report.

    Args:
        env: an environment's id; a function that makes one, also of several agents or of tensors; or an environment of
            tensors.
        env_kwargs: as for `train`.
        imports: as for `train`.
        reward_weights: as for `train`.
        max_items: as for `train`.
        steps: the largest number of steps to make.
        seconds: the time limit, in seconds. The report has the number of steps made, and what there was no time for.
        seed: seed of the resets and of the actions.

    Raises:
        EnvError: if a module of `imports` cannot be imported.
        ConfigurationError: for invalid numbers or arguments, and for a function that makes a vector: check one of its
            environments.
    """
    steps, seed = require_whole("steps", steps), require_whole("seed", seed, 0, below=2**128)
    seconds = require_seconds("seconds", seconds)
    begun = time.perf_counter()
    import_modules(imports)
    report = EnvReport(env if isinstance(env, str) else shown_name(env))
    if note := package_of(env).note:
        report.add("note", note)
    if isinstance(env, str):  # gymnasium makes no multi-agent environments
        entry_point: Any = getattr(gym.registry.get(env), "entry_point", None)
        env = entry_point if getattr(entry_point, "policies", None) else env
    with contextlib.ExitStack() as stack, _reported(report, "it fails"):
        with _reported(report, "it cannot be made"):
            options = {"env_kwargs": env_kwargs, "reward_weights": reward_weights, "max_items": max_items}
            check = _Check(env, report, seed, options)
        if report.is_usable:
            stack.callback(check.environments.close)
            check.look_at_spaces()
            check.step_randomly(steps, begun + seconds / 2)
            check.look_at_sending()
            check.repeat_steps(begun + seconds)
    return report


class _Check:
    """A check of the environments that a training would step: one, or as many as an object of tensors has."""

    def __init__(self, source: EnvSource, report: EnvReport, seed: int, options: dict[str, Any]) -> None:
        self._source, self._report, self._seed, self._options = source, report, seed, options
        self._has_masks = True
        try:
            with contextlib.closing(self._make()) as environments:
                environments.reset(seed)
        except (EnvError, ConfigurationError):  # without masks; another error comes again
            self._has_masks = False
        self.environments = self._make()
        if isinstance(self.environments, VectorEnvironments):
            self.environments.close()
            made = type(self.environments.vector).__name__
            raise ConfigurationError(f"{report.name} makes a {made}: check one of its environments")

    def _make(self) -> Environments:
        start = time.perf_counter()
        vectorization = "sync" if isinstance(source_of(self._source), str) else "auto"
        options = {"vectorization": vectorization, "action_masks": self._has_masks, **self._options}
        made = make_environments(self._source, 1, own_number=True, **options)
        self._seconds_to_make = time.perf_counter() - start
        return made

    def look_at_spaces(self) -> None:
        """Report agents, devices, and the bounds of actions."""
        environments, report = self.environments, self._report
        distribution_for(environments.action_space)
        if environments.device is not None:
            report.add("note", f"its tensors are on {environments.device}", "it is sampled there")
        if environments.agents:
            spaces = environments.observation_space, environments.action_space
            differ = any(isinstance(space, SpacesOfAgents) for space in spaces)
            share = "whose spaces differ: train a policy for each kind" if differ else "which may share a policy"
            names = ", ".join(environments.agents)
            report.add("note", f"it has {len(environments.agents)} agents, {share}: {names}", "a row for each of them")
        if isinstance(environments, SubEnvironments):
            self._check_compiled_form(getattr(environments.sub_environments[0].env.unwrapped, "definition", None))
        for what, fix in doubts_about(environments):
            report.add("warning", what, fix)
        for image in environments.encode.layout.images:
            order = "first" if image.channels_first else "last"
            what = f"it shows images of {image.height} x {image.width} pixels and {image.channels} channels, {order}"
            report.add("note", what, "transpose them in the environment if that is wrong")
        actions = environments.action_space
        if isinstance(actions, gym.spaces.Box) and isinstance(distribution_for(actions), DiagonalGaussian):
            bounds = np.concatenate((actions.low.ravel(), actions.high.ravel()))
            if not np.isfinite(bounds).all():
                report.add("note", "its actions are not bounded", "actions begin as normals of deviation 1")
            elif bounds.size and not 0.1 <= np.abs(bounds).max() <= 10.0:
                what = f"its actions go up to {np.abs(bounds).max():g}, and begin as normals of deviation 1"
                fix = "use squash_actions=True, or the wrapper gymnasium.wrappers.RescaleAction(env, -1.0, 1.0)"
                report.add("warning", what, fix)

    def _check_compiled_form(self, definition: Any) -> None:
        """What only compiled code refuses, if the environment is the Python form of a compiled one."""
        if definition is None:
            return
        from hybridppo.compiled.definition import Definition
        from hybridppo.compiled.rehearsal import phases_that_race, rehearse

        if not isinstance(definition, Definition):  # an attribute of the environment's own
            return
        for problem in phases_that_race(definition) if definition.policies else ():
            self._report.add("error", problem)
        try:
            _ = definition.sources
            rehearse(definition)
        except EnvError as error:
            self._report.add("warning", str(error), "correct it, or train without vectorization='compiled'")

    def step_randomly(self, steps: int, end: float) -> None:
        """Make this number of steps, or as many as there is time for until `end`, and report."""
        environments, report, seen = self.environments, self._report, Seen(self.environments.encode)
        num_envs = environments.num_envs // environments.num_agents
        sample = _sampler(environments, self._seed)
        begun = start = time.perf_counter()
        before = environments.reset(self._seed).copy()
        seen.reset_seconds.append(time.perf_counter() - start)
        lengths = np.zeros(environments.num_envs, np.int64)
        num_truncated = num_unknown = 0
        while report.steps < steps:
            actions = sample()
            start = time.perf_counter()
            if report.steps and start > end:
                report.add("note", f"{report.steps:,} of {steps:,} steps took {start - begun:.0f} s", MORE_TIME)
                break
            rows, rewards, terminated, truncated, final_envs, _ = environments.step(actions)
            took = time.perf_counter() - start
            report.steps += num_envs
            nobody = np.zeros_like(terminated)
            absent, waiting = (nobody if who is None else who for who in (environments.absent, environments.waiting))
            ended = (terminated | truncated) & ~absent
            # A step that ends an episode includes a reset.
            (seen.reset_seconds if ended.any() else seen.step_seconds).append(took)
            seen.add(before, absent | waiting, rewards[~absent].tolist())
            before = rows.copy()
            lengths += ~absent
            report.episode_lengths += lengths[ended].tolist()
            lengths[ended] = 0
            were_cut = int((truncated & ~terminated).sum())
            num_truncated += were_cut
            num_unknown += were_cut - len(final_envs)
        if num_unknown:
            what = f"{num_unknown} of {num_truncated} truncated episodes came without infos['final_obs']"
            fix = "give it: else the value of the observation before the last action stands for what followed"
            report.add("warning", what, fix)
        if self._has_masks:  # each step had one
            fix = "train with action_masks=True (--action-masks)"
            report.add("note", "it says which actions are allowed ('action_mask')", fix)
        seen.judge(report)
        if report.seconds_per_step > SECONDS_WORTH_WORKERS and environments.device is None:
            fix = (
                "worker processes may pay, with any network: num_workers=2 and more, or placement auto, which measures "
                "it (if only torch can compute the network, with torch_threads=None)"
            )
            report.add("note", f"a step takes {shown_seconds(report.seconds_per_step)}", fix)

    def look_at_sending(self) -> None:
        """Report an environment that cannot be sent to workers."""
        if self.environments.device is None:
            try:
                pack({"source": self._source})
            except EnvError as error:
                self._report.add("note", str(error))

    def repeat_steps(self, end: float) -> None:
        """Check that a seed gives the same episode, and that a state can be saved and restored, if there is time."""
        report, left = self._report, end - time.perf_counter()
        each = left / TIMES_REPEATED - self._seconds_to_make - report.seconds_per_reset
        self._num_repeated = int(min(STEPS_TO_REPEAT, each / max(report.seconds_per_step, 1e-9)))
        if self._num_repeated < 1:
            what = "there was no time to repeat an episode by its seed, or to save and restore a state"
            report.add("note", what, MORE_TIME)
            return
        self._repeat_an_episode()
        if self.environments.device is None:
            self._save_and_restore()
        else:
            self._look_at_tensors_of_state()

    def _repeat_an_episode(self) -> None:
        """Check that a seed gives the same episode, also with other states of the global generators."""
        first = self._trajectory(global_seed=0)
        if not _same(first, self._trajectory(global_seed=0)):
            fix = "draw only from what reset(seed=...) seeds, as self.np_random after super().reset(seed=seed)"
            self._report.add("warning", "the same seed gave two different episodes", fix)
        elif not _same(first, self._trajectory(global_seed=1)):
            fix = "draw from self.np_random: else the seed does not fix the result"
            self._report.add("warning", "it draws from Python's or NumPy's global generator", fix)

    def _trajectory(self, global_seed: int) -> list[Array]:
        """The rows and rewards of some steps from the seed on, in new environments."""
        with contextlib.closing(self._make()) as environments, generators_untouched(global_seed):
            return [environments.reset(self._seed).copy(), *self._steps(environments)]

    def _steps(self, environments: Environments) -> Iterator[Array]:
        sample = _sampler(environments, self._seed)
        for _ in range(self._num_repeated):
            rows, rewards, *_ = environments.step(sample())
            yield from (rows.copy(), rewards.copy())

    def _save_and_restore(self) -> None:
        """Check that another environment goes on as this one from its state."""
        sample, actions = _sampler(self.environments, self._seed), []
        try:
            self.environments.reset(self._seed)
            for _ in range(self._num_repeated):
                actions.append(sample())
                rows = self.environments.step(actions[-1])[0]
            states = self.environments.state()
            longest = max(state.get("episode_steps", 0) for state in states)
            with contextlib.closing(self._make()) as others:
                others.reset(self._seed)
                states = [{**state, "actions": True} for state in states]
                others.load_state(states, rows, actions[len(actions) - longest :])
        except EnvStateError as error:
            fix = "a resumed run starts new episodes; get_state() and set_state(state) would make it exact"
            self._report.add("note", f"its state cannot be saved and restored: {error}", fix)

    def _look_at_tensors_of_state(self) -> None:
        """Check that a saved state of tensors gives the same steps again."""
        environments: Any = self.environments
        try:
            saved, agents = environments.tensors_of_state(), environments.of_agents
            present = None if agents is None else agents.present
            first = list(self._steps(environments))
            environments.load_tensors(saved)
            if agents is not None:
                agents.present = present
            if not _same(first, list(self._steps(environments))):
                self._report.add(
                    "warning", "its get_state() does not hold all of its state", "a resumed run is not exact"
                )
        except EnvStateError as error:
            self._report.add("note", f"its state cannot be saved: {error}", "a resumed run starts new episodes")


def _sampler(environments: Environments, seed: int) -> Any:
    """A function that draws allowed actions for all columns, from spaces seeded with `seed`."""
    space, count = environments.action_space, environments.num_envs
    if environments.device is not None and isinstance(space, SpacesOfAgents):
        each = gym.spaces.Tuple([*space.spaces.values()] * (count // environments.num_agents))
        each.seed(seed)
        return lambda: list(each.sample())
    if not isinstance(environments, SubEnvironments):
        batch = gym.vector.utils.batch_space(space, count)
        batch.seed(seed)
        return batch.sample
    env: Any = environments.sub_environments[0].env
    has_agents = bool(environments.agents)
    # Copies: the environment may draw from its own.
    spaces = gym.spaces.Tuple(copy.deepcopy(env.action_space.spaces if has_agents else [space]))
    spaces.seed(seed)

    def sample() -> Any:
        masks = env.masks if has_agents else [getattr(env, "mask", None)]
        pairs = zip(spaces.spaces, masks, strict=True)
        actions = [each.sample(mask_for_sample(each, mask)) for each, mask in pairs]
        if isinstance(space, SpacesOfAgents):
            return actions
        empty: Any = create_empty_array(space, count)
        return concatenate(space, actions, empty)

    return sample


@contextlib.contextmanager
def _reported(report: EnvReport, what: str) -> Iterator[None]:
    """A context in which an error of the environment becomes an error in the report."""
    try:
        yield
    except (ConfigurationError, KeyboardInterrupt):
        raise
    except EnvError as error:
        report.add("error", str(error))
    except failures() as error:
        report.add("error", f"{what}: {describe_error(error)}")


def _same(some: list[Array], others: list[Array]) -> bool:
    return len(some) == len(others) and all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))
