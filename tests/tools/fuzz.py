"""Try random configurations, arguments and files: each must end in a clear error or in a run that works.

    python tests/tools/fuzz.py --cases 10000

A third of the cases gives `PPOConfig` and `train` random values, some of them invalid. The others alter the files of a
finished run, with observations that are vectors or images (config.json, metrics.jsonl, state.json,
tensors.safetensors): bits are flipped; bytes are cut, inserted and repeated; files are exchanged; or the meaning of a
file is changed and its checksums are computed again, as an attacker could do. Then the run is loaded, evaluated or
resumed. Only `HybridPPOError` may be raised, and no code in a file may run: the script watches the interpreter's audit
events. Settings that are accepted, but too large to try, are counted separately.

Hypothesis draws the cases, and shrinks a failing case to the smallest one. The same seed draws the same cases.
"""

import argparse
import collections
import copy
import hashlib
import json
import logging
import math
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

import hybridppo
from hybridppo import HybridPPOError, PPOConfig
from hybridppo.errors import shown
from hybridppo.run_directory.checkpoints import _checksum
from hybridppo.run_directory.files import as_json
from hybridppo.settings import COMMIT

TINY: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "num_epochs": 1, "num_minibatches": 1, "hidden_sizes": (8,)}
SECONDS_PER_CASE = 60
FORBIDDEN_EVENTS = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.fork")

