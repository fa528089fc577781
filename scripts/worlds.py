"""Try the library in other people's environments, and write the table of `docs/worlds.md`.

    make worlds
    python scripts/worlds.py highway-env rware      # these alone, again if they are in the table
    python scripts/worlds.py --table                # write the page from the results that are there

Packages are installed into two virtual environments below `--venvs`: one with the newest versions, one with the older
ones of `OLDER`. A package with stricter limits than it needs is installed without its dependencies (`alone`).

Each environment has processes of its own, with a time limit, so that one that hangs or dies costs a row of the table
and no more. They check, train for two iterations, evaluate, play the same episodes in a plain loop, train again, train
with two workers, and stop and resume a training, in a new process. Results are saved after each environment; a stopped
call goes on with those that are missing.
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import logging
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "worlds.md"
RESULTS = ROOT / "benchmarks" / "results" / "worlds.json"
START, END = "<!-- table: make worlds -->", "<!-- end of table -->"
SHARED = ("python", "gymnasium", "numpy", "mujoco", "dm-control")
"""What the page names the versions of, beside the packages."""
OLDER = ("gymnasium>=1.2,<1.3", "numpy>=2,<2.4", "mujoco==3.3.0", "dm-control==1.0.28")
SECONDS = 300
"""Time limit of an environment's processes together."""
EPISODES = (0, 1)
"""The seeds of the episodes that are compared."""


