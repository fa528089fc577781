"""Agents that share a policy: PettingZoo's `simple_spread`, against SuperSuit and stable-baselines3.

    python benchmarks/many_agents.py
    python benchmarks/many_agents.py --quick

8 environments of 3 agents, 24 rows a step. A step is one of one agent, for both. Every turn is a fresh process on one
core, with the same rollouts, minibatches and networks. `environments alone` is the same environments with actions drawn
beforehand and nothing else: what bounds everybody who steps them in Python. Needs `make extras`, and
`pip install supersuit`.
"""

import json
import os
import sys
import time
from dataclasses import replace
from typing import Any

from cases import Case, Mark, our_config, work_done
from turns import in_words, parser_of, print_and_keep, rounds_of, summary_against

AGENTS = 3
CASE = Case(env_id="simple_spread_v3", num_envs=8 * AGENTS, hidden_sizes=(64, 64), warmup=2, iterations=6)
"""As stable-baselines3 sees it: an environment for each agent."""
OURS, WORKERS, PEER, ALONE = "hybridppo", "hybridppo 2 workers", "SuperSuit, stable-baselines3", "environments alone"


def one_core() -> None:
    """Let this process have one core, where the system can say so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def run_ours(case: Case, env: Any, num_envs: int, config: Any = None, **options: Any) -> dict[str, Any]:
    """A turn of this library, through its public `train`; a case's rows are those of `num_envs` environments."""
    import hybridppo

    marks: list[Mark] = []

    def mark(metrics: dict[str, Any]) -> None:
        phases = metrics["seconds_sampling"], metrics["seconds_learning"]
        marks.append(Mark(time.perf_counter(), metrics["env_steps"], *phases))

    hybridppo.train(
        env,
        total_steps=(case.warmup + case.iterations) * case.batch_size,
        seed=0,
        placement="cpu",
        config=config if config is not None else replace(our_config(case), num_envs=num_envs),
        progress=False,
        on_iteration=mark,
        **options,
    )
    return work_done(marks, case)


def run_theirs(case: Case) -> dict[str, Any]:
    """A turn of stable-baselines3, on what SuperSuit makes of the environment."""
    import supersuit
    from mpe2 import simple_spread_v3
    from peers import learn_by_stable_baselines3, their_agent

    one = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
    num_envs = case.num_envs // AGENTS
    environments = supersuit.concat_vec_envs_v1(one, num_envs, num_cpus=0, base_class="stable_baselines3")
    environments.venv.seed = lambda seed: None  # which stable-baselines3 asks for, and SuperSuit's vector lacks
    return learn_by_stable_baselines3(case, their_agent(case, environments))


def run_alone(case: Case) -> dict[str, Any]:
    """The environments, reset where their episodes end."""
    from mpe2 import simple_spread_v3

    environments = [simple_spread_v3.parallel_env() for _ in range(case.num_envs // AGENTS)]
    for seed, env in enumerate(environments):
        env.reset(seed=seed)
    steps = case.num_steps * case.iterations
    start = time.perf_counter()
    for step in range(steps):
        for env in environments:
            env.step(dict.fromkeys(env.agents, step % 5))
            if not env.agents:
                env.reset()
    seconds = time.perf_counter() - start
    return {"env_steps": steps * case.num_envs, "seconds": seconds, "steps_per_second": steps * case.num_envs / seconds}


def take(contestant: str, case: Case) -> dict[str, Any]:
    """One turn, in this process."""
    if contestant != WORKERS:
        one_core()
    if contestant == PEER:
        return run_theirs(case)
    if contestant == ALONE:
        return run_alone(case)
    from mpe2 import simple_spread_v3

    num_workers = 2 if contestant == WORKERS else 0
    return run_ours(case, simple_spread_v3.parallel_env, case.num_envs // AGENTS, num_workers=num_workers)


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = [result["work"], "", f"| | steps/s | times {PEER} |", "|---|---:|---:|"]
    for name, row in result["summary"]["rows"].items():
        lines.append(f"| {name} | {row['steps_per_second']:,.0f} | {in_words(result['summary']['ratios'][name])} |")
    return "\n".join(lines)


def main() -> int:
    """Measure by turns, print, keep; or take one turn."""
    names = (OURS, WORKERS, PEER, ALONE)
    arguments = parser_of(__doc__, names, "1 round of 1 iteration, to see that it works").parse_args()
    case = replace(CASE, warmup=1, iterations=1) if arguments.quick else CASE
    if arguments.turn:
        print(json.dumps(take(arguments.turn, case)))
        return 0
    rounds = rounds_of(__file__, names, arguments)
    summary = summary_against(rounds, names, PEER)
    result = {"work": case.in_words(), "summary": summary, "rounds": rounds}
    name = "many_agents_quick" if arguments.quick else "many_agents"
    print_and_keep(name, result, as_markdown, ("hybridppo", "stable-baselines3", "supersuit", "pettingzoo", "mpe2"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
