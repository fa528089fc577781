"""PPO's update against a plain version of the algorithm, and its promises."""

import math
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from torch import nn

from hybridppo import PPO, EnvError, SingleDevice
from hybridppo.agents.agent import OptimizationLoop
from hybridppo.agents.ppo.loss import STATISTICS, ppo_loss
from hybridppo.rollouts.rollout import Rollout

OBSERVATIONS = Box(-np.inf, np.inf, (4,))
SPACES = {"discrete": Discrete(3), "continuous": Box(-1.0, 1.0, (2,))}
FORMS_OF: dict[str, dict[str, Any]] = {
    "autograd": {"fast_updates": False}, "by hand": {}, "compiled": {"compiled_updates": True}
}  # fmt: skip
FORMS = [pytest.param(name, marks=pytest.mark.extras if name == "compiled" else ()) for name in FORMS_OF]
# One minibatch: the reference need not know how passes are shuffled.
PLAIN = ppo_config(num_envs=3, num_steps=16, num_epochs=3, num_minibatches=1, hidden_sizes=(16, 8), learning_rate=1e-2)


def make_rollout(agent: PPO, num_steps: int = 16, num_envs: int = 3, seed: int = 0) -> Rollout:
    """Random observations and rewards, the agent's own actions, and some ends of each kind."""
    generator = torch.Generator().manual_seed(seed)
    observations = torch.randn(num_steps + 1, num_envs, 4, generator=generator)
    with torch.no_grad():
        outputs = agent.actor(observations[:-1])
        noise = agent.distribution.draw_noise(np.random.default_rng(seed), (num_steps, num_envs))
        actions = torch.from_numpy(agent.distribution.sample(outputs.numpy(), noise))
        log_probs, _ = agent.distribution.log_prob_and_entropy(outputs, actions)
    truncated = torch.rand(num_steps, num_envs, generator=generator) < 0.1
    truncated[5, 1] = True
    final_rows = truncated.flatten().nonzero().flatten()
    return Rollout(
        observations=observations,
        actions=actions,
        log_probs=log_probs + 0.2 * torch.randn(num_steps, num_envs, generator=generator),
        rewards=torch.randn(num_steps, num_envs, generator=generator),
        terminated=(torch.rand(num_steps, num_envs, generator=generator) < 0.1) & ~truncated,
        truncated=truncated,
        valid_rows=torch.arange(num_steps * num_envs),
        final_rows=final_rows,
        final_observations=torch.randn(len(final_rows), 4, generator=generator),
        version=agent.version,
    )