@dataclass(frozen=True)
class World:
    """An environment of somebody else's package."""

    package: str
    """The package that has the environment, as pip knows it."""
    env: str
    """As `train` takes it: an id, `module:id` or `module:function`."""
    requires: tuple[str, ...] = ()
    """What pip installs; the package itself if nothing is named."""
    alone: tuple[str, ...] = ()
    """What pip installs without dependencies."""
    older: bool = False
    """Whether it needs the older versions."""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of `train`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `PPOConfig`; short rollouts if steps are slow."""
    note: str = ""
    """What a user must know, for the page."""

    @property
    def name(self) -> str:
        """The package and the environment."""
        return f"{self.package} {self.env}"


SHORT = {"num_steps": 64}
"""For environments of slow steps."""
LIMIT = {"max_episode_steps": 200}
"""For environments of long or endless episodes."""
OLD: dict[str, Any] = {"older": True}

WORLDS: tuple[World, ...] = (
    World("gymnasium", "CartPole-v1"),
    World("Box2D", "LunarLander-v3", ("gymnasium[box2d]",)),
    World("mujoco", "Hopper-v5", ("gymnasium[mujoco]",), env_kwargs=LIMIT),
    World("ale-py", "ALE/Pong-v5", config=SHORT),
    World("MinAtar", "MinAtar/Breakout-v1", env_kwargs=LIMIT),
    World("minigrid", "MiniGrid-Empty-5x5-v0"),
    World("envpool", "envpool/CartPole-v1"),
    World("mpe2", "mpe2.simple_spread_v3:parallel_env"),
    World(
        "pettingzoo", "pettingzoo.classic.connect_four_v3:env", ("pettingzoo[classic]",),
        options={"action_masks": True},
    ),
    World("highway-env", "highway_env:highway-fast-v0", config=SHORT),
    World("flappy-bird-gymnasium", "flappy_bird_gymnasium:FlappyBird-v0", env_kwargs={**LIMIT, "use_lidar": False}),
    World("crafter", "crafter:Env", config=SHORT, env_kwargs={"length": 200}),
    World("rware", "rware:rware-tiny-2ag-v2", env_kwargs={"max_steps": 100}),
    World("lbforaging", "lbforaging:Foraging-8x8-2p-1f-v3"),
    World("gym-electric-motor", "gym_electric_motor:Cont-CC-PermExDc-v0", env_kwargs=LIMIT),
    World("mo-gymnasium", "mo_gymnasium:minecart-v0", env_kwargs=LIMIT, options={"reward_weights": (1.0, 1.0, 0.1)}),
    World(
        "dm-control", "shimmy:dm_control/ball_in_cup-catch-v0", ("shimmy[dm-control]", "packaging"), env_kwargs=LIMIT,
        **OLD,
    ),
    World("gymnasium-robotics", "gymnasium_robotics:PointMaze_UMazeDense-v3"),
    World("gymnasium-robotics", "gymnasium_robotics:FetchReachDense-v4", config=SHORT, **OLD),
    World(
        "metaworld", "metaworld:Meta-World/MT1", ("pyyaml", "scipy"), ("metaworld",), config=SHORT,
        env_kwargs={"env_name": "reach-v3"}, **OLD,
    ),
    World("JSSEnv", "JSSEnv:jss-v1", config=SHORT, options={"action_masks": True}),
    World("econgym", "econgym:FirstPriceAuctionEnv", env_kwargs={"n": 2}),
    World("gym-anytrading", "gym_anytrading:forex-v0", env_kwargs=LIMIT),
    World("gym-trading-env", "worlds:trading"),
    World("popgym", "popgym:popgym-RepeatPreviousEasy-v0"),
    World("bluesky-gym", "worlds:descent", config=SHORT, **OLD),
    World("tetris-gymnasium", "tetris_gymnasium.envs.tetris:tetris_gymnasium/Tetris", config=SHORT, env_kwargs=LIMIT),
    World(
        "gymnasium-2048", "gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0", ("pygame",), ("gymnasium-2048",),
        env_kwargs=LIMIT,
    ),
    World("memory-gym", "memory_gym:MortarMayhem-Grid-v0", ("pygame",), ("memory-gym==1.0.2",), config=SHORT),
    World("gym-pusht", "gym_pusht:gym_pusht/PushT-v0", config=SHORT, env_kwargs=LIMIT),
    World(
        "vmas", "vmas:make_env", config=SHORT,
        env_kwargs={
            "scenario": "balance", "num_envs": 1, "wrapper": "gymnasium", "max_steps": 100,
            "terminated_truncated": True,
        },
    ),
    World("vizdoom", "vizdoom.gymnasium_wrapper:VizdoomBasic-v1", config=SHORT),
    World("gym-invmgmt", "gym_invmgmt:GymInvMgmt/Serial-v0"),
    World("gym-classics2", "worlds:classics"),
    World("ap-gym", "ap_gym:CircleSquare-v0", config=SHORT),
    World("bsuite", "worlds:catch"),
    World("gym-super-mario-bros", "worlds:mario", config=SHORT),
    World("multigrid", "multigrid.envs:MultiGrid-Empty-5x5-v0"),
    World("gym-multigrid", "gym_multigrid:multigrid-collect-single-v0", config=SHORT),
    World("slimevolleygym", "slimevolleygym:SlimeVolleyEnv", config=SHORT),
    World("panda-gym", "panda_gym:PandaReachDense-v3", config=SHORT, **OLD),
    World("pybullet-envs-gymnasium", "pybullet_envs_gymnasium:HopperBulletEnv-v0", env_kwargs=LIMIT, **OLD),
    World(
        "PyFlyt", "PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v4", ("pettingzoo", "numba", "scipy", "pybullet", "pyyaml"),
        ("PyFlyt",), config=SHORT, env_kwargs=LIMIT, **OLD,
    ),
    World(
        "myosuite", "myosuite:myoElbowPose1D6MRandom-v0",
        (
            "mujoco", "click", "imageio", "termcolor", "flatten_dict", "h5py", "scipy", "pandas", "osqp",
            "colorednoise", "ml-collections", "onnxruntime", "scikit-learn", "joblib", "matplotlib",
        ),
        ("myosuite", "myo-sim"), config=SHORT, **OLD,
    ),
    World(
        "safety-gymnasium", "worlds:safety", ("gymnasium-robotics", "xmltodict", "pyyaml", "imageio", "pygame"),
        ("safety-gymnasium",), config=SHORT, **OLD,
    ),
)  # fmt: skip


def trading() -> Any:
    """gym-trading-env takes prices, and has none of its own."""
    import gym_trading_env  # noqa: F401 - registers it
    import gymnasium as gym
    import numpy as np
    import pandas

    random = np.random.default_rng(0)
    close = 100 * np.exp(np.cumsum(random.normal(0, 0.01, 500)))
    prices = pandas.DataFrame({"open": close, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": 1.0})
    prices.index = pandas.date_range("2024-01-01", periods=len(prices), freq="h")
    prices["feature_return"] = prices["close"].pct_change().fillna(0.0)
    return gym.make("TradingEnv", df=prices, positions=[-1, 0, 1], verbose=0, max_episode_duration=100)


def descent() -> Any:
    """bluesky-gym registers its environments if it is asked to."""
    import bluesky_gym
    import gymnasium as gym

    bluesky_gym.register_envs()
    return gym.make("DescentEnv-v0", max_episode_steps=200)


def classics() -> Any:
    """A grid of gym-classics2."""
    import gym_classics2
    import gymnasium as gym

    gym_classics2.register("gymnasium")
    return gym.make("ClassicGridworld-v1", max_episode_steps=100)


def catch() -> Any:
    """Bsuite's catch, through its own adapter to gym."""
    import bsuite
    from bsuite.utils.gym_wrapper import GymFromDMEnv

    return GymFromDMEnv(bsuite.load_from_id("catch/0"))


