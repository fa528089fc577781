"""How a training with several learners would scale past this machine: simulated from parts measured on it.

    python benchmarks/scale.py
    python benchmarks/scale.py --cores 8 --latency 5e-5 --bandwidth 3e9 --check

Measured: the seconds of a rollout and of a minibatch of one process, by `hybridppo.train`, and the latency of a message
of torch's gloo between two processes. An iteration of `MultiLearner` is then put together from draws of these: each of
1 to 64 learners has as much work as one process and a core of its own. After the rollout, and in the ring all-reduce
after each minibatch, all wait for the slowest. `--check` also trains with two learners here, and compares. It
says nothing about NCCL.
"""

import argparse
import multiprocessing
import random
import socket
import statistics
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import machine
import torch
import torch.distributed as dist
from settings import cleanrl
from turns import history_of

import hybridppo

LEARNERS = (1, 2, 4, 8, 16, 32, 64)
EPOCHS, MINIBATCHES = 4, 4
ITERATIONS = 12
MESSAGES = 200
Row = dict[str, Any]


def config_of(width: int) -> hybridppo.PPOConfig:
    """The work of a learner."""
    return cleanrl(num_envs=64, num_epochs=EPOCHS, num_minibatches=MINIBATCHES, hidden_sizes=(width, width))


def parts_of(seconds: float, width: int) -> dict[str, list[float]]:
    """Seconds of rollouts and of minibatches of one process, and the bytes of its gradient."""
    history = history_of("CartPole-v1", 1.0, seconds, placement="cpu", config=config_of(width))
    updates = [metrics["seconds_learning"] for _, metrics in history]
    return {
        "fill": [metrics["seconds_sampling"] for _, metrics in history],
        "gradient": [update / (EPOCHS * MINIBATCHES) for update in updates],
    }


def exchange(rank: int, port: int, found: Any) -> None:
    """Send messages to and fro between two processes; the first reports the median seconds of one."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    message, seconds = torch.zeros(1), []
    for _ in range(MESSAGES):
        start = time.perf_counter()
        for sender in (0, 1):
            if rank == sender:
                dist.send(message, 1 - rank)
            else:
                dist.recv(message, 1 - rank)
        seconds.append((time.perf_counter() - start) / 2)
    if rank == 0:
        found.put(statistics.median(seconds))
    dist.destroy_process_group()


def seconds_of_a_message() -> float:
    """A small message of gloo on the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    processes = [context.Process(target=exchange, args=(rank, port, found)) for rank in (0, 1)]
    for process in processes:
        process.start()
    seconds: float = found.get(timeout=120)
    for process in processes:
        process.join()
    return seconds


def ring(number: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds of a ring all-reduce: twice `number - 1` messages, each of a share of the whole."""
    return 2.0 * (number - 1) * (latency + size / number / bandwidth)


def simulated(number: int, parts: dict[str, list[float]], collective: float) -> float:
    """The median seconds of an iteration with this many learners, each on a core of its own."""
    draw = random.Random(number)

    def slowest(part: str) -> float:
        return max(draw.choice(parts[part]) for _ in range(number))

    minibatches = EPOCHS * MINIBATCHES
    return statistics.median(
        slowest("fill") + sum(slowest("gradient") + collective for _ in range(minibatches)) for _ in range(ITERATIONS)
    )


def seconds_of_two(seconds: float, width: int) -> float:
    """The median seconds of an iteration of two learners, each with the work of one process, on this machine."""
    config = replace(config_of(width), num_envs=128)
    two = hybridppo.MultiLearner(2)
    history = history_of("CartPole-v1", 1.0, seconds, placement="cpu", config=config, distributed=two)
    return statistics.median(after - before for (before, _), (after, _) in pairwise(history))


def as_markdown(result: dict[str, Any]) -> str:
    """A line for each number of learners."""
    lines = [
        "| learners | machines | steps/s | times one | of an iteration spent in all-reduce |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        speed = row["steps_per_second"]
        times = speed / result["rows"][0]["steps_per_second"]
        share = row["collective"] * EPOCHS * MINIBATCHES / row["seconds"]
        lines.append(f"| {row['learners']} | {row['machines']} | {speed:,.0f} | {times:.1f} | {100 * share:.0f} % |")
    if "check" in result:
        check = result["check"]
        lines += [
            "",
            f"Two learners here: {check['measured']:.3f} s an iteration, simulated {check['simulated']:.3f} s.",
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure, simulate, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256, help="of both hidden layers (default %(default)s)")
    parser.add_argument("--cores", type=int, default=8, help="of a simulated machine, one a learner")
    parser.add_argument("--latency", type=float, default=2.5e-5, help="seconds a network adds to a message")
    parser.add_argument("--bandwidth", type=float, default=3.1e9, help="of the network, in bytes per second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each training")
    parser.add_argument("--check", action="store_true", help="also train with two learners here")
    arguments = parser.parse_args()
    parts, message = parts_of(arguments.seconds, arguments.width), seconds_of_a_message()
    size = 4.0 * gradient_size(arguments.width)
    rows: list[Row] = []
    for number in LEARNERS:
        network = arguments.latency if number > arguments.cores else 0.0
        collective = ring(number, size, message + network, arguments.bandwidth)
        seconds = simulated(number, parts, collective)
        steps = number * 64 * 128 / seconds
        rows.append({"learners": number, "machines": -(-number // arguments.cores), "seconds": seconds})
        rows[-1] |= {"collective": collective, "steps_per_second": steps}
    result: dict[str, Any] = {"arguments": vars(arguments), "message": message, "parts": parts, "rows": rows}
    if arguments.check:
        collective = ring(2, size, message, arguments.bandwidth)
        here = simulated(2, parts, collective)
        result["check"] = {"measured": seconds_of_two(arguments.seconds, arguments.width), "simulated": here}
    machine.report("scale", result, as_markdown(result))


def gradient_size(width: int) -> int:
    """Numbers in the gradient of actor and critic on CartPole: three layers each."""
    return sum(4 * width + width + width * width + width + width * outputs + outputs for outputs in (2, 1))


if __name__ == "__main__":
    main()