class PlainPPO:
    """The algorithm as a textbook would write it: modules of its own, an ordinary optimizer, loops."""

    def __init__(self, agent: PPO) -> None:
        self.config, self.is_discrete = agent.config, isinstance(agent.action_space, Discrete)
        activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[agent.config.activation]

        def mlp(outputs: int) -> nn.Sequential:
            sizes = [4, *agent.config.hidden_sizes]
            layers: list[nn.Module] = []
            for before, after in pairwise(sizes):
                layers += [nn.Linear(before, after), activation()]
            return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))

        self.actor, self.critic = mlp(3 if self.is_discrete else 2), mlp(1)
        self.log_std = nn.Parameter(torch.zeros(2))
        state = agent.actor.state_dict()
        if not self.is_discrete:
            with torch.no_grad():
                self.log_std.copy_(state.pop("log_std"))
        for own, tensors in ((self.actor, state), (self.critic, agent.critic.state_dict())):  # in the same order
            own.load_state_dict(dict(zip(own.state_dict(), tensors.values(), strict=True)))
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        if not self.is_discrete:
            self.parameters.append(self.log_std)
        self.optimizer = torch.optim.Adam(self.parameters, lr=agent.config.learning_rate, eps=1e-5)

    def distribution(self, observations: torch.Tensor) -> Any:
        outputs = self.actor(observations)
        if self.is_discrete:
            return torch.distributions.Categorical(logits=outputs)
        return torch.distributions.Independent(torch.distributions.Normal(outputs, self.log_std.exp()), 1)

    def update(self, rollout: Rollout, minibatches: list[list[int]] | None = None) -> None:
        """Learn from minibatches of the given rows, or else in epochs over all rows."""
        c, valid = self.config, rollout.valid_rows
        with torch.no_grad():
            values = self.critic(rollout.observations).squeeze(-1)
            following = values[1:].clone()
            for row, observation in zip(rollout.final_rows.tolist(), rollout.final_observations, strict=True):
                following[row // following.shape[1], row % following.shape[1]] = self.critic(observation).squeeze()
            advantages, after = torch.zeros_like(rollout.rewards), torch.zeros(rollout.rewards.shape[1])
            for t in reversed(range(len(rollout.rewards))):
                ended = rollout.terminated[t] | rollout.truncated[t]
                delta = rollout.rewards[t] + c.gamma * following[t] * ~rollout.terminated[t] - values[t]
                advantages[t] = after = delta + c.gamma * c.gae_lambda * ~ended * after
            all_returns = (advantages + values[:-1]).flatten()
        for rows in [valid] * c.num_epochs if minibatches is None else minibatches:
            observations, actions = rollout.observations[:-1].flatten(0, 1)[rows], rollout.actions.flatten(0, 1)[rows]
            returns, old_values, a = all_returns[rows], values[:-1].flatten()[rows], advantages.flatten()[rows]
            distribution = self.distribution(observations)
            ratio = (distribution.log_prob(actions) - rollout.log_probs.flatten()[rows]).exp()
            a = (a - a.mean()) / (a.std() + 1e-8) if c.normalize_advantage else a
            policy = torch.max(-a * ratio, -a * ratio.clamp(1 - c.clip_range, 1 + c.clip_range)).mean()
            predicted = self.critic(observations).squeeze(-1)
            squared = (predicted - returns) ** 2
            if c.clip_range_vf is not None:
                clipped = old_values + (predicted - old_values).clamp(-c.clip_range_vf, c.clip_range_vf)
                squared = torch.max(squared, (clipped - returns) ** 2)
            loss = policy - c.entropy_coef * distribution.entropy().mean() + c.value_coef * 0.5 * squared.mean()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, c.max_grad_norm)
            self.optimizer.step()


def assert_same_parameters(agent: PPO, plain: PlainPPO) -> None:
    theirs = [*plain.actor.parameters(), *plain.critic.parameters()]
    ours = [parameter for name, parameter in agent.actor.named_parameters() if name != "log_std"]
    for mine, expected in zip([*ours, *agent.critic.parameters()], theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4)
    if not plain.is_discrete:
        torch.testing.assert_close(agent.actor.log_std, plain.log_std, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fast", [False, True], ids=["autograd", "by hand"])
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip_range_vf": 0.1},
        {"clip_range_vf": None},
        {"normalize_advantage": False},
        {"entropy_coef": 0.1, "activation": "relu"},
        {"max_grad_norm": 0.01},
        {"gamma": 0.9, "gae_lambda": 0.5},
    ],
    ids=str,
)
def test_an_update_is_the_plain_algorithm(changes: dict[str, Any], kind: str, fast: bool) -> None:
    agent = PPO(OBSERVATIONS, SPACES[kind], replace(PLAIN, fast_updates=fast, **changes), seed=1)
    plain = PlainPPO(agent)
    for seed in range(2):
        rollout = make_rollout(agent, seed=seed)
        agent.update(rollout)
        plain.update(rollout)
    assert_same_parameters(agent, plain)


def minibatches_of(agent: PPO, rollout: Rollout) -> list[list[int]]:
    """Update the agent; returns the rows that its actor saw in each minibatch."""
    row_of = {x: row for row, x in enumerate(rollout.observations[:-1, :, 0].flatten().tolist())}
    seen: list[list[int]] = []
    handle = agent.actor.register_forward_pre_hook(
        lambda _, inputs: seen.append([row_of[x] for x in inputs[0][:, 0].tolist()])
    )
    agent.update(rollout)
    handle.remove()
    return seen


def with_valid_rows(rollout: Rollout, rows: range | list[int]) -> Rollout:
    return replace(rollout, valid_rows=torch.tensor(rows, dtype=torch.int64))


