"""Names of other libraries: each error says which of ours was meant."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.spaces import Box

import hybridppo
from hybridppo import DDPGConfig, PPOConfig, TD3Config
from hybridppo.agents.registry import AGENTS
from hybridppo.commands.main import main
from hybridppo.names import ELSEWHERE, OF_CONFIGS, OF_TRAIN
from hybridppo.options import fields_of

ARGUMENTS = inspect.signature(hybridppo.train).parameters


def test_every_name_is_one_of_ours_and_stands_for_one() -> None:
    settings = {name for kind in AGENTS.values() for name in fields_of(kind.config)}
    assert set(OF_CONFIGS.values()) <= settings
    assert set(OF_TRAIN.values()) <= set(ARGUMENTS)
    assert not (OF_CONFIGS.keys() | OF_TRAIN.keys()) & set(ARGUMENTS)
    assert not (OF_CONFIGS.keys() & OF_TRAIN.keys())


@pytest.mark.parametrize("kind", [PPOConfig, DDPGConfig, TD3Config])
@pytest.mark.parametrize("name", OF_CONFIGS)
def test_configurations_name_the_field_that_was_meant(name: str, kind: type[Any]) -> None:
    fields = fields_of(kind)
    if name in fields:  # as DDPG's n_steps
        return
    ours = OF_CONFIGS[name]
    with pytest.raises(TypeError) as raised:
        kind(**{name: 1})
    said = f"{kind.__name__}() got an unexpected keyword argument {name!r}"
    assert str(raised.value) == (f"{said}: did you mean {ours}?" if ours in fields else said)


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
        (lambda: PPOConfig(total_timesteps=1), "did you mean hybridppo.train(total_steps=...)?"),
        (lambda: PPOConfig(total_steps=1), "did you mean hybridppo.train(total_steps=...)?"),
        (lambda: hybridppo.train("CartPole-v1", total_steps=1, num_env=1), "config=PPOConfig(num_envs=...)?"),
        (lambda: hybridppo.train("CartPole-v1", total_step=1), "did you mean total_steps?"),
        (lambda: PPOConfig(seed=1), "did you mean hybridppo.train(seed=...)?"),
        (lambda: TD3Config(gama=1), "did you mean gamma?"),
        (lambda: hybridppo.train("CartPole-v1", total_timesteps=1), "did you mean total_steps?"),
        (
            lambda: hybridppo.train("CartPole-v1", total_steps=1, n_steps=1),
            "did you mean config=PPOConfig(num_steps=...)?",
        ),
        (lambda: hybridppo.train("CartPole-v1", total_steps=1, tau=1), "did you mean config=DDPGConfig(tau=...)?"),
        (lambda: hybridppo.train("CartPole-v1", steps=1), "did you mean total_steps?"),
        (lambda: hybridppo.train("CartPole-v1", total_steps=1, save_every=1), "did you mean checkpoint_seconds?"),
        (lambda: PPOConfig(init_std=0.5), "did you mean log_std_init?"),
        (lambda: hybridppo.resume("run", eval_freq=1), "did you mean evaluate_every?"),
        (lambda: hybridppo.resume("run", lr=1e-4), "'lr': a run keeps it; hybridppo.train(ENV, start_from=RUN_DIR"),
        (lambda: hybridppo.resume("run", seed=1), "'seed': a run keeps it; hybridppo.train(ENV, start_from=RUN_DIR"),
        (
            lambda: hybridppo.train("CartPole-v1", total_steps=1, max_lag=1),
            "did you mean placement=Mirrored(..., max_lag=...)?",
        ),
    ],
)
def test_arguments_and_fields_are_told_apart(call: Callable[[], object], words: str) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert words in str(raised.value)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_flags_that_are_no_flags_here_are_errors_that_say_what_to_do(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["train", f"--{name.replace('_', '-')}", "CartPole-v1"])
    assert f"hybridppo: {ELSEWHERE[name]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--n-steps", "8", "--lr=0.1"], ["--n-steps is --num-steps here", "--lr is --learning-rate here"]),
        (["--no-anneal-lr", "--total-timesteps", "8"], ["--anneal-lr is --anneal-learning-rate", "is --total-steps"]),
        (["--agent", "td3", "--policy-noise", "0.1"], ["--policy-noise is --target-noise-std here"]),
        (["--no-such-flag", "8"], []),
        (["--n-steps", "8", "--gamma", "high"], []),  # which is wrong first
    ],
    ids=str,
)
def test_flags_name_the_one_that_was_meant(
    arguments: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["train", "CartPole-v1", *arguments])
    assert exited.value.code == 2
    err = capsys.readouterr().err
    assert all(text in err for text in said)
    assert err.count("hybridppo: --") == len(said)