def mario() -> Any:
    """Super Mario Bros. with few buttons, limited to 200 steps."""
    import gym_super_mario_bros
    from gym_super_mario_bros.actions import RIGHT_ONLY
    from gymnasium.wrappers import TimeLimit
    from nes_py.wrappers import JoypadSpace

    return TimeLimit(JoypadSpace(gym_super_mario_bros.make("SuperMarioBros-v0"), RIGHT_ONLY), 200)


def safety() -> Any:
    """safety-gymnasium, whose `step` returns a cost beside the reward, as a gymnasium environment."""
    import safety_gymnasium

    return safety_gymnasium.wrappers.SafetyGymnasium2Gymnasium(safety_gymnasium.make("SafetyPointGoal1-v0"))


class Trial:
    """What an environment goes through, in processes of its own.

    Args:
        world: the environment.
        folder: the folder of its runs, and of what one step leaves for another.
    """

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self._where: dict[str, Any] = {"env_kwargs": dict(world.env_kwargs) or None}

    def check(self) -> str:
        """`hybridppo check`."""
        import hybridppo

        weights = self.world.options.get("reward_weights", ())
        report = hybridppo.check_env(self.world.env, steps=500, seconds=10, reward_weights=weights, **self._where)
        logging.getLogger("hybridppo").info("%s", report)
        if not report.is_usable:
            raise ValueError(str(report))
        count = sum(finding.severity == "warning" for finding in report.findings)
        return "yes" + (f", {count} warning{'s' * (count > 1)}" if count else "")

    def train(self) -> str:
        """Two iterations with the defaults."""
        self._train("run")
        return "yes"

    def evaluate(self) -> str:
        """Whole episodes of the loaded agent, one by one."""
        import hybridppo

        found = [hybridppo.evaluate(self.folder / "run", episodes=1, seed=seed, progress=False) for seed in EPISODES]
        self._keep("returns", [list(each.returns) for each in found])
        return "yes"

    def plain_loop(self) -> str:
        """The same episodes in a loop as users write it.

        Raises:
            ValueError: if it finds other returns, although each of the two finds the same again.
        """
        returns, found = self._kept("returns"), [self._played(seed) for seed in EPISODES]
        if are_close(returns, found):
            return "same returns"
        self.evaluate()
        if not are_close(returns, self._kept("returns")) or not are_close(found, map(self._played, EPISODES)):
            return "never the same"
        raise ValueError(f"evaluate found the returns {returns}, and a loop {found}")

    def seed(self) -> str:
        """Whether the same seed gives the same training; the first one was under `auto`.

        Raises:
            ValueError: if only that one differs.
        """
        whole = self._train("whole", **IN_PROCESS)
        if whole == self._kept("run"):
            return "same bits"
        if whole == self._train("again", **IN_PROCESS):
            raise ValueError("the placement auto gave other bits than cpu")
        return "other bits"

    def workers(self) -> str:
        """The training by two processes."""
        digest = self._train("workers", placement="cpu", num_workers=2)
        return "same bits" if digest == self._kept("whole") else "other bits"

    def half(self) -> str:
        """A training that stops after one iteration."""
        self._train("half", iterations=1, **IN_PROCESS)
        return "yes"

    def resume(self) -> str:
        """The second iteration, in another process.

        Raises:
            ValueError: if the result differs, and nothing says why.
        """
        import hybridppo

        with said() as lines:
            result = hybridppo.resume(self.folder / "half", progress=False, callbacks=[stopping_after(2)])
        if digest_of(result) == self._kept("whole"):
            return "exactly"
        if any("new episodes" in line for line in lines):
            return "new episodes"
        if self._kept("whole") == self._train("repeated", **IN_PROCESS):
            raise ValueError("the resumed training ends otherwise than one without a stop, and no line says so")
        return "other bits"

    def _train(self, name: str, *, iterations: int = 2, **options: Any) -> str:
        """Train into a folder of this name; the digest of the agents, which is kept under that name."""
        import hybridppo

        config = hybridppo.PPOConfig(**self.world.config)
        how: dict[str, Any] = {"total_steps": 100_000, "seed": 1, "progress": False, "config": config}
        how |= {"run_dir": self.folder / name, "callbacks": [stopping_after(iterations)], **self._where}
        return self._keep(name, digest_of(hybridppo.train(self.world.env, **how, **self.world.options, **options)))

    def _played(self, seed: int) -> list[float]:
        """The returns of an episode in a loop: of each agent, if there are several."""
        import hybridppo
        from hybridppo.system.seeds import seed_of

        env: Any = hybridppo.make_env(self.world.env, **self.world.env_kwargs)
        agent: Any = hybridppo.load(self.folder / "run")
        own = seed_of(seed, "evaluation")
        with contextlib.closing(env):
            if hasattr(env, "agent_iter"):
                return play_in_turns(env, agent, own)
            if hasattr(env, "possible_agents"):
                return play_together(env, agent, own)
            return [play_alone(env, agent, own, self.world.options)]

    def _keep(self, name: str, value: Any) -> Any:
        (self.folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        return value

    def _kept(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))