@pytest.mark.parametrize("fast", [False, True], ids=["autograd", "by hand"])
@pytest.mark.parametrize("kind", SPACES)
def test_several_minibatches_are_the_plain_algorithm(kind: str, fast: bool) -> None:
    config = replace(PLAIN, num_minibatches=4)
    shuffled = PPO(OBSERVATIONS, SPACES[kind], replace(config, fast_updates=False), seed=1)
    agent = PPO(OBSERVATIONS, SPACES[kind], replace(config, fast_updates=fast), seed=1)
    plain = PlainPPO(agent)
    rollout = with_valid_rows(make_rollout(agent), range(1, 46))  # 45 rows: minibatches of unequal sizes
    agent.update(rollout)
    plain.update(rollout, minibatches_of(shuffled, rollout))  # one seed, one order
    assert_same_parameters(agent, plain)


def test_each_pass_is_shuffled_afresh_and_sees_every_step_once() -> None:
    agent = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, num_minibatches=4, fast_updates=False), seed=1)
    valid_rows = [row for row in range(48) if row not in (7, 20, 33)]
    seen = minibatches_of(agent, with_valid_rows(make_rollout(agent), valid_rows))
    assert len(seen) == 3 * 4
    assert {len(rows) for rows in seen} == {11, 12}
    passes = [list(chain.from_iterable(seen[i : i + 4])) for i in range(0, 12, 4)]
    assert all(sorted(rows) == valid_rows for rows in passes)
    assert len({tuple(rows) for rows in passes}) == 3


@pytest.mark.parametrize(("num_valid", "sizes"), [(48, [16] * 3), (47, [15, 16, 16]), (33, [11] * 3), (32, [16] * 2)])
def test_minibatches_of_a_size_are_no_larger_also_without_resets(num_valid: int, sizes: list[int]) -> None:
    config = replace(PLAIN, num_minibatches=None, minibatch_size=16, num_epochs=1, fast_updates=False)
    agent = PPO(OBSERVATIONS, SPACES["discrete"], config, seed=1)
    seen = minibatches_of(agent, with_valid_rows(make_rollout(agent), range(num_valid)))
    assert sorted(len(rows) for rows in seen) == sizes


@pytest.mark.parametrize(
    ("num_valid", "normalizes", "sizes"),
    [
        (1, True, [1]), (3, True, [3]), (5, True, [2, 3]), (9, True, [2, 2, 2, 3]),
        (1, False, [1]), (3, False, [1, 1, 1]), (5, False, [1, 1, 1, 2]),
    ],
)  # fmt: skip
def test_few_steps_make_fewer_minibatches_and_none_that_is_normalised_of_one(
    num_valid: int, normalizes: bool, sizes: list[int]
) -> None:
    config = replace(PLAIN, num_minibatches=4, num_epochs=1, fast_updates=False, normalize_advantage=normalizes)
    agent = PPO(OBSERVATIONS, SPACES["discrete"], config, seed=1)
    seen = minibatches_of(agent, with_valid_rows(make_rollout(agent), range(num_valid)))
    assert sorted(len(rows) for rows in seen) == sizes
    assert agent.parameters.values.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("num_minibatches", "normalizes"), [(48, False), (24, True), (24, False)])
def test_there_are_as_many_minibatches_as_were_asked_for(form: str, num_minibatches: int, normalizes: bool) -> None:
    config = replace(PLAIN, num_minibatches=num_minibatches, normalize_advantage=normalizes, **FORMS_OF[form])
    agent = PPO(OBSERVATIONS, SPACES["discrete"], config, seed=1)
    agent.update(make_rollout(agent))
    assert num_gradient_steps(agent) == 3 * num_minibatches
    assert agent.parameters.values.isfinite().all()


