"""DDPG and TD3 against their formulas in plain torch, and what else an agent promises."""

import copy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from stop_after import assert_stopped_update_changes_nothing
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from toy_environments import Catch, HighestAllowed, IdentityBox

import hybridppo
from hybridppo import DDPG, PPO, TD3, ConfigurationError, DDPGConfig, EnvError, OutOfMemoryError, TD3Config
from hybridppo.rollouts.replay import Transitions

OBSERVATIONS, ACTIONS = Box(-np.inf, np.inf, (3,), np.float32), Box(-2.0, 2.0, (2,), np.float32)
SMALL: dict[str, Any] = {"hidden_sizes": (8, 6), "batch_size": 5, "learning_rate": 1e-2, "tau": 0.1}
CONFIGS = {
    "ddpg": DDPGConfig(**SMALL, gradient_steps=1),
    "td3": TD3Config(**SMALL, gradient_steps=1),
    "td3, other settings": TD3Config(
        **{**SMALL, "activation": "tanh"}, gradient_steps=1, policy_delay=3, target_noise_std=1.0,
        target_noise_clip=0.3, critic_learning_rate=3e-3,
    ),
}  # fmt: skip


def agent_of(config: DDPGConfig, seed: int = 0) -> DDPG:
    kind = TD3 if isinstance(config, TD3Config) else DDPG
    return kind(OBSERVATIONS, ACTIONS, config, seed=seed)


def minibatches(num: int, config: DDPGConfig, seed: int = 0) -> Transitions:
    generator, size = torch.Generator().manual_seed(seed), config.batch_size

    def normal(*shape: int) -> Tensor:
        return torch.randn((num, size, *shape), generator=generator)

    discounts = torch.full((num, size), config.gamma).masked_fill(normal() > 1, 0.0)
    return Transitions(normal(3), normal(2).tanh(), normal(), discounts, normal(3), normal(2) * config.target_noise_std)


class Plain:
    """The algorithm as in its papers: modules, torch's optimizers, a loop over parameters."""

    def __init__(self, agent: DDPG) -> None:
        self.config = config = agent.config
        self.actor, critics = copy.deepcopy((agent.actor, list(agent.critics.critics)))
        self.critics = nn.ModuleList(critics)
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        critic_rate = config.critic_learning_rate or config.learning_rate
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=config.learning_rate)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=critic_rate)
        self.steps = 0

    def step(self, batch: Transitions) -> tuple[float, float, float]:
        config = self.config
        with torch.no_grad():
            noise = batch.noise.clamp(-config.target_noise_clip, config.target_noise_clip)
            actions = (torch.tanh(self.target_actor(batch.next_observations)) + noise).clamp(-1, 1)
            inputs = torch.cat((batch.next_observations, actions), 1)
            lowest = torch.min(torch.cat([critic(inputs) for critic in self.target_critics], 1), 1).values
            wanted = batch.returns + batch.discounts * lowest
        inputs = torch.cat((batch.observations, batch.actions), 1)
        values = [critic(inputs).squeeze(1) for critic in self.critics]
        critic_loss = sum(mse_loss(value, wanted) for value in values)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        self.steps += 1
        policy_loss = 0.0
        if self.steps % config.policy_delay == 0:
            actions = torch.tanh(self.actor(batch.observations))
            loss = -self.critics[0](torch.cat((batch.observations, actions), 1)).mean()
            self.actor_optimizer.zero_grad()
            loss.backward()
            self.actor_optimizer.step()
            policy_loss = float(loss.detach())
            for target, module in ((self.target_actor, self.actor), (self.target_critics, self.critics)):
                for theirs, ours in zip(target.parameters(), module.parameters(), strict=True):
                    theirs.data = (1 - config.tau) * theirs.data + config.tau * ours.data
        return critic_loss.item(), torch.stack(values).mean().item(), policy_loss

    def flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in (*self.actor.parameters(), *self.critics.parameters())])

    def flat_targets(self) -> Tensor:
        modules = (*self.target_actor.parameters(), *self.target_critics.parameters())
        return torch.cat([p.detach().flatten() for p in modules])


