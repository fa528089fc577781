"""Policies as files: their outputs, their formats, and when they are refused."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from exports import in_torch, require_onnx
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from ppo_settings import ppo_config
from processes import run_python
from run_files import on_a_full_disk
from selection import only_by_default
from space_kinds import KINDS
from toy_agents import Matching

import hybridppo
from hybridppo import ConfigurationError, RunDirectoryError, TrainingError
from hybridppo.agents.registry import agent_class
from hybridppo.commands.main import main
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.errors import pip_install
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.tools import export as exporting
from hybridppo.tools.export import TorchPolicy

SMALL = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "num_epochs": 2, "learning_rate": 0.05}
VECTOR = Box(-5.0, 5.0, (3,), np.float64)
NESTED = Dict(
    steer=Box(-0.1, 0.1, (2,), np.float64),
    gear=Tuple((Discrete(3, start=-1), MultiDiscrete([[2, 3]], start=[[1, 0]]))),
    lamps=Dict({("left", 1): MultiBinary(2)}),
)


class Random(gym.Env[Any, Any]):
    """Random observations, episodes of nine steps, masks if actions are choices."""

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
    "no axis": (Box(-1.0, 1.0, ()), Box(-1.0, 1.0, ()), {}, False),
    "several actions": (VECTOR, NESTED, {"squash_actions": True}, False),
    "several actions, with a memory": (VECTOR, NESTED, {"recurrent": "gru"}, False),
    "parts": (Dict(a=VECTOR, b=Discrete(3)), Discrete(2), {"normalize_observations": True}, False),
    "some parts": (Tuple((VECTOR, Discrete(3), MultiBinary(2))), Discrete(2), {"actor_keys": ("1", "2")}, False),
}
NOT_IN_NUMPY = ("numbers", "several choices", "truths")
"""Policies whose layers NumPy does not have."""
IMAGE = Box(0, 255, (10, 10, 3), np.uint8)
IMAGES = (IMAGE, Discrete(3), {}, False)
MIXED: tuple[Any, Any, dict[str, Any], bool] = (
    Dict(speed=VECTOR, camera=IMAGE, gear=Discrete(3)), Discrete(2), {"normalize_observations": True}, True
)  # fmt: skip
OF_IMAGES = {
    "images": IMAGES,
    "image and masks": (*IMAGES[:3], True),
    "images and numbers": MIXED,
    "images alone": (Tuple((IMAGE, Box(0, 255, (2, 8, 9), np.uint8))), Box(-1.0, 1.0, (2,)), {}, False),
    "images and numbers, with a memory": (*MIXED[:2], {"recurrent": "gru"}, True),
    "images and numbers, encoded": (*MIXED[:2], {"encoder_sizes": {"camera": [8], "speed": [4]}}, False),
    "images and numbers, several actions": (MIXED[0], NESTED, {}, False),
}


def trained(path: Path, kind: tuple[Any, Any, dict[str, Any], bool]) -> None:
    observations, actions, config, masks = kind

    def make() -> Random:
        return Random(observations, actions)

    settings: dict[str, Any] = {**SMALL, "hidden_sizes": (8, 8), **config}
    options = {"seed": 0, "placement": "cpu", "progress": False, "action_masks": masks}
    hybridppo.train(make, total_steps=32, config=ppo_config(**settings), run_dir=path, **options)


@pytest.fixture
def _in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports to `.torch`."""
    monkeypatch.setitem(exporting._FORMS, ".torch", in_torch)


@pytest.mark.usefixtures("_in_torch")
@pytest.mark.parametrize("name", [*POLICIES, *OF_IMAGES])
def test_a_policy_gives_what_the_agent_gives(name: str, tmp_path: Path) -> None:
    trained(tmp_path / "run", {**POLICIES, **OF_IMAGES}[name])
    exported = hybridppo.export(tmp_path / "run", tmp_path / "policy.torch", check_steps=30)
    assert exported.largest_difference < 1e-4
    if name in OF_IMAGES:
        return
    if name in NOT_IN_NUMPY:
        with pytest.raises(ConfigurationError, match=r"of actions: export it as \.onnx or \.pt2"):
            hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=30)
        return
    exported = hybridppo.export(tmp_path / "run", tmp_path / "new" / "policy.npz", check_steps=30)
    assert exported.steps_checked == 30
    assert exported.largest_difference < 1e-4
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["numpy_policy.py", "policy.npz"]


