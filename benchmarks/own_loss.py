"""How fast a loss of one's own learns, beside the library's: a copy of `ppo_loss`, with the default hyperparameters.

    python benchmarks/own_loss.py
    python benchmarks/own_loss.py --rounds 5 --envs CartPole-v1

The agents update by turns in one process, from the same rollout, and an iteration is that update and the sampling of
the rollout. `cpu` figures are of the process's own time, which other work on the machine changes less.
"""

import argparse
import statistics
import time
from typing import Any

import machine

import hybridppo
from hybridppo import PPO, PPOConfig
from hybridppo.agents.ppo.loss import Loss, LossInputs, policy_loss, value_loss
from hybridppo.system.threads import limit_threads


def copied(inputs: LossInputs, config: PPOConfig, clip_range: Any) -> Loss:
    """The text of `ppo_loss` without value clipping."""
    policy = policy_loss(log_ratio=inputs.log_ratio, advantages=inputs.advantages, clip_range=clip_range)
    value = value_loss(values=inputs.values, returns=inputs.returns)
    entropy = inputs.entropy.mean()
    return Loss(policy - config.entropy_coef * entropy + config.value_coef * value, policy, value, entropy)


FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "own loss": {"loss": copied},
    "own loss, fast_updates=False": {"loss": copied, "config": PPOConfig(fast_updates=False)},
}


def measure(env: str, rounds: int) -> dict[str, Any]:
    """Seconds of each update, by wall clock and of the process, and of the sampling of one rollout."""
    rollouts: list[Any] = []
    seconds: list[float] = []

    class Keeping(PPO):
        def update(self, rollout: Any) -> Any:
            rollouts.append(rollout.copy())
            return super().update(rollout)

    config = PPOConfig()
    steps = 4 * config.num_envs * config.num_steps
    options: dict[str, Any] = {"placement": "cpu", "seed": 0, "progress": False}
    result = hybridppo.train(
        env, total_steps=steps, agent=Keeping, on_iteration=lambda m: seconds.append(m["seconds_sampling"]), **options
    )
    spaces = result.agent.observation_space, result.agent.action_space
    agents = {name: PPO(*spaces, **form) for name, form in FORMS.items()}
    wall: dict[str, list[float]] = {name: [] for name in agents}
    cpu: dict[str, list[float]] = {name: [] for name in agents}
    with limit_threads(1):
        for number in range(rounds + 1):
            for name in agents if number % 2 else reversed(agents):
                agents[name].version = rollouts[-1].version
                start, start_cpu = time.perf_counter(), time.process_time()
                agents[name].update(rollouts[-1])
                if number:  # the first one makes backends
                    wall[name].append(time.perf_counter() - start)
                    cpu[name].append(time.process_time() - start_cpu)
    return {"sampling": min(seconds), "wall": wall, "cpu": cpu}


def rows(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The speed of each form, as a share of the default's: medians over the rounds, and of whole iterations."""
    table = {}
    for name in FORMS:
        shares = {
            kind: statistics.median(a / b for a, b in zip(found[kind]["default"], found[kind][name], strict=True))
            for kind in ("wall", "cpu")
        }
        of_iterations = [found["sampling"] + min(found["wall"][each]) for each in ("default", name)]
        shares |= {"iteration": of_iterations[0] / of_iterations[1], "ms": 1e3 * min(found["wall"][name])}
        table[name] = shares
    return table


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = [
        "| environment | loss | ms of an update, least | speed of updates (of the process) | speed of iterations |",
        "|---|---|---:|---:|---:|",
    ]
    for env, found in result["envs"].items():
        lines += [
            f"| {env} | {name} | {row['ms']:.1f} | {row['wall']:.2f} ({row['cpu']:.2f}) | {row['iteration']:.2f} |"
            for name, row in rows(found).items()
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", default="CartPole-v1,Pendulum-v1", help="environments (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="updates of each form (default %(default)s)")
    parser.add_argument("--name", default="own_loss", help="name of the file (default %(default)s)")
    arguments = parser.parse_args()
    envs = {env: measure(env, arguments.rounds) for env in arguments.envs.split(",")}
    payload = {"arguments": vars(arguments), "envs": envs}
    machine.report(arguments.name, payload, as_markdown(payload))


if __name__ == "__main__":
    main()
