"""Random configurations, arguments and files: each must end in a clear error or in a run that works.

    python scripts/fuzz.py --cases 10000
    python scripts/fuzz.py --only 4711 --seed 3      # one case again, with its traceback

A third of the cases gives `PPOConfig` and `train` random values, such as nobody should give among them. The others
alter the files of a finished run, of vectors or of images (config.json, metrics.jsonl, state.json,
tensors.safetensors): bits flipped, bytes cut, put in, swapped, whole files exchanged; or the meaning of a file changed
and its checksums made anew, as a stranger could. Then the run is loaded, evaluated or resumed. Only `HybridPPOError`
may come of it, and nothing that is in a file may run: the interpreter's audit events are watched. What is accepted, but
is too large to be tried, is counted apart.
"""

import argparse
import collections
import copy
import hashlib
import json
import logging
import math
import random
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
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import hybridppo
from hybridppo import HybridPPOError, PPOConfig
from hybridppo.errors import shown
from hybridppo.run_directory.checkpoints import _checksum
from hybridppo.run_directory.lines import as_json

TINY: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "num_epochs": 1, "num_minibatches": 1, "hidden_sizes": (8,)}
SECONDS_PER_CASE = 60
FORBIDDEN_EVENTS = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.fork")

Files = dict[str, bytes]