@pytest.mark.parametrize("name", CONFIGS)
def test_updates_are_the_papers_step_by_step(name: str) -> None:
    config = CONFIGS[name]
    agent = agent_of(config)
    plain, batches, sums = Plain(agent), minibatches(6, config), np.zeros(3)
    for batch in batches.unbind():
        agent.update([batch.map(lambda tensor: tensor[None])])
        sums += plain.step(batch)
        torch.testing.assert_close(agent.parameters.values.data, plain.flat(), rtol=1e-4, atol=2e-6)
        target = agent.optimizer.state[agent.parameters.values]["target"]
        torch.testing.assert_close(target, plain.flat_targets(), rtol=1e-4, atol=2e-6)
    assert agent.version == 6
    counts = np.array([6, 6, 6 // config.policy_delay])
    metrics = agent.take_metrics()
    found = [metrics[key] for key in ("value_loss", "q_value", "policy_loss")]
    np.testing.assert_allclose(found, sums / counts, rtol=1e-4, atol=1e-6)
    assert metrics["gradient_steps"] == 6


def test_defaults_are_those_of_the_paper_and_its_authors_code() -> None:
    """See Fujimoto et al., 2018, and TD3.py and main.py beside it."""
    config = TD3Config()
    assert (config.gamma, config.tau, config.exploration_std, config.batch_size) == (0.99, 0.005, 0.1, 256)
    assert (config.policy_delay, config.target_noise_std, config.target_noise_clip) == (2, 0.2, 0.5)


def test_one_update_of_many_steps_is_as_many_updates_of_one() -> None:
    config = CONFIGS["td3"]
    batches = minibatches(6, config)
    one_by_one, at_once = agent_of(config), agent_of(replace(config, gradient_steps=6))
    for batch in batches.unbind():
        one_by_one.update([batch.map(lambda tensor: tensor[None])])
    at_once.update([batches])
    assert torch.equal(one_by_one.parameters.values.data, at_once.parameters.values.data)
    assert (one_by_one.version, at_once.version) == (6, 1)
    assert one_by_one.take_metrics() == at_once.take_metrics()


def test_a_stopped_update_leaves_the_agent_as_it_was_and_draws_the_same_again() -> None:
    agent = agent_of(replace(CONFIGS["td3"], gradient_steps=40))
    replay = agent.new_replay()
    rng = np.random.default_rng(0)
    replay.arrays["observations"][:50] = torch.from_numpy(rng.standard_normal((50, 1, 3), np.float32))
    for name in ("actions", "rewards", "next_observations"):
        array = replay.arrays[name]
        array[:50] = torch.from_numpy(rng.standard_normal(tuple(array[:50].shape), np.float32))
    for name in ("terminated", "begins"):
        replay.arrays[name][:50] = False
    replay._valid[:50], replay._num_valid[:], replay.total = True, 50, 50
    other = agent_of(replace(CONFIGS["td3"], gradient_steps=40))
    other.update(other.minibatches(replay))

    for after in (0, 1, 35):
        assert_stopped_update_changes_nothing(agent, agent.minibatches(replay), after)
    agent.update(agent.minibatches(replay))
    assert torch.equal(agent.parameters.values.data, other.parameters.values.data)
    assert agent.state()[1] == other.state()[1]


def test_targets_begin_as_the_networks_and_follow_slowly() -> None:
    agent = agent_of(CONFIGS["ddpg"])
    slots = agent.optimizer.state[agent.parameters.values]
    assert torch.equal(slots["target"], agent.parameters.values.data)
    before = slots["target"].clone()
    agent.update([minibatches(1, agent.config)])
    moved = (slots["target"] - before) / (agent.parameters.values.data - before)
    is_moved = agent.parameters.values.data != before
    torch.testing.assert_close(moved[is_moved], torch.full_like(moved[is_moved], 0.1), rtol=1e-2, atol=1e-2)


def test_gaps_between_parameters_change_nothing() -> None:
    # As a GPU has its parameters, at round addresses. Adam's kernel rounds otherwise where vectors end elsewhere.
    config = replace(CONFIGS["td3"], gradient_steps=6)
    dense, spread = agent_of(config), agent_of(config)
    dense.update([minibatches(6, config)])
    spread.update([minibatches(6, config)])
    laid_out = spread.parameters.align(4)
    slots = spread.optimizer.state[spread.parameters.values]
    for name, slot in slots.items():
        slots[name] = laid_out(slot)
    assert len(spread.parameters.values) > len(dense.parameters.values)
    for agent in (dense, spread):
        agent.update([minibatches(6, config, seed=1)])
    tensors = [agent.state()[0] for agent in (dense, spread)]
    for name, tensor in tensors[0].items():
        torch.testing.assert_close(tensor, tensors[1][name], rtol=1e-6, atol=1e-7)
    assert dense.take_metrics() == spread.take_metrics()


def test_frozen_parameters_stay_and_the_others_learn() -> None:
    agent = agent_of(replace(CONFIGS["td3"], gradient_steps=4))
    first, critic = list(agent.actor.parameters())[:2], list(agent.critic.parameters())

    def changed() -> list[bool]:
        everything = agent.parameters.everything()
        before = [parameter.detach().clone() for parameter in everything]
        agent.update([minibatches(4, agent.config)])
        return [not torch.equal(*pair) for pair in zip(before, everything, strict=True)]

    num_actor = len(list(agent.actor.parameters()))
    assert all(changed())
    for parameter in first:  # whose moments have begun
        parameter.requires_grad_(False)
    assert changed() == [False, False, *[True] * (num_actor - 2 + len(critic))]
    other = agent_of(agent.config)
    other.load_state(*agent.state())
    assert [each.requires_grad for each in other.actor.parameters()] == [False, False, *[True] * (num_actor - 2)]
    agent.actor.requires_grad_(False)
    assert changed() == [*[False] * num_actor, *[True] * len(critic)]
    agent.actor.requires_grad_(True)
    agent.critic.requires_grad_(False)
    assert changed() == [*[True] * num_actor, *[False] * len(critic)]
    agent.critic.requires_grad_(True)
    assert all(changed())


def test_smoothing_noise_is_drawn_for_td3_alone_and_by_its_owner() -> None:
    for name, is_noisy in (("ddpg", False), ("td3", True)):
        agent = agent_of(replace(CONFIGS[name], batch_size=50, gradient_steps=200, buffer_size=1_000))
        replay = agent.new_replay()
        replay._valid[:], replay._num_valid[:], replay.total = True, replay.capacity, replay.capacity
        for array in replay.arrays.values():
            array.zero_()
        noise = torch.cat([part.noise for part in agent.minibatches(replay)])
        assert noise.shape == (200, 50, 2)
        assert (float(noise.std()) == pytest.approx(0.2, rel=0.05)) if is_noisy else not noise.any()


# What it is for, and what it is not


@pytest.mark.parametrize(("config", "kind"), [(DDPGConfig(), DDPG), (TD3Config(), TD3)])
def test_the_type_of_the_configuration_chooses_the_agent(config: DDPGConfig, kind: type[DDPG]) -> None:
    small = replace(config, hidden_sizes=(4,), learning_starts=20, steps_per_iteration=30, batch_size=4)
    result = hybridppo.train(IdentityBox, total_steps=60, seed=0, config=small, progress=False)
    assert type(result.agent) is kind
    assert type(kind(OBSERVATIONS, ACTIONS).config) is type(config)


def test_subclasses_and_agents_that_there_are_already_train() -> None:
    class Mine(TD3):
        pass

    small = TD3Config(hidden_sizes=(4,), learning_starts=20, steps_per_iteration=30, batch_size=4)
    result = hybridppo.train(IdentityBox, total_steps=30, seed=0, config=small, agent=Mine, progress=False)
    assert type(result.agent) is Mine
    version = result.agent.version
    again = hybridppo.train(IdentityBox, total_steps=60, seed=0, agent=result.agent, progress=False)
    assert again.agent is result.agent
    assert again.agent.version > version


@pytest.mark.parametrize(
    ("env", "options", "error", "message"),
    [
        ("CartPole-v1", {}, EnvError, r"Discrete\(2\) is not supported: a deterministic actor"),
        (Catch, {}, EnvError, "Discrete|images"),
        (lambda: HighestAllowed(), {"action_masks": True}, EnvError, "Discrete|action_masks"),
        (IdentityBox, {"loss": lambda *_: None}, ConfigurationError, "loss=... is for other agents than td3"),
        (IdentityBox, {"networks": lambda *_: None}, ConfigurationError, "networks=... is for other agents than td3"),
        (IdentityBox, {"agent": hybridppo.PPO}, ConfigurationError, "must be a subclass of TD3 or a TD3, got PPO"),
    ],
)
def test_what_it_cannot_do_is_one_clear_error(env: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hybridppo.train(env, total_steps=100, config=TD3Config(), progress=False, **options)


def test_images_are_refused_before_the_first_step() -> None:
    with pytest.raises(EnvError, match="has images or items, which DDPG and TD3 have no layers for"):
        DDPG(Box(0, 255, (6, 6, 1), np.uint8), ACTIONS)


def test_a_buffer_that_memory_cannot_hold_is_refused_before_the_first_step() -> None:
    class Counting(IdentityBox):
        steps = 0

        def step(self, action: Any) -> Any:
            Counting.steps += 1
            return super().step(action)

    config = TD3Config(buffer_size=2**31 - 1, hidden_sizes=(4,))
    with pytest.raises(OutOfMemoryError, match=r"lower .*buffer_size"):
        hybridppo.train(
            lambda: gym.wrappers.TransformObservation(Counting(), lambda o: np.repeat(o, 400), Box(-1, 1, (400,))),
            total_steps=100, config=config, progress=False,
        )  # fmt: skip
    assert Counting.steps == 0


def test_act_gives_a_pair_where_a_state_is_passed() -> None:
    agent = agent_of(CONFIGS["ddpg"])
    observation = np.ones(3, np.float32)
    action, state = agent.act(observation, state=None)
    assert state is None
    np.testing.assert_array_equal(action, agent.act(observation))
    with pytest.raises(EnvError, match="trained without masks"):
        agent.act(observation, action_mask=np.ones(2))


def test_a_mapping_is_an_observation_like_any_other() -> None:
    space = gym.spaces.Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3)})
    agent = DDPG(space, ACTIONS, CONFIGS["ddpg"])
    assert ACTIONS.contains(agent.act({"a": np.zeros(2, np.float32), "b": 1}))
    with pytest.raises(EnvError, match="the agent cannot act"):
        agent.act({"a": np.zeros(2, np.float32)})


