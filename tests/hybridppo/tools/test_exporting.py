"""Policies as files: what they give, to whom, and when they are refused."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from ppo_settings import ppo_config
from processes import run_python

import hybridppo
from hybridppo import ConfigurationError, TrainingError
from hybridppo.commands.main import main
from hybridppo.tools import exporting

SMALL = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "num_epochs": 2, "learning_rate": 0.05}
VECTOR = Box(-5.0, 5.0, (3,), np.float64)


class Random(gym.Env[Any, Any]):
    """Observations at random, episodes of nine steps, masks where actions are choices."""

    def __init__(self, observations: "gym.Space[Any]", actions: "gym.Space[Any]") -> None:
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._steps = 0
        return self._seen()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action) or isinstance(self.action_space, Box)
        self._steps += 1
        observation, info = self._seen()
        return observation, float(self.np_random.random()), self._steps == 9, False, info

    def _seen(self) -> Any:
        info = {}
        if isinstance(self.action_space, Discrete):
            mask = self.np_random.integers(0, 2, int(self.action_space.n)).astype(np.int8)
            mask[self._steps % self.action_space.n] = 1
            info["action_mask"] = mask
        return self.observation_space.sample(), info


POLICIES: dict[str, tuple["gym.Space[Any]", "gym.Space[Any]", dict[str, Any], bool]] = {
    "choices": (VECTOR, Discrete(3, start=5), {}, False),
    "masks": (VECTOR, Discrete(4), {"activation": "relu", "normalize_observations": True}, True),
    "numbers": (VECTOR, Box(-0.1, 0.1, (2, 2)), {"layer_norm": True, "activation": "gelu"}, False),
    "squashed": (VECTOR, Box(-2.0, 3.0, (2,)), {"squash_actions": True, "normalize_observations": True}, False),
    "state-dependent": (VECTOR, Box(-1.0, 1.0, (2,)), {"use_sde": True, "squash_actions": True}, False),
    "several choices": (VECTOR, MultiDiscrete([2, 3, 3]), {"activation": "silu"}, False),
    "truths": (VECTOR, MultiBinary(4), {"activation": "elu"}, False),
    "lstm": (VECTOR, Discrete(3), {"recurrent": "lstm", "recurrent_size": 6}, True),
    "gru": (VECTOR, Box(-1.0, 1.0, (2,)), {"recurrent": "gru", "normalize_observations": True}, False),
    "trunk": (Discrete(5), Discrete(2), {"shared_trunk": True}, False),
    "parts": (Dict(a=VECTOR, b=Discrete(3)), Discrete(2), {"normalize_observations": True}, False),
}
IMAGES = (Box(0, 255, (10, 10, 3), np.uint8), Discrete(3), {}, False)


def trained(path: Path, kind: tuple[Any, Any, dict[str, Any], bool]) -> Callable[[], Random]:
    observations, actions, config, masks = kind

    def make() -> Random:
        return Random(observations, actions)

    settings: dict[str, Any] = {**SMALL, "hidden_sizes": (8, 8), **config}
    options = {"seed": 0, "placement": "cpu", "progress": False, "action_masks": masks}
    hybridppo.train(make, total_steps=96, config=ppo_config(**settings), run_dir=path, **options)
    return make


@pytest.mark.parametrize("name", POLICIES)
def test_numpy_gives_what_the_agent_gives(name: str, tmp_path: Path) -> None:
    make = trained(tmp_path / "run", POLICIES[name])
    exported = hybridppo.export(tmp_path / "run", tmp_path / "new" / "policy.npz", env=make, check_steps=60)
    assert exported.steps_checked == 60
    assert exported.largest_difference < 1e-4
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["numpy_policy.py", "policy.npz"]


@pytest.mark.extras
@pytest.mark.parametrize("name", [*POLICIES, "images"])
def test_onnx_gives_what_the_agent_gives(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    make = trained(tmp_path / "run", POLICIES.get(name, IMAGES))
    path = tmp_path / "policy.onnx"
    exported = hybridppo.export(tmp_path / "run", path, env=make, check_steps=60)
    assert exported.largest_difference < 1e-4
    assert sorted(each.name for each in tmp_path.iterdir()) == ["policy.onnx", "run"]
    session = onnxruntime.InferenceSession(path)
    batch = {}
    for each in session.get_inputs():  # a batch of five, of whatever there is
        dtype = np.uint8 if each.type == "tensor(uint8)" else np.float32
        batch[each.name] = np.ones((5, *each.shape[1:]), dtype)
    action, *_ = session.run(None, batch)
    assert len(action) == 5
    assert (action == action[0]).all()


@pytest.mark.extras
def test_onnx_of_a_registered_environment_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    config = ppo_config(**SMALL, hidden_sizes=(8,))
    options = {"seed": 0, "placement": "cpu", "progress": False}
    hybridppo.train("CartPole-v1", total_steps=64, config=config, run_dir=tmp_path / "run", **options)
    with pytest.raises(SystemExit) as exited:
        main(["export", str(tmp_path / "run"), str(tmp_path / "policy.onnx"), "--check-steps", "30"])
    assert exited.value.code == 0
    assert "compared with the agent on 30 observations" in capsys.readouterr().out


def test_the_module_beside_the_file_needs_numpy_alone(tmp_path: Path) -> None:
    trained(tmp_path / "run", POLICIES["lstm"])
    agent = hybridppo.load(tmp_path / "run")
    hybridppo.export(tmp_path / "run", tmp_path / "there" / "policy.npz", check_steps=0)
    code = """
