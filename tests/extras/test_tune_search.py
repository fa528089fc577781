"""The search for settings with optuna."""

import json
import re
import shlex
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import hybridppo
from hybridppo import ConfigurationError, HybridPPOError, PPOConfig
from hybridppo.commands.main import main
from hybridppo.settings import settings_of_result
from hybridppo.tools.hyperparameters import config_from

pytestmark = pytest.mark.extras
FIXED = {"num_steps": 16, "minibatch_size": 32, "num_envs": 2, "num_epochs": 1, "hidden_sizes": [8]}


NETWORKS = {"hidden_sizes": [8], "activation": "tanh", "normalize_observations": True}


def with_lock(lock: Any) -> Any:
    return gym.make("CartPole-v1")


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("optuna")


def search(output: Path, **options: Any) -> Any:
    options = {"total_steps": 400, "trials": 3, "jobs": 2, "fixed": FIXED, "progress": False, **options}
    return hybridppo.tune("CartPole-v1", output=output, **options)


def test_a_search_ends_in_an_entry_and_goes_on_where_it_is(tmp_path: Path) -> None:
    import optuna
    from optuna.storages import journal

    entry = search(tmp_path, trials=2)
    assert entry.config == hybridppo.tuned("CartPole-v1", file=tmp_path / "tuned.json")
    assert (entry.config.num_steps, entry.config.hidden_sizes, entry.config.num_minibatches) == (16, (8,), 1)
    assert entry.config.clip_range_vf is None
    assert entry.return_here is not None
    finals = sorted(path.name for path in (tmp_path / "finals").iterdir())
    assert finals == [f"{trial:04d}-seed{seed}" for trial in (0, 1) for seed in (1, 2, 3)]
    # As if it had been stopped in the middle of a trial.
    log = str(tmp_path / "study.log")
    storage = optuna.storages.JournalStorage(journal.JournalFileBackend(log, lock_obj=journal.JournalFileOpenLock(log)))
    study = optuna.load_study(study_name="CartPole-v1", storage=storage)
    trial = study.ask()
    trial.set_user_attr("run_dir", "trials/under-way")
    chosen = trial.suggest_float("learning_rate", 3e-5, 3e-3, log=True)
    search(tmp_path, trials=3)
    written = json.loads((tmp_path / "trials" / "under-way" / "config.json").read_text())
    assert written["config"]["learning_rate"] == chosen
    study = optuna.load_study(study_name="CartPole-v1", storage=storage)
    states = [one.state.name for one in study.trials]
    assert states == ["COMPLETE", "COMPLETE", "FAIL", "COMPLETE"]
    rates = [one.params["learning_rate"] for one in study.trials]
    assert len(set(rates)) == 3  # the one that was taken up again, and no other, was tried before
    assert rates[0] == PPOConfig().learning_rate
    with pytest.raises(ConfigurationError, match="was begun with total_steps 400, not 500"):
        search(tmp_path, total_steps=500)


def test_what_is_fixed_must_be_fields(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"fields of PPOConfig: .*'width'"):
        search(tmp_path, fixed={"width": 3})
    with pytest.raises(ConfigurationError, match="gamma"):
        search(tmp_path, fixed={"gamma": 3.0})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"seed": 2**128 - 1}, "seed must be below"),
        ({"total_steps": 0}, "total_steps must be"),
        ({"trials": 0}, "trials must be"),
        ({"jobs": 0}, "jobs must be"),
        ({"frame_stack": 0}, "frame_stack must be"),
        ({"env_kwargs": {"size": 8}}, "size"),
        ({"action_masks": True}, "action_mask"),
        ({"placement": "auto"}, "name a placement"),
        ({"placement": "nowhere"}, "unknown placement"),
        ({"start_from": "runs/nothing"}, "needs networks of one form"),
        ({"start_from": "nothing", "fixed": NETWORKS}, "nothing"),
        ({"env": "CartPoel-v1"}, "CartPoel-v1"),
        ({"env": partial(with_lock, threading.Lock())}, "cannot be sent to .* which cannot be pickled"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),
)
def test_what_cannot_be_is_refused_before_anything_is_made(options: Any, words: str, tmp_path: Path) -> None:
    env = options.pop("env", "CartPole-v1")
    # What an environment's own function raises is left as it is.
    with pytest.raises((HybridPPOError, TypeError), match=words):
        hybridppo.tune(env, output=tmp_path / "tune", **options)
    assert not (tmp_path / "tune").exists()


def test_large_seeds_are_taken(tmp_path: Path) -> None:
    assert search(tmp_path, seed=2**40, trials=1).return_here is not None


