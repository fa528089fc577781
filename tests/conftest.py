"""What every test runs under."""

import cloudpickle
import pytest
import second_device as second
import torch

# Small networks on a shared machine: more threads only get in each other's way.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def second_device() -> str:
    """The name of a device that is not the CPU's, see second_device.py."""
    return second.register()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_second = [item for item in items if "second_device" in getattr(item, "fixturenames", ())]
    if torch.cuda.is_available():  # for which memory could not be locked any more
        for item in on_second:
            item.add_marker(
                pytest.mark.skip(reason="there is a CUDA device: run these without (CUDA_VISIBLE_DEVICES=)")
            )
    elif on_second and second.is_supported():
        second.register()  # at once: autograd counts the devices when it first runs, and never again
    # What worker processes get of a test goes to them as it is: they would else load the test's file, and with it torch
    # and pytest, which takes each of them many times longer than all that it has to do.
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
