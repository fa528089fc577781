"""Settings that are searched for with optuna."""

import json
from pathlib import Path
from typing import Any

import pytest

import hybridppo
from hybridppo import ConfigurationError, PPOConfig
from hybridppo.commands.main import main

pytestmark = pytest.mark.extras
FIXED = {"num_steps": 16, "minibatch_size": 32, "num_envs": 2, "num_epochs": 1, "hidden_sizes": [8]}


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
    with pytest.raises(ConfigurationError, match="holds a search with total_steps 400, not 500"):
        search(tmp_path, total_steps=500)


def test_what_is_fixed_must_be_fields(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"fields of PPOConfig: .*'width'"):
        search(tmp_path, fixed={"width": 3})
    with pytest.raises(ConfigurationError, match="gamma"):
        search(tmp_path, fixed={"gamma": 3.0})


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