SUFFIXES = {".npz": [], ".torch": [], ".pt2": [pytest.mark.slow], ".onnx": [pytest.mark.extras]}
"""The forms of a policy, and the marks of their tests. To add a form, add a line."""
OF_EVERY_KIND = [
    pytest.param(name, suffix, marks=marks, id=f"{name}, {suffix}")
    for name in KINDS
    for suffix, marks in SUFFIXES.items()
]
BY_DEFAULT = (
    *(f"{name}, {suffix}" for name in KINDS for suffix in (".npz", ".torch")),
    # The other operations that are written as ONNX are in test_onnx_gives_what_the_agent_gives.
    "multi-discrete of two axes, .onnx",
    "dict, encoded, with a memory, .onnx",
)


def agent_of(name: str) -> hybridppo.PPO:
    """An agent for a kind of space, with random parameters, so that its actions differ."""
    kind = KINDS[name]
    env = kind.make()
    observations = MaskedObservation(env.observation_space, env.action_space) if kind.has_masks else None
    config = ppo_config(**{**SMALL, "hidden_sizes": (8, 8), "normalize_observations": True, **kind.config})
    agent = hybridppo.PPO(observations or env.observation_space, env.action_space, config, seed=1)
    with torch.no_grad():
        noise = torch.randn(agent.parameters.values.shape, generator=torch.Generator().manual_seed(2))
        agent.parameters.values.mul_(3.0).add_(0.3 * noise)
    return agent


@pytest.mark.usefixtures("_in_torch")
@pytest.mark.parametrize(("name", "suffix"), only_by_default(BY_DEFAULT, OF_EVERY_KIND, pytest.mark.slow))
def test_a_policy_of_every_kind_of_space_is_exported(name: str, suffix: str, tmp_path: Path) -> None:
    if suffix == ".onnx":
        require_onnx()
    agent, path = agent_of(name), tmp_path / f"policy{suffix}"
    agent.save(tmp_path / "agent.safetensors")
    if suffix == ".npz" and ("image" in name or "encoded" in name):
        with pytest.raises(ConfigurationError, match=r"export it as \.onnx or \.pt2"):
            hybridppo.export(tmp_path / "agent.safetensors", path, check_steps=0)
        return
    if name == "items":
        with pytest.raises(ConfigurationError, match=r"observations of OneOf\(.*\) cannot be exported"):
            hybridppo.export(tmp_path / "agent.safetensors", path, check_steps=0)
        return
    exported = hybridppo.export(tmp_path / "agent.safetensors", path, check_steps=30)
    assert exported.largest_difference < 1e-4
    assert path.is_file()


@pytest.mark.usefixtures("_in_torch")
@pytest.mark.parametrize(
    ("suffix", "config"),
    [
        pytest.param(suffix, kind(hidden_sizes=(8,)), marks=marks)
        for kind in (hybridppo.DDPGConfig, hybridppo.TD3Config)
        for suffix, marks in SUFFIXES.items()
        if kind is hybridppo.TD3Config or not marks  # their actors are the same
    ],
)
def test_policies_of_off_policy_agents_are_exported(config: Any, suffix: str, tmp_path: Path) -> None:
    if suffix == ".onnx":
        require_onnx()
    observations = Dict(a=Discrete(3, start=2), b=VECTOR)
    agent = agent_class(config)(observations, Box(-2.0, 3.0, (2, 1), np.float64), config)
    with torch.no_grad():
        agent.parameters.values.mul_(5.0)
    agent.save(tmp_path / "agent.safetensors")
    exported = hybridppo.export(tmp_path / "agent.safetensors", tmp_path / f"policy{suffix}", check_steps=30)
    assert exported.largest_difference < 1e-4


