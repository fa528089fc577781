"""Critics that see more than agents, in compiled environments: as in the same environment in Python, everywhere."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_hunt import HUNTERS, PREY, Hunt
from compiled_side import Side
from everywhere import WAYS, WITH_WORKERS, assert_goes_on_exactly, assert_same_everywhere
from gymnasium.spaces import Box, Discrete
from ppo_settings import ppo_config
from selection import only_by_default

import hybridppo
from hybridppo import ConfigurationError, EnvError, compiled
from hybridppo.agents import PPO
from hybridppo.agents.policies import Policies, PoliciesConfig
from hybridppo.agents.registry import critics_see
from hybridppo.environments.making import make_environments
from hybridppo.environments.options import CriticsOptions
from hybridppo.interfaces import agents_of
from hybridppo.runners import filling

pytest.importorskip("numba")
pytestmark = pytest.mark.extras

NUM_AGENTS = HUNTERS + PREY
SMALL = ppo_config(num_envs=4, num_steps=32, num_minibatches=2, num_epochs=1, hidden_sizes=(8,))
NORMALISED = replace(SMALL, normalize_observations=True, normalize_rewards=True)
STEPS = 4 * 4 * 32
OBSERVES = ["all", "state"]


def environments_of(env: Any, num_envs: int, observes: Any, **options: Any) -> Any:
    options = {"vectorization": "compiled", **options}
    return make_environments(env, num_envs, CriticsOptions(critic_observes=observes), **options)


def train(config: Any, observes: Any, env: Any = Hunt, **options: Any) -> Any:
    """A policy of all agents, or one for each kind, with another critic each if there are two in `observes`."""
    if isinstance(config, dict):
        each = [observes] * 2 if isinstance(observes, str) else observes
        config = {name: replace(config[name], critic_observes=own) for name, own in zip(config, each, strict=True)}
        options = {"total_steps": STEPS, **options}
    else:
        config, options = replace(config, critic_observes=observes), {"total_steps": STEPS * NUM_AGENTS, **options}
    options = {"seed": 3, "placement": "cpu", "vectorization": "compiled", **options}
    return hybridppo.train(env, config=config, progress=False, **options)


def parameters(result: Any) -> Any:
    return np.concatenate([agent.parameters.values.detach().numpy() for agent in result.agents.values()])


CONFIGS: dict[str, Any] = {
    "a policy of all": SMALL,
    "normalised": NORMALISED,
    "a policy each": {"hunter": SMALL, "prey": replace(NORMALISED, hidden_sizes=(16, 8), activation="relu")},
}
"""To add a policy, add a line."""
EACH = {
    **dict.fromkeys(("hunter_0", "prey_0"), "all"),
    **dict.fromkeys(("hunter_1", "prey_1"), "state"),
    "prey_2": "own",
}
CRITICS = [(name, observes) for name in CONFIGS for observes in OBSERVES]
MIXED = (("all", "state"), ("own", "all"), ("state", "own"))
CRITICS += [("a policy each", observes) for observes in MIXED]


@pytest.mark.parametrize("observes", [*OBSERVES, EACH], ids=str)
def test_rows_are_those_of_the_same_environment_in_python(observes: Any) -> None:
    ours, plain = (environments_of(Hunt, 4, observes, vectorization=each) for each in ("compiled", "sync"))
    assert ours.observation_space == plain.observation_space
    np.testing.assert_array_equal(ours.reset(11), plain.reset(11))
    generator = np.random.default_rng(0)
    num_left = num_finals = 0
    for _ in range(200):
        actions = generator.integers(-1, 2, ours.num_envs)
        *arrays, finals_of, finals = ours.step(actions)
        *expected, expected_of, expected_finals = plain.step(actions)
        for array, other in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(array, other)
        assert finals_of == expected_of
        np.testing.assert_array_equal(np.array(finals), np.array(expected_finals))
        num_left, num_finals = num_left + int(ours.absent.sum()), num_finals + len(finals)
    assert min(num_left, num_finals) > 100


def test_rows_have_what_all_others_observe_by_hand() -> None:
    """The parts of a Dict are in the order of their keys: others, own; and own, state."""
    for observes in OBSERVES:
        environments = environments_of(Hunt, 2, observes)
        rows = environments.reset(0)
        x = environments.states["x"]
        for env in range(2):
            own = np.array([[x[env, i], 0, x[env, 0] - x[env, i], -1] for i in range(NUM_AGENTS)], np.float32)
            state = np.array([0, *(x[env] / 2)], np.float32)
            for agent in range(NUM_AGENTS):
                others = np.delete(own, agent, 0).ravel()
                expected = [*others, *own[agent]] if observes == "all" else [*own[agent], *state]
                assert rows[env * NUM_AGENTS + agent].tolist() == expected


def side_of(observes: Any, num_steps: int = 70, threads: int = 1) -> Side:
    """The agent normalises observations; with two critics, there are two policies."""
    settings = replace(NORMALISED, num_steps=num_steps)
    if isinstance(observes, str):
        config: Any = replace(settings, critic_observes=observes)
    else:
        of_kinds = zip(("hunter", "prey"), observes, strict=True)
        config = PoliciesConfig({kind: replace(settings, critic_observes=each) for kind, each in of_kinds})
        config = config.with_agents(Hunt.agents)
    environments = environments_of(Hunt, 6, critics_see(config), env_threads=threads)
    spaces = environments.observation_space, environments.action_space
    made: Any = (PPO if isinstance(observes, str) else Policies)(*spaces, config, seed=5)
    for agent in agents_of(made):
        moments: Any = agent.actor.normalizer.moments
        moments.mean.copy_(moments.mean.new_tensor(np.linspace(-0.2, 0.2, len(moments.mean))))
        moments.variance.fill_(2.0)
    return Side(environments, made, num_steps)


@pytest.mark.parametrize("observes", [*OBSERVES, ("all", "state"), ("own", "all")], ids=str)
def test_the_fused_rollout_agrees_with_the_plain_form(observes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, divided, plain = (side_of(observes, threads=threads) for threads in (1, 3, 1))
    assert filling.fused(ours.environments, ours.agent.distribution, ours.actor) is not None
    _, finals = ours.stepper.fill(ours.buffer, ours.actor)
    divided.stepper.fill(divided.buffer, divided.actor)
    monkeypatch.setattr(filling, "fused", lambda *_: None)
    _, expected = plain.stepper.fill(plain.buffer, plain.actor)
    there = ~plain.buffer.absent
    assert not there.all()
    for name, array in ours.buffer.columns().items():
        np.testing.assert_array_equal(array, divided.buffer.columns()[name], err_msg=name)
        other = plain.buffer.columns()[name]
        if name == "outputs":  # of nobody, they are nothing
            np.testing.assert_allclose(array[there], other[there], atol=1e-5)
        elif name != "actions":  # but for rounding, actions are the same, and so is what follows from them
            np.testing.assert_array_equal(array, other, err_msg=name)
    assert [final[:2] for final in finals] == [final[:2] for final in expected]
    assert len(finals) > 50
    np.testing.assert_array_equal([final[2] for final in finals], [final[2] for final in expected])


@pytest.mark.parametrize(("name", "observes"), CRITICS, ids=str)
def test_a_training_is_that_of_the_same_environment_in_python(
    name: str, observes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, advantages and updates have the same bits if the same actor acts."""
    monkeypatch.setattr(filling, "fused", lambda *_: None)
    one, other = (train(CONFIGS[name], observes, vectorization=each) for each in ("compiled", "sync"))
    np.testing.assert_array_equal(parameters(one), parameters(other))
    assert not np.array_equal(parameters(one), parameters(train(CONFIGS[name], observes, seed=4)))


