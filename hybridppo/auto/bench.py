"""The environments and the agent that a calibration measures.

One long file: the measurements share what is made for them, and the time that is left.
"""

import contextlib
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hybridppo.agents import PPO, PPOConfig
from hybridppo.auto.decision import decide
from hybridppo.auto.figures import AcceleratorFigures, Calibration, Figures, Work
from hybridppo.auto.forms import measured_forms
from hybridppo.auto.portions import single_epoch, with_steps
from hybridppo.auto.prediction import candidates, predict, seconds_per_step
from hybridppo.auto.timing import stable_median
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions, EnvSource
from hybridppo.errors import HybridPPOError
from hybridppo.networks.precision import float32_products
from hybridppo.placements.base import Placement
from hybridppo.placements.migrating import Migrating
from hybridppo.placements.mirrored import Mirrored
from hybridppo.placements.single_device import SingleDevice
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.runners.workers.sampler import WorkerSampler
from hybridppo.spaces.frames import frames_of
from hybridppo.spaces.state_dependent import exploration_of
from hybridppo.system.accelerator import accelerator_of, is_cuda_awake
from hybridppo.system.threads import limit_threads

logger = logging.getLogger(__name__)

MAX_SECONDS = 5.0
"""What a calibration may take."""
PLANNED_SECONDS, PLANNED_SHARE = 0.85 * MAX_SECONDS, 0.7
"""What is planned with: a measurement may take longer than was thought. (The second as a part of `max_share`.)"""
SECONDS_TO_WAKE_AN_ACCELERATOR = 1.5
"""Until a process that has not used its GPU yet has made its first update there: spent in training, if it is taken."""
SECONDS_TO_START_A_WORKER = 0.2
"""What to set aside for one before the first was started."""
SECONDS_WORTH_THREADS = 2e-3
"""An optimizer step shorter than this gains nothing from a second thread."""
SECONDS_UNTIL_THREADS_SETTLE = 0.05
"""New threads may begin on a core that is busy."""
SECONDS_FOR_SHORT_STEPS = 0.2
"""What steps are timed for several times, where they are that short."""