@pytest.mark.parametrize("pool_size", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_a_rollout_without_a_step_teaches_nothing_and_ends_nothing(form: str, pool_size: int) -> None:
    config = replace(PLAIN, pool_size=pool_size, normalize_observations=True, normalize_rewards=True, **FORMS_OF[form])
    agent = PPO(OBSERVATIONS, SPACES["discrete"], config, seed=1)
    before = agent.parameters.values.detach().clone()
    metrics = agent.update(with_valid_rows(make_rollout(agent), []))
    assert torch.equal(agent.parameters.values, before)
    assert all(math.isnan(metrics[name]) for name in (*STATISTICS, "explained_variance"))
    assert agent.version == 1
    assert all(tensor.isfinite().all() for tensor in agent.state()[0].values())
    metrics = agent.update(make_rollout(agent, seed=1))
    assert all(map(math.isfinite, metrics.values()))
    assert not torch.equal(agent.parameters.values, before)


@pytest.mark.parametrize("fast", [False, True], ids=["autograd", "by hand"])
@pytest.mark.parametrize("void", [1e6, math.nan])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_rows_that_are_no_steps_have_no_influence(end: str, void: float, fast: bool) -> None:
    """The row after an end holds the final observation; after a termination, it is void too."""

    def made(void: float) -> tuple[PPO, Rollout]:
        agent = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, fast_updates=fast), seed=1)
        rollout = make_rollout(agent)
        none = {"final_rows": rollout.final_rows[:0], "final_observations": rollout.final_observations[:0]}
        rollout = replace(
            with_valid_rows(rollout, [row for row in range(48) if row != 5 * 3 + 1]),
            **none,
            terminated=torch.zeros_like(rollout.terminated),
            truncated=torch.zeros_like(rollout.truncated),
        )
        getattr(rollout, end)[4, 1] = True
        rollout.rewards[5, 1] = rollout.log_probs[5, 1] = void
        if end == "terminated":
            rollout.observations[5, 1] = void
        return agent, rollout

    agent, rollout = made(0.0)
    plain = PlainPPO(agent)
    agent.update(rollout)
    plain.update(rollout)
    assert_same_parameters(agent, plain)
    other, rollout = made(void)
    other.update(rollout)
    assert torch.equal(other.parameters.values, agent.parameters.values)


def num_gradient_steps(agent: PPO) -> int:
    return int(agent.state()[0]["optimizer.step"])


def test_target_kl_stops_after_the_pass_that_exceeds_it() -> None:
    without = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, num_epochs=10), seed=1)
    without.update(make_rollout(without))
    assert num_gradient_steps(without) == 10
    at_once = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, num_epochs=10, target_kl=1e-6), seed=1)
    metrics = at_once.update(make_rollout(at_once))
    assert num_gradient_steps(at_once) == 1
    assert metrics["approx_kl"] > 1e-6


def test_target_kl_is_looked_at_after_whole_passes() -> None:
    config = replace(PLAIN, num_epochs=10, num_minibatches=4, target_kl=1e-6)
    agent = PPO(OBSERVATIONS, SPACES["discrete"], config, seed=1)
    agent.update(make_rollout(agent))
    assert num_gradient_steps(agent) == 4


def test_target_kl_lets_passes_through_that_keep_to_it() -> None:
    def mean_kl(**changes: Any) -> tuple[float, int]:
        agent = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, num_epochs=10, **changes), seed=1)
        rollout = make_rollout(agent)
        with torch.no_grad():  # from the agent's own probabilities the divergence starts at nothing, and grows
            outputs = agent.actor(rollout.observations[:-1])
            log_probs, _ = agent.distribution.log_prob_and_entropy(outputs, rollout.actions)
        return agent.update(replace(rollout, log_probs=log_probs))["approx_kl"], num_gradient_steps(agent)

    mean, _ = mean_kl()
    _, steps = mean_kl(target_kl=mean)  # the mean of all ten: some pass in the middle is the first above it
    assert 1 < steps < 10


