"""How much memory a training takes, and whether it keeps growing.

    python benchmarks/memory.py
    python benchmarks/memory.py --cases peak
    python benchmarks/memory.py --cases soak

`peak`: the largest resident size (VmHWM) of a fresh process that trains the `small` case of `cases.py`, for this
library and for stable-baselines3. If a training has more processes, their peaks are added, so that memory they share
counts twice. Figures are read at the last iteration, from Linux's /proc.

`soak`: how much the resident size grows over 2,000 iterations with a run directory, after the first 200
(`tests/tools/soak.py`).

    python benchmarks/memory.py --turn "hybridppo cpu" --iterations 40

is one turn; it prints a line of JSON.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cases
import machine
import turns
from peers import sb3

PEER = "stable-baselines3"
CONTESTANTS = ("hybridppo cpu", "hybridppo overlap", PEER)
CASE = cases.CASES["small"]
SOAK, SOAKS = Path(__file__).parents[1] / "tests" / "tools" / "soak.py", ("cpu", "workers", "overlap")
MEBIBYTE = 2**20


def peaks_so_far() -> dict[str, int]:
    """Peak resident bytes (VmHWM) of this process and of those that it started."""
    import psutil

    this = psutil.Process()
    processes = {"trainer": this.pid, **{f"worker {i}": child.pid for i, child in enumerate(this.children(True))}}
    sizes = {}
    for name, pid in processes.items():
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
        sizes[name] = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return sizes


def take_peak_turn(contestant: str, iterations: int) -> dict[str, Any]:
    """In the turn's own process: train the case, and read the peaks at its last iteration."""
    case = replace(CASE, iterations=iterations, warmup=0)
    peaks: list[dict[str, int]] = []
    if contestant == PEER:
        import torch
        from stable_baselines3.common.callbacks import BaseCallback

        class Reading(BaseCallback):
            """Reads at every rollout's end, and once more when training has ended."""

            def _on_step(self) -> bool:
                return True

            def _on_training_end(self) -> None:
                peaks.append(peaks_so_far())

        torch.set_num_threads(1)
        agent = sb3.their_agent(case, sb3.their_environments(case, "dummy"))
        agent.learn(iterations * case.batch_size, callback=Reading(), log_interval=None)
    else:
        import hybridppo
        from hybridppo.auto.auto import PlacementOptions
        from hybridppo.placements.placement import TAKE_DEVICES

        def read(metrics: dict[str, Any]) -> None:
            if metrics["iteration"] >= iterations:
                peaks.append(peaks_so_far())

        placement = contestant.split()[1]
        hybridppo.train(
            case.env_id,
            # Rows that environments spend on a reset are no steps, so this takes a few more iterations.
            total_steps=iterations * case.batch_size,
            seed=0,
            placement=PlacementOptions(
                placement, learning_device="cpu" if placement in TAKE_DEVICES else None
            ).resolve(),
            config=cases.our_config(case),
            progress=False,
            on_iteration=read,
        )
    return {"bytes": peaks[-1], "mebibytes": sum(peaks[-1].values()) / MEBIBYTE}


def measure_peaks(rounds: int, iterations: int) -> dict[str, Any]:
    """Every contestant's peaks, by turns."""
    start = [sys.executable, str(Path(__file__)), "--iterations", str(iterations), "--turn"]
    finished = turns.take_turns({name: [*start, name] for name in CONTESTANTS}, rounds, key="mebibytes")
    ratios = {name: turns.ratios(finished, name, PEER, "mebibytes") for name in CONTESTANTS}
    return {"work": CASE.in_words(), "iterations": iterations, "ratios": ratios, "rounds": finished}


def measure_soak(placement: str) -> dict[str, Any]:
    """The findings of `tests/tools/soak.py`. If something grew, it exits with 1; that is a result too."""
    command = [sys.executable, str(SOAK), "--placement", placement]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=machine.environment())
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def as_markdown(result: dict[str, Any]) -> str:
    """The tables of a result file."""
    parts = []
    if "peak" in result:
        lines = ["| | peak, MiB | of which workers | times stable-baselines3's |", "|---|---:|---:|---:|"]
        for name, ratio in result["peak"]["ratios"].items():
            rounds = [turns_[name] for turns_ in result["peak"]["rounds"]]
            middle = sorted(rounds, key=lambda turn: float(turn["mebibytes"]))[len(rounds) // 2]
            workers = sum(size for who, size in middle["bytes"].items() if who != "trainer") / MEBIBYTE
            cells = f"{middle['mebibytes']:.0f} | {workers:.0f} | {turns.in_words(ratio)}"
            lines.append(f"| {name} | {cells} |")
        parts.append("\n".join(lines))
    if "soak" in result:
        lines = ["| soak | iterations | resident at the end, MB | grown since the first 200, MB |"]
        lines.append("|---|---:|---:|---:|")
        for name, turn in result["soak"].items():
            cells = f"{turn['iterations']:,} | {turn['at_the_end']['resident_mb']:.0f} | {turn['growth_mb']:.1f}"
            lines.append(f"| hybridppo {name} | {cells} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    """Measure, print and save the results; or take one turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="peak,soak", help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each for the peaks (default %(default)s)")
    parser.add_argument("--iterations", type=int, default=100, help="for the peaks (default %(default)s)")
    parser.add_argument("--turn", help="take this turn in this process")
    arguments = parser.parse_args()
    if arguments.turn is not None:
        print(json.dumps(take_peak_turn(arguments.turn, arguments.iterations)))
        return
    payload: dict[str, Any] = {"versions": {name: version(name) for name in ("hybridppo", PEER)}}
    if "peak" in arguments.cases:
        payload["peak"] = measure_peaks(arguments.rounds, arguments.iterations)
    if "soak" in arguments.cases:
        payload["soak"] = {placement: measure_soak(placement) for placement in SOAKS}
    machine.report("memory", payload, as_markdown(payload))


if __name__ == "__main__":
    main()
