"""Does it learn as well as stable-baselines3 with the same settings? Both on several seeds.

    python benchmarks/parity.py
    python benchmarks/parity.py --cases Acrobot-v1,MountainCar-v0 --seeds 3
    python benchmarks/parity.py --cases "TD3 HalfCheetah-v5" --contestants stable-baselines3 --jobs 1

A case is an environment with PPO's tuned settings (`hybridppo/tools/tuned.json`), in stable-baselines3 with
`VecNormalize` if they normalize; or DDPG or TD3 on an environment, with layers of 256 and the other settings of
`off_policy_turn.py`. Each run is a process with one thread: the whole training, and then 20 deterministic episodes.
Runs that are already in the results are skipped, so it can be stopped and continued. The table shows, for each case,
the interquartile mean over seeds and its bootstrap interval. Runs are made side by side, so their seconds say little.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import off_policy_turn
from missing_runs import parser_of, run_missing

from hybridppo import PPOConfig
from hybridppo.tools.curves import bootstrap_interval, interquartile_mean
from hybridppo.tools.tuned import tuned_entry

OFF_POLICY = {
    "DDPG Pendulum-v1": ("ddpg", "Pendulum-v1", 30_000, 1_000),
    "TD3 Pendulum-v1": ("td3", "Pendulum-v1", 30_000, 1_000),
    "TD3 HalfCheetah-v5": ("td3", "HalfCheetah-v5", 300_000, 10_000),
}
"""The agent, the environment, the steps, and how many of them take random actions before the first update."""
COMPILED = ("TD3 HalfCheetah-v5",)
"""Cases in which this library's updates are compiled, because a run is long enough."""
CASES = (
    "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "DDPG Pendulum-v1", "TD3 Pendulum-v1",
)  # fmt: skip
"""The default cases: all but `TD3 HalfCheetah-v5`, whose runs take half an hour each."""
CONTESTANTS = ("library", "stable-baselines3")
EVALUATION_EPISODES = 20
NAMES = ("contestant", "case", "seed")


def run(contestant: str, case: str, seed: int) -> list[dict[str, Any]]:
    """Train in this process, and evaluate."""
    start = time.perf_counter()
    if case in OFF_POLICY:
        agent, env_id, total_steps, starts = OFF_POLICY[case]
        words = f"{contestant} --agent {agent} --env {env_id} --steps {total_steps} --learning-starts {starts}"
        words += " --compiled" if case in COMPILED else ""
        turn = off_policy_turn.parse_arguments([*words.split(), "--seed", str(seed), "--hidden-sizes", "256,256"])
        evaluation = off_policy_turn.RUN[contestant](turn)["evaluation"]
    else:
        entry = tuned_entry(case)
        total_steps = entry.total_steps
        train = {"library": ours, "stable-baselines3": theirs}[contestant]
        evaluation = float(np.mean(train(case, entry.config, total_steps, seed)))
    return [{
        "contestant": contestant, "case": case, "total_steps": total_steps, "seed": seed,
        "seconds": time.perf_counter() - start, "evaluation": evaluation,
    }]  # fmt: skip


def ours(env_id: str, config: PPOConfig, total_steps: int, seed: int) -> list[float]:
    """Returns of this library's evaluation."""
    import hybridppo

    result = hybridppo.train(
        env_id, config=config, total_steps=total_steps, seed=seed, placement="cpu", progress=False,
        evaluation_episodes=EVALUATION_EPISODES,
    )  # fmt: skip
    assert result.evaluation is not None  # it was asked for
    return list(result.evaluation.returns)


def theirs(env_id: str, config: PPOConfig, total_steps: int, seed: int) -> list[float]:
    """Returns of stable-baselines3's evaluation, with the same settings."""
    import gymnasium as gym
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

    torch.set_num_threads(1)

    def environments(count: int, seed: int, learns: bool) -> VecEnv:
        made: VecEnv = DummyVecEnv([partial(lambda: Monitor(gym.make(env_id)))] * count)
        made.seed(seed)
        if config.normalize_observations or config.normalize_rewards:
            made = VecNormalize(
                made, training=learns, norm_obs=config.normalize_observations,
                norm_reward=config.normalize_rewards and learns, gamma=config.gamma,
            )  # fmt: skip
        return made

    training = environments(config.num_envs, seed, learns=True)
    heads = list(config.hidden_sizes)
    model = PPO(
        "MlpPolicy",
        training,
        n_steps=config.num_steps,
        batch_size=config.num_envs * config.num_steps // config.num_minibatches,
        n_epochs=config.num_epochs,
        learning_rate=_schedule(config.learning_rate, config.anneal_learning_rate),
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=_schedule(config.clip_range, config.anneal_clip_range),
        clip_range_vf=config.clip_range_vf,
        ent_coef=config.entropy_coef,
        vf_coef=config.value_coef / 2,  # its value loss lacks the half
        max_grad_norm=config.max_grad_norm,
        use_sde=config.use_sde,
        sde_sample_freq=config.sde_sample_freq,
        policy_kwargs={
            "net_arch": {"pi": heads, "vf": heads},
            "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[config.activation],
            "ortho_init": config.orthogonal_init,
            "log_std_init": config.log_std_init,
        },
        seed=seed,
        device="cpu",
    )
    model.learn(total_steps)
    evaluation = environments(1, 10_000 + seed, learns=False)
    if isinstance(training, VecNormalize) and isinstance(evaluation, VecNormalize):
        evaluation.obs_rms = training.obs_rms
    returns, _ = evaluate_policy(model, evaluation, EVALUATION_EPISODES, return_episode_rewards=True)
    return list(returns)


def _schedule(value: float, anneals: bool) -> "float | Callable[[float], float]":
    """In stable-baselines3's form: a number, or a function of the share that is left."""
    return (lambda left: value * left) if anneals else value


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: a row for each environment, a column for each contestant."""
    lines = [
        "| case | steps | published | " + " | ".join(CONTESTANTS) + " |",
        "|---|---:|---:|" + "---|" * len(CONTESTANTS),
    ]
    for case, total_steps in {one["case"]: one["total_steps"] for one in runs}.items():
        cells = []
        for name in CONTESTANTS:
            found = sorted(r["evaluation"] for r in runs if (r["contestant"], r["case"]) == (name, case))
            if not found:
                cells.append("")
                continue
            low, high = bootstrap_interval(np.array(found))
            each = ", ".join(f"{value:,.1f}" for value in found)
            cells.append(f"{interquartile_mean(np.array(found)):,.1f} ({low:,.1f} to {high:,.1f}: {each})")
        published = None if case in OFF_POLICY else tuned_entry(case).published_return
        lines.append(
            f"| {case} | {total_steps:,} | {'' if published is None else f'{published:g}'} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = parser_of(__doc__, "parity")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--cases", default=",".join(CASES), help=f"or {', '.join(set(OFF_POLICY) - set(CASES))}")
    arguments = parser.parse_args()
    wanted = [
        {"contestant": contestant, "case": case, "seed": seed}
        for seed in range(arguments.seeds)
        for contestant in arguments.contestants.split(",")
        for case in arguments.cases.split(",")
    ]

    def found_as(one: dict[str, Any]) -> list[dict[str, Any]]:
        case = one["case"]
        steps = OFF_POLICY[case][2] if case in OFF_POLICY else tuned_entry(case).total_steps
        return [{**one, "total_steps": steps}]

    print(table(run_missing(__file__, arguments, run, wanted, NAMES, found_as)))


if __name__ == "__main__":
    main()
