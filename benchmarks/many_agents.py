"""Agents that share a policy: PettingZoo's `simple_spread`, against SuperSuit and stable-baselines3.

    python benchmarks/many_agents.py
    python benchmarks/many_agents.py --quick
    python benchmarks/many_agents.py --added     # what this library adds to a step of PettingZoo's environments

8 environments of 3 agents, 24 rows a step. Steps are those of agents, for both. Every turn is a fresh process on one
core, with the same rollouts, minibatches and networks. `environments alone` is the same environments with actions drawn
beforehand and nothing else, which bounds every library that steps them in Python. Needs `make extras`, and
`pip install supersuit`.

With `--added`, the environments alone and this library take the same actions, by turns in one process. Times are CPU
times. `rows` makes rows of what the environments return; `sampler` also acts (networks of 64 x 64) and
fills a rollout.
"""

import json
import os
import statistics
import time
from dataclasses import replace
from typing import Any

import machine
import numpy as np
from cases import Case, our_config, run_ours
from turns import in_words, parser_of, print_and_keep, rounds_of, summary_against

AGENTS = 3
CASE = Case(env_id="simple_spread_v3", num_envs=8 * AGENTS, hidden_sizes=(64, 64), warmup=2, iterations=6)
"""As stable-baselines3 sees it: an environment for each agent."""
OURS, WORKERS, PEER, ALONE = "hybridppo", "hybridppo 2 workers", "SuperSuit, stable-baselines3", "environments alone"


