"""Does it learn Pong from pixels? A shortened run, beside stable-baselines3 with the same steps and settings.

    python benchmarks/atari_learned.py
    python benchmarks/atari_learned.py --contestants library --total-steps 200000
    python benchmarks/atari_learned.py --convolutions nature --learning-rate 2.5e-4 --jobs 1

The first million and a half of the usual ten million steps: four frames an action, gray, four stacked, up to 30 idle
frames at the start, rewards clipped; rl-baselines3-zoo's settings for Atari with twice its learning rate, and the
two convolutions of 2013 and of A3C, a third of the usual work, which actor and critic share. A point is worth 1 or -1,
and a game goes to 21. A run is a process with one thread, and takes about an hour. A return is the mean of the latest
100 games of the training. Runs that are already in the results are skipped. Needs `make extras` and `make bench`.
"""

import time
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from missing_runs import Run, parser_of, run_missing

from hybridppo import PPOConfig

ENV_ID, NUM_ENVS, NUM_STEPS = "ALE/Pong-v5", 8, 128
CLIP_RANGE, ENTROPY_COEF, VALUE_COEF = 0.1, 0.01, 0.5
"""From rl-baselines3-zoo, hyperparams/ppo.yml, atari. The zoo anneals the first of them, and a learning rate of 2.5e-4,
over ten million steps."""
FEATURES = {"nature": 512, "a3c": 256}
"""Width of the layer after the convolutions, as published."""
CONTESTANTS = ("library", "stable-baselines3")
NAMES = ("contestant", "convolutions", "learning_rate", "side", "total_steps", "seed")
POINTS = 20
"""Points of a curve."""
Curve = list[tuple[float, float]]


def games(side: int, num_threads: int = 1) -> Any:
    """ale-py's own vector. Actions are never repeated by chance, as in the environment ids of the published figures."""
    import ale_py
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode

    assert ale_py  # whose import registers the games
    return gym.make_vec(
        ENV_ID, num_envs=NUM_ENVS, vectorization_mode="vector_entry_point", autoreset_mode=AutoresetMode.SAME_STEP,
        reward_clipping=False, img_height=side, img_width=side, num_threads=num_threads,
        repeat_action_probability=0.0,
    )  # fmt: skip


def config_of(convolutions: Any, learning_rate: float, torch_threads: int = 1) -> PPOConfig:
    """The settings of this library."""
    return PPOConfig(
        num_envs=NUM_ENVS, num_steps=NUM_STEPS, num_minibatches=4, num_epochs=4, hidden_sizes=(FEATURES[convolutions],),
        activation="relu", shared_trunk=True, convolutions=convolutions, learning_rate=learning_rate,
        anneal_learning_rate=False, clip_range=CLIP_RANGE, anneal_clip_range=False, clip_range_vf=None,
        entropy_coef=ENTROPY_COEF, value_coef=2 * VALUE_COEF,  # whose loss has a half
        gamma=0.99, gae_lambda=0.95, max_grad_norm=0.5, normalize_observations=False, normalize_rewards=False,
        torch_threads=torch_threads,
    )  # fmt: skip


def ours(convolutions: Any, learning_rate: float, side: int, total_steps: int, seed: int) -> Curve:
    """This library's return by steps."""
    import hybridppo

    curve: Curve = []
    hybridppo.train(
        partial(games, side), config=config_of(convolutions, learning_rate), total_steps=total_steps, seed=seed,
        placement="cpu", progress=False, clip_rewards=True,
        on_iteration=lambda metrics: curve.append((metrics["env_steps"], metrics["episode_return_mean"])),
    )  # fmt: skip
    return curve


