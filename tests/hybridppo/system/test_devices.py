"""The only module that calls torch.cuda: no other does, and each of its calls names its device."""

import ast
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridppo import Migrating, Mirrored, SingleDevice
from hybridppo.errors import DeviceError
from hybridppo.networks import modes
from hybridppo.placements.crossing import available_device
from hybridppo.system.devices import Accelerator, Cuda, accelerator_of

ROOT = Path(__file__).parents[3]
SECOND_GPU = torch.device("cuda:1")


def names_of_torch_cuda(source: str) -> list[str]:
    """Places where a Python source names `torch.cuda`, or imports from it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.cuda"):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.cuda"):
            found.append(str(node.module))
    return found


def test_the_search_finds_names_and_imports() -> None:
    found = names_of_torch_cuda("torch.cuda.synchronize()\nfrom torch.cuda import Stream\ntorch.ones(1)")
    assert sorted(found) == ["torch.cuda", "torch.cuda", "torch.cuda.synchronize"]


def test_only_the_seam_names_torch_cuda() -> None:
    paths = {path.resolve() for folder in ("hybridppo", "agents", "runners") for path in (ROOT / folder).rglob("*.py")}
    files = [(path.name, path.read_text()) for path in paths]
    strays = {name for name, source in files if "cuda" in source and names_of_torch_cuda(source)}
    assert strays == {"devices.py"}


def test_the_cpu_has_nothing_to_wait_for() -> None:
    host = accelerator_of(torch.device("cpu"))
    assert type(host) is Accelerator
    assert not host.is_asynchronous
    tensor = torch.ones(2)
    assert host.page_locked(tensor) is tensor
    with host.selected(), host.using(host.stream()):
        host.wait()


class Selected:
    """Stands in for torch's current device."""

    now = 0


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that seems to torch to have two CUDA devices, on which nothing can be computed."""

    @contextlib.contextmanager
    def device(which: torch.device) -> Iterator[None]:
        before, Selected.now = Selected.now, which.index
        try:
            yield
        finally:
            Selected.now = before

    monkeypatch.setattr(Selected, "now", 0)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: Selected.now)


@pytest.mark.usefixtures("two_gpus")
def test_naming_a_device_does_not_wake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wake() -> bool:
        raise AssertionError("this initialises the driver, after which no process can be forked")

    monkeypatch.setattr(torch.cuda, "is_available", wake)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert SingleDevice("cuda").learning_device == torch.device("cuda:0")
    assert SingleDevice("cuda:1").learning_device == torch.device("cuda:1")
    with pytest.raises(DeviceError, match="use cuda:0 to cuda:1"):
        SingleDevice("cuda:2")


@pytest.mark.gpu
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_process_that_has_named_a_device_can_be_forked() -> None:
    script = (
        "import os, sys, torch, hybridppo;"
        "hybridppo.Mirrored('cpu', 'cuda');"
        "child = os.fork();"
        "sys.exit(int(torch.ones(1, device='cuda').item()) - 1) if child == 0 else None;"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.usefixtures("two_gpus")
def test_whether_bfloat16_is_supported_is_asked_of_the_device_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: Selected.now == 1)
    modes.require("bf16", SECOND_GPU)
    with pytest.raises(modes.DeviceError, match="cuda:0"):
        modes.require("bf16", torch.device("cuda:0"))


@pytest.mark.usefixtures("two_gpus")
def test_pages_are_locked_for_the_device_that_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[tuple[str, int]] = []

    class Runtime:
        def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:  # noqa: N802
            return locked.append(("register", Selected.now)) or 0

        def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
            return locked.append(("unregister", Selected.now)) or 0

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        locked.append(("pin", Selected.now))
        return tensor

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    gpu = accelerator_of(SECOND_GPU)
    assert gpu.lock_pages(0, 1) == gpu.unlock_pages(0) == 0
    gpu.page_locked(torch.ones(1))
    assert locked == [("register", 1), ("unregister", 1), ("pin", 1)]
    assert Selected.now == 0


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("current", [0, 1])
def test_a_gpu_without_a_number_is_the_current_one(current: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Selected, "now", current)
    assert available_device("cuda") == torch.device(f"cuda:{current}")
    assert available_device("cuda:1") == SECOND_GPU


@pytest.mark.usefixtures("two_gpus")
def test_two_names_of_one_gpu_are_one_device() -> None:
    assert SingleDevice("cuda").settings() == SingleDevice("cuda:0").settings()
    assert not Migrating("cuda", "cuda:0")._moves
    assert Mirrored("cuda", "cuda:0")._is_alias


@pytest.mark.usefixtures("two_gpus")
def test_to_name_a_gpu_does_not_wake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wake() -> int:
        raise AssertionError("this would initialise CUDA")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", wake)
    assert available_device("cuda") == torch.device("cuda:0")


def test_flat_parameters_begin_where_tensor_cores_want_them() -> None:
    assert Cuda.alignment * 4 == 16  # bytes
    assert Accelerator.alignment == 1  # sums over the buffer would else be rounded otherwise


def test_each_call_is_torchs_for_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []

    def noting(name: str) -> Any:
        return lambda *arguments, **keywords: calls.append((name, (*arguments, *keywords.items())))

    for name in ("Stream", "current_stream", "stream", "Event", "CUDAGraph", "graph_pool_handle", "graph"):
        monkeypatch.setattr(torch.cuda, name, noting(name))
    gpu = Cuda(SECOND_GPU)
    gpu.stream(), gpu.current_stream(), gpu.using("a stream"), gpu.timing_event(), gpu.graph(), gpu.graph_pool()
    gpu.recording("a graph", pool="a pool", stream="a stream")
    assert calls == [
        ("Stream", (SECOND_GPU,)),
        ("current_stream", (SECOND_GPU,)),
        ("stream", ("a stream",)),
        ("Event", (("enable_timing", True),)),
        ("CUDAGraph", ()),
        ("graph_pool_handle", ()),
        ("graph", ("a graph", ("pool", "a pool"), ("stream", "a stream"), ("capture_error_mode", "thread_local"))),
    ]
