"""An option is declared once: all that follows from its field is the same everywhere."""

import contextlib
import functools
import inspect
import io
import json
import pydoc
import re
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError, DDPGConfig, PPOConfig, RunDirectoryError, TD3Config
from hybridppo._lazy import helps
from hybridppo.agents.ppo.loss import LossInputs
from hybridppo.agents.registry import AGENTS
from hybridppo.commands.main import main, parse_command
from hybridppo.commands.parsing import flags_of
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.placements.placement import KINDS
from hybridppo.rollouts.rollout import Rollout
from hybridppo.run_directory.directory import RunDirectory
from hybridppo.settings import (
    GROUPS,
    RunOptions,
    Settings,
    can_change_result,
    changeable_names,
    distributed_from,
    fields_of,
)

OPTIONS = fields_of(*GROUPS)
CONFIG = ppo_config(num_envs=2, num_steps=8, num_epochs=1, hidden_sizes=(4,))
SOME: dict[str, Any] = {
    "total_steps": 32,
    "total_episodes": 1000,
    "seed": 7,
    "num_workers": 0,
    "evaluation_episodes": 1,
    "evaluate_every": 1_000_000,
    "episodes_per_evaluation": 2,
    "evaluate_async": True,
    "target_return": 1e6,
    "track": "",
    "track_project": "poles",
    "track_entity": "me",
    "track_name": "first",
    "track_tags": "ppo, cart",
    "start_from": None,
    "self_play": None,
    "checkpoint_seconds": 30.0,
    "checkpoint_every": 1000,
    "keep_checkpoints": 2,
    "distributed": "multi:1:2",
    "address": None,
    "vectorization": "sync",
    "env_threads": 2,
    "autoreset_mode": "next_step",
    "on_env_error": "restart",
    "worker_timeout": 20.0,
    "env_kwargs": {"sutton_barto_reward": True},
    "imports": "gymnasium, math",
    "action_masks": False,
    "frame_stack": 1,
    "max_items": 0,
    "clip_rewards": True,
    "episodic_life": False,
    "reward_weights": (),
    "info_metrics": (),
    "step_infos": (),
}
"""A value for every option. To add an option, add a line."""


CHANGES_RESULT = {
    RunOptions: "total_steps total_episodes seed target_return start_from self_play distributed",
    EnvironmentOptions: """vectorization autoreset_mode on_env_error env_kwargs imports action_masks frame_stack
        max_items clip_rewards episodic_life reward_weights step_infos""",
    PPOConfig: """num_envs num_steps episodes_per_rollout lag_correction pool_size num_epochs num_minibatches
        minibatch_size
        learning_rate critic_learning_rate anneal_learning_rate schedules desired_kl gamma gae_lambda
        clip_range anneal_clip_range
        clip_range_vf entropy_coef value_coef max_grad_norm target_kl normalize_advantage normalize_observations
        normalize_rewards squash_actions hidden_sizes critic_hidden_sizes activation encoder_sizes actor_keys
        critic_keys critic_observes layer_norm shared_trunk orthogonal_init
        log_std_init use_sde sde_sample_freq convolutions recurrent recurrent_size sequence_length precision
        settings""",
    TD3Config: """num_envs train_frequency gradient_steps batch_size buffer_size learning_starts steps_per_iteration
        learning_rate critic_learning_rate schedules gamma n_steps tau exploration_std hidden_sizes critic_hidden_sizes
        activation policy_delay target_noise_std target_noise_clip
        settings""",
}
"""Options and settings that can change a seed's results. A new one goes here or into the next list."""
SAME_RESULT: dict[type, dict[str, Any]] = {
    RunOptions: {
        "num_workers": 2,
        "evaluation_episodes": 1,
        "evaluate_every": 16,
        "episodes_per_evaluation": 1,
        "evaluate_async": False,
        "track": None,
        "track_project": "poles",
        "track_entity": "me",
        "track_name": "first",
        "track_tags": "ppo, cart",
        "checkpoint_seconds": 0.0,
        "checkpoint_every": 16,
        "keep_checkpoints": 1,
        "address": None,
    },
    EnvironmentOptions: {"env_threads": 2, "worker_timeout": 20.0, "info_metrics": ("speed",)},
    PPOConfig: {
        **{"fast_updates": False, "compiled_updates": None, "cuda_graphs": True},
        **{"torch_threads": 2},
    },
    TD3Config: {
        **{"fast_updates": False, "cuda_graphs": True, "torch_threads": 2},
        **{"buffer_on": "host"},
    },
}
"""Those that cannot, with a value to try; None for those that need an optional package."""


def train(**options: Any) -> hybridppo.TrainResult:
    return hybridppo.train("CartPole-v1", **{"placement": "cpu", "config": CONFIG, "progress": False, **options})


