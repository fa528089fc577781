"""State-dependent exploration: against numbers worked out by hand."""

import math
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, Tuple
from ppo_settings import ppo_config
from toy_environments import IdentityBox, IdentityDiscrete

import hybridppo
from hybridppo import ConfigurationError, EnvError
from hybridppo.agents import PPO
from hybridppo.distributions.of_space import distribution_for
from hybridppo.distributions.state_dependent import ExplorationLayout, StateDependentGaussian
from hybridppo.networks.actors import Network, arrays_of, twin_of
from hybridppo.placements.crossing import Counters, Crossing, torch_actor

ACTIONS = Box(-1.0, 1.0, (2,), np.float32)
ROWS = Box(-10.0, 10.0, (3,), np.float32)


def by_hand() -> Network:
    """Features are the observation itself; means 2 and 3 of it; deviations of a matrix's entries given."""
    head = torch.nn.Linear(3, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]))
        head.bias.zero_()
    return Network(torch.nn.Identity(), head, log_std=torch.tensor([[0.5, 1.0, 2.0], [0.1, 0.2, 0.3]]).log())


def test_deviations_and_probabilities_are_those_worked_out_by_hand() -> None:
    features = torch.tensor([[2.0, 1.0, -1.0]])
    outputs = by_hand()(features)
    # 4 * 0.25 + 1 * 1 + 1 * 4, and 4 * 0.01 + 1 * 0.04 + 1 * 0.09
    variances = 6.0 + 1e-6, 0.17 + 1e-6
    np.testing.assert_allclose(outputs[0].tolist(), [2.0, 0.0, *(0.5 * math.log(v) for v in variances)], rtol=1e-6)
    distribution = distribution_for(ACTIONS, exploration=ExplorationLayout(3, -1))
    log_prob, entropy = distribution.log_prob_and_entropy(outputs, torch.tensor([[2.5, -0.1]]))
    normals = [
        -0.5 * difference**2 / variance - 0.5 * math.log(2.0 * math.pi * variance)
        for difference, variance in zip((0.5, -0.1), variances, strict=True)
    ]
    assert log_prob.item() == pytest.approx(sum(normals), rel=1e-6)
    expected = sum(0.5 + 0.5 * math.log(2.0 * math.pi * variance) for variance in variances)
    assert entropy.item() == pytest.approx(expected, rel=1e-6)


def test_what_is_added_is_the_scaled_matrix_by_the_features() -> None:
    actor = by_hand()
    noise = torch.tensor([[1.0, -1.0, 0.5, 2.0, 0.0, -3.0]])  # [d, L]: a row for each action
    everything = actor(torch.tensor([[2.0, 1.0, -1.0]]), actor.scaled(noise))
    # 2 * 0.5 * 1 + 1 * 1 * -1 - 1 * 2 * 0.5, and 2 * 0.1 * 2 + 0 - 1 * 0.3 * -3
    np.testing.assert_allclose(everything[0, 4:].tolist(), [-1.0, 1.3], rtol=1e-6)


def test_no_gradient_reaches_the_features_through_the_deviations() -> None:
    actor, features = by_hand(), torch.tensor([[2.0, 1.0, -1.0]], requires_grad=True)
    actor(features)[:, 2:].sum().backward()
    assert features.grad is None or not features.grad.any()
    assert actor.log_std.grad is not None
    assert actor.log_std.grad.all()
    actor(features)[:, :2].sum().backward()
    assert features.grad is not None
    assert features.grad.any()


def test_many_matrices_give_the_deviation_that_is_said() -> None:
    actor = by_hand()
    noise = torch.randn(20_000, 6, generator=torch.Generator().manual_seed(0))
    features = torch.tensor([[2.0, 1.0, -1.0]]).expand(20_000, 3)
    outputs = actor(features, actor.scaled(noise))
    torch.testing.assert_close(outputs[:, 4:].std(0), outputs[0, 2:4].exp(), rtol=0.02, atol=0.0)


AGENTS: dict[str, tuple[gym.Space[Any], dict[str, Any]]] = {
    "vectors": (ROWS, {}),
    "normalised, relu, shared": (
        ROWS, {"normalize_observations": True, "activation": "relu", "shared_trunk": True}
    ),
    "images": (Box(0, 255, (12, 12, 2), np.uint8), {"hidden_sizes": (16,)}),
}  # fmt: skip


