"""Steps per second of an environment of tensors, sampled and trained, by the number of environments.

    python benchmarks/tensors.py --device cuda --num-envs 256,4096,65536

CartPole in torch (`hybridppo.tensors.TorchCartPole`), an actor of two layers of 64, rollouts of 32 steps, one epoch of
four minibatches. Forms: `environment`, stepped with the same actions; `sampled`, by the sampler of tensors;
`trained`; and `through the host`, by the sampler of arrays, to which every step is copied. A round times each once, in
turn, and the first does not count; figures are medians.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import machine
import numpy as np
import torch
from turns import by_turns

from hybridppo import PPO, PPOConfig, SingleDevice
from hybridppo.environments.tensors import TensorEnvironments
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.placements.crossing import wait_for
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.runners.samplers.on_tensors import TensorSampler
from hybridppo.system.threads import limit_threads

NUM_STEPS, ROLLOUTS = 32, 4


class Contestants:
    """All forms on one device, with the same number of environments."""

    def __init__(self, num_envs: int, device: str) -> None:
        self._device, self._num_envs = torch.device(device), num_envs
        config = PPOConfig(num_envs=num_envs, num_steps=NUM_STEPS, num_epochs=1, num_minibatches=4)
        environments = [self._environments() for _ in range(2)]
        spaces = environments[0].observation_space, environments[0].action_space
        self._agents = [PPO(*spaces, config, seed=0) for _ in environments]
        self._placements = [SingleDevice(device) for _ in environments]
        for placement, agent in zip(self._placements, self._agents, strict=True):
            placement.prepare(agent)
        self._placements[0].act_on_tensors()
        options: dict[str, Any] = {"num_steps": NUM_STEPS, "env_seed": 0, "noise": np.random.default_rng(0)}
        distribution = self._agents[0].distribution
        self._samplers = (
            TensorSampler(environments[0], distribution, **options),
            Sampler(environments[1], distribution, **options),
        )
        self._alone = self._environments()
        self._alone.begin(0)
        self._actions = torch.arange(num_envs, device=self._device) % 2
        self.forms: dict[str, Callable[[], object]] = {
            "environment": self._step,
            "sampled": lambda: self._collect(0),
            "trained": lambda: self._agents[0].update(self._collect(0)),
            "through the host": lambda: self._collect(1),
        }

    def _environments(self) -> TensorEnvironments:
        return TensorEnvironments(TorchCartPole(self._num_envs, self._device), self._num_envs, owns=True)

    def _step(self) -> None:
        for _ in range(NUM_STEPS):
            self._alone.advance(self._actions)

    def _collect(self, which: int) -> Any:
        with self._placements[which].sampling(self._agents[which]) as actor:
            return self._samplers[which].collect(actor)

    def steps_per_second(self, form: str) -> float:
        """Steps per second in one turn."""
        wait_for(self._device)
        start = time.perf_counter()
        for _ in range(ROLLOUTS):
            self.forms[form]()
        wait_for(self._device)
        return ROLLOUTS * NUM_STEPS * self._num_envs / (time.perf_counter() - start)


def measure(num_envs: int, device: str, rounds: int) -> dict[str, Any]:
    """Steps per second of every form."""
    contestants = Contestants(num_envs, device)
    medians, turns = by_turns({form: partial(contestants.steps_per_second, form) for form in contestants.forms}, rounds)
    return {"medians": medians, "rounds": turns}


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = ["| environments | form | steps/s |", "|---:|---|---:|"]
    for num_envs, row in result["environments"].items():
        lines += [f"| {num_envs} | {form} | {speed:,.0f} |" for form, speed in row["medians"].items()]
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="of the environments (default %(default)s)")
    parser.add_argument("--num-envs", default="64,1024,8192", help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="of each form (default %(default)s)")
    parser.add_argument("--no-file", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.num_envs.split(",")]
    with limit_threads(1):
        environments = {str(size): measure(size, arguments.device, arguments.rounds) for size in sizes}
    payload = {"arguments": vars(arguments), "environments": environments}
    machine.report("tensors", payload, as_markdown(payload), keeps=not arguments.no_file)


if __name__ == "__main__":
    main()
