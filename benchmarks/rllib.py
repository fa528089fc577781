"""RLlib's PPO and APPO beside this library with two samplers: the same work on the same two cores, by turns.

        python benchmarks/rllib.py --venv ~/rllib                     # creates it if it does not exist
    python benchmarks/rllib.py --venv ~/rllib --rounds 1 --iterations 3
    python benchmarks/rllib.py --venv ~/rllib --agents           # several agents
    python benchmarks/rllib.py --venv ~/rllib --lag              # APPO, and ours with max_lag=4

RLlib pins another gymnasium, so it gets a virtual environment of its own. If `--venv` names no folder, one is made:
`python -m venv`, then `torch` of `constraints.txt` (first: another torch would come with CUDA's libraries), then
`ray[rllib]==2.60.*`. You can also make it by hand in this way.

CartPole-v1, a rollout of 8 environments by 128 steps, 4 epochs of minibatches of 256, networks of 64 x 64 that share
nothing, two samplers with 4 environments each, one learner in the process that trains: RLlib's new API stack with
`num_env_runners=2`, and ours with `distributed="coarse:2"`. Both run over Ray, and each turn is a fresh process on the
same two cores (`taskset`, on Linux). Speeds are those of the iterations after the second; how well anything learns is
not measured. Steps are environment steps, by each library's own count.

With --agents: simple_spread of MPE2, whose three agents have a policy each, the same rollout and minibatches for each
policy, sampled by the process that trains, without Ray's actors: RLlib's `num_env_runners=0`, and our default loop.

With --lag: the same environments, rollout and networks, but samplers and learner do not wait for each other, and
V-trace corrects the lag: RLlib's APPO with two env runners and its default passes over each batch (2), and ours with
`max_lag=4`, two workers and four epochs.

The last line of the output is JSON; --output also writes it to a file.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]
NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCH, SAMPLERS = 8, 128, 4, 256, 2
BATCH = NUM_ENVS * NUM_STEPS
HIDDEN = (64, 64)
UNCOUNTED = 2
Kind = Literal["samplers", "agents", "lag"]
"""The comparisons."""
SECONDS_OF_APPO, CALLS_OF_APPO = 5.0, 6
"""Seconds of a call of APPO's `train`, which learns from as many batches as fit in; and how many calls count after the
first that has learned."""
RAY = "ray[rllib]==2.60.*"
AGENTS = ("agent_0", "agent_1", "agent_2")
OF_AGENTS = ("pettingzoo", "mpe2")
"""Packages of RLlib's environment for several agents, in the versions of constraints.txt."""


def mark(steps: int) -> tuple[float, int, float]:
    """When an iteration ended, after how many steps, and after how many CPU seconds of this process."""
    return time.perf_counter(), steps, time.process_time()


def summarized(marks: list[tuple[float, int, float]]) -> dict[str, Any]:
    """Steps per second, and per CPU second of this process, from the marks of iterations."""
    each = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(marks[UNCOUNTED:])]
    whole = (marks[-1][1] - marks[UNCOUNTED][1]) / (marks[-1][0] - marks[UNCOUNTED][0])
    by_processor = (marks[-1][1] - marks[UNCOUNTED][1]) / (marks[-1][2] - marks[UNCOUNTED][2])
    return {
        "steps_per_second": median(each),
        "steps_per_second_overall": whole,
        "steps_per_processor_second": by_processor,
        "iterations": len(each),
    }


def run_rllib(iterations: int, kind: Kind) -> dict[str, Any]:
    """A turn of RLlib, in its own environment."""
    import gymnasium
    import ray
    import torch
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    torch.set_num_threads(1)
    has_agents = kind == "agents"
    samplers = 0 if has_agents else SAMPLERS
    ray.init(address="local", num_cpus=samplers + 1, include_dashboard=False, log_to_driver=False)
    config = (
        (APPOConfig() if kind == "lag" else PPOConfig())
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=samplers,
            num_envs_per_env_runner=NUM_ENVS // max(1, samplers),
            rollout_fragment_length=NUM_STEPS,
        )
        .learners(num_learners=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(HIDDEN), fcnet_activation="tanh", vf_share_layers=False, head_fcnet_hiddens=[]
            )
        )
        .training(
            train_batch_size_per_learner=BATCH, lr=2.5e-4, gamma=0.99, lambda_=0.95, clip_param=0.2, entropy_coeff=0.01,
            vf_loss_coeff=0.5, use_kl_loss=False, grad_clip=0.5,
        )
        .debugging(seed=1, log_level="ERROR")
    )  # fmt: skip
    if kind == "lag":
        config = config.reporting(min_time_s_per_iteration=SECONDS_OF_APPO)
    else:
        config = config.training(minibatch_size=MINIBATCH, num_epochs=EPOCHS)
    if has_agents:
        from mpe2 import simple_spread_v3
        from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
        from ray.tune.registry import register_env

        register_env("simple_spread", lambda _: ParallelPettingZooEnv(simple_spread_v3.parallel_env()))
        config = config.environment("simple_spread").multi_agent(
            policies=set(AGENTS), policy_mapping_fn=lambda agent, *_, **__: agent
        )
    algorithm = config.build_algo()
    marks, steps = [mark(0)], 0
    try:
        while kind == "lag" and "learners" not in algorithm.train():
            pass
        for _ in range((CALLS_OF_APPO if kind == "lag" else iterations) + UNCOUNTED):
            result = algorithm.train()
            runners = result if kind == "lag" else result["env_runners"]
            steps = int(runners["num_env_steps_sampled_lifetime"])
            marks.append(mark(steps))
    finally:
        algorithm.stop()
        ray.shutdown()
    versions = {"ray": ray.__version__, "torch": torch.__version__, "gymnasium": gymnasium.__version__}
    return {**summarized(marks), "env_steps": steps, "versions": versions}


