"""Train an agent that balances CartPole-v1 for 500 steps, in well under a minute on a laptop.

    python scripts/train_cartpole.py
    python scripts/train_cartpole.py --placement hybrid --seed 1 --total-steps 50000

This is `hybridppo train CartPole-v1 --tuned` with the flags below; your flags replace them. The default settings learn
as well, but at times the mean return falls for a while. After the training, the agent is evaluated. `hybridppo plot
RUN_DIR` draws its learning curve.
"""

import sys

from hybridppo.commands.main import main

ALWAYS = ("--evaluation-episodes", "20")
STEPS = ("--total-steps", "100000")


def arguments(given: list[str]) -> list[str]:
    """The arguments of the command line; if a flag occurs twice, the last one counts."""
    env_id, flags = "CartPole-v1", given
    if given and not given[0].startswith("-"):
        env_id, *flags = given
    has_own = any(flag.startswith(("--tuned", "--agent", "--config", "--policies")) for flag in flags)
    if env_id == "CartPole-v1" and not has_own:
        return ["train", env_id, *ALWAYS, "--tuned", *flags]
    return ["train", env_id, *ALWAYS, *(() if "--tuned" in flags else STEPS), *flags]


if __name__ == "__main__":
    main(arguments(sys.argv[1:]))
