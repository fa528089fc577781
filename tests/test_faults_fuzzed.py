"""Random configurations and altered files: a few in every run of the tests, thousands in the slow ones."""

import os

import pytest
from selection import only_by_default

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a case that hangs is found by SIGALRM, which is of POSIX")


@pytest.mark.parametrize("cases", only_by_default(("24",), (24, 60)))
def test_random_values_and_altered_files_end_in_a_clear_error_or_a_working_run(cases: int) -> None:
    from scripts.fuzz import fuzz  # and with it hypothesis, which only this test needs

    endings = fuzz(cases, seed=0)
    assert endings.total() == cases
    # None of the kinds was left out: what works, and what is refused by each part.
    assert min(endings[name] for name in ("worked", "ConfigurationError", "RunDirectoryError", "CheckpointError")) > 0


@pytest.mark.slow
def test_ten_thousand_random_values_and_altered_files() -> None:
    from scripts.fuzz import fuzz

    assert fuzz(10_000, seed=1).total() == 10_000
