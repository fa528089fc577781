"""Divide even short work among threads: the work of tests is too short to be divided by itself."""

import pytest
from compiled_without_rollouts import leave_out_rollouts

from hybridppo.environments import compiled


@pytest.fixture(autouse=True)
def _divided_however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "SECONDS_WORTH_DIVIDING", 0.0)


@pytest.fixture
def without_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_rollouts(monkeypatch.setattr)
