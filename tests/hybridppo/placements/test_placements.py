"""Placements never change the result, and report truly what was copied and when."""

import ast
import copy
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from handmade_agents import OBSERVATIONS, HandmadeAgent
from ppo_settings import ppo_config
from sampling import collecting, log_probs_of
from torch import Tensor, nn

import hybridppo
from hybridppo import ConfigurationError, DeviceError, Migrating, Mirrored, SingleDevice
from hybridppo.auto.auto import Auto, PlacementOptions, options_of
from hybridppo.environments.making import make_environments
from hybridppo.interfaces import Metrics
from hybridppo.placements.crossing import available_device
from hybridppo.placements.placement import Placement, placement_from_settings

SMALL = ppo_config(num_envs=2, num_steps=8, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), learning_rate=1e-3)

CPU_PLACEMENTS = {
    "single": lambda: SingleDevice("cpu"),
    "migrating in place": lambda: Migrating("cpu", "cpu"),
    "migrating": lambda: Migrating("cpu", "cpu", force_copy=True),
    "alias": lambda: Mirrored("cpu", "cpu"),
    "mirror": lambda: Mirrored("cpu", "cpu", force_copy=True),
    "verified alias": lambda: Mirrored("cpu", "cpu", verify=True),
    "verified mirror": lambda: Mirrored("cpu", "cpu", force_copy=True, verify=True),
}

needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


def train(placement: Any, *, env: Any = "CartPole-v1", seed: int = 0, iterations: int = 5, **options: Any) -> Any:
    """A short run, and its metrics by iteration."""
    history: list[Metrics] = []
    result = hybridppo.train(
        env,
        total_steps=iterations * SMALL.batch_size,
        seed=seed,
        placement=placement,
        config=SMALL,
        vectorization="sync",  # every row is a step, so the number of iterations is known
        progress=False,
        on_iteration=history.append,
        **options,
    )
    assert len(history) == iterations
    return result, history


def parameters(agent: Any) -> list[Tensor]:
    return [*agent.actor.parameters(), *agent.critic.parameters()]


def all_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@cache
def reference(env: str, seed: int) -> list[Tensor]:
    return parameters(train(SingleDevice("cpu"), env=env, seed=seed)[0].agent)


def num_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


# The result


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("placement", CPU_PLACEMENTS)
def test_every_placement_gives_the_same_parameters(placement: str, env: str) -> None:
    result, _ = train(CPU_PLACEMENTS[placement](), env=env)
    assert all_equal(parameters(result.agent), reference(env, seed=0))


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_another_seed_gives_other_parameters(env: str) -> None:
    other = reference(env, seed=1)
    assert not any(torch.equal(a, b) for a, b in zip(reference(env, seed=0), other, strict=True) if a.dim() == 2)


# What crosses


@pytest.mark.parametrize("placement", ["single", "migrating in place", "alias"])
def test_on_one_device_nothing_crosses(placement: str) -> None:
    _, history = train(CPU_PLACEMENTS[placement](), iterations=3)
    assert [(m["publishes"], m["bytes_copied"], m["seconds_copying"], m["policy_lag"]) for m in history] == [
        (0, 0, 0, 0)
    ] * 3


def test_a_mirror_publishes_once_per_iteration_and_copies_the_actor_alone() -> None:
    result, history = train(Mirrored("cpu", "cpu", force_copy=True), iterations=4)
    size = num_bytes(result.agent.actor)
    assert [m["publishes"] for m in history] == [1, 2, 3, 4]
    assert [m["bytes_copied"] for m in history] == [size, 2 * size, 3 * size, 4 * size]
    assert all(m["policy_lag"] == 0 and m["seconds_copying"] >= 0 for m in history)


def test_migrating_copies_the_actor_there_and_back() -> None:
    result, history = train(Migrating("cpu", "cpu", force_copy=True), iterations=4)
    size = num_bytes(result.agent.actor)
    assert [m["publishes"] for m in history] == [1, 2, 3, 4]
    assert [m["bytes_copied"] for m in history] == [2 * size, 4 * size, 6 * size, 8 * size]
    assert all(m["policy_lag"] == 0 for m in history)


