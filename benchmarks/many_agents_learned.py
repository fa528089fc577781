"""What many agents learn: `simple_spread` with three critics, `simple_tag` with a policy each, and a hidden goal.

    python benchmarks/many_agents_learned.py
    python benchmarks/many_agents_learned.py --tasks "hidden goal" --seeds 3 --jobs 1
    python benchmarks/many_agents_learned.py --speed

- `simple_spread`: three agents share a policy; critics see what their agent does, what all do, or the state.
- `simple_tag`: three taggers and a runner learn, a policy each. Taggers are compared with a chaser that always heads
  for the runner, and runners with ones that move at random.
- hidden goal: an actor with a memory is shown now and then, roughly, where a goal is, and a critic may see the goal
  itself. A run solves it, and ends, when `WINDOW` rollouts in a row have a mean return of at least `SOLVED`.

The first two learn in `particles.py`, whose transitions are MPE2's, and are evaluated in MPE2's own. Each run is saved
as soon as it has ended, and is not repeated. Tables have the interquartile mean over seeds and a bootstrap interval.
`--speed` trains in MPE2's own `simple_spread` with each critic by turns, and writes `critic_observes_speed.json`.
"""

import subprocess
import time
from functools import partial
from typing import Any

import gymnasium as gym
import machine
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from missing_runs import Run, parser_of, run_missing
from numpy.typing import NDArray
from turns import in_words, ratios

import hybridppo
from hybridppo import PPO, PPOConfig
from hybridppo.tools.curves import bootstrap_interval, interquartile_mean

Array = NDArray[Any]
WINDOW, SOLVED = 4, 7.0
EPISODES = 200
NEAR = 0.25


