"""The optimizer step compiled by torch.compile, against autograd; all but the refusals need a C++ compiler."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_settings import ppo_config
from stop_after import StopAfter
from torch import nn
from toy_combined import ToyAgents
from toy_environments import HighestAllowed

import hybridppo
from hybridppo import ConfigurationError, Mirrored, MultiLearner
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.loss import Loss, LossInputs, ppo_loss
from hybridppo.agents.ppo.torch_compiled import TorchCompiled

CONFIG = ppo_config(num_envs=2, num_steps=16, num_minibatches=2, num_epochs=2, hidden_sizes=(8,), torch_compile=True)
needs_a_compiler = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler"),
]


def predicting(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
    loss, agent = ppo_loss(inputs, config, clip_range), inputs.agent
    error = (agent.modules_of["predictor"](inputs.observations).squeeze(-1) - inputs.returns).square().mean()
    mirrored = (agent.actor_network(-inputs.observations) + inputs.outputs).square().mean()
    moved = (inputs.outputs - inputs.old_outputs).square().mean()
    return replace(loss, total=loss.total + error + mirrored + moved, extra={"error": error, "mirrored": mirrored})


def train(env: Any = "CartPole-v1", **arguments: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 96, "seed": 0, "placement": "cpu", "config": CONFIG, "progress": False}
    return hybridppo.train(env, **{**options, **arguments})


def predictor() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"predictor": nn.Linear(4, 1)}


KINDS: dict[str, dict[str, Any]] = {
    "a loss": {"loss": predicting, "modules": predictor()},
    "the library's loss": {"config": replace(CONFIG, fast_updates=False)},
    "a shared trunk": {"config": replace(CONFIG, shared_trunk=True)},
    "a pool, a mirror": {
        "config": replace(CONFIG, pool_size=2, fast_updates=False),
        "placement": Mirrored("cpu", "cpu", force_copy=True),
    },
    "noise of the state": {"env": "Pendulum-v1", "config": replace(CONFIG, use_sde=True, squash_actions=True)},
    "shards": {
        "config": replace(CONFIG, fast_updates=False, num_minibatches=2),
        "distributed": MultiLearner(learners=1, shards=2),
    },
    "masks": {"env": HighestAllowed, "config": replace(CONFIG, fast_updates=False), "action_masks": True},
    "a schedule": {"config": replace(CONFIG, fast_updates=False, anneal_learning_rate=True, anneal_clip_range=True)},
    "overlap, workers": {
        "config": replace(CONFIG, fast_updates=False), "placement": Mirrored("cpu", "cpu", max_lag=1), "num_workers": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs_a_compiler) for kind in KINDS])
def test_it_learns_what_autograd_does_and_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    options = {"total_steps": 160, **KINDS[kind]}
    whole = train(**options)
    assert type(whole.agent.loop().backend) is TorchCompiled
    plain = train(**{**options, "config": replace(whole.agent.config, torch_compile=False)})
    torch.testing.assert_close(whole.agent.parameters.values, plain.agent.parameters.values, rtol=1e-3, atol=1e-5)
    train(**options, run_dir=tmp_path / "run", callbacks=[StopAfter(2)])
    names = [name for name in ("env", "loss", "modules") if not isinstance(options.get(name, ""), str)]
    own = {name: options[name] for name in names}
    resumed = hybridppo.resume(tmp_path / "run", progress=False, **own)
    assert torch.equal(resumed.agent.parameters.values, whole.agent.parameters.values)


@pytest.mark.parametrize("sizes", [pytest.param(((4,), (8,)), marks=needs_a_compiler)])
def test_each_of_several_policies_is_compiled(sizes: tuple[tuple[int, ...], ...]) -> None:
    configs = [replace(CONFIG, fast_updates=False, hidden_sizes=own) for own in sizes]
    with torch._dynamo.config.patch(recompile_limit=1):  # as if many agents had been compiled in this process
        found = train(ToyAgents, config=dict(zip(("stays", "leaves"), configs, strict=True)))
    plain = [replace(config, torch_compile=False) for config in configs]
    expected = train(ToyAgents, config=dict(zip(("stays", "leaves"), plain, strict=True)))
    for name, agent in found.agents.items():
        assert type(agent.loop().backend) is TorchCompiled
        own = expected.agents[name].parameters.values
        torch.testing.assert_close(agent.parameters.values, own, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("first", [pytest.param(size, marks=needs_a_compiler) for size in (5, 6)])
def test_bits_do_not_depend_on_the_size_that_came_first(first: int) -> None:
    torch._dynamo.reset()
    agent = train(config=replace(CONFIG, fast_updates=False), total_steps=32).agent
    backend, found = TorchCompiled(agent.objective), {}
    generator = torch.Generator().manual_seed(0)
    rows = {size: batch_of(size, generator) for size in (5, 6)}
    for size in (first, 11 - first):
        backend.gradient(rows[size], 0.2)
        found[size] = agent.parameters.gradient.clone()
    remembered = GRADIENTS.setdefault("of", found)
    assert all(torch.equal(found[size], remembered[size]) for size in found)


GRADIENTS: dict[str, dict[int, torch.Tensor]] = {}
"""The gradients that the first of these tests found."""


def batch_of(size: int, generator: torch.Generator) -> Batch:
    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(size, *shape, generator=generator)

    return Batch(
        observations=numbers(4), actions=torch.arange(size) % 2, log_probs=numbers(), values=numbers(),
        advantages=numbers(), returns=numbers(),
    )  # fmt: skip


@pytest.mark.slow
def test_without_a_compiler_one_sentence_says_what_is_missing(tmp_path: Path) -> None:
    script = (
        "import hybridppo\n"
        "config = hybridppo.PPOConfig(torch_compile=True, fast_updates=False)\n"
        "hybridppo.train('CartPole-v1', total_steps=2048, placement='cpu', config=config, progress=False)"
    )
    env = {**os.environ, "CXX": str(tmp_path / "none"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    found = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=300)
    assert found.returncode == 1
    assert found.stderr.strip().splitlines()[-1] == (
        "hybridppo.errors.ConfigurationError: torch_compile=True needs a C++ compiler, and torch found none (g++): "
        "install one, or leave it out"
    )


def choosing(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
    loss = ppo_loss(inputs, config, clip_range)
    return loss if float(inputs.advantages.sum()) > 1e9 else replace(loss, total=loss.policy)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a memory": ({"recurrent": "mingru"}, "torch_compile does not work with recurrent: leave one out"),
    "bf16": ({"precision": "bf16"}, "torch_compile needs precision='fp32': leave one out"),
    "a schedule": ({"schedules": "entropy_coef=linear"}, "torch_compile compiles entropy_coef, which has a schedule"),
    "cuda graphs": ({"cuda_graphs": True}, "torch_compile does not work with cuda_graphs: leave one out"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_combine_is_refused(what: str) -> None:
    fields, message = REFUSED[what]
    with pytest.raises(ConfigurationError, match=message):
        replace(CONFIG, num_minibatches=1, **fields)


def test_modules_that_depend_on_training_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="does not work with dropout, batch normalisation"):
        train(loss=predicting, modules={"predictor": nn.Sequential(nn.Linear(4, 1), nn.Dropout())})


@pytest.mark.slow
def test_a_loss_that_cannot_be_compiled_is_one_error() -> None:
    with pytest.raises(ConfigurationError, match="torch_compile=True: torch cannot compile this loss or these network"):
        train(loss=choosing)


def test_another_device_is_refused() -> None:
    agent = train(config=replace(CONFIG, torch_compile=False), total_steps=32).agent
    agent.parameters.rebind(agent.parameters.values.data.to("meta"))
    with pytest.raises(ConfigurationError, match="torch_compile=True is for cpu and cuda, got meta: leave it out"):
        TorchCompiled(agent.objective)
