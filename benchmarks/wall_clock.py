"""How long until CartPole is solved? Wall-clock seconds from the start of a process to an evaluation of 475.

    python benchmarks/wall_clock.py
    python benchmarks/wall_clock.py --seeds 2 --cases whole

Each turn is a fresh process: its time is from before it is started to after it has ended, imports included. All train
with the hyper-parameters that rl-baselines3-zoo publishes for CartPole-v1, for 100,000 steps. In the case `whole`
they are trained to the end and then evaluated; in `first` they are evaluated after every 10,000 steps, and stop at
the first evaluation of at least 475. An evaluation is 20 deterministic episodes, in 20 environments side by side.
stable-baselines3 runs at its fastest for this: on the CPU, one torch thread, `DummyVecEnv`, no monitor, no log.
`import torch` is a contestant that does nothing else.

    python benchmarks/wall_clock.py --turn hybridppo --cases first --seed 0

is one turn; it prints a line of JSON.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

TARGET, EVALUATION_EPISODES = 475.0, 20
ENV_ID, TOTAL_STEPS, NUM_ENVS = "CartPole-v1", 100_000, 8
EVALUATE_EVERY = {"first": 10_000, "whole": TOTAL_STEPS}
"""Steps between evaluations, by case."""
OURS, OVERLAP, PEER, FLOOR = "hybridppo", "hybridppo overlap", "stable-baselines3", "import torch"

Evaluations = list[tuple[int, float]]
"""Environment steps, and the mean return then."""


def train_hybridppo(seed: int, every: int, overlap: bool) -> Evaluations:
    """Train until an evaluation reaches the target, as the library's own runner does."""
    import numpy as np
    from settings import cleanrl

    from hybridppo import PPO, Mirrored, Placement, SingleDevice
    from hybridppo.environments.making import make_environments
    from hybridppo.runners.assembly import make_runner, make_sampler
    from hybridppo.system.threads import limit_threads
    from hybridppo.training.evaluate import evaluate_agent

    config = cleanrl(
        num_envs=NUM_ENVS,
        num_steps=32,
        num_minibatches=1,
        num_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=1e-3,
        anneal_learning_rate=True,
        clip_range=0.2,
        anneal_clip_range=True,
        clip_range_vf=None,
        entropy_coef=0.0,
        value_coef=1.0,  # of half the squared error, where stable-baselines3 has 0.5 of the whole
        torch_threads=1,
    )
    placement: Placement = Mirrored("cpu", "cpu", max_lag=1) if overlap else SingleDevice("cpu")
    environments = make_environments(ENV_ID, config.num_envs)
    agent = PPO(environments.observation_space, environments.action_space, config, seed=seed)
    evaluations: Evaluations = []
    with limit_threads(config.torch_threads):
        placement.prepare(agent)
        sampler = make_sampler(
            ENV_ID,
            environments,
            agent,
            placement,
            num_steps=config.num_steps,
            num_workers=None,
            options={},
            env_seed=1000 * seed,
            noise=np.random.default_rng(seed),
        )
        runner = make_runner(agent, sampler, placement, total_steps=TOTAL_STEPS, progress=False)
        while sampler.env_steps < TOTAL_STEPS:
            runner.iterate()
            if sampler.env_steps // every > len(evaluations) or sampler.env_steps >= TOTAL_STEPS:
                evaluation = evaluate_agent(
                    agent, ENV_ID, episodes=EVALUATION_EPISODES, seed=seed, placement=placement, progress=False
                )
                evaluations.append((sampler.env_steps, evaluation.return_mean))
                if evaluation.return_mean >= TARGET:
                    break
        sampler.close()
    return evaluations


def train_stable_baselines3(seed: int, every: int) -> Evaluations:
    """The same with stable-baselines3's own callbacks."""
    from functools import partial

    import gymnasium as gym
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Evaluating(EvalCallback):
        """Notes the result of each evaluation."""

        evaluations: Evaluations

        def _init_callback(self) -> None:
            super()._init_callback()
            self.evaluations = []

        def _on_step(self) -> bool:
            goes_on = super()._on_step()
            if self.n_calls % self.eval_freq == 0:
                self.evaluations.append((self.num_timesteps, self.last_mean_reward))
            return goes_on

    torch.set_num_threads(1)
    make = partial(gym.make, ENV_ID)
    agent = PPO(
        "MlpPolicy",
        DummyVecEnv([make] * NUM_ENVS),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=lambda remaining: remaining * 1e-3,
        clip_range=lambda remaining: remaining * 0.2,
        ent_coef=0.0,
        seed=seed,
        device="cpu",
        verbose=0,
    )
    evaluating = Evaluating(
        DummyVecEnv([make] * EVALUATION_EPISODES),
        callback_on_new_best=StopTrainingOnRewardThreshold(TARGET),
        n_eval_episodes=EVALUATION_EPISODES,
        eval_freq=every // NUM_ENVS,
        deterministic=True,
        verbose=0,
        warn=False,
    )
    agent.learn(TOTAL_STEPS, callback=evaluating, log_interval=None)  # type: ignore[arg-type]  # None: never
    return evaluating.evaluations


