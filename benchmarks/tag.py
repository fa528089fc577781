"""Steps per second of compiled Tag, beside the same game in vectorized NumPy, and mpe2's `simple_tag_v3`.

    python benchmarks/tag.py
    python benchmarks/tag.py --agents 5,100 --num-envs 10,100,1000 --rounds 9

Steps are those of agents. Forms: `numpy` and `compiled`, only the environment, with actions drawn before, on one
thread; `two threads`, the latter divided; `with actor`, the fused rollout, with an actor of two layers of 64; `mpe2`,
one environment of 4 agents with random actions. Nobody is tagged, because rates depend on how many are left, and each
sees the ten nearest. A round times each form once, in turn, and the first does not count; figures are medians. It needs
one idle core, and `two threads` two.
"""

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import machine
import numpy as np
from numpy_tag import NumpyTag
from settings import cleanrl
from turns import by_turns

from hybridppo import PPO, SingleDevice
from hybridppo.environments.making import make_environments
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.system.threads import limit_threads

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import tagging

KINDS = {5: (1, 4), 100: (10, 90), 1000: (100, 900)}
"""For each number of agents: taggers and runners."""
NEVER = 1e-9
"""A tagging distance at which nobody is tagged."""
SECONDS_OF_A_TURN = 0.5
NUM_STEPS = 16


def stepping(step: Callable[[], object], agents: int) -> Callable[[], float]:
    """A turn that returns agent steps per second; `step` steps this many agents."""
    step()

    def turn() -> float:
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS_OF_A_TURN:
            step()
            count += 1
        return count * agents / (time.perf_counter() - start)

    return turn


def definition_of(num_agents: int) -> Any:
    """The compiled game for this many agents."""
    taggers, runners = KINDS[num_agents]
    return tagging.tag(taggers=taggers, runners=runners, tagging_distance=NEVER)


def of_numpy(num_agents: int, num_envs: int) -> Callable[[], float]:
    """The game for this many agents in NumPy."""
    taggers, runners = KINDS[num_agents]
    game = NumpyTag(num_envs, taggers=taggers, runners=runners, tagging_distance=NEVER)
    actions = actions_of(num_agents, num_envs)
    return stepping(lambda: game.step(actions), num_agents * num_envs)


def actions_of(num_agents: int, num_envs: int) -> Any:
    """An action for every agent."""
    return np.random.default_rng(0).integers(0, 21, (num_envs, num_agents, 2))


def contestants(num_agents: int, num_envs: int) -> dict[str, Callable[[], float]]:
    """The forms of one size."""
    columns, definition = num_agents * num_envs, definition_of(num_agents)
    actions = actions_of(num_agents, num_envs)
    forms = {"numpy": of_numpy(num_agents, num_envs)}
    for name, threads in (("compiled", 1), ("two threads", 2)):
        environments = make_environments(definition, num_envs, vectorization="compiled", env_threads=threads)
        environments.reset(0)
        forms[name] = stepping(partial(environments.step, actions.reshape(columns, 2)), columns)
    environments = make_environments(definition, num_envs, vectorization="compiled")
    config = cleanrl(num_envs=num_envs, num_steps=NUM_STEPS, hidden_sizes=(64, 64))
    agent = PPO(environments.observation_space, environments.action_space, config, seed=0)
    placement = SingleDevice("cpu")
    placement.prepare(agent)
    noise = np.random.default_rng(0)
    sampler = Sampler(environments, agent.distribution, num_steps=NUM_STEPS, env_seed=0, noise=noise)

    def collect() -> None:
        with placement.sampling(agent) as actor:
            sampler.collect(actor)

    forms["with actor"] = stepping(collect, NUM_STEPS * columns)
    return forms


def of_mpe2() -> Callable[[], float] | None:
    """mpe2's own Tag, if it is installed."""
    if importlib.util.find_spec("mpe2") is None:
        return None
    from mpe2 import simple_tag_v3  # type: ignore[import-not-found, unused-ignore]

    env = simple_tag_v3.parallel_env()
    env.reset(seed=0)
    actions = {agent: env.action_space(agent).sample() for agent in env.possible_agents}

    def step() -> None:
        env.step(actions)
        if not env.agents:
            env.reset()

    return stepping(step, len(env.possible_agents))


def measure(forms: dict[str, Callable[[], float]], rounds: int) -> dict[str, Any]:
    """Agent steps per second of every form."""
    medians, turns = by_turns(forms, rounds)
    times = {
        name: statistics.median(turn[name] / turn["numpy"] for turn in turns) for name in forms if "numpy" in forms
    }
    return {"agent_steps_per_second": medians, "times": times, "rounds": turns}


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = ["| agents | environments | form | agent steps/s | times NumPy |", "|---:|---:|---|---:|---:|"]
    for size in result["sizes"]:
        for name, rate in size["agent_steps_per_second"].items():
            times = f"{size['times'][name]:.1f}" if size["times"] else ""
            lines.append(f"| {size['agents']} | {size['num_envs']} | {name} | {rate:,.0f} | {times} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default="5,100,1000", help=f"of {', '.join(map(str, KINDS))} (default %(default)s)")
    parser.add_argument("--num-envs", default="10,100,1000", help="of %(default)s, as far as --most-agents goes")
    parser.add_argument("--most-agents", type=int, default=100_000, help="in all environments (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each form (default %(default)s)")
    parser.add_argument("--no-file", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    sizes = []
    with limit_threads(1):
        for num_agents in map(int, arguments.agents.split(",")):
            for num_envs in map(int, arguments.num_envs.split(",")):
                if num_agents * num_envs <= arguments.most_agents:
                    found = measure(contestants(num_agents, num_envs), arguments.rounds)
                    sizes.append({"agents": num_agents, "num_envs": num_envs, **found})
        mpe2 = of_mpe2()
        if mpe2 is None:
            print("mpe2 is not installed (pip install mpe2): left out")
        else:
            sizes.append({"agents": 4, "num_envs": 1, **measure({"mpe2": mpe2}, arguments.rounds)})
    payload = {"arguments": vars(arguments), "sizes": sizes}
    machine.report("tag", payload, as_markdown(payload), keeps=not arguments.no_file)


if __name__ == "__main__":
    main()
