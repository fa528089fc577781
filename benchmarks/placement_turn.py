"""One turn of `placements.py`, in a fresh process.

    python benchmarks/placement_turn.py library --placement cpu --threads 1
    python benchmarks/placement_turn.py library --placement hybrid --learning-device cuda --hidden-sizes 256,256
    python benchmarks/placement_turn.py textbook

A line of JSON on stdout is its result. `library` trains with the settings of the textbook's loop by `hybridppo.train`;
`textbook` runs `textbook.py`. Both warm up with a few episodes that do not count, so that neither pays for what a
process loads once.
"""

import argparse
import json
import os
import time
from typing import Any

import textbook
import torch
from settings import cleanrl
from watch import Watch

import hybridppo
from hybridppo import DDPGConfig, Migrating, Mirrored, PPOConfig

ENV_ID = textbook.ENV_ID
WARMUP_EPISODES = 3
NO_LIMIT = 10**12

BY_EPISODE, BY_ROLLOUT, WITH_POOL, DDPG = "episode", "8 x 128 steps", "8 x 128 steps, a pool of 4", "step of DDPG"
ROLLOUTS: dict[str, dict[str, Any]] = {
    BY_EPISODE: {"num_envs": 1, "episodes_per_rollout": 1},
    BY_ROLLOUT: {"num_envs": 8, "num_steps": 128},
    WITH_POOL: {"num_envs": 8, "num_steps": 128, "pool_size": 4},
}
"""What an update learns from, as fields of the configuration."""


def textbook_config(arguments: argparse.Namespace, threads: int) -> PPOConfig:
    """The textbook's settings as this library's configuration."""
    return cleanrl(
        num_epochs=textbook.NUM_EPOCHS,
        num_minibatches=1,
        learning_rate=textbook.ACTOR_LEARNING_RATE,
        critic_learning_rate=textbook.CRITIC_LEARNING_RATE,
        anneal_learning_rate=False,
        gamma=textbook.GAMMA,
        gae_lambda=textbook.GAE_LAMBDA,
        clip_range=textbook.CLIP_RANGE,
        clip_range_vf=None,
        entropy_coef=0.0,
        value_coef=2.0,  # of half the squared error: the textbook has no half
        max_grad_norm=1e9,  # the textbook limits none
        normalize_advantage=False,
        hidden_sizes=arguments.hidden_sizes,
        activation="relu",
        torch_threads=threads,
        **ROLLOUTS[arguments.rollout],
    )