@pytest.mark.parametrize("force_copy", [True, False])
def test_publishing_every_third_update_leaves_a_lag(force_copy: bool) -> None:
    _, history = train(Mirrored("cpu", "cpu", force_copy=force_copy, publish_every=3), iterations=8)
    assert [m["policy_lag"] for m in history] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [m["publishes"] for m in history] == [1, 1, 1, 2, 2, 2, 3, 3]


@pytest.mark.parametrize("publish_every", [1, 2])
def test_rollouts_come_from_the_parameters_that_were_published(publish_every: int) -> None:
    environments = make_environments("CartPole-v1", SMALL.num_envs)
    agent = hybridppo.PPO(environments.observation_space, environments.action_space, SMALL)
    placement = Mirrored("cpu", "cpu", force_copy=True, publish_every=publish_every)
    placement.prepare(agent)
    collect = collecting(agent, environments, placement)
    actors: dict[int, nn.Module] = {}
    for iteration in range(6):
        actors[agent.version] = copy.deepcopy(agent.actor)
        rollout = collect()
        assert rollout.version == iteration - iteration % publish_every
        for version, module in actors.items():
            is_close = torch.allclose(log_probs_of(agent, rollout, module), rollout.log_probs, rtol=0, atol=1e-6)
            assert is_close == (version == rollout.version)
        with placement.learning(agent):
            agent.update(placement.to_learner(rollout))


def test_rollouts_stay_where_they_are_on_one_device() -> None:
    environments = make_environments("CartPole-v1", SMALL.num_envs)
    agent = hybridppo.PPO(environments.observation_space, environments.action_space, SMALL)
    placement = Mirrored("cpu", "cpu", force_copy=True)
    placement.prepare(agent)
    rollout = collecting(agent, environments, placement)()
    assert placement.to_learner(rollout) is rollout


# Agents made by hand


def outputs_of(agent: HandmadeAgent) -> np.ndarray:
    with torch.no_grad():
        return agent.actor(torch.from_numpy(OBSERVATIONS)).numpy().copy()


@pytest.mark.parametrize("placement", CPU_PLACEMENTS)
def test_parameters_and_buffers_reach_the_sampler(placement: str) -> None:
    agent, made = HandmadeAgent(), CPU_PLACEMENTS[placement]()
    made.prepare(agent)
    for version in range(3):
        with made.sampling(agent) as actor:
            assert actor.version == version
            np.testing.assert_array_equal(actor(OBSERVATIONS), outputs_of(agent))
        agent.change()


def test_a_mirror_keeps_parameters_and_buffers_until_it_publishes() -> None:
    agent, placement = HandmadeAgent(), Mirrored("cpu", "cpu", force_copy=True, publish_every=2)
    placement.prepare(agent)
    published = outputs_of(agent)
    for version in range(5):
        if version % 2 == 0:
            published = outputs_of(agent)
        with placement.sampling(agent) as actor:
            np.testing.assert_array_equal(actor(OBSERVATIONS), published)
        agent.change()


def test_what_a_callback_changes_at_the_start_acts_in_the_first_rollout() -> None:
    class Doubling(hybridppo.Callback):
        def on_start(self, run: Any) -> None:
            for parameter in run.agent.actor.parameters():
                parameter.data.mul_(2.0)

    def trained(placement: Placement) -> Tensor:
        result = hybridppo.train(
            "CartPole-v1",
            total_steps=SMALL.batch_size,
            seed=0,
            config=SMALL,
            placement=placement,
            callbacks=[Doubling()],
            progress=False,
        )
        return result.agent.parameters.values.data

    assert torch.equal(trained(SingleDevice("cpu:0")), trained(Mirrored("cpu", "cpu", force_copy=True)))


def test_a_publish_counts_parameters_and_buffers() -> None:
    agent, placement = HandmadeAgent(), Mirrored("cpu", "cpu", force_copy=True)
    placement.prepare(agent)
    with placement.sampling(agent):
        assert placement.counters.bytes_copied == num_bytes(agent.actor) == 4 * (6 + 1)


