"""How trainings would scale past this machine: simulated from measurements on it with one and two fragments.

    python benchmarks/scaling.py --quick            # about 10 minutes on two quiet cores
    python benchmarks/scaling.py --policies multi --machines-of 16 --latency 1e-4

Every fragment has the same number of environments, so that more fragments make larger rollouts in the same number
of minibatches; learners of `central` have minibatches of their own. Three things are fitted on 1 and 2 fragments: the
distributions of the seconds of a slice, of a gradient and of what is around them, measured inside trainings; the
seconds of a meeting (the shortest waits are those of the fragment that came last, and what two learners take beyond
all that); and how much slower work is beside other work. The fit is then checked on what it has not seen: 4 fragments;
another environment, of which only the slices of one fragment are known; and a delay of known length in every step. All
trainings take turns. `simulation.py` is the simulator, `scaling_seen.py` measures.

Within a machine, learners meet in shared memory. Between machines they meet through gloo, whose latency and seconds per
byte are measured on this machine's loopback; --latency and --bandwidth say what a network adds. It does not predict
NCCL, whose times on other devices differ from gloo's. Learners of `central` all run on one machine today: its rows
of more machines say what a server on the first of them would do. Policies over Ray need it installed.

Writes results/scaling.json, with everything that was measured.
"""

import argparse
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import gymnasium as gym
import machine
from scaling_seen import (
    EPOCHS,
    MINIBATCHES,
    NUM_ENVS,
    NUM_STEPS,
    Draws,
    Maker,
    Observed,
    Training,
    can_run,
    contention,
    seconds_of_delay,
    train_by_turns,
)
from settings import cleanrl
from simulation import Machine, Simulation, Timing, learners, samplers, seconds_per_iteration, served

from hybridppo.agents import PPO
from hybridppo.distributed.central_server import BoundedLag
from hybridppo.distributed.launching import join_store, store_of_this_machine
from hybridppo.distributed.link import Link
from hybridppo.system.threads import cpu_cores

FRAGMENTS = (1, 2, 4, 8, 16, 32, 64)
WORTH_ORDERING = 1.10
"""Two measurements that differ by less are not compared."""
SIMULATED_ITERATIONS = 12
LARGE, SMALL, GATHERS = 2**20, 2**10, 50
"""Message sizes in bytes with which gloo is measured, and how often."""
SECONDS_TO_START = 120.0


def _at_its_own_pace(
    simulation: Simulation, timing: Timing, machines: Sequence[Machine], iterations: int
) -> list[float]:
    return served(simulation, timing, machines, iterations * len(machines), BoundedLag(len(machines) - 1))


KINDS: dict[str, Callable[..., list[float]]] = {"multi": learners, "coarse": samplers, "central": _at_its_own_pace}


@dataclass
class Fit:
    """Seconds of a policy's parts, by number of fragments."""

    policy: str
    fills: Draws
    gradients: Draws
    """Of one fragment."""
    before: tuple[float, float]
    """Seconds of an iteration around its minibatches: with one fragment, and what each further one adds."""
    growth: float
    """Relative growth of a gradient's time with each further fragment: a learner alone has larger minibatches."""
    contention: float
    collective: float = 0.0
    gather: float = 0.0
    latency: float = 0.0
    sending: float = 0.0
    steps: Draws | None = None
    """A parameter server's optimizer steps."""
    counting: float = 0.0
    """What an update costs the server besides its steps."""

    def timing(
        self, fragments: int, draw: random.Random, network: "Network | None", fills: Draws, delay: float
    ) -> Timing:
        """The timing for a simulation of this many fragments."""
        before = max(0.0, self.before[0] + (fragments - 1) * self.before[1])
        scale = max(0.0, 1.0 + (fragments - 1) * self.growth)
        timing = Timing(
            fill=lambda: draw.choice(fills),
            before=lambda: before,
            gradient=lambda: scale * draw.choice(self.gradients),
            minibatches=EPOCHS * MINIBATCHES,
            collective=self.collective * max(1, fragments - 1),  # each further one is as much more to wait for
            gather=self.gather,
            latency=self.latency,
            sending=self.sending,
            step=lambda: draw.choice(self.steps or [0.0]),
            counting=lambda: self.counting,
            delay=lambda: delay,
        )
        if network is not None and fragments > network.cores:  # on several machines
            timing.collective = network.meeting(fragments, network.bytes_of_gradient)
            timing.gather = network.meeting(fragments, network.bytes_of_slice)
            size = network.bytes_of_gradient if self.policy == "central" else network.bytes_of_slice
            timing.latency += network.latency
            timing.sending += size / network.bandwidth
        return timing


