"""What memory, normalization and rows of several parts cost, beside sb3-contrib and stable-baselines3.

    python benchmarks/networks.py
    python benchmarks/networks.py --quick

CartPole, 8 environments x 128 steps, networks of 64 x 64: plain; with a memory of 64 before them, theirs and ours; and
with observations and rewards normalized. Then an environment that costs nothing, whose observations are an image of
36 x 36 pixels beside 8 numbers. Every turn is a fresh process on one core.

What differs: RecurrentPPO's gradients reach back through a whole episode, ours through sequences of 32 steps. For image
and numbers, MultiInputPolicy shares the convolutions and has 64 x 64 for each of actor and critic; ours share all but
their last layers.
"""

import json
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from cases import Case, our_config, run_ours
from many_agents import one_core
from peers.sb3 import learn_by_stable_baselines3, their_agent, their_environments
from turns import in_words, medians, parser_of, print_and_keep, ratios, rounds_of

CASE = Case(num_envs=8, hidden_sizes=(64, 64), warmup=2, iterations=12)
OURS = {
    "mlp": {},
    "lstm": {"recurrent": "lstm"},
    "gru": {"recurrent": "gru"},
    "normalised": {"normalize_observations": True, "normalize_rewards": True},
}
PEERS = ("RecurrentPPO", "MultiInputPolicy")
NAMES = (*OURS, "image and numbers", *PEERS)
RATIOS = (
    ("lstm", "RecurrentPPO"),
    ("gru", "RecurrentPPO"),
    ("lstm", "mlp"),
    ("gru", "mlp"),
    ("normalised", "mlp"),
    ("image and numbers", "MultiInputPolicy"),
)


class ImageAndNumbers(gym.Env[Any, Any]):
    """Costs nothing: its observation never changes."""

    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (36, 36, 3), np.uint8), numbers=gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    )
    action_space = gym.spaces.Discrete(4)

    def __init__(self) -> None:
        self._observation = {"image": np.zeros((36, 36, 3), np.uint8), "numbers": np.zeros(8, np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The observation."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """The same, for 100 steps."""
        self._steps += 1
        return self._observation, float(action == 0), False, self._steps >= 100, {}


def run_recurrent_peer(case: Case) -> dict[str, Any]:
    """A turn of sb3-contrib's RecurrentPPO: a memory of 64 for each of actor and critic, then 64 x 64."""
    from sb3_contrib import RecurrentPPO

    agent = RecurrentPPO(
        "MlpLstmPolicy",
        their_environments(case, "dummy"),
        n_steps=case.num_steps,
        n_epochs=case.num_epochs,
        batch_size=case.minibatch_size,
        policy_kwargs={"lstm_hidden_size": 64, "net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        seed=0,
        device="cpu",
        verbose=0,
    )
    return learn_by_stable_baselines3(case, agent)


def run_multi_input_peer(case: Case) -> dict[str, Any]:
    """A turn of stable-baselines3 on the image and the numbers."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    plain = their_agent(replace(case, env_id="CartPole-v1"), their_environments(case, "dummy"))
    agent = PPO(
        "MultiInputPolicy",
        DummyVecEnv([ImageAndNumbers] * case.num_envs),
        n_steps=case.num_steps,
        n_epochs=case.num_epochs,
        batch_size=case.minibatch_size,
        learning_rate=plain.learning_rate,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        seed=0,
        device="cpu",
        verbose=0,
    )
    return learn_by_stable_baselines3(case, agent)


def take(name: str, case: Case) -> dict[str, Any]:
    """One turn, in this process."""
    one_core()
    if name == "RecurrentPPO":
        return run_recurrent_peer(case)
    if name == "MultiInputPolicy":
        return run_multi_input_peer(replace(case, iterations=min(case.iterations, 4)))
    if name in OURS:
        config = replace(our_config(case), **OURS[name])
        return run_ours(case, case.env_id, config, vectorization="sync")
    short = replace(case, iterations=min(case.iterations, 4))
    config = replace(our_config(short), shared_trunk=True, activation="relu")
    return run_ours(short, ImageAndNumbers, config)


def as_markdown(result: dict[str, Any]) -> str:
    """The tables of a result file."""
    lines = [result["work"], "", "| | steps/s |", "|---|---:|"]
    lines += [f"| {name} | {row['steps_per_second']:,.0f} |" for name, row in result["summary"]["rows"].items()]
    lines += ["", "| | times |", "|---|---:|"]
    return "\n".join([*lines, *(f"| {name} | {in_words(of)} |" for name, of in result["summary"]["ratios"].items())])


def main() -> None:
    """Measure by turns, print and save the results; or take one turn."""
    arguments = parser_of(__doc__, NAMES, "1 round of 1 iteration, to see that it works").parse_args()
    case = replace(CASE, warmup=1, iterations=1) if arguments.quick else CASE
    if arguments.turn:
        print(json.dumps(take(arguments.turn, case)))
        return
    rounds = rounds_of(__file__, NAMES, arguments)
    summary = {
        "rows": {name: medians(rounds, name) for name in NAMES},
        "ratios": {f"{a} / {b}": ratios(rounds, a, b, "steps_per_second") for a, b in RATIOS},
    }
    result = {"work": case.in_words(), "summary": summary, "rounds": rounds}
    name = "networks_quick" if arguments.quick else "networks"
    print_and_keep(name, result, as_markdown, ("hybridppo", "stable-baselines3", "sb3-contrib"))


if __name__ == "__main__":
    main()