COLUMNS = {
    "check": Trial.check, "train": Trial.train, "evaluate": Trial.evaluate, "plain loop": Trial.plain_loop,
    "seed": Trial.seed, "workers": Trial.workers, "half": Trial.half, "resume": Trial.resume,
}  # fmt: skip
"""The steps of a trial, of which all but the half are columns of the table."""
IN_PROCESS: dict[str, Any] = {"placement": "cpu", "num_workers": 0}


def are_close(some: Iterable[Sequence[float]], others: Iterable[Sequence[float]]) -> bool:
    """Whether returns are the same but for the rounding of rewards to float32."""
    pairs = [(list(one), list(other)) for one, other in zip(some, others, strict=True)]
    return all(len(a) == len(b) and all(map(partial(math.isclose, rel_tol=1e-5, abs_tol=1e-4), a, b)) for a, b in pairs)


def play_alone(env: Any, agent: Any, seed: int, options: Mapping[str, Any]) -> float:
    """The return of an episode."""
    import numpy as np

    observation, info = env.reset(seed=seed)
    total, is_over = 0.0, False
    while not is_over:
        is_apart = options.get("action_masks") and not (
            isinstance(observation, Mapping) and "action_mask" in observation
        )
        masks = {"action_mask": info["action_mask"]} if is_apart else {}
        observation, reward, terminated, truncated, info = env.step(agent.act(observation, **masks))
        total += float(np.dot(reward, options.get("reward_weights", 1.0)))
        is_over = terminated or truncated
    return total


