"""Pong from pixels: this library on ale-py's own vector, against stable-baselines3 with its wrappers.

    python benchmarks/atari.py
    python benchmarks/atari.py --quick

8 games, 128 steps a rollout, 4 epochs of 4 minibatches, the convolutions of Mnih et al. and a layer of 512. Both see
the same: four frames an action, gray, 84 x 84, four stacked, up to 30 idle frames at the start, rewards clipped, and
actions repeated with a probability of 0.25. Every turn is a fresh process on one core. With `shared`, actor and critic
share the convolutions, as is usual; with the others, each has its own. `bf16` needs a processor that has it. Needs
`make extras`, and `make bench`.
"""

import json
from dataclasses import replace
from typing import Any

from cases import Case, our_config, run_ours
from many_agents import one_core
from turns import in_words, parser_of, print_and_keep, rounds_of, summary_against

CASE = Case(env_id="ALE/Pong-v5", num_envs=8, hidden_sizes=(512,), has_images=True, warmup=1, iterations=4)
OURS, PEER = "hybridppo", "stable-baselines3"
SHARED = ", shared"
SHARED_BF16 = f"{OURS}{SHARED}, bf16"
NAMES = (OURS, PEER, OURS + SHARED, PEER + SHARED, SHARED_BF16)


def run_theirs(case: Case, shared: bool) -> dict[str, Any]:
    """A turn of stable-baselines3, on games as its own wrappers prepare them."""
    import ale_py
    from peers.sb3 import learn_by_stable_baselines3, their_agent
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    assert ale_py  # whose import registers the games
    games = make_atari_env(
        case.env_id,
        n_envs=case.num_envs,
        seed=0,
        env_kwargs={"frameskip": 1},
        wrapper_kwargs={"terminal_on_life_loss": False},
    )
    agent = their_agent(case, VecFrameStack(games, 4))
    if shared:
        agent.policy_kwargs["share_features_extractor"] = True
        agent._setup_model()
    return learn_by_stable_baselines3(case, agent)


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = [
        result["work"],
        "",
        f"| | steps sampled/s | steps trained/s | times {PEER + SHARED} |",
        "|---|---:|---:|---:|",
    ]
    for name, row in result["summary"]["rows"].items():
        speeds = f"{row['sampled_per_second']:,.0f} | {row['steps_per_second']:,.0f}"
        lines.append(f"| {name} | {speeds} | {in_words(result['summary']['ratios'][name])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure by turns, print and save the results; or take one turn."""
    arguments = parser_of(__doc__, NAMES, "1 round of a small iteration, to see that it works").parse_args()
    case = replace(CASE, num_envs=2, num_steps=32, iterations=1) if arguments.quick else CASE
    if arguments.turn:
        one_core()
        is_shared = SHARED in arguments.turn
        if arguments.turn.startswith(OURS):
            precision = "bf16" if arguments.turn == SHARED_BF16 else "fp32"
            config = replace(our_config(case), num_envs=case.num_envs, shared_trunk=is_shared, precision=precision)
            turn = run_ours(case, case.env_id, config)
        else:
            turn = run_theirs(case, is_shared)
        print(json.dumps(turn))
        return
    rounds = rounds_of(__file__, NAMES, arguments)
    summary = summary_against(rounds, NAMES, PEER + SHARED)
    result = {"work": case.in_words(), "summary": summary, "rounds": rounds}
    name = "atari_quick" if arguments.quick else "atari"
    print_and_keep(name, result, as_markdown, ("hybridppo", "stable-baselines3", "ale-py"))


if __name__ == "__main__":
    main()