import sys
from numpy_policy import Policy
policy, state = Policy("policy.npz"), None
for step in range(4):
    action, state = policy.act([0.1 * step, -1.0, 2.0], action_mask=[1, 0, 1], state=state)
    print(int(action), *(f"{number:.5f}" for number in state))
assert not {"torch", "gymnasium", "hybridppo"} & sys.modules.keys()
"""
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=tmp_path / "there", capture_output=True, text=True, check=True, env={})
    state = None
    for step, line in enumerate(found.stdout.splitlines()):
        mask = np.array([1, 0, 1], np.int8)
        action, state = agent.act(np.array([0.1 * step, -1.0, 2.0]), action_mask=mask, state=state)
        assert int(line.split()[0]) == action
        np.testing.assert_allclose([float(number) for number in line.split()[1:]], state, atol=2e-5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"observation": [1.0, 2.0]}, "observation must have 3 numbers, got 2"),
        ({"action_mask": [1, 1]}, "action_mask must have 3 numbers"),
        ({"action_mask": None}, "pass action_mask"),
        ({"state": np.zeros(3, np.float32)}, "state must have 12 numbers"),
    ],
)
def test_numpy_refuses_what_does_not_fit(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    trained(tmp_path / "run", POLICIES["lstm"])
    hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=0)
    from hybridppo.tools.numpy_policy import Policy

    given: dict[str, Any] = {"observation": [0.0, 0.0, 0.0], "action_mask": [1, 1, 1], **arguments}
    with pytest.raises(ValueError, match=said):
        Policy(tmp_path / "policy.npz").act(given.pop("observation"), **given)


def test_a_file_that_gives_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = trained(tmp_path / "run", POLICIES["choices"])
    arrays_of = exporting.arrays_of

    def wrong(policy: Any) -> Any:
        about, arrays = arrays_of(policy)
        about["action"]["start"] = [4]
        return about, arrays

    monkeypatch.setattr(exporting, "arrays_of", wrong)
    with pytest.raises(TrainingError, match="does not give what the agent gives: at step 0"):
        hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", env=make)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_has_no_form_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "images", IMAGES)
    with pytest.raises(ConfigurationError, match=r"export it as \.onnx"):
        hybridppo.export(tmp_path / "images", tmp_path / "a.npz", check_steps=0)
    trained(tmp_path / "composite", (VECTOR, Dict(a=Discrete(2), b=Discrete(3)), {}, False))
    with pytest.raises(ConfigurationError, match="composite actions"):
        hybridppo.export(tmp_path / "composite", tmp_path / "a.npz", check_steps=0)
    trained(tmp_path / "mixed", (Dict(a=VECTOR, b=IMAGES[0]), Discrete(2), {}, False))
    with pytest.raises(ConfigurationError, match="images together with numbers"):
        hybridppo.export(tmp_path / "mixed", tmp_path / "a.npz", check_steps=0)
    with pytest.raises(ConfigurationError, match=r"\.onnx or \.npz"):
        hybridppo.export(tmp_path / "images", tmp_path / "a.pt")


def test_without_its_packages_onnx_says_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "run", POLICIES["choices"])
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install hybridppo\[onnx\]"):
        hybridppo.export(tmp_path / "run", tmp_path / "a.onnx", check_steps=0)


def test_packages_are_imported_when_a_file_is_written() -> None:
    # A copy of a process that has imported what trainings import, and no more, sees it as well as another would.
    code = "import sys, hybridppo.tools.exporting; print(*({'onnx', 'onnxruntime', 'onnxscript'} & sys.modules.keys()))"
    assert run_python("-c", code, check=True).stdout.split() == []