def test_there_is_a_value_for_every_option() -> None:
    assert SOME.keys() == OPTIONS.keys()


@pytest.mark.parametrize("group", CHANGES_RESULT)
def test_every_option_says_whether_it_can_change_a_result(group: type) -> None:
    options = fields_of(group)
    can, cannot = set(CHANGES_RESULT[group].split()), set(SAME_RESULT[group])
    assert can | cannot == options.keys()
    with_a_target = {"evaluate_every", "episodes_per_evaluation", "evaluate_async"} & cannot
    assert {name for name, option in options.items() if can_change_result(option, {})} == can
    found = {name for name, option in options.items() if can_change_result(option, {"target_return": 1.0})}
    assert found == can | with_a_target


def test_no_agent_is_forgotten() -> None:
    configs = {kind.config_type for kind in AGENTS.values()}
    assert {*GROUPS, *configs} == {*CHANGES_RESULT, DDPGConfig}  # whose fields are TD3's, too


@functools.cache
def parameters(config: Any, name: str = "", value: Any = None) -> torch.Tensor:
    """The results of an agent trained for two iterations, with one option changed if it is named."""
    env_id = "CartPole-v1" if isinstance(config, PPOConfig) else "Pendulum-v1"
    changes = {name: value} if name in fields_of(type(config)) else {}
    options = {name: value} if name and not changes else {}
    with tempfile.TemporaryDirectory() as folder:
        options |= {"total_steps": 2 * 32, "run_dir": Path(folder) / "run", "seed": 3}
        result = hybridppo.train(
            env_id, config=replace(config, **changes), placement="cpu", vectorization="sync", progress=False, **options
        )
    return result.agent.parameters.values.detach().clone()


SMALL = {
    PPOConfig: ppo_config(num_envs=2, num_steps=16, num_epochs=1, hidden_sizes=(4,)),
    TD3Config: TD3Config(
        num_envs=2,
        train_frequency=4,
        gradient_steps=2,
        steps_per_iteration=32,
        learning_starts=8,
        batch_size=8,
        hidden_sizes=(8,),
    ),
}


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [
        (config, name, value)
        for config in SMALL.values()
        for group in (type(config), *(GROUPS if isinstance(config, PPOConfig) else ()))
        for name, value in SAME_RESULT[group].items()
        if value is not None
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PPOConfig | TD3Config) else str(value),
)
def test_what_cannot_change_a_result_does_not(config: Any, name: str, value: Any) -> None:
    torch.testing.assert_close(parameters(config, name, value), parameters(config), rtol=1e-4, atol=1e-5)


def test_every_setting_of_a_placement_says_whether_it_can_change_a_result() -> None:
    """Devices, and what proves or forces a copy, cannot change results. Name a new argument here or in its class."""
    same = {"device", "sampling", "learning", "verify", "force_copy"}
    for kind in KINDS.values():
        assert set(inspect.signature(kind).parameters) - same == kind.changes_result.keys()


@pytest.mark.parametrize(
    ("one", "other", "is_alike"),
    [
        ("local", "multi:2", False),
        ("local", "multi:1", True),
        ("multi:2:4", "gpu:4:all_reduce", True),
        ("coarse:2", "fine:3", True),
        ("gpu:2", "gpu:1:2", True),
        ("gpu:2", "gpu:2:4", False),
        ("central:2", "central:2:1", True),
        ("central:2", "central:3", False),
        ("local", "gpu:1", True),
    ],
)
def test_what_of_a_distribution_can_change_a_result(one: str, other: str, is_alike: bool) -> None:
    assert (distributed_from(one).part_in_result() == distributed_from(other).part_in_result()) == is_alike


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options") / "run"
    train(run_dir=path, **SOME)
    return path


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_an_argument_a_flag_and_a_line_of_the_configuration(name: str, run_dir: Path) -> None:
    words = {field: text for group in GROUPS for field, text in helps(group).items()}
    for function in (hybridppo.train, *([hybridppo.resume] if name in changeable_names() else [])):
        assert name in inspect.signature(function).parameters
        assert f"{name}: {words[name]}" in " ".join((function.__doc__ or "").split())
    assert json.loads((run_dir / "config.json").read_text())[name] == json.loads(json.dumps(SOME[name]))
    assert re.search(rf"--{name.replace('_', '-')}[ ,]", help_of_train())


@functools.cache
def help_of_train() -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        main(["train", "--help"])
    return printed.getvalue()


def test_the_flags_of_every_option_are_read_back_as_they_were_written() -> None:
    parsed: Any = parse_command(["train", "CartPole-v1", *flags_of(SOME)])
    found = {**asdict(parsed.options), **asdict(parsed.environment)}
    assert {name: found[name] for name in OPTIONS} == {name: SOME[name] for name in OPTIONS}


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_has_a_sentence_of_help(group: type) -> None:
    assert helps(group).keys() == fields_of(group).keys()