def test_with_a_memory() -> None:
    config = replace(SMALL, recurrent="gru", recurrent_size=4, sequence_length=8)
    one, other = (train(config, "all", vectorization=each) for each in ("compiled", "sync"))
    np.testing.assert_array_equal(parameters(one), parameters(other))


# Each kind of policies and each kind of critics, in one pair or another; the rest of the pairs train above.
@pytest.mark.parametrize(
    ("name", "observes"),
    only_by_default(
        ("normalised, all", "a policy of all, state", *(f"a policy each, {observes}" for observes in MIXED)),
        [("a policy of all", "own"), *CRITICS],
        pytest.mark.slow,
    ),
    ids=str,
)
def test_who_samples_and_where_changes_nothing_and_a_run_goes_on(name: str, observes: Any, tmp_path: Path) -> None:
    run, config = tmp_path / "run", CONFIGS[name]
    whole = train(config, observes, run_dir=run, checkpoint_seconds=0, evaluation_episodes=2)
    assert len(whole.evaluation.returns) == 2 * NUM_AGENTS
    ways = {WITH_WORKERS: WAYS[WITH_WORKERS], "threads": {"env_threads": 3}, "one learner": {"distributed": "gpu:1"}}
    assert_same_everywhere(partial(train, config, observes), whole, ways)
    assert_goes_on_exactly(run, whole, env=Hunt, num_workers=2)
    found = hybridppo.evaluate(run, env=Hunt, episodes=3, progress=False)
    assert len(found.returns) == 3 * NUM_AGENTS


