"""Evaluation runs exactly the episodes asked for, whichever environments are fast."""

import contextlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorWrapper
from ppo_settings import ppo_config
from toy_agents import Matching
from toy_environments import MODES, IdentityDiscrete, Script, scripted_return, scripted_vector

import hybridppo
from hybridppo import EnvError
from hybridppo.agents import PPO
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.base import Environments
from hybridppo.environments.making import make_environments
from hybridppo.environments.vector import wrap
from hybridppo.evaluation import evaluate_agent
from hybridppo.placements.placement import Mirrored
from hybridppo.runners import episodes as episodes_module
from hybridppo.runners.episodes import Evaluation, evaluate

SLOW: Script = ((9, "terminated"), (7, "truncated"))
QUICK: Script = ((1, "truncated"), (2, "both"), (1, "terminated"))
MEDIUM: Script = ((4, "both"),)
SCRIPTS = (SLOW, QUICK, MEDIUM)


class TableActor:
    """Logits by row of a table, for one-hot observations."""

    version = 0

    def __init__(self, table: np.ndarray) -> None:
        self._table = table.astype(np.float32)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return observations @ self._table


def run(environments: Environments, actor: Any, **options: Any) -> Evaluation:
    return evaluate(actor, distribution_for(environments.action_space), environments, **options)


def run_scripted(mode: AutoresetMode, episodes: int) -> Evaluation:
    actor = TableActor(np.zeros((2, 2)))
    return run(wrap(scripted_vector(SCRIPTS, mode)), actor, episodes=episodes, seed=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("episodes", "shares"), [(1, (1, 0, 0)), (3, (1, 1, 1)), (5, (2, 2, 1)), (12, (4, 4, 4))])
def test_each_environment_contributes_a_fixed_share(mode: AutoresetMode, episodes: int, shares: tuple[int]) -> None:
    evaluation = run_scripted(mode, episodes)
    of_each = [
        (scripted_return(script, episode), script[episode % len(script)][0])
        for script, share in zip(SCRIPTS, shares, strict=True)
        for episode in range(share)
    ]
    assert sorted(zip(evaluation.returns, evaluation.lengths, strict=True)) == sorted(of_each)


def test_an_evaluation_without_an_end_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_scripted(AutoresetMode.SAME_STEP, 3)
    assert not caplog.messages
    monkeypatch.setattr(episodes_module, "SECONDS_OF_AN_EPISODE", 0.0)
    run_scripted(AutoresetMode.SAME_STEP, 3)
    (warning,) = caplog.messages
    assert warning.startswith(
        "no episode of the evaluation has ended for 0 seconds, and it waits for 3: if they may be"
    )


def test_mean_and_deviation_are_over_the_episodes() -> None:
    evaluation = Evaluation(returns=(1.0, 2.0, 6.0), lengths=(1, 1, 1))
    assert evaluation.return_mean == 3.0
    assert evaluation.return_std == pytest.approx(np.sqrt(14 / 3))


def test_deterministic_actions_are_the_most_probable() -> None:
    environments = make_environments(partial(IdentityDiscrete, n=4, length=8), 3)
    evaluation = run(environments, TableActor(0.01 * np.eye(4)), episodes=6, seed=0)
    assert evaluation.returns == (8.0,) * 6
    assert evaluation.lengths == (8,) * 6


def test_random_actions_follow_the_probabilities() -> None:
    environments = make_environments(partial(IdentityDiscrete, n=4, length=100), 4)
    actor = TableActor(np.log(3.0) * np.eye(4))  # right with probability 3 / 6
    evaluation = run(environments, actor, episodes=20, seed=0, deterministic=False)
    assert evaluation.return_mean / 100 == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 2000))


def test_random_actions_come_from_the_seed() -> None:
    def actions(seed: int) -> list[list[int]]:
        vector = scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP)
        run(wrap(vector), TableActor(np.zeros((2, 2))), episodes=6, seed=seed, deterministic=False)
        return [env.actions for env in vector.envs]

    assert actions(seed=1) == actions(seed=1)
    assert actions(seed=1) != actions(seed=2)


def test_environments_are_seeded() -> None:
    def returns(seed: int) -> tuple[float, ...]:
        environments = make_environments(partial(IdentityDiscrete, length=50), 2)
        return run(environments, TableActor(np.zeros((4, 4))), episodes=4, seed=seed).returns

    assert returns(seed=1) == returns(seed=1)
    assert returns(seed=1) != returns(seed=2)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_second_evaluation_in_a_vector_has_the_same_episodes(shared_memory: bool) -> None:
    """The first one ends where resets are due, which workers without shared memory keep (gymnasium 1.4)."""
    copies = [partial(IdentityDiscrete, length=length) for length in (3, 5)]
    environments = wrap(AsyncVectorEnv(copies, shared_memory=shared_memory))
    with contextlib.closing(environments):
        first, second = (run(environments, TableActor(np.eye(4)), episodes=4, seed=0) for _ in range(2))
    assert first == second
    assert sorted(first.lengths) == [3, 3, 5, 5]