def theirs(convolutions: str, learning_rate: float, side: int, total_steps: int, seed: int) -> Curve:
    """stable-baselines3's return by steps."""
    import ale_py
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
    from stable_baselines3.common.vec_env import VecFrameStack
    from torch import nn

    assert ale_py  # whose import registers the games
    torch.set_num_threads(1)
    made = make_atari_env(
        ENV_ID,
        n_envs=NUM_ENVS,
        seed=seed,
        env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0},
        wrapper_kwargs={"terminal_on_life_loss": False, "screen_size": side},
    )
    curve: Curve = []

    class TwoConvolutions(BaseFeaturesExtractor):
        """The convolutions of the paper of 2013, written as `NatureCNN` is."""

        def __init__(self, observation_space: Any, features_dim: int) -> None:
            super().__init__(observation_space, features_dim)
            channels = observation_space.shape[0]
            layers = [nn.Conv2d(channels, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()]
            with torch.no_grad():
                size = nn.Sequential(*layers)(torch.zeros(1, *observation_space.shape)).numel()
            self.layers = nn.Sequential(*layers, nn.Linear(size, features_dim), nn.ReLU())

        def forward(self, images: Any) -> Any:
            return self.layers(images)

    class Points(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            curve.append((self.num_timesteps, float(np.mean(returns)) if returns else float("nan")))

    PPO(
        "CnnPolicy",
        VecFrameStack(made, 4),
        n_steps=NUM_STEPS,
        n_epochs=4,
        batch_size=NUM_ENVS * NUM_STEPS // 4,
        learning_rate=learning_rate,
        clip_range=CLIP_RANGE,
        ent_coef=ENTROPY_COEF,
        vf_coef=VALUE_COEF,
        policy_kwargs={
            "features_extractor_class": {"nature": NatureCNN, "a3c": TwoConvolutions}[convolutions],
            "features_extractor_kwargs": {"features_dim": FEATURES[convolutions]},
        },
        seed=seed,
        device="cpu",
    ).learn(total_steps, callback=Points())
    return curve


def run(contestant: str, total_steps: int, **settings: Any) -> list[Run]:
    """Train in this process."""
    start = time.perf_counter()
    curve = {"library": ours, "stable-baselines3": theirs}[contestant](total_steps=total_steps, **settings)
    seconds = time.perf_counter() - start
    every = max(1, len(curve) // POINTS)
    points = [point for point in curve[::-1][::every][::-1] if np.isfinite(point[1])]
    if not points:
        raise SystemExit(f"no game has ended within {total_steps:,} steps: give --total-steps more")
    return [{
        "contestant": contestant, "total_steps": total_steps, **settings, "seconds": seconds,
        "curve": points, "training": points[-1][1],
    }]  # fmt: skip


def as_markdown(runs: list[Run]) -> str:
    """A row for each run: its return in quarters of the steps, and at the end."""
    lines = ["| | convolutions | steps | seed | at a quarter | at half | at three quarters | at the end | minutes |"]
    lines.append("|---|" + "---:|" * 8)
    of_a_kind = ("convolutions", "total_steps", "contestant", "seed")
    for each in sorted(runs, key=lambda one: tuple(one[name] for name in of_a_kind)):
        counts, returns = zip(*each["curve"], strict=True)
        at = [np.interp(part * each["total_steps"], counts, returns) for part in (0.25, 0.5, 0.75, 1.0)]
        cells = " | ".join(f"{value:.1f}" for value in at)
        steps, minutes = each["total_steps"], each["seconds"] / 60
        lines.append(
            f"| {each['contestant']} | {each['convolutions']} | {steps:,} | {each['seed']} | {cells} | {minutes:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table; or one run."""
    parser = parser_of(__doc__, "atari_learned")
    parser.set_defaults(seeds=1)
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--total-steps", type=int, default=1_500_000)
    parser.add_argument("--side", type=int, default=84, help="width and height of a frame (default %(default)s)")
    parser.add_argument("--convolutions", choices=list(FEATURES), default="a3c")
    parser.add_argument("--learning-rate", type=float, default=5e-4, metavar="RATE")
    arguments = parser.parse_args()
    pairs = product(arguments.contestants.split(","), range(arguments.seeds))
    same = {name: getattr(arguments, name) for name in NAMES if name not in ("contestant", "seed")}
    wanted = [{"contestant": who, "seed": seed, **same} for who, seed in pairs]
    print(as_markdown(run_missing(__file__, arguments, run, wanted, NAMES)))


if __name__ == "__main__":
    main()
