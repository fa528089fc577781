"""Steps per second of compiled environments on a GPU, by environments and agents, against NumPy on all cores.

    python benchmarks/compiled_gpu.py
    python benchmarks/compiled_gpu.py --agents 1,100 --num-envs 10,1000 --rounds 9

Steps are those of agents. One agent plays CartPole; more play Tag, in which nobody is tagged and each sees the ten
nearest. Forms: `environments`, only the kernels, with actions drawn before; `with actor`, whole rollouts with an actor
of two layers of 64 on the device; `numpy`, the same game vectorized, its environments divided among one process per
core. A round times each form of the device once, in turn, and the first, which compiles, does not count; figures are
medians. What does not fit into the device's memory is left out, with a line that says so. `linear` is the rate per
environment relative to that of the fewest environments: 1 if ten times as many environments make ten times the steps.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import machine
import numpy as np
import torch
from tag import NUM_STEPS, definition_of, of_numpy, stepping
from turns import by_turns

from hybridppo import PPO, PPOConfig, SingleDevice
from hybridppo.compiled.modules import has_numba
from hybridppo.environments.making import make_environments
from hybridppo.environments.on_device import EnvironmentsOnDevice
from hybridppo.errors import DeviceError, OutOfMemoryError
from hybridppo.runners.samplers.on_device import DeviceSampler
from hybridppo.system.accelerator import accelerator_of
from hybridppo.system.recording import GraphRecorder

Turn = Callable[[], float]


def source_of(num_agents: int) -> Any:
    """The environment for this many agents."""
    return "CartPole-v1" if num_agents == 1 else definition_of(num_agents)


def forms_of(num_agents: int, num_envs: int, device: torch.device) -> dict[str, Turn]:
    """The forms of one size on a device.

    Raises:
        OutOfMemoryError: if they do not fit.
    """
    wait = accelerator_of(device).wait
    environments: Any = make_environments(source_of(num_agents), num_envs, vectorization="compiled")
    config = PPOConfig(num_envs=num_envs, num_steps=NUM_STEPS, hidden_sizes=(64, 64))
    agent = PPO(environments.observation_space, environments.action_space, config, seed=0)
    placement, distribution = SingleDevice(device), agent.distribution
    placement.prepare(agent)
    alone = EnvironmentsOnDevice(environments, distribution, device, num_steps=1)  # type: ignore[arg-type]
    alone.restart(0)
    alone.act(0)

    def rows() -> None:
        for _ in range(NUM_STEPS):
            alone.step(0)
        wait()

    steps = NUM_STEPS * environments.num_envs
    forms = {"environments": stepping(rows, steps)}
    try:
        on_device = EnvironmentsOnDevice(environments, distribution, device, num_steps=NUM_STEPS)  # type: ignore[arg-type]
    except OutOfMemoryError as error:
        print(f"{num_agents} agents in {num_envs} environments, with actor: left out: {error}")
        return forms

    accelerator = accelerator_of(device)
    record = GraphRecorder(accelerator) if accelerator.is_asynchronous else None  # as in a training
    sampler = DeviceSampler(on_device, env_seed=0, noise=np.random.default_rng(0), record=record)

    def collect() -> None:
        with placement.sampling(agent) as actor:
            sampler.collect(actor)
        wait()

    return {**forms, "with actor": stepping(collect, steps)}


def numpy_rate(num_envs: int, num_agents: int) -> float:
    """Agents' steps per second in one process."""
    return of_numpy(num_agents, num_envs)()


def on_all_cores(num_envs: int, num_agents: int, pool: ProcessPoolExecutor, cores: int) -> float:
    """The sum over processes that run side by side, each with its share of the environments."""
    shares = [share for share in (num_envs * (i + 1) // cores - num_envs * i // cores for i in range(cores)) if share]
    return sum(pool.map(numpy_rate, shares, [num_agents] * len(shares)))


def measure(num_agents: int, num_envs: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """Steps per second of every form on the device."""
    medians, turns = by_turns(forms_of(num_agents, num_envs, device), rounds)
    return {"agents": num_agents, "num_envs": num_envs, "steps_per_second": medians, "rounds": turns}


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = [
        "| agents | environments | form | agent steps/s | linear | times NumPy |",
        "|---:|---:|---|---:|---:|---:|",
    ]
    fewest: dict[tuple[int, str], float] = {}
    for size in result["sizes"]:
        rates = size["steps_per_second"]
        for name, rate in rates.items():
            each = rate / size["num_envs"]
            linear = each / fewest.setdefault((size["agents"], name), each)
            times = f"{rate / rates['numpy']:.1f}" if "numpy" in rates else ""
            lines.append(f"| {size['agents']} | {size['num_envs']} | {name} | {rate:,.0f} | {linear:.2f} | {times} |")
    return "\n".join(lines)


def sizes_of(text: str) -> list[int]:
    """The numbers in a comma-separated text."""
    return [int(number) for number in text.split(",")]


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default="1,5,100,1000", help="of 1, 5, 100, 1000 (default %(default)s)")
    parser.add_argument("--num-envs", default="10,100,1000,10000", help="numbers of environments (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each form (default %(default)s)")
    parser.add_argument("--cores", type=int, default=0, help="processes of NumPy; 0 for one per core")
    parser.add_argument("--device", default="cuda:0", help="(default %(default)s)")
    parser.add_argument("--no-file", action="store_true", help="write no result file")
    given = parser.parse_args(arguments)
    if not has_numba():
        print("left out: Numba is not installed: pip install '.[compiled]' 'numba-cuda[cu13]', or [cu12]")
        return
    cores = given.cores or machine.describe()["cores"]
    sizes = []
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        for num_agents in sizes_of(given.agents):
            for num_envs in sizes_of(given.num_envs):
                try:
                    found = measure(num_agents, num_envs, torch.device(given.device), given.rounds)
                except DeviceError as error:
                    print(f"left out: {error}")
                    return
                except OutOfMemoryError as error:
                    print(f"{num_agents} agents in {num_envs} environments: left out: {error}")
                    continue
                if num_agents > 1:
                    found["steps_per_second"]["numpy"] = on_all_cores(num_envs, num_agents, pool, cores)
                sizes.append(found)
    payload = {"arguments": vars(given), "cores_of_numpy": cores, "sizes": sizes}
    machine.report("compiled_gpu", payload, as_markdown(payload), keeps=not given.no_file)


if __name__ == "__main__":
    main()
