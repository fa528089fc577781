"""A learner's process of `Central`, started by `LearnerPool` as `python -m hybridppo.distribution.central_learner`.

It steps its share of the environments by the parameters that it was given, and computes gradients of its own rollouts.
Parameters and gradients cross in shared memory, and who is next in messages. It ends when told to, or with the server.
"""

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from hybridppo.agents import PPO
from hybridppo.agents.common.loop import Exchange
from hybridppo.agents.ppo.backend import Backend
from hybridppo.agents.registry import make_agent
from hybridppo.environments.making import make_environments
from hybridppo.environments.registration import source_here
from hybridppo.errors import TrainingError
from hybridppo.networks.normalization import Moments
from hybridppo.networks.precision import float32_products
from hybridppo.placements.single_device import SingleDevice
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.runners.workers.process import main
from hybridppo.runners.workers.shared_arrays import SharedArrays
from hybridppo.system.seeds import seed_globals, seed_of
from hybridppo.system.threads import limit_threads

FIRST = 0
"""The learner that draws what a training in one process would."""


class Closed(Exception):  # noqa: N818 - no error
    """The server has no more to do."""


class Server:
    """The server of parameters, as a learner has it.

    Args:
        connection: to it.
        parameters: `[P]`, this learner's, which the server writes before it says that the learner goes on.
        gradient: `[P]`, which the learner writes before it says that it has.
        heartbeat: `[2]`; the second number is how many gradients were given.
        agent: the learner's.
    """

    def __init__(
        self, connection: "Connection[Any, Any]", parameters: Any, gradient: Any, heartbeat: Any, agent: PPO
    ) -> None:
        self._connection, self._heartbeat, self._agent = connection, heartbeat, agent
        self._parameters, self._gradient = torch.from_numpy(parameters), torch.from_numpy(gradient)

    def wait(self) -> tuple[str, Any]:
        """What the server says next; the agent's parameters are then those that it has written.

        Raises:
            Closed: where it says that all is over.
        """
        kind, value = self._connection.recv()
        if kind == "close":
            raise Closed
        self._agent.parameters.values.data.copy_(self._parameters)
        return kind, value

    def tell(self, kind: str, value: Any = None) -> None:
        """Say something."""
        self._connection.send((kind, value, None))

    def begin(self) -> None:
        """As in the protocol."""
        self.tell("begins")
        self.wait()

    def give(self, *, goes_on: bool) -> float:
        """As in the protocol."""
        self._gradient.copy_(self._agent.parameters.gradient)
        self._heartbeat[1] += 1
        self.tell("gradient", goes_on)
        return float(self.wait()[1])


class Served(Exchange):
    """Each learner has minibatches of its own, and a server steps along its gradients, in turn with others'."""

    is_alone = False

    def __init__(self, server: Server) -> None:
        self._server, self._num_left = server, 0
        self.seen: dict[str, tuple[Any, Any, int]] = {}
        """The moments of what this learner has seen, of which the server is told."""

    def moments(self, what: str, own: Sequence[Moments]) -> Moments:
        """As in the base; noted."""
        mean, variance, number = super().moments(what, own)
        self.seen[what] = mean.numpy(), variance.numpy(), number
        return mean, variance, number

    def minibatches(self, backend: Backend, batch: Any, order: Tensor, sizes: Sequence[int]) -> Any:
        """As in the base."""
        found = super().minibatches(backend, batch, order, sizes)
        self._num_left = len(sizes)
        self._server.begin()
        return found

    def descend(self, descend: Callable[[], Any]) -> float:
        """By the server."""
        self._num_left -= 1
        return self._server.give(goes_on=self._num_left > 0)


def serve(connection: "Connection[Any, Any]") -> None:
    """Make environments and an agent as the first messages say; then an update per message."""
    mine = connection.recv()
    setup = cloudpickle.loads(connection.recv_bytes())
    config, options, seed, number = setup["config"], setup["options"], setup["seed"], mine["worker"]
    arrays = SharedArrays(setup["layout"], setup["path"])
    source = source_here(setup["source"], options.imports)
    seed_globals(mine["seed"], "making environments")
    environments = make_environments(source, config.num_envs, options, first=mine["envs"].start)
    try:
        spaces = environments.observation_space, environments.action_space
        seed_of_agent = seed_of(seed, _owner("agent", number))
        agent = make_agent(setup["kind"], *spaces, config, seed=seed_of_agent, **setup["own"])
        assert isinstance(agent, PPO)  # the server has seen to it
        heartbeat = arrays["heartbeats"][number]
        server = Server(connection, arrays["parameters"][number], arrays["gradients"][number], heartbeat, agent)
        cpu = SingleDevice("cpu")
        served = Served(server)
        agent.share(lambda: served)
        products = float32_products(config.precision, cpu.sampling_device, cpu.learning_device)
        with limit_threads(config.torch_threads or 1), products:
            cpu.prepare(agent)
            noise = np.random.default_rng(seed_of(seed, _owner("noise", number)))
            sampler = Sampler(
                environments, agent.distribution, num_steps=config.num_steps, env_seed=mine["seed"], noise=noise,
                memory=agent.memory,
            )  # fmt: skip
            sampler.show_steps_in(heartbeat)
            server.tell("ready")
            _learn(served, server, agent, cpu, sampler, noise)
    except Closed:
        return
    except TrainingError as error:
        server.tell("diverged", str(error))
    finally:
        environments.close()
        arrays.close()


def _learn(
    served: Served,
    server: Server,
    agent: PPO,
    cpu: SingleDevice,
    sampler: Sampler,
    noise: np.random.Generator,
) -> None:
    while True:
        kind, value = server.wait()
        if kind == "restart":
            sampler.restart(value["envs"])
            noise.bit_generator.state = np.random.default_rng(value["noise"]).bit_generator.state
            continue
        agent.version, share_done, known = value
        served.seen.clear()
        for name, part in agent.normalization.parts.items():
            part.moments.load_state_dict({key: torch.from_numpy(array) for key, array in known[name].items()})
        agent.anneal(share_done)
        begun, steps, restarts = time.perf_counter(), sampler.env_steps, sampler.env_restarts
        episodes = sampler.statistics.episodes
        with cpu.sampling(agent) as actor:
            rollout = sampler.collect(actor)
        sampled = time.perf_counter()
        with cpu.learning(agent):
            metrics = agent.update(cpu.to_learner(rollout))
        done = {
            "metrics": metrics,
            "version": rollout.version,
            "seen": dict(served.seen),
            "episodes": sampler.statistics.since(episodes),
            "env_steps": sampler.env_steps - steps,
            "env_restarts": sampler.env_restarts - restarts,
            "seconds": (sampled - begun, time.perf_counter() - sampled),
        }
        server.tell("done", done)


def _owner(what: str, number: int) -> str:
    return what if number == FIRST else f"{what} of learner {number}"


if __name__ == "__main__":
    main(serve)
