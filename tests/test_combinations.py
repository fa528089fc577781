"""Every pair of features in one small training: it trains and resumes to the same bits, or a clear error refuses it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_choice import Choice
from ppo_settings import ppo_config
from selection import only_by_default
from stop_after import interrupt_at
from toy_agents import TakingTurns
from toy_combined import Toy, ToyAgents

import hybridppo
from hybridppo import Central, Mirrored, MultiLearner, SelfPlay, TD3Config
from hybridppo.networks.making import actor_and_critic
from hybridppo.networks.modes import supports_bf16
from hybridppo.rollouts.advantages import gae


@dataclass(frozen=True)
class Feature:
    """A feature that a training may have.

    Args:
        config: fields of `PPOConfig`.
        options: arguments of `hybridppo.train`.
        env: arguments of `Toy`.
        has_agents: whether the environment has several agents.
        is_exported: whether the policy is written to a file afterwards.
    """

    config: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    has_agents: bool = False
    is_exported: bool = False


FEATURES = {
    "memory": Feature({"recurrent": "lstm", "recurrent_size": 4, "sequence_length": 4}),
    "action masks": Feature(options={"action_masks": True}, env={"masks": True}),
    "stacked frames": Feature(options={"frame_stack": 2}),
    "pool": Feature({"pool_size": 2}),
    "gSDE": Feature({"use_sde": True, "log_std_init": -2.0}, env={"kind": "numbers"}),
    "shared trunk": Feature({"shared_trunk": True}),
    "squashed actions": Feature({"squash_actions": True}, env={"kind": "numbers"}),
    "restarts": Feature(options={"on_env_error": "restart"}, env={"fails": True}),
    "agents that leave": Feature(has_agents=True),
    "whole episodes": Feature({"num_envs": 1, "episodes_per_rollout": 4}),
    "overlap": Feature(options={"placement": Mirrored("cpu", "cpu", max_lag=1)}),
    "workers": Feature(options={"num_workers": 2}),
    "learners": Feature(options={"distributed": MultiLearner(2)}),
    "bf16": Feature({"precision": "bf16"}),
    "CUDA graphs": Feature({"cuda_graphs": True}),
    "export": Feature(is_exported=True),
}


def env_of(features: Iterable[Feature]) -> Any:
    """A function that makes the environment for some features."""
    options: dict[str, Any] = {}
    for feature in features:
        options |= feature.env
    return partial(ToyAgents if any(feature.has_agents for feature in features) else Toy, **options)


def merged(features: Iterable[Feature], what: str) -> dict[str, Any]:
    """The fields of the configuration (`config`), or the arguments of `train` (`options`), for some features."""
    return {name: value for feature in features for name, value in getattr(feature, what).items()}


STEPS = 128
BASE = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "num_epochs": 1, "hidden_sizes": (4,)}
PAGE = Path(__file__).parents[1] / "docs" / "combinations.md"
PAIRS = {f"{one} and {other}": (one, other) for one, other in combinations(FEATURES, 2)}


REFUSED = {
    "memory and stacked frames": "recurrent='lstm' does not work with stacks of frames",
    "memory and pool": "pool_size does not work with recurrent: leave one out",
    "memory and shared trunk": "shared_trunk does not work with recurrent: leave one out",
    "memory and CUDA graphs": "cuda_graphs does not work with recurrent: leave one out",
    "memory and gSDE": "use_sde does not work with recurrent: leave one out",
    "action masks and stacked frames": "frame_stack=2 does not work with action_masks=True: leave one of the two out",
    "action masks and gSDE": "action_masks=True needs a Discrete action space",
    "action masks and squashed actions": "action_masks=True needs a Discrete action space",
    "stacked frames and pool": "pool_size=2 does not work with stacks of frames",
    "stacked frames and agents that leave": "frame_stack=2 does not work with multi-agent environments",
    "agents that leave and whole episodes": "whole episodes come from one environment that is stepped by itself",
    "whole episodes and workers": "num_workers=2 does not work with rollouts of whole episodes",
    "learners and CUDA graphs": "cuda_graphs=True does not work with distributed=multi:2",
    "whole episodes and learners": "episodes_per_rollout=4 does not work with distributed=multi:2: use distributed=",
}
"""For each pair, the text of the error."""


NAMES = list(FEATURES)
NEIGHBOURS = {pair for pair, (one, other) in PAIRS.items() if NAMES.index(other) - NAMES.index(one) == 1}
NEIGHBOURS |= {"stacked frames and squashed actions"}  # whose neighbours are refused
"""Pairs of the default tests, in which each feature occurs."""


NO_BF16 = pytest.mark.skipif(not supports_bf16(torch.device("cpu")), reason="this processor does not multiply bfloat16")


def bits_of(result: hybridppo.TrainResult) -> bytes:
    return result.agent.parameters.values.detach().numpy().tobytes()


def settings_of(pair: str) -> tuple[Any, dict[str, Any]]:
    """The environment of a pair, and the arguments of `train`."""
    features = [FEATURES[name] for name in PAIRS[pair]]
    config = ppo_config(**{**BASE, **merged(features, "config")})
    return env_of(features), {
        "seed": 0,
        "placement": "cpu",
        "progress": False,
        **merged(features, "options"),
        "config": config,
    }


@pytest.mark.parametrize(
    "pair",
    only_by_default(
        NEIGHBOURS - {*REFUSED},
        [pytest.param(pair, marks=NO_BF16 if "bf16" in pair else ()) for pair in PAIRS if pair not in REFUSED],
    ),
)
def test_a_pair_trains_and_goes_on_to_the_same_bits(pair: str, tmp_path: Path) -> None:
    env, options = settings_of(pair)
    whole = hybridppo.train(env, total_steps=STEPS, **options)
    assert all(np.isfinite(whole.metrics[name]) for name in ("policy_loss", "value_loss", "entropy", "approx_kl"))
    assert (whole.metrics["env_restarts"] > 0) == ("restarts" in PAIRS[pair])
    stopped = hybridppo.train(
        env, total_steps=STEPS, run_dir=tmp_path / "run", on_iteration=interrupt_at(2), on_interrupt="return", **options
    )
    assert stopped.interrupted
    resumed = hybridppo.resume(tmp_path / "run", env=env, progress=False)
    assert bits_of(resumed) == bits_of(whole)
    if "export" in PAIRS[pair]:
        exported = hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=20)
        assert exported.steps_checked == 20


@pytest.mark.parametrize("pair", sorted(REFUSED))
def test_a_pair_that_cannot_be_had_is_refused_in_words(pair: str, tmp_path: Path) -> None:
    assert_refused(partial(settings_of, pair), REFUSED[pair], tmp_path / "run")


def assert_refused(settings: Callable[[], tuple[Any, dict[str, Any]]], words: str, run: Path) -> None:
    def train() -> None:
        env, options = settings()  # some are refused when the configuration is made
        hybridppo.train(env, total_steps=STEPS, run_dir=run, **options)

    with pytest.raises(hybridppo.HybridPPOError, match=words):
        train()
    assert not run.exists()


def test_the_page_says_which_pairs_combine() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    said = {row[0].strip(): set(filter(None, row[2].strip().split(", "))) for row in rows[1:]}
    refused = [PAIRS[pair] for pair in REFUSED]
    assert said == {name: {a if b == name else b for a, b in refused if name in (a, b)} for name in FEATURES}


# Many agents


WAYS = ("several policies", "self-play", "critics that see more", "turns")
"""Ways to train many agents; each is tried with every other, and with each of `WITH_AGENTS`."""
OF_ONE = ("agents that leave", "bf16", "export")
"""Features that are not tried again here: agents of `ToyAgents` leave anyway."""


class OwnPPO(hybridppo.PPO):
    """A user's own algorithm."""


