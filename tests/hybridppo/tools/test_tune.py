"""Tuned settings: the file's contents, and their use on the command line."""

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError, PPOConfig
from hybridppo.commands.main import main, parse_command
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.reporting.callbacks import TrainingRun
from hybridppo.tools.hyperparameters import FILE, FIRST, SPACE, Entry, tuned_entry, write_entry
from hybridppo.tools.jobs import Run
from hybridppo.tools.tune import _Judge

ENTRIES: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["environments"]


@pytest.mark.parametrize("env_id", ENTRIES)
def test_every_entry_is_whole_and_of_an_environment_that_there_is(env_id: str) -> None:
    assert env_id in gym.registry
    entry = tuned_entry(env_id)
    assert entry.config == hybridppo.tuned(env_id) == ppo_config(**ENTRIES[env_id]["config"])
    assert entry.total_steps >= 20_000
    assert entry.source.startswith(("rl-baselines3-zoo", "CleanRL", "Tianshou"))
    assert ENTRIES[env_id].keys() >= {"published_return", "return_here", "left_out"}
    if entry.return_here is None:
        assert "not measured here yet" in str(entry)
    if entry.left_out is not None:
        assert entry.left_out in str(entry)


def test_settings_are_those_of_the_source_in_our_terms() -> None:
    cheetah = hybridppo.tuned("HalfCheetah-v5")
    assert cheetah.value_coef == pytest.approx(2 * 0.58096)
    assert (cheetah.num_envs, cheetah.num_steps, cheetah.samples_per_minibatch) == (1, 512, 64)
    assert cheetah.normalize_observations
    assert cheetah.normalize_rewards
    assert (cheetah.hidden_sizes, cheetah.activation, cheetah.log_std_init) == ((256, 256), "relu", -2.0)
    assert (cheetah.entropy_coef, cheetah.clip_range_vf, cheetah.anneal_learning_rate) == (0.000401762, None, False)
    assert not cheetah.orthogonal_init
    hopper = hybridppo.tuned("Hopper-v5")  # whose values are clipped, and halved twice
    assert (hopper.clip_range_vf, hopper.value_coef, hopper.samples_per_minibatch) == (0.2, 0.5, 64)
    assert hopper.anneal_learning_rate
    walker = hybridppo.tuned("Walker2d-v5")  # whose vf_coef of 0.25 is of the squared error, and of 2,048 steps
    assert (walker.value_coef, walker.batch_size, walker.samples_per_minibatch, walker.num_epochs) == (
        0.5,
        2048,
        64,
        10,
    )
    assert (walker.normalize_advantage, walker.log_std_init, walker.anneal_learning_rate) == (False, -0.5, True)
    assert walker == hybridppo.tuned("Ant-v5")
    cartpole = hybridppo.tuned("CartPole-v1")
    assert cartpole.anneal_learning_rate
    assert cartpole.anneal_clip_range
    assert (cartpole.learning_rate, cartpole.samples_per_minibatch) == (1e-3, 256)
    pendulum, car = hybridppo.tuned("Pendulum-v1"), hybridppo.tuned("MountainCarContinuous-v0")
    assert (pendulum.use_sde, pendulum.sde_sample_freq, pendulum.log_std_init) == (True, 4, 0.0)
    assert (car.use_sde, car.sde_sample_freq, car.log_std_init, car.orthogonal_init) == (True, -1, -3.29, False)
    assert "larger than a rollout" in (tuned_entry("MountainCarContinuous-v0").left_out or "")


def test_an_environment_without_an_entry_names_those_with_one() -> None:
    with pytest.raises(ConfigurationError, match=r"'Taxi-v3', but for: CartPole-v1, Acrobot-v1, .*Hopper-v5"):
        hybridppo.tuned("Taxi-v3")


def train(run_dir: Path, *arguments: object, env_id: str = "CartPole-v1") -> int:
    options = ("--tuned", "--run-dir", run_dir, "--placement", "cpu", "--no-progress", *arguments)
    with pytest.raises(SystemExit) as exited:
        main(["train", env_id, *map(str, options)])
    return int(exited.value.code or 0)


def test_tuned_is_where_other_flags_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", "--total-steps", 512, "--gamma", 0.99, "--learning-rate", 2.5e-4, "--seed", 1) == 0
    assert "tuned: rl-baselines3-zoo" in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    # A flag counts also where it says what the default without --tuned is.
    expected = {**hybridppo.tuned("CartPole-v1").to_json(), "gamma": 0.99, "learning_rate": 2.5e-4}
    assert ppo_config(**config["config"]) == ppo_config(**expected)
    assert config["total_steps"] == 512


def test_tuned_steps_are_those_of_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Enough(Exception):  # noqa: N818
        pass

    def noted(env_id: str, **options: Any) -> None:
        given.update(options)
        raise Enough

    monkeypatch.setattr("hybridppo.commands.train.train", noted)
    assert train(tmp_path / "run", env_id="Acrobot-v1") == 1
    assert given["total_steps"] == 1_000_000
    assert given["config"] == hybridppo.tuned("Acrobot-v1")