@pytest.mark.parametrize("observes", OBSERVES)
def test_learners_share_it(observes: str) -> None:
    halves = [train(SMALL, observes, distributed=f"gpu:{learners}:2") for learners in (1, 2)]
    np.testing.assert_array_equal(*map(parameters, halves))


def test_agents_act_and_are_exported_on_their_own_observation(tmp_path: Path) -> None:
    agent = train(SMALL, "all", run_dir=tmp_path / "run").agent
    assert agent.act(np.zeros(4, np.float32)) in (-1, 0, 1)
    assert hybridppo.export(tmp_path / "run", tmp_path / "policy.npz").steps_checked == 1000


def drifting(**options: Any) -> Any:
    def observe_state(state: Any, time: Any, out: Any) -> None:
        out[0] = state.x[0] + state.x[1]

    class Drift:
        def reset(agent, state, random):
            state.x[agent] = np.float32(compiled.normal(random))

        def go(agent, state, action, random):
            state.x[agent] += action

        def reward(agent, state, time):
            return -abs(state.x[agent]), False

        def observe(agent, state, time, out):
            out[0] = time

        phases = (go,)

    if options.pop("writes", True):
        Drift.observe_state = observe_state  # type: ignore[attr-defined]
    space = Box(-1e9, 1e9, (1,), np.float32)
    options = {"policies": {"one": 2}, "episode_length": 5, **options}
    return compiled.environment(
        state={"x": np.float32}, observation_space=space, action_space=Discrete(2), **options
    )(Drift)  # fmt: skip


VECTOR = Box(-np.inf, np.inf, (1,), np.float32)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(EnvError, match="critic_observes='state' needs a state_space, and Drift has none: pass state"):
        train(SMALL, "state", drifting())
    with pytest.raises(ConfigurationError, match="critic_observes='all' is for multi-agent environments"):
        train(SMALL, "all", "CartPole-v1")
    with pytest.raises(ConfigurationError, match="Drift has no function observe_state"):
        drifting(state_space=VECTOR, writes=False)
    with pytest.raises(ConfigurationError, match="state_space must be a Box of one dimension and float32"):
        drifting(state_space=Discrete(3))
    with pytest.raises(ConfigurationError, match="state_space is for critics of several agents: leave it out"):
        drifting(state_space=VECTOR, policies=None)
    with pytest.raises(EnvError, match=r"does not write out\[1\]: a state has 2 numbers"):
        train(SMALL, "state", drifting(state_space=Box(-1.0, 1.0, (2,), np.float32)))


@pytest.mark.slow
def test_a_state_that_is_not_finite_is_refused() -> None:
    environments = environments_of(drifting(state_space=VECTOR), 2, "state")
    environments.reset(0)
    environments.states["x"][1, 0] = np.nan
    with pytest.raises(EnvError, match=r"environment 1, agent 'one_0': observation\['state'\]\[0\] is nan"):
        environments.step(np.zeros(4, np.int64))