def take_turn(contestant: str, seed: int, every: int) -> dict[str, Any]:
    """In the turn's own process: train, and report when the target was reached."""
    if contestant == FLOOR:
        import torch  # noqa: F401 - its time is all that is asked

        return {}
    if contestant == PEER:
        evaluations = train_stable_baselines3(seed, every)
    else:
        evaluations = train_hybridppo(seed, every, overlap=contestant == OVERLAP)
    return {
        "reached": evaluations[-1][1] >= TARGET,
        "env_steps": evaluations[-1][0],
        "evaluations": evaluations,
    }


def measure(case: str, seeds: int) -> list[dict[str, Any]]:
    """Every contestant on every seed, by turns. A first turn of each fills the disk cache and does not count."""
    import turns

    def children_cpu_seconds() -> float:
        times = os.times()
        return times.children_user + times.children_system

    def timed(command: list[str]) -> turns.Turn:
        start, cpu_start = time.perf_counter(), children_cpu_seconds()
        turn = turns.take_turn(command)
        return {"seconds": time.perf_counter() - start, "cpu_seconds": children_cpu_seconds() - cpu_start, **turn}

    def commands(seed: int) -> dict[str, list[str]]:
        start = [sys.executable, str(Path(__file__)), "--cases", case]
        return {name: [*start, "--turn", name, "--seed", str(seed)] for name in (OURS, OVERLAP, PEER, FLOOR)}

    print(f"case {case}", file=sys.stderr)
    turns.take_turns(commands(0), 1, key="seconds", take=timed)
    return [turns.take_turns(commands(seed), 1, key="seconds", take=timed)[0] for seed in range(seeds)]


def as_markdown(result: dict[str, Any]) -> str:
    """A row per contestant and case."""
    lines = [
        f"| case | | seconds, median | seconds, by seed | CPU seconds | steps, by seed | share of {PEER}'s time |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for case, rounds in result["cases"].items():
        peer = statistics.median(turns[PEER]["seconds"] for turns in rounds)
        for name in rounds[0]:
            seconds = [turns[name]["seconds"] for turns in rounds]
            median, by_seed = statistics.median(seconds), ", ".join(f"{each:.1f}" for each in seconds)
            cpu_seconds = statistics.median(turns[name]["cpu_seconds"] for turns in rounds)
            steps = "" if name == FLOOR else ", ".join(_steps(turns[name]) for turns in rounds)
            cells = f"{median:.2f} | {by_seed} | {cpu_seconds:.2f} | {steps} | {median / peer:.2f}"
            lines.append(f"| {case} | {name} | {cells} |")
    return "\n".join(lines)


def _steps(turn: dict[str, Any]) -> str:
    return f"{turn['env_steps']:,}" + ("" if turn["reached"] else f" (not reached: {turn['evaluations'][-1][1]:.0f})")


def main() -> None:
    """Measure, print and save the results; or take one turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(EVALUATE_EVERY), help="of %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="how many (default %(default)s)")
    parser.add_argument("--turn", help="take this contestant's turn in this process")
    parser.add_argument("--seed", type=int, default=0, help="seed of the turn")
    arguments = parser.parse_args()
    if arguments.turn is not None:  # nothing is imported but what the contestant needs
        print(json.dumps(take_turn(arguments.turn, arguments.seed, EVALUATE_EVERY[arguments.cases])))
        return
    import machine

    cases = {case: measure(case, arguments.seeds) for case in arguments.cases.split(",")}
    payload = {"arguments": vars(arguments), "target": TARGET, "evaluate_every": EVALUATE_EVERY, "cases": cases}
    print(as_markdown(payload))
    print(f"\nRaw figures: {machine.save('wall_clock', payload)}")


if __name__ == "__main__":
    main()