def test_a_policy_of_another_distribution_is_exported_and_needs_its_class(tmp_path: Path) -> None:
    kind = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "sac.py"))["SAC"]
    config = hybridppo.TD3Config(hidden_sizes=(4,), learning_starts=8, steps_per_iteration=16, buffer_size=100)
    options: dict[str, Any] = {"placement": "cpu", "progress": False, "run_dir": tmp_path / "run"}
    hybridppo.train("Pendulum-v1", total_steps=32, agent=kind, config=config, **options)
    exported = hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", agent=kind, check_steps=20)
    assert exported.largest_difference < 1e-4
    with pytest.raises(RunDirectoryError, match="its own agent, 'SAC': pass it again"):
        hybridppo.load(tmp_path / "run")
    path = hybridppo.load(tmp_path / "run", agent=kind).save(tmp_path / "agent")
    with pytest.raises(RunDirectoryError, match="its own agent, 'SAC': pass it again"):
        hybridppo.load(path)


@pytest.mark.slow
def test_torch_alone_reads_what_it_takes_and_gives(tmp_path: Path) -> None:
    """The file needs neither gymnasium nor this library, and holds nothing but the actor."""
    agent = agent_of("tuple")
    agent.save(tmp_path / "agent.safetensors")
    assert hybridppo.export(tmp_path / "agent.safetensors", tmp_path / "policy.pt2").steps_checked == 1000
    code = """
import json, sys, torch
about = {"hybridppo.json": ""}
program = torch.export.load(sys.argv[1], extra_files=about)
about = json.loads(about["hybridppo.json"])
assert [part["name"] for part in about["inputs"]] == ["observation.0", "observation.1", "action_mask"], about
assert about["outputs"] == ["action.0", "action.1", "outputs"], about
inputs = {part["name"]: torch.ones(5, *part["shape"], dtype=getattr(torch, part["dtype"])) for part in about["inputs"]}
number, choice, outputs = program.module()(inputs)
assert number.shape == (5, 1) and choice.tolist() == [choice[0].item()] * 5 and 1 <= choice[0] <= 3
assert not {"gymnasium", "hybridppo"} & sys.modules.keys()
print(sum(tensor.numel() for tensor in program.state_dict.values()))
"""
    found = run_python("-c", code, tmp_path / "policy.pt2", check=True, warm=False)
    assert int(found.stdout) < sum(tensor.numel() for tensor in (*agent.actor.parameters(), *agent.actor.buffers())) + 9