def run_hybridppo(iterations: int, kind: Kind) -> dict[str, Any]:
    """A turn of this library, with the same number of samplers."""
    import gymnasium
    import ray
    import torch
    from settings import cleanrl

    import hybridppo

    config = cleanrl(
        num_envs=NUM_ENVS, num_steps=NUM_STEPS, num_epochs=EPOCHS, num_minibatches=BATCH // MINIBATCH,
        hidden_sizes=HIDDEN, anneal_learning_rate=False, clip_range_vf=None,
    )  # fmt: skip
    marks = [mark(0)]
    env, given = "CartPole-v1", {
        "config": config, "vectorization": "sync", "placement": "cpu",
        "distributed": hybridppo.SingleLearnerCoarse(SAMPLERS),
    }  # fmt: skip
    if kind == "lag":
        placement = hybridppo.Mirrored("cpu", "cpu", max_lag=4)
        given |= {"distributed": "local", "placement": placement, "num_workers": SAMPLERS}
    if kind == "agents":
        env = "mpe2.simple_spread_v3:parallel_env"
        given = {"config": dict.fromkeys(AGENTS, config), "policy_of": lambda agent: agent, "placement": "cpu"}
    hybridppo.train(
        env, total_steps=BATCH * (iterations + UNCOUNTED), seed=1, progress=False, **given,
        on_iteration=lambda metrics: marks.append(mark(int(metrics["env_steps"]))),
    )  # fmt: skip
    versions = {"ray": ray.__version__, "torch": torch.__version__, "gymnasium": gymnasium.__version__}
    return {**summarized(marks), "env_steps": marks[-1][1], "versions": versions}


def python_of(venv: Path, has_agents: bool) -> Path:
    """The Python of an environment, which is created if it does not exist."""
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if python.exists():
        return python
    print(f"making {venv}: this loads some hundred megabytes", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    torch = next(line for line in pins if line.startswith("torch=="))
    others = [line for line in pins if has_agents and line.startswith(tuple(f"{name}==" for name in OF_AGENTS))]
    for packages in ([torch], [RAY, torch, *others]):
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def on_two_cores() -> list[str]:
    """The start of a command that pins it to two cores, the same for all."""
    if shutil.which("taskset") is None or not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))[:2]
    return ["taskset", "--cpu-list", ",".join(map(str, cores))]


def main() -> None:
    """Run a turn, or all of them by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turn", choices=("rllib", "hybridppo"), help="one turn, in this process")
    parser.add_argument("--venv", type=Path, help="RLlib's virtual environment; created if it does not exist")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--agents", dest="kind", action="store_const", const="agents", help="a policy for each agent")
    kinds.add_argument("--lag", dest="kind", action="store_const", const="lag", help="APPO, and ours with max_lag=4")
    parser.set_defaults(kind="samplers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=30, help="counted iterations of each turn")
    parser.add_argument("--output", type=Path, help="a folder for rllib.json")
    arguments = parser.parse_args()
    if arguments.turn is not None:
        # What each library prints goes elsewhere: the result is the last line.
        found = (run_rllib if arguments.turn == "rllib" else run_hybridppo)(arguments.iterations, arguments.kind)
        print(json.dumps(found), flush=True)
        return
    if arguments.venv is None:
        parser.error("--venv is needed: where RLlib is installed, or is to be")

    import machine
    from turns import medians, ratios, take_turns

    own = [str(Path(__file__).resolve()), "--iterations", str(arguments.iterations)]
    own += ["--turn"] if arguments.kind == "samplers" else [f"--{arguments.kind}", "--turn"]
    commands = {
        "hybridppo": [*on_two_cores(), sys.executable, *own, "hybridppo"],
        "rllib": [*on_two_cores(), str(python_of(arguments.venv, arguments.kind == "agents")), *own, "rllib"],
    }
    rounds = take_turns(commands, arguments.rounds)
    has_agents = arguments.kind == "agents"
    result = {
        "arguments": {"rounds": arguments.rounds, "iterations": arguments.iterations},
        "work": {"env": "simple_spread_v3" if has_agents else "CartPole-v1", "num_envs": NUM_ENVS,
                 "num_steps": NUM_STEPS, "num_epochs": EPOCHS,
                 "minibatch_size": MINIBATCH, "hidden_sizes": HIDDEN, "samplers": 0 if has_agents else SAMPLERS,
                 "policies": len(AGENTS) if has_agents else 1},
        "medians": {name: medians(rounds, name) for name in commands},
        "ratio": ratios(rounds, "hybridppo", "rllib", "steps_per_second"),
        "ratio_by_processor": ratios(rounds, "hybridppo", "rllib", "steps_per_processor_second"),
        "rounds": rounds,
    }  # fmt: skip
    if arguments.output is not None:
        machine.save("rllib" if arguments.kind == "samplers" else f"rllib_{arguments.kind}", result, arguments.output)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
