"""A user's loss that sees everything, with modules, a state, further metrics and another advantage estimate."""

import copy
import json
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode
from learner_kinds import KINDS, marks_of
from loops import recorded_loop_of
from ppo_settings import ppo_config
from pretended_recorder import PretendedRecorder
from run_files import lines_of
from same_bits import assert_same, state_of
from selection import only_by_default
from stop_after import StopAfter, assert_stopped_update_changes_nothing, interrupt_at, rollouts_of
from tensor_environments import ScriptedTensors
from torch import nn
from toy_agents import Matching, ScriptedAgents, TakingTurns
from toy_environments import ScriptedEnv, scripted_vector

import hybridppo
from hybridppo import PPO, TD3, ConfigurationError, EnvError, Mirrored, MultiLearner, PPOConfig, TD3Config
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.by_numpy import NumpyNetworks
from hybridppo.agents.ppo.loss import Loss, LossInputs, ppo_loss
from hybridppo.agents.ppo.ppo import backend_for
from hybridppo.commands.main import main
from hybridppo.distributions.base import Distribution
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.networks.making import actor_and_critic
from hybridppo.rollouts.advantages import gae, next_values
from hybridppo.rollouts.rollout import Rollout
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.system.signals import Stopped
from hybridppo.tools.plot import find_runs, groups_of

CONFIG = ppo_config(num_envs=2, num_steps=16, num_minibatches=2, num_epochs=2, hidden_sizes=(8,), learning_rate=1e-2)
PLACEMENTS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "hybrid": {"placement": Mirrored("cpu", "cpu", force_copy=True)},
    "overlap": {"placement": Mirrored("cpu", "cpu", max_lag=1)},
    "workers": {"num_workers": 2},
}


def train(**arguments: Any) -> hybridppo.TrainResult:
    options = {"total_steps": 96, "seed": 0, "placement": "cpu", "config": CONFIG, "progress": False, **arguments}
    return hybridppo.train(options.pop("env", "Pendulum-v1"), on_interrupt="return", **options)


def same(one: Any, other: Any) -> bool:
    return torch.equal(one.agent.parameters.values, other.agent.parameters.values)


def predictor() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


