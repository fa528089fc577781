"""A server of parameters, and learners that send it gradients, each at its own pace (`Central`). All are Ray actors.

A learner samples a rollout with the newest parameters, and computes the gradient of each minibatch. The server steps
along a gradient, and returns the newest parameters. The process that called `train` counts finished updates.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import numpy as np
import ray
import ray.exceptions
import torch
from torch import Tensor

from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.agent import Exchange
from hybridppo.agents.registry import make_agent
from hybridppo.distributed.ray_actors import RayWorker, unpacked
from hybridppo.distributed.ray_workers import RayPool, folders, reason_of
from hybridppo.environments.base import Steering, steering_refused
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.environments.packages import source_here, to_send
from hybridppo.environments.pickling import ALONE, pack
from hybridppo.errors import DistributedError, EnvError, EnvStateError, TrainingError
from hybridppo.interfaces import Metrics
from hybridppo.networks.actors import Moments
from hybridppo.networks.modes import float32_products
from hybridppo.placements.placement import SingleDevice
from hybridppo.runners.assembly import make_sampler
from hybridppo.runners.counts import Counts
from hybridppo.runners.process_group import on_host
from hybridppo.runners.processes import WorkerLostError, close_probe
from hybridppo.runners.runner import Runner
from hybridppo.runners.sampler import RolloutPlan, Sampler
from hybridppo.runners.sharded_sampler import EnvironmentShards
from hybridppo.settings import Plan
from hybridppo.system.seeds import seed_globals, seed_of
from hybridppo.system.signals import Stopped
from hybridppo.system.threads import limit_threads

SECONDS_BETWEEN_LOOKS = 0.25
"""Seconds to wait for an update before the loop checks whether the run was asked to stop."""


class BoundedLag:
    """Decides which learner may compute a gradient, and which may step.

    The version of the parameters counts optimizer steps. At most `max_lag + 1` learners compute at the same time. A
    learner with a gradient waits for those that began before it, if its step would make their gradients too old; the
    learner that began first never waits. So no gradient is dropped. Source: Li et al., "Scaling Distributed Machine
    Learning with the Parameter Server", 2014, bounded delay.

    Args:
        max_lag: the most optimizer steps between the parameters of a gradient and its own step.
        version: the present version of the parameters.
    """

    def __init__(self, max_lag: int, version: int = 0) -> None:
        self.max_lag, self.version = max_lag, version
        self._computing: dict[int, int] = {}
        """The version with which each learner computes, in the order in which they began."""

    def may_begin(self) -> bool:
        """Whether another learner may begin: if all end in the order in which they began, no gradient is too old."""
        return len(self._computing) <= self.max_lag

    def begin(self, learner: int) -> None:
        """Note that a learner begins to compute with the present parameters."""
        self._computing[learner] = self.version

    def may_step(self, learner: int) -> bool:
        """Whether the learner's step would leave the gradients of all that began before it young enough."""
        for place, (other, version) in enumerate(self._computing.items()):
            if other == learner:
                return True
            if self.version + 1 + place - version > self.max_lag:
                return False
        raise KeyError(learner)

    def step(self, learner: int) -> int:
        """Note that the learner's step is made; return the lag of its gradient."""
        lag = self.version - self._computing.pop(learner)
        self.version += 1
        return lag