@pytest.mark.extras
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="needs g++ on Linux")
def test_cpp_loads_what_the_page_compiles(tmp_path: Path) -> None:
    agent = hybridppo.PPO(Box(-1.0, 1.0, (4,)), Discrete(3), ppo_config(hidden_sizes=(4,)), seed=1)
    hybridppo.export(agent.save(tmp_path / "agent"), tmp_path / "policy.pt2", check_steps=1)
    page = (Path(__file__).parents[3] / "docs" / "tools.md").read_text(encoding="utf-8")
    python, cpp, bash = (
        re.findall(rf"^```{language}\n((?:(?!```).)*{sign}.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
        for language, sign in (("python", "aoti_compile"), ("cpp", "int main"), ("bash", r"g\+\+"))
    )
    load = "import torch\nprogram = torch.export.load('policy.pt2')\n"
    run_python("-c", load + python, cwd=tmp_path, check=True, warm=False)
    (tmp_path / "policy.cpp").write_text(cpp)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = f"{bash}\n./policy"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{agent.act(np.zeros(4, np.float32))}\n"), done.stderr


@pytest.mark.extras
@pytest.mark.parametrize(
    "name",
    only_by_default(
        ("numbers", "masks", "squashed", "lstm", "several actions, with a memory", "images and numbers, with a memory"),
        (*POLICIES, *OF_IMAGES),
        pytest.mark.slow,
    ),
)
def test_onnx_gives_what_the_agent_gives(name: str, tmp_path: Path) -> None:
    require_onnx()
    import onnxruntime

    trained(tmp_path / "run", {**POLICIES, **OF_IMAGES}[name])
    path = tmp_path / "policy.onnx"
    exported = hybridppo.export(tmp_path / "run", path, check_steps=60)
    assert exported.largest_difference < 1e-4
    assert sorted(each.name for each in tmp_path.iterdir()) == ["policy.onnx", "run"]
    session = onnxruntime.InferenceSession(path)
    batch = {}
    for each in session.get_inputs():  # a batch of five, of whatever there is
        dtype = {"tensor(float)": np.float32, "tensor(double)": np.float64}.get(each.type, each.type[7:-1])
        batch[each.name] = np.ones((5, *each.shape[1:]), dtype)
    action, *_ = session.run(None, batch)
    assert len(action) == 5
    assert (action == action[0]).all()


@pytest.mark.extras
def test_onnx_of_a_registered_environment_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_onnx()
    config = ppo_config(**SMALL, hidden_sizes=(8,))
    options = {"seed": 0, "placement": "cpu", "progress": False}
    hybridppo.train("CartPole-v1", total_steps=64, config=config, run_dir=tmp_path / "run", **options)
    with pytest.raises(SystemExit) as exited:
        main(["export", str(tmp_path / "run"), str(tmp_path / "policy.onnx"), "--check-steps", "30"])
    assert exited.value.code == 0
    said = capsys.readouterr()
    assert "compared with the agent on 30 observations" in said.out
    assert said.err == ""  # nothing of the exporter's


def test_a_file_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    masked = (Dict(b=VECTOR, a=Discrete(3)), Dict(z=Discrete(2), y=Box(-1.0, 1.0, (2,))), {}, False)
    trained(tmp_path / "run", masked)
    hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=0)
    from hybridppo.tools.numpy_policy import Policy

    about = Policy(tmp_path / "policy.npz").about
    seen = [(part["name"], part["keys"], part["space"]["type"], part["dtype"]) for part in about["inputs"]]
    assert seen == [("observation.a", ["a"], "Discrete", "int64"), ("observation.b", ["b"], "Box", "float64")]
    assert [(part["name"], part["output"], part["kind"]) for part in about["action"]] == [
        ("['y']", "action.y", "numbers"), ("['z']", "action.z", "choices")
    ]  # fmt: skip


@pytest.mark.extras
def test_onnx_says_what_it_takes_and_gives(tmp_path: Path) -> None:
    require_onnx()
    import onnxruntime

    trained(tmp_path / "run", MIXED)
    hybridppo.export(tmp_path / "run", tmp_path / "policy.onnx", check_steps=10)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    about = json.loads(session.get_modelmeta().custom_metadata_map["hybridppo"])
    assert [(each.name, each.type, each.shape[1:]) for each in session.get_inputs()] == [
        ("observation.camera", "tensor(uint8)", [10, 10, 3]), ("observation.gear", "tensor(int64)", []),
        ("observation.speed", "tensor(double)", [3]), ("action_mask", "tensor(int8)", [2]),
    ]  # fmt: skip
    assert [part["name"] for part in about["inputs"]] == [each.name for each in session.get_inputs()]
    agent, observation = hybridppo.load(tmp_path / "run"), MIXED[0].sample()
    batch = {f"observation.{key}": np.asarray(part)[None] for key, part in observation.items()}
    action, *_ = session.run(None, {**batch, "action_mask": np.array([[0, 1]], np.int8)})
    assert action[0] == agent.act(observation, action_mask=np.array([0, 1], np.int8)) == 1
    assert about["action_mask"] == [{"name": "", "size": 2}]
    assert [part["output"] for part in about["action"]] == ["action"]