def play_together(env: Any, agent: Any, seed: int) -> list[float]:
    """The returns of an episode of PettingZoo's parallel environment, in the order in which agents leave."""
    observations, _ = env.reset(seed=seed)
    totals, left = dict.fromkeys(env.agents, 0.0), list[str]()
    while env.agents:
        acting = list(env.agents)
        observations, rewards, *_ = env.step({name: agent.act(observations[name]) for name in acting})
        for name in acting:
            totals[name] += float(rewards[name])
        left += [name for name in acting if name not in env.agents]
    return [totals[name] for name in left]


def play_in_turns(env: Any, agent: Any, seed: int) -> list[float]:
    """The returns of an episode of PettingZoo's AEC environment, in the order of the agents."""
    env.reset(seed=seed)
    totals = dict.fromkeys(env.possible_agents, 0.0)
    for _ in env.agent_iter():
        observation, *_, terminated, truncated, _ = env.last()
        is_over = terminated or truncated
        env.step(None if is_over else agent.act(observation))
        for each, reward in env.rewards.items():
            totals[each] += float(reward)
    return list(totals.values())


def stopping_after(iterations: int) -> Any:
    """A callback that ends a training."""
    import hybridppo

    class Stop(hybridppo.Callback):
        def on_iteration(self, run: Any, metrics: Any) -> None:
            if run.iteration >= iterations:
                run.stop(f"iteration {iterations} was the last")

    return Stop()


def digest_of(result: Any) -> str:
    """A digest of all that the agents save."""
    parts = hashlib.sha256()
    for agent in result.agents.values():
        for name, tensor in sorted(agent.state()[0].items()):
            parts.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return parts.hexdigest()


@contextlib.contextmanager
def said() -> Iterator[list[str]]:
    """What the library logs within the context."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname.lower()}: {record.getMessage()}")  # type: ignore[method-assign]
    logger = logging.getLogger("hybridppo")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def step_through(world: World, folder: Path, steps: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The findings of steps of a trial, one after the other; a failure of the first two ends it."""
    trial = Trial(world, folder)
    for step in steps:
        yield step, {"begun": True}  # which stays if the process dies
        with said() as lines:
            try:
                found: dict[str, Any] = {"is_good": True, "words": COLUMNS[step](trial)}
            except (Exception, SystemExit) as error:
                found = {"is_good": False, "words": str(error) or type(error).__name__, "trace": traceback.format_exc()}
        yield step, found | {"said": lines}
        if not found["is_good"] and step in ("check", "train", "half"):
            return


def try_all(world: World, folder: Path, python: str, seconds: float) -> dict[str, Any]:
    """Take all steps of a trial, the last in a process of its own; their findings by name."""
    begun = time.monotonic()
    found = try_in_process(world, folder, [*COLUMNS][:-1], python, seconds)
    if found.get("half", {}).get("is_good"):
        found |= try_in_process(world, folder, [*COLUMNS][-1:], python, max(seconds - time.monotonic() + begun, 20))
    return found


def try_in_process(world: World, folder: Path, steps: Sequence[str], python: str, seconds: float) -> dict[str, Any]:
    """Take steps of a trial in a process with this Python; their findings by name."""
    found, log = folder / "found.jsonl", folder / "log.txt"
    found.write_text("", encoding="utf-8")
    command = [python, __file__, "--steps", ",".join(steps), "--folder", str(folder), world.name]
    variables = {"SDL_VIDEODRIVER": "dummy", "MPLBACKEND": "agg", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    ended = f"it took more than {seconds:.0f} s"
    with log.open("w", encoding="utf-8") as file, contextlib.suppress(subprocess.TimeoutExpired):
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, "timeout": seconds}
        done = subprocess.run(command, env={**os.environ, **variables}, check=False, cwd=folder, **how)
        ended = f"its process ended with exit code {done.returncode}"
    lines = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
    begun = {"begun": True}
    if not lines:  # it did not come to the first step
        lines, ended = [(steps[0], begun)], f"{ended}: {log.read_text(encoding='utf-8', errors='replace')[-500:]}"
    return {step: {"is_good": False, "words": ended} if finding == begun else finding for step, finding in lines}


