"""`train(..., debug=True)`: in one process, by autograd alone, with the line of a loss whose gradient is no number."""

import inspect
import json
import logging
import multiprocessing
import re
from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_settings import ppo_config

import hybridppo
from hybridppo import ConfigurationError, MultiLearner, TD3Config
from hybridppo.agents.ppo.loss import Loss, LossInputs, ppo_loss
from hybridppo.commands.main import parse_command

PPO = ppo_config(num_envs=2, num_steps=16, num_minibatches=2, num_epochs=2, hidden_sizes=(8,))
CONFIGS: dict[str, Any] = {
    "ppo": PPO,
    "td3": TD3Config(num_envs=2, hidden_sizes=(8,), batch_size=8, learning_starts=8, steps_per_iteration=16),
}


def train(**arguments: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 64, "seed": 0, "progress": False, "config": PPO, **arguments}
    return hybridppo.train("Pendulum-v1", **options)


@pytest.mark.parametrize("kind", CONFIGS)
def test_only_rounding_changes_and_nothing_is_saved(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = CONFIGS[kind]
    with caplog.at_level(logging.INFO):
        found = train(config=config, debug=True, num_workers=2, run_dir=tmp_path / "run")
    assert sum("debug=True: no worker processes" in line for line in caplog.messages) == 1
    expected = train(config=config, placement="cpu")
    torch.testing.assert_close(found.agent.parameters.values, expected.agent.parameters.values, rtol=1e-3, atol=1e-5)
    assert found.agent.config == expected.agent.config
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (saved["num_workers"], saved["config"]["fast_updates"]) == (2, True)
    assert "debug" not in saved
    resumed = hybridppo.resume(tmp_path / "run", total_steps=96, debug=True, progress=False)
    assert resumed.metrics["env_steps"] == 96
    assert json.loads((tmp_path / "run" / "config.json").read_text())["num_workers"] == 2
    assert not torch.is_anomaly_enabled()


def test_an_error_shows_the_line_of_the_loss(tmp_path: Path) -> None:
    seen: list[Any] = []

    def mine(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
        seen.append(multiprocessing.active_children())
        loss = ppo_loss(inputs, config, clip_range)
        if len(seen) < 7:
            return loss
        return replace(loss, total=loss.total + (0.0 * inputs.values).sqrt().sum())  # whose slope is infinite

    with pytest.warns(UserWarning, match=r"(?s)Error detected in .*in mine\n +return replace\(loss, total"):  # noqa: SIM117
        with pytest.raises(RuntimeError, match="returned nan values"):
            train(loss=mine, debug=True, num_workers=2, run_dir=tmp_path / "run")
    assert seen == [[]] * 7
    resumed = hybridppo.resume(tmp_path / "run", loss=ppo_loss, progress=False)
    assert resumed.metrics["env_steps"] == 64


def test_several_processes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="debug=True does not work with distributed=multi:2"):
        train(debug=True, distributed=MultiLearner(2))


def test_the_command_line_has_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    for name in ("train", "resume"):
        monkeypatch.setattr(
            f"hybridppo.commands.train.{name}", lambda *_, **given: asked.append(given["debug"]) or 1 / 0
        )
    for command in (["train", "CartPole-v1"], ["resume", "."]):
        for flags in ([], ["--debug-training"]):
            with pytest.raises(ZeroDivisionError):
                parse_command([*command, *flags]).run()
    assert asked == [False, True] * 2


PAGE = (Path(__file__).parents[2] / "docs" / "looking_inside.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"^## ([^\n]+)\n.*?^```python\n(.*?)^```", PAGE, re.M | re.S))


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=[pytest.mark.extras] * ("TensorBoard" in title)) for title in SNIPPETS]
)
def test_snippets_of_the_page_run(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, stops = hybridppo.train, list[Any]()

    def short(env: str, total_steps: int, **options: Any) -> Any:
        return whole(
            env, total_steps=64, **{"config": PPO, "seed": 0, "placement": "cpu", "progress": False, **options}
        )

    monkeypatch.setattr(hybridppo, "train", short)
    monkeypatch.setattr("sys.breakpointhook", lambda: stops.append(inspect.stack(context=0)))
    exec(compile(SNIPPETS[title], title, "exec"), {})  # as a script runs it
    if title == "Gradients by layer":
        norms = literal_eval(capsys.readouterr().out)
        assert len(norms) == 8
        assert min(norms.values()) > 0.0
    elif title == "Histograms in TensorBoard":
        accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        events = accumulator.EventAccumulator(str(tmp_path / "runs" / "inside" / "tensorboard")).Reload()
        assert len(events.Tags()["histograms"]) == 8
    elif title == "Saving rollouts":
        assert literal_eval(capsys.readouterr().out)["observations"] == (17, 2, 4)
    else:
        names = [frame.function for frame in stops[0]]
        assert names[names.index("my_loss") :][:5] == ["my_loss", "loss", "gradient", "step", "steps"]
        assert len(stops) >= 8


def test_the_page_has_a_snippet_for_each_way() -> None:
    assert len(SNIPPETS) == 4
