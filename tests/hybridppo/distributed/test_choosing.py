"""Placement auto within a policy, and auto among policies: measured once, printed, saved, and kept."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import shared_cluster
from ppo_settings import ppo_config
from selection import only_by_default

import hybridppo
from hybridppo import Auto, Central, Mirrored, MultiLearner, SingleDevice, SingleLearnerCoarse, SingleLearnerFine
from hybridppo.auto import auto, search
from hybridppo.auto.auto import Within
from hybridppo.auto.trials import Candidate, Training, Trial
from hybridppo.distributed import choosing
from hybridppo.distributed.choosing import choose_for_learners, share_of
from hybridppo.distributed.learners import MultiLearnerStrategy
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import EnvironmentOptions

CONFIG = ppo_config(num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-3)
COPIES = EnvironmentOptions(vectorization="sync")
over_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Candidate, Any]]:
    """Sets the results of trials on eight cores, with runs of any length; returns candidates and configurations."""
    found: list[tuple[Candidate, Any]] = []

    def try_out(self: Training, candidate: Candidate, seconds: float, share: float = 1.0, *_: float) -> Trial:
        found.append((candidate, self.config))
        learning = {1: 8.0, 2: 5.0, 4: 4.9, 8: 4.9}[candidate.torch_threads]
        return Trial(candidate, 0.0 if candidate.max_lag else 8.0, learning, 0.0, 0.0, self.config.batch_size)

    monkeypatch.setattr(Training, "try_out", try_out)
    monkeypatch.setattr(search, "MAX_SHARE", 100.0)
    monkeypatch.setattr(choosing, "cpu_cores", lambda: 8)
    return found


def chosen_within(policy: Any, names: tuple[Any, ...], max_lag: int, workers: int) -> auto.Choice:
    environments = make_environments("CartPole-v1", 4, COPIES)
    try:
        within = Within(str(policy), names, 8, workers)
        return Auto(max_lag).choose("CartPole-v1", environments, CONFIG, total_steps=10**6, within=within)
    finally:
        environments.close()


@pytest.mark.usefixtures("tried")
def test_over_ray_what_is_taken_is_what_the_policy_can_have() -> None:
    alone = chosen_within(SingleLearnerCoarse(2), ("cpu", "overlap", "hybrid", "migrate"), 0, 2)
    assert (str(alone.placement), alone.num_workers) == (str(SingleDevice("cpu")), 0)
    assert alone.table["line"].startswith("within coarse:2, cpu, 2 workers, ")
    assert "overlap, 2 workers would take" in alone.table["line"]
    ahead = chosen_within(SingleLearnerCoarse(2), ("cpu", "overlap"), 1, 2)
    assert isinstance(ahead.placement, Mirrored)
    assert (ahead.placement.max_lag, ahead.num_workers) == (1, 0)  # the policy has the workers
    central = chosen_within(SingleLearnerFine(2), ("cpu", "cuda"), 1, 0)
    assert {row["name"] for row in central.table["trials"]} == {"cpu"}


def choose(policy: MultiLearner | Central, config: Any) -> auto.Choice:
    environments = make_environments("CartPole-v1", 1, COPIES)
    try:
        agent = hybridppo.PPO(environments.observation_space, environments.action_space, config)
        made: dict[str, Any] = {
            "source": "CartPole-v1",
            "environments": environments,
            "options": COPIES,
            "agent": agent,
        }
        return choose_for_learners(policy, config=config, total_steps=10**9, **made)
    finally:
        environments.close()


@pytest.mark.parametrize(("policy", "minibatches"), [(MultiLearner(2), 2), (Central(2), 1)])
def test_learners_take_the_threads_with_which_their_part_is_the_fastest(
    policy: Any, minibatches: int, tried: list[tuple[Candidate, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = replace(CONFIG, torch_threads=None)
    choice = choose(policy, free)
    assert (choice.torch_threads, choice.num_workers) == (2, 0)  # 4 are within the margin
    assert choice.table["chosen"] == "cpu, 2 threads"
    assert {candidate.torch_threads for candidate, _ in tried} == {1, 2, 4}
    assert {(config.num_envs, config.num_minibatches) for _, config in tried} == {(2, minibatches)}
    assert choose(policy, replace(CONFIG, torch_threads=3)).torch_threads == 3  # another gives another result
    monkeypatch.setattr(choosing, "cpu_cores", lambda: 2)
    assert "a learner has one of 2 cores" in choose(policy, free).table["line"]


class Told:
    """A link that keeps what is said, and lets it be heard."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def tell(self, what: str) -> None:
        self.words.append(what)

    def hear(self) -> str:
        return self.words[0]


