"""Distributions of one's own in torch: what agents make of them, and what is refused."""

import math
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Tuple
from own_choice import Choice
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.nn.functional import softplus
from toy_agents import ScriptedAgents
from toy_environments import HighestAllowed

import hybridppo
from hybridppo import PPO, ConfigurationError, PPOConfig
from hybridppo.distributions.base import Distribution
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.distributions.of_space import distribution_for
from hybridppo.distributions.own import ActionDistribution, OwnDistribution
from hybridppo.errors import CheckpointError, RunDirectoryError
from hybridppo.tools.export import TorchPolicy, numpy_form

SPACE = Box(-9.0, 9.0, (2,))
SMALL = PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, num_epochs=2, hidden_sizes=(8,))


class Gaussian(ActionDistribution):
    """The library's own, in torch; its entropy is estimated."""

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.output_size, self.free, self.bias = 2 * self.size, [0.25] * self.size, torch.full((self.size,), 0.5)
        self.one = torch.ones(1)

    def normal(self, outputs: Tensor) -> Normal:
        return Normal(outputs[..., : self.size], outputs[..., self.size :].exp() * self.one, validate_args=False)

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        normal = self.normal(outputs)
        return normal.mean + normal.stddev * noise

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs[..., : self.size]

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        return self.normal(outputs).log_prob(actions).sum(-1)


class Mixture(ActionDistribution):
    """A mixture of normal distributions for each number, whose means begin apart."""

    def __init__(self, space: Any, count: int = 3) -> None:
        super().__init__(space)
        self.count, numbers = count, count * self.size
        self.output_size, self.noise_size = 3 * numbers, self.size + numbers
        self.bias = [0.0] * numbers + torch.linspace(-1.0, 1.0, count).tolist() * self.size + [-1.0] * numbers

    def parts(self, outputs: Tensor) -> tuple[Tensor, ...]:
        logits, means, log_stds = outputs.unflatten(-1, (3, self.size, self.count)).unbind(-3)
        return logits, means, log_stds.exp()

    def sample(self, outputs: Tensor, noise: Tensor) -> Tensor:
        logits, means, stds = self.parts(outputs)
        gumbel = -(-torch.special.log_ndtr(noise[..., self.size :])).log()
        chosen = (logits + gumbel.unflatten(-1, (self.size, self.count))).argmax(-1, keepdim=True)
        mean, std = (each.gather(-1, chosen).squeeze(-1) for each in (means, stds))
        return mean + std * noise[..., : self.size]

    def mode(self, outputs: Tensor) -> Tensor:
        logits, means, _ = self.parts(outputs)
        return means.gather(-1, logits.argmax(-1, keepdim=True)).squeeze(-1)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        logits, means, stds = self.parts(outputs)
        of_each = Normal(means, stds).log_prob(actions.unsqueeze(-1))
        return (logits.log_softmax(-1) + of_each).logsumexp(-1).sum(-1)


class OfBoth(Gaussian):
    """Both parts of an action as one row."""

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        self.size = self.noise_size = 4
        self.output_size, self.free, self.bias = 8, [0.0] * 4, None


def own(make: Any = Gaussian, space: Any = SPACE) -> OwnDistribution:
    found = distribution_for(space, own=make)
    assert isinstance(found, OwnDistribution)
    return found


def test_it_does_on_arrays_and_tensors_what_the_librarys_does() -> None:
    mine, theirs = own(), DiagonalGaussian(SPACE.low, SPACE.high)
    generator = np.random.default_rng(0)
    outputs, noise = generator.standard_normal((5, 4), np.float32), mine.draw_noise(generator, (5,))
    actions = mine.sample(outputs, noise)
    assert (noise.shape, actions.dtype) == ((5, 2), np.float32)
    np.testing.assert_allclose(actions, theirs.sample(outputs, noise), rtol=1e-6)
    np.testing.assert_array_equal(mine.mode(outputs), outputs[:, :2])
    np.testing.assert_array_equal(mine.to_env(10.0 * outputs[:, :2]), theirs.to_env(10.0 * outputs[:, :2]))
    tensors = torch.from_numpy(outputs), torch.from_numpy(actions)
    torch.testing.assert_close(mine.log_prob(*tensors), theirs.log_prob(*tensors))
    there = mine.on("cpu")
    assert torch.equal(there.sample(tensors[0], torch.from_numpy(noise)), torch.from_numpy(actions))
    assert torch.equal(there.to_env(10.0 * tensors[1]), torch.from_numpy(mine.to_env(10.0 * actions)))
    assert there.noise_from(torch.zeros(3, there.num_words, dtype=torch.int64)).shape == (3, 2)