class HiddenGoal(gym.Env[Any, Any]):
    """A walk in a square, with a reward of 1 for each step that ends near a goal, which only `goal` shows.

    `policy` has the place and, in some steps, the direction of the goal with noise; in the other steps zeros.
    """

    def __init__(self, steps: int = 40, hints: float = 0.07, noise: float = 0.5, stride: float = 0.1) -> None:
        self._steps, self._hints, self._noise, self._stride = steps, hints, noise, stride
        self.observation_space = Dict({"policy": Box(-np.inf, np.inf, (5,)), "goal": Box(-1.0, 1.0, (2,))})
        self.action_space = Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start in the middle."""
        super().reset(seed=seed)
        self._place, self._goal, self._time = np.zeros(2), self.np_random.uniform(-1.0, 1.0, 2), 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        """Stay, or move along an axis."""
        self._place = np.clip(self._place + MOVES[action] * self._stride, -1.0, 1.0)
        self._time += 1
        reward = float(np.linalg.norm(self._goal - self._place) < NEAR)
        return self._observation(), reward, False, self._time >= self._steps, {}

    def _observation(self) -> dict[str, Array]:
        hint = np.zeros(3)
        if self.np_random.random() < self._hints:
            x, y = self._goal - self._place
            angle = np.arctan2(y, x) + self._noise * self.np_random.standard_normal()
            hint[:] = np.cos(angle), np.sin(angle), 1.0
        own = np.concatenate([self._place, hint]).astype(np.float32)
        return {"policy": own, "goal": self._goal.astype(np.float32)}


MOVES = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])

SPREAD: dict[str, Any] = {
    "num_envs": 16, "num_steps": 50, "num_epochs": 5, "num_minibatches": 4, "learning_rate": 7e-4,
    "anneal_learning_rate": True, "gamma": 0.95, "entropy_coef": 0.01,
}  # fmt: skip
"""After Yu et al., 2022: a shared policy, few large minibatches, an entropy coefficient of 0.01, normalized rewards. A
rollout is two episodes of each environment."""
TAG: dict[str, Any] = {**SPREAD, "num_envs": 32, "num_steps": 50}
HIDDEN: dict[str, Any] = {
    "num_envs": 16, "num_steps": 80, "learning_rate": 1e-3, "recurrent": "gru", "sequence_length": 40, "num_epochs": 4,
    "num_minibatches": 4, "gamma": 0.98, "gae_lambda": 0.8, "entropy_coef": 0.01, "hidden_sizes": (64,),
    "actor_keys": ("policy",),
}  # fmt: skip
STEPS = {"simple_spread": 2_000_000, "simple_tag": 2_000_000, "hidden goal": 200_000}
VARIANTS: dict[str, tuple[str, ...]] = {
    "simple_spread": ("own", "all", "state"),
    "simple_tag": ("a policy each",),
    "hidden goal": ("the critic sees the goal", "the critic sees no goal"),
}


class Curve(hybridppo.Callback):
    """The mean return of each rollout; ends the training if the mean of `WINDOW` of them is at least `ends_at`."""

    def __init__(self, ends_at: float | None) -> None:
        self.points: list[tuple[int, float]] = []
        self.is_solved, self._ends_at = False, ends_at

    def on_iteration(self, run: Any, metrics: Any) -> None:  # noqa: D102 - as in the base
        self.points.append((metrics["env_steps"], metrics["episode_return_mean"]))
        last = [value for _, value in self.points[-WINDOW:]]
        if self._ends_at is not None and len(last) == WINDOW and np.mean(last) >= self._ends_at:
            self.is_solved = True
            run.stop(f"the mean return of {WINDOW} rollouts is {np.mean(last):.1f}")

    def thinned(self, count: int) -> list[list[float]]:
        """The curve as about `count` points, each the mean of a part of the training."""
        size = max(1, len(self.points) // count)
        parts = [self.points[at : at + size] for at in range(0, len(self.points), size)]
        return [[part[-1][0], round(float(np.mean([value for _, value in part])), 2)] for part in parts]


def train(run: Run) -> Run:
    """One training, and its results."""
    from particles import Particles  # needs Numba

    task, variant, seed = run["task"], run["variant"], run["seed"]
    config: Any
    if task == "simple_spread":
        env, config = partial(Particles, "spread"), PPOConfig(**SPREAD, critic_observes=variant)
    elif task == "simple_tag":
        env = partial(Particles, "tag")
        config = {"adversary": PPOConfig(**TAG), "agent": PPOConfig(**TAG)}
    else:
        env = HiddenGoal
        config = PPOConfig(
            **HIDDEN, critic_keys=("policy", "goal") if variant.endswith("sees the goal") else ("policy",)
        )
    curve = Curve(ends_at=SOLVED if task == "hidden goal" else None)
    start, start_of_work = time.perf_counter(), time.process_time()
    result: Any = hybridppo.train(
        env, total_steps=run["total_steps"], seed=seed, config=config, placement="cpu", progress=False,
        callbacks=[curve],
    )  # fmt: skip
    seconds = {"seconds": time.perf_counter() - start, "seconds_of_work": time.process_time() - start_of_work}
    configs = {name: of.to_json() for name, of in config.items()} if isinstance(config, dict) else config.to_json()
    about = {**run, **seconds, "commit": _commit(), "config": configs}
    if task == "simple_spread":
        return {**about, **_evaluated_spread(result.agent), "curve": curve.thinned(40)}
    if task == "simple_tag":
        return {**about, "returns": _evaluated_tag(result.agents, config)}
    solved_after = curve.points[-1][0] if curve.is_solved else None
    return {**about, "solved_after": solved_after, "curve": curve.thinned(len(curve.points))}


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _evaluated_spread(agent: PPO) -> dict[str, float]:
    from mpe2 import simple_spread_v3

    found = {}
    for name, deterministic in (("most probable", True), ("sampled", False)):
        evaluation = hybridppo.evaluate_agent(
            agent, simple_spread_v3.parallel_env, episodes=EPISODES, seed=10_000, deterministic=deterministic,
            progress=False,
        )  # fmt: skip
        found[name] = evaluation.return_mean
    return found


def _evaluated_tag(agents: dict[str, PPO], configs: dict[str, PPOConfig]) -> dict[str, dict[str, float]]:
    """Mean returns in MPE2's own game, 10 for each touch: the taggers' against each runner, and the runner's."""
    from mpe2 import simple_tag_v3

    taggers: dict[str, Any] = {"trained": agents["adversary"], "chasing": chaser, "at random": at_random}
    runners: dict[str, Any] = {"trained": agents["agent"], "at random": at_random}
    found = {}
    for of, runner in runners.items():
        for name, tagger in taggers.items():
            both = hybridppo.evaluate_policies(
                {"adversary": tagger, "agent": runner}, simple_tag_v3.parallel_env, episodes=EPISODES, seed=10_000
            )
            means = {kind: float(np.mean(each.returns)) for kind, each in both.items()}
            found[f"{name} taggers, {of} runner"] = {"taggers": means["adversary"], "runner": means["agent"]}
    return found


def chaser(observations: Array) -> Array:
    """The outputs of a tagger that heads for the runner, along the axis on which it is farther away."""
    away = observations[:, 12:14] - 0.3 * observations[:, :2]  # where the runner is, without what one's speed covers
    along = np.abs(away).argmax(1)
    is_positive = away[np.arange(len(away)), along] > 0
    outputs = np.zeros((len(away), 5), np.float32)
    outputs[np.arange(len(away)), 1 + 2 * along + is_positive] = 1e6
    return outputs