class ParameterServer:
    """Holds the parameters, the optimizer and the moments of all. Learners call it at the same time, in threads.

    Args:
        setup: the packed setup of the learners.
        path: the folders of the trainer's modules.
        max_lag: see `BoundedLag`.
    """

    def __init__(self, setup: bytes, path: list[str], max_lag: int) -> None:
        made = unpacked(setup, path)
        self._agent: Any = make_agent(
            made["kind"], made["observation_space"], made["action_space"], made["config"], seed=0, **made["own"]
        )
        self._lag = BoundedLag(max_lag)
        self._changed = threading.Condition()
        torch.set_num_threads(1)

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Take over an agent's state; no learner computes."""
        with self._changed:
            self._agent.load_state(tensors, state)
            made = int(self._agent.optimizer.state[self._agent.parameters.values]["step"])
            self._lag = BoundedLag(self._lag.max_lag, made)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The agent's state."""
        with self._changed:
            tensors, state = self._agent.state()
            return on_host(tensors), state

    def newest(self, config: PPOConfig, share_done: float) -> tuple[int, Tensor, dict[str, Any]]:
        """The version, the parameters and the moments for a rollout; steps have these settings from now on."""
        with self._changed:
            self._agent.config = config
            self._agent.anneal(share_done)
            parts = self._agent.normalization.parts
            moments = {name: on_host(part.moments.state_dict()) for name, part in parts.items()}
            return self._lag.version, self._parameters(), moments

    def exchange(self, learner: int, gradient: Tensor | None, goes_on: bool) -> tuple[int, int, float, int, Tensor]:
        """Step along a learner's gradient, if there is one, and let it begin another, each as soon as it may.

        Returns:
            How often the learner had to wait, the lag and the norm of the gradient, and the version and values of the
            parameters.
        """
        with self._changed:
            waits, lag, norm = 0, 0, 0.0
            if gradient is not None:
                waits += self._waited(lambda: self._lag.may_step(learner))
                norm = self._descend(gradient)
                lag = self._lag.step(learner)
                self._changed.notify_all()
            if goes_on:
                waits += self._waited(self._lag.may_begin)
                self._lag.begin(learner)
            return waits, lag, norm, self._lag.version, self._parameters()

    def _waited(self, may_go_on: Callable[[], bool]) -> bool:
        """Wait until the learner may go on; return whether it had to wait."""
        waits = not may_go_on()
        self._changed.wait_for(may_go_on)
        return waits

    def _descend(self, gradient: Tensor) -> float:
        agent = self._agent
        agent.parameters.gradient.copy_(gradient)
        agent.parameters.zero_frozen()
        agent.optimizer.forget(agent.parameters.frozen)
        with np.errstate(over="ignore", invalid="ignore"):  # the norm shows it
            norm = float(agent.loop().backend.descend())
        if not math.isfinite(norm):
            raise TrainingError(
                f"its gradient after {self._lag.version} steps is not finite. Usual causes: a learning rate that "
                f"is too large (learning_rate is {agent.config.learning_rate:g}), rewards or observations that are "
                "not normalised. The parameters are lost and not saved: fix the cause, and start anew or from the "
                "last checkpoint, which was written before"
            )
        return norm

    def merge(self, what: str, moments: Moments) -> None:
        """Add the moments of a learner's observations or rewards to those of all."""
        with self._changed:
            self._agent.normalization.parts[what].merge(*moments)

    def _parameters(self) -> Tensor:
        return self._agent.parameters.values.detach().clone()


class Served(Exchange):
    """Sends the gradient of each minibatch to the server, and continues with the parameters that the server returns.

    Args:
        agent: the learner's agent.
        server: the server's actor.
        learner: the number of the learner.
        heartbeat: `[1]`, also grows with each gradient.
    """

    is_alone = False

    def __init__(self, agent: PPO, server: Any, learner: int, heartbeat: Any) -> None:
        self._agent, self._server, self._learner, self._heartbeat = agent, server, learner, heartbeat
        self._num_left = self._waits = 0
        self._lags: list[int] = []
        self.begun_at: int | None = None
        """The version with which the first gradient was computed; None without a step in the rollout."""

    def moments(self, what: str, own: Sequence[Moments]) -> Moments:
        """As in the base; the server merges them with those of all."""
        found = super().moments(what, own)
        call(self._server.merge, what, found)
        return found

    def minibatches(self, backend: Any, epoch: Any, sizes: Sequence[int]) -> Any:
        """As in the base."""
        found = super().minibatches(backend, epoch, sizes)
        self._num_left = len(sizes)
        version = self._exchange(None)[-1]
        self.begun_at = version if self.begun_at is None else self.begun_at
        return found

    def descent_by(self, backend: Any) -> Callable[[Any], float]:
        """As in the base."""
        return self._descend

    def _descend(self, setting: Any) -> float:
        """Let the server make the step."""
        self._num_left -= 1
        lag, norm, _ = self._exchange(self._agent.parameters.gradient)
        self._lags.append(lag)
        self._heartbeat[0] += 1
        return norm

    def _exchange(self, gradient: Tensor | None) -> tuple[int, float, int]:
        """Take the newest parameters, after a step along the gradient; its lag and norm, and their version."""
        waits, lag, norm, version, parameters = call(self._server.exchange, self._learner, gradient, self._num_left > 0)
        self._waits += waits
        self._agent.parameters.values.data.copy_(parameters)
        return lag, norm, version

    def metrics(self) -> Metrics:
        """The metrics of the learner's gradients."""
        return {
            "learner": self._learner,
            "gradient_lag_mean": sum(self._lags) / max(1, len(self._lags)),
            "gradient_lag_max": max(self._lags, default=0),
            "gradient_waits": self._waits,
        }


