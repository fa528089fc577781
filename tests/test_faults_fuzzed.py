"""Random configurations and altered files: a few in every run of the tests, thousands in the slow ones."""

import os

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a case that hangs is found by SIGALRM, which is of POSIX")


def test_random_values_and_altered_files_end_in_a_clear_error_or_a_working_run() -> None:
    from tools.fuzz import fuzz  # and with it hypothesis, which only this test needs

    endings = fuzz(30, seed=3)
    assert endings.total() == 30
    # None of the kinds was left out: what works, and what is refused by each part.
    assert min(endings[name] for name in ("worked", "ConfigurationError", "RunDirectoryError", "CheckpointError")) > 0


@pytest.mark.slow
def test_ten_thousand_random_values_and_altered_files() -> None:
    from tools.fuzz import fuzz

    assert fuzz(10_000, seed=1).total() == 10_000