def one_core() -> None:
    """Pin this process to one core, if the system allows it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def run_theirs(case: Case) -> dict[str, Any]:
    """A turn of stable-baselines3, on the environment as SuperSuit wraps it."""
    import supersuit
    from mpe2 import simple_spread_v3
    from peers.sb3 import learn_by_stable_baselines3, their_agent

    one = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env())
    num_envs = case.num_envs // AGENTS
    environments = supersuit.concat_vec_envs_v1(one, num_envs, num_cpus=0, base_class="stable_baselines3")
    environments.venv.seed = lambda seed: None  # which stable-baselines3 asks for, and SuperSuit's vector lacks
    return learn_by_stable_baselines3(case, their_agent(case, environments))


def run_alone(case: Case) -> dict[str, Any]:
    """A turn of the environments alone, which are reset when their episodes end."""
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
    config = replace(our_config(case), num_envs=case.num_envs // AGENTS)
    return run_ours(case, simple_spread_v3.parallel_env, config, num_workers=num_workers)


def games() -> dict[str, tuple[Any, bool]]:
    """Environments whose steps are timed, and whether they have masks."""
    from mpe2 import simple_spread_v3, simple_tag_v3
    from pettingzoo.classic import connect_four_v3

    return {
        "simple_spread_v3": (simple_spread_v3.parallel_env, False),
        "simple_tag_v3": (simple_tag_v3.parallel_env, False),
        "connect_four_v3": (connect_four_v3.env, True),
    }


def seconds_of_alone(make: Any, actions: list[Any], num_envs: int) -> float:
    """Seconds of a step of one environment; `actions` has `[num_envs, agents]` actions for each step."""
    environments = [make() for _ in range(num_envs)]
    for seed, env in enumerate(environments):
        env.reset(seed=seed)
    names = environments[0].possible_agents
    slots = {name: slot for slot, name in enumerate(names)}
    start = time.process_time()
    for of_step in actions:
        for env, own in zip(environments, of_step, strict=True):
            if not hasattr(env, "last"):
                env.step(dict(zip(names, own, strict=True)))
                if not env.agents:
                    env.reset()
                continue
            env.step(own[slots[env.agent_selection]])
            ended = env.last()
            while ended[2] or ended[3]:
                env.step(None)
                if not env.agents:
                    env.reset()
                ended = env.last()
    return (time.process_time() - start) / len(actions) / num_envs


def seconds_added(name: str, num_steps: int, num_envs: int = 8) -> dict[str, float]:
    """Seconds of a step of an environment alone, as rows, and in the sampler."""
    from hybridppo import PPO, PPOConfig, SingleDevice
    from hybridppo.environments.making import make_environments
    from hybridppo.runners.samplers.in_process import Sampler

    make, has_masks = games()[name]

    environments = make_environments(make, num_envs, action_masks=has_masks)
    # The actions are random, and the same for all three.
    rng, actions, rows = np.random.default_rng(0), [], environments.reset(0)
    size = int(environments.action_space.n)
    for _ in range(num_steps):
        allowed = rows[:, -size:] if has_masks else np.ones((len(rows), size))
        actions.append((allowed * rng.random(allowed.shape)).argmax(1))
        rows = environments.step(actions[-1])[0]
    environments.reset(0)
    start = time.process_time()
    for each in actions:
        environments.step(each)
    as_rows = (time.process_time() - start) / num_steps / num_envs
    config = PPOConfig(num_envs=num_envs, num_steps=num_steps, hidden_sizes=(64, 64))
    agent, placement = PPO(environments.observation_space, environments.action_space, config), SingleDevice("cpu")
    placement.prepare(agent)
    noise = np.random.default_rng(0)
    sampler = Sampler(environments, agent.distribution, num_steps=num_steps, env_seed=0, noise=noise)
    with placement.sampling(agent) as actor:
        start = time.process_time()
        sampler.collect(actor)
        sampled = (time.process_time() - start) / num_steps / num_envs
    sampler.close()
    alone = seconds_of_alone(make, [each.reshape(num_envs, -1).tolist() for each in actions], num_envs)
    return {"alone": alone, "rows": as_rows, "sampler": sampled}


def measure_added(rounds: int, num_steps: int) -> dict[str, Any]:
    """For each environment: medians, and the shares that are added to the time of the environment alone."""
    found: dict[str, Any] = {}
    for name in games():
        turns = [seconds_added(name, num_steps) for _ in range(rounds)]
        medians = {part: statistics.median(turn[part] for turn in turns) for part in turns[0]}
        added = {
            part: statistics.median(turn[part] / turn["alone"] - 1.0 for turn in turns) for part in ("rows", "sampler")
        }
        found[name] = {"seconds": medians, "added": added, "turns": turns}
        print(
            f"{name}: {medians['alone'] * 1e6:.0f} us alone; "
            f"rows add {added['rows']:.0%}, sampling {added['sampler']:.0%}"
        )
    return found


def as_markdown(result: dict[str, Any]) -> str:
    """The table of a result file."""
    lines = [result["work"], "", f"| | steps/s | times {PEER} |", "|---|---:|---:|"]
    for name, row in result["summary"]["rows"].items():
        lines.append(f"| {name} | {row['steps_per_second']:,.0f} | {in_words(result['summary']['ratios'][name])} |")
    return "\n".join(lines)


def main() -> None:
    """Measure by turns, print and save the results; or take one turn."""
    names = (OURS, WORKERS, PEER, ALONE)
    parser = parser_of(__doc__, names, "1 round of 1 iteration, to see that it works")
    parser.add_argument("--added", action="store_true", help="what this library adds to a step of an environment")
    arguments = parser.parse_args()
    if arguments.added:
        added = measure_added(*((1, 50) if arguments.quick else (5, 200)))
        if not arguments.quick:
            print(f"Raw figures: {machine.save('many_agents_added', added)}")
        return
    case = replace(CASE, warmup=1, iterations=1) if arguments.quick else CASE
    if arguments.turn:
        print(json.dumps(take(arguments.turn, case)))
        return
    rounds = rounds_of(__file__, names, arguments)
    summary = summary_against(rounds, names, PEER)
    result = {"work": case.in_words(), "summary": summary, "rounds": rounds}
    name = "many_agents_quick" if arguments.quick else "many_agents"
    print_and_keep(name, result, as_markdown, ("hybridppo", "stable-baselines3", "supersuit", "pettingzoo", "mpe2"))


if __name__ == "__main__":
    main()