@pytest.mark.parametrize(
    ("divergences", "passes"),
    [((0.4, 0.0, 0.0, 0.0), 1), ((0.0, 0.0, 0.0, 0.16), 3)],
    ids=["mean above and last below", "mean below and last above"],
)
def test_target_kl_is_compared_with_the_mean_over_the_pass(
    divergences: tuple[float, ...], passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def epoch(loop: OptimizationLoop, batch: Any, sizes: Any, clip_range: float) -> torch.Tensor:
        done.append(len(sizes))
        statistics = torch.zeros(len(sizes), len(STATISTICS))
        statistics[:, STATISTICS.index("approx_kl")] = torch.tensor(divergences)
        return statistics

    monkeypatch.setattr(OptimizationLoop, "epoch", epoch)
    config = replace(PLAIN, num_minibatches=4, target_kl=0.05, fast_updates=False)
    agent = PPO(OBSERVATIONS, SPACES["discrete"], config, seed=1)
    agent.update(make_rollout(agent))
    assert done == [4] * passes


def test_annealing() -> None:
    agent = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, anneal_clip_range=True), seed=1)
    agent.anneal(0.25)
    metrics = agent.update(make_rollout(agent))
    assert metrics["learning_rate"] == pytest.approx(0.75e-2)
    agent.anneal(1.0)  # nothing may move any more
    before = agent.parameters.values.detach().clone()
    metrics = agent.update(make_rollout(agent))
    assert torch.equal(agent.parameters.values, before)
    assert metrics["clip_fraction"] > 0.9  # the range has closed

    constant = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, anneal_learning_rate=False), seed=1)
    constant.anneal(0.9)
    assert constant.update(make_rollout(constant))["learning_rate"] == 1e-2


def test_a_new_discount_also_normalises_rewards() -> None:
    found = []
    for gammas in ((0.5,), (0.9, 0.5)):
        agent = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, gamma=gammas[0], normalize_rewards=True), seed=1)
        agent.config = replace(agent.config, gamma=gammas[-1])
        agent.update(make_rollout(agent))
        found.append(float(agent.normalization.rewards.moments.variance))
    assert found[0] == found[1]


@pytest.mark.parametrize("fast", [False, True], ids=["autograd", "by hand"])
def test_the_clip_range_is_a_share_of_the_configured_one_however_often_it_is_set(fast: bool) -> None:
    config = replace(PLAIN, anneal_clip_range=True, anneal_learning_rate=False, num_epochs=1, fast_updates=fast)
    fractions = []
    for shares_done in ((0.5,), (0.1, 0.25, 0.5), (1.0, 0.5)):  # the last as a finished run that gets a new goal
        agent = PPO(OBSERVATIONS, SPACES["discrete"], config, seed=1)
        for share in shares_done:
            agent.anneal(share)
        fractions.append(agent.update(make_rollout(agent))["clip_fraction"])
    assert fractions[1:] == fractions[:1] * 2
    half = PPO(OBSERVATIONS, SPACES["discrete"], replace(config, clip_range=0.1), seed=1)
    assert half.update(make_rollout(half))["clip_fraction"] == fractions[0] < 1.0


def test_a_small_gradient_norm_bounds_the_gradient() -> None:
    agent = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, max_grad_norm=1e-3, num_epochs=1), seed=1)
    metrics = agent.update(make_rollout(agent))
    assert agent.parameters.gradient.norm().item() == pytest.approx(1e-3, rel=1e-2)
    assert metrics["grad_norm"] > 1e-3  # as it was before


def test_a_seed_decides_the_first_parameters_and_the_order_of_minibatches() -> None:
    config = replace(PLAIN, num_minibatches=4)
    agent, other = (PPO(OBSERVATIONS, SPACES["discrete"], config, seed=seed) for seed in (0, 1))
    assert not torch.equal(agent.parameters.values, other.parameters.values)
    other.parameters.values.data.copy_(agent.parameters.values.data)
    rollout = make_rollout(agent)
    agent.update(rollout)
    other.update(rollout)
    assert not torch.equal(agent.parameters.values, other.parameters.values)


def test_an_agent_leaves_torchs_global_generator_alone() -> None:
    before = torch.get_rng_state()
    agent = PPO(OBSERVATIONS, SPACES["continuous"], PLAIN, seed=1)
    agent.update(make_rollout(agent))
    agent.act(np.zeros(4), deterministic=False)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", SPACES)