def test_the_only_policy_is_exported_by_its_name(tmp_path: Path) -> None:
    run, config = tmp_path / "run", {"player": ppo_config(**SMALL, hidden_sizes=(4,))}
    quiet: dict[str, Any] = {"placement": "cpu", "progress": False, "policy_of": lambda name: "player"}
    hybridppo.train(Matching, total_steps=32, config=config, run_dir=run, **quiet)
    assert hybridppo.export(run, tmp_path / "policy.npz", policy="player", check_steps=5).steps_checked == 5
    with pytest.raises(ConfigurationError, match=r"the run has the policies player: there is no 'policy'"):
        hybridppo.export(run, tmp_path / "policy.npz", policy="policy")


def test_a_module_of_the_users_is_not_overwritten(tmp_path: Path) -> None:
    trained(tmp_path / "run", POLICIES["choices"])
    module = tmp_path / "numpy_policy.py"
    module.write_text("mine = True\n")
    with pytest.raises(
        ConfigurationError, match=r"numpy_policy\.py is there already.*: move it, or name another folder"
    ):
        hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=0)
    assert module.read_text() == "mine = True\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["numpy_policy.py", "run"]
    module.unlink()
    (tmp_path / "policy.npz").write_text("another")  # is replaced, as the help says
    for _ in range(2):
        hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=0)
        assert module.read_bytes() == Path(exporting.numpy_policy.__file__).read_bytes()
        (tmp_path / "policy.npz").read_bytes().index(b"about")


@pytest.mark.parametrize("suffix", only_by_default((".npz",), (".npz", ".pt2", ".onnx")))
def test_a_full_disk_is_an_error_that_names_the_file_and_the_old_one_stays(suffix: str, tmp_path: Path) -> None:
    if suffix == ".onnx":
        require_onnx()
    observations, actions, config, masks = POLICIES["choices"]
    trained(tmp_path / "run", (observations, actions, {**config, "hidden_sizes": (64, 64)}, masks))
    old, module = tmp_path / f"policy{suffix}", tmp_path / "numpy_policy.py"
    old.write_bytes(b"old")
    module.write_bytes(Path(exporting.numpy_policy.__file__).read_bytes())
    before = {path: path.read_bytes() for path in (old, module)}
    for size in (500, 9000) if suffix == ".npz" else (500,):  # the module has room in 9000 bytes
        with on_a_full_disk(size), pytest.raises(RunDirectoryError, match=re.escape(f"{old} cannot be written: ")):
            hybridppo.export(tmp_path / "run", old, check_steps=2)
        assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_masks_of_every_choice_are_drawn(tmp_path: Path) -> None:
    observations, actions, *_ = POLICIES["several actions"]
    agent = hybridppo.PPO(MaskedObservation(observations, actions), actions, ppo_config(**SMALL))
    agent.save(tmp_path / "agent.safetensors")
    exported = hybridppo.export(tmp_path / "agent.safetensors", tmp_path / "policy.npz", check_steps=60)
    assert 0.0 < exported.largest_difference < 1e-4


def test_policies_of_batched_environments_are_exported(tmp_path: Path) -> None:
    options: dict[str, Any] = {"seed": 0, "progress": False, "config": ppo_config(**SMALL, hidden_sizes=(8,))}
    hybridppo.train(TorchCartPole(2), total_steps=64, run_dir=tmp_path / "run", **options)
    exported = hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=30)
    assert 0.0 < exported.largest_difference < 1e-4


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
        ({"observation": [1.0, np.nan, 2.0]}, "observation must have finite numbers, got .* nan"),
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


