"""How trainings would scale past this machine: simulated, from what was measured on it with one and two fragments.

    python benchmarks/scaling.py --quick            # about 6 minutes on two quiet cores
    python benchmarks/scaling.py --policies multi --machines-of 16 --latency 1e-4

Every fragment has as many environments as any other, so that more fragments make larger rollouts in the same number of
minibatches. Fitted on 1 and 2 fragments: distributions of seconds that a slice, a gradient and what is around them
take, measured inside trainings; what a meeting takes (the shortest waits are those of whoever came last); how much
slower work is beside other work. Then checked on what the fit has not seen: 4 fragments; another environment, of which
only the slices of one fragment are known; and a delay of known length in every step. `simulation.py` is the simulator.

Within a machine, learners meet in shared memory. Between machines they meet through gloo, whose latency and bytes are
measured on this machine's own loopback; --latency and --bandwidth say what a network adds. Nothing is said of NCCL:
gloo's times are not those of another library on other devices. Policies over Ray need it installed.

Writes results/scaling.json, with everything that was measured.
"""

import argparse
import contextlib
import importlib.util
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import machine
from settings import cleanrl
from simulation import Machine, Simulation, Timing, learners, samplers, seconds_per_iteration

import hybridppo
from hybridppo.networks.threads import cpu_cores

Draws = list[float]

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES = 8, 64, 4, 4
"""Of a fragment's slice, and of an iteration whatever the number of fragments."""
FRAGMENTS = (1, 2, 4, 8, 16, 32, 64)
UNCOUNTED = 2
"""Iterations that load and allocate."""
WORTH_ORDERING = 1.10
"""Of two measurements that differ by less, no order is asked for."""
KINDS = {"multi": learners, "coarse": samplers}
SLEEPS, SIMULATED_ITERATIONS = 500, 12
LARGE, SMALL = 2**20, 2**10
"""Bytes by which gloo is measured."""


@dataclass
class Observed:
    """What one training shows: seconds, of each iteration or each time."""

    fragments: int
    iterations: Draws = field(default_factory=list)
    """From the end of one to the end of the next."""
    fills: Draws = field(default_factory=list)
    gradients: Draws = field(default_factory=list)
    meetings: Draws = field(default_factory=list)
    gathers: Draws = field(default_factory=list)
    learning: Draws = field(default_factory=list)
    """All that an agent's update takes, of each iteration."""
    sampling: Draws = field(default_factory=list)
    """All that passes until a rollout is there."""

    @property
    def steps_per_second(self) -> float:
        """Of all environments."""
        return self.fragments * NUM_ENVS * NUM_STEPS / statistics.median(self.iterations)


