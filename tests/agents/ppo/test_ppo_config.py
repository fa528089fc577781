"""The configuration refuses what cannot work, by field and rule."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from hybridppo import ConfigurationError, PPOConfig
from hybridppo.agents.ppo.config import DIVIDING

COUNTS = (
    "num_envs", "num_steps", "num_epochs", "num_minibatches", "minibatch_size", "recurrent_size", "sequence_length",
    "pool_size",
)  # fmt: skip
POSITIVE = ("learning_rate", "clip_range", "desired_kl")
NOT_NEGATIVE = ("entropy_coef", "value_coef")
SHARES = ("gamma", "gae_lambda")
POSITIVE_OR_NONE = ("critic_learning_rate", "clip_range_vf", "max_grad_norm", "target_kl")
NUMBERS = (*POSITIVE, *NOT_NEGATIVE, *SHARES, *POSITIVE_OR_NONE)
SWITCHES = (
    "squash_actions",
    "normalize_observations",
    "normalize_rewards",
    "layer_norm",
    "shared_trunk",
    "use_sde",
    "orthogonal_init",
    "anneal_learning_rate",
    "anneal_clip_range",
    "normalize_advantage",
    "compiled_updates",
    "fast_updates",
    "cuda_graphs",
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in COUNTS for value in (0, -1, 1.5, 8.0, math.nan, math.inf, True, "8", [8])),
        *((name, None) for name in COUNTS if name not in DIVIDING),
        *(("torch_threads", value) for value in (0, -1, 1.5, 8.0, math.nan, True, "8", [8])),
        *((name, value) for name in NUMBERS for value in (-0.1, math.nan, math.inf, -math.inf, True, "0.5", [0.5])),
        *((name, None) for name in (*POSITIVE, *NOT_NEGATIVE, *SHARES)),
        *((name, value) for name in (*POSITIVE, *POSITIVE_OR_NONE) for value in (0, 0.0)),
        *((name, value) for name in SHARES for value in (1.0001, 2)),
        *((name, value) for name in SWITCHES for value in (0, 1, None, "yes")),
        *(("hidden_sizes", value) for value in ((0,), (64, 0), (-8,), (64.0,), (True,), ("64",), (None,), 64, None)),
        *(("critic_hidden_sizes", value) for value in ((0,), (64.0,), 64, "64")),
        *(("activation", value) for value in ("sigmoid", "Tanh", "", None, 3, ["tanh"])),
        *(("recurrent", value) for value in ("rnn", "LSTM", "", 1, True, ["lstm"])),
        *(("lag_correction", value) for value in ("impala", "", None, 3, ["vtrace"])),
        *(("convolutions", value) for value in ("resnet", "", None, 3, ["nature"])),
        *(("log_std_init", value) for value in (math.nan, math.inf, True, "0.5", [0.5], None)),
        *(("encoder_sizes", value) for value in ({}, {"a": []}, {"a": [0]}, {3: [8]}, [8], "a", True)),
        *((name, value) for name in ("actor_keys", "critic_keys") for value in ((), "a", (1,), ("a", "a"), True)),
        *(("critic_observes", value) for value in ("others", "", None, 3, ["all"])),
        *(("sde_sample_freq", value) for value in (0, -2, 1.5, True, "8", None, [8])),
        *(
            ("schedules", value)
            for value in ("cosine", "gamma", "gamma=tanh", "seed=linear", "gamma=linear:1.5", 3, None)
        ),
        *(("schedules", value) for value in ("entropy_coef=adaptive", "target_kl=linear", {"gamma": 0.5})),
        *(("precision", value) for value in ("bfloat16", "", None, 16, ["bf16"])),
        ("num_minibatches", 3),
        ("num_minibatches", 4096),
        ("minibatch_size", 100),
        ("minibatch_size", 4096),
        *(("episodes_per_rollout", value) for value in (0, -1, 1.5, 8.0, math.nan, True, "8")),
    ],
)
def test_impossible_values_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field} ") as error:
        PPOConfig(**{field: value})
    assert repr(value) in str(error.value)


def test_every_field_is_tried() -> None:
    tried = {
        *COUNTS,
        *NUMBERS,
        *SWITCHES,
        "torch_threads",
        "hidden_sizes",
        "critic_hidden_sizes",
        "activation",
        "precision",
        "recurrent",
        "convolutions",
        "lag_correction",
        "log_std_init",
        "sde_sample_freq",
        "encoder_sizes",
        "actor_keys",
        "critic_keys",
        "critic_observes",
        "schedules",
        "episodes_per_rollout",
        "settings",  # in test_own_loss.py
    }
    assert {field.name for field in dataclasses.fields(PPOConfig)} == tried


def test_numbers_of_numpy_become_those_of_python() -> None:
    numbers: dict[str, Any] = {"num_envs": np.int64(8), "gamma": np.float32(0.5), "clip_range": np.int32(1)}
    others: dict[str, Any] = {"normalize_rewards": np.bool_(False), "hidden_sizes": [np.int64(4)]}
    config = PPOConfig(**numbers, **others, encoder_sizes={"a": [np.int64(2)]})
    given = [config.num_envs, config.gamma, config.clip_range, config.normalize_rewards, *config.hidden_sizes]
    assert list(map(repr, given)) == ["8", "0.5", "1.0", "False", "4"]
    assert PPOConfig(**json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, 0.0) for name in (*NOT_NEGATIVE, *SHARES)),
        *((name, 1.0) for name in SHARES),
        *((name, None) for name in (*POSITIVE_OR_NONE, "torch_threads")),
        ("clip_range", 1.5),
        ("num_minibatches", 256),
        ("hidden_sizes", ()),
        ("hidden_sizes", (1,)),
        ("hidden_sizes", (2**31 - 1,)),
    ],
)
def test_values_at_the_edge_are_accepted(field: str, value: Any) -> None:
    assert getattr(PPOConfig(**{field: value}), field) == value


def test_minibatches_that_do_not_divide_are_explained() -> None:
    with pytest.raises(ConfigurationError, match=r"must divide num_envs \* num_steps = 6 \* 5 = 30, got 4"):
        PPOConfig(num_envs=6, num_steps=5, num_minibatches=4)


def test_whole_episodes_come_from_one_environment_in_any_number_of_minibatches() -> None:
    with pytest.raises(ConfigurationError, match="num_envs must be 1 if episodes_per_rollout is given, got 4"):
        PPOConfig(episodes_per_rollout=1)
    assert PPOConfig(num_envs=1, episodes_per_rollout=1, num_minibatches=1000).num_minibatches == 1000


def test_a_minibatch_of_one_cannot_be_normalised() -> None:
    with pytest.raises(ConfigurationError, match=r"^normalize_advantage .* 2 \* 2 / 4 = 1: use fewer minibatches"):
        PPOConfig(num_envs=2, num_steps=2, num_minibatches=4)
    assert PPOConfig(num_envs=2, num_steps=2, num_minibatches=4, normalize_advantage=False).samples_per_minibatch == 1


def test_a_sequence_of_one_step_cannot_be_normalised_by_itself() -> None:
    options: dict[str, Any] = {"num_envs": 2, "num_steps": 33, "recurrent": "lstm", "sequence_length": 32}
    with pytest.raises(ConfigurationError, match=r"^normalize_advantage .* sequence of a single step"):
        PPOConfig(**options, num_minibatches=3)  # of four sequences
    PPOConfig(**options, num_minibatches=2)
    PPOConfig(**options, num_minibatches=3, normalize_advantage=False)


def test_whole_numbers_will_do_for_real_ones_and_lists_for_tuples() -> None:
    config = PPOConfig(gamma=1, hidden_sizes=[8, 4])  # type: ignore[arg-type]
    assert config.gamma == 1
    assert config.hidden_sizes == (8, 4)


def test_real_numbers_are_kept_as_such_however_they_were_written() -> None:
    config = PPOConfig(max_grad_norm=10**30, critic_learning_rate=1, target_kl=None, num_envs=2)
    assert (type(config.max_grad_norm), config.max_grad_norm) == (float, 1e30)  # torch takes whole ones of 64 bits only
    assert type(config.critic_learning_rate) is float
    assert (config.target_kl, type(config.num_envs)) == (None, int)


def test_the_defaults_are_those_that_were_measured() -> None:
    config = PPOConfig()
    assert (config.num_envs, config.num_steps, config.num_epochs, config.samples_per_minibatch) == (4, 512, 10, 64)
    assert (config.learning_rate, config.anneal_learning_rate, config.gamma, config.gae_lambda) == (
        3e-4, False, 0.99, 0.95,
    )  # fmt: skip
    assert (config.clip_range, config.clip_range_vf, config.value_coef) == (0.2, None, 0.5)
    assert (config.entropy_coef, config.max_grad_norm) == (0.0, 0.5)
    assert config.normalize_observations
    assert config.normalize_rewards


@pytest.mark.parametrize(
    ("num_envs", "num_steps", "count"),
    [
        (4, 512, 32),
        (8, 512, 32),
        (1, 512, 8),
        (2, 16, 1),
        (1, 1, 1),
        (5, 50, 2),
        (1, 509, 1),
        (3, 64, 3),
        (4096, 24, 32),
    ],
)
def test_where_nobody_said_how_many_minibatches_have_64_samples_or_there_are_32(
    num_envs: int, num_steps: int, count: int
) -> None:
    config = PPOConfig(num_envs=num_envs, num_steps=num_steps, normalize_advantage=False)
    assert config.minibatches_of(config.batch_size) == count
    assert config.samples_per_minibatch * count == config.batch_size
    assert config.samples_per_minibatch >= 64 or count == 1


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 8),
        ({"sequence_length": 64}, 4),
        ({"sequence_length": 4}, 32),
        ({"num_steps": 16, "sequence_length": 512}, 1),  # of four sequences
        ({"num_envs": 32, "num_steps": 16, "sequence_length": 512}, 4),
        ({"num_envs": 16}, 32),
        ({"num_minibatches": 32}, 32),
    ],
    ids=str,
)
def test_with_a_memory_they_have_8_sequences_where_nobody_said(settings: dict[str, Any], count: int) -> None:
    assert PPOConfig(recurrent="lstm", **settings).minibatches == count


def test_a_size_of_minibatches_stays_as_given_and_excludes_their_number() -> None:
    config = PPOConfig(minibatch_size=256)
    assert (config.num_minibatches, config.minibatches, config.samples_per_minibatch) == (None, 8, 256)
    more = dataclasses.replace(config, num_envs=8)
    assert (more.minibatch_size, more.minibatches) == (256, 16)
    assert PPOConfig(**json.loads(json.dumps(more.to_json()))) == more
    with pytest.raises(ConfigurationError, match=r"minibatch_size and num_minibatches=4 both divide .*, got 64"):
        PPOConfig(num_minibatches=4, minibatch_size=64)
    with pytest.raises(ConfigurationError, match=r"minibatch_size must divide .* = 4 \* 512 = 2048, got 96"):
        PPOConfig(minibatch_size=96)
    with pytest.raises(
        ConfigurationError, match=r"minibatch_size must not be below .*, 64 of sequence_length 32, got 16"
    ):
        PPOConfig(recurrent="lstm", minibatch_size=16)
    assert PPOConfig(recurrent="lstm", minibatch_size=512).minibatches == 4
    episodes = PPOConfig(num_envs=1, episodes_per_rollout=4, minibatch_size=100)
    assert [episodes.minibatches_of(samples) for samples in (0, 99, 100, 101, 500)] == [1, 1, 1, 2, 5]


def test_of_whole_episodes_they_follow_from_what_was_sampled() -> None:
    config = PPOConfig(num_envs=1, episodes_per_rollout=4)
    assert [config.minibatches_of(samples) for samples in (0, 63, 64, 200, 509, 10_000)] == [1, 1, 1, 3, 7, 32]
    assert PPOConfig(num_envs=1, episodes_per_rollout=4, num_minibatches=5).minibatches_of(509) == 5


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().gamma = 0.5  # type: ignore[misc]


def test_it_survives_json() -> None:
    config = PPOConfig(hidden_sizes=(32, 16), target_kl=0.02, clip_range_vf=None, activation="relu")
    assert PPOConfig(**json.loads(json.dumps(config.to_json()))) == config
