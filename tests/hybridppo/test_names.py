"""Unknown names: each error says which of ours was meant."""

from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.spaces import Box

import hybridppo
from hybridppo import PPOConfig, TD3Config


def test_an_agent_made_as_in_another_library_is_an_error_that_names_train() -> None:
    make: Any = hybridppo.PPO
    with pytest.raises(
        hybridppo.ConfigurationError, match=r"made for two spaces, got 'MlpPolicy': train one with hybridppo.t"
    ):
        make("MlpPolicy", "CartPole-v1")


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        (hybridppo.PPO, {"gamma": 0.9}, r"config must be PPOConfig\(...\), got {'gamma': 0.9}"),
        (hybridppo.PPO, TD3Config(), r"config must be PPOConfig\(...\), got TD3Config"),
        (hybridppo.TD3, PPOConfig(), r"config must be TD3Config\(...\), got PPOConfig"),
    ],
)
def test_an_agent_made_with_settings_of_another_is_an_error_that_names_its_own(
    kind: Any, config: Any, words: str
) -> None:
    with pytest.raises(hybridppo.ConfigurationError, match=words):
        kind(Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (1,)), config)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hybridppo.train("CartPole-v1", total_steps=1, num_env=1), "config=PPOConfig(num_envs=1)?"),
        (lambda: hybridppo.train("CartPole-v1", total_step=1), "did you mean total_steps=1?"),
        (lambda: hybridppo.train("CartPole-v1", total_timesteps=1), "did you mean total_steps=1?"),
        (lambda: hybridppo.train("CartPole-v1", total_steps=1, tau=1), "did you mean config=DDPGConfig(tau=1)?"),
        (
            lambda: hybridppo.resume("run", learning_rate=1e-4),
            "'learning_rate': a run keeps it; hybridppo.train(ENV",
        ),
        (lambda: hybridppo.resume("run", seed=1), "'seed': a run keeps it; hybridppo.train(ENV, start_from=RUN_DIR"),
        (
            lambda: hybridppo.train("CartPole-v1", total_steps=1, max_lag=1),
            "did you mean placement=Mirrored(..., max_lag=1)?",
        ),
    ],
)
def test_arguments_and_fields_are_told_apart(call: Callable[[], object], words: str) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert words in str(raised.value)