def versions() -> dict[str, str]:
    """The versions of Python and of all that is installed."""
    installed = importlib.metadata.distributions()
    packages = {each.metadata["Name"].lower().replace("_", "-"): each.version for each in installed}
    return {"python": platform.python_version(), **packages}


def main_of_process(name: str, folder: Path, steps: Sequence[str]) -> None:
    """Take steps of a trial, and write each finding as soon as it is there."""
    world = next(each for each in WORLDS if each.name == name)
    with (folder / "found.jsonl").open("a", encoding="utf-8") as file:
        for finding in step_through(world, folder, steps):
            file.write(json.dumps(finding) + "\n")
            file.flush()


def venv_of(world: World, venvs: Path) -> Path:
    """The virtual environment of a world."""
    return venvs / ("older" if world.older else "newest")


def install(world: World, venvs: Path) -> str | None:
    """Install what a world needs; why that is impossible, or None."""
    venv = venv_of(world, venvs).resolve()
    python, marker = str(venv / "bin" / "python"), venv / "installed.json"
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", "--prefer-binary"]
    limits = venv.parent / f"{venv.name}.txt"
    versions = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not marker.exists():
        venv.parent.mkdir(parents=True, exist_ok=True)
        lines = [*OLDER, *(line for line in versions if line.startswith("torch=="))] if world.older else versions
        limits.write_text("\n".join(lines), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        # torch comes first and by its exact version, so that nothing asks for a build with CUDA on its own.
        for what in (["torch"], ["--editable", str(ROOT)]):
            subprocess.run([*pip, "--constraint", str(limits), *what], check=True)
        marker.write_text("[]", encoding="utf-8")
    there = json.loads(marker.read_text(encoding="utf-8"))
    parts = ["--constraint", str(limits), *(world.requires or (world.package,) * (not world.alone))]
    for what in ([parts] if parts[2:] else []) + ([["--no-deps", *world.alone]] if world.alone else []):
        if what in there:
            continue
        done = subprocess.run([*pip, *what], capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return f"cannot be installed: {' '.join(errors)[:300]}"
        there.append(what)
        marker.write_text(json.dumps(there, indent=1), encoding="utf-8")
    return None


def tried(world: World, venvs: Path) -> dict[str, Any]:
    """Install and try a world; its row."""
    row: dict[str, Any] = {"package": world.package, "env": world.env, "older": world.older}
    row["date"] = time.strftime("%Y-%m-%d")
    if (problem := install(world, venvs)) is not None:
        return row | {"problem": problem}
    python = str(venv_of(world, venvs).resolve() / "bin" / "python")
    listed = subprocess.run([python, __file__, "--versions"], capture_output=True, text=True, check=True).stdout
    versions = json.loads(listed)
    row["versions"] = {name: versions[name] for name in (world.package.lower(), *SHARED) if name in versions}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(try_all(world, Path(folder), python, SECONDS))
    for path, shown in ((folder, "run"), (str(venvs.resolve()), "venvs"), (str(ROOT), "hybridppo")):
        text = text.replace(path, shown)  # paths of this machine say nothing to a reader
    return row | {"found": json.loads(text), "seconds": round(time.monotonic() - begun)}


HEADS = ("package", "environment", "check", "trains", "evaluated", "plain loop", "same seed", "2 workers", "resumed")
IN_TABLE = [name for name in COLUMNS if name != "half"]


def passes(row: Mapping[str, Any]) -> bool:
    """Whether nothing failed."""
    found = row.get("found", {})
    return all(found.get(name, {}).get("is_good", False) for name in COLUMNS)


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, how many packages pass, the versions they share, and what failed."""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    failures: list[str] = []
    for row in rows:
        found, version = row.get("found", {}), row.get("versions", {}).get(row["package"].lower(), "")
        name = f"{row['package']} {version}{' *' * row['older']}"
        cells = [found.get(column, {"is_good": True, "words": ""}) for column in IN_TABLE]
        texts = [cell["words"] if cell["is_good"] else "**no**" for cell in cells]
        lines.append(f"| {' | '.join((name, '`' + row['env'] + '`', *texts))} |")
        if "problem" in row:
            failures.append(f"- {name}: {first_line(row['problem'])}")
        reasons = {column: each["words"] for column, each in found.items() if not each["is_good"]}
        failures += [f"- {name}, {column}: {first_line(words)}" for column, words in reasons.items()]
    packages, dates = {row["package"] for row in rows}, sorted(row["date"] for row in rows)
    bad = {row["package"] for row in rows if not passes(row)}
    lines += [
        "",
        f"{len(packages)} packages, of which {len(packages - bad)} pass every column. Tried until {dates[-1]}.",
    ]
    for is_older, how in ((False, "The newest versions"), (True, "Older versions (`*`)")):
        used = [row["versions"] for row in rows if row["older"] == is_older and "versions" in row]
        names = {name: {each[name] for each in used if name in each} for name in SHARED}
        shared = ", ".join(f"{name} {' or '.join(sorted(those))}" for name, those in names.items() if those)
        lines.append(f"{how}: {shared}.")
    return "\n".join([*lines, *(["", "What failed:", "", *failures] if failures else [])])


def first_line(words: str) -> str:
    """The first line of a message; tracebacks follow it."""
    return words.partition("\n")[0][:300]


def in_page(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page with a new table."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n\n{as_markdown(rows)}\n\n{END}{rest.partition(END)[2]}"


def rows_there() -> dict[str, dict[str, Any]]:
    """The rows that are saved, by the names of their worlds."""
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"] if RESULTS.exists() else []
    return {f"{row['package']} {row['env']}": row for row in runs}


def save(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Save the rows in the order of `WORLDS`, and write the page."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import machine

    ordered = [rows[world.name] for world in WORLDS if world.name in rows]
    machine.save("worlds", {"runs": ordered})
    PAGE.write_text(in_page(PAGE.read_text(encoding="utf-8"), ordered), encoding="utf-8")


def main() -> None:
    """Try worlds, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PACKAGE", help="try these alone, also if they are in the table")
    parser.add_argument("--venvs", type=Path, default=ROOT / "build" / "worlds", help="the folder of the environments")
    parser.add_argument("--table", action="store_true", help="write the page alone")
    # What this file starts itself with, in the virtual environments.
    parser.add_argument("--steps", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--versions", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.versions:
        print(json.dumps(versions()))
        return
    if arguments.steps:
        main_of_process(arguments.names[0], arguments.folder, arguments.steps.split(","))
        return
    if unknown := set(arguments.names) - {world.package for world in WORLDS}:
        parser.error(f"unknown packages {sorted(unknown)}: use {', '.join(dict.fromkeys(w.package for w in WORLDS))}")
    there = rows_there()
    missing = [w for w in WORLDS if (w.package in arguments.names if arguments.names else w.name not in there)]
    if not arguments.table:
        from tqdm import tqdm

        bar = tqdm(missing, unit="environment")
        for world in bar:
            bar.set_description(world.package)
            row = tried(world, arguments.venvs)
            save(rows_there() | {world.name: row})
            bar.write(f"{world.name}: {'passes' if passes(row) else as_markdown([row]).splitlines()[2]}")
    save(rows_there())


if __name__ == "__main__":
    main()
