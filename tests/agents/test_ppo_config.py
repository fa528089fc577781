"""The configuration refuses what cannot work, by field and rule."""

import dataclasses
import json
import math
from typing import Any

import pytest

from hybridppo import ConfigurationError, PPOConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in ("num_envs", "num_steps", "num_epochs", "num_minibatches") for value in (0, -1)),
        *((name, 1.5) for name in ("num_envs", "num_steps", "num_epochs", "num_minibatches", "torch_threads")),
        ("num_envs", True),
        ("num_envs", "8"),
        ("torch_threads", 0),
        *((name, value) for name in ("learning_rate", "clip_range", "max_grad_norm") for value in (0.0, -0.1)),
        *((name, math.nan) for name in ("learning_rate", "gamma", "entropy_coef", "clip_range_vf", "target_kl")),
        ("learning_rate", math.inf),
        ("learning_rate", "1e-3"),
        *((name, value) for name in ("gamma", "gae_lambda") for value in (-0.1, 1.1)),
        *((name, -0.1) for name in ("entropy_coef", "value_coef")),
        *((name, value) for name in ("clip_range_vf", "target_kl") for value in (0.0, -1.0)),
        ("anneal_learning_rate", 1),
        ("normalize_advantage", None),
        ("hidden_sizes", (64, 0)),
        ("hidden_sizes", (64.0,)),
        ("activation", "sigmoid"),
        ("num_minibatches", 3),
    ],
)
def test_impossible_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field) as error:
        PPOConfig(**{field: value})
    assert repr(value) in str(error.value)


def test_minibatches_that_do_not_divide_are_explained() -> None:
    with pytest.raises(ConfigurationError, match=r"must divide num_envs \* num_steps = 6 \* 5 = 30, got 4"):
        PPOConfig(num_envs=6, num_steps=5, num_minibatches=4)


def test_a_minibatch_of_one_cannot_be_normalised() -> None:
    with pytest.raises(ConfigurationError, match="normalize_advantage"):
        PPOConfig(num_envs=2, num_steps=2, num_minibatches=4)
    assert PPOConfig(num_envs=2, num_steps=2, num_minibatches=4, normalize_advantage=False).minibatch_size == 1


def test_whole_numbers_will_do_for_real_ones_and_lists_for_tuples() -> None:
    config = PPOConfig(gamma=1, hidden_sizes=[8, 4])  # type: ignore[arg-type]
    assert config.gamma == 1
    assert config.hidden_sizes == (8, 4)


def test_the_defaults_are_cleanrls() -> None:
    config = PPOConfig()
    assert (config.num_envs, config.num_steps, config.num_epochs, config.num_minibatches) == (4, 128, 4, 4)
    assert (config.learning_rate, config.gamma, config.gae_lambda, config.clip_range) == (2.5e-4, 0.99, 0.95, 0.2)
    assert (config.entropy_coef, config.value_coef, config.max_grad_norm) == (0.01, 0.5, 0.5)


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().gamma = 0.5  # type: ignore[misc]


def test_it_survives_json() -> None:
    config = PPOConfig(hidden_sizes=(32, 16), target_kl=0.02, activation="relu")
    assert PPOConfig(**json.loads(json.dumps(config.to_json()))) == config