class Dots(gym.Env[Any, Any]):
    """Images of a dot, which is to be named."""

    observation_space = gym.spaces.Box(0, 255, (4, 5, 1), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """A first dot."""
        super().reset(seed=seed)
        self._step = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        """The next one."""
        reward, self._step = float(action == self._dot), self._step + 1
        return self._observation(), reward, False, self._step == 10, {}

    def _observation(self) -> Any:
        self._dot = int(self.np_random.integers(4))
        image = np.zeros((4, 5, 1), np.uint8)
        image[self._dot, 2] = 255
        return image


gym.register("Dots-v0", Dots)


class TooLargeError(Exception):
    """The case was accepted, and would take too long or too much memory to try."""


# Values


def number(source: random.Random) -> Any:
    """Whole numbers and real ones, with a liking for edges."""
    edges = [0, 1, 2, 3, 4, 8, -1, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**5000, -(10**30)]
    reals = [0.0, -0.0, 0.5, 1.0, 1e-8, 1e-45, 1e-320, 1e30, 3.4e38, 1e39, 1e308, math.inf, -math.inf, math.nan, -0.5]
    return source.choice(edges if source.random() < 0.5 else reals)


def anything(source: random.Random, depth: int = 0) -> Any:
    """A value of any kind that Python or JSON knows."""
    kind = source.randrange(11)
    if kind < 4:
        return number(source)
    if kind < 6:
        words = [
            "",
            "auto",
            "cpu",
            "cuda",
            "tanh",
            "elu",
            "sync",
            "Box",
            "Discrete",
            "nan",
            "1",
            "\0",
            "\ud800",
            "x" * 999,
        ]
        return source.choice([*words, "../../etc/passwd", "builtins:eval", "single", "same_step", "float32", "best"])
    if kind < 7:
        return source.choice([True, False])
    if kind < 8:
        return None
    if depth > 3:
        return []
    if kind < 9:
        return [anything(source, depth + 1) for _ in range(source.randrange(4))]
    if kind < 10:
        return {str(source.randrange(9)): anything(source, depth + 1) for _ in range(source.randrange(3))}
    nested: Any = []
    for _ in range(source.choice([5, 500])):
        nested = [nested]
    return nested


def sensible(source: random.Random) -> dict[str, Any]:
    """Changes of a configuration that are meant to work."""
    choices: dict[str, Any] = {
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
    return {name: source.choice(choices[name]) for name in source.sample(sorted(choices), source.randrange(1, 7))}


def is_tiny(config: PPOConfig) -> bool:
    """Whether it can be tried here."""
    small = config.num_envs <= 16 and config.num_steps <= 128 and config.num_epochs <= 4
    episodes = config.episodes_per_rollout is None or config.episodes_per_rollout <= 4
    return small and episodes and sum(config.hidden_sizes) <= 256 and (config.torch_threads or 1) <= 4


# Cases


def try_configuration(source: random.Random, folder: Path) -> None:
    """Random fields, then two iterations."""
    changes = sensible(source)
    for name in source.sample([field.name for field in fields(PPOConfig)], source.choice([0, 0, 1, 2])):
        changes[name] = anything(source)
    config = PPOConfig(**{**TINY, **changes})
    if not is_tiny(config):
        raise TooLargeError
    arguments: dict[str, Any] = {"seed": 0, "placement": "cpu", "evaluation_episodes": 0}
    names = ["seed", "placement", "num_workers", "vectorization", "autoreset_mode", "checkpoint_seconds"]
    names += ["keep_checkpoints", "evaluation_episodes", "total_steps", "total_episodes", "env", "on_env_error"]
    names += ["worker_timeout", "action_masks"]
    for name in source.sample(names, source.choice([0, 0, 0, 1, 1, 2])):
        arguments[name] = anything(source)
    env = arguments.pop("env", source.choice(["CartPole-v1", "Pendulum-v1", "Taxi-v4", "Dots-v0"]))
    total_steps = arguments.pop("total_steps", 2 * config.batch_size)
    if isinstance(total_steps, (int, float)) and total_steps > 1000:
        raise TooLargeError
    if arguments["evaluation_episodes"] not in range(3) and isinstance(arguments["evaluation_episodes"], int):
        arguments["evaluation_episodes"] = -1
    if arguments.get("num_workers") in (1, 2, 3, 4) or arguments["placement"] == "auto":
        raise TooLargeError  # processes and measurements: too slow for thousands of cases
    result = hybridppo.train(
        env, total_steps=total_steps, config=config, run_dir=folder / "run", progress=False, **arguments
    )
    assert result.agent.parameters.values.isfinite().all()
    hybridppo.load(folder / "run")


def try_files(source: random.Random, folder: Path, base: Files) -> None:
    """Altered files, then a run that is loaded, evaluated or resumed."""
    files = dict(base)
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        files = alter(source, files)
    for name, data in files.items():
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    run, use = folder / "run", source.choice(["load", "load best", "evaluate", "resume", "resume"])
    try:
        agent = hybridppo.load(run, checkpoint="best" if use == "load best" else "latest") if may_load(files) else None
        if agent is None:
            raise TooLargeError
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
    """What config.json says, if anything."""
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


def alter(source: random.Random, files: Files) -> Files:
    """One change to one file, or an exchange of two."""
    files = dict(files)
    name = source.choice(sorted(files))
    kind = source.choice(["bytes", "bytes", "meaning", "meaning", "meaning", "exchange", "missing"])
    if kind == "missing":
        del files[name]
        if not files:
            return {name: b""}
    elif kind == "exchange":
        other = source.choice(sorted(files))
        files[name], files[other] = files[other], files[name]
    elif kind == "bytes":
        files[name] = alter_bytes(source, files[name])
    else:
        alter_meaning(source, files, name)
    return files


def alter_bytes(source: random.Random, data: bytes) -> bytes:
    """Flip, cut, insert, repeat."""
    changed = bytearray(data)
    for _ in range(source.choice([1, 1, 4, 50])):
        place, kind = source.randrange(len(changed) + 1), source.randrange(6)
        if kind == 0:
            del changed[place:]
        elif kind == 1:
            del changed[place : place + source.randrange(1, 50)]
        elif kind == 2:
            changed[place:place] = source.randbytes(source.randrange(1, 20))
        elif kind == 3:
            changed[place:place] = changed[: source.randrange(1, 200)]
        elif place < len(changed):
            changed[place] ^= 1 << source.randrange(8)
    return bytes(changed)


def alter_meaning(source: random.Random, files: Files, name: str) -> None:
    """Change a value within, and make the checksums anew."""
    try:
        if name.endswith("tensors.safetensors"):
            files[name] = alter_tensors(source, files[name])
            header = name.replace("tensors.safetensors", "state.json")
            content = json.loads(files[header])
            content["tensors_sha256"] = hashlib.sha256(files[name]).hexdigest()
            files[header] = signed(content)
        elif name.endswith("metrics.jsonl"):
            lines = files[name].splitlines()
            place = source.randrange(len(lines))
            lines[place] = text_of(alter_value(source, json.loads(lines[place])))
            files[name] = b"\n".join(lines) + b"\n"
        else:
            content = alter_value(source, json.loads(files[name]))
            files[name] = signed(content) if name.endswith("state.json") else text_of(content)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, struct.error):
        files[name] = alter_bytes(source, files.get(name, b""))  # it was damaged before


def alter_value(source: random.Random, value: Any) -> Any:
    """One place of the tree becomes something else, goes, or is called otherwise."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, item in items:
            places.append((node, key))
            collect(item)

    collect(value)
    if not places or source.random() < 0.02:
        return anything(source)
    node, key = source.choice(places)
    kind = source.random()
    if kind < 0.7:
        node[key] = anything(source)
    elif kind < 0.85:
        del node[key]
    elif isinstance(node, dict):
        node[source.choice(["", "extra", "state", "__class__"])] = node.pop(key)
    else:
        node.append(anything(source))
    return value


def alter_tensors(source: random.Random, data: bytes) -> bytes:
    """Change safetensors' own header, or the numbers after it."""
    (size,) = struct.unpack("<Q", data[:8])
    header, numbers = json.loads(data[8 : 8 + size]), data[8 + size :]
    kind = source.randrange(4)
    if kind == 0:
        array = np.frombuffer(numbers[: len(numbers) // 4 * 4], np.float32).copy()
        array[source.randrange(len(array))] = source.choice([np.nan, np.inf, 1e38, -1e38, 0.0])
        return data[: 8 + size] + array.tobytes()
    if kind == 1:
        header = alter_value(source, header)
    elif kind == 2:
        first, second = source.sample(sorted(header), 2)
        header[first], header[second] = header[second], header[first]
    else:
        name = source.choice(sorted(header))
        header[name]["dtype"] = source.choice(["F64", "F16", "BF16", "I32", "I64", "U8", "BOOL", "F8_E4M3", "X"])
    encoded = text_of(header)
    return struct.pack("<Q", len(encoded)) + encoded + numbers


def text_of(value: Any) -> bytes:
    """As JSON, numbers of thousands of digits included."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value, allow_nan=True).encode()  # whatever a stranger may write
    finally:
        sys.set_int_max_str_digits(before)


def signed(content: Any) -> bytes:
    """A state.json whose checksum is right."""
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
    if _watching and event in FORBIDDEN_EVENTS:
        _events.append(f"{event} {arguments!r}"[:200])


@contextmanager
def watched() -> Iterator[None]:
    """Within it, no event of `FORBIDDEN_EVENTS` may occur."""
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


def fuzz(cases: int, seed: int, *, only: int | None = None) -> collections.Counter[str]:
    """Run the cases; how they ended.

    Raises:
        AssertionError: where one ended in neither a clear error nor a working run, with its number and its traceback.
    """
    endings: collections.Counter[str] = collections.Counter()
    failures: dict[tuple[str, int | None], str] = {}
    root = Path(tempfile.mkdtemp(prefix="hybridppo-fuzz-"))
    logging.getLogger("hybridppo").setLevel(logging.CRITICAL)
    if not _hooks:
        sys.addaudithook(_audit)
        _hooks.append(_audit)
    previous = signal.signal(signal.SIGALRM, _too_long)
    try:
        bases = [make_base(env, root) for env in ("CartPole-v1", "Dots-v0")]
        for case in range(cases) if only is None else [only]:
            source, folder = random.Random(f"{seed}/{case}"), root / "case"
            folder.mkdir()
            signal.alarm(SECONDS_PER_CASE)
            try:
                with watched(), warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    if source.random() < 1 / 3:
                        try_configuration(source, folder)
                    else:
                        try_files(source, folder, source.choice(bases))
                endings["worked"] += 1
            except HybridPPOError as error:
                endings[type(error).__name__ if str(error).strip() else "without a message"] += 1
            except TooLargeError:
                endings["accepted, too large to try"] += 1
            except Exception as error:
                # One of a kind: the same line in the library fails for many values.
                frame = traceback.extract_tb(error.__traceback__)[-1]
                text = f"case {case} of seed {seed} ended in {type(error).__name__}: {shown(error)}"
                failures.setdefault(
                    (frame.filename, frame.lineno), f"{text}\n{''.join(traceback.format_tb(error.__traceback__)[-4:])}"
                )
            finally:
                signal.alarm(0)
                shutil.rmtree(folder)
    finally:
        signal.signal(signal.SIGALRM, previous)
        logging.getLogger("hybridppo").setLevel(logging.NOTSET)
        shutil.rmtree(root)
    if failures:
        raise AssertionError("\n".join(failures.values()))
    assert not endings["without a message"]
    return endings


_hooks: list[Callable[..., None]] = []
"""An audit hook cannot be taken away again: it is added once."""


def main() -> int:
    """Run as many cases as asked for; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="how many (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all of them")
    parser.add_argument("--only", type=int, help="the number of one case")
    arguments = parser.parse_args()
    start = time.monotonic()
    try:
        endings = fuzz(arguments.cases, arguments.seed, only=arguments.only)
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    seconds = round(time.monotonic() - start)
    print(as_json({"cases": endings.total(), "endings": dict(endings.most_common()), "seconds": seconds}).rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
