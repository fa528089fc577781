"""Actors and critics that see different parts of observations: who sees what, everywhere, and in exports."""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from everywhere import WAYS, WITH_WORKERS, assert_goes_on_exactly, assert_same_everywhere
from exports import in_torch, require_onnx
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from ppo_settings import ppo_config
from same_bits import values_of
from selection import only_by_default

import hybridppo
from hybridppo import PPO, ConfigurationError, EnvError, Mirrored, PPOConfig
from hybridppo.agents.ppo.by_numpy import NumpyBackend
from hybridppo.tools import export as exporting

SMALL = ppo_config(
    num_envs=4, num_steps=16, num_epochs=2, num_minibatches=2, hidden_sizes=(16, 16),
    actor_keys=("policy",), critic_keys=("policy", "privileged"),
)  # fmt: skip
STEPS = 4 * 16 * 3


class Asymmetric(gym.Env[Any, Any]):
    """`policy` shows which of four must be named. `privileged` is noise, and so is `camera`, if there is one."""

    def __init__(self, camera: bool = False, masks: bool = False, as_tuple: bool = False) -> None:
        parts: dict[str, Any] = {"policy": Box(-1.0, 1.0, (4,)), "privileged": Box(-9.0, 9.0, (3,))}
        if camera:
            parts["camera"] = Box(0, 255, (6, 6, 1), np.uint8)
        self._names, self._masks = list(parts), masks
        self._as_tuple = as_tuple
        self.observation_space = Tuple(parts.values()) if as_tuple else Dict(parts)
        self.action_space = Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._seen()

    def step(self, action: Any) -> Any:
        reward, self._steps = float(action == self._wanted), self._steps + 1
        seen, info = self._seen()
        return seen, reward, False, self._steps == 8, info

    def _seen(self) -> Any:
        self._wanted = int(self.np_random.integers(4))
        seen: dict[str, Any] = {
            "policy": np.eye(4, dtype=np.float32)[self._wanted],
            "privileged": self.np_random.uniform(-9, 9, 3).astype(np.float32),
            "camera": self.np_random.integers(0, 256, (6, 6, 1)).astype(np.uint8),
        }
        mask = np.ones(4, np.int8)
        mask[(self._wanted + 1) % 4] = 0
        found = {name: seen[name] for name in self._names}
        return tuple(found.values()) if self._as_tuple else found, {"action_mask": mask} if self._masks else {}


def train(make: Any = Asymmetric, config: PPOConfig = SMALL, **options: Any) -> hybridppo.TrainResult:
    arguments: dict[str, Any] = {"total_steps": STEPS, "seed": 0, "placement": "cpu", "progress": False}
    return hybridppo.train(make, config=config, **{**arguments, **options})


KINDS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "vectors": (Asymmetric, {}, {}),
    "masked": (partial(Asymmetric, masks=True), {"action_masks": True}, {}),
    "a tuple": (partial(Asymmetric, as_tuple=True), {}, {"actor_keys": ("0",), "critic_keys": None}),
    "a camera for the critic": (partial(Asymmetric, camera=True), {}, {"critic_keys": None}),
    "a camera for the actor": (
        partial(Asymmetric, camera=True), {}, {"actor_keys": ("camera", "policy"), "critic_keys": ("privileged",)},
    ),
    "layers of their own": (Asymmetric, {}, {"encoder_sizes": {"policy": (8,), "privileged": (8,)}}),
    "a memory": (Asymmetric, {}, {"recurrent": "lstm", "recurrent_size": 8, "sequence_length": 8}),
    "noise of the state": (None, {}, {}),
}  # fmt: skip
"""To add a kind, add a line."""