def test_a_saved_agent_goes_on_to_the_bit(kind: str) -> None:
    config = replace(PLAIN, num_minibatches=4)
    agent, other = (PPO(OBSERVATIONS, SPACES[kind], config, seed=seed) for seed in (0, 1))
    agent.update(make_rollout(agent))
    tensors, state = agent.state()
    other.load_state({name: tensor.clone() for name, tensor in tensors.items()}, state)
    assert other.version == agent.version == 1
    for learner in (agent, other):
        learner.update(make_rollout(learner, seed=5))
    assert torch.equal(agent.parameters.values, other.parameters.values)


@pytest.mark.parametrize("change", ["another shape", "missing", "unknown"])
def test_a_state_of_another_network_is_refused(change: str) -> None:
    agent = PPO(OBSERVATIONS, SPACES["discrete"], PLAIN, seed=0)
    tensors, state = agent.state()
    if change == "another shape":
        tensors["critic.body.0.weight"] = torch.zeros(5, 5)
    elif change == "missing":
        del tensors["critic.body.0.weight"]
    else:
        tensors["critic.body.9.weight"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"[09]\.weight"):
        agent.load_state(tensors, state)


def test_metrics_are_plain_finite_numbers() -> None:
    agent = PPO(OBSERVATIONS, SPACES["continuous"], PLAIN, seed=1)
    metrics = agent.update(make_rollout(agent))
    assert all(isinstance(value, float) and math.isfinite(value) for value in metrics.values())
    names = {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance"}
    assert names < metrics.keys()
    assert agent.version == 1


@pytest.mark.parametrize(
    "space",
    [Discrete(3, start=3), Box(-1.0, 1.0, (2,)), Box(-2.0, 2.0, (2, 2), np.float64)],
    ids=str,
)
@pytest.mark.parametrize("deterministic", [True, False])
def test_act_gives_what_the_environment_takes(space: gym.Space, deterministic: bool) -> None:
    agent = PPO(OBSERVATIONS, space, seed=1)
    for seed in range(20):
        observation = np.random.default_rng(seed).standard_normal(4)
        assert space.contains(agent.act(observation, deterministic=deterministic))


def test_a_deterministic_action_is_the_mode_and_others_vary() -> None:
    agent = PPO(OBSERVATIONS, Box(-np.inf, np.inf, (2,)), seed=1)
    observation = np.full(4, 0.5, np.float32)
    with torch.no_grad():
        mean = agent.actor(torch.from_numpy(observation))[:2].numpy()
    np.testing.assert_allclose(agent.act(observation), mean, rtol=1e-5, atol=1e-7)
    assert not np.array_equal(*(agent.act(observation, deterministic=False) for _ in range(2)))


def test_act_on_discrete_observations() -> None:
    agent = PPO(Discrete(5), Discrete(2), seed=1)
    assert agent.act(4) in (0, 1)
    assert agent.act(np.int64(4)) == agent.act(4)


def test_unsupported_spaces_are_refused() -> None:
    with pytest.raises(EnvError, match="Sequence"):
        PPO(gym.spaces.Sequence(Discrete(2)), Discrete(2))
    with pytest.raises(EnvError, match="Text"):
        PPO(OBSERVATIONS, gym.spaces.Text(3))


@pytest.mark.parametrize("fast", [False, True], ids=["autograd", "by hand"])
def test_an_agent_prepared_again_goes_on_learning(fast: bool) -> None:
    """Like an evaluation between two updates."""
    config = replace(PLAIN, fast_updates=fast)
    agent, other = (PPO(OBSERVATIONS, SPACES["discrete"], config, seed=1) for _ in range(2))
    for learner in (agent, other):
        learner.update(make_rollout(learner))
    SingleDevice("cpu").prepare(agent)
    before = agent.parameters.values.detach().clone()
    for learner in (agent, other):
        learner.update(make_rollout(learner, seed=1))
    assert not torch.equal(agent.parameters.values, before)
    assert torch.equal(agent.parameters.values, other.parameters.values)


@pytest.mark.parametrize("fast", [False, True], ids=["autograd", "by hand"])
def test_the_critic_may_have_a_learning_rate_of_its_own(fast: bool) -> None:
    config = replace(PLAIN, num_epochs=1, learning_rate=1e-3, critic_learning_rate=1e-2, fast_updates=fast)
    agent = PPO(OBSERVATIONS, SPACES["discrete"], config, seed=1)
    before = {name: agent.parameters.of(name).clone() for name in ("actor", "critic")}
    agent.anneal(0.5)
    metrics = agent.update(make_rollout(agent))
    moved = {name: float((agent.parameters.of(name) - before[name]).abs().max()) for name in before}
    # Adam's first step is the learning rate itself; half of the training is done.
    assert moved == pytest.approx({"actor": 0.5e-3, "critic": 0.5e-2}, rel=0.02)
    assert metrics["learning_rate"] == 0.5e-3


def test_a_seed_gives_the_same_networks_whatever_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    initial = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            agent = PPO(OBSERVATIONS, SPACES["discrete"], ppo_config(hidden_sizes=(64, 64)), seed=0)
            initial.append(agent.parameters.values.detach().clone())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*initial)


