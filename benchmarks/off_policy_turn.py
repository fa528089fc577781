"""One turn of `off_policy.py` and `publishing.py`, in a fresh process. A line of JSON on stdout is its result.

    python benchmarks/off_policy_turn.py library --agent td3 --env Pendulum-v1 --steps 30000
    python benchmarks/off_policy_turn.py library --agent ddpg --placement mirror --publish-every 10
    python benchmarks/off_policy_turn.py stable-baselines3 --agent td3 --env HalfCheetah-v5 --steps 300000

Both contestants have the same settings: one environment, an optimizer step for each of its steps, minibatches of 256,
Adam with 1e-3, noise of 0.1, ReLU. The clock runs only during the training, from its first step to its last.
"""

import argparse
import json
import time
from typing import Any

import gymnasium as gym
import torch

from hybridppo.placements.base import Placement

BATCH_SIZE, LEARNING_RATE, GAMMA, TAU, NOISE = 256, 1e-3, 0.99, 0.005, 0.1
EVALUATION_EPISODES = 20


def placement_of(arguments: argparse.Namespace) -> Placement:
    """The placement of this name; `mirror` copies even between equal devices."""
    from hybridppo import Mirrored
    from hybridppo.placements.by_name import TAKE_DEVICES, make_placement

    if arguments.placement == "mirror":
        every = arguments.publish_every
        return Mirrored(arguments.sampling_device, arguments.learning_device, publish_every=every, force_copy=True)
    if arguments.placement not in TAKE_DEVICES:
        return make_placement(arguments.placement)
    return make_placement(
        arguments.placement, sampling_device=arguments.sampling_device, learning_device=arguments.learning_device
    )


def run_library(arguments: argparse.Namespace) -> dict[str, Any]:
    """A turn of this library, through its public `train`."""
    import hybridppo

    kind = {"td3": hybridppo.TD3Config, "ddpg": hybridppo.DDPGConfig}[arguments.agent]
    config = kind(
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        gamma=GAMMA,
        tau=TAU,
        exploration_std=NOISE,
        hidden_sizes=arguments.hidden_sizes,
        buffer_size=arguments.buffer_size,
        learning_starts=arguments.learning_starts,
        torch_threads=arguments.threads,
    )
    result = hybridppo.train(
        arguments.env,
        total_steps=arguments.steps,
        seed=arguments.seed,
        placement=placement_of(arguments),
        config=config,
        evaluation_episodes=arguments.evaluation_episodes,
        progress=False,
    )
    metrics = result.metrics
    return {
        "seconds": metrics["seconds"],
        "env_steps": metrics["env_steps"],
        "publishes": metrics["publishes"],
        "bytes_copied": metrics["bytes_copied"],
        "training": metrics["episode_return_mean"],
        "evaluation": None if result.evaluation is None else result.evaluation.return_mean,
    }


def run_stable_baselines3(arguments: argparse.Namespace) -> dict[str, Any]:
    """A turn of stable-baselines3, on the CPU and without a log."""
    import numpy as np
    import stable_baselines3
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(arguments.threads)
    environment = Monitor(gym.make(arguments.env))
    size = int(np.prod(environment.action_space.shape or ()))
    kind = {"td3": stable_baselines3.TD3, "ddpg": stable_baselines3.DDPG}[arguments.agent]
    agent = kind(
        "MlpPolicy",
        environment,
        learning_rate=LEARNING_RATE,
        buffer_size=arguments.buffer_size,
        learning_starts=arguments.learning_starts,
        batch_size=BATCH_SIZE,
        tau=TAU,
        gamma=GAMMA,
        train_freq=1,
        gradient_steps=1,
        action_noise=NormalActionNoise(np.zeros(size), NOISE * np.ones(size)),
        policy_kwargs={"net_arch": list(arguments.hidden_sizes), "activation_fn": torch.nn.ReLU},
        seed=arguments.seed,
        device="cpu",
        verbose=0,
    )
    start = time.perf_counter()
    agent.learn(arguments.steps)
    seconds = time.perf_counter() - start
    evaluation = None
    if arguments.evaluation_episodes:
        fresh = Monitor(gym.make(arguments.env))
        fresh.reset(seed=10_000 + arguments.seed)
        evaluation = float(evaluate_policy(agent, fresh, arguments.evaluation_episodes, deterministic=True)[0])
    returns = environment.get_episode_rewards()[-100:]
    return {
        "seconds": seconds,
        "env_steps": arguments.steps,
        "publishes": 0,
        "bytes_copied": 0,
        "training": float(np.mean(returns)) if returns else None,
        "evaluation": evaluation,
    }


RUN = {"library": run_library, "stable-baselines3": run_stable_baselines3}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contestant", choices=tuple(RUN))
    parser.add_argument("--agent", choices=("td3", "ddpg"), default="td3")
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden-sizes", default="400,300", help="widths, with commas between (default %(default)s)")
    parser.add_argument("--buffer-size", type=int, default=1_000_000)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--evaluation-episodes", type=int, default=EVALUATION_EPISODES)
    parser.add_argument("--placement", default="cpu", help="of the library: a name of the command line's, or mirror")
    parser.add_argument("--publish-every", type=int, default=1, help="of mirror")
    parser.add_argument("--sampling-device", default="cpu")
    parser.add_argument("--learning-device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of torch and NumPy")
    parsed = parser.parse_args(arguments)
    parsed.hidden_sizes = tuple(int(size) for size in parsed.hidden_sizes.split(","))
    return parsed


def main() -> None:
    """Run one turn."""
    arguments = parse_arguments()
    turn = RUN[arguments.contestant](arguments)
    print(json.dumps({**turn, "steps_per_second": turn["env_steps"] / turn["seconds"]}))


if __name__ == "__main__":
    main()
