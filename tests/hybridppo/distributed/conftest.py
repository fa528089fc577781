"""Ends the cluster that tests of distributions share."""

from collections.abc import Iterator

import pytest
from clusters import end_shared_cluster


@pytest.fixture(scope="package", autouse=True)
def _cluster_ends() -> Iterator[None]:
    yield
    end_shared_cluster()