WITH_AGENTS = {name: feature for name, feature in FEATURES.items() if name not in OF_ONE} | {
    "a lag of 2": Feature(options={"placement": Mirrored("cpu", "cpu", max_lag=2), "num_workers": 2}),
    "Central": Feature(options={"distributed": Central(2)}),
    "an agent of your own": Feature(options={"agent": OwnPPO}),
    "advantages of your own": Feature(options={"advantages": gae}),
    "networks of your own": Feature(options={"networks": actor_and_critic}),
    "schedules that are functions": Feature(
        {"anneal_learning_rate": False}, {"schedules": {"learning_rate": lambda progress: 1e-3 * (1.0 - progress)}}
    ),
    "keys of observations": Feature({"actor_keys": ("own",)}),
    "TD3": Feature(options={"config": TD3Config(num_envs=2)}, env={"kind": "numbers"}),
    "a distribution of your own": Feature(options={"action_distribution": Choice}),
}
"""To add an option, add a line."""
SINGLE, NO_MAPPING = "whole episodes come from one environment", "does not work with several policies (config is a"
REFUSED_OF_AGENTS: dict[str, dict[str, str]] = {
    "stacked frames": dict.fromkeys(WAYS, "frame_stack=2 does not work with multi-agent environments"),
    "whole episodes": {
        **dict.fromkeys(WAYS, SINGLE), "several policies": "episodes_per_rollout does not work with several policies",
    },
    "gSDE": {"several policies": "use_sde does not work with several policies: leave it out"},
    "shared trunk": {"critics that see more": "critic_observes does not work with shared_trunk: leave one out"},
    "Central": {
        "several policies": "learners of a server have one policy: use distributed='local' or 'multi'",
        "self-play": "does not work with distributed=central:2:1: use distributed='local'",
    },
    "an agent of your own": {"several policies": f"agent {NO_MAPPING}"},
    "advantages of your own": {"several policies": f"advantages {NO_MAPPING}"},
    "networks of your own": {
        "several policies": f"networks {NO_MAPPING}",
        "self-play": "self_play loads snapshots, which files hold without networks",
        "critics that see more": "critic_observes='all' is for the library's networks, and networks= was given",
    },
    "schedules that are functions": {"several policies": f"schedules that are functions {NO_MAPPING}"},
    "keys of observations": {"critics that see more": "critic_observes does not work with actor_keys"},
    "TD3": {
        "several policies": "have a PPOConfig for each policy",
        "self-play": "self_play is for PPO (PPOConfig): leave it out",
        "turns": "an agent with a replay buffer learns from environments of one agent",
    },
    "a distribution of your own": {
        "several policies": f"action_distribution {NO_MAPPING}",
        "self-play": "self_play loads snapshots, which files hold without action_distribution",
    },
}  # fmt: skip
"""For each option and way, the text of the error."""
NOT_TRIED = {"TD3": {"critics that see more"}, "networks of your own": {*WAYS}, "keys of observations": {*WAYS}}
"""Combinations that are left out: TD3 has no such field, and the others need networks or spaces of their own."""


