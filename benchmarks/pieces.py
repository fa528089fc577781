"""The pieces of the small and the wide case of `fixed_work.py`, each against its bound.

    python benchmarks/pieces.py
    python benchmarks/pieces.py --rounds 3

`update`: a minibatch of PPO's update (gather, losses, gradient, clipping, optimizer). Its bound is the matrix products
and tanh of actor and critic, forward and backward, in memory laid out beforehand, by NumPy, by torch, or each by the
kernel that is fastest for its shape (`limits.py`), whichever is fastest. A minibatch's time is the difference between
an update of many epochs and one of few, divided by the number of minibatches that they differ by, so that it leaves
out what an update does once; `all_ms` includes that too.

`action`: the actor's outputs and the choice of actions, noise included, against a step of gymnasium's own vectorised
CartPole, for 8 to 64 environments.

All in one process on one thread: a round times each once, in turn; figures are medians over the rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import machine
import numpy as np
import torch
from cases import CASES, Case, our_config
from limits import BareNetwork, Fastest, InNumpy, InTorch

from hybridppo import PPO, SingleDevice
from hybridppo.environments.making import make_environments
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners.samplers.in_process import Sampler
from hybridppo.system.threads import limit_threads

FEW, MANY = 2, 10
"""Epochs of the two updates whose difference is taken."""
ACTION_ENVS = (8, 16, 32, 64)


def seconds_of(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def rollout_of(case: Case, **changes: Any) -> Rollout:
    """One rollout of the case, by an untrained agent; `changes` apply to its configuration."""
    environments = make_environments(case.env_id, case.num_envs)
    placement, config = SingleDevice("cpu"), replace(our_config(case), **changes)
    agent = PPO(environments.observation_space, environments.action_space, config, seed=0)
    placement.prepare(agent)
    sampler = Sampler(
        environments, agent.distribution, num_steps=case.num_steps, env_seed=0, noise=np.random.default_rng(0),
        memory=config.memory,
    )  # fmt: skip
    try:
        with placement.sampling(agent) as actor:
            return sampler.collect(actor)
    finally:
        sampler.close()


def agent_of(case: Case, num_epochs: int) -> PPO:
    """An agent that learns from a rollout in `num_epochs` epochs."""
    env = gym.make(case.env_id)
    config = replace(our_config(case), num_epochs=num_epochs)
    agent = PPO(env.observation_space, env.action_space, config, seed=0)
    SingleDevice("cpu").prepare(agent)
    return agent


def bare_minibatches(case: Case, library: InNumpy | InTorch | Fastest, count: int) -> Callable[[], None]:
    """Only the products and tanh of `count` minibatches of the case."""
    networks = [BareNetwork(library, [4, *case.hidden_sizes, outputs], case.minibatch_size) for outputs in (2, 1)]

    @torch.no_grad()
    def minibatches() -> None:
        for _ in range(count):
            for network in networks:
                network.forward()
                network.backward()

    return minibatches


def measure_update(case: Case, rounds: int) -> dict[str, Any]:
    """Milliseconds per minibatch: the update's, and its bound's."""
    rollout = rollout_of(case)
    few, many = agent_of(case, FEW), agent_of(case, MANY)
    count = (MANY - FEW) * case.num_minibatches
    libraries = {"numpy": InNumpy(), "torch": InTorch(), "fastest": Fastest()}
    bare = {name: bare_minibatches(case, library, count) for name, library in libraries.items()}
    measured: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        seconds_few, seconds_many = seconds_of(lambda: few.update(rollout)), seconds_of(lambda: many.update(rollout))
        row = {
            "update_ms": 1e3 * (seconds_many - seconds_few) / count,
            "all_ms": 1e3 * seconds_many / (MANY * case.num_minibatches),
        }
        measured.append(row | {f"{name}_ms": 1e3 * seconds_of(function) / count for name, function in bare.items()})
    del measured[0]  # warms up
    medians = {key: statistics.median(row[key] for row in measured) for key in measured[0]}
    bound = min((f"{name}_ms" for name in bare), key=lambda name: medians[name])
    ratio = statistics.median(row["update_ms"] / row[bound] for row in measured)
    return {**medians, "bound": bound, "ratio": ratio, "rounds": measured}


def measure_action(num_envs: int, rounds: int, steps: int = 128) -> dict[str, Any]:
    """Microseconds per vector step: of the actor with the choice of actions, and of the environments."""
    case = Case(num_envs=num_envs, hidden_sizes=(64, 64), warmup=0, iterations=0)
    agent, placement, generator = agent_of(case, 1), SingleDevice("cpu"), np.random.default_rng(0)
    placement.prepare(agent)
    distribution = agent.distribution
    observations = rollout_of(case).observations.numpy()
    random_actions = generator.integers(0, 2, size=(steps, num_envs))
    env = gym.make_vec(case.env_id, num_envs=num_envs)
    env.reset(seed=0)

    def act() -> None:
        noise = distribution.draw_noise(generator, (steps, num_envs))
        with placement.sampling(agent) as actor:
            for t in range(steps):
                distribution.to_env(distribution.sample(actor(observations[t]), noise[t]))

    def step() -> None:
        for actions in random_actions:
            env.step(actions)

    measured = [
        {"action_us": 1e6 * seconds_of(act) / steps, "step_us": 1e6 * seconds_of(step) / steps}
        for _ in range(5 * rounds + 1)
    ][1:]
    env.close()
    medians = {key: statistics.median(row[key] for row in measured) for key in measured[0]}
    share = statistics.median(row["action_us"] / row["step_us"] for row in measured)
    return {**medians, "share": share, "rounds": measured}


def as_markdown(result: dict[str, Any]) -> str:
    """The tables of a result file."""
    lines = [
        "| minibatch update | ms | bound, ms | by | times | all of an update, ms |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for name, row in result["update"].items():
        bound = f"{row[row['bound']]:.3f} | {row['bound'].removesuffix('_ms')}"
        cells = f"{row['update_ms']:.3f} | {bound} | {row['ratio']:.2f} | {row['all_ms']:.3f}"
        lines.append(f"| {name}: {CASES[name].hidden_sizes}, {CASES[name].minibatch_size} rows | {cells} |")
    lines += ["", "| environments | actor and actions, us | vector step, us | share |", "|---:|---:|---:|---:|"]
    for num_envs, row in result["action"].items():
        lines.append(f"| {num_envs} | {row['action_us']:.1f} | {row['step_us']:.1f} | {row['share']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="of each piece (default %(default)s)")
    parser.add_argument("--cases", default=",".join(CASES), help="of %(default)s")
    arguments = parser.parse_args()
    with limit_threads(1):
        update = {name: measure_update(CASES[name], arguments.rounds) for name in arguments.cases.split(",")}
        action = {str(num_envs): measure_action(num_envs, arguments.rounds) for num_envs in ACTION_ENVS}
    payload = {"arguments": vars(arguments), "update": update, "action": action}
    machine.report("pieces", payload, as_markdown(payload))


if __name__ == "__main__":
    main()