class Delayed(gym.Wrapper):  # type: ignore[type-arg]
    """An environment each of whose steps takes longer, without working: as one does that waits for a service."""

    def __init__(self, env: Any, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """As ever, later."""
        time.sleep(self._seconds)
        return super().step(action)


@dataclass(frozen=True)
class Maker:
    """Makes an environment, in any process."""

    env_id: str
    delay: float = 0.0

    def __call__(self) -> Any:
        """One of them."""
        env = gym.make(self.env_id)
        return Delayed(env, self.delay) if self.delay else env


@contextlib.contextmanager
def recorded(seen: Observed) -> Iterator[None]:
    """Within it, trainings of this process tell what their parts take; of learners, the first's."""
    from hybridppo.distribution import exchange, link
    from hybridppo.runners.samplers.stepping import Stepper

    changed: list[tuple[type, str, Any]] = []
    last = {"filling": 0.0, "met": 0.0}

    def around(kind: type, name: str, wrap: Callable[[Any], Any]) -> None:
        plain = getattr(kind, name)
        changed.append((kind, name, plain))
        setattr(kind, name, wrap(plain))

    def timed(into: Draws) -> Callable[[Any], Any]:
        def wrap(plain: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                start = time.perf_counter()
                found = plain(*arguments, **options)
                into.append(time.perf_counter() - start)
                return found

            return call

        return wrap

    def filling(plain: Any) -> Any:
        def call(self: Any) -> Any:
            last["filling"] = time.perf_counter()
            return plain(self)

        return call

    def meeting(plain: Any) -> Any:
        def call(self: Any, asks: bool) -> Any:
            start = time.perf_counter()
            found = plain(self, asks)
            end = time.perf_counter()
            seen.gradients.append(start - last["filling"])
            seen.meetings.append(end - start)
            return found

        return call

    for way in (exchange.Alone, exchange.InSharedMemory):
        around(way, "to_fill", filling)
        around(way, "filled", meeting)
    around(Stepper, "fill", timed(seen.fills))
    around(link.Link, "gather", timed(seen.gathers))
    if importlib.util.find_spec("ray") is not None:
        from hybridppo.distribution.ray_workers import RayWorkers

        def received(plain: Any) -> Any:
            def call(self: Any, worker: int) -> Any:
                task = self._awaited[worker].task
                found = plain(self, worker)
                if task is not None and isinstance(found, tuple):
                    seen.fills.append(found[1])
                return found

            return call

        around(RayWorkers, "_received", received)
    try:
        yield
    finally:
        for kind, name, plain in reversed(changed):
            setattr(kind, name, plain)


def train(policy: str, fragments: int, make: Maker, iterations: int, width: int) -> Observed:
    """Train by so many fragments, and see what it takes."""
    seen = Observed(fragments)
    config = cleanrl(
        num_envs=NUM_ENVS * fragments, num_steps=NUM_STEPS, num_epochs=EPOCHS, num_minibatches=MINIBATCHES,
        hidden_sizes=(width, width),
    )  # fmt: skip
    lines: list[dict[str, float]] = []

    def line(metrics: dict[str, float]) -> None:
        lines.append(dict(metrics))
        if len(lines) == UNCOUNTED:
            for each in (seen.fills, seen.gradients, seen.meetings, seen.gathers):
                each.clear()

    with recorded(seen):
        hybridppo.train(
            make, total_steps=config.batch_size * (iterations + UNCOUNTED), config=config, placement="cpu", seed=1,
            vectorization="sync", progress=False, distribution=f"{policy}:{fragments}", on_iteration=line,
        )  # fmt: skip
    counted = lines[UNCOUNTED - 1 :]
    seen.iterations = [b["seconds"] - a["seconds"] for a, b in pairwise(counted)]
    seen.learning = [each["seconds_learning"] for each in counted[1:]]
    seen.sampling = [each["seconds_sampling"] for each in counted[1:]]
    print(f"  measured {policy}:{fragments} {make}: {seen.steps_per_second:,.0f} steps/s", file=sys.stderr, flush=True)
    return seen


@dataclass
class Fit:
    """What a policy's fragments take, by how many there are."""

    policy: str
    fills: Draws
    gradients: dict[int, Draws]
    """Of one and two fragments."""
    before: tuple[float, float]
    """What an iteration has around its minibatches: by one fragment, and more for each further one."""
    growth: float
    """By how many times a gradient takes longer with each further fragment: a learner alone has larger minibatches."""
    contention: float
    collective: float = 0.0
    gather: float = 0.0
    latency: float = 0.0
    sending: float = 0.0

    def timing(
        self, fragments: int, draw: random.Random, network: "Network | None", fills: Draws, delay: float
    ) -> Timing:
        """For a simulation of so many."""
        gradients = self.gradients[1]
        before = max(0.0, self.before[0] + (fragments - 1) * self.before[1])
        scale = max(0.0, 1.0 + (fragments - 1) * self.growth)
        timing = Timing(
            fill=lambda: draw.choice(fills),
            before=lambda: before,
            gradient=lambda: scale * draw.choice(gradients),
            minibatches=EPOCHS * MINIBATCHES,
            collective=self.collective,
            gather=self.gather,
            latency=self.latency,
            sending=self.sending,
            delay=lambda: delay,
        )
        if network is not None and fragments > network.cores:  # on several machines
            timing.collective = network.meeting(fragments, network.bytes_of_gradient)
            timing.gather = network.meeting(fragments, network.bytes_of_slice)
            timing.latency += network.latency
            timing.sending += network.bytes_of_slice / network.bandwidth
        return timing


@dataclass
class Network:
    """What is between machines of so many cores."""

    cores: int
    latency: float
    bandwidth: float
    """Bytes a second."""
    gloo_latency: float = 0.0
    gloo_byte: float = 0.0
    bytes_of_gradient: float = 0.0
    bytes_of_slice: float = 0.0

    def meeting(self, fragments: int, size: float) -> float:
        """All rows to all, in a ring, as gloo does: as many rounds as there are others."""
        return (fragments - 1) * (self.gloo_latency + self.latency + size * max(self.gloo_byte, 1.0 / self.bandwidth))


def fitted(policy: str, one: Observed, two: Observed, cores: int) -> Fit:
    """From trainings of one fragment and of two."""
    median = statistics.median
    around = []
    if policy == "multi":
        for seen in (one, two):
            updates = len(seen.iterations)
            spent = (sum(seen.gradients) + sum(seen.meetings)) / updates
            filled = (sum(seen.fills) + sum(seen.gathers)) / updates
            around.append(max(0.0, median(seen.learning) - spent) + max(0.0, median(seen.sampling) - filled))
        shortest = statistics.quantiles(two.meetings, n=10)[0]
        ratio = max(1.0, median(two.fills) / median(one.fills)) if cores > 1 else 1.0
        # A gradient is of as many rows whatever the number of learners; what their sum adds is in it.
        growth = median(two.gradients) / median(one.gradients) / ratio - 1.0
        gather = statistics.quantiles(two.gathers, n=10)[0] if len(two.gathers) > 1 else 0.0
        around[1] /= ratio
        return Fit(
            policy, one.fills, {1: one.gradients, 2: two.gradients}, (around[0], around[1] - around[0]),
            max(0.0, growth), ratio, collective=shortest, gather=gather,
        )  # fmt: skip
    ratio = max(1.0, median(two.fills) / median(one.fills)) if cores > 1 else 1.0
    crossing = [max(0.0, median(seen.sampling) - median(seen.fills)) for seen in (one, two)]
    each = max(0.0, crossing[1] - crossing[0])
    gradients = [seconds / (EPOCHS * MINIBATCHES) for seconds in one.learning]
    growth = max(0.0, median(two.learning) / median(one.learning) - 1.0)
    other = [median(seen.iterations) - median(seen.sampling) - median(seen.learning) for seen in (one, two)]
    return Fit(
        policy, one.fills, {1: gradients}, (max(0.0, other[0]), max(0.0, other[1]) - max(0.0, other[0])), growth, ratio,
        latency=max(0.0, crossing[0] - each), sending=each,
    )  # fmt: skip


def simulated(
    fit: Fit, fragments: int, network: Network, *, fills: Draws | None = None, delay: float = 0.0, repeats: int
) -> dict[str, float]:
    """Steps per second, as many fragments to a machine as it has cores: the median, and where 90 % lie."""
    machines = -(-fragments // network.cores)
    return _simulated(fit, fragments, network, machines, fills or fit.fills, delay, repeats)


def simulated_here(
    fit: Fit, fragments: int, *, fills: Draws | None = None, delay: float = 0.0, repeats: int
) -> dict[str, float]:
    """Likewise, on this one machine, whose cores all fragments share, and where all meet in its memory."""
    return _simulated(fit, fragments, None, 1, fills or fit.fills, delay, repeats)


def _simulated(
    fit: Fit, fragments: int, network: Network | None, machines: int, fills: Draws, delay: float, repeats: int
) -> dict[str, float]:
    speeds = []
    cores = cpu_cores() if network is None else network.cores
    for seed in range(repeats):
        draw = random.Random(seed)
        # The measurements themselves are drawn anew each time: an interval is also of how few they are.
        timing = fit.timing(fragments, draw, network, draw.choices(fills, k=len(fills)), delay)
        homes, simulation = [Machine(cores, fit.contention) for _ in range(machines)], Simulation()
        where = [homes[i * machines // fragments] for i in range(fragments)]
        ends = KINDS[fit.policy](simulation, timing, where, SIMULATED_ITERATIONS)
        simulation.run()
        speeds.append(fragments * NUM_ENVS * NUM_STEPS / statistics.median(seconds_per_iteration(ends)))
    speeds.sort()
    edge = int(0.05 * (len(speeds) - 1))
    return {"steps_per_second": statistics.median(speeds), "low": speeds[edge], "high": speeds[-1 - edge]}


def seconds_asleep(seconds: float) -> float:
    """What a sleep of so many takes here."""
    start = time.perf_counter()
    for _ in range(SLEEPS):
        time.sleep(seconds)
    return (time.perf_counter() - start) / SLEEPS


def gloo(width: int) -> tuple[float, float, float, float]:
    """A meeting's latency on loopback, its seconds per byte, and the bytes of a row of gradients and of a slice."""
    from hybridppo.distribution.measuring import measure_learners
    from hybridppo.distribution.one_learner import OneLearner, sizes_of
    from hybridppo.distribution.policies import MultiLearner
    from hybridppo.distribution.prediction import Crossings
    from hybridppo.environments.options import EnvironmentOptions

    config = cleanrl(num_envs=NUM_ENVS, num_steps=NUM_STEPS, hidden_sizes=(width, width))
    one = OneLearner("CartPole-v1", config, EnvironmentOptions(vectorization="sync"), MultiLearner(1))
    columns = len(one.agent.parameters.gradient)
    small, large = (measure_learners(Crossings(), columns, size).gather for size in (SMALL, LARGE))
    # A message is two meetings: of how long it is, and of itself.
    return (
        small / 2,
        max(0.0, large - small) / (LARGE - SMALL),
        4.0 * columns,
        float(sizes_of(one, config, 1).bytes_of_rollout),
    )


def order(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Of pairs whose measurements differ by enough: how many the simulation orders alike, and how many there are."""
    right = asked = 0
    for a, b in combinations(rows, 2):
        slower, faster = sorted((a, b), key=lambda row: float(row["measured"]))
        if faster["measured"] > WORTH_ORDERING * slower["measured"]:
            asked += 1
            right += faster["simulated"]["steps_per_second"] > slower["simulated"]["steps_per_second"]
    return right, asked


def study(policy: str, arguments: argparse.Namespace, network: Network) -> dict[str, Any]:
    """Fit, check, and extrapolate a policy."""
    iterations, width, repeats = arguments.iterations, arguments.width, arguments.repeats
    plain, other = Maker(arguments.env), Maker(arguments.other_env)
    delayed = Maker(arguments.env, arguments.delay)
    one, two = (train(policy, count, plain, iterations, width) for count in (1, 2))
    fit = fitted(policy, one, two, cpu_cores())
    other_one = train(policy, 1, other, iterations, width)
    cases: list[tuple[str, int, Maker, Draws | None, float]] = [
        ("held out", 4, plain, None, 0.0),
        ("another environment", 2, other, other_one.fills, 0.0),
        ("another environment", 4, other, other_one.fills, 0.0),
        # Environments of a slice are stepped one after the other, and so are their delays.
        ("delay", 2, delayed, None, seconds_asleep(arguments.delay) * NUM_ENVS * NUM_STEPS),
    ]
    rows = []
    for what, fragments, make, fills, delay in cases:
        measured = train(policy, fragments, make, iterations, width).steps_per_second
        found = simulated_here(fit, fragments, fills=fills, delay=delay, repeats=repeats)
        error = abs(found["steps_per_second"] - measured) / measured
        rows.append({"case": what, "fragments": fragments, "measured": measured, "simulated": found, "error": error})
    of_fit = [
        {"case": "fitted", "fragments": seen.fragments, "measured": seen.steps_per_second,
         "simulated": simulated_here(fit, seen.fragments, repeats=repeats)}
        for seen in (one, two)
    ]  # fmt: skip
    right, asked = order([*of_fit, *rows])
    beyond = [{"fragments": n, **simulated(fit, n, network, repeats=repeats)} for n in FRAGMENTS]
    return {
        "policy": policy,
        "fit": {
            "before": fit.before, "growth": fit.growth, "contention": fit.contention, "collective": fit.collective,
            "gather": fit.gather, "latency": fit.latency, "sending": fit.sending,
            "fill_median": statistics.median(fit.fills), "gradient_median": statistics.median(fit.gradients[1]),
        },
        "fitted_on": of_fit,
        "checks": rows,
        "median_error": statistics.median(row["error"] for row in rows),
        "orders_right": right,
        "orders_asked": asked,
        "simulated": beyond,
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
    parser.add_argument("--iterations", type=int, default=60, help="counted, of each training")
    parser.add_argument("--repeats", type=int, default=50, help="simulations of each row")
    parser.add_argument("--quick", action="store_true", help="fewer of both")
    parser.add_argument(
        "--machines-of", type=int, default=None, help="cores of a simulated machine; as here if left out"
    )
    parser.add_argument("--latency", type=float, default=5e-5, help="seconds that a network adds to gloo on loopback")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, help="bytes a second of a network (10 Gbit/s)")
    parser.add_argument("--output", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.iterations, arguments.repeats = min(arguments.iterations, 20), min(arguments.repeats, 20)
    network = Network(arguments.machines_of or cpu_cores(), arguments.latency, arguments.bandwidth)
    network.gloo_latency, network.gloo_byte, network.bytes_of_gradient, network.bytes_of_slice = gloo(arguments.width)
    found = []
    if "coarse" in arguments.policies:
        if importlib.util.find_spec("ray") is None:
            print("left out: coarse, which needs Ray (pip install 'hybridppo[ray]')")
            arguments.policies.remove("coarse")
        else:
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