def call(method: Any, *arguments: Any) -> Any:
    """The result of a method of the server; its own errors are raised as they are."""
    try:
        return ray.get(method.remote(*arguments))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise DistributedError(f"the server of parameters is lost: {reason_of(error)}") from error


class RemoteLearner(RayWorker):
    """The environments and the agent of a learner."""

    def make(self, setup: dict[str, Any], envs: slice, seed: int) -> None:
        """Make them; the first learner draws the numbers that a training in one process draws."""
        config, number = setup["config"], envs.start // setup["config"].num_envs
        self._number = number
        of_learner = "" if number == 0 else f" of learner {number}"
        seed_globals(seed, "making environments")
        source = source_here(setup["source"], setup["options"].imports)
        self._environments = made = make_environments(source, config.num_envs, setup["options"], first=envs.start)
        spaces = made.observation_space, made.action_space
        agent_seed = seed_of(setup["seed"], f"agent{of_learner}")
        self._agent: Any = make_agent(setup["kind"], *spaces, config, seed=agent_seed, **setup["own"])
        self._noise = np.random.default_rng(seed_of(setup["seed"], f"noise{of_learner}"))
        cpu = SingleDevice("cpu")
        self._sampler = make_sampler(
            source, made, self._agent, cpu, num_steps=config.num_steps, num_workers=0, options=setup["options"],
            env_seed=seed, noise=self._noise,
        )  # fmt: skip
        self.heartbeat = self._sampler._environments.heartbeat
        cpu.prepare(self._agent)

    def answer(self, kind: str, value: Any) -> Any:
        """Restart the environments; or sample a rollout, learn from it, and return what is counted."""
        if kind == "restart":
            env_seed, noise_seed = value
            self._sampler.restart(env_seed)
            self._noise.bit_generator.state = np.random.default_rng(noise_seed).bit_generator.state
            return None
        server, config, share_done = value
        agent, counts, cpu = self._agent, self._sampler.counts, SingleDevice("cpu")
        agent.version, parameters, moments = call(server.newest, config, share_done)
        agent.parameters.values.data.copy_(parameters)
        for name, part in agent.normalization.parts.items():
            part.moments.load_state_dict(moments[name])
        agent.config = config
        agent.anneal(share_done)
        served = Served(agent, server, self._number, self.heartbeat)
        agent.share(lambda: served)
        begun, before = time.perf_counter(), counts.numbers()
        products = float32_products(config.precision, cpu.sampling_device, cpu.learning_device)
        with limit_threads(config.torch_threads or 1), products:
            with cpu.sampling(agent) as actor:
                rollout = self._sampler.collect(actor)
            sampled = time.perf_counter()
            with cpu.learning(agent):
                metrics = agent.update(cpu.to_learner(rollout))
        return {
            "metrics": metrics | served.metrics(),
            "policy_lag": 0 if served.begun_at is None else served.begun_at - rollout.version,
            "counted": counts.since(before),
            "seconds": (sampled - begun, time.perf_counter() - sampled),
        }

    def close(self) -> None:  # noqa: D102 - as in the base
        self._environments.close()