def test_numpy_names_the_part_that_does_not_fit(tmp_path: Path) -> None:
    agent = hybridppo.PPO(Dict(a=VECTOR, b=Discrete(3, start=5)), Discrete(2), ppo_config(hidden_sizes=(4,)))
    hybridppo.export(agent.save(tmp_path / "agent"), tmp_path / "policy.npz", check_steps=5)
    from hybridppo.tools.numpy_policy import Policy

    policy = Policy(tmp_path / "policy.npz")
    seen = {"a": np.array([1.0, -2.0, 0.5]), "b": 7}
    assert policy.act(seen)[0] == agent.act(seen)
    for changes, message in (
        ({"b": 4}, r"observation\.b must be from 5 to 7, got 4"),
        ({"a": [1.0]}, r"observation\.a must have 3 numbers, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            policy.act({**seen, **changes})
    with pytest.raises(ValueError, match=r"the observation has no observation\.b"):
        policy.act({"a": seen["a"]})


def test_a_file_that_gives_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "run", POLICIES["choices"])
    numpy_form = exporting.numpy_form

    def wrong(policy: Any) -> Any:
        about, arrays = numpy_form(policy)
        about["action"][0]["first"] = [4]
        return about, arrays

    monkeypatch.setattr(exporting, "numpy_form", wrong)
    with pytest.raises(TrainingError, match="does not give what the agent gives: at step 0"):
        hybridppo.export(tmp_path / "run", tmp_path / "policy.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_action_of_another_type_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "run", POLICIES["choices"])
    part = exporting.numpy_policy.Policy._part
    monkeypatch.setattr(exporting.numpy_policy.Policy, "_part", lambda *given: np.asarray(part(*given)))
    with pytest.raises(TrainingError, match=r"at step 0, \[array\(\d\)\] and not (np\.int64\(\d\)|\d),"):
        hybridppo.export(tmp_path / "run", tmp_path / "policy.npz")


def test_a_real_environment_takes_the_action_of_numpy(tmp_path: Path) -> None:
    config = ppo_config(**SMALL, hidden_sizes=(8,))
    options: dict[str, Any] = {"total_steps": 64, "placement": "cpu", "progress": False, "config": config}
    hybridppo.train("FrozenLake-v1", run_dir=tmp_path / "run", **options)
    hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=5)
    action, _ = exporting.numpy_policy.Policy(tmp_path / "policy.npz").act(0)
    env = gym.make("FrozenLake-v1")
    env.reset(seed=0)
    env.step(action)  # looks it up


def test_a_file_that_sees_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "run", POLICIES["choices"])
    inputs = TorchPolicy.inputs
    monkeypatch.setattr(
        TorchPolicy, "inputs", lambda *given: {name: 0.0 * each for name, each in inputs(*given).items()}
    )
    monkeypatch.setitem(exporting._FORMS, ".torch", in_torch)
    with pytest.raises(TrainingError, match="does not give what the agent gives: at step 0"):
        hybridppo.export(tmp_path / "run", tmp_path / "policy.torch")


def test_what_has_no_form_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "images", IMAGES)
    with pytest.raises(ConfigurationError, match=r"export it as \.onnx or"):
        hybridppo.export(tmp_path / "images", tmp_path / "a.npz", check_steps=0)
    trained(tmp_path / "mixed", MIXED)
    with pytest.raises(ConfigurationError, match=r"export it as \.onnx or"):
        hybridppo.export(tmp_path / "mixed", tmp_path / "a.npz", check_steps=0)
    with pytest.raises(ConfigurationError, match=r"must end with one of \.onnx, \.npz, \.pt2, got 'a\.pt'"):
        hybridppo.export(tmp_path / "images", tmp_path / "a.pt")


def test_without_its_packages_onnx_says_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "run", POLICIES["choices"])
    monkeypatch.setattr(exporting, "is_installed", lambda name: False)
    with pytest.raises(ConfigurationError, match=re.escape(pip_install("onnx"))):
        hybridppo.export(tmp_path / "run", tmp_path / "a.onnx", check_steps=0)


def test_packages_are_imported_when_a_file_is_written() -> None:
    # A copy of a process that has imported what trainings import, and no more, sees it as well as another would.
    packages = {"onnx", "onnxruntime", "onnxscript"}
    code = f"import sys, hybridppo.tools.export; print(*({packages} & sys.modules.keys()))"
    assert run_python("-c", code, check=True).stdout.split() == []
