"""The field side by side: PPO of other libraries on the same fixed work, each in an environment of its own.

    make bench-peers
    python benchmarks/field.py --peers stable-baselines3,skrl,SBX --cases small --rounds 3
    python benchmarks/field.py --install-only            # versions and sizes

Each peer gets a virtual environment below `--venvs`: torch of `constraints.txt` first, then the peer. What cannot be
installed, and what is installed but not measured, stays in the table with the reason. Turns are fresh processes, in
reversed order every other round (`peers.py`, `contestants.py`): one torch thread, on as many cores as `--cores` says
(`taskset`, on Linux). Sizes are those of a peer's environment without torch and what both have.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import machine
import peers
from cases import CASES, MORE_CASES, SLOW_CASES
from turns import take_turns

ROOT = Path(__file__).resolve().parents[1]
OURS = {
    "hybridppo": ["--placement", "cpu"],
    "hybridppo, compiled": ["--placement", "cpu", "--compiled-updates", "--vectorization", "compiled"],
    "hybridppo, overlap": ["--placement", "overlap", "--learning-device", "cpu"],
}
"""The flags of `contestants.py`."""


@dataclass(frozen=True)
class Peer:
    """Another library."""

    requirements: tuple[str, ...]
    """What pip installs; empty if there is no package."""
    not_measured: str = ""
    """Why `peers.py` has no turn of it."""


PEERS: dict[str, Peer] = {
    "stable-baselines3": Peer(("stable-baselines3",)),
    "SBX": Peer(("sbx-rl",)),
    "skrl": Peer(("skrl",)),
    "TorchRL": Peer(("torchrl", "gymnasium")),
    "sb3-contrib": Peer(("sb3-contrib",), "its PPO is that of stable-baselines3, with masks or a memory"),
    "Tianshou": Peer(("tianshou",)),
    "RLlib": Peer(("ray[rllib]",), "measured by rllib.py, with two samplers beside ours"),
    "rsl_rl": Peer(("rsl-rl-lib",), "its environments are tensors, and its actions are continuous"),
    "Sample Factory": Peer(
        ("sample-factory",), "its learner and samplers are processes that never wait for each other"
    ),
    "rl_games": Peer(("rl-games",), "no turn of it yet"),
    "PufferLib": Peer(("pufferlib==3.0.0",), "no turn of it yet"),
    "Brax": Peer(("brax",), "its environments are programs of JAX"),
    "CleanRL": Peer((), "scripts, and no package"),
    "PureJaxRL": Peer((), "scripts, and no package"),
}
MEGABYTE = 1_000_000


def install(name: str, peer: Peer, venvs: Path) -> dict[str, Any]:
    """Make the peer's environment if it is not there; its version and size, or why there is none."""
    if not peer.requirements:
        return {"left_out": peer.not_measured}
    venv = venvs / name.replace(" ", "-")
    facts, python = venv / "facts.json", venv / "bin" / "python"
    if facts.exists():
        found: dict[str, Any] = json.loads(facts.read_text(encoding="utf-8"))
        return found
    shutil.rmtree(venv, ignore_errors=True)
    print(f"installing {name}", file=sys.stderr)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    steps = (
        [sys.executable, "-m", "venv", str(venv)],
        [*pip, "--constraint", str(ROOT / "constraints.txt"), "torch", "numpy", "gymnasium"],
        [*pip, *peer.requirements],
    )
    sizes = []
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            errors = [line for line in lines if "Error: " in line or line.startswith("ERROR")] or lines[-1:]
            return {"left_out": f"cannot be installed: {errors[0][:200]}"}
        sizes.append(sum(path.stat().st_size for path in venv.rglob("*") if path.is_file() and not path.is_symlink()))
    listed = subprocess.run([*pip[:3], "list", "--format", "json"], capture_output=True, text=True, check=True).stdout
    versions = {each["name"].lower().replace("_", "-"): each["version"] for each in json.loads(listed)}
    own = peer.requirements[0].partition("[")[0].partition("=")[0].lower().replace("_", "-")
    made = {
        "version": versions[own],
        "torch": versions.get("torch"),
        "gymnasium": versions.get("gymnasium"),
        "megabytes": round((sizes[-1] - sizes[-2]) / MEGABYTE),
    }
    facts.write_text(json.dumps(made), encoding="utf-8")
    return made


