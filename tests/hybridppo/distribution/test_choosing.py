"""Placement auto within a policy, and policies beside each other: measured once, told, written down, and kept."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_kinds import KINDS
from ppo_settings import ppo_config

import hybridppo
from hybridppo import Auto, Central, Mirrored, MultiLearner, SingleDevice, SingleLearnerCoarse, SingleLearnerFine
from hybridppo.auto import auto, bench
from hybridppo.auto.calibration import calibrate
from hybridppo.auto.figures import Calibration, Figures
from hybridppo.commands.main import main
from hybridppo.distribution import choosing
from hybridppo.distribution.choosing import WithinOverRay, choose_for_learners
from hybridppo.distribution.measuring import measure_learners
from hybridppo.distribution.one_learner import OneLearner, sizes_of
from hybridppo.distribution.prediction import Crossings, Resources
from hybridppo.distribution.team import Team
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.runs.distribution_policies import Environments as EnvironmentWorkers

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-3)
COPIES = EnvironmentOptions(vectorization="sync")
FIGURES = Figures({4: 1e-3, 2: 6e-4}, 1e-5, 0.0, {1: 2e-2}, assumed=())
ROOMY = Resources(cores=4, ray_cpus=8, has_more_machines=True)
over_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the figures that a calibration finds."""
    monkeypatch.setattr(auto, "calibrate", lambda *arguments, **options: Calibration(FIGURES, seconds=0.5))


def chosen_within(policy: Any, names: tuple[str, ...], max_lag: int) -> auto.Choice:
    environments = make_environments("CartPole-v1", 4, COPIES)
    try:
        within = WithinOverRay(policy, names, ROOMY)
        return Auto(max_lag).choose("CartPole-v1", environments, CONFIG, total_steps=10**6, within=within)
    finally:
        environments.close()


@pytest.mark.usefixtures("recorded")
def test_what_is_taken_over_ray_is_what_is_predicted_to_be_the_fastest_that_the_policy_can_have() -> None:
    names = ("cpu", "overlap", "hybrid", "migrate")
    alone = chosen_within(SingleLearnerCoarse(2), names, max_lag=0)
    assert (str(alone.placement), alone.num_workers) == (str(SingleDevice("cpu")), 0)
    assert alone.table["line"].startswith("within coarse:2, cpu, ")
    assert "overlap would take" in alone.table["line"]
    ahead = chosen_within(SingleLearnerCoarse(2), names, max_lag=1)
    assert isinstance(ahead.placement, Mirrored)
    assert (ahead.placement.max_lag, ahead.num_workers) == (1, 0)
    labels = [row["label"] for row in ahead.table["predictions"]]
    assert labels == ["cpu", "overlap"]  # as many samplers as the policy says, and no workers beside
    central = chosen_within(SingleLearnerFine(2), ("cpu", "cuda"), max_lag=1)
    assert [row["label"] for row in central.table["predictions"]] == ["cpu"]
    assert len(chosen_within(EnvironmentWorkers(2), ("cpu", "overlap"), 1).table["predictions"]) == 2


def choose(policy: MultiLearner | Central, config: Any, iterations: int = 10**6) -> auto.Choice:
    agent = hybridppo.PPO(*_spaces(), config)
    return choose_for_learners(policy, "CartPole-v1", config, COPIES, agent, iterations=iterations)


def _spaces() -> tuple[Any, Any]:
    environments = make_environments("CartPole-v1", 1, COPIES)
    environments.close()
    return environments.observation_space, environments.action_space


@pytest.mark.parametrize("policy", [MultiLearner(2), Central(2)])
def test_learners_take_the_threads_with_which_their_update_is_the_fastest(
    policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "cpu_cores", lambda: 8)
    seconds = {1: 8.0, 2: 5.0, 4: 4.9}
    monkeypatch.setattr(OneLearner, "update", lambda self: 1e-3)
    monkeypatch.setattr(OneLearner, "seconds", lambda self, most, threads: seconds[threads])
    free = replace(CONFIG, torch_threads=None)
    choice = choose(policy, free)
    assert (choice.torch_threads, choice.num_workers) == (2, 0)  # 4 are within the margin
    assert choice.table["update_by_threads"] == {"1": 8.0, "2": 5.0, "4": 4.9}
    assert choice.table["chosen"] == "cpu, 2 threads"
    assert (
        choose(policy, replace(CONFIG, torch_threads=3)).torch_threads == 3
    )  # as asked for: another is another result
    short = choose(policy, free, iterations=10)
    assert (short.torch_threads, len(short.table["left_out"])) == (1, 1)
    monkeypatch.setattr(choosing, "cpu_cores", lambda: 2)
    assert "a learner has one of 2 cores" in choose(policy, free).table["line"]


