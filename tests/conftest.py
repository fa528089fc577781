"""What every test runs under."""

import cloudpickle
import pytest
import torch

# Small networks on a shared machine: more threads only get in each other's way.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What worker processes get of a test goes to them as it is: they would else load the test's file, and with it torch
    # and pytest, which takes each of them many times longer than all that it has to do.
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