@pytest.mark.parametrize("name", AGENTS)
def test_numpy_acts_as_torch_does_whoever_else_acts_beside(name: str) -> None:
    space, config = AGENTS[name]
    agent = PPO(space, ACTIONS, ppo_config(use_sde=True, log_std_init=-1.0, **config), seed=3)
    space.seed(0)
    rows = agent._encode(np.stack([space.sample() for _ in range(11)]))
    noise = agent.distribution.draw_noise(np.random.default_rng(1), (11,))
    in_torch = torch_actor(agent.actor, Crossing(torch.device("cpu"), Counters()))
    form = twin_of(agent.actor)
    assert form is not None
    in_numpy = form.actor([tensor.numpy() for tensor in arrays_of(agent.actor)])
    results = []
    for actor in (in_torch, in_numpy):
        plain = actor(rows).copy()  # of an evaluation, which has no noise
        actor.explore(noise)
        outputs = actor(rows).copy()
        np.testing.assert_array_equal(plain, outputs)
        results.append((outputs, actor.perturbation.copy()))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert np.abs(results[0][1]).max() > 0.01
    for envs in (slice(0, 1), slice(1, 4), slice(4, 11)):
        alone = form.actor([tensor.numpy() for tensor in arrays_of(agent.actor)])
        alone.explore(noise[envs])
        np.testing.assert_array_equal(alone(rows[envs]), results[1][0][envs])
        np.testing.assert_array_equal(alone.perturbation, results[1][1][envs])


class Still(gym.Env[Any, Any]):
    """Constant observations, so that an action changes only with its noise."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Box(-100.0, 100.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.full(2, 0.5, np.float32), {}

    def step(self, action: Any) -> Any:
        ACTED.append(float(action[0]))
        return np.full(2, 0.5, np.float32), 0.0, False, False, {}


ACTED: list[float] = []


@pytest.mark.parametrize(("frequency", "episodes"), [(-1, False), (3, False), (1, False), (3, True)])
def test_a_matrix_is_kept_for_so_many_steps_of_a_rollout(frequency: int, episodes: bool) -> None:
    sizes = {"num_envs": 1, "num_steps": 8, "num_minibatches": 2}
    if episodes:
        sizes = {"num_envs": 1, "episodes_per_rollout": 1, "num_minibatches": 2}
    config = ppo_config(use_sde=True, sde_sample_freq=frequency, learning_rate=1e-12, **sizes)
    ACTED.clear()
    env: Any = Still if not episodes else lambda: gym.wrappers.TimeLimit(Still(), 8)
    hybridppo.train(env, total_steps=16, config=config, placement="cpu", num_workers=0, progress=False, seed=0)
    kept = 8 if frequency == -1 else frequency
    changes = [i for i, (a, b) in enumerate(pairwise(ACTED), 1) if a != b]
    assert len(ACTED) == 16
    assert changes == [i for i in range(1, 16) if i % 8 % kept == 0]


def test_each_environment_has_a_matrix_of_its_own() -> None:
    agent = PPO(Still.observation_space, Still.action_space, ppo_config(use_sde=True, sde_sample_freq=4))
    distribution = agent.distribution
    assert isinstance(distribution, StateDependentGaussian)
    assert [distribution.noise_rows(steps) for steps in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    noise = distribution.draw_noise(np.random.default_rng(0), (3, 5))
    assert noise.shape == (3, 5, 64)
    assert len(np.unique(noise[:, :, 0])) == 15


def test_act_takes_the_mean_or_a_matrix_of_its_own_each_time() -> None:
    agent = PPO(ROWS, ACTIONS, ppo_config(use_sde=True))
    row = np.ones(3, np.float32)
    best = agent.act(row)
    np.testing.assert_array_equal(best, agent.act(row))
    drawn = {tuple(agent.act(row, deterministic=False).tolist()) for _ in range(4)}
    assert len(drawn) > 1


def test_sampled_evaluations_follow_their_seed() -> None:
    config = ppo_config(use_sde=True, num_envs=2, num_steps=16, num_epochs=1, num_minibatches=2, hidden_sizes=(8,))
    agent = hybridppo.train(IdentityBox, total_steps=32, config=config, placement="cpu", progress=False).agent

    def returns(seed: int) -> Any:
        options = {"episodes": 4, "deterministic": False, "progress": False}
        return hybridppo.evaluate_agent(agent, IdentityBox, seed=seed, **options).returns

    assert returns(1) == returns(1)
    assert returns(1) != returns(2)


def test_what_it_cannot_be_had_with_is_refused_before_anything_begins() -> None:
    for fields, message in (
        ({"use_sde": True, "recurrent": "lstm"}, "use_sde does not work with recurrent"),
        ({"use_sde": True, "hidden_sizes": ()}, "use_sde needs a hidden layer"),
        ({"use_sde": True, "sde_sample_freq": 0}, "sde_sample_freq must be -1 or at least 1, got 0"),
        ({"sde_sample_freq": 4}, "sde_sample_freq needs use_sde=True"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            ppo_config(**fields)
    for space in (Discrete(3), Tuple((ACTIONS, Discrete(2)))):
        with pytest.raises(EnvError, match=r"use_sde=True .* actions of a single Box"):
            PPO(ROWS, space, ppo_config(use_sde=True))
    with pytest.raises(EnvError, match="use_sde=True"):
        hybridppo.train(IdentityDiscrete, total_steps=64, config=ppo_config(use_sde=True), progress=False)
    with pytest.raises(ConfigurationError, match=r"use_sde=True is for the library.s networks"):
        PPO(ROWS, ACTIONS, ppo_config(use_sde=True), networks=lambda *_: (torch.nn.Identity(), torch.nn.Identity()))
