"""Page-locked memory: what is locked, and that it is unlocked again."""

from typing import Any

import numpy as np
import pytest
import torch
from ppo_settings import ppo_config
from processes import worker_processes

import hybridppo
from hybridppo import Mirrored, SingleDevice
from hybridppo.errors import DeviceError, EnvError
from hybridppo.rollouts.rollout import Rollout
from hybridppo.runners import workers
from hybridppo.system import devices
from hybridppo.system.devices import Accelerator, PageLock, accelerator_of

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(16, 16))


class FakeAccelerator(Accelerator):
    """Notes what is locked, and refuses if told to."""

    def __init__(self, error: int = 0) -> None:
        super().__init__(torch.device("cpu"))
        self.locked: dict[int, int] = {}
        self.calls: list[str] = []
        self._error = error

    def lock_pages(self, address: int, num_bytes: int) -> int:
        self.calls.append("register")
        if not self._error:
            self.locked[address] = num_bytes
        return self._error

    def unlock_pages(self, address: int) -> int:
        self.calls.append("unregister")
        del self.locked[address]
        return 0


def test_an_arrays_pages_are_locked_until_closed() -> None:
    registrar, array = FakeAccelerator(), np.zeros((3, 5), np.float32)
    lock = PageLock(array, registrar)
    assert registrar.locked == {array.ctypes.data: 60}
    lock.close()
    lock.close()
    assert registrar.locked == {}
    assert registrar.calls == ["register", "unregister"]


def test_a_rollouts_arrays_are_one_block_that_is_locked_while_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    registrar = FakeAccelerator()
    monkeypatch.setattr(devices, "accelerator_of", lambda device: registrar)
    names = [
        "observations",
        "outputs",
        "actions",
        "rewards",
        "terminated",
        "truncated",
        "restarted",
        "absent",
        "waiting",
        "noise",
    ]
    layout = dict.fromkeys(names, ((2, 3), "float32")) | {"noise": ((2, 0), "float32")}
    buffer = Rollout.in_memory(layout, torch.device("cpu"))
    assert list(registrar.locked.values()) == [9 * 64]  # 24 bytes each, and the next begins at a cache line
    assert all((array == 0).all() and array.ctypes.data % 64 == 0 for array in buffer.columns().values())
    rewards = buffer.rewards
    del buffer
    assert len(registrar.locked) == 1  # somebody still holds a part
    del rewards
    assert registrar.locked == {}


def test_a_refusal_is_an_error_with_the_remedy() -> None:
    with pytest.raises(DeviceError, match=r"1\.0 MB.*CUDA error 2.*lower num_envs"):
        PageLock(np.zeros(1_000_000, np.uint8), FakeAccelerator(error=2))


def test_a_refusal_leaves_no_worker_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = FakeAccelerator(error=2)
    monkeypatch.setattr(workers, "accelerator_of", lambda device: refusing)
    with pytest.raises(DeviceError, match="CUDA error 2"):
        train(placement=PinningPlacement("cpu"))
    assert refusing.calls == ["register"]
    assert not worker_processes()


class PinningPlacement(SingleDevice):
    """A placement on the CPU that asks for pinned rollouts, like one with a GPU."""

    @property
    def pin_for(self) -> torch.device:
        return self.learning_device


@pytest.fixture
def registrar(monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    fake = FakeAccelerator()
    monkeypatch.setattr(workers, "accelerator_of", lambda device: fake)
    return fake


def train(**options: Any) -> None:
    arguments = {"total_steps": 200, "seed": 0, "config": CONFIG, "num_workers": 2, "progress": False} | options
    hybridppo.train("CartPole-v1", **arguments)


def test_rollouts_of_workers_are_locked_while_they_train(registrar: FakeAccelerator) -> None:
    sizes: list[int] = []
    train(placement=PinningPlacement("cpu"), on_iteration=lambda metrics: sizes.append(sum(registrar.locked.values())))
    # Two rollouts' observations alone take 2 * 17 * 4 * 4 floats.
    assert sizes
    assert all(size > 2 * 17 * 4 * 4 * 4 for size in sizes)
    assert registrar.locked == {}


def test_they_are_unlocked_after_an_error(registrar: FakeAccelerator) -> None:
    def fail(metrics: Any) -> None:
        raise EnvError("stop")

    with pytest.raises(EnvError, match="stop"):
        train(placement=PinningPlacement("cpu"), on_iteration=fail)
    assert registrar.calls == ["register", "unregister"]


def test_nothing_is_locked_where_no_gpu_learns(registrar: FakeAccelerator) -> None:
    train(placement="cpu")
    assert registrar.calls == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_copies_from_locked_rollouts_of_workers() -> None:
    array = np.zeros(1 << 20, np.uint8)
    tensor = torch.from_numpy(array)
    assert not tensor.is_pinned()
    lock = PageLock(array, accelerator_of(torch.device("cuda:0")))
    assert tensor.is_pinned()
    lock.close()
    assert not tensor.is_pinned()
    train(placement=Mirrored("cpu", "cuda", verify=True))
