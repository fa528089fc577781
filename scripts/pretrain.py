"""Train the agents of `hybridppo.pretrained`: one, several, or all that are missing.

    python scripts/pretrain.py CartPole-v1
    python scripts/pretrain.py
    python scripts/pretrain.py --check      # every agent over 100 episodes, beside its card

A run has a folder below `--runs`; a stopped run continues. After the run, the agent is evaluated over 100 episodes. Its
file, its card and a picture of an episode are written into `hybridppo/tools/pretrained/`, and the table in
`docs/gallery.md` is written again. This needs the extras of the environments, `plot` for the pictures, and `compiled`.
Without a screen, MuJoCo needs MUJOCO_GL=egl to draw.
"""

import argparse
import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import hybridppo
from hybridppo import PPOConfig, tuned
from hybridppo.agents.registry import AnyConfig, agent_class, replaced
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.run_directory.files import as_json, read_lines
from hybridppo.system.messages import markdown_table, shown_number
from hybridppo.tools.gallery import cards, changed_settings, file_of
from hybridppo.tools.play import filmed, play_episodes

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))  # where `train_in` is

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gallery.md"
EPISODES, POINTS = 100, 40
FRAMES, HEIGHT = 4, 160
MOST_STEPS, IN_VIEW = 240, 30
"""Steps of the episode in the picture, and the fewer steps for MuJoCo, whose cameras do not follow the body."""


