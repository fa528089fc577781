"""A training that is killed, and what must not outlive it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
from processes import start_python

DRIVER = """
import hybridppo, sys
if __name__ == "__main__":
    config = hybridppo.PPOConfig(num_envs=4, num_steps=32, hidden_sizes=(8, 8))
    hybridppo.train("CartPole-v1", total_steps=10**9, config=config, distributed=sys.argv[1], progress=False,
                    placement="cpu", on_iteration=lambda metrics: print(metrics["iteration"], flush=True))
"""


def below(pid: int) -> list[psutil.Process]:
    """All processes that a process has started, directly or indirectly."""
    return psutil.Process(pid).children(recursive=True)


def assert_nothing_outlives_it(
    distributed: str, folder: Path, least: int, started: Callable[[int], list[psutil.Process]] = below
) -> None:
    """Kill a training that has at least `least` processes after its first iteration, and check that none is left."""
    script = folder / "driver.py"
    script.write_text(DRIVER)
    driver = start_python(script, distributed, stdout=subprocess.PIPE)
    try:
        assert driver.stdout is not None
        while driver.stdout.readline() != "1\n":
            assert driver.poll() is None
        others = started(driver.pid)
        assert len(others) >= least
    finally:
        driver.kill()
        driver.wait()
    _, alive = psutil.wait_procs(others, timeout=10)
    assert alive == []