def in_turns(**options: Any) -> Any:
    return TakingTurns(ToyAgents(**options))


def settings_of_agents(*names: str) -> tuple[Any, dict[str, Any]]:
    """The environment for some ways and options, and the arguments of `train`."""
    features = [WITH_AGENTS[name] for name in names if name in WITH_AGENTS]
    env: Any = partial(in_turns if "turns" in names else ToyAgents, **env_of(features).keywords)
    options: dict[str, Any] = {"seed": 0, "placement": "cpu", "progress": False, **merged(features, "options")}
    observes = {"critic_observes": "all"} if "critics that see more" in names else {}
    config = options.pop("config", None) or ppo_config(**{**BASE, **merged(features, "config"), **observes})
    if "several policies" in names:
        config = {"stays": config, "leaves": config}
    if "self-play" in names:
        options["self_play"] = SelfPlay(snapshot_every=32)
    return env, {**options, "config": config}


def pairs_of_agents() -> list[Any]:
    """Every combination that trains; the default tests try each option with one way."""
    found = [pytest.param(*pair, marks=marks_of_opponents(*pair)) for pair in combinations(WAYS, 2)]
    for (number, way), (place, option) in product(enumerate(WAYS), enumerate(WITH_AGENTS)):
        if way not in REFUSED_OF_AGENTS.get(option, {}) and way not in NOT_TRIED.get(option, ()):
            marks = [pytest.mark.extras] if place % len(WAYS) != number or option == "Central" else []
            found.append(pytest.param(way, option, marks=[*marks, *marks_of_opponents(way)]))
    return found


def marks_of_opponents(*ways: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.torch_in_workers] if "self-play" in ways else []


@pytest.mark.parametrize(("way", "other"), pairs_of_agents())
def test_many_agents_train_with_it(way: str, other: str, tmp_path: Path) -> None:
    env, options = settings_of_agents(way, other)
    result = hybridppo.train(env, total_steps=STEPS, run_dir=tmp_path / "run", **options)
    losses = [value for name, value in result.metrics.items() if name.endswith("policy_loss")]
    assert len(losses) == (2 if "several policies" in (way, other) else 1)
    assert np.isfinite(losses).all()


@pytest.mark.parametrize(
    ("option", "way"), [(option, way) for option, ways in REFUSED_OF_AGENTS.items() for way in ways]
)
def test_what_many_agents_cannot_have_is_refused_in_words(option: str, way: str, tmp_path: Path) -> None:
    words = re.escape(REFUSED_OF_AGENTS[option][way])
    assert_refused(partial(settings_of_agents, way, option), words, tmp_path / "run")


def test_the_page_of_many_agents_says_what_is_refused() -> None:
    page = (PAGE.parent / "several_agents.md").read_text(encoding="utf-8")
    table = page[page.index("## What is refused") :]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line[:2] == "| "]
    said = {row[0].strip(): set(row[2].strip().split(", ")) for row in rows[1:]}
    assert {name: ways for name, ways in said.items() if name in WITH_AGENTS} == {
        name: {"all"} if len(ways) == len(WAYS) else {*ways} for name, ways in REFUSED_OF_AGENTS.items()
    }