def settings_below(output: Path) -> list[dict[str, Any]]:
    """All that can change the results of the trials, and of the runs with further seeds."""
    files = sorted(output.glob("*/*/config.json"))
    assert len(files) == 1 + 3
    return [settings_of_result(json.loads(file.read_text())) for file in files]


def test_the_command_that_is_printed_trains_what_was_searched_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = {**FIXED, **NETWORKS}
    config = PPOConfig(num_envs=2, num_steps=16, hidden_sizes=(8,))
    environment = {"frame_stack": 2, "clip_rewards": False, "vectorization": "sync", "on_env_error": "restart"}
    env_kwargs = {"sutton_barto_reward": True}
    options = {**environment, "env_kwargs": env_kwargs, "placement": "cpu", "progress": False}
    hybridppo.train("CartPole-v1", total_steps=32, config=config, run_dir=tmp_path / "a first run", **options)
    flags = ["--env-kwargs", json.dumps(env_kwargs), "--start-from", tmp_path / "a first run"]
    flags += [text for name, value in environment.items() for text in (f"--{name.replace('_', '-')}", value)]
    flags += ["--placement", "overlap", "--learning-device", "cpu", "--fixed", json.dumps(fixed)]
    flags += ["--total-steps", 400, "--trials", 1, "--output", tmp_path / "my tune", "--no-progress"]
    with pytest.raises(SystemExit) as exited:
        main(["tune", "CartPole-v1", *map(str, flags)])
    assert exited.value.code == 0
    printed = capsys.readouterr().out.partition("train with it: ")[2].strip()
    _, *arguments = shlex.split(printed)
    with pytest.raises(SystemExit) as exited:
        main([*arguments, "--run-dir", str(tmp_path / "run"), "--no-progress"])
    assert exited.value.code == 0
    trained = settings_of_result(json.loads((tmp_path / "run" / "config.json").read_text()))
    assert trained["env_kwargs"] == env_kwargs
    assert trained["start_from"] == str(tmp_path / "a first run")
    assert (trained["max_lag"], trained["frame_stack"], trained["clip_rewards"]) == (1, 2, False)
    assert all(settings == trained for settings in settings_below(tmp_path / "my tune"))