@pytest.mark.parametrize("kind", [PPOConfig, TD3Config, LossInputs, Rollout])
def test_help_shows_the_words_of_every_field(kind: Any) -> None:
    text = pydoc.plain(pydoc.render_doc(kind))
    words = {name: text for base in kind.__mro__[:-1] for name, text in helps(base).items() if name in fields_of(kind)}
    assert words
    for name, of_field in words.items():
        assert f"{name}: {' '.join(of_field.split()[:3])}" in text


def test_what_is_read_is_what_was_written(run_dir: Path) -> None:
    settings = Settings.read(RunDirectory.open(run_dir))
    assert {**asdict(settings.run), **asdict(settings.environment)} == SOME
    assert settings.config == CONFIG
    assert Settings.read(RunDirectory(run_dir, {**settings.to_json(), "origin": {}})) == settings


def test_an_option_that_was_renamed_is_read_by_its_old_name(run_dir: Path) -> None:
    found = json.loads((run_dir / "config.json").read_text())
    found["evaluate_episodes"] = found.pop("episodes_per_evaluation")
    assert Settings.read(RunDirectory(run_dir, found)).run.episodes_per_evaluation == SOME["episodes_per_evaluation"]


def test_resuming_takes_what_may_change_and_nothing_else(run_dir: Path) -> None:
    parameters = inspect.signature(hybridppo.resume).parameters
    assert {name for name in OPTIONS if name in parameters} == set(changeable_names())
    assert {"total_steps", "num_workers", "worker_timeout"} <= set(changeable_names())
    assert not {"seed", "vectorization", "action_masks"} & set(changeable_names())
    with pytest.raises(TypeError, match="unexpected keyword argument 'vectorization'"):
        hybridppo.resume(run_dir, vectorization="sync")
    result = hybridppo.resume(run_dir, total_steps=64, keep_checkpoints=1, progress=False)
    assert result.metrics["env_steps"] >= 64
    assert len([path for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit()]) == 1
    found = json.loads((run_dir / "config.json").read_text())
    assert (found["total_steps"], found["keep_checkpoints"], found["num_workers"]) == (64, 1, 0)


def test_what_is_no_option_is_refused_as_python_does_with_what_was_meant() -> None:
    with pytest.raises(
        TypeError, match=r"train\(\) got an unexpected keyword argument 'num_worker': .*num_workers=2\?"
    ):
        train(total_steps=32, num_worker=2)
    with pytest.raises(TypeError, match=r"train\(\) missing 1 required keyword-only argument: 'total_steps'"):
        train()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"batch_size": 64}, "minibatch_size=64?"),
        ({"vf_coef": 0.5}, "value_coef=1.0? (the value loss is half the squared error here, and in CleanRL"),
        ({"vf_coef": "linear"}, "value_coef?"),
        ({"init_std": 0.5}, "log_std_init=-0.6931? (the logarithm)"),
        ({"train_batch_size": 4096, "num_envs": 8}, "num_steps=512? (of each of 8 environments)"),
        ({"n_epochs": 4}, "num_epochs=4?"),
        ({"lr": 1e-3}, "learning_rate=0.001?"),
        ({"learning_rat": 1e-3}, "learning_rate"),
        ({"zzz": 1}, None),
        ({"save_freq": 1}, None),
    ],
    ids=str,
)
def test_a_name_of_another_library_is_converted_or_not_named(given: dict[str, Any], meant: str | None) -> None:
    with pytest.raises(TypeError) as error:
        PPOConfig(**given)
    first = next(iter(given))
    hint = f": did you mean {meant}" if meant else ""
    said = str(error.value)
    assert said.startswith(f"PPOConfig() got an unexpected keyword argument {first!r}{hint}")
    assert ("did you mean" in said) == bool(meant)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"max_iterations": 10}, "total_steps=20480? (iterations of 4 x 512 steps)"),
        ({"eval_freq": 1000, "config": PPOConfig(num_envs=8)}, "evaluate_every=8000? (steps of 8 environments)"),
        ({"timesteps": 1000}, "total_steps=1000?"),
        ({"evaluate_episodes": 5}, "episodes_per_evaluation=5?"),
        ({"vf_coef": 0.5}, "config=PPOConfig(value_coef=1.0)?"),
        ({"gamma": 0.9}, "config=PPOConfig(gamma=0.9)?"),
        ({"n_steps": 64}, "config=PPOConfig(num_steps=64)?"),
        ({"n_steps": 3, "config": TD3Config()}, "config=TD3Config(n_steps=3)?"),
        ({"polyak": 0.995, "config": TD3Config()}, "config=TD3Config(tau=0.005)? (1 minus it)"),
        ({"max_lag": 2}, "placement=Mirrored(..., max_lag=2)?"),
    ],
    ids=str,
)
def test_an_argument_of_another_library_is_converted(given: dict[str, Any], meant: str) -> None:
    with pytest.raises(TypeError) as error:
        hybridppo.train("CartPole-v1", **given)
    assert f"{next(iter(given))!r}: did you mean {meant}" in str(error.value)