def test_tuned_without_an_entry_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path / "run", env_id="Taxi-v3") == 2
    assert "no tuned hyperparameters for 'Taxi-v3'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_trials_are_compared_after_as_many_steps() -> None:
    reported: list[tuple[float, int]] = []
    trial = SimpleNamespace(report=lambda *found: reported.append(found), should_prune=lambda: len(reported) > 1)
    judge, run = _Judge(trial, 2000), TrainingRun(agent=None, config={})  # type: ignore[arg-type]
    for env_steps in (3000, 6000):  # iterations of 3000 steps
        assert not judge.has_pruned
        judge.on_evaluation(run, {"env_steps": env_steps, "evaluation_return_mean": 1.0})
    assert reported == [(1.0, 0), (1.0, 2)]
    assert judge.has_pruned
    assert run.stopped_by is not None
    run.has_ended = True  # the evaluation after the training is no look
    judge.on_evaluation(run, {"env_steps": 8000, "evaluation_return_mean": 1.0})
    assert len(reported) == 2


def test_tune_searches_with_the_options_of_train_and_prints_the_command_that_trains_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}
    config = ppo_config(gamma=0.5, hidden_sizes=(8, 8))
    file = tmp_path / "my tune" / "tuned.json"

    def search(env_id: str, **options: Any) -> Entry:
        asked.update(options)
        file.parent.mkdir()
        entry = Entry(config, 4000, "a search", None, 1.0, None)
        write_entry(file, env_id, entry)
        return entry

    monkeypatch.setattr("hybridppo.tools.tune.tune", search)
    flags = ["--env-kwargs", '{"name": "it\'s"}', "--action-masks", "--import", "gymnasium", "--start-from", "a run"]
    flags += ["--placement", "hybrid", "--learning-device", "cpu", "--output", str(file.parent)]
    with pytest.raises(SystemExit) as exited:
        main(["tune", "CartPole-v1", *flags])
    assert exited.value.code == 0
    assert asked["placement"].settings() == hybridppo.Mirrored("cpu", "cpu").settings()
    printed = capsys.readouterr().out.partition("train with it: ")[2].strip()
    _, *arguments = shlex.split(printed)
    parsed: Any = parse_command(arguments)
    assert (parsed.env_id, parsed.config, parsed.options.total_steps) == ("CartPole-v1", config, 4000)
    assert asdict(parsed.environment) == {name: asked[name] for name in asdict(EnvironmentOptions())}
    assert parsed.environment.env_kwargs == {"name": "it's"}
    assert parsed.options.start_from == asked["start_from"] == "a run"
    assert parsed.placement.resolve().settings() == asked["placement"].settings()


class OneIteration(hybridppo.Callback):
    def on_iteration(self, run: TrainingRun, metrics: Any) -> None:
        run.stop("enough")


def test_a_run_goes_on_although_train_has_completed_its_hyperparameters(tmp_path: Path) -> None:
    """It takes the number of threads, schedules and hyperparameters of one's own into them."""
    config = ppo_config(num_envs=2, num_steps=16, num_minibatches=2, hidden_sizes=(8,), torch_threads=None)
    options = {"placement": "cpu", "schedules": "clip_range=linear", "settings": {"beta": 1}, "debug": True}
    run, steps = Run(tmp_path / "run", "CartPole-v1", 64, 0, config, options), list[float]()
    assert replace(run, options={**options, "callbacks": OneIteration()}).train()
    assert replace(run, options={**options, "on_iteration": lambda line: steps.append(line["env_steps"])}).train()
    assert steps
    for change, message in (
        ({"config": replace(config, gamma=0.5)}, "gamma 0.99, not 0.5"),
        ({"options": {**options, "schedules": "clip_range=cosine"}}, "schedules 'clip_range=linear', not "),
        ({"options": {**options, "settings": {"beta": 2}}}, "settings {'beta': 1}, not {'beta': 2}"),
        ({"total_steps": 96}, "total_steps 64, not 96"),
    ):
        with pytest.raises(ConfigurationError, match=f"run was begun with {re.escape(message)}"):
            replace(run, **change).train()


def test_a_search_begins_near_the_defaults() -> None:
    defaults = {**vars(PPOConfig()), "minibatch_size": PPOConfig().samples_per_minibatch}
    assert FIRST.keys() == SPACE.keys()
    for name, text in FIRST.items():
        values = {str(value): value for value in SPACE[name]}
        value = values.get(str(text), text)
        if isinstance(value, (bool, str, tuple)):
            assert value == defaults[name]
        elif name != "learning_rate":
            assert value == min(values.values(), key=lambda one: abs(one - defaults[name]))
