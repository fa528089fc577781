"""Every pair of features in one small training: it trains and goes on to the same bits, or is refused in words."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_settings import ppo_config
from toy_combined import Toy, ToyAgents

import hybridppo
from hybridppo import Mirrored, MultiLearner
from hybridppo.networks.precision import supports_bf16


@dataclass(frozen=True)
class Feature:
    """Something that a training may have.

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
    "learners": Feature(options={"distribution": MultiLearner(2)}),
    "bf16": Feature({"precision": "bf16"}),
    "CUDA graphs": Feature({"cuda_graphs": True}),
    "export": Feature(is_exported=True),
}


def env_of(features: Iterable[Feature]) -> Any:
    """A function that makes the environment of some features."""
    options: dict[str, Any] = {}
    for feature in features:
        options |= feature.env
    return partial(ToyAgents if any(feature.has_agents for feature in features) else Toy, **options)


def merged(features: Iterable[Feature], what: str) -> dict[str, Any]:
    """The fields of the configuration (`config`), or the arguments of `train` (`options`), of some features."""
    return {name: value for feature in features for name, value in getattr(feature, what).items()}


STEPS = 128
BASE = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "num_epochs": 1, "hidden_sizes": (4,)}
PAGE = Path(__file__).parents[1] / "docs" / "combinations.md"
PAIRS = {f"{one} and {other}": (one, other) for one, other in combinations(FEATURES, 2)}


REFUSED = {
    "memory and stacked frames": "recurrent='lstm' does not work with stacks of frames",
    "memory and pool": "pool_size does not work with recurrent: leave one out",
    "memory and shared trunk": "shared_trunk does not work with recurrent: leave one out",
    "memory and CUDA graphs": "cuda_graphs cannot record networks with a memory: leave it out",
    "memory and gSDE": "use_sde does not work with recurrent: leave one out",
    "action masks and stacked frames": "frame_stack=2 does not work with action_masks=True: leave one of the two out",
    "action masks and gSDE": "action_masks=True needs a Discrete action space",
    "action masks and squashed actions": "action_masks=True needs a Discrete action space",
    "stacked frames and pool": "pool_size=2 does not work with stacks of frames",
    "stacked frames and agents that leave": "frame_stack=2 is for environments of one agent: leave it out",
    "agents that leave and whole episodes": "whole episodes come from one environment that is stepped by itself",
    "whole episodes and workers": "num_workers=2 does not work with rollouts of whole episodes",
    "learners and CUDA graphs": "cuda_graphs=True does not work with distribution multi:2",
    "whole episodes and learners": "episodes_per_rollout=4 does not work with distribution multi:2: use distribution=",
}
"""By pair, what the error says."""


NAMES = list(FEATURES)
NEIGHBOURS = {pair for pair, (one, other) in PAIRS.items() if NAMES.index(other) - NAMES.index(one) in (1, 4)}
"""Pairs of the default tests: each feature is in several of them. The others are tried with the extras."""


def marks_of(pair: str) -> list[pytest.MarkDecorator]:
    has_bf16 = supports_bf16(torch.device("cpu"))
    marks = [] if pair in NEIGHBOURS else [pytest.mark.extras]
    return [
        *marks,
        pytest.mark.skipif("bf16" in pair and not has_bf16, reason="this processor does not multiply bfloat16"),
    ]


def stop(metrics: Any) -> None:
    """Ctrl-C in the second iteration."""
    if metrics["iteration"] == 2:
        signal.raise_signal(signal.SIGINT)


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


@pytest.mark.parametrize("pair", [pytest.param(pair, marks=marks_of(pair)) for pair in PAIRS if pair not in REFUSED])
def test_a_pair_trains_and_goes_on_to_the_same_bits(pair: str, tmp_path: Path) -> None:
    env, options = settings_of(pair)
    whole = hybridppo.train(env, total_steps=STEPS, **options)
    assert all(np.isfinite(whole.metrics[name]) for name in ("policy_loss", "value_loss", "entropy", "approx_kl"))
    assert (whole.metrics["env_restarts"] > 0) == ("restarts" in PAIRS[pair])
    stopped = hybridppo.train(
        env, total_steps=STEPS, run_dir=tmp_path / "run", on_iteration=stop, on_interrupt="return", **options
    )
    assert stopped.interrupted
    resumed = hybridppo.resume(tmp_path / "run", env=env, progress=False)
    assert bits_of(resumed) == bits_of(whole)
    if "export" in PAIRS[pair]:
        exported = hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", env=env, check_steps=20)
        assert exported.steps_checked == 20


@pytest.mark.parametrize("pair", sorted(REFUSED))
def test_a_pair_that_cannot_be_had_is_refused_in_words(pair: str, tmp_path: Path) -> None:
    def train() -> None:
        env, options = settings_of(pair)  # some are refused when the configuration is made
        hybridppo.train(env, total_steps=STEPS, run_dir=tmp_path / "run", **options)

    with pytest.raises(hybridppo.HybridPPOError, match=REFUSED[pair]):
        train()
    assert not (tmp_path / "run").exists()


def test_the_page_says_which_pairs_combine() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    said = {row[0].strip(): set(filter(None, row[2].strip().split(", "))) for row in rows[1:]}
    refused = [PAIRS[pair] for pair in REFUSED]
    assert said == {name: {a if b == name else b for a, b in refused if name in (a, b)} for name in FEATURES}


def test_an_environment_that_fails_while_an_export_is_compared_is_one_error(tmp_path: Path) -> None:
    config = ppo_config(**BASE)
    hybridppo.train(Toy, total_steps=32, config=config, placement="cpu", run_dir=tmp_path / "run", progress=False)
    with pytest.raises(hybridppo.EnvError, match="ValueError: it happens: compare on fewer observations"):
        hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", env=partial(Toy, fails=True))
    assert not (tmp_path / "policy.npz").exists()