class Told:
    """A link that keeps what is told, and is heard."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def tell(self, what: str) -> None:
        self.words.append(what)

    def hear(self) -> str:
        return self.words[0]


def test_the_first_measures_and_all_take_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "cpu_cores", lambda: 4)
    monkeypatch.setattr(OneLearner, "update", lambda self: 1e-3)
    monkeypatch.setattr(OneLearner, "seconds", lambda self, most, threads: 1.0 / threads)
    config, words = replace(CONFIG, torch_threads=None), list[str]()
    agent = hybridppo.PPO(*_spaces(), config)
    environments = make_environments("CartPole-v1", 2, COPIES)
    found = []
    for rank in range(2):
        team = Team(rank, 2, 2, 60.0)
        team.link = Told(words)  # type: ignore[assignment]
        options: dict[str, Any] = {"agent": agent, "total_steps": 10**9, "options": COPIES, "num_workers": None}
        found.append(team.choose(Auto(), "CartPole-v1", environments, config, **options))
    environments.close()
    assert words == ["2"]
    assert [choice.torch_threads for choice in found] == [2, 2]


def test_a_learner_alone_does_its_share_of_the_work() -> None:
    config = ppo_config(num_envs=8, num_steps=64, num_epochs=1, num_minibatches=2, hidden_sizes=(16,))
    rows = {}
    for policy in (MultiLearner(1), MultiLearner(2), Central(2)):
        one = OneLearner("CartPole-v1", config, COPIES, policy)
        seen: list[int] = []
        form = type(one.plain.backend)

        def counted(self: Any, batch: Any, *rest: Any, seen: list[int] = seen, plain: Any = form.gradient) -> Any:
            seen.append(len(batch))
            return plain(self, batch, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(form, "gradient", counted)
            one.agent._has_agreed = True
            one.update()
        rows[str(policy)] = seen
    assert rows == {"multi:1": [256, 256], "multi:2": [128, 128], "central:2": [256]}
    sizes = sizes_of(one, config, 2)
    assert (sizes.minibatches, sizes.bytes_of_parameters) == (2, 4 * (4 * 16 + 16 + 16 * 2 + 2))
    assert sizes.bytes_of_rollout == 512 * (4 * 4 + sizes_of_action(one) + 4 + 4 + 2)


@pytest.mark.parametrize("name", ["gru", "frames", "pool"])
def test_a_learner_of_any_kind_can_be_measured_alone(name: str) -> None:
    config = ppo_config(num_envs=4, num_steps=64, num_minibatches=2, hidden_sizes=(8,), **KINDS[name].config)
    options = replace(COPIES, **KINDS[name].options)
    for policy in (MultiLearner(2), Central(2)):
        if not (name == "pool" and isinstance(policy, Central)):  # which it cannot have
            assert OneLearner("CartPole-v1", config, options, policy).update() > 0.0
    plain = ppo_config(num_envs=4, num_steps=64, num_minibatches=2, hidden_sizes=(8,))
    sizes = sizes_of(OneLearner("CartPole-v1", config, options, MultiLearner(1)), config, 2)
    of_rows = sizes_of(OneLearner("CartPole-v1", plain, COPIES, MultiLearner(1)), plain, 2)
    # The actor's state before each of 4 * 11 sequences.
    assert sizes.bytes_of_rollout - of_rows.bytes_of_rollout == (4 * 4 * 11 * 8 if name == "gru" else 0)
    assert (sizes.exchanges_of_values > of_rows.exchanges_of_values) == (name != "frames")


def sizes_of_action(one: OneLearner) -> int:
    actions = one.rollout.actions
    return actions[0, 0].numel() * actions.element_size()


# Real ones, with processes


@pytest.fixture
def several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "cpu_cores", lambda: 4)


def train(distribution: str, run_dir: Path | None = None, **options: Any) -> hybridppo.TrainResult:
    options = {"placement": "auto", "config": CONFIG, "total_steps": 4 * 16 * 4, **options}
    return hybridppo.train(
        "CartPole-v1",
        distribution=distribution,
        seed=5,
        progress=False,
        run_dir=run_dir,
        vectorization="sync",
        **options,
    )


def assert_is_kept(run_dir: Path, result: hybridppo.TrainResult, label: str) -> None:
    """In the run directory, and by a resume, which measures nothing."""
    config = json.loads((run_dir / "config.json").read_text())
    threads = config["config"]["torch_threads"]
    assert threads == result.agent.config.torch_threads
    table = json.loads((run_dir / "placements.json").read_text())
    assert label in table["line"]
    with pytest.MonkeyPatch.context() as patch:
        for module in (auto, choosing):
            patch.setattr(module, "calibrate" if module is auto else "_seconds_by_threads", pytest.fail)
        resumed = hybridppo.resume(run_dir, total_steps=4 * 16 * 6, progress=False)
    assert json.loads((run_dir / "config.json").read_text())["placement"] == config["placement"]
    assert resumed.agent.config.torch_threads == threads


@pytest.mark.extras
@pytest.mark.usefixtures("several_cores")
@pytest.mark.parametrize("distribution", ["multi:2", "central:2:1"])
def test_auto_within_learners(distribution: str, tmp_path: Path) -> None:
    config = replace(CONFIG, torch_threads=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "MAX_SHARE", 100.0)  # however short the run is
        result = train(distribution, tmp_path / "run", config=config)
    assert result.agent.config.torch_threads in (1, 2)
    assert_is_kept(tmp_path / "run", result, f"within {distribution}")
    if distribution == "multi:2":  # measuring changed nothing of the result
        plain = train(distribution, placement="cpu", config=replace(CONFIG, torch_threads=1))
        same = train(distribution, config=CONFIG)
        assert torch.equal(plain.agent.parameters.values, same.agent.parameters.values)


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's tests are of POSIX")
@over_ray
def test_auto_within_policies_over_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clusters import small_cluster

    seconds_to_make: list[float] = []

    def calibrate_however_short(*arguments: Any, **options: Any) -> Calibration:
        seconds_to_make.append(options["seconds_to_make"])
        return calibrate(*arguments, **{**options, "max_share": float("inf")})

    monkeypatch.setattr(auto, "calibrate", calibrate_however_short)
    monkeypatch.setattr(bench, "PLANNED_SECONDS", 60.0)  # however busy the machine is
    plain = hybridppo.train(
        "CartPole-v1", total_steps=4 * 16 * 4, config=CONFIG, seed=5, placement="cpu", progress=False,
        vectorization="sync",
    )  # fmt: skip
    with small_cluster():
        for distribution in ("coarse:2", "fine:2", "environments:2"):
            run_dir = tmp_path / distribution.replace(":", "-")
            result = train(distribution, run_dir)
            assert torch.equal(result.agent.parameters.values, plain.agent.parameters.values)
            config = json.loads((run_dir / "config.json").read_text())
            assert (config["placement"], config["num_workers"]) == (SingleDevice("cpu").settings(), 0)
            assert_is_kept(run_dir, result, f"within {distribution}")
            table = json.loads((run_dir / "placements.json").read_text())
            assert "predictions" in table
    assert seconds_to_make[0] > 0.0
    assert seconds_to_make[1:] == [0.0, 0.0]  # processes elsewhere were started, and none of those is measured


def run(*flags: str) -> Any:
    """The exit code of `hybridppo placements`."""
    with pytest.raises(SystemExit) as ended:
        main(["placements", "CartPole-v1", *flags])
    return ended.value.code


@pytest.mark.extras
def test_what_crosses_between_learners_is_measured() -> None:
    found = measure_learners(Crossings(), 1000, 4096)
    assert set(Crossings().assumed) - set(found.assumed) == {"exchange", "gather", "served", "learner_start"}
    assert 0.0 < found.exchange < found.learner_start
    assert not torch.distributed.is_initialized()


@pytest.mark.extras
def test_policies_are_predicted_and_measured_side_by_side(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    flags = ["--num-envs", "4", "--num-steps", "16", "--num-minibatches", "2", "--measure", "--seconds", "0.1"]
    assert run("--distributions", *flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| distribution | iteration ms | sampling ms | learning ms | crossing ms | steps/s |")
    names = [line.split("|")[1].strip(" *") for line in lines[2:5]]
    assert names[0].startswith("local (")
    assert names[1:] == ["multi:2", "central:2"]
    assert all(len(line.split("|")) == len(lines[0].split("|")) for line in lines[1:5])
    assert "pay" in lines[6]  # networks of 64 x 64 and 4 environments may or may not gain, on a busy machine
    assert any(line.startswith("Left out: coarse, fine and environments: ") for line in lines)


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's tests are of POSIX")
@over_ray
def test_policies_over_ray_are_predicted_of_a_call_and_its_bytes() -> None:
    from clusters import small_cluster

    with small_cluster():
        found = hybridppo.compare_distributions("CartPole-v1", CONFIG, total_steps=10**5)
    crossings = found["pieces"]["crossings"]
    assert crossings["assumed"] == ()
    assert {row["policy"] for row in found["rows"][1:]} >= {"multi:2", "central:2", "coarse:2", "fine:2"}
    assert found["line"].startswith("spreading does not pay") == (found["chosen"] == "local")
    for row in found["rows"]:
        assert row["iteration"] == row["sampling"] + row["learning"] + row["crossing"] > 0.0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--address", "auto"], "--address is of --distributions"),
        (["--distributions", "--num-workers", "2"], "--num-workers cannot be had with --distributions"),
    ],
)
def test_flags_of_the_one_table_are_refused_in_the_other(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == 2
    assert message in capsys.readouterr().err
