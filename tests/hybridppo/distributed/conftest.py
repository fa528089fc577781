"""Ends the cluster that tests of distributed trainings share. All of their clusters listen on the loopback only."""

import os
from collections.abc import Iterator

import pytest
from clusters import end_shared_cluster

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # read when Ray is imported


@pytest.fixture(scope="package", autouse=True)
def _cluster_ends() -> Iterator[None]:
    yield
    end_shared_cluster()
