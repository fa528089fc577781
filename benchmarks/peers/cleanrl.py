"""CleanRL: its scripts, from a checkout, with the case's layer widths."""

import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from cases import Case, Stopwatch


def run(case: Case, checkouts: Path | None) -> dict[str, Any]:
    """A turn of `ppo.py`.

    An iteration ends when the script prints its speed, and its learning begins when it first shuffles rows. Rows that
    environments spend on a reset count as steps here, in its favor: it trains on them as on others.
    """
    if checkouts is None:
        return {"left_out": "no package: scripts of a checkout (--checkouts)"}
    if not isinstance(gym.make(case.env_id).action_space, gym.spaces.Discrete):
        return {"left_out": "ppo_continuous_action.py wants gymnasium 0.29, which has no such environment"}
    if len(case.hidden_sizes) != 2 or len(set(case.hidden_sizes)) != 1:
        return {"left_out": "its scripts have two layers of one width"}
    source = (checkouts / "cleanrl" / "cleanrl" / "ppo.py").read_text(encoding="utf-8")
    source = re.sub(r"\b64\b", str(case.hidden_sizes[0]), source)  # as its user would
    watch, learning = Stopwatch(case), 0.0
    shuffle, has_shuffled = np.random.shuffle, False

    def shuffled(rows: Any) -> None:
        nonlocal learning, has_shuffled
        if not has_shuffled:
            learning, has_shuffled = time.perf_counter(), True
        shuffle(rows)

    def printed(*words: Any) -> None:
        nonlocal has_shuffled
        if words[0] == "SPS:":
            watch.mark(learning)
            has_shuffled = False

    sys.argv = ["ppo.py", *flags(case), "--cuda" if case.device == "cuda" else "--no-cuda"]
    np.random.shuffle = shuffled
    with tempfile.TemporaryDirectory() as folder:
        inside = source.replace('f"runs/', f'f"{folder}/')  # its logs
        exec(compile(inside, "ppo.py", "exec"), {"__name__": "__main__", "__file__": "ppo.py", "print": printed})
    return watch.work_done()


def flags(case: Case) -> list[str]:
    """The case as flags of CleanRL's scripts."""
    settings = {
        "env-id": case.env_id,
        "total-timesteps": (case.warmup + case.iterations) * case.batch_size,
        "num-envs": case.num_envs,
        "num-steps": case.num_steps,
        "update-epochs": case.num_epochs,
        "num-minibatches": case.num_minibatches,
        "learning-rate": case.learning_rate,
        "gamma": case.gamma,
        "gae-lambda": case.gae_lambda,
        "clip-coef": case.clip_range,
        "ent-coef": case.entropy_coef,
        "vf-coef": case.value_coef,
        "max-grad-norm": case.max_grad_norm,
    }
    return [*(f"--{name}={value}" for name, value in settings.items()), "--no-anneal-lr", "--no-clip-vloss"]
