"""Taggers trained against runners that learn too: how many runners they catch, beside a scripted chaser.

    python benchmarks/tag_learned.py
    python benchmarks/tag_learned.py --seeds 1,2 --total-steps 400000 --threads 2

Each kind has a policy of its own. The catch rate is the share of runners that are tagged before an episode ends, over
new episodes, with actions drawn at random as in training. Taggers are compared in the same environment,
against the same trained runners: before training, after it, with their most probable actions, and the chaser, which
always heads for the nearest runner that it sees, as fast as it can. All see the others from their own heading
(`egocentric`).
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from settings import cleanrl

import hybridppo
from hybridppo import PPO

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from tagging import tag

LEVELS = 21
OWN, OTHER = 7, 6
"""Numbers of an observation, as `examples/tagging.py` has them."""


def chaser(observations: Any) -> Any:
    """The outputs of an actor that heads for the nearest runner: one logit of each choice is far above the others."""
    others = observations[:, OWN:].reshape(len(observations), -1, OTHER)
    is_runner = (others[..., 5] > 0) & (others[..., 4] == 0)
    sees_one = is_runner.any(1)
    nearest = others[np.arange(len(others)), is_runner.argmax(1)]  # the first is the nearest
    turn = np.where(sees_one, np.arctan2(nearest[:, 1], nearest[:, 0]), 0.0)
    level = np.clip(np.rint(turn / (np.pi / 4) * (LEVELS // 2)), -(LEVELS // 2), LEVELS // 2) + LEVELS // 2
    outputs = np.zeros((len(observations), 2 * LEVELS), np.float32)
    outputs[:, LEVELS - 1] = 1e6
    outputs[np.arange(len(outputs)), LEVELS + level.astype(np.int64)] = 1e6
    return outputs


def surest(agent: PPO) -> Any:
    """An agent's actor, with outputs so far apart that the most probable action is as good as certain."""

    def outputs(observations: Any) -> Any:
        with torch.no_grad():
            return 1e6 * agent.actor_network(torch.from_numpy(np.ascontiguousarray(observations))).numpy()

    return outputs


def catch_rate(taggers: Any, runners: Any, game: Any, episodes: int) -> float:
    """The share of runners that are tagged."""
    found = hybridppo.evaluate_policies({"tagger": taggers, "runner": runners}, game, episodes=episodes, seed=1)
    return float(np.mean(np.array(found["runner"].returns) < 0))


def train(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train both kinds from one seed, and compare."""
    game = tag(
        taggers=arguments.taggers,
        runners=arguments.runners,
        episode_length=arguments.episode_length,
        runner_speed=arguments.runner_speed,
        egocentric=True,
    )
    shared: dict[str, Any] = {
        "num_envs": arguments.num_envs,
        "num_steps": arguments.num_steps,
        "compiled_updates": True,
        "torch_threads": arguments.threads,
        "anneal_learning_rate": True,
    }
    # Ten times as many runners give ten times as many rows, so one epoch is enough.
    configs = {
        "tagger": cleanrl(
            **shared, hidden_sizes=(128, 128), num_epochs=8, num_minibatches=8, learning_rate=2e-3, gamma=0.95,
            entropy_coef=0.0,
        ),
        "runner": cleanrl(
            **shared, hidden_sizes=(64, 64), num_epochs=1, num_minibatches=32, learning_rate=1e-3, gamma=0.97,
            entropy_coef=0.003,
        ),
    }  # fmt: skip
    start = time.perf_counter()
    result: Any = hybridppo.train(
        game, config=configs, total_steps=arguments.total_steps, seed=seed, env_threads=arguments.threads
    )
    seconds = time.perf_counter() - start
    spaces = game.observation_space, game.action_space
    before = {kind: PPO(*spaces, config, seed=seed) for kind, config in configs.items()}
    runners = result.agents["runner"]
    rates = {
        f"{name} taggers, {of} runners": catch_rate(taggers, against, game, arguments.episodes)
        for of, against in (("untrained", before["runner"]), ("trained", runners))
        for name, taggers in (
            ("untrained", before["tagger"]),
            ("trained", result.agents["tagger"]),
            ("most probable", surest(result.agents["tagger"])),
            ("chasing", chaser),
        )
    }
    return {"seed": seed, "seconds": seconds, "agent_steps": result.metrics["agent_steps"], "catch_rates": rates}


def as_markdown(seeds: list[dict[str, Any]]) -> str:
    """A row for each pair of policies, a column for each seed."""
    lines = ["| taggers, runners | " + " | ".join(f"seed {each['seed']}" for each in seeds) + " |"]
    lines.append("|---|" + "---:|" * len(seeds))
    lines += [
        f"| {name} | " + " | ".join(f"{each['catch_rates'][name]:.1%}" for each in seeds) + " |"
        for name in seeds[0]["catch_rates"]
    ]
    lines.append("| seconds of training | " + " | ".join(f"{each['seconds']:.0f}" for each in seeds) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train, print and save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", help="seeds of an existing file are kept (default %(default)s)")
    parser.add_argument("--total-steps", type=int, default=500_000, help="of environments (default %(default)s)")
    parser.add_argument("--num-envs", type=int, default=16, help="(default %(default)s)")
    parser.add_argument("--num-steps", type=int, default=64, help="of a rollout (default %(default)s)")
    parser.add_argument("--taggers", type=int, default=10, help="(default %(default)s)")
    parser.add_argument("--runners", type=int, default=100, help="(default %(default)s)")
    parser.add_argument("--episode-length", type=int, default=100, help="(default %(default)s)")
    parser.add_argument("--runner-speed", type=float, default=0.014, help="taggers have 0.012 (default %(default)s)")
    parser.add_argument("--episodes", type=int, default=100, help="of an evaluation (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads that step environments (default %(default)s)")
    parser.add_argument("--no-file", action="store_true", help="write no result file")
    arguments = parser.parse_args()
    asked = {name: value for name, value in vars(arguments).items() if name not in ("seeds", "no_file")}
    path = machine.RESULTS / "tag_learned.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"arguments": asked, "seeds": []}
    kept = {each["seed"]: each for each in before["seeds"]} if before["arguments"] == asked else {}
    for seed in map(int, arguments.seeds.split(",")):
        kept[seed] = train(seed, arguments)
        seeds = [kept[number] for number in sorted(kept)]
        payload = {"arguments": asked, "seeds": seeds}
        machine.report("tag_learned", payload, as_markdown(seeds), keeps=not arguments.no_file)


if __name__ == "__main__":
    main()