def test_migrating_brings_changed_buffers_home() -> None:
    agent, placement = HandmadeAgent(), Migrating("cpu", "cpu", force_copy=True)
    placement.prepare(agent)
    with placement.sampling(agent):
        agent.actor.scale += 4.0  # as a normalisation would while it samples
    assert agent.actor.scale.item() == 5.0


def is_at_home(agent: HandmadeAgent) -> bool:
    """Whether the actor's parameters are views of the agent's flat ones."""
    changed = outputs_of(agent)
    agent.parameters.values.data.mul_(2.0)
    return bool((outputs_of(agent) == 2.0 * changed).all())


def test_migrating_takes_the_actor_away_while_it_samples() -> None:
    agent, placement = HandmadeAgent(), Migrating("cpu", "cpu", force_copy=True)
    placement.prepare(agent)
    with placement.sampling(agent):
        assert not is_at_home(agent)
    assert is_at_home(agent)


def test_migrating_brings_the_actor_home_when_sampling_fails() -> None:
    agent, placement = HandmadeAgent(), Migrating("cpu", "cpu", force_copy=True)
    placement.prepare(agent)
    before = outputs_of(agent)
    with pytest.raises(ZeroDivisionError), placement.sampling(agent):
        raise ZeroDivisionError
    np.testing.assert_array_equal(outputs_of(agent), before)
    assert is_at_home(agent)


# Verification


def test_verification_passes_over_what_is_whole() -> None:
    agent, placement = HandmadeAgent(), Mirrored("cpu", "cpu", force_copy=True, verify=True)
    placement.prepare(agent)
    for _ in range(3):
        agent.change()
        with placement.sampling(agent):
            pass
    assert placement.counters.publishes == 3


def lose_copies(agent: HandmadeAgent, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, *args, **kwargs: self)
    return "scale"


def loosen_a_view(agent: HandmadeAgent, monkeypatch: pytest.MonkeyPatch) -> str:
    agent.actor.linear.bias.data = agent.actor.linear.bias.data.clone() + 1.0
    return "linear.bias"


