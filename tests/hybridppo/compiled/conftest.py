"""What is compiled for tests is kept beside pytest's own files: a minute the first time, seconds from then on."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def kept_in_the_tree() -> None:
    os.environ["HYBRIDPPO_CACHE_DIR"] = str(Path(__file__).parents[3] / ".pytest_cache" / "compiled")
