"""Environments compiled for stepping alone: compiling the loop with an actor takes two thirds of the time."""

from collections.abc import Callable
from typing import Any

from hybridppo.compiled import building, kernels


def leave_out_rollouts(set_attribute: Callable[[Any, str, Any], object] = setattr) -> None:
    """Compile no rollouts from now on."""
    loops = {loop: signature for loop, signature in kernels.LOOPS.items() if loop is not kernels.rollout}
    set_attribute(kernels, "LOOPS", loops)
    set_attribute(building, "LOOPS", loops)