def replace_a_buffer(agent: HandmadeAgent, monkeypatch: pytest.MonkeyPatch) -> str:
    copy_ = torch.Tensor.copy_

    def copy_parameters(self: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self if source is agent.actor.scale else copy_(self, source, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "copy_", copy_parameters)
    return "scale"


@pytest.mark.parametrize("tamper", [lose_copies, loosen_a_view, replace_a_buffer])
@pytest.mark.parametrize("verify", [True, False])
def test_verification_finds_a_stale_replica(tamper: Any, verify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, placement = HandmadeAgent(), Mirrored("cpu", "cpu", force_copy=True, verify=verify)
    placement.prepare(agent)
    name = tamper(agent, monkeypatch)
    agent.change()
    if not verify:
        with placement.sampling(agent) as actor:
            assert (actor(OBSERVATIONS) != outputs_of(agent)).any()
        return
    with pytest.raises(DeviceError, match=f"differs from the actor on cpu in '{name}' after publishing version 1"):
        placement.sampling(agent).__enter__()


# Making placements


@needs_no_cuda
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_a_missing_cuda_device_is_an_error_with_the_remedy(device: str) -> None:
    makers = (lambda: SingleDevice(device), lambda: Migrating("cpu", device), lambda: Mirrored("cpu", device))
    for make in makers:
        with pytest.raises(DeviceError, match=f"device '{device}' was asked for.*use placement 'cpu', or install"):
            make()


@pytest.mark.parametrize("device", ["gpu", "cpuu", "", "cuda:x"])
def test_a_nonsense_device_is_refused_by_name(device: str) -> None:
    with pytest.raises(DeviceError, match=f"'{device}' is no device: write cpu, cuda or cuda:0"):
        SingleDevice(device)


@pytest.mark.parametrize("device", [10**30, ["cpu"], None, 3.5], ids=str)
def test_what_is_no_name_of_a_device_is_refused(device: Any) -> None:
    with pytest.raises(DeviceError, match="is no device: write cpu, cuda or cuda:0"):
        SingleDevice(device)


@pytest.mark.parametrize("device", ["meta", "mtia"])
def test_a_device_that_torch_does_not_see_is_an_error_with_the_remedy(device: str) -> None:
    with pytest.raises(DeviceError, match=f"'{device}' was asked for.*sees no device of type '{device}': use"):
        SingleDevice(device)


def test_a_number_that_no_device_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    two = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda device: two)
    for device in ("xpu", "xpu:0", "xpu:1"):
        assert str(SingleDevice(device).learning_device) == device
    with pytest.raises(DeviceError, match=r"'xpu:2' was asked for, but this machine has 2 .* use xpu:0 to xpu:1"):
        SingleDevice("xpu:2")


def test_devices_may_be_torch_devices() -> None:
    assert available_device(torch.device("cpu")) == torch.device("cpu")
    assert available_device("cpu:0") == torch.zeros(1, device="cpu:0").device
    assert SingleDevice(torch.device("cpu")).settings() == SingleDevice("cpu").settings()


@pytest.mark.parametrize("publish_every", [0, -1, 1.5, "2", True])
def test_publish_every_must_be_a_positive_whole_number(publish_every: Any) -> None:
    rule = f"publish_every must be a whole number of at least 1, got {publish_every!r}"
    with pytest.raises(ConfigurationError, match=rule):
        Mirrored("cpu", "cpu", publish_every=publish_every)


def test_a_lag_wants_every_update_published() -> None:
    with pytest.raises(ConfigurationError, match="publish_every must be 1 where max_lag is 1, got 2"):
        Mirrored("cpu", "cpu", max_lag=1, publish_every=2)


@pytest.mark.parametrize("max_lag", [-1, 0.5, True])
def test_what_is_no_number_of_updates_is_refused(max_lag: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"max_lag must be .*, got {max_lag}"):
        Mirrored("cpu", "cpu", max_lag=max_lag)


@pytest.mark.parametrize("placement", CPU_PLACEMENTS)
def test_settings_make_the_placement_again(placement: str) -> None:
    made = CPU_PLACEMENTS[placement]()
    again = placement_from_settings(made.settings())
    assert type(again) is type(made)
    assert again.settings() == made.settings()


def test_settings_hold_what_is_not_default() -> None:
    again = placement_from_settings(Mirrored("cpu", "cpu", publish_every=3, force_copy=True, verify=True).settings())
    assert isinstance(again, Mirrored)
    assert (again.publish_every, again.force_copy, again.verify) == (3, True, True)


@pytest.mark.parametrize(
    ("name", "kind"), [("cpu", SingleDevice), ("migrate", Migrating), ("hybrid", Mirrored), ("overlap", Mirrored)]
)
def test_names_of_the_command_line(name: Any, kind: type[Placement]) -> None:
    devices = {} if name == "cpu" else {"sampling_device": "cpu", "learning_device": "cpu"}
    assert isinstance(PlacementOptions(name, **devices).resolve(), kind)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigurationError, match=r"unknown placement 'both': use one of cpu, .*; in Python, a placement"
    ):
        PlacementOptions(cast(Any, "both")).resolve()


def test_auto_is_no_placement_until_it_has_measured() -> None:
    assert PlacementOptions("auto", max_lag=2).resolve() == Auto(2)


def test_repr_shows_the_devices() -> None:
    assert repr(SingleDevice("cpu")) == "SingleDevice(device='cpu')"
    assert repr(Migrating("cpu", "cpu")).startswith("Migrating(sampling='cpu', learning='cpu'")


# Only the placement moves things

ROOT = Path(__file__).parents[3]


def is_dtype(node: ast.expr) -> bool:
    """`x.dtype` or `torch.float32` and the like."""
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr == "dtype" or isinstance(getattr(torch, node.attr, None), torch.dtype)