@dataclass(frozen=True)
class Asked:
    """The training of an agent."""

    total_steps: int
    config: AnyConfig
    env: str | None = None
    """The environment, if its name is not the agent's."""
    package: str = "gymnasium"
    """The package of the environment; its version is on the card."""
    seed: int = 0
    env_kwargs: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `train`."""
    train_in: str | None = None
    """A faster form of the environment, for the training."""


def ours(**changes: Any) -> PPOConfig:
    """The defaults, with 8 environments and the learning rate annealed."""
    return PPOConfig(**{"num_envs": 8, "num_steps": 256, "anneal_learning_rate": True, **changes})


COMPILED = {"compiled": True}
MUJOCO: dict[str, Any] = {"package": "mujoco"}
GRID: dict[str, Any] = {"package": "minigrid"}
SMALL: dict[str, Any] = {
    "num_steps": 128, "num_minibatches": 8, "num_epochs": 4, "learning_rate": 1e-3, "entropy_coef": 0.01,
}  # fmt: skip
SMALL_IMAGES: dict[str, Any] = {
    "num_steps": 128, "num_minibatches": 4, "num_epochs": 4, "learning_rate": 1e-3, "entropy_coef": 0.01,
    "hidden_sizes": (64,), "shared_trunk": True, "activation": "relu",
}  # fmt: skip
TABLES: dict[str, Any] = {"num_steps": 128, "num_minibatches": 8, "num_epochs": 4, "learning_rate": 1e-3}
"""Settings for environments whose observations are numbers of states."""
MANY: dict[str, Any] = {"num_steps": 512, "num_minibatches": 32}
"""Settings with rollouts of 4,096 steps and minibatches of 128."""
GAME = {"snapshot_every": 8_000, "pool": 30, "latest": 0.5, "opponents": "uniform"}

AGENTS: dict[str, Asked] = {
    "CartPole-v1": Asked(100_000, tuned("CartPole-v1"), options=COMPILED),
    "Pendulum-v1": Asked(100_000, tuned("Pendulum-v1")),
    "FrozenLake-v1": Asked(300_000, ours(**TABLES, gamma=0.999, entropy_coef=0.01)),
    "CliffWalking-v1": Asked(
        200_000,
        ours(**TABLES, gamma=0.98, entropy_coef=0.1, schedules="entropy_coef=linear"),
        env_kwargs={"max_episode_steps": 200},
    ),
    "Blackjack-v1": Asked(300_000, ours(**TABLES, gamma=1.0)),
    "Acrobot-v1": Asked(300_000, ours(**MANY), options=COMPILED),
    "InvertedPendulum-v5": Asked(100_000, ours(), **MUJOCO, options=COMPILED),
    "Taxi-v4": Asked(1_000_000, ours(**{**TABLES, "num_envs": 16}, entropy_coef=0.01), options={"action_masks": True}),
    "MountainCar-v0": Asked(1_000_000, replaced(tuned("MountainCar-v0"), num_steps=64), options=COMPILED),
    "simple_spread_v3": Asked(
        1_000_000,
        PPOConfig(
            num_envs=16, num_steps=50, num_epochs=5, num_minibatches=4, learning_rate=7e-4, anneal_learning_rate=True,
            gamma=0.95, entropy_coef=0.01,
        ),
        env="mpe2.simple_spread_v3:parallel_env",
        package="mpe2",
        train_in="particles:Particles",
        options={"env_kwargs": {"game": "spread"}},
    ),
    "tictactoe_v3": Asked(
        600_000,
        PPOConfig(
            num_envs=16, num_steps=64, num_epochs=8, num_minibatches=16, learning_rate=7e-4, anneal_learning_rate=True,
            normalize_rewards=False, entropy_coef=0.15, schedules="entropy_coef=linear",
        ),
        env="pettingzoo.classic.tictactoe_v3:raw_env",
        package="pettingzoo",
        options={"action_masks": True, "self_play": GAME, "compiled": True},
    ),
    "MiniGrid-Empty-8x8-v0": Asked(80_000, ours(**SMALL), **GRID, options=COMPILED),
    "Reacher-v5": Asked(400_000, ours(**MANY, gamma=0.9), **MUJOCO, options=COMPILED),
    "InvertedDoublePendulum-v5": Asked(300_000, ours(**MANY), **MUJOCO, options=COMPILED),
    "MountainCarContinuous-v0": Asked(100_000, tuned("MountainCarContinuous-v0"), seed=1),
    "MiniGrid-DoorKey-5x5-v0": Asked(200_000, ours(**SMALL), **GRID, options={**COMPILED, "target_return": 0.96}),
    "MiniGrid-LavaGapS5-v0": Asked(200_000, ours(**SMALL), **GRID, options={**COMPILED, "target_return": 0.95}),
    "CliffWalkingSlippery-v1": Asked(
        300_000,
        ours(**TABLES, gamma=0.99, entropy_coef=0.1, schedules="entropy_coef=linear"),
        env_kwargs={"max_episode_steps": 200},
    ),
    "FrozenLake8x8-v1": Asked(400_000, ours(**{**TABLES, "num_envs": 16}, gamma=0.999, entropy_coef=0.01)),
    "MinAtar/Breakout-v1": Asked(500_000, ours(**SMALL_IMAGES), package="minatar"),
    "Swimmer-v5": Asked(500_000, ours(**MANY, gamma=0.9999, gae_lambda=0.98), **MUJOCO, options=COMPILED),
    "Hopper-v5": Asked(1_000_000, ours(**MANY), **MUJOCO, options=COMPILED),
    "LunarLander-v3": Asked(500_000, ours(**MANY, gamma=0.999, gae_lambda=0.98), package="box2d", options=COMPILED),
    "CartPole-without-velocities": Asked(
        100_000,
        ours(
            num_steps=128, num_epochs=8, num_minibatches=8, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9,
            hidden_sizes=(64,), recurrent="lstm",
        ),
        env="hybridppo.tools.gallery:places_alone",
    ),
    "MiniGrid-MemoryS7-v0": Asked(
        1_200_000,
        PPOConfig(
            num_envs=16, num_steps=128, num_minibatches=8, num_epochs=4, learning_rate=1e-3, entropy_coef=0.01,
            hidden_sizes=(32,), recurrent="lstm", recurrent_size=64,
        ),
        **GRID,
        options={"target_return": 0.93},
    ),
    "Pusher-v5": Asked(400_000, ours(**MANY), **MUJOCO, options=COMPILED),
    "LunarLanderContinuous-v3": Asked(
        500_000, ours(**MANY, gamma=0.999, gae_lambda=0.98), package="box2d", options=COMPILED
    ),
    "HalfCheetah-v5": Asked(1_000_000, ours(**MANY), **MUJOCO, options=COMPILED),
    "Walker2d-v5": Asked(1_000_000, ours(**MANY), **MUJOCO, options=COMPILED),
    "Ant-v5": Asked(1_000_000, ours(**MANY), **MUJOCO, options=COMPILED),
    "BipedalWalker-v3": Asked(2_000_000, ours(**MANY, gamma=0.999), package="box2d", options=COMPILED),
}  # fmt: skip
"""The agents, the cheapest first."""


def train(name: str, asked: Asked, run_dir: Path, seed: int) -> None:
    """Train the agent, or continue a stopped run."""
    if (run_dir / "config.json").exists():
        hybridppo.resume(run_dir, total_steps=asked.total_steps, progress=sys.stderr.isatty())
        return
    hybridppo.train(
        asked.train_in or asked.env or name,
        total_steps=asked.total_steps,
        seed=seed,
        config=asked.config,
        run_dir=run_dir,
        placement="cpu",
        checkpoint_seconds=300.0,
        progress=sys.stderr.isatty(),
        **{"env_kwargs": asked.env_kwargs, **asked.options},
    )


def card_of(name: str, asked: Asked, run_dir: Path, seed: int, agent: Any) -> dict[str, Any]:
    """Evaluate an agent, and return its card."""
    env = asked.env or name
    evaluation = hybridppo.evaluate_agent(
        agent, env, episodes=EPISODES, seed=10_000, env_kwargs=asked.env_kwargs, progress=False
    )
    lines = read_lines(run_dir / "metrics.jsonl")
    packages = dict.fromkeys(("hybridppo", "torch", "gymnasium", "numpy", asked.package))
    return {
        "name": name,
        "env": env,
        "env_kwargs": asked.env_kwargs,
        "trained_in": asked.train_in,
        "agent": agent_class(asked.config).name,
        "total_steps": lines[-1]["env_steps"],
        "seed": seed,
        "settings": changed_settings(asked.config),
        "options": asked.options,
        "evaluation": {
            "episodes": EPISODES,
            "seed": 10_000,
            "deterministic": True,
            "return_mean": evaluation.return_mean,
            "return_std": evaluation.return_std,
        },
        "curve": curve_of(lines),
        "versions": {
            **{each: importlib.metadata.version(each) for each in packages},
            "python": platform.python_version(),
        },
        "command": f"python scripts/pretrain.py {name} --seed {seed}",
    }


def curve_of(lines: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """A card's curve, from the lines of a run's metrics: pairs of steps and return."""
    points = [line for line in lines if line["episode_return_mean"] is not None]
    parts = np.array_split(np.arange(len(points)), max(1, min(POINTS, len(points))))
    return [
        [points[part[-1]]["env_steps"], round(float(np.mean([points[at]["episode_return_mean"] for at in part])), 3)]
        for part in parts
        if len(part)
    ]


def draw(name: str, asked: Asked, agent: Any) -> None:
    """Write some moments of an episode, from left to right, into a picture."""
    from PIL import Image

    most = IN_VIEW if asked.package == "mujoco" else MOST_STEPS
    options = EnvironmentOptions(env_kwargs=asked.env_kwargs)
    frames: list[Any] = []
    with contextlib.closing(filmed(asked.env or name, options, "rgb_array")) as film:
        film.on_picture = lambda picture: frames.append(Image.fromarray(np.array(picture)))
        play_episodes(agent, None, film, most, options, episodes=1, seed=10_000, deterministic=True)
    chosen = [frames[at] for at in np.linspace(0, len(frames) - 1, min(FRAMES, len(frames))).round().astype(int)]
    chosen = [frame.resize((max(1, frame.width * HEIGHT // frame.height), HEIGHT)) for frame in chosen]
    strip = Image.new("RGB", (sum(each.width for each in chosen) + 4 * (len(chosen) - 1), HEIGHT), "white")
    left = 0
    for each in chosen:
        strip.paste(each, (left, 0))
        left += each.width + 4
    strip.quantize(64).save(file_of(name, ".png"), optimize=True)


def write(card: dict[str, Any]) -> None:
    """Write a card, with its curve on one line."""
    text = as_json({**card, "curve": "CURVE"}).replace('"CURVE"', as_json(card["curve"], indent=None).rstrip())
    file_of(card["name"], ".json").write_text(text, encoding="utf-8")


def page(text: str) -> str:
    """The page of the gallery with a new table."""
    heads = ("agent", "at work", "return of 100 episodes", "steps")
    rows = []
    for name, card in cards().items():
        mean, deviation = (shown_number(card["evaluation"][key]) for key in ("return_mean", "return_std"))
        picture = os.path.relpath(file_of(name, ".png"), PAGE.parent).replace(os.sep, "/")
        rows.append((f"`{name}`", f"![]({picture})", f"{mean} +- {deviation}", f"{card['total_steps']:,}"))
    start, end = "<!-- agents -->\n", "<!-- end -->"
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{markdown_table(heads, rows)}\n\n{end}{rest.partition(end)[2]}"


def differences() -> dict[str, dict[str, float]]:
    """Print the return of every agent over 100 other episodes, beside that on its card."""
    found = {}
    for name, card in cards().items():
        agent = hybridppo.pretrained(name)
        again = hybridppo.evaluate_agent(
            agent, card["env"], episodes=EPISODES, seed=20_000, env_kwargs=card["env_kwargs"], progress=False
        )
        of_card = card["evaluation"]["return_mean"]
        found[name] = {"return_mean": again.return_mean, "return_std": again.return_std, "of_card": of_card}
        print(f"{name}: {again.return_mean:.2f} +- {again.return_std:.2f}, {of_card:.2f} on its card", flush=True)
    return found


def main() -> int:
    """Train the agents on the command line, or those that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(AGENTS)}; default: all without a card")
    parser.add_argument("--seed", type=int, help="another than the table's")
    parser.add_argument("--runs", type=Path, default=Path("runs/pretrained"), help="the folder of the runs")
    parser.add_argument("--try", action="store_true", dest="tries", help="train and evaluate, and write nothing")
    parser.add_argument("--check", action="store_true", help="evaluate all agents again, and keep what they reach")
    arguments = parser.parse_args()
    if arguments.check:
        sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
        import machine

        print(f"Raw figures: {machine.save('pretrained', {'agents': differences()})}")
        return 0
    if unknown := set(arguments.names) - set(AGENTS):
        parser.error(f"unknown names {sorted(unknown)}: use {', '.join(AGENTS)}")
    for name in arguments.names or [name for name in AGENTS if not file_of(name, ".json").exists()]:
        asked = AGENTS[name]
        seed = asked.seed if arguments.seed is None else arguments.seed
        run_dir = arguments.runs / f"{name.replace('/', '-')}-seed{seed}"
        if not (run_dir / "result.json").exists():
            train(name, asked, run_dir, seed)
        agent = hybridppo.load(run_dir)
        agent.config = replaced(agent.config, compiled_updates=False)  # it is loaded without Numba
        card = card_of(name, asked, run_dir, seed, agent)
        print(f"{name}, seed {seed}: {card['evaluation']['return_mean']:.2f}", flush=True)
        if not arguments.tries:
            agent.save(file_of(name, ".safetensors"))
            draw(name, asked, agent)
            write(card)
            PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