class Steering(Asymmetric):
    """The same environment with a number as its action."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Box(-1.0, 1.0, (1,))

    def step(self, action: Any) -> Any:
        return super().step(int((float(action[0]) + 1) * 1.99))


KINDS["noise of the state"] = (Steering, {}, {"use_sde": True, "log_std_init": -2.0})


@pytest.mark.parametrize("name", KINDS)
def test_what_the_actor_does_not_see_changes_nothing_that_it_does(name: str) -> None:
    make, options, changes = KINDS[name]
    config = replace(SMALL, **changes)
    result = train(make, config, **options)
    agent, env = result.agent, make()
    (first, info), (other, _) = env.reset(seed=1), env.reset(seed=2)
    keys = {*(config.actor_keys or ())}

    def mixed() -> Any:
        pairs = first.items() if isinstance(first, dict) else enumerate(first)
        parts = {key: value if str(key) in keys else other[key] for key, value in pairs}
        return parts if isinstance(first, dict) else tuple(parts.values())

    mask = info.get("action_mask")
    state: dict[str, Any] = {"state": None} if config.recurrent else {}
    acted = [agent.act(each, action_mask=mask, **state) for each in (first, mixed())]
    assert repr(acted[0]) == repr(acted[1])  # with a memory, also what is remembered
    # The outputs, to the bit, by rows of all parts.
    rows = torch.from_numpy(np.stack([agent._encode.one(each) for each in (first, mixed())])) if mask is None else None
    if rows is not None and not state:
        assert torch.equal(*agent.actor(rows))
        if name != "a camera for the actor":
            assert not torch.equal(*agent.critic(rows))


def test_an_agent_acts_on_what_it_sees_and_needs_no_more() -> None:
    agent = train().agent
    seen, _ = Asymmetric().reset(seed=3)
    assert agent.act({"policy": seen["policy"]}) == agent.act(seen) == agent.act({**seen, "another": 1})
    each = [agent.act({"policy": row}) for row in np.eye(4, dtype=np.float32)]
    assert agent.act({"policy": np.eye(4, dtype=np.float32)}, batch=True).tolist() == each
    with pytest.raises(
        EnvError, match=r"its observation needs the parts \['policy'\] \(actor_keys\), and has \['privileged'\]"
    ):
        agent.act({"privileged": seen["privileged"]})


@pytest.mark.parametrize(
    "name",
    only_by_default(
        ("vectors", "masked", "a camera for the actor", "a memory"),
        [name for name in KINDS if name not in ("a tuple", "layers of their own")],
    ),
)
def test_who_samples_and_where_changes_nothing(name: str, tmp_path: Path) -> None:
    make, options, changes = KINDS[name]
    config = replace(SMALL, **changes)
    trained, run = partial(train, make, config, **options), tmp_path / "run"
    expected = trained()
    assert_same_everywhere(trained, expected, {WITH_WORKERS: WAYS[WITH_WORKERS]}, run=run)
    assert_goes_on_exactly(run, expected, env=make)


@pytest.mark.parametrize("name", ["vectors", "masked", "noise of the state", "a tuple"])
def test_of_numbers_the_gradient_is_written_out_by_hand(name: str) -> None:
    make, options, changes = KINDS[name]
    config = replace(SMALL, **changes)
    by_hand = train(make, config, **options)
    by_autograd = train(make, replace(config, fast_updates=False), **options)
    assert type(by_hand.agent.loop().backend) is NumpyBackend
    assert torch.allclose(values_of(by_hand), values_of(by_autograd), atol=1e-4)


def test_keys_of_everything_are_no_keys() -> None:
    """Another network with the same arithmetic."""
    every = train(config=replace(SMALL, actor_keys=("policy", "privileged")))
    none = train(config=replace(SMALL, actor_keys=None, critic_keys=None))
    assert torch.allclose(values_of(every), values_of(none), atol=1e-4)


def test_it_is_overlapped() -> None:
    overlap = Mirrored("cpu", "cpu", max_lag=1)
    results = [values_of(train(placement=overlap, num_workers=workers)) for workers in (0, 1, 2)]
    assert all(torch.equal(a, b) for a, b in itertools.pairwise(results))


@pytest.mark.parametrize("name", ["vectors", "masked", "a memory", "a tuple"])
def test_the_policy_is_taken_away_without_what_it_does_not_see(name: str, tmp_path: Path) -> None:
    make, options, changes = KINDS[name]
    train(make, replace(SMALL, **changes), run_dir=tmp_path / "run", **options)
    found = hybridppo.export(tmp_path / "run", tmp_path / "policy.npz", check_steps=50)
    assert found.steps_checked == 50
    from hybridppo.tools.numpy_policy import Policy

    about = Policy(tmp_path / "policy.npz").about
    assert about["inputs"][0]["name"] == ("observation.0" if name == "a tuple" else "observation.policy")


ONNX = {"a camera for the actor": pytest.mark.extras, "layers of their own": pytest.mark.extras}
"""The marks of tests of ONNX; the others write no further operation."""


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        *((name, ".torch") for name in KINDS),
        *(pytest.param(name, ".onnx", marks=ONNX.get(name, pytest.mark.slow)) for name in KINDS),
    ],
)
def test_what_is_exported_has_what_the_actor_sees(
    name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if suffix == ".onnx":
        require_onnx()
    monkeypatch.setitem(exporting._FORMS, ".torch", in_torch)
    make, options, changes = KINDS[name]
    train(make, replace(SMALL, **changes), run_dir=tmp_path / "run", **options)
    assert hybridppo.export(tmp_path / "run", tmp_path / f"policy{suffix}", check_steps=50).steps_checked == 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_keys": ("sonar",)}, "actor_keys names the part 'sonar', and the observation space has policy, priv"),
        ({"critic_keys": ("sonar",)}, "critic_keys names the part 'sonar'"),
        ({"actor_keys": ()}, "actor_keys must be None, or a tuple of keys, each once"),
        ({"actor_keys": "policy"}, "actor_keys must be None, or a tuple of keys"),
        ({"critic_keys": ("policy", "policy")}, "critic_keys must be None, or a tuple of keys, each once"),
        ({"shared_trunk": True}, "shared_trunk does not work with different actor_keys and critic_keys"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        PPO(Asymmetric().observation_space, Discrete(4), replace(SMALL, **changes))


def test_observations_without_parts_have_no_keys() -> None:
    with pytest.raises(ConfigurationError, match="names the part 'policy', and the observation space is no Dict"):
        PPO(Box(-1.0, 1.0, (4,)), Discrete(4), SMALL)


def test_networks_of_ones_own_choose_themselves() -> None:
    def networks(observation_space: Any, action_space: Any, config: Any, generator: Any) -> Any:
        return torch.nn.Linear(7, 4), torch.nn.Linear(7, 1)

    with pytest.raises(ConfigurationError, match=r"actor_keys.* is for the library's networks"):
        train(networks=networks)


def test_keys_are_given_on_the_command_line(tmp_path: Path) -> None:
    from hybridppo.commands.main import main

    gym.register("Asymmetric-v0", Asymmetric)
    run = tmp_path / "run"
    arguments = ["--actor-keys", "policy", "--critic-keys", "policy", "privileged", "--total-steps", "64"]
    small = ["--num-envs", "2", "--num-steps", "16", "--placement", "cpu", "--run-dir", str(run), "--no-progress"]
    with pytest.raises(SystemExit) as exited:
        main(["train", "Asymmetric-v0", *arguments, *small])
    assert exited.value.code == 0
    assert hybridppo.load(run).config.critic_keys == ("policy", "privileged")
