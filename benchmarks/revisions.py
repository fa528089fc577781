"""The same trainings with two revisions of the library, by turns: did a change make anything slower?

python benchmarks/revisions.py --old HEAD~20
python benchmarks/revisions.py --old v0.1.0 --cases small,td3 --rounds 9

Each turn is a process of its own. It measures the steps per second of the loop after some iterations of warm-up, in
parts: the speed of a turn is that of its fast parts, because a shared machine only ever slows a program down. The case
`start` measures the seconds from `import hybridppo` to the end of a training of one iteration. Cases are saved as they
finish, beside those that an earlier call has compared with the same revision.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np
import turns

ROOT = Path(__file__).resolve().parents[1]
STEPS = {
    "small": 60_000,
    "wide": 40_000,
    "overlap": 60_000,
    "workers": 60_000,
    "compiled": 1_500_000,
    "lstm": 20_000,
    "images": 6_000,
    "autograd": 40_000,
    "td3": 5_000,
    "start": 1_024,
}
"""Environment steps of each case's training."""
PARTS = 20
"""Of the loop after its warm-up, each with a speed of its own."""
FAST = 0.9
"""The quantile of the speeds of parts that is the speed of a turn."""


def one_turn(case: str) -> dict[str, Any]:
    """Train once, in this process, with whichever revision `import hybridppo` finds."""
    started = time.perf_counter()
    import hybridppo
    from hybridppo import Mirrored, PPOConfig, TD3Config

    arguments: dict[str, Any] = {"placement": "cpu", "env": "CartPole-v1"}
    config: dict[str, Any] = {"num_envs": 8, "num_steps": 128, "num_epochs": 4, "num_minibatches": 4}
    if case == "wide":
        config |= {"num_envs": 64, "hidden_sizes": (256, 256)}
    elif case == "overlap":
        arguments["placement"] = Mirrored("cpu", "cpu", max_lag=1)
    elif case == "workers":
        arguments["num_workers"] = 2
    elif case == "compiled":
        arguments["vectorization"] = "compiled"
        config |= {"compiled_updates": True}
    elif case == "lstm":
        config |= {"recurrent": "lstm"}
    elif case == "images":
        arguments["env"] = _pictures
        config |= {"num_steps": 64}
    elif case == "autograd":
        config |= {"fast_updates": False}
    made = TD3Config(num_envs=1, learning_starts=1_000) if case == "td3" else PPOConfig(**config)
    if case == "td3":
        arguments["env"] = "Pendulum-v1"
    env = arguments.pop("env")
    seen: list[tuple[float, float]] = []

    def note(metrics: dict[str, Any]) -> None:
        seen.append((time.perf_counter(), metrics["env_steps"]))

    steps = STEPS[case]
    hybridppo.train(env, total_steps=steps, seed=0, config=made, progress=False, on_iteration=note, **arguments)
    if case == "start":
        return {"speed": 1.0 / (time.perf_counter() - started)}
    begin = next(i for i, (_, done) in enumerate(seen) if done >= 0.25 * steps)  # the first quarter warms up
    measured = seen[begin :: max(1, (len(seen) - begin) // PARTS)]
    seconds, done = zip(*measured, strict=True)
    speeds = np.diff(done) / np.diff(seconds)
    return {"speed": float(np.quantile(speeds, FAST)), "whole": (done[-1] - done[0]) / (seconds[-1] - seconds[0])}


def _pictures() -> Any:
    import gymnasium as gym
    import numpy as np

    class Pictures(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
        action_space = gym.spaces.Discrete(3)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.time = 0
            return self._picture(), {}

        def step(self, action: Any) -> Any:
            reward, self.time = float(action == self.third), self.time + 1
            return self._picture(), reward, False, self.time >= 20, {}

        def _picture(self) -> Any:
            self.third = int(self.np_random.integers(3))
            picture = np.zeros((36, 36, 1), np.uint8)
            picture[:, 12 * self.third : 12 * self.third + 12] = 255
            return picture

    return Pictures()


def main() -> None:  # noqa: D103
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", default="HEAD", help="the revision to compare the working tree with")
    parser.add_argument("--cases", default=",".join(STEPS), help="cases, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default %(default)s)")
    parser.add_argument("--turn", help="take one turn of this case, in this process")
    arguments = parser.parse_args()
    if arguments.turn:
        print(json.dumps(one_turn(arguments.turn)))
        return
    revision = subprocess.run(
        ["git", "rev-parse", "--short", arguments.old], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    rows = kept(revision)
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(old), revision], cwd=ROOT, check=True)
        try:
            for case in arguments.cases.split(","):
                found = turns.take_turns(
                    {"old": [str(old), case], "new": [str(ROOT), case]}, arguments.rounds, key="speed", take=_take
                )
                ratio = turns.ratios(found, "new", "old", "speed")
                old_speeds, new_speeds = ([each[name]["speed"] for each in found] for name in ("old", "new"))
                fastest = max(new_speeds) / max(old_speeds)
                rows[case] = {
                    "old": statistics.median(old_speeds),
                    "new": statistics.median(new_speeds),
                    "ratio": ratio,
                    "fastest": fastest,
                    "rounds": found,
                }
                print(f"{case:10} new/old {turns.in_words(ratio)}, of the fastest turns {fastest:.2f}", flush=True)
                path = machine.save("revisions", {"old": revision, "rows": rows})
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(old)], cwd=ROOT, check=True)
    print(f"Raw figures: {path}")


def kept(revision: str) -> dict[str, Any]:
    """The cases that have been compared with this revision."""
    path = machine.RESULTS / "revisions.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found["rows"] if found.get("old") == revision else {}


def _take(command: list[str]) -> dict[str, Any]:
    tree, case = command
    script = [sys.executable, str(Path(__file__).resolve()), "--turn", case]
    return turns.take_turn(script, machine.environment(PYTHONPATH=tree), Path(tree))


if __name__ == "__main__":
    main()
