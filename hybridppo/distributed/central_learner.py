"""A learner of `Central`: it samples its share of the environments, and computes gradients of its own rollouts.

It runs in a process of this machine, started as `python -m hybridppo.distributed.central_learner`, or in a Ray actor
(`ray_learners.py`).
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from hybridppo.agents import PPO
from hybridppo.agents.loop import Exchange
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.registry import make_agent
from hybridppo.environments.making import make_environments
from hybridppo.environments.registration import source_here
from hybridppo.errors import TrainingError
from hybridppo.networks.modes import float32_products
from hybridppo.networks.normalization import Moments
from hybridppo.placements.single_device import SingleDevice
from hybridppo.runners.processes import Trainer, main
from hybridppo.runners.sampler import LocalFiller, RolloutPlan, Sampler
from hybridppo.system.seeds import seed_globals, seed_of
from hybridppo.system.threads import limit_threads


class Talk(Protocol):
    """Sends the server a message and waits for its reply."""

    def __call__(self, kind: str, value: Any = None) -> tuple[str, Any]:
        """Return the kind and the value of the reply."""


class Served(Exchange):
    """Sends the gradient of each minibatch to the server, and continues with the parameters that the server returns.

    Args:
        agent: the learner's agent.
        talk: sends messages to the server.
    """

    is_alone = False

    def __init__(self, agent: PPO, talk: Talk) -> None:
        self._agent, self._talk, self._num_left = agent, talk, 0
        self.seen: dict[str, tuple[Any, Any, int]] = {}
        """The moments of the observations and returns of this update."""

    def moments(self, what: str, own: Sequence[Moments]) -> Moments:
        """As in the base; they are kept in `seen`."""
        mean, variance, number = super().moments(what, own)
        self.seen[what] = mean.numpy(), variance.numpy(), number
        return mean, variance, number

    def minibatches(self, backend: Backend, epoch: Any, sizes: Sequence[int]) -> Any:
        """As in the base."""
        found = super().minibatches(backend, epoch, sizes)
        self._num_left = len(sizes)
        self._take_parameters(self._talk("begin"))
        return found

    def descend(self, descend: Callable[[], Any]) -> float:
        """Let the server make the step."""
        self._num_left -= 1
        return self._take_parameters(self._talk("gradient", (self._agent.parameters.gradient.numpy(), self._num_left)))

    def _take_parameters(self, reply: tuple[str, Any]) -> float:
        """Return the norm of the last gradient."""
        _, (norm, parameters) = reply
        self._agent.parameters.values.data.copy_(torch.from_numpy(parameters))
        return float(norm)


class Learner:
    """The environments and the agent of a learner.

    Args:
        setup: the settings and parts that all learners have in common.
        envs: its share of the environments.
        env_seed: seed of the first of them.
    """

    def __init__(self, setup: dict[str, Any], envs: slice, env_seed: int) -> None:
        config, self._seed, self._number = setup["config"], setup["seed"], envs.start // setup["config"].num_envs
        self._threads = config.torch_threads or 1
        seed_globals(env_seed, "making environments")
        source = source_here(setup["source"], setup["options"].imports)
        self._environments = environments = make_environments(
            source, config.num_envs, setup["options"], first=envs.start
        )
        try:
            spaces = environments.observation_space, environments.action_space
            agent = make_agent(setup["kind"], *spaces, config, seed=self._own_seed("agent"), **setup["own"])
            assert isinstance(agent, PPO)  # the server has checked it
            self._agent = agent
            self._noise = np.random.default_rng(self._own_seed("noise"))
            plan = RolloutPlan(agent.distribution, self._noise, env_seed, config.num_steps, memory=agent.memory)
            self._filler = LocalFiller(environments, plan)
            self._sampler = Sampler(self._filler, plan)
        except BaseException:
            self.close()
            raise
        self.heartbeat = np.zeros(1, np.int64)
        """`[1]`, the number of rows of the rollout that are sampled."""

    def _own_seed(self, what: str) -> int:
        """The first learner draws the numbers that a training in one process draws."""
        return seed_of(self._seed, what if self._number == 0 else f"{what} of learner {self._number}")

    def learn(self, talk: Talk) -> None:
        """Do the tasks of the server, until `talk` raises."""
        agent, cpu = self._agent, SingleDevice("cpu")
        self._filler.heartbeat = self.heartbeat
        served = Served(agent, talk)
        agent.share(lambda: served)
        products = float32_products(agent.config.precision, cpu.sampling_device, cpu.learning_device)
        with limit_threads(self._threads), products:
            cpu.prepare(agent)
            answer: tuple[str, Any] = ("ready", None)
            while True:
                kind, task = talk(*answer)
                agent.parameters.values.data.copy_(torch.from_numpy(task["parameters"]))
                if kind == "restart":
                    self._sampler.restart(task["envs"])
                    self._noise.bit_generator.state = np.random.default_rng(task["noise"]).bit_generator.state
                    answer = "ready", None
                    continue
                try:
                    answer = "done", self._update(task, served, cpu)
                except TrainingError as error:
                    answer = "diverged", str(error)

    def _update(self, task: dict[str, Any], served: Served, cpu: SingleDevice) -> dict[str, Any]:
        """Sample a rollout, and learn from it; return the data that the server counts."""
        agent, sampler = self._agent, self._sampler
        agent.version, agent.config = task["version"], task["config"]
        for name, part in agent.normalization.parts.items():
            part.moments.load_state_dict({key: torch.from_numpy(array) for key, array in task["moments"][name].items()})
        agent.anneal(task["share_done"])
        begun, steps, restarts = time.perf_counter(), sampler.counts.env_steps, sampler.counts.env_restarts
        episodes = sampler.counts.statistics.episodes
        with cpu.sampling(agent) as actor:
            rollout = sampler.collect(actor)
        sampled = time.perf_counter()
        served.seen = {}
        with cpu.learning(agent):
            metrics = agent.update(cpu.to_learner(rollout))
        return {
            "metrics": metrics,
            "version": rollout.version,
            "seen": served.seen,
            "episodes": sampler.counts.statistics.since(episodes),
            "env_steps": sampler.counts.env_steps - steps,
            "env_restarts": sampler.counts.env_restarts - restarts,
            "seconds": (sampled - begun, time.perf_counter() - sampled),
        }

    def close(self) -> None:
        """Release the environments."""
        self._environments.close()


def serve(trainer: Trainer) -> None:
    """Make the learner, and let it talk through the connection."""

    def talk(kind: str, value: Any = None) -> tuple[str, Any]:
        trainer.connection.send(("done", (kind, value), 0.0))
        reply: tuple[str, Any] = trainer.connection.recv()
        if reply[0] == "close":
            raise EOFError
        return reply

    learner = Learner(trainer.setup, trainer.envs, trainer.seed)
    learner.heartbeat = trainer.heartbeat
    try:
        learner.learn(talk)
    finally:
        learner.close()


if __name__ == "__main__":
    main(serve)