def test_evaluations_with_neighbouring_seeds_share_no_episode() -> None:
    class Noted(IdentityDiscrete):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if seed is not None:
                seeds.append(seed)
            return super().reset(seed=seed)

    agent = PPO(Discrete(4), Discrete(4), ppo_config(num_envs=4))
    seeds: list[int] = []
    for seed in range(4):
        evaluate_agent(agent, Noted, episodes=4, seed=seed, progress=False)
    assert len(seeds) == len(set(seeds)) == 4 * 4


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_environment_gets_its_own_form_of_actions(deterministic: bool) -> None:
    script: Script = ((20, "terminated"),)
    counted = scripted_vector([script], AutoresetMode.DISABLED, action_space=Discrete(3, start=5))
    run(wrap(counted), TableActor(np.zeros((2, 3))), episodes=1, seed=0, deterministic=deterministic)
    (env,) = counted.envs
    assert set(env.actions) == ({5} if deterministic else {5, 6, 7})

    bounded = scripted_vector([script], AutoresetMode.DISABLED, action_space=Box(-0.125, 0.125, (2, 2), np.float64))
    outputs = np.array([[0, 0, 0, 0, 0, 0, 0, 0], [9, -9, 9, -9, 0, 0, 0, 0]])  # the second number seen is the step
    run(wrap(bounded), TableActor(outputs), episodes=1, seed=0, deterministic=deterministic)
    (env,) = bounded.envs
    assert {action.shape for action in env.actions} == {(2, 2)}
    np.testing.assert_array_equal(env.actions[-1], [[0.125, -0.125]] * 2)


def test_rewards_of_rows_that_are_resets_do_not_count() -> None:
    class RewardsResets(VectorWrapper):
        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = self.env.step(actions)
            return observations, np.where(rewards == 0.0, 99.0, rewards), *rest

    actor = TableActor(np.zeros((2, 2)))
    vector = scripted_vector(SCRIPTS, AutoresetMode.NEXT_STEP)
    evaluation = run(wrap(RewardsResets(vector)), actor, episodes=9, seed=0)
    assert evaluation == run_scripted(AutoresetMode.NEXT_STEP, episodes=9)


def test_rewards_of_a_vector_that_are_not_finite_are_refused() -> None:
    class Rewards(VectorWrapper):
        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = self.env.step(actions)
            return observations, rewards * np.array([1.0, np.nan, 1.0]), *rest

    vector = Rewards(scripted_vector(SCRIPTS, AutoresetMode.SAME_STEP))
    with pytest.raises(EnvError, match="failed in step 1: the reward of environment 1: reward is nan"):
        run(wrap(vector), TableActor(np.zeros((2, 2))), episodes=9, seed=0)


def test_each_episode_is_reported() -> None:
    reported: list[None] = []
    environments = wrap(scripted_vector(SCRIPTS, AutoresetMode.NEXT_STEP))
    actor = TableActor(np.zeros((2, 2)))
    run(environments, actor, episodes=7, seed=0, on_episode=lambda: reported.append(None))
    assert len(reported) == 7


def test_an_agent_is_evaluated_in_environments_of_its_own() -> None:
    made: list[IdentityDiscrete] = []
    closed: list[IdentityDiscrete] = []

    class Counted(IdentityDiscrete):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    agent = PPO(Discrete(4), Discrete(4), ppo_config(num_envs=2))
    evaluation = evaluate_agent(agent, Counted, episodes=5, seed=3, progress=False)
    assert len(evaluation.returns) == 5
    assert evaluate_agent(agent, Counted, episodes=5, seed=3, progress=False) == evaluation
    assert len(made) >= 4
    assert set(map(id, made)) == set(map(id, closed))


def test_a_function_makes_no_more_environments_than_there_are_episodes() -> None:
    """However many environments the training had."""
    made: list[IdentityDiscrete] = []

    def make() -> IdentityDiscrete:
        made.append(IdentityDiscrete())
        return made[-1]

    agent = PPO(Discrete(4), Discrete(4), ppo_config(num_envs=256))
    evaluate_agent(agent, make, episodes=3, progress=False)
    assert len(made) == 3


@pytest.mark.parametrize("episodes", [0, -1, 2.5])
def test_an_impossible_number_of_episodes_is_refused(episodes: Any) -> None:
    agent = PPO(Discrete(4), Discrete(4))
    with pytest.raises(hybridppo.ConfigurationError, match=f"episodes must be a whole number .* got {episodes}"):
        evaluate_agent(agent, IdentityDiscrete, episodes=episodes)