@pytest.mark.usefixtures("tried")
def test_the_first_measures_and_all_take_what_it_found() -> None:
    config, words = replace(CONFIG, torch_threads=None), list[str]()
    environments = make_environments("CartPole-v1", 2, COPIES)
    agent = hybridppo.PPO(environments.observation_space, environments.action_space, config)
    found = []
    for rank in range(2):
        team = MultiLearnerStrategy(MultiLearner(2), rank, 60.0)
        team.link = Told(words)  # type: ignore[assignment]
        options: dict[str, Any] = {"agent": agent, "total_steps": 10**9, "options": COPIES, "num_workers": None}
        found.append(team.choose(Auto(), source="CartPole-v1", environments=environments, config=config, **options))
    environments.close()
    assert words == ["2"]
    assert [choice.torch_threads for choice in found] == [2, 2]


def test_a_learners_part_has_minibatches_as_large_as_its_part_of_those_of_all() -> None:
    config = ppo_config(num_envs=8, num_steps=64, num_epochs=1, num_minibatches=2, hidden_sizes=(16,))
    rows = {}
    for policy in (MultiLearner(1), MultiLearner(2), MultiLearner(2, 4), Central(2)):
        own = share_of(config, policy)
        rows[str(policy)] = [own.batch_size // own.minibatches] * own.minibatches
    assert rows == {"multi:1": [256, 256], "multi:2": [128, 128], "multi:2:4": [64] * 4, "central:2": [256]}
    # A share that cannot be cut into as many is cut into fewer.
    odd = ppo_config(num_envs=2, num_steps=9, num_minibatches=6, hidden_sizes=(16,))
    assert share_of(odd, MultiLearner(2)).minibatches == 3


# Real ones, with processes


@pytest.fixture
def several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "cpu_cores", lambda: 4)


def train(distributed: str, run_dir: Path | None = None, **options: Any) -> hybridppo.TrainResult:
    options = {"placement": "auto", "config": CONFIG, "total_steps": 4 * 16 * 4, **options}
    return hybridppo.train(
        "CartPole-v1",
        distributed=distributed,
        seed=5,
        progress=False,
        run_dir=run_dir,
        vectorization="sync",
        **options,
    )


def assert_is_kept(run_dir: Path, result: hybridppo.TrainResult, label: str) -> None:
    """It is in the run directory, and a resumed run uses it without measuring."""
    config = json.loads((run_dir / "config.json").read_text())
    threads = config["config"]["torch_threads"]
    assert threads == result.agent.config.torch_threads
    table = json.loads((run_dir / "placements.json").read_text())
    assert label in table["line"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "try_out", pytest.fail)
        resumed = hybridppo.resume(run_dir, total_steps=4 * 16 * 6, progress=False)
    assert json.loads((run_dir / "config.json").read_text())["placement"] == config["placement"]
    assert resumed.agent.config.torch_threads == threads


@pytest.mark.extras
@pytest.mark.usefixtures("several_cores")
@pytest.mark.parametrize("distributed", ["multi:2", "central:2:1"])
def test_auto_within_learners(distributed: str, tmp_path: Path) -> None:
    config = replace(CONFIG, torch_threads=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MAX_SHARE", 100.0)  # however short the run is
        result = train(distributed, tmp_path / "run", config=config)
    assert result.agent.config.torch_threads in (1, 2)
    assert_is_kept(tmp_path / "run", result, f"within {distributed}")
    if distributed == "multi:2":  # measuring changed nothing of the result
        plain = train(distributed, placement="cpu", config=replace(CONFIG, torch_threads=1))
        same = train(distributed, config=CONFIG)
        assert torch.equal(plain.agent.parameters.values, same.agent.parameters.values)


@pytest.mark.extras
@pytest.mark.skipif(sys.platform == "win32", reason="Ray's tests are of POSIX")
@over_ray
@pytest.mark.parametrize(
    "distributed", only_by_default(("environments:2",), ("coarse:2", "fine:2", "environments:2"), pytest.mark.slow)
)
def test_auto_within_policies_over_ray(distributed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_SHARE", 100.0)  # however short the run is
    plain = hybridppo.train(
        "CartPole-v1", total_steps=4 * 16 * 4, config=CONFIG, seed=5, placement="cpu", progress=False,
        vectorization="sync",
    )  # fmt: skip
    shared_cluster()
    result = train(distributed, tmp_path / "run")
    assert torch.equal(result.agent.parameters.values, plain.agent.parameters.values)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["placement"], config["num_workers"]) == (SingleDevice("cpu").settings(), 0)
    assert_is_kept(tmp_path / "run", result, f"within {distributed}")
    assert json.loads((tmp_path / "run" / "placements.json").read_text())["trials"]