def predicting(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
    loss = ppo_loss(inputs, config, clip_range)
    error = (inputs.agent.modules_of["predictor"](inputs.observations) - inputs.observations).square().mean()
    moved = (inputs.outputs - inputs.old_outputs).square().mean()
    return replace(loss, total=loss.total + error + 0.1 * moved, extra={"prediction": error, "moved": moved})


class Coefficient(nn.Module):
    """A coefficient that a loss changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(0.1))


def adaptive(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
    """A penalty whose coefficient grows with every minibatch."""
    loss, coefficient = ppo_loss(inputs, config, clip_range), inputs.agent.modules_of["coefficient"].value
    kl = (inputs.log_ratio.exp() - 1.0 - inputs.log_ratio).mean()
    coefficient.mul_(1.1)
    return replace(loss, total=loss.total + float(coefficient) * kl, extra={"coefficient": float(coefficient)})


def adapting() -> dict[str, Any]:
    return {"loss": adaptive, "modules": {"coefficient": Coefficient()}}


def box() -> Box:
    return Box(-1.0, 1.0, (3,))


def one_step(
    *, rewards: Any, values: Any, next_values: Any, terminated: Any, truncated: Any, gamma: Any, **_: Any
) -> Any:
    return rewards + gamma * next_values.masked_fill(terminated, 0.0) - values


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=marks_of(kind)) for kind in KINDS])
def test_a_loss_sees_the_outputs_from_before_the_update(kind: str) -> None:
    seen: list[float] = []

    def looking(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
        old = inputs.agent.distribution.log_prob(inputs.old_outputs, inputs.actions)
        new = inputs.agent.distribution.log_prob(inputs.outputs, inputs.actions)
        assert inputs.old_outputs.shape == inputs.outputs.shape
        seen.append((new - old - inputs.log_ratio).detach().abs().max().item())
        return ppo_loss(inputs, config, clip_range)

    config = replace(CONFIG, **{"num_envs": 4, **KINDS[kind].config})
    train(config=config, loss=looking, env="CartPole-v1", total_steps=256, **KINDS[kind].options)
    assert seen
    assert max(seen) < 1e-4


@pytest.mark.parametrize("kind", ["rows", "gru", "pool", "stacks"])
def test_a_loss_sees_observations_in_the_environments_units(kind: str) -> None:
    errors: list[float] = []
    sizes: list[float] = []

    def looking(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
        normalized = inputs.agent.normalization.observations(inputs.raw_observations)
        errors.append(float((normalized - inputs.observations).abs().max()))
        sizes.append(float((inputs.raw_observations - inputs.observations).abs().max()))
        return ppo_loss(inputs, config, clip_range)

    options: dict[str, Any] = {"frame_stack": 2} if kind == "stacks" else {}
    fields = {} if kind == "stacks" else KINDS[kind].config
    config = replace(CONFIG, **{"num_envs": 4, **fields, "normalize_observations": True})
    train(config=config, loss=looking, env="Pendulum-v1", total_steps=256, **options)
    assert max(errors) < 1e-6
    assert max(sizes) > 0.1


@pytest.mark.parametrize("where", PLACEMENTS)
def test_modules_are_trained_and_extras_are_metrics(where: str) -> None:
    given = predictor()
    before = given.weight.detach().clone()
    found: list[Any] = []
    result = train(loss=predicting, modules={"predictor": given}, on_iteration=found.append, **PLACEMENTS[where])
    assert torch.equal(given.weight, before)  # the agent has a copy
    assert not torch.equal(result.agent.modules_of["predictor"].weight, before)
    assert found[-1]["prediction"] < found[0]["prediction"]
    assert found[0]["moved"] > 0.0
    if where in ("hybrid", "workers"):
        assert same(result, train(loss=predicting, modules={"predictor": predictor()}))


@pytest.mark.parametrize(
    ("kind", "where"),
    only_by_default(
        ("modules, overlap", "state, cpu", "advantages, overlap"),
        product(("modules", "state", "advantages"), ("cpu", "overlap")),
    ),
)
def test_a_run_with_them_goes_on_exactly(kind: str, where: str, tmp_path: Path) -> None:
    def own() -> dict[str, Any]:
        parts: dict[str, dict[str, Any]] = {
            "modules": {"loss": predicting, "modules": {"predictor": predictor()}},
            "state": adapting(),
            "advantages": {"advantages": one_step},
        }
        return parts[kind]

    options = {"total_steps": 128, **PLACEMENTS[where]}
    expected = train(**options, **own())
    assert train(run_dir=tmp_path / "run", on_iteration=interrupt_at(2), **options, **own()).interrupted
    with pytest.raises(hybridppo.RunDirectoryError, match="pass it again in Python"):
        hybridppo.resume(tmp_path / "run", progress=False)
    resumed = hybridppo.resume(tmp_path / "run", progress=False, **own())
    assert same(resumed, expected)
    assert resumed.agent.state()[1] == expected.agent.state()[1]
    expected.agent.save(tmp_path / "agent")
    for saved in (tmp_path / "run", tmp_path / "agent"):
        acting = hybridppo.load(saved)
        assert torch.equal(acting.parameters.of("actor"), expected.agent.parameters.of("actor"))
        if kind == "modules":
            whole = hybridppo.load(saved, modules={"predictor": predictor()})
            assert torch.equal(whole.parameters.values, expected.agent.parameters.values)


@pytest.mark.parametrize("name", ["agent", "sampler", "rollout", "placement"])
def test_parts_of_ones_own_may_have_names_that_earlier_formats_gave(name: str, tmp_path: Path) -> None:
    """A checkpoint of the present format is read as it is."""

    class Named(nn.Module):
        def __init__(self, num_outputs: int) -> None:
            super().__init__()
            self.add_module(name, nn.Linear(4, num_outputs))

        def forward(self, rows: Any) -> Any:
            return getattr(self, name)(rows)

    def networks(*_: Any) -> Any:
        return Named(2), Named(1)

    def loss(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
        found = ppo_loss(inputs, config, clip_range)
        guess = inputs.agent.modules_of[name](inputs.outputs).squeeze(-1)
        return replace(found, total=found.total + (guess - inputs.returns).square().mean())

    config = replace(CONFIG, normalize_observations=False)
    own: dict[str, Any] = {"networks": networks, "modules": {name: nn.Linear(2, 1)}}
    options: dict[str, Any] = {"total_steps": 64, "placement": "cpu", "progress": False, "run_dir": tmp_path / "run"}
    trained = hybridppo.train("CartPole-v1", config=config, loss=loss, **options, **own).agent
    found = hybridppo.load(tmp_path / "run", **own).state()[0]
    assert all(torch.equal(tensor, found[key]) for key, tensor in trained.state()[0].items())


def test_an_update_that_is_broken_off_leaves_the_state_of_a_loss_as_it_was() -> None:
    agent, (_, rollouts) = train(**adapting()).agent, rollouts_of(PPO, train)
    before = float(agent.modules_of["coefficient"].value)
    assert_stopped_update_changes_nothing(agent, rollouts[0], after=2)
    metrics = agent.update(rollouts[0])
    steps = [before * 1.1**i for i in range(1, 5)]
    assert metrics["coefficient"] == pytest.approx(sum(steps) / 4)  # of the steps that were made, and no others


def test_an_agent_like_another_has_a_state_of_its_own() -> None:
    agent = train(**adapting(), advantages=one_step).agent
    other = agent.like(CONFIG)
    assert float(other.modules_of["coefficient"].value) == pytest.approx(0.1)
    assert float(agent.modules_of["coefficient"].value) > 0.1
    assert other._advantages is one_step


def test_a_module_that_was_not_passed_is_an_error_that_says_so() -> None:
    options = {name: part for name, part in adapting().items() if name != "modules"}
    with pytest.raises(
        ConfigurationError, match=r"no module 'coefficient', .*: pass modules=\{'coefficient': \.\.\.\}"
    ):
        train(**options)


def test_what_a_loss_keeps_in_itself_is_not_shared_with_the_agents_of_trials() -> None:
    class Counting:
        calls = 0

        def __call__(self, inputs: Any, config: Any, clip_range: Any) -> Any:
            self.calls += 1
            return ppo_loss(inputs, config, clip_range)

    loss = Counting()
    agent, rollouts = rollouts_of(PPO, lambda: train(loss=loss).agent)
    before = loss.calls
    agent.like(CONFIG).update(rollouts[0])
    assert loss.calls == before
    agent.update(rollouts[0])
    assert loss.calls > before


@pytest.mark.parametrize("kind", ["rows", "gru", "pool"])
def test_advantages_of_ones_own_take_what_gae_takes(kind: str) -> None:
    config = replace(CONFIG, num_envs=4, **KINDS[kind].config)
    plain, own = train(config=config), train(config=config, advantages=one_step)
    assert not same(plain, own)
    if kind != "pool":  # whose own advantages are weighed
        assert same(own, train(config=replace(config, gae_lambda=0.0)))
        assert same(plain, train(config=config, advantages=lambda **steps: gae(**steps)))
        pair = train(config=config, advantages=lambda **its: (found := gae(**its), found + its["values"]))
        assert same(plain, pair)
        assert not same(plain, train(config=config, advantages=lambda **its: (gae(**its), its["rewards"])))


@pytest.mark.parametrize("kind", ["rows", "gru"])
def test_advantages_computed_by_numpy_may_have_64_bits(kind: str) -> None:
    def by_numpy(dtype: Any, **steps: Any) -> torch.Tensor:
        return torch.from_numpy((steps["rewards"] - steps["values"]).numpy().astype(dtype))

    config = replace(CONFIG, **KINDS[kind].config)
    one, other = (train(config=config, advantages=partial(by_numpy, dtype)) for dtype in (np.float32, np.float64))
    assert same(one, other)


NETWORKS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "choices": (box(), Discrete(3), {}),
    "several choices": (box(), MultiDiscrete([2, 3, 3]), {}),
    "numbers": (box(), box(), {"activation": "relu", "hidden_sizes": (8, 8)}),
    "squashed": (box(), box(), {"squash_actions": True}),
    "choices and numbers": (box(), Dict(a=Discrete(3), b=box()), {}),
    "masks": (MaskedObservation(box(), 3), Discrete(3), {}),
    "pool": (box(), Discrete(3), {"pool_size": 2}),
    "other parts": (
        Dict(a=box(), b=box()), box(), {"actor_keys": ("a",), "critic_keys": ("a", "b"), "hidden_sizes": (8,)}
    ),
    "a distribution by autograd": (box(), box(), {}),
}  # fmt: skip
TERMS: dict[str, Any] = {
    "of other advantages": lambda inputs: ppo_loss(replace(inputs, advantages=-inputs.values), CONFIG, 0.1).policy,
    "of every row": lambda inputs: (inputs.entropy * inputs.advantages + inputs.log_ratio.square()).mean(),
    "of the outputs": lambda inputs: (read_twice(inputs) * inputs.returns.unsqueeze(-1)).mean(),
    "of a network": lambda inputs: inputs.agent.actor_network(inputs.observations).square().mean(),
}


def read_twice(inputs: LossInputs) -> torch.Tensor:
    with torch.no_grad():
        before = inputs.outputs.clone()
    assert torch.equal(inputs.outputs, before)
    return inputs.outputs


class ByAutograd(DiagonalGaussian):
    gradient = Distribution.gradient


def gradients(agent: PPO, batch: Batch, kinds: Any) -> list[Any]:
    """The statistics, the norm and the gradient of one minibatch, by each backend."""
    found, before = [], agent.parameters.values.data.clone()
    for kind in kinds:
        backend = kind(agent)
        (minibatch,) = backend.minibatches(batch, [len(batch)])
        statistics, norm = backend.gradient(minibatch, 0.2), backend.descend()
        found.append((*map(torch.as_tensor, (statistics, norm)), agent.parameters.gradient.clone()))
        agent.parameters.values.data.copy_(before)
    return found


@pytest.mark.parametrize("terms", [(), ("of every row", "of other advantages"), ("of the outputs", "of a network")])
@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_by_numpy_have_the_gradient_of_autograd(kind: str, terms: Any) -> None:
    observations, actions, fields = NETWORKS[kind]

    class Own(PPO):
        def make_distribution(self) -> Any:
            found = super().make_distribution()
            return ByAutograd(found.low, found.high) if "by autograd" in kind else found  # type: ignore[attr-defined]

    def mine(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
        loss, more = ppo_loss(inputs, config, clip_range), sum(TERMS[term](inputs) for term in terms)
        if terms:  # may not depend on the critic
            loss = replace(loss, total=loss.policy + more, extra={"more": more})
        return loss

    agent = Own(observations, actions, replace(CONFIG, entropy_coef=0.1, **fields), seed=1, loss=mine)
    with torch.no_grad():
        agent.parameters.values.add_(0.3 * torch.randn(agent.parameters.values.shape))
    rows = torch.randn(9, *agent._encode.shape).abs()  # a mask allows what is not zero
    outputs = agent.actor_network(rows).detach().numpy()
    noise = agent.distribution.draw_noise(np.random.default_rng(0), (9,))
    columns = {name: torch.randn(9) for name in ("log_probs", "values", "advantages", "returns")}
    of_pool = {"shares": torch.rand(9), "weights": torch.rand(9) + 1.0} if kind == "pool" else {}
    chosen = torch.from_numpy(agent.distribution.sample(outputs, noise))
    batch = Batch(observations=rows, actions=chosen, **columns, **of_pool)
    assert [backend_for(agent, by_hand=by_hand) for by_hand in (False, True)] == [Backend, NumpyNetworks]
    expected, found = gradients(agent, batch, (Backend, NumpyNetworks))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [ppo_loss, partial(ppo_loss)], ids=["the library's", "own"])
def test_networks_that_share_a_layer_learn_by_autograd(loss: Any) -> None:
    def sharing(*arguments: Any) -> Any:
        actor, critic = actor_and_critic(*arguments)
        critic.body[0] = actor.body[0]  # type: ignore[index,union-attr]
        return actor, critic

    agent = PPO(box(), Discrete(3), CONFIG, seed=1, loss=loss, networks=sharing)
    assert backend_for(agent, by_hand=True) is Backend


def test_several_learners_share_modules() -> None:
    config = replace(CONFIG, num_envs=4)
    options = {"config": config, "loss": predicting, "modules": {"predictor": predictor()}}
    one, two = (train(distributed=MultiLearner(learners=number, shards=2), **options) for number in (1, 2))
    assert same(one, two)
    assert "prediction" in two.metrics
    with pytest.raises(ConfigurationError, match=r"^modules\[.coefficient.\] is a Coefficient, which cannot be"):
        train(config=config, **adapting(), distributed=MultiLearner(learners=1, shards=2))


def test_recorded_steps_log_extras_too() -> None:
    def twice(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
        loss = ppo_loss(inputs, config, clip_range)
        return replace(loss, extra={"twice": 2.0 * loss.value})

    agent = PPO(box(), box(), CONFIG, loss=twice)
    steps, _ = recorded_loop_of(agent, PretendedRecorder())
    batch = Batch(
        observations=torch.randn(8, 3), actions=torch.randn(8, 3), log_probs=torch.randn(8), values=torch.randn(8),
        advantages=torch.randn(8), returns=torch.randn(8), old_outputs=torch.randn(8, 3),
    )  # fmt: skip
    for _ in range(3):
        table = steps.epoch(batch, [4, 4], 0.2)
        torch.testing.assert_close(table[:, 5], 2.0 * table[:, 1])
        agent.version += 1
    assert table.shape == (2, 7)


def giving(**extra: Any) -> Any:
    return lambda inputs, config, clip_range: replace(ppo_loss(inputs, config, clip_range), extra=extra)


def with_terms(**terms: Any) -> Any:
    return lambda inputs, config, clip_range: replace(ppo_loss(inputs, config, clip_range), **terms)


def test_terms_may_be_numbers() -> None:
    result = train(loss=with_terms(policy=0.5, value=2, entropy=np.float32(1.5)))
    assert [result.metrics[name] for name in ("policy_loss", "value_loss", "entropy")] == [0.5, 2.0, 1.5]


def overriding(kind: Any = PPO, **methods: Any) -> Any:
    """A subclass with these methods and attributes."""
    return type("Own", (kind,), methods)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no Loss": ({"loss": lambda inputs, *_: inputs.values.mean()}, r"a loss must return a Loss \(.*got tensor\("),
    "a total that is a number": ({"loss": with_terms(total=1.0)}, "total of a loss must be computed from outputs"),
    "a term for each row": ({"loss": with_terms(policy=torch.ones(3))}, r"policy of a loss .* scalar, got \[3\]"),
    "an extra of another metric": ({"loss": giving(entropy=1.0)}, r"extra\['entropy'\] .* name of another metric"),
    "an extra of a number with a schedule": (
        {"loss": giving(clip_range=1.0), "schedules": {"clip_range": "linear"}},
        r"extra\['clip_range'\] .* name of another",
    ),
    "an extra that is no scalar": ({"loss": giving(mine=torch.ones(3))}, r"must be a scalar, got \[3\]: take its mean"),
    "a class": ({"loss": Coefficient}, "loss must be a function, got <class .*Coefficient"),
    "a loss with a state": ({"loss": Coefficient()}, r"a loss has no state of its own \(state_dict\): keep it in"),
    "modules without a loss": ({"modules": {"a": nn.Linear(1, 1)}}, "modules are trained by a loss of one's own"),
    "no module": ({"loss": predicting, "modules": {"a": 3}}, r"modules\['a'\] must be a torch.nn.Module, got 3"),
    "a bad name": ({"loss": predicting, "modules": {"a.b": nn.Linear(1, 1)}}, "the name of a module .* 'a.b'"),
    "doubles": ({"loss": predicting, "modules": {"a": nn.Linear(1, 1).double()}}, "must be float32"),
    "advantages of another shape": (
        {"advantages": lambda **its: its["rewards"][1:]},
        r"advantages must return a tensor \[16, 2\], one for each reward, .*: got Tensor of shape \[15, 2\]$",
    ),
    "three advantages": ({"advantages": lambda **its: (its["rewards"],) * 3}, "or two, advantages and returns: got"),
    "rewards of another shape": (
        {"agent": overriding(rewards=lambda self, rollout: rollout.rewards[1:])},
        r"Own.rewards must return a tensor \[16, 2\], one for each reward: got Tensor of shape \[15, 2\]$",
    ),
    "a critic of another shape": (
        {"agent": overriding(values=lambda self, rollout: PPO.values(self, rollout, critic=lambda rows: rows))},
        r"a critic must return one value for each of 34 observations, got Tensor",
    ),
    "metrics that are a number": (
        {"agent": overriding(after_update=lambda self, rollout, metrics: 1.0)},
        "after_update must return metrics by name, or None, got 1.0",
    ),
    "a metric of another": (
        {"agent": overriding(after_update=lambda self, rollout, metrics: {"entropy": 1.0})},
        "'entropy' of after_update has the name of another metric",
    ),
    "a rate of no module": (
        {"agent": overriding(learning_rates={"mine": 1.0})},
        "learning_rates has the name 'mine', and the agent trains no module",
    ),
    "steps on no column": (
        {"agent": overriding(after_update=lambda self, *_: self.optimize(None, {}))},
        "columns of optimize must have",
    ),
    "steps of no network": (
        {"agent": overriding(after_update=lambda self, *_: self.optimize(None, {"a": torch.ones(1)}, networks=["b"]))},
        "networks of optimize has the name 'b', and the agent trains actor, critic",
    ),
    "steps of nothing": (
        {"agent": overriding(after_update=lambda self, *_: self.optimize(None, {"a": torch.ones(1)}, networks=[]))},
        "networks of optimize has the name '', and the agent trains actor, critic",
    ),
    "steps on no row": (
        {"agent": overriding(after_update=lambda self, *_: self.optimize(None, {"a": [1]}, minibatch_size=0))},
        "minibatch_size must be .* got 0",
    ),
    "steps without a gradient": (
        {"agent": overriding(after_update=lambda self, *_: self.optimize(lambda a: a.sum(), {"a": torch.ones(1)}))},
        "a loss of optimize must return a scalar computed by the agent's networks, got tensor",
    ),
    "steps of several learners": (
        {
            "agent": overriding(after_update=lambda self, *_: self.optimize(None, {"a": torch.ones(1)})),
            "distributed": MultiLearner(learners=1, shards=2),
        },
        r"Own.optimize takes steps that several learners cannot share",
    ),
    "for td3": ({"config": TD3Config(), "advantages": one_step}, "advantages=... is for other agents than td3"),
    "several policies": ({"config": {"a": CONFIG, "b": CONFIG}, "advantages": one_step}, "does not work with several"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused(what: str) -> None:
    options, message = REFUSED[what]
    with pytest.raises(ConfigurationError, match=message):
        train(**options)


def test_extras_are_written(tmp_path: Path) -> None:
    train(loss=giving(mine=2.5), run_dir=tmp_path / "run")
    assert [line["mine"] for line in lines_of(tmp_path / "run")] == [2.5] * 3


class Growing(PPO):
    """Keeps a number that changes with every update."""

    beta = 1.0

    def update(self, rollout: Any) -> Any:
        self.beta *= 2.0
        return {**super().update(rollout), "beta": self.beta}

    def extra_state(self) -> dict[str, Any]:
        return {"beta": self.beta}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.beta = state["beta"]


def test_what_a_subclass_keeps_is_saved(tmp_path: Path) -> None:
    options: dict[str, Any] = {"agent": Growing, "total_steps": 96}
    whole = train(**options)
    train(**{**options, "total_steps": 64}, run_dir=tmp_path / "run")
    resumed = hybridppo.resume(tmp_path / "run", agent=Growing, total_steps=96, progress=False)
    assert resumed.metrics["beta"] == whole.metrics["beta"] == 8.0
    assert hybridppo.load(tmp_path / "run", agent=Growing).beta == 8.0
    with pytest.raises(hybridppo.HybridPPOError, match=r"its own agent, '.*Growing': pass it again"):
        hybridppo.load(tmp_path / "run")
    whole.agent.beta = torch.zeros(2)
    with pytest.raises(ConfigurationError, match="the result of extra_state must be what JSON can hold: numbers"):
        whole.agent.save(tmp_path / "agent")


class Keeping(PPO):
    """Keeps the rollouts that it learned from."""

    def update(self, rollout: Any) -> Any:
        self.kept = [*vars(self).get("kept", ()), (rollout.copy(), rollout.observations.sum().item())]
        return super().update(rollout)


def test_a_subclass_may_keep_a_copy_of_its_rollouts() -> None:
    kept = train(agent=Keeping).agent.kept
    sums = [total for _, total in kept]
    assert len({*sums}) == 3
    assert [rollout.observations.sum().item() for rollout, _ in kept] == sums


class SeeingEnds(PPO):
    """Keeps what follows the last step of every episode."""

    keeps_final_observations = True

    def update(self, rollout: Any) -> Any:
        names = {"values": rollout.observations, "final_values": rollout.final_observations}
        following = next_values(final_rows=rollout.final_rows, **names)
        for name, ends in {"ends": rollout.terminated | rollout.truncated, "terminations": rollout.terminated}.items():
            found = rollout.steps(following)[rollout.steps(ends)].tolist()
            setattr(self, name, [*vars(self).get(name, ()), *found])
        return super().update(rollout)


class Shaped(PPO):
    """Learns from rewards of its own, and from the values of a critic that another discount has."""

    def rewards(self, rollout: Any) -> torch.Tensor:
        assert torch.equal(rollout.rewards, rollout.raw.rewards)
        return rollout.rewards.double() - 2.0  # NumPy's have 64 bits, too

    def prepared(self, rollout: Any) -> Batch:
        steps = super().prepared(rollout)
        values, following = self.values(rollout, critic=lambda rows: rows[:, :1])
        endless = rollout.without_ends()
        of = {"rewards": torch.ones_like(values), "values": values, "next_values": following}
        own, returns = self.targets(endless, **of, gamma=0.5, gae_lambda=0.0)
        columns = {
            "shaped": rollout.rewards,
            "reached": rollout.next_observations,
            "own": own,
            "returns_of_own": returns,
        }
        return steps.with_columns(**columns)


def test_pieces_of_prepared_take_rewards_and_a_critic_of_ones_own() -> None:
    seen = torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None, None].expand(4, 1, 3)
    rewards, ends = torch.tensor([[3.0], [5.0], [7.0]]), torch.tensor([[False], [True], [False]])
    given = Rollout(
        observations=seen, actions=torch.zeros(3, 1, 3), log_probs=torch.zeros(3, 1), rewards=rewards,
        terminated=ends & False, truncated=ends, valid_rows=torch.arange(3), final_rows=torch.tensor([1]),
        final_observations=torch.full((1, 3), 6.0),
    )  # fmt: skip
    agent = Shaped(box(), box(), replace(CONFIG, num_envs=1, num_steps=3, num_minibatches=1))
    batch = agent.batch_of(given, agent.loop())
    assert batch.shaped.tolist() == [1.0, 3.0, 5.0]
    assert batch.reached[:, 0].tolist() == [2.0, 6.0, 8.0]
    assert batch.own.tolist() == [1.0 + 0.5 * 2.0 - 1.0, 1.0 + 0.5 * 6.0 - 2.0, 1.0 + 0.5 * 8.0 - 4.0]
    assert batch.returns_of_own.tolist() == [2.0, 4.0, 5.0]
    assert torch.equal(given.rewards, rewards)
    assert torch.equal(given.without_ends().next_observations, seen[1:])


def test_rewards_of_ones_own_are_normalised_like_those_of_an_environment() -> None:
    class Tenth(PPO):
        def rewards(self, rollout: Any) -> torch.Tensor:
            return 0.5 * rollout.rewards  # a power of 2 rounds nothing

    config = replace(CONFIG, normalize_rewards=True)
    agents = [train(agent=kind, config=config).agent for kind in (PPO, Tenth)]
    assert torch.equal(2.0 * agents[1].normalization.rewards.returns, agents[0].normalization.rewards.returns)
    with pytest.raises(ConfigurationError, match=r"Tenth.rewards does not work with normalize_rewards=True if max_lag"):
        train(agent=Tenth, config=config, placement=Mirrored("cpu", "cpu", max_lag=2))


class WithModels(PPO):
    """Has two modules, of which one learns at a rate of its own, and an adaptive number."""

    @property
    def learning_rates(self) -> dict[str, float]:  # type: ignore[override]
        return {"slow": self.settings["slow_rate"]}

    def make_modules(self) -> dict[str, nn.Module]:
        width = self.observation_space.shape[0]
        return {name: nn.Linear(width, self.config.hidden_sizes[0]) for name in ("slow", "fast")} | {
            "count": Coefficient()
        }

    def after_update(self, rollout: Any, metrics: Any) -> dict[str, Any]:
        self.modules_of["count"].value += 1.0
        rows = rollout.steps(rollout.observations[:-1])
        loss = self.optimize(self.error, {"rows": rows}, num_epochs=2, minibatch_size=16)
        return {"count": self.modules_of["count"].value, "error": loss, "kl_seen": metrics["approx_kl"]}

    def error(self, rows: torch.Tensor) -> torch.Tensor:
        return sum((self.modules_of[name](rows) - 1.0).square().mean() for name in ("slow", "fast"))  # type: ignore[return-value]


class TD3WithModels(TD3):
    """The same for TD3: its modules learn from the loss of the critics."""

    make_modules = WithModels.make_modules

    def critic_loss(self, minibatch: Any) -> Any:
        loss, values = super().critic_loss(minibatch)
        return loss + WithModels.error(self, minibatch.observations), values

    def after_update(self, rollout: Any, metrics: Any) -> dict[str, Any]:
        assert metrics == {}
        self.modules_of["count"].value += 1.0
        before = self.actor.state_dict()
        columns = {"rows": rollout.observations.flatten(0, 1)}
        loss = self.optimize(lambda rows: WithModels.error(self, rows), columns, networks=["fast"])
        assert all(torch.equal(before[name], tensor) for name, tensor in self.actor.state_dict().items())
        return {"count": self.modules_of["count"].value, "error": loss}


HOOKED: dict[str, dict[str, Any]] = {
    "ppo": {"agent": WithModels, "settings": {"slow_rate": 1e-9}},
    "td3": {
        "agent": TD3WithModels,
        "config": TD3Config(
            learning_starts=8, batch_size=8, steps_per_iteration=32, hidden_sizes=(8,), learning_rate=1e-2
        ),
    },
}


@pytest.mark.parametrize("name", HOOKED)
def test_modules_that_a_subclass_makes_learn_and_go_on_exactly(name: str, tmp_path: Path) -> None:
    arguments = HOOKED[name]
    torch.manual_seed(1)
    whole = train(**arguments)
    torch.manual_seed(2)  # initial values follow from the seed of the run
    train(**arguments, run_dir=tmp_path / "run", callbacks=[StopAfter(2)])
    resumed = hybridppo.resume(tmp_path / "run", agent=arguments["agent"], progress=False)
    assert same(whole, resumed)
    assert whole.metrics["count"] == resumed.metrics["count"] > 2.0
    assert lines_of(tmp_path / "run")[-1]["error"] == whole.metrics["error"] < lines_of(tmp_path / "run")[0]["error"]
    loaded = hybridppo.load(tmp_path / "run", agent=arguments["agent"])
    assert torch.equal(loaded.modules_of["fast"].weight, whole.agent.modules_of["fast"].weight)


def test_a_module_may_learn_at_a_rate_of_its_own() -> None:
    agent = WithModels(box(), box(), replace(CONFIG, settings={"slow_rate": 1e-5}))
    before = copy.deepcopy(agent.modules_of)
    agent.optimize(agent.error, {"rows": torch.ones(4, 3)}, num_epochs=3)
    for name, rate in {"slow": 1e-5, "fast": CONFIG.learning_rate}.items():
        moved = (agent.modules_of[name].bias - before[name].bias).detach().abs()
        assert 0.0 < float(moved.max()) <= 3.01 * rate  # of Adam
    assert agent.optimizer.learning_rates["actor"] == CONFIG.learning_rate


@pytest.mark.parametrize("name", HOOKED)
def test_an_error_after_an_update_undoes_it_and_the_run_is_saved(name: str, tmp_path: Path) -> None:
    kept: list[Any] = []
    keeping = overriding(HOOKED[name]["agent"], after_update=lambda self, rollout, metrics: kept.append(rollout))
    agent = train(**{**HOOKED[name], "agent": keeping}).agent
    given: Any = kept[-1] if name == "ppo" else [kept[-1]]
    before, state, work = state_of(agent), agent.state()[1], partial(HOOKED[name]["agent"].after_update, agent)
    for fault in (lambda *_: 1 / 0, lambda *given: work(*given) and 1 / 0):
        keeping.after_update = staticmethod(fault)
        with pytest.raises(ZeroDivisionError):
            agent.update(given)
        assert_same(state_of(agent), before)
        assert agent.state()[1] == state
    keeping.after_update = lambda *_: {}
    agent.update(given)
    assert agent.version == state["version"] + 1
    keeping.after_update = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        train(**{**HOOKED[name], "agent": keeping}, run_dir=tmp_path / "run")
    keeping.after_update = HOOKED[name]["agent"].after_update
    assert hybridppo.resume(tmp_path / "run", agent=keeping, progress=False).metrics["count"] > 2.0


def test_optimizer_steps_of_ones_own_are_adams() -> None:
    agent, rows = PPO(box(), box(), replace(CONFIG, max_grad_norm=0.1)), torch.randn(6, 3)
    twin = copy.deepcopy(agent)
    adam = torch.optim.Adam([*twin.actor.parameters()], CONFIG.learning_rate, eps=1e-5)

    def error(rows: torch.Tensor, wanted: torch.Tensor, which: Any = agent) -> torch.Tensor:
        return (which.actor(rows)[:, :3] - wanted).square().mean()

    order, losses = copy.deepcopy(agent._order), []
    for _ in range(2):
        for some in torch.from_numpy(order.permutation(6)).split(4):
            adam.zero_grad()
            losses.append(error(rows[some], rows[some], twin))
            losses[-1].backward()
            losses[-1] = losses[-1].detach()
            nn.utils.clip_grad_norm_([*twin.actor.parameters()], 0.1)
            adam.step()
    critic = agent.parameters.of("critic").clone()
    mean = agent.optimize(error, {"rows": rows, "wanted": rows}, num_epochs=2, minibatch_size=4, networks=["actor"])
    assert mean == pytest.approx(float(torch.stack(losses).mean()))
    torch.testing.assert_close(agent.parameters.of("actor"), twin.parameters.of("actor"))
    assert torch.equal(agent.parameters.of("critic"), critic)
    agent.should_stop = lambda: True
    with pytest.raises(Stopped):
        agent.optimize(error, {"rows": rows, "wanted": rows})


def test_noise_in_optimizer_steps_of_ones_own_follows_from_the_seed() -> None:
    found = []
    for seed in (0, 0, 1):
        module = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1, bias=False))
        module[1].weight.data.fill_(1.0)
        agent = PPO(box(), box(), CONFIG, seed=seed, modules={"module": module})
        losses = [
            agent.optimize(lambda rows, agent=agent: agent.modules_of["module"](rows).mean(), {"rows": torch.eye(3)})
            for _ in range(2)
        ]
        found.append(losses)
    assert found[0] == found[1] != found[2]


def test_gradients_that_a_user_leaves_in_a_module_change_no_update() -> None:
    class Leaving(PPO):
        def after_update(self, rollout: Any, metrics: Any) -> None:
            self.modules_of["module"].weight.grad.fill_(100.0)

    def norms(kind: type[PPO]) -> list[float]:
        seen: list[float] = []
        modules = {"module": nn.Linear(3, 1)}
        train(agent=kind, modules=modules, on_iteration=lambda metrics: seen.append(metrics["grad_norm"]))
        return seen

    assert norms(Leaving) == norms(PPO)


class OfOneKind(ScriptedTensors):
    """The same with one agent in each environment."""

    policies: ClassVar = {"one": 1}
    single_observation_space = Dict(one=ScriptedTensors.single_observation_space)

    def __init__(self, scripts: Any) -> None:
        super().__init__(scripts, action_space=Dict(one=Discrete(2)))

    def reset(self, *, seed: int | None = None) -> Any:
        return {"one": super().reset(seed=seed)[0][:, None]}, {}

    def step(self, actions: Any) -> Any:
        *result, infos = super().step(actions)
        return *({"one": part[:, None]} for part in result), {"final_obs": {"one": infos["final_obs"][:, None]}}


SCRIPT: Any = ((2, "terminated"), (3, "truncated"), (1, "both"), (4, "terminated"))
MADE: dict[str, dict[str, Any]] = {
    "copies": {"env": partial(ScriptedEnv, SCRIPT)},
    "workers": {"env": partial(ScriptedEnv, SCRIPT), "num_workers": 1},
    **{mode.name: {"env": partial(scripted_vector, [SCRIPT] * 2, mode)} for mode in AutoresetMode},
    "tensors": {"env": partial(ScriptedTensors, [SCRIPT] * 2)},
    "tensors of a kind": {"env": partial(OfOneKind, [SCRIPT] * 2)},
}


@pytest.mark.parametrize("how", MADE)
def test_a_subclass_sees_the_last_observations_of_all_episodes(how: str, tmp_path: Path) -> None:
    agent = train(agent=SeeingEnds, run_dir=tmp_path / "run", total_steps=64, **MADE[how]).agent
    assert len(agent.ends) >= 16
    assert all(done == SCRIPT[int(episode) % len(SCRIPT)][0] for episode, done in agent.ends)
    assert torch.equal(agent.parameters.values, train(total_steps=64, **MADE[how]).agent.parameters.values)
    resumed = hybridppo.resume(tmp_path / "run", agent=SeeingEnds, total_steps=96, progress=False, env=MADE[how]["env"])
    assert all(done == SCRIPT[int(episode) % len(SCRIPT)][0] for episode, done in resumed.agent.ends)


AGENTS: Any = [SCRIPT, [(4, "truncated"), (5, "terminated")], [(3, "terminated")]]
OF_AGENTS: dict[str, dict[str, Any]] = {
    "at once": {"env": partial(ScriptedAgents, AGENTS)},
    "in turns": {"env": lambda: TakingTurns(ScriptedAgents(AGENTS))},
    "self-play": {"env": partial(ScriptedAgents, AGENTS), "self_play": hybridppo.SelfPlay()},
}


@pytest.mark.parametrize("how", OF_AGENTS)
def test_a_subclass_sees_the_last_observations_of_all_agents(how: str) -> None:
    agent = train(agent=SeeingEnds, total_steps=200, **OF_AGENTS[how]).agent
    assert len(agent.terminations) >= 10
    for episode, number, done in agent.terminations:
        script = AGENTS[int(number)]
        assert done == script[int(episode) % len(script)][0]
    assert torch.equal(agent.parameters.values, train(total_steps=200, **OF_AGENTS[how]).agent.parameters.values)


def test_last_observations_that_are_not_kept_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"keeps_final_observations of .* with critic_observes='all'"):
        train(agent=SeeingEnds, env=Matching, config=replace(CONFIG, critic_observes="all"))
    with pytest.raises(EnvError, match=r"ScriptedTensors gives no final observations .*keeps_final_observations"):
        train(agent=SeeingEnds, env=partial(ScriptedTensors, [SCRIPT] * 2, gives_finals=False))


def test_compiled_environments_keep_no_last_observations() -> None:
    pytest.importorskip("numba")
    with pytest.raises(ConfigurationError, match=r"keeps_final_observations of .* with compiled environments"):
        train(agent=SeeingEnds, env="CartPole-v1", vectorization="compiled")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory", []),
        ("loss", 0.1),
        ("parameters", {}),
        ("actor", None),
        ("modules_of", {}),
        ("optimize", 3),
        ("version", "2"),
    ],
)
@pytest.mark.parametrize("kind", [PPO, TD3])
def test_names_that_an_agent_needs_itself_are_refused(kind: Any, name: str, value: Any) -> None:
    class Taking(kind):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            setattr(self, "act" if name == "loss" else name, value)

    with pytest.raises(ConfigurationError, match=f"Taking sets self.* {kind.__name__} needs: give it another name"):
        train(agent=Taking, config=CONFIG if kind is PPO else TD3Config())


def weighed(inputs: LossInputs, config: Any, clip_range: Any) -> Loss:
    """A loss with a hyperparameter of one's own."""
    loss = ppo_loss(inputs, config, clip_range)
    return replace(loss, total=config.settings["beta"] * loss.total, extra={"beta": inputs.agent.settings["beta"]})


def test_settings_of_ones_own_are_kept_and_tell_runs_apart(tmp_path: Path) -> None:
    options: dict[str, Any] = {"loss": weighed, "total_steps": 64}
    for beta, seed in product((0.5, np.float32(0.25)), (0, 1)):
        train(settings={"beta": beta}, seed=seed, run_dir=tmp_path / f"{beta}-{seed}", **options)
    config = json.loads((tmp_path / "0.25-0" / "config.json").read_text())
    assert config["settings"] == {"beta": 0.25}
    assert [(group.label, len(group.runs)) for group in groups_of(find_runs(tmp_path))] == [
        ("beta 0.25", 2),
        ("beta 0.5", 2),
    ]
    resumed = hybridppo.resume(tmp_path / "0.25-0", loss=weighed, total_steps=96, progress=False)
    assert resumed.metrics["beta"] == 0.25
    found = train(settings={"name": ("a", 1)}, config=replace(CONFIG, settings={"beta": 0.25})).agent
    assert found.settings == {"beta": 0.25, "name": ["a", 1]}
    resumed.agent.save(tmp_path / "agent")
    assert hybridppo.load(tmp_path / "agent").settings == {"beta": 0.25}


OF_A_CLASS = """
from dataclasses import dataclass
import hybridppo

@dataclass(frozen=True)
class BonusConfig(hybridppo.PPOConfig):
    bonus: float = 0.5
    \"\"\"Added to every reward.\"\"\"
    scales: tuple[int, ...] = (1, 2)

class WithBonus(hybridppo.PPO):
    config_type = BonusConfig

    def rewards(self, rollout):
        assert self.settings["scales"] == self.config.scales == (3, 4)
        assert self.settings["bonus"] == self.config.bonus
        return rollout.rewards + self.config.bonus
"""


def test_a_configuration_of_ones_own_has_flags_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bonus_agents.py").write_text(OF_A_CLASS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sizes = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "num_epochs": 2}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    flags += ["--agent", "bonus_agents:WithBonus", "--scales", "3", "4", "--seed=0", "--placement=cpu", "--no-progress"]

    def command(*arguments: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return ended.value.code

    assert command("train", "CartPole-v1", *flags, "--total-steps=32", "--bonus=0.25", "--run-dir=run") == 0
    assert command("train", "CartPole-v1", *flags, "--total-steps=32", "--run-dir=other") == 0
    saved = json.loads(Path("run/config.json").read_text())
    assert saved["settings"] == {"bonus": 0.25, "scales": [3, 4]}
    assert len(groups_of(find_runs("."))) == 2
    import bonus_agents

    own = {"bonus": 0.25, "scales": [3, 4]}
    options: dict[str, Any] = {"env": "CartPole-v1", "agent": bonus_agents.WithBonus, "total_steps": 64}
    twin = train(**options, config=bonus_agents.BonusConfig(**sizes, **own))
    # As settings, too: the class takes them as its fields.
    other = train(**options, config=PPOConfig(**sizes), settings=own)
    assert type(other.agent.config) is bonus_agents.BonusConfig
    assert other.agent.config.scales == (3, 4)
    assert command("resume", "run", "--total-steps=64", "--agent=bonus_agents:WithBonus", "--no-progress") == 0
    assert command("evaluate", "run", "--episodes=1", "--agent=bonus_agents:WithBonus", "--no-progress") == 0
    assert command("export", "run", "policy.npz", "--check-steps=2", "--agent=bonus_agents:WithBonus") == 0
    loaded = hybridppo.load("run", agent=bonus_agents.WithBonus)
    assert torch.equal(loaded.parameters.values, twin.agent.parameters.values)
    assert loaded.config == twin.agent.config
    loaded.save("agent.safetensors")
    assert hybridppo.load("agent.safetensors", agent=bonus_agents.WithBonus).config == loaded.config
    capsys.readouterr()
    for arguments, message in {
        ("resume", "run"): "own agent, 'WithBonus': pass it again in Python, as agent=... or --agent module:Class",
        ("train", "CartPole-v1", "--agent=bonus_agents:Nothing"): "bonus_agents has no subclass Nothing of PPO, DDPG",
        ("train", "CartPole-v1", "--agent=no_such:Thing"): "the module 'no_such' of agent cannot be imported",
    }.items():
        assert command(*arguments) > 0
        assert message in capsys.readouterr().err


def test_a_configuration_of_ones_own_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Mine(PPOConfig):
        thing: Any = None

    class Undecorated(PPOConfig):
        beta: float = 0.1

    kind = overriding(config_type=Mine)
    for options, message in (
        (
            {"config": Mine()},
            "Mine has fields of its own, thing, which .*: write config_type = Mine in a subclass of PPO",
        ),
        ({"config": Mine(), "agent": overriding()}, "write config_type = Mine in a subclass of PPO"),
        (
            {"config": Mine(thing=torch), "agent": kind},
            "thing of Mine must be what JSON can hold: numbers, text, lists and dicts, got <module 'torch'",
        ),
        ({"config": Undecorated()}, "Undecorated must be a dataclass: write @dataclass"),
        ({"agent": kind, "config": TD3Config()}, "agent must be a subclass of TD3"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            train(**options, run_dir=tmp_path / "run")
    agent = overriding(after_update=lambda self, *_: {"beta": self.settings["beta"]})
    with pytest.raises(ConfigurationError, match=r"no setting 'beta': the settings are alpha\. Pass it to train, in"):
        train(agent=agent, settings={"alpha": 1})


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ([1], "a dict of values by name"),
        ({1: 2}, "a dict of values"),
        ({"a": object()}, "what JSON can hold"),
        ({"a": np.nan}, ""),
    ],
)
def test_settings_of_ones_own_are_what_json_can_hold(settings: Any, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=f"settings must be {rule}"):
        train(settings=settings)


def test_a_subclass_with_a_name_is_one_of_ones_own(tmp_path: Path) -> None:
    class Named(Growing):
        name = "mine"

    agent = train(agent=Named, run_dir=tmp_path / "run").agent
    assert agent.own == {"agent": Named}
    with pytest.raises(hybridppo.HybridPPOError, match=r"its own agent, '.*Named': pass it again"):
        hybridppo.resume(tmp_path / "run", total_steps=192, progress=False)
    agent.save(tmp_path / "agent")
    assert type(hybridppo.load(tmp_path / "agent", agent=Named)) is Named