class Bench:
    """The environments and the agent that are measured, and the time that is left for it."""

    def __init__(
        self,
        source: EnvSource,
        work: Work,
        config: PPOConfig,
        options: EnvironmentOptions | None,
        make_agent: Callable[..., PPO] | None,
        max_share: float,
        calibration: Calibration,
        stack: contextlib.ExitStack,
    ) -> None:
        self._start = time.perf_counter()
        self._source, self._work, self._config, self._options = source, work, config, options
        self._max_share, self._calibration, self._stack = max_share, calibration, stack
        self._fresh_agent = make_agent
        self._environments = self._make(work.num_envs)
        made = time.perf_counter()
        self._seconds_to_make = made - self._start
        # Nobody knows how many epochs target_kl would leave: all are counted.
        self._agent = self._make_agent(replace(config, target_kl=None))
        self._seconds_to_make_an_agent = time.perf_counter() - made
        self.figures: Figures | None = None

    def _make(self, num_envs: int) -> Environments:
        environments = make_environments(self._source, num_envs, self._options)
        self._stack.callback(environments.close)
        return environments

    def _make_agent(self, config: PPOConfig) -> PPO:
        spaces = self._environments.observation_space, self._environments.action_space
        agent = self._fresh_agent(config) if self._fresh_agent is not None else PPO(*spaces, config, seed=0)
        SingleDevice("cpu").prepare(agent)
        return agent

    def time(self, function: Callable[[], object]) -> float:
        """Seconds that it takes."""
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    def _left(self, seconds_per_iteration: float) -> float:
        """What is left of the calibration's time, if an iteration takes so long."""
        run = self._work.iterations * seconds_per_iteration
        allowed = min(PLANNED_SECONDS, PLANNED_SHARE * self._max_share * run)
        return allowed - (time.perf_counter() - self._start) + self._calibration.seconds_once

    def _left_now(self) -> float:
        """What is left, by all that is known: the fastest that may be taken sets the run's length."""
        assert self.figures is not None
        work, figures = self._work, self.figures
        return self._left(min(predict(work, figures, each).iteration for each in candidates(work, figures)))

    def _can_afford(self, seconds: float, what: str) -> bool:
        if seconds <= self._left_now():
            return True
        self._calibration.left_out.append(f"{what}: it would take about {seconds:.2g} s, too much for this run")
        return False

    def measure_steps(self) -> None:
        """Steps of all environments, with their actions, in this process."""
        step = min(self._sample(self._environments, 1, 0.0)[0] for _ in range(2))
        left = self._left(self._work.num_steps * step)
        self._num_steps = max(1, min(self._work.num_steps, int(left / 12 / step)))
        self._step, self._rest, self._rollout = self._sample(self._environments, self._num_steps, left / 3)
        self._action, _ = self._time_actions(SingleDevice("cpu"), left / 20)

    def _sample(self, environments: Environments, num_steps: int, seconds: float) -> tuple[float, float, Rollout]:
        """Seconds of a step, seconds of a rollout beyond its steps, and the last rollout."""
        noise = np.random.default_rng(0)
        sampler = Sampler(
            environments,
            self._agent.distribution,
            num_steps=num_steps,
            env_seed=0,
            noise=noise,
            memory=self._agent.memory,
        )
        rests: list[float] = []
        rollout: list[Rollout] = []

        def collect() -> float:
            with SingleDevice("cpu").sampling(self._agent) as actor:
                start = time.perf_counter()
                rollout[:] = [sampler.collect(actor)]
                rests.append(time.perf_counter() - start - sampler.seconds_filling)
            return sampler.seconds_filling / num_steps

        return stable_median(collect, seconds), statistics.median(rests), rollout[0]

    def _time_actions(self, placement: Placement, seconds: float) -> tuple[float, float]:
        """Seconds of the actor's outputs and the choice of actions for a step of all environments; of them, copying."""
        distribution, observations = self._agent.distribution, self._rollout.observations.numpy()
        frames = frames_of(self._agent.observation_space)
        observations = observations if frames is None else frames.repeated(observations)
        noise = distribution.draw_noise(np.random.default_rng(0), (observations.shape[1],))
        exploration = exploration_of(distribution, noise[None])
        num_calls = max(1, min(32, len(observations) - 1))
        crossings: list[float] = []
        with placement.sampling(self._agent) as actor:

            def act() -> float:
                start, copying = time.perf_counter(), placement.counters.seconds_copying
                for t in range(num_calls):
                    if exploration is not None:
                        exploration.before(0, actor)
                    outputs = actor(observations[t])
                    drawn = noise if exploration is None else exploration.of(actor)
                    distribution.to_env(distribution.sample(outputs, drawn))
                crossings.append((placement.counters.seconds_copying - copying) / num_calls)
                return (time.perf_counter() - start) / num_calls

            act()
            return stable_median(act, seconds), statistics.median(crossings)

    def measure_updates(self) -> None:
        """Updates on the CPU: of one minibatch, from which a whole one follows, or whole where there is time."""
        work, config = self._work, self._config
        num_steps = -(-config.minibatch_size // work.num_envs)
        one = replace(config, num_steps=num_steps, num_minibatches=1, target_kl=None)
        making = time.perf_counter()
        self._learner, self._learned = self._make_agent(one), with_steps(self._rollout, num_steps, self._agent.memory)
        self._learner.fill_pool(self._learned)
        # What the first agent took longer was the loading of what training needs as well.
        again = time.perf_counter() - making
        self._calibration.seconds_once = max(0.0, self._seconds_to_make_an_agent - again)
        self._one, self._one_learned = self._learner, self._learned
        self._shares = work.num_steps / num_steps
        with single_epoch(self._learner):
            loading = self._time_update(self._learner)  # what is made once, for each shape
        first = self._time_update(self._learner)
        self._calibration.seconds_once += max(0.0, loading - first)  # what is compiled was loaded
        whole = first * self._shares
        iteration = work.num_steps * self._step + whole
        if (first + 4 * whole) < 0.7 * self._left(iteration):
            self._learner = self._agent
            self._learned, self._shares = with_steps(self._rollout, work.num_steps, self._agent.memory), 1.0
            self._learner.fill_pool(self._learned)
            self._time_update(self._learner)
        elif self._left(iteration) < 0:
            self._calibration.left_out.append(f"all: a run of about {work.iterations * iteration:.2g} s is too short")
            self._calibration.is_over = True
            return
        update, allowed = whole, 0.4 * self._left(iteration)
        if allowed > first:  # else it has been timed as often as there is time for
            update = self._shares * stable_median(lambda: self._time_update(self._learner), allowed)
        rest = self._rest * work.num_steps / self._num_steps
        self.figures = Figures({work.num_envs: self._step}, self._action, rest, {work.torch_threads: update})

    def _time_update(self, agent: PPO) -> float:
        return self.time(lambda: agent.update(self._learned))

    def _measured(self, **figures: Any) -> None:
        assert self.figures is not None
        assumed = tuple(name for name in self.figures.assumed if name not in figures)
        self.figures = replace(self.figures, assumed=assumed, **figures)

    def measure_publishing(self) -> None:
        """The copy to a replica on the CPU."""
        if self._work.cores > 1:
            mirror = Mirrored("cpu", "cpu", force_copy=True)
            self._measured(publish=self._time_crossing(mirror, self._learner, 0.02 * max(0.0, self._left_now())))

    def _time_crossing(self, placement: Placement, agent: PPO, seconds: float) -> float:
        """Seconds of bringing the actor's parameters to the sampler, and back where they go back."""
        placement.prepare(agent)

        def cross() -> float:
            agent.version += 1  # as an update does
            before = placement.counters.seconds_copying
            with placement.sampling(agent):
                pass
            return placement.counters.seconds_copying - before

        cross()
        return stable_median(cross, seconds)

    def measure_part(self) -> None:
        """Steps of a part of the environments, as a worker process has."""
        work = self._work
        workers = work.num_workers if work.num_workers is not None else min(work.cores, work.num_envs)
        share = -(-work.num_envs // workers) if workers else work.num_envs
        if not work.splits or share == work.num_envs:
            return
        seconds = (3 * self._num_steps * self._step + self._seconds_to_make) * share / work.num_envs
        if self._can_afford(seconds, f"steps of {share} environments"):
            part = self._make(share)
            step, _, _ = self._sample(part, self._num_steps, 0.3 * self._left_now())
            assert self.figures is not None
            self._measured(step={**self.figures.step, share: step})

    def measure_threads(self, any_threads: bool) -> None:
        """Optimizer steps on the CPU with more torch threads, against those with the configured number."""
        assert self.figures is not None
        work, config = self._work, self._config
        update = self.figures.update[work.torch_threads]
        step = update / (config.num_epochs * config.minibatches_of(config.batch_size))
        counts = {2**i for i in range(work.cores.bit_length()) if 2**i <= work.cores} if any_threads else set()
        counts = (counts | {work.cores}) - {work.torch_threads}
        if not counts or step < SECONDS_WORTH_THREADS:
            return
        # Of short steps, medians of several; a long one is a median by itself.
        if not self._can_afford(max(4 * step, min(10 * step, SECONDS_FOR_SHORT_STEPS)), "torch threads"):
            return
        one_epoch = partial(self.time, lambda: self._one.update(self._one_learned))
        with single_epoch(self._one):
            reference = stable_median(one_epoch, 0.1 * self._left_now())
            for threads in sorted(counts):
                few = max(2 * reference, min(4 * reference, SECONDS_FOR_SHORT_STEPS))
                if not self._can_afford(few, f"{threads} torch threads"):
                    return
                with limit_threads(threads):
                    seconds, until = one_epoch(), time.perf_counter() + SECONDS_UNTIL_THREADS_SETTLE
                    while seconds < self._left_now() and time.perf_counter() < until:
                        seconds = one_epoch()
                    if seconds < self._left_now():  # else it is no candidate, and may be many times slower
                        seconds = stable_median(one_epoch, 0.2 * self._left_now())
                self._measured(update={**self.figures.update, threads: update * seconds / reference})

    def measure_forms(self) -> None:
        """Updates on the CPU in another arithmetic."""
        assert self.figures is not None
        update, cores = self.figures.update[self._work.torch_threads], self._work.cores
        forms = measured_forms(
            self._one, self._make_agent, self._one_learned,
            update=update, cores=cores, can_afford=self._can_afford, left=self._left_now,
        )  # fmt: skip
        self.figures = replace(self.figures, forms=forms)

    def measure_accelerator(self, device: str | None) -> None:
        """Actions, updates and all crossings of an accelerator."""
        if device is None:
            return
        assert self.figures is not None
        update = self.figures.update[self._work.torch_threads]
        sleeps = device.startswith("cuda") and not is_cuda_awake()
        # Waking it is no loss where learning there may well be worth it; else it must fit into the calibration.
        if sleeps and self._work.iterations * update < 4 * SECONDS_TO_WAKE_AN_ACCELERATOR:
            cost = SECONDS_TO_WAKE_AN_ACCELERATOR
        else:
            cost = 0.0
        if not self._can_afford(cost, f"placements on {device}"):
            return
        host = self._learned
        try:
            with float32_products(self._config.precision, torch.device(device)):
                figures = self._accelerator_figures(device, host, sleeps)
            self._measured(accelerator=figures)
        except (RuntimeError, HybridPPOError) as error:  # such as too little memory there: the CPU is a choice still
            message = f"placements on {device}: {error}"
            logger.warning("placement auto: left out %s", message)
            self._calibration.left_out.append(message)
        finally:
            for agent in (self._agent, self._learner):
                SingleDevice("cpu").prepare(agent)
            self._learned = host

    def _accelerator_figures(self, device: str, host: Rollout, sleeps: bool) -> AcceleratorFigures:
        start = time.perf_counter()
        force_copy = device == "cpu"
        single, mirror = SingleDevice(device), Mirrored("cpu", device, force_copy=force_copy)
        moving = Migrating("cpu", device, force_copy=force_copy)
        mirror.prepare(self._learner)
        if mirror.pins_rollouts:  # as a sampler does
            host = host.map(accelerator_of(mirror.learning_device).page_locked)
        self._learned = mirror.to_learner(host)
        self._time_update(self._learner)
        if sleeps:
            self._calibration.seconds_once += time.perf_counter() - start
        self._time_update(self._learner)  # where kernels or graphs are made once per shape
        share = 0.08 * max(0.0, self._left_now())
        seconds = stable_median(lambda: self._time_update(self._learner), 2 * share)

        transfer = self._shares * stable_median(partial(self.time, lambda: mirror.to_learner(host)), share)
        remainder = transfer
        if frames_of(self._agent.observation_space) is None:
            rest = replace(host, observations=host.observations[-1:])
            remainder = self._shares * stable_median(partial(self.time, lambda: mirror.to_learner(rest)), share)
        publish = self._time_crossing(mirror, self._learner, share)
        move = self._time_crossing(moving, self._learner, share)
        single.prepare(self._agent)
        action, crossing = self._time_actions(single, share)
        update = self._shares * seconds
        return AcceleratorFigures(device, action, crossing, update, publish, move, transfer, remainder)

    def measure_workers(self, max_lag: int, torch_threads: int | None) -> None:
        """What a worker process really costs, beside a busy core, where workers may be the best.

        One is started, whatever their number: others cost the same, and a start may take seconds where it imports much.
        """
        assert self.figures is not None
        work, ideal = self._work, replace(self.figures, message=0.0, worker_start=0.05, slowdown=1.0, assumed=())
        predictions = [predict(work, ideal, candidate) for candidate in candidates(work, ideal)]
        best = decide(predictions, work, max_lag=max_lag, torch_threads=torch_threads).chosen.candidate
        if best.num_workers == 0:
            return
        share = -(-work.num_envs // best.num_workers)
        filling = self._num_steps * seconds_per_step(self.figures, share, work.num_envs)
        # Another worker or the learner; an update stands in for either.
        has_company = best.num_workers > 1 or (best.max_lag > 0 and best.learning == "cpu")
        learning = self.figures.update[work.torch_threads] * self._one.config.num_steps / work.num_steps
        making = 2 * self._seconds_to_make * share / work.num_envs
        seconds = SECONDS_TO_START_A_WORKER + making + 5 * (max(filling, learning) if has_company else filling)
        if not self._can_afford(seconds, "a worker process"):
            return
        template = self._environments if share == work.num_envs else self._make(share)
        start = time.perf_counter()
        sampler = WorkerSampler(
            self._source,
            template,
            self._agent.distribution,
            self._agent.actor,
            num_workers=1,
            num_steps=self._num_steps,
            env_seed=0,
            noise=np.random.default_rng(0),
            options=self._options,
            memory=self._agent.memory,
        )
        self._stack.callback(sampler.close)
        self._measured(worker_start=time.perf_counter() - start)
        if not self._can_afford(2 * filling, "rollouts of a worker process"):  # where its start took longer
            return
        messages: list[float] = []

        def collect() -> float:
            with SingleDevice("cpu").sampling(self._agent) as actor:
                begun = time.perf_counter()
                sampler.start(actor)
                busy = time.perf_counter()
                while has_company and time.perf_counter() - busy < 0.8 * filling:
                    self._one.update(self._one_learned)
                busy = time.perf_counter() - busy
                sampler.finish()
                if sampler.seconds_filling > busy:
                    messages.append(time.perf_counter() - begun - sampler.seconds_filling - self._rest)
            return sampler.seconds_filling

        collect()
        slowdown = stable_median(collect, 0.5 * self._left_now()) / filling
        message = max(0.0, statistics.median(messages)) if messages else self.figures.message
        self._measured(message=message, slowdown=max(1.0, slowdown))
