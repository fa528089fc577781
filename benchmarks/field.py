"""The field side by side: PPO of other libraries on the same fixed work, each with a virtual environment of its own.

    make bench-peers
    python benchmarks/field.py --peers stable-baselines3,skrl,SBX --cases small --rounds 3
    python benchmarks/field.py --checkouts ~/src         # which holds clones of `cleanrl`, `LeanRL`, `purejaxrl`
    python benchmarks/field.py --install-only            # versions and sizes

Each peer gets a virtual environment below `--venvs`: torch of `constraints.txt` first, then the peer. What cannot be
installed, and what is installed but not measured, stays in the table with the reason. Turns are fresh processes, in
reversed order every other round (`peers/turn.py`, `contestants.py`). They have one torch thread unless their name says
more, and as many cores as `--cores` says (`taskset`, on Linux). With `--processor-time`, seconds are the CPU seconds of
the process, over all its threads, so that other work on the machine matters little. Sizes are those of a peer's
environment without torch, gymnasium and what both need.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import machine
from cases import ALL_CASES, Case
from turns import take_turn, take_turns

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Peer:
    """Another library."""

    requirements: tuple[str, ...]
    """What pip installs: the library first, whose version is shown. For scripts, what they need."""
    not_measured: str = ""
    """Why `peers` has no turn of it."""
    checkout: str = ""
    """The folder below `--checkouts`, if there is no package."""
    building: tuple[str, ...] = ()
    """What its build needs, if it is built with the torch of its environment."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its installation."""
    undefined: str = ""
    """A list that its `setup.py` uses without defining it, with these variables."""


PEERS: dict[str, Peer] = {
    "stable-baselines3": Peer(("stable-baselines3",)),
    "sb3-contrib": Peer(("sb3-contrib",)),
    "SBX": Peer(("sbx-rl",)),
    "CleanRL": Peer(("tyro", "tensorboard"), checkout="cleanrl"),
    "LeanRL": Peer(("tyro", "tensordict", "tqdm"), checkout="LeanRL"),
    "skrl": Peer(("skrl",)),
    "Tianshou": Peer(("tianshou",)),
    "TorchRL": Peer(("torchrl",)),
    "RLlib": Peer(("ray[rllib]",)),
    "Sample Factory": Peer(("sample-factory",)),
    "rsl_rl": Peer(("rsl-rl-lib",)),
    "rl_games": Peer(("rl-games",)),
    "PufferLib": Peer(
        ("pufferlib==3.0.0",),
        building=("setuptools", "wheel", "Cython"),
        # Without its own environments, whose build downloads libraries, and without nvcc, as torch is built for CPUs.
        variables={"NO_OCEAN": "1", "PATH": os.defpath},
        undefined="c_extension_paths",
    ),
    "PureJaxRL": Peer(("gymnax<1", "brax", "navix", "distrax", "flax", "optax"), checkout="purejaxrl"),
    "Brax": Peer(("brax",), "its environments are programs of JAX, and its PPO has none of gymnasium's"),
}
MEGABYTE = 1_000_000
DEFINE = (
    "import pathlib, sys, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'undefined.pth').write_text("
    "f'import builtins; builtins.{sys.argv[1]} = []')"
)
"""Give every process of an environment a name for an empty list."""


def install(name: str, peer: Peer, venvs: Path) -> dict[str, Any]:
    """Make the peer's environment unless its facts are there. Returns its version and size, or why it has none."""
    venv = venvs / name.replace(" ", "-")
    facts, python = venv / "facts.json", venv / "bin" / "python"
    if facts.exists():
        found: dict[str, Any] = json.loads(facts.read_text(encoding="utf-8"))
        return found
    shutil.rmtree(venv, ignore_errors=True)
    print(f"installing {name}", file=sys.stderr)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint"]
    torch_alone = venvs / "torch.txt"
    torch_alone.parent.mkdir(parents=True, exist_ok=True)
    versions = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch_alone.write_text("\n".join(line for line in versions if line.startswith("torch==")), encoding="utf-8")
    steps = (
        [sys.executable, "-m", "venv", str(venv)],
        [*pip, str(ROOT / "constraints.txt"), "torch", "numpy", "gymnasium[box2d,mujoco]"],
        *([[*pip, str(torch_alone), *peer.building]] if peer.building else []),
        *([[str(python), "-c", DEFINE, peer.undefined]] if peer.undefined else []),
        [*pip, str(torch_alone), *(["--no-build-isolation"] if peer.building else []), *peer.requirements],
    )
    made: dict[str, Any] = {}
    sizes: list[int] = []
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False, env={**os.environ, **peer.variables})
        if done.returncode:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            errors = [line for line in lines if "Error: " in line or line.startswith("ERROR")] or lines[-1:]
            made = {"left_out": f"cannot be installed: {' '.join(errors)[:200]}"}
            break
        sizes.append(sum(path.stat().st_size for path in venv.rglob("*") if path.is_file() and not path.is_symlink()))
    else:
        made = {**versions_in(python, peer), "megabytes": round((sizes[-1] - sizes[-2]) / MEGABYTE)}
    facts.write_text(json.dumps(made), encoding="utf-8")
    return made