Files = dict[str, bytes]
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Dots(gym.Env[Any, Any]):
    """Images of a dot, whose row the agent must name."""

    observation_space = gym.spaces.Box(0, 255, (4, 5, 1), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Show the first dot."""
        super().reset(seed=seed)
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        """Show the next dot."""
        reward, self._step = float(action == self._dot), self._step + 1
        return self._observation(), reward, False, self._step == 10, {}

    def _observation(self) -> Any:
        self._dot = int(self.np_random.integers(4))
        image = np.zeros((4, 5, 1), np.uint8)
        image[self._dot, 2] = 255
        return image


gym.register("Dots-v0", Dots)


class TooLargeError(Exception):
    """The case was accepted, but would take too long or too much memory to try."""


class Case:
    """A case to try.

    Args:
        what: a description that is printed if the case fails, because some values cannot be printed.
        try_in: tries the case in a folder.
    """

    def __init__(self, what: str, try_in: Callable[[Path], None]) -> None:
        self._what, self.try_in = what, try_in

    def __repr__(self) -> str:
        return self._what


# Values


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


WHOLE = [0, 1, 2, 3, 4, 8, -1, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**5000, -(10**30)]
REAL = [0.0, -0.0, 0.5, 1.0, 1e-8, 1e-45, 1e-320, 1e30, 3.4e38, 1e39, 1e308, math.inf, -math.inf, math.nan, -0.5]
WORDS = [
    *("", "auto", "cpu", "cuda", "tanh", "elu", "sync", "Box", "Discrete", "nan", "1", "\0", "\ud800", "x" * 999),
    *("../../etc/passwd", "builtins:eval", "single", "same_step", "float32", "best"),
]
SINGLE = st.one_of(
    # Not sampled from the list itself: hypothesis would print numbers that Python refuses to print.
    st.integers(0, len(WHOLE) - 1).map(lambda place: WHOLE[place]),
    st.sampled_from(REAL),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(),
    st.booleans(),
    st.none(),
)
ANYTHING = st.one_of(
    st.recursive(
        SINGLE,
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("012345678"), part, max_size=2),
        max_leaves=8,
    ),
    st.builds(_nested, st.sampled_from([5, 500])),
)
"""A value of any kind that Python or JSON has, often an extreme one."""

SENSIBLE: dict[str, Any] = {
    "num_envs": [1, 2, 4],
    "num_steps": [1, 2, 7, 16],
    "num_epochs": [1, 2],
    "num_minibatches": [1, 2, 4],
    "learning_rate": [1e-3, 1.0, 1e10, 1e30, 3e38, 1e-45],
    "gamma": [0.0, 0.5, 1.0],
    "gae_lambda": [0.0, 1.0],
    "clip_range": [1e-30, 0.2, 1e30],
    "clip_range_vf": [None, 1e-30, 0.2, 1e30],
    "entropy_coef": [0.0, 1e10, 3e38],
    "value_coef": [0.0, 1e10, 3e38],
    "max_grad_norm": [1e-30, 0.5, 1e30],
    "target_kl": [None, 1e-30, 1e30],
    "normalize_advantage": [True, False],
    "hidden_sizes": [(1,), (8, 4), ()],
    "activation": ["tanh", "relu", "elu", "silu", "gelu"],
    "fast_updates": [True, False],
    "squash_actions": [True, False],
}
"""Changes of a configuration that should work."""
ARGUMENTS = (
    *("seed", "placement", "num_workers", "vectorization", "autoreset_mode", "checkpoint_seconds", "keep_checkpoints"),
    *("evaluation_episodes", "total_steps", "total_episodes", "env", "on_env_error", "worker_timeout", "action_masks"),
)
"""Arguments of `train` that get random values."""


def _some(draw: Draw, names: Any, counts: list[int]) -> list[str]:
    """Some of the names; their number is one of the counts."""
    count = draw(st.sampled_from(counts))
    names = sorted(names)
    found: list[str] = draw(st.lists(st.sampled_from(names), min_size=count, max_size=count, unique=True))
    return found


def is_tiny(config: PPOConfig) -> bool:
    """Whether the configuration is small enough to try."""
    small = config.num_envs <= 16 and config.num_steps <= 128 and config.num_epochs <= 4
    episodes = config.episodes_per_rollout is None or config.episodes_per_rollout <= 4
    return small and episodes and sum(config.hidden_sizes) <= 256 and (config.torch_threads or 1) <= 4


# Cases


@st.composite
def configurations(draw: Draw) -> Case:
    """Train two iterations with random fields and arguments."""
    changes = {name: draw(st.sampled_from(SENSIBLE[name])) for name in _some(draw, SENSIBLE, [1, 2, 3, 4, 5, 6])}
    for name in _some(draw, [field.name for field in fields(PPOConfig)], [0, 0, 1, 2]):
        changes[name] = draw(ANYTHING)
    arguments: dict[str, Any] = {"seed": 0, "placement": "cpu", "evaluation_episodes": 0}
    arguments["env"] = draw(st.sampled_from(["CartPole-v1", "Pendulum-v1", "Taxi-v4", "Dots-v0"]))
    arguments |= {name: draw(ANYTHING) for name in _some(draw, ARGUMENTS, [0, 0, 0, 1, 1, 2])}
    what = f"PPOConfig(**{shown(changes, 1000)}), train(**{shown(arguments, 1000)})"
    return Case(what, partial(_try_configuration, changes, arguments))


def _try_configuration(changes: dict[str, Any], arguments: dict[str, Any], folder: Path) -> None:
    config = PPOConfig(**{**TINY, **changes})
    if not is_tiny(config):
        raise TooLargeError
    arguments = {"total_steps": 2 * config.batch_size, **arguments}
    total_steps, episodes = arguments["total_steps"], arguments["evaluation_episodes"]
    if isinstance(total_steps, (int, float)) and total_steps > 1000:
        raise TooLargeError
    if isinstance(episodes, int) and episodes not in range(3):
        arguments["evaluation_episodes"] = -1
    if arguments.get("num_workers") in (1, 2, 3, 4) or arguments["placement"] == "auto":
        raise TooLargeError  # processes and measurements: too slow for thousands of cases
    if isinstance(arguments.get("num_workers"), int) and arguments["num_workers"] > 4:
        arguments["num_workers"] = -1
    result = hybridppo.train(arguments.pop("env"), config=config, run_dir=folder / "run", progress=False, **arguments)
    assert result.agent.parameters.values.isfinite().all()
    hybridppo.load(folder / "run")


@st.composite
def altered_runs(draw: Draw, bases: list[Files]) -> Case:
    """Alter files; then load, evaluate or resume the run."""
    files = dict(draw(st.sampled_from(bases)))
    told = [alter(draw, files) for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
    use = draw(st.sampled_from(["load", "load best", "evaluate", "resume", "resume"]))
    return Case(f"{'; '.join(told)}; then {use}", partial(_try_files, files, use))


def _try_files(files: Files, use: str, folder: Path) -> None:
    for name, data in files.items():
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    run = folder / "run"
    try:
        if not may_load(files):
            raise TooLargeError
        agent = hybridppo.load(run, checkpoint="best" if use == "load best" else "latest")
        agent.act(agent.observation_space.sample())
        if use in ("load", "load best"):
            return
        if not may_run(files):
            raise TooLargeError
        if use == "evaluate":
            hybridppo.evaluate(run, episodes=1, progress=False)
        else:
            hybridppo.resume(run, total_steps=120, progress=False)
            hybridppo.load(run)
    except HybridPPOError:
        if use == "resume":
            with suppress(HybridPPOError):
                hybridppo.resume(run, total_steps=120, progress=False) if may_run(files) else None
        raise


def settings_in(files: Files) -> dict[str, Any]:
    """The settings in config.json; empty if they are invalid."""
    try:
        settings = json.loads(files["config.json"])
        return settings if isinstance(settings, dict) else {}
    except (ValueError, RecursionError, KeyError):
        return {}


def may_load(files: Files) -> bool:
    """Whether loading takes little memory."""
    settings = settings_in(files)
    try:
        is_small = is_tiny(PPOConfig(**settings["config"]))
    except (HybridPPOError, TypeError, KeyError):
        is_small = True  # refused
    spaces = [settings.get("observation_space"), settings.get("action_space")]
    sizes = [space.get("n") for space in spaces if isinstance(space, dict)]
    for space in spaces:
        shape = space.get("shape") if isinstance(space, dict) else None
        if isinstance(shape, list):
            sizes += [abs(size) for size in shape if isinstance(size, (int, float))]
    return is_small and all(not isinstance(size, (int, float)) or not size > 10_000 for size in sizes)


def may_run(files: Files) -> bool:
    """Whether running takes little time."""
    settings = settings_in(files)
    episodes, workers = settings.get("evaluation_episodes"), settings.get("num_workers")
    is_short = not isinstance(episodes, int) or episodes <= 3
    has_no_processes = workers in (None, 0) or not isinstance(workers, int)
    return is_short and has_no_processes


# Alterations


def alter(draw: Draw, files: Files) -> str:
    """Change one file, or exchange two; return a description of the change."""
    name = draw(st.sampled_from(sorted(files)))
    before = files[name]
    kind = draw(st.sampled_from(["bytes", "bytes", "meaning", "meaning", "meaning", "exchange", "missing"]))
    if kind == "missing" and len(files) > 1:
        del files[name]
    elif kind == "exchange":
        other = draw(st.sampled_from(sorted(files)))
        files[name], files[other] = files[other], files[name]
        return f"exchange {name} and {other}"
    elif kind == "meaning":
        alter_meaning(draw, files, name)
    else:
        files[name] = alter_bytes(draw, files[name])
    return f"{kind} of {name}, {_difference(before, files.get(name, b''))}"


def _difference(before: bytes, after: bytes) -> str:
    pairs = zip(before, after, strict=False)
    place = next((place for place, (old, new) in enumerate(pairs) if old != new), min(len(before), len(after)))
    return f"byte {place}: {before[place : place + 60]!r} becomes {after[place : place + 60]!r}"


def alter_bytes(draw: Draw, data: bytes) -> bytes:
    """Flip, cut, insert or repeat bytes."""
    changed = bytearray(data)
    for _ in range(draw(st.sampled_from([1, 1, 4, 50]))):
        place, kind = draw(st.integers(0, len(changed))), draw(st.integers(0, 5))
        if kind == 0:
            del changed[place:]
        elif kind == 1:
            del changed[place : place + draw(st.integers(1, 50))]
        elif kind == 2:
            changed[place:place] = draw(st.binary(min_size=1, max_size=20))
        elif kind == 3:
            changed[place:place] = changed[: draw(st.integers(1, 200))]
        elif place < len(changed):
            changed[place] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


def alter_meaning(draw: Draw, files: Files, name: str) -> None:
    """Change a value in a file, and compute the checksums again."""
    try:
        if name.endswith("tensors.safetensors"):
            files[name] = alter_tensors(draw, files[name])
            header = name.replace("tensors.safetensors", "state.json")
            content = json.loads(files[header])
            content["tensors_sha256"] = hashlib.sha256(files[name]).hexdigest()
            files[header] = signed(content)
        elif name.endswith("metrics.jsonl"):
            lines = files[name].splitlines()
            place = draw(st.integers(0, max(0, len(lines) - 1)))
            lines[place] = text_of(alter_value(draw, json.loads(lines[place])))
            files[name] = b"\n".join(lines) + b"\n"
        else:
            content = alter_value(draw, json.loads(files[name]))
            files[name] = signed(content) if name.endswith("state.json") else text_of(content)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, struct.error):
        files[name] = alter_bytes(draw, files.get(name, b""))  # it was damaged before


def alter_value(draw: Draw, value: Any) -> Any:
    """Replace, delete or rename one value in a JSON tree."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, item in items:
            places.append((node, key))
            collect(item)

    collect(value)
    if not places or draw(st.integers(0, 49)) == 0:
        return draw(ANYTHING)
    node, key = places[draw(st.integers(0, len(places) - 1))]
    kind = draw(st.sampled_from(["replace"] * 14 + ["delete"] * 3 + ["add"] * 3))
    if kind == "replace":
        node[key] = draw(ANYTHING)
    elif kind == "delete":
        del node[key]
    elif isinstance(node, dict):
        node[draw(st.sampled_from(["", "extra", "state", "__class__"]))] = node.pop(key)
    else:
        node.append(draw(ANYTHING))
    return value


DTYPES = ["F64", "F16", "BF16", "I32", "I64", "U8", "BOOL", "F8_E4M3", "X"]


def alter_tensors(draw: Draw, data: bytes) -> bytes:
    """Change safetensors' own header, or the numbers after it."""
    (size,) = struct.unpack("<Q", data[:8])
    header, numbers = json.loads(data[8 : 8 + size]), data[8 + size :]
    kind = draw(st.sampled_from(["number", "value", "exchange", "dtype"]))
    if kind == "number":
        array = np.frombuffer(numbers[: len(numbers) // 4 * 4], np.float32).copy()
        array[draw(st.integers(0, max(0, len(array) - 1)))] = draw(st.sampled_from([np.nan, np.inf, 1e38, -1e38, 0.0]))
        return data[: 8 + size] + array.tobytes()
    if kind == "value":
        header = alter_value(draw, header)
    elif kind == "exchange":
        first, second = _some(draw, header, [2])
        header[first], header[second] = header[second], header[first]
    else:
        name = draw(st.sampled_from(sorted(header)))
        header[name]["dtype"] = draw(
            st.sampled_from(["F64", "F16", "BF16", "I32", "I64", "U8", "BOOL", "F8_E4M3", "X"])
        )
    encoded = text_of(header)
    return struct.pack("<Q", len(encoded)) + encoded + numbers


def text_of(value: Any) -> bytes:
    """The value as JSON, also numbers with thousands of digits."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value, allow_nan=True).encode()  # whatever a stranger may write
    finally:
        sys.set_int_max_str_digits(before)


def signed(content: Any) -> bytes:
    """A state.json with a valid checksum."""
    if isinstance(content, dict):
        content.pop("sha256", None)
        before = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            content["sha256"] = _checksum(content)
        finally:
            sys.set_int_max_str_digits(before)
    return text_of(content)


# Running them


def make_base(env: str, folder: Path) -> Files:
    """The files of a finished run."""
    config, run = PPOConfig(**TINY), folder / env
    hybridppo.train(
        env, total_steps=96, seed=0, placement="cpu", config=config, run_dir=run, progress=False,
        checkpoint_seconds=0.0, keep_checkpoints=2,
    )  # fmt: skip
    paths = [path for path in run.rglob("*") if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


_watching = False
_events: list[str] = []


def _audit(event: str, arguments: Any) -> None:
    if event == "subprocess.Popen" and tuple(arguments[1]) == COMMIT:
        return  # the library's own question, of which commit the run is
    if _watching and event in FORBIDDEN_EVENTS:
        _events.append(f"{event} {arguments!r}"[:200])


@contextmanager
def watched() -> Iterator[None]:
    """A context in which no event of `FORBIDDEN_EVENTS` may occur."""
    global _watching
    _events.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
    if _events:
        raise AssertionError(f"something ran that should not: {_events}")


def _too_long(signum: int, frame: Any) -> None:
    raise TimeoutError(f"a case took more than {SECONDS_PER_CASE} s")


def fuzz(cases: int, seed: int) -> collections.Counter[str]:
    """Run the cases; return the number of each outcome.

    Raises:
        Exception: the error of a case that is neither a clear error nor a working run; a group if there are several
            kinds of errors.
    """
    endings: collections.Counter[str] = collections.Counter()
    root = Path(tempfile.mkdtemp(prefix="hybridppo-fuzz-"))
    logging.getLogger("hybridppo").setLevel(logging.CRITICAL)
    if not _hooks:
        sys.addaudithook(_audit)
        _hooks.append(_audit)
    previous = signal.signal(signal.SIGALRM, _too_long)
    try:
        bases = [make_base(env, root) for env in ("CartPole-v1", "Dots-v0")]

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=cases,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(st.integers(0, 2).flatmap(lambda kind: altered_runs(bases) if kind else configurations()))
        def try_case(case: Case) -> None:
            folder = root / "case"
            folder.mkdir()
            signal.alarm(SECONDS_PER_CASE)
            try:
                endings[_ending(case, folder)] += 1
            finally:
                signal.alarm(0)
                shutil.rmtree(folder)

        try_case()
    finally:
        signal.signal(signal.SIGALRM, previous)
        logging.getLogger("hybridppo").setLevel(logging.NOTSET)
        shutil.rmtree(root)
    return endings


def _ending(case: Case, folder: Path) -> str:
    try:
        with watched(), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            case.try_in(folder)
    except HybridPPOError as error:
        if not str(error).strip():
            raise AssertionError("an error without a message") from error
        return type(error).__name__
    except TooLargeError:
        return "accepted, too large to try"
    return "worked"


_hooks: list[Callable[..., None]] = []
"""An audit hook cannot be removed again, so it is added only once."""


def main() -> int:
    """Run the cases; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all of them")
    arguments = parser.parse_args()
    start = time.monotonic()
    try:
        endings = fuzz(arguments.cases, arguments.seed)
    except Exception:
        traceback.print_exc()
        return 1
    seconds = round(time.monotonic() - start)
    print(as_json({"cases": endings.total(), "endings": dict(endings.most_common()), "seconds": seconds}).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
