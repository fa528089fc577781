"""Work of tests is short, and would never be divided among threads by itself."""

import pytest

from hybridppo.environments import compiled


@pytest.fixture(autouse=True)
def _divided_however_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "SECONDS_WORTH_DIVIDING", 0.0)