class Learners(Sampler):
    """The learners, each with an equal share of the environments.

    The loop takes them for the sampler: they count steps and episodes once these are learned from.

    Args:
        plan: the training. Its environments, which are closed, have the spaces and the autoreset mode of the learners';
            its agent gets the server's state.
        learners: number of learners.
        max_lag: see `BoundedLag`.
        options: how environments are made and stepped.
        env_seed: the `i`-th environment starts from `env_seed + i`.
        noise: generator of the run; learners have their own.
    """

    def __init__(
        self, plan: Plan, learners: int, max_lag: int, options: EnvironmentOptions, env_seed: int,
        noise: np.random.Generator,
    ) -> None:  # fmt: skip
        self._agent, self._seed = cast(PPO, plan.agent), plan.settings.seed
        agent, config, template = self._agent, self._agent.config, plan.environments
        out_of_reach = EnvironmentShards([template])  # the environments of learners are
        counts = Counts(out_of_reach, config.num_envs * template.num_agents)
        of_rollouts = RolloutPlan(agent.distribution, noise, env_seed, config.num_steps, memory=agent.memory)
        super().__init__(out_of_reach, of_rollouts, counts)
        close_probe(template)
        share = config.num_envs // learners
        self._envs = [slice(start, start + share) for start in range(0, config.num_envs, share)]
        setup = {
            "source": to_send(plan.env),
            "options": options,
            "config": self._config_of_learners(),
            "kind": type(agent),
            "own": {name: value for name, value in agent.own.items() if name != "agent"},
            "observation_space": agent.observation_space,
            "action_space": agent.action_space,
            "seed": self._seed,
        }
        self._server = ray.remote(num_cpus=0, max_concurrency=learners + 2)(ParameterServer).remote(
            pack(setup, ALONE), folders(), max_lag
        )
        self._pool = RayPool(RemoteLearner, "learner", self._envs, setup)
        self._idle = list(range(learners))
        self._pool.start_all([env_seed + envs.start for envs in self._envs])
        call(self._server.load, *agent.state())

    def _config_of_learners(self) -> PPOConfig:
        """The present settings of the agent, which a callback may change, with the share of each learner."""
        config, number = self._agent.config, len(self._envs)
        own: dict[str, Any] = {"num_envs": config.num_envs // number, "num_minibatches": config.minibatches // number}
        return replace(config, **own, minibatch_size=None)

    def next_update(self, share_done: float) -> dict[str, Any] | None:
        """Let all idle learners learn; the next update that has ended, or None if none ended for a while."""
        task = self._server, self._config_of_learners(), share_done
        while self._idle:
            self._pool.ask(self._idle.pop(0), "learn", task)
        try:
            for learner, answer in self._pool.answers(range(len(self._envs)), patience=SECONDS_BETWEEN_LOOKS):
                if isinstance(answer, WorkerLostError):
                    raise answer
                self._idle.append(learner)
                update: dict[str, Any] | None = answer[0]
                if update is not None:
                    self.counts.add_parts(*zip(update["counted"], strict=True))
                    return update
        except EnvError as error:
            raise DistributedError(str(error)) from error
        return None

    def load_from_server(self) -> None:
        """Give this process's agent the server's state."""
        version = self._agent.version
        self._pool.require_ray()
        try:
            self._agent.load_state(*call(self._server.state))
        except DistributedError:
            self._pool.require_ray(at_once=True)
            raise
        self._agent.version = version

    def restart(self, env_seed: int) -> None:  # noqa: D102 - as in the base
        self._idle = []
        call(self._server.load, *self._agent.state())
        for learner, envs in enumerate(self._envs):
            noise = seed_of(self._seed, f"noise of learner {learner} from {env_seed + envs.start}")
            self._pool.ask(learner, "restart", (env_seed + envs.start, noise))

    def steer(self, steering: Steering) -> list[Any]:  # noqa: D102 - as in the base
        raise steering_refused("those of learners of a server of parameters", "use distributed='local' or 'multi'")

    def close(self) -> None:  # noqa: D102 - as in the base
        self._pool.close()
        if ray.is_initialized():
            ray.kill(self._server)

    def _state_of_environments(self) -> NoReturn:
        raise EnvStateError("learners of a server of parameters step them, each at its own pace")

    def _load_environments(self, tensors: dict[str, Tensor], environments: dict[str, Any]) -> None:
        self._state_of_environments()


class CentralRunner(Runner):
    """Like `Runner`; an iteration is a rollout that one of the learners has learned from.

    The seconds of an iteration, which all learners share, are divided into sampling and learning in the proportion of
    that learner. After a stop, rollouts and updates under way are dropped; only the optimizer steps that were made
    count.
    """

    def iterate(self) -> Metrics:  # noqa: D102 - as in the base
        start = time.perf_counter()
        self.agent.anneal(self.share_done)
        learners = cast(Learners, self.sampler)
        while (update := learners.next_update(self.share_done)) is None:
            if self.is_stopping:
                learners.load_from_server()
                raise Stopped
        learners.load_from_server()
        cast(PPO, self.agent).version += 1
        end = time.perf_counter()
        sampling, learning = (each * (end - start) / sum(update["seconds"]) for each in update["seconds"])
        seconds = {"seconds_sampling": sampling, "seconds_learning": learning, "seconds_copying": 0.0}
        return self._completed(update["metrics"], update["policy_lag"], start, end, seconds)

    def run(self) -> Metrics:  # noqa: D102 - as in the base
        if self.data.rollout is not None:  # sampled under another `distributed=`, and not learned from
            self.drop_rollout()
        return super().run()
