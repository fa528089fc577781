"""A step of Adam that is compiled; Python never calls it.

Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1.
"""

import math
from typing import Any

import numpy as np


def adam(
    values: Any, gradient: Any, exp_avg: Any, exp_avg_sq: Any, scale: Any, rate: float, beta_1: float, beta_2: float,
    eps: float, step: float,
) -> None:  # fmt: skip
    """Make the `step`th step of parameters `[N]` along their gradient, which is scaled in place."""
    keep, decay = np.float32(1.0 - beta_1), np.float32(beta_2)
    add, small = np.float32(1.0 - beta_2), np.float32(eps)
    stride = np.float32(rate / (1.0 - beta_1**step))
    root = np.float32(1.0 / math.sqrt(1.0 - beta_2**step))
    for k in range(len(values)):
        slope = gradient[k] * scale
        first = exp_avg[k] + keep * (slope - exp_avg[k])
        second = decay * exp_avg_sq[k] + add * slope * slope
        gradient[k], exp_avg[k], exp_avg_sq[k] = slope, first, second
        values[k] -= stride * first / (math.sqrt(second) * root + small)