def moves(source: str) -> list[str]:
    """The calls in a Python source that may move something to another device."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        changes_type_only = node.args and all(is_dtype(argument) for argument in node.args) and not node.keywords
        if node.func.attr in ("cpu", "cuda") or (node.func.attr == "to" and not changes_type_only):
            found.append(f".{node.func.attr}({', '.join(map(ast.unparse, (*node.args, *node.keywords)))})")
    return found


def test_the_search_for_moves_finds_them() -> None:
    source = "a.cpu(); b.cuda(0); c.to('cpu'); d.to(device=x); e.to(f.device); g.to(h.dtype); i.to(torch.float32)"
    assert moves(source) == [".cpu()", ".cuda(0)", ".to('cpu')", ".to(device=x)", ".to(f.device)"]


def test_only_the_placement_moves_things() -> None:
    paths = {path.resolve() for folder in ("hybridppo", "agents", "runners") for path in (ROOT / folder).rglob("*.py")}
    files = [(path.relative_to(ROOT).as_posix(), path.read_text()) for path in sorted(paths)]
    may_move = [(name, source) for name, source in files if re.search(r"\.(cpu|cuda|to)\b", source)]
    strays = {name: set(found) for name, source in may_move if (found := moves(source))}
    placements = ("placement.py", "crossing.py")
    assert all(strays.pop(f"hybridppo/placements/{name}", None) for name in placements)
    # The doctor tries what copies there are.
    assert strays.pop("hybridppo/tools/doctor.py")
    copied = ".to('cpu', copy=True)"
    assert strays == {
        # What was sampled on a device is saved, and errors in it are explained on the host; bounds of actions go to it.
        "hybridppo/environments/on_device.py": {".cpu()", ".to(device)"},
        "runners/device_sampler.py": {".cpu()"},
        # A checkpoint is written from the host.
        "hybridppo/run_directory/checkpoints.py": {copied},
    }


# On a GPU

CUDA_PLACEMENTS = ("cuda", "migrate", "hybrid")


@pytest.fixture
def cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def on_gpu(test: Any) -> Any:
    return pytest.mark.gpu(pytest.mark.usefixtures("cuda")(test))


@on_gpu
@pytest.mark.parametrize("name", CUDA_PLACEMENTS)
def test_gpu_agents_act(name: str) -> None:
    result, _ = train(name, iterations=1)
    on_cpu, _ = train("cpu", iterations=1)
    observation = np.array([0.5, -1.0, 0.1, 1.0], dtype=np.float32)
    assert result.agent.act(observation) == on_cpu.agent.act(observation)
    assert result.agent.act(observation, deterministic=False) in (0, 1)


@on_gpu
@pytest.mark.parametrize("name", ["cpu", *CUDA_PLACEMENTS])
def test_gpu_runs_resume_under_any_placement(name: str, tmp_path: Path) -> None:
    train("hybrid", iterations=2, run_dir=tmp_path / "run")
    result = hybridppo.resume(tmp_path / "run", total_steps=4 * SMALL.batch_size, placement=name, progress=False)
    assert result.metrics["iteration"] == 4


def test_the_command_line_has_the_placement_of_a_run_on_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridppo.placements.crossing.num_cuda_devices", lambda: 2)
    monkeypatch.setattr("hybridppo.placements.crossing.current_cuda_index", lambda: 0)
    settings = SingleDevice("cuda").settings()
    assert settings["device"] == "cuda:0"
    assert options_of(settings) == options_of({**settings, "device": "cuda"}) == PlacementOptions("cuda")
    assert options_of(SingleDevice("cpu").settings()) == PlacementOptions("cpu")
    with pytest.raises(ConfigurationError, match="the command line has no placement"):
        options_of(SingleDevice("cuda:1").settings())


def test_a_placement_counts_anew_in_each_training() -> None:
    placement = Mirrored("cpu", "cpu", force_copy=True)
    options = {"config": SMALL, "seed": 0, "placement": placement, "progress": False}
    first, second = (hybridppo.train("CartPole-v1", total_steps=64, **options).metrics for _ in range(2))
    assert first["publishes"] == second["publishes"]
    assert first["bytes_copied"] == second["bytes_copied"]
