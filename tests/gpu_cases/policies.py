"""Cases of agents with policies of their own, which learn one after the other on the device."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gpu_cases.case import (
    SMALL,
    Bench,
    Case,
    distance,
    near,
    on_the_cpu,
    placement_on,
    require,
    values_of,
)
from gpu_cases.kinds import SAMPLED
from toy_agents import Matching, Unlike

from hybridppo.agents.ppo.config import PPOConfig
from hybridppo.interfaces import agents_of
from hybridppo.placements.placement import Placement
from hybridppo.running import TrainResult
from hybridppo.training import train

Configs = Mapping[str, PPOConfig]

SIGNS_AND_POINTERS: Configs = {"sign": SMALL, "pointer": replace(SMALL, num_epochs=1, normalize_observations=True)}
POLICIES: dict[str, tuple[Any, Configs]] = {
    "unlike": (Unlike, SIGNS_AND_POINTERS),
    "one remembers": (
        Unlike,
        {**SIGNS_AND_POINTERS, "sign": replace(SMALL, recurrent="gru", recurrent_size=8, sequence_length=8)},
    ),
    "critics see all": (Matching, {"player": replace(SMALL, critic_observes="all")}),
}
"""For each name, the environment and the configuration of each policy, whose name begins the names of its agents."""
UPDATES = 4


def policies_agree(bench: Bench, name: str, env: Any, configs: Configs, records: bool) -> str:
    """Train under the placement and on the CPU, and compare where all policies end."""

    def trained(placement: Placement, **changes: Any) -> TrainResult:
        changed = {policy: replace(config, **changes) for policy, config in configs.items()}
        return train(
            env, config=changed, policy_of=partial(policy_of, configs), placement=placement, seed=0, progress=False,
            total_steps=UPDATES * SMALL.batch_size, num_workers=0, vectorization="sync",
        )  # fmt: skip

    if records:
        bench.needs_gpu("recording a CUDA graph")
    found, expected = trained(placement_on(name, bench), fast_updates=records), trained(on_the_cpu(name))
    devices = {each.parameters.values.device for each in agents_of(found.agent)}
    require(devices == {bench.device}, f"policies are on {devices}")
    replays = [value for metric, value in found.metrics.items() if metric.endswith("graph_replays")]
    recorded = [config for config in configs.values() if records and config.recurrent is None]
    require(len(replays) == len(recorded) and all(replays), f"replays of the policies: {replays}")
    begun = values_of(trained(on_the_cpu("single"), learning_rate=1e-30).agent)
    return near(distance(found.agent, expected.agent, begun))


def policy_of(configs: Configs, agent: str) -> str:
    return next(policy for policy in configs if agent.startswith(policy))


def policy_cases() -> Iterator[Case]:
    """All cases of this file."""
    for kind, (env, configs) in POLICIES.items():
        for form in ("eager", "recorded"):
            for name in SAMPLED:
                case = partial(policies_agree, name=name, env=env, configs=configs, records=form == "recorded")
                yield Case(
                    f"policies/{kind}/{name}/{form}", f"policies, {kind}: {name}, {form} steps: as on the CPU", case
                )
