"""Each logger with its real package, without a network: what it saved is read back."""

import json
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import run_python
from run_files import lines_of

import hybridppo
from hybridppo.reporting.loggers import mlflow_name

pytestmark = pytest.mark.extras

BATCH = 32
STEPS = [BATCH * (i + 1) for i in range(6)]

TRAIN = """
import sys
import hybridppo

config = hybridppo.PPOConfig(num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(4,))
hybridppo.train(
    "CartPole-v1", total_steps=4 * 32, seed=3, config=config, placement="cpu", vectorization="sync", progress=False,
    run_dir=sys.argv[2], track=sys.argv[1], evaluate_every=64, episodes_per_evaluation=2,
)
hybridppo.resume(sys.argv[2], total_steps=6 * 32, progress=False)
"""


def train(logger: str, folder: Path, **variables: str) -> Path:
    """Train, and resume, as a user would: in a process of its own."""
    pytest.importorskip(logger)
    environment = {**os.environ, "HOME": str(folder), "WANDB_SILENT": "true", **variables}
    run = folder / "run"
    process = run_python("-c", TRAIN, logger, run, env=environment, cwd=folder, check=True)
    assert "FAILED" not in process.stderr, process.stderr
    return run


def expected(run: Path) -> tuple[dict[int, float], dict[int, float]]:
    """Policy losses and evaluated returns, by steps."""
    losses = {line["env_steps"]: line["policy_loss"] for line in lines_of(run)}
    returns = {line["env_steps"]: line["evaluation_return_mean"] for line in lines_of(run, "evaluations.jsonl")}
    assert sorted(losses) == STEPS
    assert sorted(returns) == STEPS[1::2]
    return losses, returns


def test_tensorboards_event_files_hold_all(tmp_path: Path) -> None:
    run = train("tensorboard", tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    losses, returns = expected(run)
    assert {event.step: event.value for event in events.Scalars("train/policy_loss")} == pytest.approx(losses)
    assert {event.step: event.value for event in events.Scalars("eval/return_mean")} == pytest.approx(returns)
    assert len(events.Scalars("train/policy_loss")) == 6
    (text,) = events.Tensors("config/text_summary")
    assert b"config.learning_rate" in text.tensor_proto.string_val[0]


def test_tensorboards_files_stay_with_a_run_that_was_moved(tmp_path: Path) -> None:
    run = train("tensorboard", tmp_path)
    before = {path.name for path in (run / "tensorboard").iterdir()}
    moved = run.rename(tmp_path / "moved")
    hybridppo.resume(moved, total_steps=8 * BATCH, progress=False)
    assert len(before) < len([*(moved / "tensorboard").iterdir()])
    assert not run.exists()


def test_wandb_offline_holds_all(tmp_path: Path) -> None:
    run = train("wandb", tmp_path, WANDB_MODE="offline")
    losses, returns = expected(run)
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2  # an offline run that goes on has a file for each part, of the same run
    assert len({file.stem for file in files}) == 1
    seen_losses: dict[int, float] = {}
    seen_returns: dict[int, float] = {}
    configs: set[str] = set()
    for file in files:
        for row, config in _wandb_records(file):
            configs |= config
            if "train/policy_loss" in row:
                seen_losses[int(row["env_steps"])] = row["train/policy_loss"]
            if "eval/return_mean" in row:
                seen_returns[int(row["env_steps"])] = row["eval/return_mean"]
    assert seen_losses == pytest.approx(losses)
    assert seen_returns == pytest.approx(returns)
    assert {"config.learning_rate", "run_dir"} <= configs


def _wandb_records(file: Path) -> Iterator[tuple[dict[str, Any], set[str]]]:
    """The rows, and the names in the configuration, of a file in the format of LevelDB's logs."""
    from wandb.proto import wandb_internal_pb2

    data, position, whole = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:  # no header fits into the rest of a block
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            items = record.history.item
            row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in items}
            yield row, {(update.key or "/".join(update.nested_key)) for update in record.run.config.update}


def test_trackios_folder_holds_all(tmp_path: Path) -> None:
    folder = tmp_path / "trackio"
    run = train("trackio", tmp_path, TRACKIO_DIR=str(folder))
    losses, returns = expected(run)
    with sqlite3.connect(folder / "hybridppo.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics").fetchall()
        ((name, config),) = database.execute("select run_name, config from configs").fetchall()
    assert {name} == {"run"} | {run_name for run_name, _, _ in rows}
    found = [(step, json.loads(metrics)) for _, step, metrics in rows]
    assert {step: row["train/policy_loss"] for step, row in found if "train/policy_loss" in row} == pytest.approx(
        losses
    )
    evaluated = {step: row["eval/return_mean"] for step, row in found if "eval/return_mean" in row}
    assert evaluated == pytest.approx(returns)
    assert len(found) == 6 + 3
    assert json.loads(config)["config.num_steps"] == 16


def test_mlflows_database_holds_all(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    run = train("mlflow", tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{file}")
    losses, returns = expected(run)
    with sqlite3.connect(file) as database:
        runs = database.execute("select run_uuid, name, status from runs").fetchall()
        assert [(name, status) for _, name, status in runs] == [("run", "FINISHED")]
        points = database.execute("select key, step, value from metrics").fetchall()
        params = dict(database.execute("select key, value from params").fetchall())
    assert {step: value for key, step, value in points if key == "train/policy_loss"} == pytest.approx(losses)
    assert {step: value for key, step, value in points if key == "eval/return_mean"} == pytest.approx(returns)
    assert len([key for key, _, _ in points if key == "train/policy_loss"]) == 6
    assert params["env_id"] == "CartPole-v1"
    assert params["run_dir"] == str(run)


@pytest.mark.parametrize("name", ["policy_loss", "reward (ctrl)", "50%", "a//b", "/a", "./a", "info/../x"])
def test_mlflow_takes_every_name(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(mlflow_name(name))