def test_what_cannot_say_when_to_stop_is_refused() -> None:
    nothing: Any = None
    with pytest.raises(hybridppo.ConfigurationError, match=r"should_stop must be a function .*, got None"):
        evaluate_agent(PPO(Discrete(4), Discrete(4)), IdentityDiscrete, should_stop=nothing)


def test_a_mirror_that_publishes_rarely_does_not_evaluate_old_parameters() -> None:
    agent = PPO(Discrete(4), Discrete(4), ppo_config(num_envs=2, hidden_sizes=()))
    linear = agent.actor.head
    with torch.no_grad():
        linear.weight.copy_(-torch.eye(4))  # always wrong
    placement = Mirrored("cpu", "cpu", publish_every=1000, force_copy=True)
    placement.prepare(agent)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(4))  # always right
    agent.version += 1
    evaluation = evaluate_agent(agent, IdentityDiscrete, episodes=4, placement=placement, progress=False)
    assert evaluation.returns == (8.0,) * 4


class Rare(Matching):
    """The second of two agents is absent from every other episode, and the first from all."""

    def _observe(self, agents: list[str]) -> Any:
        if self._steps == 0:
            self.agents = agents = self.possible_agents[: 1 + (self._episodes % 2 == 0)]
        return super()._observe(agents)


def test_a_policy_whose_agents_miss_all_episodes_has_no_return() -> None:
    whose = {"player 0": "first", "player 1": "second"}
    config = ppo_config(num_envs=1, num_steps=16, num_minibatches=2, hidden_sizes=(4,))
    result = hybridppo.train(
        partial(Rare, 2), total_steps=16, config={"first": config, "second": config}, policy_of=whose.__getitem__,
        placement="cpu", progress=False, evaluate_every=16, episodes_per_evaluation=1,
    )  # fmt: skip
    assert result.metrics["first/evaluation_return_mean"] >= 0.0
    assert np.isnan(result.metrics["second/evaluation_return_mean"])
    found = hybridppo.evaluate_policies(result.agents, partial(Rare, 2), episodes=1, policy_of=whose.__getitem__)
    assert (found["second"].returns, len(found["first"].returns)) == ((), 1)
    assert np.isnan([found["second"].return_mean, found["second"].return_std]).all()


class Gliding(Matching):
    """Each agent is rewarded according to its action."""

    def action_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (1,))

    def step(self, actions: dict[str, Any]) -> Any:
        observations, _, *others = super().step(dict.fromkeys(actions, 0))
        return observations, {agent: float(action[0]) for agent, action in actions.items()}, *others


def test_each_policy_squashes_its_actions_or_not_as_it_was_trained() -> None:
    agents = {}
    for name, squash in (("squashed", True), ("clipped", False)):
        config = ppo_config(hidden_sizes=(), squash_actions=squash)
        agents[name] = agent = PPO(Discrete(4), Box(-1.0, 1.0, (1,)), config)
        with torch.no_grad():
            agent.parameters.values.zero_()
            agent.parameters.values[5] = 0.5  # the bias of the mean
    whose = {"player 0": "squashed", "player 1": "clipped"}
    found = hybridppo.evaluate_policies(
        agents, partial(Gliding, 2), episodes=1, deterministic=True, policy_of=whose.__getitem__
    )
    assert found["squashed"].return_mean == pytest.approx(8 * np.tanh(0.5))
    assert found["clipped"].return_mean == pytest.approx(7 * 0.5)


@pytest.mark.parametrize(("name", "value"), [("episodes", 0), ("num_envs", 0), ("episodes", 2.5), ("seed", -1)])
def test_impossible_numbers_for_several_policies_are_refused(name: str, value: Any) -> None:
    with pytest.raises(hybridppo.ConfigurationError, match=f"{name} must be a whole number .* got {value}"):
        hybridppo.evaluate_policies({}, Matching, **{name: value})


def test_a_scripted_policy_acts_and_must_return_the_outputs_of_an_actor() -> None:
    env = partial(Gliding, 2)
    found = hybridppo.evaluate_policies(
        {"player": lambda seen: [[0.25, -9.0]] * len(seen)}, env, episodes=1, deterministic=True,
        policy_of=lambda agent: "player",
    )  # fmt: skip
    assert found["player"].return_mean == 7.5 * 0.25
    with pytest.raises(hybridppo.ConfigurationError, match=r"of policy 'player' must return .* array \(2, 2\).* got 1"):
        hybridppo.evaluate_policies({"player": lambda seen: 1}, env, episodes=1, policy_of=lambda agent: "player")


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(
        hybridppo.ConfigurationError, match="policy 'player' must be an agent of PPO or a function, got"
    ):
        hybridppo.evaluate_policies({"player": "runs/player"}, Matching)