@pytest.mark.parametrize(("fast_updates", "expected"), [(True, 1), (False, 2)])
def test_two_pools_of_threads_never_take_turns_at_small_operations(fast_updates: bool, expected: int) -> None:
    """Otherwise, torch's threads and those of NumPy's products would occupy each other's cores while they wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        agent = PPO(OBSERVATIONS, SPACES["discrete"], replace(PLAIN, fast_updates=fast_updates), seed=0)
        counts: list[int] = []
        step = agent.optimizer.step
        agent.optimizer.step = lambda *networks: (counts.append(torch.get_num_threads()), step(*networks))  # type: ignore[method-assign]
        agent.update(make_rollout(agent))
        assert set(counts) == {expected}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("form", FORMS)
def test_frozen_parameters_stay_and_the_others_learn(form: str, caplog: pytest.LogCaptureFixture) -> None:
    agent = PPO(OBSERVATIONS, Discrete(3), replace(PLAIN, **FORMS_OF[form]))
    frozen = list(agent.actor.parameters())[:2]

    def changed() -> list[bool]:
        before = [parameter.detach().clone() for parameter in agent.actor.parameters()]
        agent.update(make_rollout(agent))
        return [not torch.equal(*pair) for pair in zip(before, agent.actor.parameters(), strict=True)]

    assert all(changed())
    for parameter in frozen:  # whose moments have begun
        parameter.requires_grad_(False)
    assert changed() == [False, False, True, True, True, True]
    other = PPO(OBSERVATIONS, Discrete(3), agent.config)
    other.load_state(*agent.state())
    assert [each.requires_grad for each in other.actor.parameters()] == [False, False, True, True, True, True]
    for parameter in frozen:
        parameter.requires_grad_(True)
    assert all(changed())
    assert not caplog.records


@pytest.mark.parametrize("loss", [None, partial(ppo_loss)], ids=["the library's loss", "own loss"])
@pytest.mark.parametrize("form", FORMS)
def test_hooks_of_gradients_are_called(form: str, loss: Any, caplog: pytest.LogCaptureFixture) -> None:
    agent = PPO(OBSERVATIONS, Discrete(3), replace(PLAIN, **FORMS_OF[form]), loss=loss)
    for parameter in agent.actor.parameters():
        parameter.register_hook(torch.zeros_like)
    before = agent.parameters.values.detach().clone()
    agent.update(make_rollout(agent))
    for network, stays in {"actor": True, "critic": False}.items():
        own = agent.parameters.range_of(network)
        assert torch.equal(agent.parameters.values[own], before[own]) == stays
    assert not caplog.records


@pytest.mark.parametrize("form", FORMS)
def test_an_optimizer_of_the_users_does_not_end_the_agents_learning(form: str) -> None:
    agents = [PPO(OBSERVATIONS, Discrete(3), replace(PLAIN, **FORMS_OF[form]), seed=0) for _ in range(2)]
    for agent in agents:
        agent.update(make_rollout(agent))
    torch.optim.Adam(agents[0].actor.parameters()).zero_grad()
    for agent in agents:
        agent.update(make_rollout(agent))
    assert torch.equal(*(agent.parameters.values.data for agent in agents))