class Sized(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole, with the masks of a game of the requested size."""

    def __init__(self, size: int) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.size = size

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return observation, {**info, "action_mask": np.ones(2, np.int8)}

    def step(self, action: Any) -> Any:
        *others, info = super().step(action)
        return *others, {**info, "action_mask": np.ones(2, np.int8)}


def test_functions_and_masks_are_searched_with(tmp_path: Path) -> None:
    options = {"total_steps": 200, "jobs": 2, "fixed": FIXED, "progress": False, "output": tmp_path}
    options |= {"env_kwargs": {"size": 3}, "action_masks": True}
    entry = hybridppo.tune(Sized, trials=1, **options)
    assert hybridppo.tuned("Sized", file=tmp_path / "tuned.json") == entry.config
    for settings in settings_below(tmp_path):
        assert (settings["env_kwargs"], settings["action_masks"]) == ({"size": 3}, True)
    with pytest.raises(ConfigurationError, match="was begun with action_masks True, not False"):
        hybridppo.tune(Sized, trials=1, **{**options, "action_masks": False})


def test_on_the_command_line_and_train_takes_the_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--total-steps", 400, "--trials", 1, "--output", tmp_path / "tune", "--no-progress"]
    with pytest.raises(SystemExit) as exited:
        main(["tune", "CartPole-v1", *map(str, arguments), "--fixed", json.dumps(FIXED)])
    assert exited.value.code == 0
    assert f"hybridppo train CartPole-v1 --tuned-from {tmp_path / 'tune' / 'tuned.json'}" in capsys.readouterr().out
    arguments = ["--tuned-from", tmp_path / "tune" / "tuned.json", "--run-dir", tmp_path / "run", "--gamma", 0.5]
    with pytest.raises(SystemExit) as exited:
        main(["train", "CartPole-v1", "--no-progress", *map(str, arguments)])
    assert exited.value.code == 0
    assert "tuned: hybridppo tune, trial 0 of 1, 400 steps" in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["total_steps"], config["config"]["num_steps"], config["config"]["gamma"]) == (400, 16, 0.5)


@pytest.mark.parametrize(
    ("fixed", "size", "minibatches"),
    [
        ({"num_envs": 4, "num_steps": 512}, 64, 32),
        ({"num_envs": 4, "num_steps": 1000}, 64, 50),  # 62 would fit, and do not divide 4,000
        ({"num_envs": 7, "num_steps": 64}, 128, 2),
        ({"num_envs": 4, "num_steps": 128, "recurrent": "lstm", "sequence_length": 128}, 64, 4),  # as many sequences
        ({"num_envs": 1, "num_steps": 16}, 512, 1),
    ],
    ids=str,
)
def test_minibatches_are_at_least_as_large_as_asked_for(fixed: dict[str, Any], size: int, minibatches: int) -> None:
    assert config_from({"minibatch_size": size}, fixed).num_minibatches == minibatches


SMALL = PPOConfig(num_envs=2, num_steps=16, num_epochs=1, hidden_sizes=(8,), settings={"beta": 9.0, "kept": 1})


def length_of_config(result: hybridppo.TrainResult) -> float:
    """An objective that is known beforehand: large with a low gamma, and with the setting and seed."""
    config = result.agent.config
    return -config.gamma + config.settings["beta"] + 100.0 * config.num_epochs + result.seed


def test_an_objective_and_a_space_of_ones_own_over_several_seeds(tmp_path: Path) -> None:
    space = {
        "gamma": [0.9],
        "learning_rate": (1e-4, 1e-2, "log"),
        "num_epochs": (2, 3),
        "settings.beta": (0.5, 0.5),
        "hidden_sizes": [(4,), (4, 4)],
    }
    options = {"config": SMALL, "objective": length_of_config, "space": space, "seeds": 2, "seed": 5}
    options |= {"total_episodes": 1}  # a run that stops before its goal has ended, too
    entry = search(tmp_path, total_steps=64, trials=2, fixed=None, placement="cpu", num_workers=0, **options)
    assert entry.return_here == pytest.approx(-0.9 + 0.5 + 100 * entry.config.num_epochs + 8)  # of seeds 7, 8 and 9
    assert entry.config.settings == {"beta": 0.5, "kept": 1}
    assert entry.config.num_epochs in (2, 3)
    assert entry.config.hidden_sizes in ((4,), (4, 4))
    assert 1e-4 <= entry.config.learning_rate <= 1e-2
    trial = tmp_path / "trials" / "0000"
    values = [json.loads((trial / f"seed{seed}" / "objective.json").read_text())["value"] for seed in (5, 6)]
    assert values[1] == values[0] + 1
    assert not (trial / "seed5" / "evaluations.jsonl").exists()
    assert hybridppo.tuned("CartPole-v1", file=tmp_path / "tuned.json") == entry.config
    assert sorted(path.name for path in (tmp_path / "finals").iterdir())[:3] == [f"0000-seed{s}" for s in (7, 8, 9)]
    again = search(tmp_path, total_steps=64, trials=2, fixed=None, placement="cpu", num_workers=0, **options)
    assert again == entry
    with pytest.raises(ConfigurationError, match="was begun with objective 'length_of_config', not None"):
        search(tmp_path, total_steps=64, trials=2, fixed=None, num_workers=0, **options | {"objective": None})


def test_a_space_may_be_a_function_and_another_agent_is_tuned(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        return {"tau": trial.suggest_float("tau", 0.01, 0.02), "gamma": 0.9}

    config = hybridppo.TD3Config(learning_starts=20, steps_per_iteration=30, batch_size=4, hidden_sizes=(4,))
    options: dict[str, Any] = {"total_steps": 60, "trials": 1, "jobs": 1, "progress": False}
    entry = hybridppo.tune(
        "Pendulum-v1", output=tmp_path, config=config, space=space, objective=lambda result: 1.0, **options
    )
    assert type(entry.config) is hybridppo.TD3Config
    assert (entry.config.gamma, entry.config.hidden_sizes, entry.return_here) == (0.9, (4,), 1.0)
    assert 0.01 <= entry.config.tau <= 0.02
    assert hybridppo.tuned("Pendulum-v1", file=tmp_path / "tuned.json") == entry.config


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"space": {"gamma": 0.9}},
            r"space\['gamma'\] must be a list of values, or a range \(low, high\) or .*got 0.9",
        ),
        ({"space": {"gamma": (0.9, 0.8)}}, r"space\['gamma'\] must be"),
        ({"space": {"learning_rate": (0.0, 1.0, "log")}}, r"space\['learning_rate'\] must be"),
        ({"space": {"gama": [0.9]}}, "must hold fields of PPOConfig: .*did you mean gamma"),
        ({"space": lambda trial: None}, "space must return a dict of hyperparameters, returned None"),
        ({"objective": 3}, "objective must be a function of a TrainResult, got 3"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1, got 0"),
        ({"seeds": []}, "seeds must have a seed, got none"),
        ({"run_dir": "x"}, "run_dir does not work with tune: leave it out"),
        ({"evaluate_every": 10}, "evaluate_every does not work with tune"),
    ],
)
def test_a_space_an_objective_and_seeds_that_cannot_be_are_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        search(tmp_path / "search", fixed=None, **options)
    assert not (tmp_path / "search").exists()
