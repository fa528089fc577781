"""Train an agent that balances CartPole-v1 for 500 steps, in well under a minute on a laptop.

    python scripts/train_cartpole.py
    python scripts/train_cartpole.py --placement hybrid --seed 1 --total-steps 50000

Every option of `hybridppo train` is a flag. The settings below are PPO's: another agent has its own. Ends with an
evaluation and, if matplotlib is installed, with a picture of the learning curve in the run directory.
"""

import sys

from hybridppo.system.blas import choose_kernels

choose_kernels()  # before NumPy is loaded

from hybridppo import PPOConfig  # noqa: E402
from hybridppo.commands.main import run_command  # noqa: E402
from hybridppo.commands.train import Train, parse_train  # noqa: E402
from hybridppo.runs.options import RunOptions  # noqa: E402

DEFAULTS = Train(
    env_id="CartPole-v1",
    options=RunOptions(total_steps=100_000, evaluation_episodes=20),
    plot=True,
    config=PPOConfig(
        num_envs=8,
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
        normalize_observations=False,
        normalize_rewards=False,
    ),
)


def main() -> int:
    """Train with the defaults above, changed by flags."""
    return run_command(lambda: parse_train(sys.argv[1:], DEFAULTS, description=__doc__))


if __name__ == "__main__":
    sys.exit(main())