class Soft(Gaussian):
    """Its deviations are by softplus, which torch rounds differently for the last numbers of an array."""

    def normal(self, outputs: Tensor) -> Normal:
        return Normal(outputs[..., : self.size], softplus(outputs)[..., self.size :])


def test_an_action_does_not_depend_on_the_number_of_rows() -> None:
    mine, generator = own(Soft), np.random.default_rng(0)
    outputs, noise = generator.standard_normal((96, 4), np.float32), mine.draw_noise(generator, (96,))
    whole = mine.sample(outputs, noise)
    for rows in (1, 3, 32):
        parts = [mine.sample(outputs[i : i + rows], noise[i : i + rows]) for i in range(0, 96, rows)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_tensors_move_to_the_device_of_the_outputs() -> None:
    mine = own()
    assert mine.log_prob(torch.zeros(3, 4, device="meta"), torch.zeros(3, 2, device="meta")).device.type == "meta"


def test_the_gradient_is_that_of_the_librarys_and_the_estimated_entropy_is_right_on_average() -> None:
    mine, theirs = own(), DiagonalGaussian(SPACE.low, SPACE.high)
    count, generator = 100_000, np.random.default_rng(0)
    outputs, free = np.tile(np.array([[1.0], [-2.0]], np.float32), (1, count)), np.array([[-1.0], [0.5]], np.float32)
    rows = np.concatenate((outputs, np.broadcast_to(free, (2, count)))).T
    actions = theirs.sample(rows, theirs.draw_noise(generator, (count,))).T
    d_log_prob = generator.standard_normal(count, np.float32) / np.float32(count)
    found = []
    for each in (mine, theirs):
        of_free = np.zeros(2, np.float32)
        log_prob, entropy, backward = each.gradient(outputs.copy(), free, actions, rows)
        d_outputs = [backward(d_log_prob, np.float32(0.0), of_free), of_free.copy()]
        *_, backward = each.gradient(outputs.copy(), free, actions, rows)
        of_entropy = backward(0 * d_log_prob, np.float32(1.0 / count), of_free).sum(1)
        found.append([log_prob, *d_outputs, entropy.mean(), of_entropy, of_free])
    for own_result, result in zip(found[0][:3], found[1][:3], strict=True):
        np.testing.assert_allclose(own_result, result, rtol=1e-4, atol=1e-6)
    # H = 2 * (1/2 + ln sqrt(2 pi)) - 1 + 1/2, whose gradient is 0 for means and 1 for log deviations
    assert found[1][3] == pytest.approx(0.5 + math.log(2.0 * math.pi))
    for own_result, result in zip(found[0][3:], found[1][3:], strict=True):
        np.testing.assert_allclose(own_result, result, atol=0.1)
    with pytest.raises(ConfigurationError, match="Gaussian defines no entropy: log_prob_and_entropy estimates it"):
        mine.entropy(torch.zeros(1, 4))
    with pytest.raises(ConfigurationError, match="no closed form of the divergence"):
        mine.kl(torch.zeros(1, 4), torch.zeros(1, 4))


def test_a_mixture_by_torch_and_by_its_draws() -> None:
    mine, count = own(partial(Mixture, count=2), Box(-9.0, 9.0, (1,))), 100_000
    logits, means, stds = torch.tensor([0.0, math.log(3.0)]), torch.tensor([-2.0, 1.0]), torch.tensor([0.5, 1.0])
    expected: Any = MixtureSameFamily(Categorical(logits=logits), Normal(means, stds))
    outputs = torch.cat((logits, means, stds.log())).expand(count, 6).contiguous()
    actions = torch.from_numpy(mine.sample(outputs.numpy(), mine.draw_noise(np.random.default_rng(0), (count,))))
    torch.testing.assert_close(mine.log_prob(outputs, actions), expected.log_prob(actions[:, 0]))
    # mean = -2/4 + 3/4; E x^2 = (4 + 1/4) / 4 + (1 + 1) * 3/4
    assert actions.mean().item() == pytest.approx(0.25, abs=0.03)
    assert actions.square().mean().item() == pytest.approx(2.5625, abs=0.05)
    assert (actions < -2.0).float().mean().item() == pytest.approx(0.125 + 0.75 * 0.00135, abs=0.005)
    assert mine.mode(outputs[:1].numpy()).tolist() == [[1.0]]


@pytest.mark.parametrize("options", [{}, {"recurrent": "gru", "recurrent_size": 8, "sequence_length": 8}])
def test_networks_begin_with_its_initial_values(options: dict[str, Any]) -> None:
    agent = PPO(Box(-1.0, 1.0, (3,)), SPACE, PPOConfig(**options), action_distribution=Gaussian)
    network: Any = getattr(agent.actor_network, "network", agent.actor_network)
    assert network.head.bias.tolist() == [0.5, 0.5]
    assert network.log_std.tolist() == [0.25, 0.25]
    assert PPO(Box(-1.0, 1.0, (3,)), SPACE, action_distribution=Mixture).actor_network.head.out_features == 18


def test_a_subclass_chooses_it_by_its_settings() -> None:
    class Mixing(PPO):
        def make_distribution(self) -> Distribution:
            return distribution_for(self.action_space, own=partial(Mixture, count=self.settings["count"]))

    agent = Mixing(Box(-1.0, 1.0, (3,)), SPACE, PPOConfig(settings={"count": 5}))
    assert agent.actor_network.head.out_features == 30


def train(env: Any = "Pendulum-v1", **options: Any) -> Any:
    usual = {
        "config": SMALL,
        "total_steps": 96,
        "seed": 0,
        "placement": "cpu",
        "vectorization": "sync",
        "progress": False,
    }
    return hybridppo.train(env, **{**usual, "action_distribution": Gaussian, **options})


def test_a_mask_forbids_its_logits_and_others_are_refused() -> None:
    result = train(HighestAllowed, action_distribution=Choice, action_masks=True)
    assert result.metrics["entropy"] > 0.0

    class Blind(Choice):
        def __init__(self, space: Any) -> None:
            super().__init__(space)
            self.mask_size = 0

    with pytest.raises(ConfigurationError, match="action_masks=True needs a distribution whose first 5 outputs are l"):
        train(HighestAllowed, action_distribution=Blind, action_masks=True)


def test_a_run_needs_it_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(run_dir=run)
    for again in (hybridppo.load, hybridppo.evaluate, partial(hybridppo.resume, total_steps=192)):
        with pytest.raises(RunDirectoryError, match="its own action_distribution, 'Gaussian': pass it again"):
            again(run)
    loaded = hybridppo.load(run, action_distribution=Gaussian)
    seen = np.full(3, 0.5, np.float32)
    assert loaded.act(seen) == result.agent.act(seen)
    assert loaded.act(seen, deterministic=False, seed=1) == result.agent.act(seen, deterministic=False, seed=1)
    with pytest.raises(CheckpointError, match="action_distribution is 'Gaussian' there, and None here"):
        train(start_from=run, action_distribution=None)
    assert train(start_from=run).metrics["iteration"] == 3
    train(run_dir=tmp_path / "plain", action_distribution=None)
    with pytest.raises(CheckpointError, match="begun without its own action_distribution"):
        hybridppo.load(tmp_path / "plain", action_distribution=Gaussian)


def test_its_policy_is_exported_in_torch_alone() -> None:
    agent = train(action_distribution=Mixture).agent
    exported, seen = TorchPolicy(agent).eval(), np.full(3, 0.5, np.float32)
    action, _ = exported({"observation": torch.from_numpy(seen)[None]})
    assert action[0].tolist() == agent.act(seen).tolist()
    with pytest.raises(ConfigurationError, match="the library's distributions of actions: export it as"):
        numpy_form(exported)
    with pytest.raises(ConfigurationError, match="own of several parts of an action cannot be exported"):
        TorchPolicy(PPO(SPACE, Tuple((SPACE, SPACE)), action_distribution=OfBoth))


class Halved(Gaussian):
    """It acts by half of the mean."""

    def mode(self, outputs: Tensor) -> Tensor:
        return 0.5 * outputs[..., : self.size]


class Slopes(ScriptedAgents):
    """Scripted episodes with actions that are numbers, whose sum is kept by agent."""

    found: ClassVar[dict[str, float]] = {}

    def action_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (1,))

    def step(self, actions: dict[str, Any]) -> Any:
        self.found.update({name: action.item() for name, action in actions.items()})
        return super().step(actions)