def test_every_name_that_a_hint_may_give_is_one_of_ours() -> None:
    ours = {*OPTIONS, *inspect.signature(hybridppo.train).parameters}
    ours |= fields_of(*(kind.config_type for kind in AGENTS.values())).keys()
    table = json.loads((Path(hybridppo.__file__).parent / "names_elsewhere.json").read_text())
    assert {name.partition(", ")[0] for name in table} <= ours


def test_numpys_whole_numbers_are_taken(tmp_path: Path) -> None:
    steps, seed = np.int64(16), np.uint8(3)
    result = train(total_steps=steps, seed=seed, run_dir=tmp_path / "run")
    assert result.seed == 3
    assert json.loads((tmp_path / "run" / "config.json").read_text())["total_steps"] == 16


COMPILED = {"vectorization": "compiled", "autoreset_mode": None, "on_env_error": "raise"}
WRONG = [
    (RunOptions, {"total_steps": 0}, "total_steps must be a whole number of at least 1, got 0"),
    (RunOptions, {"total_steps": 2.5}, "total_steps must be a whole number"),
    (RunOptions, {"total_steps": True}, "total_steps must be a whole number"),
    (RunOptions, {"total_steps": 1, "total_episodes": 0}, "total_episodes must be"),
    (RunOptions, {"total_steps": 1, "seed": -1}, "seed must be a whole number of at least 0"),
    (RunOptions, {"total_steps": 1, "seed": 2**128}, "seed must be below"),
    (RunOptions, {"total_steps": 1, "num_workers": -1}, "num_workers must be"),
    (RunOptions, {"total_steps": 1, "keep_checkpoints": 0}, "keep_checkpoints must be"),
    (RunOptions, {"total_steps": 1, "evaluation_episodes": -1}, "evaluation_episodes must be"),
    (RunOptions, {"total_steps": 1, "checkpoint_seconds": float("nan")}, "checkpoint_seconds must be"),
    (RunOptions, {"total_steps": 1, "evaluate_every": -1}, "evaluate_every must be"),
    (RunOptions, {"total_steps": 1, "episodes_per_evaluation": 0}, "episodes_per_evaluation must be"),
    (RunOptions, {"total_steps": 1, "evaluate_async": "yes"}, "evaluate_async must be True, .* got 'yes'"),
    (RunOptions, {"total_steps": 1, "target_return": "high"}, "target_return must be a finite number .*, got 'high'"),
    (RunOptions, {"total_steps": 1, "target_return": float("inf")}, "target_return must be a finite number"),
    (RunOptions, {"total_steps": 1, "track": "tensorbord"}, "track must name .* did you mean tensorboard"),
    (RunOptions, {"total_steps": 1, "track": 3}, "track must name loggers, with commas between, got 3"),
    (RunOptions, {"total_steps": 1, "start_from": 3}, "start_from must name .* file, got 3: save an agent with"),
    (EnvironmentOptions, {"env_kwargs": [1]}, "env_kwargs must be a dict of arguments by name"),
    (EnvironmentOptions, {"imports": ["my_envs"]}, "imports must name modules, with commas between"),
    (EnvironmentOptions, {"vectorization": "threads"}, "vectorization must be one of auto, sync, compiled"),
    (EnvironmentOptions, {"autoreset_mode": "never"}, "autoreset_mode must be one of next_step"),
    (EnvironmentOptions, {"on_env_error": "ignore"}, "on_env_error must be one of raise, restart"),
    (EnvironmentOptions, {"worker_timeout": 0.0}, "worker_timeout must be positive"),
    (EnvironmentOptions, {"action_masks": 1}, "action_masks must be True or False"),
    *(
        (EnvironmentOptions, {**COMPILED, name: value}, f"{name}={value!r} does not work with vectorization='compiled'")
        for name, value in {"autoreset_mode": "disabled", "episodic_life": True, "action_masks": True}.items()
    ),
]


@pytest.mark.parametrize(("group", "values", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused_when_made_and_when_read(
    group: type, values: dict[str, Any], message: str, run_dir: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        group(**values)
    written = json.loads((run_dir / "config.json").read_text())
    with pytest.raises(RunDirectoryError, match=f"config.json is damaged: {message}"):
        Settings.read(RunDirectory(run_dir, {**written, **values}))