@dataclass
class Network:
    """The network between machines of this many cores."""

    cores: int
    latency: float
    bandwidth: float
    """Bytes per second."""
    gloo_latency: float = 0.0
    gloo_byte: float = 0.0
    bytes_of_gradient: float = 0.0
    bytes_of_slice: float = 0.0

    def meeting(self, fragments: int, size: float) -> float:
        """Seconds to send all rows to all, in a ring, as gloo does: as many rounds as there are others."""
        return (fragments - 1) * (self.gloo_latency + self.latency + size * max(self.gloo_byte, 1.0 / self.bandwidth))


def fitted_learners(one: Observed, two: Observed, cores: int) -> Fit:
    """Fit `multi`, from trainings of one fragment and of two."""
    median, around = statistics.median, []
    for seen in (one, two):
        updates = len(seen.iterations)
        spent = (sum(seen.gradients) + sum(seen.meetings)) / updates
        filled = (sum(seen.fills) + sum(seen.gathers)) / updates
        around.append(max(0.0, median(seen.learning) - spent) + max(0.0, median(seen.sampling) - filled))
    ratio = contention(one, two, cores)
    # A gradient covers the same number of rows with any number of learners; it includes what their sum adds.
    growth = median(two.gradients) / median(one.gradients) / ratio - 1.0
    around[1] /= ratio
    fit = Fit(
        "multi", one.fills, one.gradients, (around[0], around[1] - around[0]), max(0.0, growth), ratio,
        collective=_shortest(two.meetings), gather=_shortest(two.gathers) if len(two.gathers) > 1 else 0.0,
    )  # fmt: skip
    # The rest of what two take is lost while they wait for each other: to sleep, to be woken, to get a core again.
    expected = two.rows / simulated_here(fit, 2, repeats=20)["steps_per_second"]
    fit.collective += max(0.0, two.seconds_per_iteration - expected) / (EPOCHS * MINIBATCHES)
    return fit


def _shortest(waits: Draws) -> float:
    """The waits of the fragment that came last."""
    return statistics.quantiles(waits, n=10)[0]


def fitted_samplers(one: Observed, two: Observed, cores: int) -> Fit:
    """Fit `coarse` in the same way."""
    median = statistics.median
    crossing = [max(0.0, median(seen.sampling) - median(seen.fills)) for seen in (one, two)]
    each = max(0.0, crossing[1] - crossing[0])
    gradients = [seconds / (EPOCHS * MINIBATCHES) for seconds in one.learning]
    growth = max(0.0, median(two.learning) / median(one.learning) - 1.0)
    other = [median(seen.iterations) - median(seen.sampling) - median(seen.learning) for seen in (one, two)]
    before = max(0.0, other[0]), max(0.0, other[1]) - max(0.0, other[0])
    ratio = contention(one, two, cores)
    return Fit(
        "coarse", one.fills, gradients, before, growth, ratio, latency=max(0.0, crossing[0] - each), sending=each
    )


def fitted_server(one: Observed, two: Observed, cores: int) -> Fit:
    """Fit `central` in the same way: a learner's time without the server's steps is its gradient, with its messages."""
    step = statistics.fmean(one.steps)
    gradients = [max(0.0, seconds / (EPOCHS * MINIBATCHES) - step) for seconds in one.learning]
    whole = statistics.fmean(one.iterations)
    counting = max(0.0, whole - statistics.fmean(one.fills) - statistics.fmean(one.learning))
    return Fit(
        "central",
        one.fills,
        gradients,
        (0.0, 0.0),
        0.0,
        contention(one, two, cores),
        steps=one.steps,
        counting=counting,
    )


FITTED = {"multi": fitted_learners, "coarse": fitted_samplers, "central": fitted_server}


