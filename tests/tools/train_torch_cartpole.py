"""Trains in `TorchCartPole` under `GPUOnly` on the CPU, for `chaos.py`: no flag of `hybridppo` names such environments.

    python tests/tools/train_torch_cartpole.py train CartPole --distributed gpu:2:2 --run-dir runs/poles
    python tests/tools/train_torch_cartpole.py resume runs/poles

It takes some flags of `hybridppo`, and has the same exit codes.
"""

import argparse
import sys
from pathlib import Path

import hybridppo
from hybridppo.environments.torch_cartpole import TorchCartPole


def make(num_envs: int, device: str = "cpu") -> TorchCartPole:
    """The environments of a shard."""
    return TorchCartPole(num_envs, device)


def main() -> int:
    """Train, or resume."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "resume"))
    parser.add_argument("name", help="of the environment, which is not looked at; or a run directory")
    parser.add_argument("--distributed", default="gpu:2:2")
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    for flag in ("--total-steps", "--num-envs", "--num-steps", "--num-minibatches", "--hidden-sizes"):
        parser.add_argument(flag, type=int, default=8)
    parser.add_argument("--checkpoint-seconds", type=float, default=0.0)
    parser.add_argument("--no-progress", action="store_true")
    arguments = parser.parse_args()
    if arguments.what == "resume":
        result = hybridppo.resume(arguments.name, env=make, progress=False, on_interrupt="return")
    else:
        config = hybridppo.PPOConfig(
            num_envs=arguments.num_envs, num_steps=arguments.num_steps, num_minibatches=arguments.num_minibatches,
            hidden_sizes=(arguments.hidden_sizes,),
        )  # fmt: skip
        result = hybridppo.train(
            make, total_steps=arguments.total_steps, config=config, seed=arguments.seed, placement="cpu",
            distributed=arguments.distributed, run_dir=arguments.run_dir, progress=False, on_interrupt="return",
            checkpoint_seconds=arguments.checkpoint_seconds,
        )  # fmt: skip
    return 130 if result.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