def versions_in(python: Path, peer: Peer) -> dict[str, Any]:
    """The versions of a peer's environment."""
    command = [str(python), "-m", "pip", "list", "--format", "json"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    versions = {each["name"].lower().replace("_", "-"): each["version"] for each in json.loads(listed)}
    own = peer.requirements[0].partition("[")[0].partition("=")[0].lower().replace("_", "-")
    return {
        "version": "" if peer.checkout else versions[own],
        "torch": versions.get("torch"),
        "gymnasium": versions.get("gymnasium"),
    }


def commit_of(checkout: Path) -> str:
    """The commit of a checkout and its day."""
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def ours(case: Case, cores: int, processor_time: bool) -> dict[str, list[str]]:
    """The flags of `contestants.py`: the plain loop, what can be compiled of the case, and learning while sampling.

    Images have no compiled update; they have bfloat16, and as many workers as cores, which the learner shares with
    them. Learning while sampling needs two cores, and is left out if CPU seconds count. What is compiled can use a
    thread for each core, as the programs of JAX do.
    """
    compiled = ["--placement", "cpu", "--compiled-updates"]
    if case.env_id == "CartPole-v1":
        compiled += ["--vectorization", "compiled"]
    overlap = ["--placement", "overlap", "--learning-device", "cpu"]
    of_workers = [*overlap, "--num-workers", str(cores)]
    is_shared = case.has_images and cores > 1 and not processor_time
    return {
        "hybridppo": ["--placement", "cpu"],
        **({} if case.has_images else {"hybridppo, compiled": compiled}),
        **(
            {f"hybridppo, compiled, {cores} threads": [*compiled, "--torch-threads", str(cores)]}
            if cores > 1 and not case.has_images
            else {}
        ),
        **({"hybridppo, bf16": ["--placement", "cpu", "--precision", "bf16"]} if case.has_images else {}),
        **({} if processor_time else {"hybridppo, overlap": overlap}),
        **({f"hybridppo, overlap, {cores} workers": of_workers} if is_shared else {}),
        **({f"hybridppo, overlap, {cores} workers, bf16": [*of_workers, "--precision", "bf16"]} if is_shared else {}),
    }


def commands(name: str, cores: int, names: list[str], arguments: argparse.Namespace) -> dict[str, list[str]]:
    """For each contestant, the command of its turn."""
    here = Path(__file__).parent
    pinned = ["taskset", "-c", ",".join(map(str, range(cores)))] if shutil.which("taskset") else []
    end = [name] + (["--iterations", str(arguments.iterations)] if arguments.iterations else [])
    end += ["--processor-time"] if arguments.processor_time else []
    checkouts = ["--checkouts", str(arguments.checkouts)] if arguments.checkouts else []
    own = {
        contestant: [*pinned, sys.executable, str(here / "contestants.py"), "hybridppo", *end, *flags]
        for contestant, flags in ours(ALL_CASES[name], cores, arguments.processor_time).items()
    }
    theirs = {}
    for peer in names:
        python = str(arguments.venvs / peer.replace(" ", "-") / "bin" / "python")
        theirs[peer] = [*pinned, python, str(here / "peers" / "turn.py"), peer, *end, *checkouts]
    return own | theirs


def measure(name: str, cores: int, names: list[str], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A case by turns: the findings after each round, with the reasons of the contestants that cannot take it."""
    turns = commands(name, cores, names, arguments)
    contestants = {tuple(command): contestant for contestant, command in turns.items()}
    reasons: dict[str, str] = {}

    def take(command: list[str]) -> dict[str, Any]:
        turn = take_turn(command)
        if "left_out" in turn:
            reasons[contestants[tuple(command)]] = turn["left_out"]
        return turn

    rounds: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        order = dict(reversed(turns.items())) if number % 2 else turns
        able = {contestant: command for contestant, command in order.items() if contestant not in reasons}
        rounds += take_turns(able, 1, take=take)
        clock = "processor" if arguments.processor_time else "wall"
        about = {"case": name, "cores": cores, "clock": clock, "cpu": machine.describe()["cpu"]}
        yield {**about, "words": ALL_CASES[name].in_words(), "left_out": reasons, "rounds": rounds}


def as_markdown(result: dict[str, Any]) -> str:
    """A line for each library: its version, and its steps per second on each case."""
    runs = result["measured"]
    heads = [f"{in_words(run)}, rounds: {len(run['rounds'])}" for run in runs]
    lines = [f"| | version | MB | {' | '.join(heads)} |", f"|---|---|---:|{'---:|' * len(heads)}"]
    own = dict.fromkeys(name for run in runs for turns in run["rounds"] for name in turns if name not in PEERS)
    for name in [*own, *PEERS]:
        if name in PEERS and name not in result["installed"]:
            continue
        facts = result["installed"].get(name, {})
        cells = [_speed(run, name) for run in runs]
        if name in PEERS and PEERS[name].not_measured and "left_out" not in facts and cells:
            cells = [f"not measured: {PEERS[name].not_measured}", *[""] * (len(cells) - 1)]
        version = facts.get("left_out", facts.get("version", ""))
        lines.append(f"| {name} | {version} | {facts.get('megabytes', '')} | {' | '.join(cells)} |")
    cases_without: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for name, reason in run.get("left_out", {}).items():
            cases = cases_without.setdefault((name, reason), [])
            cases += [run["case"]] * (run["case"] not in cases)
    without = [f"- No figure of {name} in {', '.join(cases)}: {why}." for (name, why), cases in cases_without.items()]
    cases_by_cpu: dict[str, list[str]] = {}
    for run in runs:
        cases_by_cpu.setdefault(run["cpu"], []).append(f"{run['case']} ({run['cores']})")
    where = [f"- On {cpu}: {', '.join(cases)}." for cpu, cases in cases_by_cpu.items()]
    return "\n".join([*lines, "", *without, *where])


def in_order(run: dict[str, Any]) -> tuple[int, int]:
    """Sort key: the case, in the order of the list, and the cores."""
    return list(ALL_CASES).index(run["case"]), run["cores"]


def in_words(run: dict[str, Any]) -> str:
    """The case of a run, its cores and its clock."""
    clock = ", processor time" if run.get("clock") == "processor" else ""
    return f"{run['case']}, {run['cores']} core{'s' * (run['cores'] > 1)}{clock}"


def _speed(run: dict[str, Any], name: str) -> str:
    found = [turns[name]["steps_per_second"] for turns in run["rounds"] if name in turns]
    ends = f" ({min(found):,.0f} to {max(found):,.0f})" if len(found) > 1 else ""
    return f"{median(found):,.0f}{ends}" if found else ""


def main() -> None:
    """Install, measure and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS), help="(default %(default)s)")
    parser.add_argument("--cases", default="small,wide,cheetah,racing", help=f"of {', '.join(ALL_CASES)}")
    parser.add_argument("--cores", default="1,2", help="numbers of cores (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, help="counted iterations instead of the case's own")
    parser.add_argument("--venvs", type=Path, default=Path("build/peers"), help="the folder of the environments")
    parser.add_argument("--checkouts", type=Path, help="a folder with clones of `cleanrl`, `LeanRL` and `purejaxrl`")
    parser.add_argument("--results", default="field", help="the name of the file of results (default %(default)s)")
    parser.add_argument("--install-only", action="store_true")
    parser.add_argument("--processor-time", action="store_true", help="count seconds on the processor, of all threads")
    arguments = parser.parse_args()
    names = arguments.peers.split(",")
    path = machine.RESULTS / f"{arguments.results}.json"
    result: dict[str, Any] = {"installed": {}, "measured": []}
    if path.exists():
        result |= {key: json.loads(path.read_text(encoding="utf-8"))[key] for key in result}
    for name in names:
        peer = PEERS[name]
        checkout = arguments.checkouts / peer.checkout if arguments.checkouts and peer.checkout else None
        if peer.checkout and checkout is None:
            result["installed"][name] = {"left_out": "scripts, and no package: needs --checkouts"}
            continue
        result["installed"][name] = install(name, peer, arguments.venvs)
        if checkout is not None and "left_out" not in result["installed"][name]:
            result["installed"][name]["version"] = commit_of(checkout)
    able = [name for name in names if "left_out" not in result["installed"][name] and not PEERS[name].not_measured]
    before = result["measured"]
    for case in [] if arguments.install_only else arguments.cases.split(","):
        for cores in map(int, arguments.cores.split(",")):
            # A reason holds for a case with any number of cores, until the peer is asked again.
            reasons = [run["left_out"].items() for run in before if run["case"] == case]
            earlier = {peer: reason for each in reasons for peer, reason in each if peer not in able}
            before = [run for run in before if (run["case"], run["cores"]) != (case, cores)]
            for found in measure(case, cores, able, arguments):
                found["left_out"] = earlier | found["left_out"]
                result["measured"] = sorted([*before, found], key=in_order)
                machine.save(arguments.results, result)
            before = result["measured"]
    machine.save(arguments.results, result)
    print(as_markdown(result))
    print(f"Raw figures: {path}, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