def simulated(
    fit: Fit, fragments: int, network: Network, *, fills: Draws | None = None, delay: float = 0.0, repeats: int
) -> dict[str, float]:
    """Median and 90 % interval of steps per second, with as many fragments on a machine as it has cores."""
    machines = -(-fragments // network.cores)
    return _simulated(fit, fragments, network, machines, fills or fit.fills, delay, repeats)


def simulated_here(
    fit: Fit, fragments: int, *, fills: Draws | None = None, delay: float = 0.0, repeats: int
) -> dict[str, float]:
    """The same on this one machine: all fragments share its cores and meet in its memory."""
    return _simulated(fit, fragments, None, 1, fills or fit.fills, delay, repeats)


def _simulated(
    fit: Fit, fragments: int, network: Network | None, machines: int, fills: Draws, delay: float, repeats: int
) -> dict[str, float]:
    speeds = []
    cores = cpu_cores() if network is None else network.cores
    for seed in range(repeats):
        draw = random.Random(seed)
        # The measurements themselves are resampled each time, so that the interval also shows how few they are.
        timing = fit.timing(fragments, draw, network, draw.choices(fills, k=len(fills)), delay)
        homes, simulation = [Machine(cores, fit.contention) for _ in range(machines)], Simulation()
        where = [homes[i * machines // fragments] for i in range(fragments)]
        ends = KINDS[fit.policy](simulation, timing, where, SIMULATED_ITERATIONS)
        simulation.run()
        # As `Observed` computes it.
        each = Observed(
            fit.policy, fragments, seconds_per_iteration(ends, warmup=2 if fit.policy != "central" else fragments)
        )
        speeds.append(each.steps_per_second)
    speeds.sort()
    edge = int(0.05 * (len(speeds) - 1))
    return {"steps_per_second": statistics.median(speeds), "low": speeds[edge], "high": speeds[-1 - edge]}


def gloo(width: int) -> tuple[float, float, float, float]:
    """A meeting's latency on loopback, its seconds per byte, and the bytes of a row of gradients and of a slice."""
    store = store_of_this_machine()
    other = multiprocessing.get_context("spawn").Process(target=join_gathers, args=(store.port,))
    other.start()
    small, large = seconds_of_gathers(store, 0)
    other.join()
    env = gym.make("CartPole-v1")
    config = cleanrl(num_envs=NUM_ENVS, num_steps=NUM_STEPS, hidden_sizes=(width, width))
    agent = PPO(env.observation_space, env.action_space, config, seed=0)
    # Four numbers of the observation, the log-probability and the reward in float32, an action, two flags.
    bytes_of_slice = NUM_ENVS * NUM_STEPS * (4 * 4 + 4 + 4 + 8 + 2)
    # A message is two meetings: one for its length, one for itself.
    return small / 2, max(0.0, large - small) / (LARGE - SMALL), 4.0 * len(agent.parameters.gradient), bytes_of_slice


def join_gathers(port: int) -> None:
    """The second of the two processes that gather."""
    seconds_of_gathers(join_store(port, SECONDS_TO_START), 1)


def seconds_of_gathers(store: Any, rank: int) -> list[float]:
    """Seconds for two processes to send each other few bytes, and many."""
    link = Link(store, rank, 2, timeout=SECONDS_TO_START, start_timeout=SECONDS_TO_START)
    found = []
    for size in (SMALL, LARGE):
        data, seconds = bytes(size), []
        for _ in range(GATHERS):
            start = time.perf_counter()
            link.gather(data)
            seconds.append(time.perf_counter() - start)
        found.append(statistics.median(seconds))
    link.close()
    return found


def order(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """How many pairs the simulation puts in the measured order, of how many pairs that differ by enough."""
    right = asked = 0
    for a, b in combinations(rows, 2):
        slower, faster = sorted((a, b), key=lambda row: float(row["measured"]))
        if faster["measured"] > WORTH_ORDERING * slower["measured"]:
            asked += 1
            right += faster["simulated"]["steps_per_second"] > slower["simulated"]["steps_per_second"]
    return right, asked


def in_short(seen: Observed) -> dict[str, Any]:
    """Every iteration; of parts that happen more often, the deciles."""

    def shortened(draws: Draws) -> Draws:
        return [round(seconds, 7) for seconds in draws]

    parts = {name: draws for name, draws in asdict(seen).items() if isinstance(draws, list) and len(draws) > 1}
    iterations = parts.pop("iterations")
    deciles = {name: shortened(statistics.quantiles(draws, n=10)) for name, draws in parts.items()}
    return {"iterations": shortened(iterations), "deciles": deciles}


def study(policy: str, arguments: argparse.Namespace, network: Network) -> dict[str, Any]:
    """Fit, check, and extrapolate a policy."""
    repeats, width = arguments.repeats, arguments.width
    plain, other = Maker(arguments.env), Maker(arguments.other_env)
    delayed = Maker(arguments.env, arguments.delay)
    checks: list[tuple[str, Training]] = [
        ("held out", (4, plain)),
        ("another environment", (2, other)),
        ("another environment", (4, other)),
        ("delay", (2, delayed)),
    ]
    trainings = [(1, plain), (2, plain), (1, other), *(training for _, training in checks)]
    seen = train_by_turns(policy, trainings, iterations=arguments.iterations, turns=arguments.turns, width=width)
    one, two = seen[1, plain], seen[2, plain]
    fit = FITTED[policy](one, two, cpu_cores())
    # The environments of a slice are stepped one after the other, and so are their delays.
    delay = seconds_of_delay(delayed)
    rows = []
    for what, (fragments, make) in checks:
        measured = seen[fragments, make].steps_per_second
        fills = seen[1, other].fills if make == other else None
        found = simulated_here(fit, fragments, fills=fills, delay=delay if make == delayed else 0.0, repeats=repeats)
        error = abs(found["steps_per_second"] - measured) / measured
        rows.append({"case": what, "fragments": fragments, "measured": measured, "simulated": found, "error": error})
    of_fit = [
        {"case": "fitted", "fragments": each.fragments, "measured": each.steps_per_second,
         "simulated": simulated_here(fit, each.fragments, repeats=repeats)}
        for each in (one, two)
    ]  # fmt: skip
    right, asked = order([*of_fit, *rows])
    beyond = [{"fragments": n, **simulated(fit, n, network, repeats=repeats)} for n in FRAGMENTS]
    return {
        "policy": policy,
        "fit": {
            "before": fit.before, "growth": fit.growth, "contention": fit.contention, "collective": fit.collective,
            "gather": fit.gather, "latency": fit.latency, "sending": fit.sending, "counting": fit.counting,
            "delay": delay, "fill_median": statistics.median(fit.fills),
            "gradient_median": statistics.median(fit.gradients),
            "step_median": statistics.median(fit.steps) if fit.steps else 0.0,
        },
        "fitted_on": of_fit,
        "checks": rows,
        "median_error": statistics.median(row["error"] for row in rows),
        "orders_right": right,
        "orders_asked": asked,
        "simulated": beyond,
        "seen": {f"{fragments}, {make}": in_short(each) for (fragments, make), each in seen.items()},
    }  # fmt: skip


def show(found: dict[str, Any], network: Network) -> None:
    """The tables of a policy."""
    print(f"\n{found['policy']}: simulated against measured, on {cpu_cores()} cores")
    for row in (*found["fitted_on"], *found["checks"]):
        it = row["simulated"]
        error = f"{row['error']:6.1%}" if "error" in row else "      "
        print(
            f"  {row['case']:20} {row['fragments']:3} fragments  measured {row['measured']:10,.0f}  simulated "
            f"{it['steps_per_second']:10,.0f} ({it['low']:,.0f} to {it['high']:,.0f})  {error}"
        )
    print(f"  median error of what was held out: {found['median_error']:.1%}")
    print(f"  orders right where measurements differ by 10 %: {found['orders_right']} of {found['orders_asked']}")
    print(f"  simulated, machines of {network.cores} cores, gloo between them (no figure is for NCCL):")
    first = found["simulated"][0]["steps_per_second"]
    for row in found["simulated"]:
        print(
            f"    simulated {row['fragments']:3} fragments {row['steps_per_second']:12,.0f} steps/s "
            f"({row['low']:,.0f} to {row['high']:,.0f}), {row['steps_per_second'] / first:5.2f} times one"
        )


def main() -> None:
    """Measure, fit, check, simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--other-env", default="Acrobot-v1")
    parser.add_argument("--delay", type=float, default=2e-4, help="seconds in every step of the check with a delay")
    parser.add_argument("--width", type=int, default=64, help="of both hidden layers")
    parser.add_argument("--iterations", type=int, default=60, help="counted, of each training, in all its turns")
    parser.add_argument("--turns", type=int, default=4, help="of each training")
    parser.add_argument("--repeats", type=int, default=50, help="simulations of each row")
    parser.add_argument("--quick", action="store_true", help="fewer iterations and repeats")
    parser.add_argument(
        "--machines-of", type=int, default=None, help="cores of a simulated machine; as here if left out"
    )
    parser.add_argument("--latency", type=float, default=5e-5, help="seconds that a network adds to gloo on loopback")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, help="bytes per second of a network (10 Gbit/s)")
    parser.add_argument("--output", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.iterations, arguments.turns, arguments.repeats = 20, 2, 20
    network = Network(arguments.machines_of or cpu_cores(), arguments.latency, arguments.bandwidth)
    network.gloo_latency, network.gloo_byte, network.bytes_of_gradient, network.bytes_of_slice = gloo(arguments.width)
    found = []
    for policy in [policy for policy in arguments.policies if not can_run(policy)]:
        print(f"left out: {policy}, which needs Ray (pip install '.[ray]')")
        arguments.policies.remove(policy)
    if "coarse" in arguments.policies:
        import ray

        ray.init("local", num_cpus=8, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    for policy in arguments.policies:
        found.append(study(policy, arguments, network))
        show(found[-1], network)
    asked = {name: value for name, value in vars(arguments).items() if name != "output"}
    described = {name: getattr(network, name) for name in network.__dataclass_fields__}
    path = machine.save("scaling", {"arguments": asked, "network": described, "policies": found}, arguments.output)
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
