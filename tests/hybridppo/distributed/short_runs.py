"""A short training for the tests of distributions."""

from collections.abc import Callable
from typing import Any

import hybridppo


def trainer(config: Any, total_steps: int, **defaults: Any) -> Callable[..., hybridppo.TrainResult]:
    """A function that trains with these settings unless it is given others; a function makes a placement each time."""

    def train(env: Any = "CartPole-v1", **options: Any) -> hybridppo.TrainResult:
        options = {
            "config": config, "seed": 5, "total_steps": total_steps, "placement": "cpu", "progress": False,
            "on_interrupt": "return", **defaults, **options,
        }  # fmt: skip
        if callable(options["placement"]):
            options["placement"] = options["placement"]()
        return hybridppo.train(env, **options)

    return train