def ddpg_config(arguments: argparse.Namespace, threads: int) -> DDPGConfig:
    """DDPG with an optimizer step for each environment step."""
    steps = arguments.steps or NO_LIMIT
    return DDPGConfig(hidden_sizes=arguments.hidden_sizes, learning_starts=min(500, steps // 4), torch_threads=threads)


def gpu_figures(watch: Watch) -> dict[str, float | None]:
    """The mean use of the first CUDA device in percent, and the peak of torch's own memory in MiB."""
    memory = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else None
    return {"gpu_utilization": watch.found()["gpu_percent"], "gpu_memory_mib": memory}


def placement_of(arguments: argparse.Namespace) -> Any:
    """The placement of this name; `mirror` copies even between equal devices."""
    if arguments.placement == "mirror":
        every = arguments.publish_every
        return Mirrored(arguments.sampling_device, arguments.learning_device, publish_every=every, force_copy=True)
    if arguments.placement in ("migrate", "hybrid", "overlap"):
        kind = Migrating if arguments.placement == "migrate" else Mirrored
        options = {"max_lag": 1} if arguments.placement == "overlap" else {}
        return kind(arguments.sampling_device, arguments.learning_device, **options)
    return arguments.placement


def cpu_seconds() -> float:
    """CPU time of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run_library(arguments: argparse.Namespace) -> dict[str, Any]:
    """A turn of this library, through its public `train`."""
    threads = arguments.threads if arguments.threads is not None else torch.get_num_threads()
    if arguments.rollout != DDPG:
        train(arguments, threads, WARMUP_EPISODES, arguments.steps)
    return {"threads": threads, **train(arguments, threads, arguments.episodes, arguments.steps)}


def train(arguments: argparse.Namespace, threads: int, episodes: int, steps: int | None) -> dict[str, Any]:
    """A training. The clock runs from the start of its first iteration to the end of its last."""
    parts = dict.fromkeys(("seconds_sampling", "seconds_learning", "seconds_copying"), 0.0)
    start = end = 0.0

    def add_up(metrics: dict[str, float]) -> None:
        nonlocal start, end
        end = time.perf_counter()
        if metrics["iteration"] == 1:
            start = end - metrics["seconds"]
        for part in parts:
            parts[part] += metrics[part]

    is_ddpg = arguments.rollout == DDPG
    cpu_start, wall_start = cpu_seconds(), time.perf_counter()
    with Watch(0.1) as watch:
        result = hybridppo.train(
            "Pendulum-v1" if is_ddpg else ENV_ID,
            total_steps=NO_LIMIT if steps is None else steps,
            total_episodes=None if is_ddpg else episodes,
            seed=arguments.seed,
            placement=placement_of(arguments),
            config=ddpg_config(arguments, threads) if is_ddpg else textbook_config(arguments, threads),
            progress=False,
            on_iteration=add_up,
        )
    # The training's own processes have ended by now: their time counts, and so does their start.
    cpu_load = (cpu_seconds() - cpu_start) / (time.perf_counter() - wall_start)
    metrics, seconds = result.metrics, end - start
    return {
        "seconds": seconds,
        "env_steps": metrics["env_steps"],
        "episodes": metrics["episodes"],
        "steps_per_second": metrics["env_steps"] / seconds,
        **parts,
        "updates": metrics["iteration"],
        "cpu_load": cpu_load,
        "publishes": metrics["publishes"],
        "bytes_copied": metrics["bytes_copied"],
        "return_mean": metrics["episode_return_mean"],
        **gpu_figures(watch),
    }


def run_textbook(arguments: argparse.Namespace) -> dict[str, Any]:
    """A turn of the textbook's loop."""
    settings = {
        "seed": arguments.seed,
        "hidden_sizes": arguments.hidden_sizes,
        "sampling_device": arguments.sampling_device,
        "learning_device": arguments.learning_device,
        "threads": arguments.threads,
    }
    textbook.train(textbook.Settings(**settings, episodes=WARMUP_EPISODES))
    with Watch(0.1) as watch:
        result = textbook.train(textbook.Settings(**settings, episodes=arguments.episodes))
    return {**result, "seconds_copying": 0.0, "publishes": None, "bytes_copied": None, **gpu_figures(watch)}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestant", choices=("library", "textbook"))
    parser.add_argument("--episodes", type=int, default=500, help="stop after these (default %(default)s)")
    parser.add_argument("--steps", type=int, help="stop the library after these, if that comes first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden-sizes", default="128", help="widths, with commas between (default %(default)s)")
    parser.add_argument("--rollout", choices=(*ROLLOUTS, DDPG), default="episode", help="of the library, for an update")
    parser.add_argument("--placement", default="cpu", help="of the library")
    parser.add_argument("--sampling-device", default="cpu")
    parser.add_argument("--learning-device", default="cpu")
    parser.add_argument("--publish-every", type=int, default=1, help="of mirror")
    parser.add_argument("--threads", type=int, help="of torch and NumPy; without it, torch's own default")
    parsed = parser.parse_args(arguments)
    parsed.hidden_sizes = tuple(int(size) for size in parsed.hidden_sizes.split(","))
    return parsed


def main() -> None:
    """Run one turn."""
    arguments = parse_arguments()
    run = {"library": run_library, "textbook": run_textbook}[arguments.contestant]
    print(json.dumps(run(arguments)))


if __name__ == "__main__":
    main()