def at_random(observations: Array) -> Array:
    """The outputs of an actor whose actions are all equally probable."""
    return np.zeros((len(observations), 5), np.float32)


def _middle(values: list[float]) -> str:
    low, high = bootstrap_interval(np.array(values))
    return f"{interquartile_mean(np.array(values)):,.1f} ({low:,.1f} to {high:,.1f}; {len(values)})"


def as_markdown(runs: list[Run]) -> str:
    """A table for each task."""
    lines = []
    for task, steps in sorted({(run["task"], run["total_steps"]) for run in runs}):
        alike = [run for run in runs if (run["task"], run["total_steps"]) == (task, steps)]
        of_task = {variant: [run for run in alike if run["variant"] == variant] for variant in VARIANTS[task]}
        of_task = {variant: found for variant, found in of_task.items() if found}
        lines += [f"### {task}, {steps:,} steps", ""]
        if task == "simple_spread":
            lines += ["| critics see | most probable actions | sampled actions |", "|---|---|---|"]
            lines += [
                f"| {variant} | {_middle([run['most probable'] for run in found])} | "
                f"{_middle([run['sampled'] for run in found])} |"
                for variant, found in of_task.items()
            ]
        elif task == "simple_tag":
            found = of_task["a policy each"]
            lines += ["| | return of a tagger | of the runner |", "|---|---|---|"]
            lines += [
                f"| {name} | {_middle([run['returns'][name]['taggers'] for run in found])} | "
                f"{_middle([run['returns'][name]['runner'] for run in found])} |"
                for name in found[0]["returns"]
            ]
        else:
            lines += ["| | steps until solved | by seed |", "|---|---|---|"]
            for variant, found in of_task.items():
                needed = [run["solved_after"] or run["total_steps"] for run in found]
                lines.append(f"| {variant} | {_middle(needed)} | {', '.join(f'{each:,}' for each in needed)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def speed(rounds: int = 3, total_steps: int = 9_600) -> None:
    """Steps per second for each critic, by turns in this process; the first iteration does not count."""
    from mpe2 import simple_spread_v3

    turns: list[dict[str, dict[str, float]]] = []
    for number in range(rounds):
        found = {}
        variants = VARIANTS["simple_spread"]
        for variant in variants if number % 2 == 0 else reversed(variants):
            marks: list[tuple[float, float, int]] = []
            hybridppo.train(
                simple_spread_v3.parallel_env, total_steps=total_steps, seed=0, placement="cpu", progress=False,
                config=PPOConfig(**SPREAD, critic_observes=variant),  # type: ignore[arg-type]
                on_iteration=lambda metrics, marks=marks: marks.append(
                    (time.perf_counter(), time.process_time(), metrics["env_steps"])
                ),
            )  # fmt: skip
            (wall, work, first), (wall_end, work_end, last) = marks[0], marks[-1]
            steps = last - first
            found[variant] = {"steps_per_second": steps / (wall_end - wall), "of_work": steps / (work_end - work)}
        turns.append(found)
    summary = {
        variant: {key: ratios(turns, variant, "own", key) for key in ("steps_per_second", "of_work")}
        for variant in VARIANTS["simple_spread"][1:]
    }
    for variant, of in summary.items():
        print(f"{variant}: {in_words(of['steps_per_second'])} times own's speed, {in_words(of['of_work'])} by work")
    machine.save("critic_observes_speed", {"commit": _commit(), "summary": summary, "rounds": turns})


def main() -> None:
    """Train what is missing, and print the tables; or measure speeds."""
    parser = parser_of(__doc__, "many_agents_learned")
    parser.add_argument("--tasks", default=",".join(STEPS))
    parser.add_argument("--steps", type=int, help="of each run (default: the task's own number)")
    parser.add_argument("--speed", action="store_true", help="measure only speeds")
    arguments = parser.parse_args()
    if arguments.speed:
        speed()
        return
    wanted = [
        {"task": task, "variant": variant, "seed": seed, "total_steps": arguments.steps or STEPS[task]}
        for task in arguments.tasks.split(",")
        for seed in range(arguments.seeds)
        for variant in VARIANTS[task]
    ]
    names = ("task", "variant", "seed", "total_steps")
    print(as_markdown(run_missing(__file__, arguments, lambda **one: [train(one)], wanted, names)))


if __name__ == "__main__":
    main()
