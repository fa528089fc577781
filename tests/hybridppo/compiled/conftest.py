"""Divide even short work among threads: the work of tests is too short to be divided by itself."""

from functools import partial

import pytest

from hybridppo.compiled import building, kernels
from hybridppo.environments import compiled


@pytest.fixture(autouse=True)
def _divided_however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "SECONDS_WORTH_DIVIDING", 0.0)


@pytest.fixture
def without_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile environments for stepping alone: compiling the loop with an actor takes two thirds of the time."""
    loops = {loop: signature for loop, signature in kernels.LOOPS.items() if loop is not kernels.rollout}
    monkeypatch.setattr(kernels, "LOOPS", loops)
    monkeypatch.setattr(building, "LOOPS", loops)
    monkeypatch.setattr(building, "Kernels", partial(building.Kernels, rollout=None))
