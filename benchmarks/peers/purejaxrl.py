"""PureJaxRL: its script, from a checkout, with the case's layer widths."""

import re
import sys
import time
from pathlib import Path
from typing import Any

from cases import Case


def run(case: Case, checkouts: Path | None) -> dict[str, Any]:
    """A turn of `ppo.py`: CartPole is gymnax's, a part of the compiled program, and values are clipped.

    The ends of iterations cannot be seen from outside: the whole program is timed, after it was compiled and run once.
    """
    if checkouts is None:
        return {"left_out": "no package: scripts of a checkout (--checkouts)"}
    if case.env_id != "CartPole-v1":
        return {"left_out": "its environments are programs of JAX"}
    import jax

    folder = checkouts / "purejaxrl" / "purejaxrl"
    sys.path.insert(0, str(folder))  # of its `wrappers`
    source = (folder / "ppo.py").read_text(encoding="utf-8")
    found: dict[str, Any] = {"__name__": "ppo"}
    exec(compile(re.sub(r"\b64\b", str(case.hidden_sizes[0]), source), "ppo.py", "exec"), found)
    steps = case.iterations * case.batch_size
    config = {
        "ENV_NAME": case.env_id,
        "TOTAL_TIMESTEPS": steps,
        "NUM_ENVS": case.num_envs,
        "NUM_STEPS": case.num_steps,
        "UPDATE_EPOCHS": case.num_epochs,
        "NUM_MINIBATCHES": case.num_minibatches,
        "LR": case.learning_rate,
        "ANNEAL_LR": False,
        "GAMMA": case.gamma,
        "GAE_LAMBDA": case.gae_lambda,
        "CLIP_EPS": case.clip_range,
        "ENT_COEF": case.entropy_coef,
        "VF_COEF": case.value_coef,
        "MAX_GRAD_NORM": case.max_grad_norm,
        "ACTIVATION": "tanh",
    }
    train = jax.jit(found["make_train"](config))
    jax.block_until_ready(train(jax.random.PRNGKey(0)))
    begun = time.perf_counter()
    jax.block_until_ready(train(jax.random.PRNGKey(1)))
    seconds = time.perf_counter() - begun
    return {"env_steps": steps, "seconds": seconds, "steps_per_second": steps / seconds}