@pytest.mark.parametrize("space", [Box(-1, 1, (4,)), gym.spaces.Dict({"a": Box(-1, 1, (2,))})], ids=["box", "dict"])
def test_the_pair_that_reset_returns_is_no_observation(space: Any) -> None:
    agent, observation = PPO(space, ACTIONS), space.sample()
    agent.act(observation)
    with pytest.raises(EnvError, match=r"the pair that reset returns: write `observation, info = env.reset\(\)`"):
        agent.act((observation, {"prob": 1.0}))
    with pytest.raises(EnvError, match="the agent cannot act: "):
        agent.act([observation, 1])


@pytest.mark.parametrize("kind", [DDPG, PPO])
def test_an_observation_that_is_not_finite_is_refused(kind: Any) -> None:
    agent = kind(gym.spaces.Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3)}), ACTIONS)
    values = np.array([[0.0, 0.0], [0.0, np.nan]], np.float32)
    with pytest.raises(EnvError, match=r"the agent cannot act: the observation\['a'\]\[1\] is nan"):
        agent.act({"a": values[1], "b": 1})
    with pytest.raises(EnvError, match=r"in observation 1: observation\['a'\]\[1\] is nan"):
        agent.act({"a": values, "b": np.array([0, 1])}, batch=True)


# The configuration


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_envs": 0}, "num_envs must be at least 1"),
        ({"batch_size": 1.5}, "batch_size must be a whole number"),
        ({"gradient_steps": 0}, "gradient_steps must be at least 1"),
        ({"gradient_steps": 2.0}, "gradient_steps must be a whole number"),
        ({"learning_rate": -1.0}, "learning_rate must be greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"gamma": 1.1}, "gamma must lie between 0 and 1"),
        ({"tau": 0.0}, "tau must be above 0 and at most 1"),
        ({"n_steps": 0}, "n_steps must be at least 1"),
        ({"buffer_on": "disk"}, "buffer_on must be one of learner, host, got 'disk'"),
        ({"exploration_std": -0.1}, "exploration_std must not be negative"),
        ({"learning_starts": -1}, "learning_starts must not be negative"),
        ({"buffer_size": 10, "num_envs": 4, "train_frequency": 8}, "buffer_size must hold what is sampled .* = 32"),
        ({"hidden_sizes": (0,)}, "hidden_sizes must be a tuple of whole numbers, each from 1"),
        ({"activation": "step"}, "activation must be one of"),
        ({"torch_threads": 5000}, "torch_threads must be at most 1024"),
    ],
)
@pytest.mark.parametrize("kind", [DDPGConfig, TD3Config])
def test_what_cannot_work_is_refused_with_the_field_and_the_rule(kind: Any, fields: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        kind(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policy_delay": 0}, "policy_delay must be at least 1"),
        ({"target_noise_std": -1.0}, "target_noise_std must not be negative"),
        ({"target_noise_clip": -1.0}, "target_noise_clip must not be negative"),
    ],
)
def test_what_td3_adds_is_checked_too(fields: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TD3Config(**fields)
    with pytest.raises(TypeError, match="unexpected keyword"):
        DDPGConfig(**fields)


@pytest.mark.parametrize("config", [DDPGConfig(hidden_sizes=[3, 4], tau=1), TD3Config(policy_delay=1)])
def test_configurations_are_whole_again_out_of_json(config: DDPGConfig) -> None:
    assert type(config)(**config.to_json()) == config
    assert isinstance(config.tau, float)
    assert isinstance(config.hidden_sizes, tuple)
    assert config.num_critics == (2 if isinstance(config, TD3Config) else 1)


def test_as_many_optimizer_steps_as_steps_where_nothing_else_is_said() -> None:
    assert DDPGConfig(num_envs=3, train_frequency=4).steps_per_update == 12
    assert DDPGConfig(num_envs=3, train_frequency=4, gradient_steps=2).steps_per_update == 2
    assert ppo_config().num_steps == 128