def commands(case: str, cores: int, names: list[str], arguments: argparse.Namespace) -> dict[str, list[str]]:
    """For each contestant the process that is its turn."""
    here = Path(__file__).parent
    pinned = ["taskset", "-c", ",".join(map(str, range(cores)))] if shutil.which("taskset") else []
    end = [case] + (["--iterations", str(arguments.iterations)] if arguments.iterations else [])
    ours = {
        name: [*pinned, sys.executable, str(here / "contestants.py"), "hybridppo", *end, *flags]
        for name, flags in OURS.items()
    }
    theirs = {
        name: [
            *pinned,
            str(arguments.venvs / name.replace(" ", "-") / "bin" / "python"),
            str(peers.__file__),
            name,
            *end,
        ]
        for name in names
    }
    return {**ours, **theirs}


def as_markdown(result: dict[str, Any]) -> str:
    """A line for each library: its version, and what it reached on each case, in steps per second."""
    cases = [
        f"{run['case']}, {run['cores']} core{'s' * (run['cores'] > 1)}, rounds: {len(run['rounds'])}"
        for run in result["measured"]
    ]
    lines = [f"| | version | MB | {' | '.join(cases)} |", f"|---|---|---:|{'---:|' * len(cases)}"]
    for name in [*OURS, *PEERS]:
        facts = result["installed"].get(name, {})
        if "left_out" in facts or (name in PEERS and not facts):
            facts = facts or {"left_out": PEERS[name].not_measured or "not installed yet"}
            lines.append(f"| {name} | {facts['left_out']} | |{' |' * len(cases)}")
            continue
        cells = [_speed(run, name) for run in result["measured"]]
        if name in PEERS and not any(cells) and PEERS[name].not_measured and cells:
            cells[0] = f"not measured: {PEERS[name].not_measured}"
        lines.append(f"| {name} | {facts.get('version', '')} | {facts.get('megabytes', '')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _speed(run: dict[str, Any], name: str) -> str:
    found = [turns[name]["steps_per_second"] for turns in run["rounds"] if name in turns]
    ends = f" ({min(found):,.0f} to {max(found):,.0f})" if len(found) > 1 else ""
    return f"{median(found):,.0f}{ends}" if found else ""


def draw(result: dict[str, Any], path: Path) -> None:
    """Bars of the first case, the fastest on top."""
    import matplotlib.pyplot as plt

    run = result["measured"][0]
    speeds = {name: median(turns[name]["steps_per_second"] for turns in run["rounds"]) for name in run["rounds"][0]}
    names = sorted(speeds, key=lambda name: speeds[name])
    figure, axes = plt.subplots(figsize=(7, 0.4 * len(names) + 1))
    axes.barh(names, [speeds[name] for name in names])
    axes.set_xlabel(f"environment steps per second: {run['case']}, {run['cores']} core{'s' * (run['cores'] > 1)}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    """Install, measure, and keep what was found."""
    known = CASES | MORE_CASES | SLOW_CASES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS), help="(default %(default)s)")
    parser.add_argument("--cases", default="small,wide,cheetah,racing", help=f"of {', '.join(known)}")
    parser.add_argument("--cores", default="1,2", help="numbers of cores (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, help="counted iterations instead of the case's own")
    parser.add_argument("--venvs", type=Path, default=Path("build/peers"), help="the folder of the environments")
    parser.add_argument("--install-only", action="store_true")
    arguments = parser.parse_args()
    names = arguments.peers.split(",")
    installed = {name: install(name, PEERS[name], arguments.venvs) for name in names}
    path = machine.RESULTS / "field.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"installed": {}, "measured": []}
    result: dict[str, Any] = {
        "installed": {**before["installed"], **installed},
        "measured": list(before["measured"]),
    }
    able = [name for name in names if "left_out" not in installed[name] and not PEERS[name].not_measured]
    for case in [] if arguments.install_only else arguments.cases.split(","):
        for cores in map(int, arguments.cores.split(",")):
            about = {"case": case, "cores": cores}
            others = [run for run in result["measured"] if not about.items() <= run.items()]
            turns, rounds = commands(case, cores, able, arguments), []
            for _ in range(arguments.rounds):
                rounds += take_turns(turns, 1)
                turns = dict(reversed(turns.items()))
                result["measured"] = [*others, {**about, "words": known[case].in_words(), "rounds": rounds}]
                machine.save("field", result)
    machine.save("field", result)
    print(as_markdown(result))
    if result["measured"]:
        draw(result, ROOT / "docs" / "pictures" / "field.png")
    print(f"Raw figures: {path}, {time.strftime('%Y-%m-%d')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