@pytest.mark.extras
@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_its_policy_is_exported_to_a_file(form: str, tmp_path: Path) -> None:
    train(run_dir=tmp_path / "run", action_distribution=Soft)
    file = tmp_path / f"policy.{form}"
    exported = hybridppo.export(tmp_path / "run", file, action_distribution=Soft, check_steps=20)
    assert exported.largest_difference < 1e-4


def test_each_policy_of_several_acts_by_its_own() -> None:
    spaces = Box(-np.inf, np.inf, (3,)), Box(-1.0, 1.0, (1,))
    agents = {"agent_0": PPO(*spaces, SMALL), "agent_1": PPO(*spaces, SMALL, action_distribution=Halved)}
    for agent in agents.values():
        agent.parameters.values.data.zero_()
        agent.actor_network.head.bias.data.fill_(0.5)  # type: ignore[union-attr]
    options: dict[str, Any] = {"episodes": 1, "policy_of": str, "deterministic": True}
    hybridppo.evaluate_policies(agents, partial(Slopes, [[(2, "both")]] * 2), **options)
    assert Slopes.found == {"agent_0": 0.5, "agent_1": 0.25}


class Changed(Gaussian):
    """With other results, by the names of methods."""

    changes: dict[str, Any]

    def __init__(self, space: Any) -> None:
        super().__init__(space)
        for name, value in self.changes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sample": lambda outputs, noise: outputs[..., 0]}, r"sample must return finite numbers, \[2, 2\] of float32"),
        ({"mode": lambda outputs: outputs[..., :2].double()}, r"mode must return .* got \[2, 2\] of torch.float64"),
        ({"log_prob": lambda outputs, actions: None}, "log_prob must return .* got None"),
        ({"log_prob": lambda outputs, actions: outputs.sum(-1) - math.inf}, r"log_prob must .*: \[-inf, -inf\]"),
        ({"log_prob": lambda outputs, actions: actions.sum(-1)}, "log_prob has no gradient: compute it from outputs"),
        ({"entropy": lambda outputs: outputs}, r"entropy must return finite numbers, \[2\] of float32"),
        ({"to_env": lambda actions: actions.long()}, "to_env must return .* got .* of torch.int64"),
        ({"bias": [0.0]}, r"bias must have 2 numbers: output_size without free"),
        ({"std": torch.nn.Parameter(torch.zeros(2))}, "std would not learn: give initial values as free"),
        ({"sample": lambda outputs: outputs}, "fails for Box.*: TypeError: .*takes 1 positional argument"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], words: str) -> None:
    kind = type("Changed", (Changed,), {"changes": changes})
    with pytest.raises(ConfigurationError, match=f"action_distribution=Changed(: | ){words}"):
        own(kind)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"action_distribution": Gaussian(SPACE)}, "must be a subclass of hybridppo.ActionDistribution, or a function"),
        ({"action_distribution": lambda space: None}, "must be a subclass of hybridppo.ActionDistribution"),
        ({"action_distribution": ActionDistribution}, "fails for Box.*has no attribute 'output_size'"),
        ({"config": PPOConfig(squash_actions=True)}, "squash_actions=True is for the library's normal distributions"),
        ({"config": PPOConfig(use_sde=True)}, "use_sde=True is for the library's"),
        ({"config": PPOConfig(log_std_init=-1.0)}, "log_std_init=-1.0 is for the library's"),
        ({"config": hybridppo.TD3Config()}, "action_distribution=... is for other agents than td3"),
        ({"config": {"a": SMALL, "b": SMALL}}, "action_distribution does not work with several policies"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        train(**options)


def test_choices_of_one_s_own_count_from_the_start_of_the_space() -> None:
    assert own(Choice, Discrete(3, start=5)).to_env(np.array([0, 2])).tolist() == [5, 7]
    with pytest.raises(ConfigurationError, match="action_distribution=Choice fails for MultiDiscrete"):
        own(Choice, MultiDiscrete([2, 2]))
