"""The forms of PPO's update beside each other, by turns: whole updates of the cases of `fixed_work.py`.

    python benchmarks/updates.py
    python benchmarks/updates.py --rounds 50 --cases wide --threads 1,2
    python benchmarks/updates.py --cases small --forms numpy,mingru --output updates_memory

A round updates an agent of each form once with the same rollout, on each number of threads, in another order than the
round before, and measures the bound: the products and tanh of all its minibatches by the fastest kernel for each, on
one thread, and nothing else (`limits.py`). The tables show the minimum and the median of each form's milliseconds, and
the medians of the ratios within rounds.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from operator import truediv
from typing import Any

import gymnasium as gym
import machine
from cases import CASES, MORE_CASES, Case, our_config
from limits import Fastest, seconds_per_minibatch
from pieces import rollout_of

from hybridppo import PPO, SingleDevice
from hybridppo.agents.ppo.loss import ppo_loss
from hybridppo.networks.recurrent import CELLS
from hybridppo.system.threads import limit_threads

FORMS: dict[str, dict[str, Any]] = {
    "numpy": {},
    "compiled": {"compiled_updates": True},
    "autograd": {"fast_updates": False},
    "torch_compile": {"fast_updates": False, "torch_compile": True},
    "own": {},
    "own_autograd": {"fast_updates": False},
    "own_compiled": {"torch_compile": True},
    "mingru": {"recurrent": "mingru"},
    "mingru_autograd": {"recurrent": "mingru", "fast_updates": False},
    "lstm": {"recurrent": "lstm"},
    "gru": {"recurrent": "gru"},
    "three_layers": {"hidden_sizes": (64, 64, 64)},
}
"""For each name, what differs from the case's configuration. "own" stands for forms with PPO's loss as one's own."""
ALL_CASES = CASES | MORE_CASES
BOUND = "bound"


def own_loss(inputs: Any, config: Any, clip_range: Any) -> Any:
    """PPO's loss, passed as the user's own."""
    return ppo_loss(inputs, config, clip_range)


def measure(
    case: Case, rounds: int, threads: list[int], forms: list[str], clock: Callable[[], float]
) -> dict[str, Any]:
    """Milliseconds of an update by each form, of every round."""
    rollouts = {name: rollout_of(case, recurrent=name) for name in (None, *CELLS)}
    env = gym.make(case.env_id)
    agents, numbers = {}, {}
    for number, form in itertools.product(threads, forms):
        changes, loss = FORMS[form], own_loss if form.startswith("own") else None
        name = form if number == 1 else f"{form}, {number} threads"
        numbers[name] = number
        agent = PPO(env.observation_space, env.action_space, replace(our_config(case), **changes), seed=0, loss=loss)
        SingleDevice("cpu").prepare(agent)
        agents[name] = agent
    milliseconds: dict[str, list[float]] = {name: [] for name in (*agents, BOUND)}
    fastest, minibatches = Fastest(), case.num_epochs * case.num_minibatches
    for i in range(rounds + 3):
        with limit_threads(1):
            milliseconds[BOUND].append(1e3 * minibatches * seconds_per_minibatch(case, fastest, minibatches, 1))
        for name in list(agents)[:: 1 if i % 2 else -1]:
            with limit_threads(numbers[name]):
                start = clock()
                agents[name].update(rollouts[agents[name].config.recurrent])
                milliseconds[name].append(1e3 * (clock() - start))
    return {name: figures[3:] for name, figures in milliseconds.items()}  # the first warm up


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = [
        "| update | form | ms, least | ms, median | times as fast | times the bound |", "|---|---|---:|---:|---:|---:|"
    ]  # fmt: skip
    for name, forms in result["updates"].items():
        case, reference, bound = ALL_CASES[name], next(iter(forms.values())), forms.get(BOUND, [])
        for form, figures in forms.items():
            ratio = statistics.median(other / own for other, own in zip(reference, figures, strict=True))
            above = f"{statistics.median(map(truediv, figures, bound)):.2f}" if bound else ""
            numbers = f"{min(figures):.2f} | {statistics.median(figures):.2f} | {ratio:.2f} | {above}"
            lines.append(f"| {name}: {case.hidden_sizes}, {case.minibatch_size} rows | {form} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="of each case (default %(default)s; wide: a tenth)")
    parser.add_argument("--cases", default=",".join(CASES), help="of small,wide,wider (default %(default)s)")
    parser.add_argument("--forms", default="numpy,compiled", help=f"of {','.join(FORMS)} (default %(default)s)")
    parser.add_argument("--output", default="updates", help="the name of the results (default %(default)s)")
    parser.add_argument("--threads", default="1", help="one or several numbers (default %(default)s)")
    parser.add_argument("--processor-time", action="store_true", help="instead of time, if other work runs beside it")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.processor_time else time.perf_counter
    threads, forms = [int(number) for number in arguments.threads.split(",")], arguments.forms.split(",")
    updates = {
        name: measure(
            ALL_CASES[name], max(5, arguments.rounds // (1 if name == "small" else 10)), threads, forms, clock
        )
        for name in arguments.cases.split(",")
    }
    if arguments.processor_time:  # which the bound is not measured in
        updates = {name: {form: of for form, of in forms.items() if form != BOUND} for name, forms in updates.items()}
    payload = {"arguments": vars(arguments), "updates": updates}
    machine.report(arguments.output, payload, as_markdown(payload))


if __name__ == "__main__":
    main()
