"""Rollouts of batched environments hold exactly what happened, and never leave their device."""

from functools import cache
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import second_device as second
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from ppo_settings import ppo_config
from tensor_environments import ScriptedTensors
from toy_environments import Script, scripted_return, scripted_rows

import hybridppo
from hybridppo import Mirrored, PPOConfig, SingleDevice
from hybridppo.agents import PPO
from hybridppo.distributions.of_space import distribution_for
from hybridppo.environments.tensors import TensorEnvironments
from hybridppo.environments.torch_cartpole import TorchCartPole
from hybridppo.rollouts.advantages import gae, next_values
from hybridppo.runners.device_sampler import TensorSampler
from hybridppo.runners.sampler import RolloutPlan
from hybridppo.system.signals import Stopped

SCRIPTS: tuple[Script, ...] = (
    ((3, "truncated"), (2, "terminated"), (5, "both"), (1, "truncated")),
    ((1, "truncated"), (1, "terminated"), (1, "both"), (5, "truncated")),
    ((2, "both"), (6, "truncated"), (1, "terminated")),
)
N, T, NUM_ROLLOUTS = len(SCRIPTS), 4, 12


class FixedActor:
    """The same outputs for the same observations."""

    version = 7

    def __init__(self, output_size: int) -> None:
        self._output_size = output_size

    def on_device(self, observations: torch.Tensor) -> torch.Tensor:
        return (observations.sum(1, keepdim=True) + torch.arange(self._output_size)).sin()


def sampler_of(env: Any, num_steps: int = T, seed: int = 0, **options: Any) -> tuple[TensorSampler, FixedActor]:
    environments = TensorEnvironments(env, env.num_envs, owns=False)
    distribution = distribution_for(env.single_action_space)
    plan = RolloutPlan(distribution, np.random.default_rng(seed), env_seed=0, num_steps=num_steps, **options)
    return TensorSampler(environments, plan), FixedActor(distribution.output_size)


@pytest.mark.parametrize("gives_finals", [True, False])
def test_rollouts_hold_what_happened(gives_finals: bool, caplog: pytest.LogCaptureFixture) -> None:
    env = ScriptedTensors(SCRIPTS, gives_finals=gives_finals)
    sampler, actor = sampler_of(env)
    everything = [list(islice(scripted_rows(s, AutoresetMode.SAME_STEP), NUM_ROLLOUTS * T + 1)) for s in SCRIPTS]
    for number in range(NUM_ROLLOUTS):
        rollout = sampler.collect(actor)
        rows = [column[number * T : number * T + T + 1] for column in everything]
        seen = rollout.observations.tolist()
        assert seen == [[list(rows[env][t].observation) for env in range(N)] for t in range(T + 1)]
        for t in range(T):
            for env_number, column in enumerate(rows):
                row, place = column[t], (t, env_number)
                assert rollout.rewards[place] == row.reward
                assert (rollout.terminated[place], rollout.truncated[place]) == (row.terminated, row.truncated)
        # The final observation where it is known; else the one before the last action.
        cut = [(t, e) for t in range(T) for e in range(N) if rows[e][t].truncated and not rows[e][t].terminated]
        assert rollout.final_rows.tolist() == [t * N + e for t, e in cut]
        expected = [list(rows[e][t].following if gives_finals else rows[e][t].observation) for t, e in cut]
        assert rollout.final_observations.tolist() == expected
        assert rollout.valid_rows.tolist() == list(range(T * N))
        assert rollout.version == 7
        assert sampler.counts.env_steps == (number + 1) * T * N
        taken = torch.stack(env.actions[-T:])
        assert torch.equal(taken, rollout.actions)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (0 if gives_finals else 1)
    assert gives_finals or 'the approximation "last observation"' in said[0]
    # The statistics are those of the scripts.
    ended = [
        (t, env_number, row.observation[0])
        for env_number, column in enumerate(everything)
        for t, row in enumerate(column[:-1])
        if row.terminated or row.truncated
    ]
    returns = [scripted_return(SCRIPTS[env_number], episode) for _, env_number, episode in sorted(ended)]
    assert sampler.counts.statistics.episodes == len(ended)
    assert sampler.counts.statistics.return_mean == pytest.approx(np.mean(returns[-100:]))


@pytest.mark.parametrize("gives_finals", [True, False])
def test_truncated_episodes_are_bootstrapped_by_hand(gives_finals: bool) -> None:
    # One environment: two steps and an end, then two steps of the next episode. Rewards 1, 2 and 11, 12.
    sampler, actor = sampler_of(ScriptedTensors((((2, "truncated"),),), gives_finals=gives_finals))
    rollout = sampler.collect(actor)

    def value(observations: torch.Tensor) -> torch.Tensor:
        return 100.0 * observations[..., 0] + 10.0 * observations[..., 1]  # (episode, steps done)

    values = value(rollout.observations)
    following = next_values(
        values=values, final_rows=rollout.final_rows, final_values=value(rollout.final_observations)
    )
    advantages = gae(
        rewards=rollout.rewards, values=values[:-1], next_values=following, terminated=rollout.terminated,
        truncated=rollout.truncated, gamma=0.5, gae_lambda=0.5,
    )  # fmt: skip
    # Values: 0, 10, then 20 of the true final observation, or 10 again of the last; 100, 110, then 120 or 110.
    first_end, second_end = (20.0, 120.0) if gives_finals else (10.0, 110.0)
    deltas = [1 + 5 - 0, 2 + 0.5 * first_end - 10, 11 + 55 - 100, 12 + 0.5 * second_end - 110]
    expected = [deltas[0] + 0.25 * deltas[1], deltas[1], deltas[2] + 0.25 * deltas[3], deltas[3]]
    assert advantages.flatten().tolist() == pytest.approx(expected)


def test_final_observations_that_come_only_at_ends_are_found() -> None:
    class AtEnds(ScriptedTensors):
        def step(self, actions: Any) -> Any:
            *others, infos = super().step(actions)
            return *others, infos if bool((others[2] | others[3]).any()) else {}

    expected, _ = sampler_of(ScriptedTensors(SCRIPTS))
    sampler, actor = sampler_of(AtEnds(SCRIPTS))
    for _ in range(NUM_ROLLOUTS):
        one, other = sampler.collect(actor), expected.collect(actor)
        assert torch.equal(one.final_observations, other.final_observations)


def test_noise_follows_from_the_seed() -> None:
    one, actor = sampler_of(ScriptedTensors(SCRIPTS[:1] * 4))
    same, _ = sampler_of(ScriptedTensors(SCRIPTS[:1] * 4))
    other, _ = sampler_of(ScriptedTensors(SCRIPTS[:1] * 4), seed=1)
    actions = []
    for _ in range(3):
        rollouts = [sampler.collect(actor) for sampler in (one, same, other)]
        assert torch.equal(rollouts[0].actions, rollouts[1].actions)
        actions += [rollout.actions.clone() for rollout in rollouts]  # the sampler writes over them
    assert not torch.equal(actions[0], actions[2])
    assert not torch.equal(actions[0], actions[3])


def test_numbers_are_clipped_for_the_environment_and_kept_as_drawn() -> None:
    env = ScriptedTensors(SCRIPTS, action_space=Box(-0.25, 0.5, (2,)))
    sampler, actor = sampler_of(env, num_steps=32)
    rollout = sampler.collect(actor)
    taken = torch.stack(env.actions)
    assert torch.equal(taken, rollout.actions.clamp(-0.25, 0.5))
    assert not torch.equal(taken, rollout.actions)


def test_a_rollout_that_is_paused_goes_on_where_it_was() -> None:
    plain, actor = sampler_of(TorchCartPole(3), num_steps=16)
    expected = [plain.collect(actor) for _ in range(2)][1]

    class Stopping(TorchCartPole):
        stops_after = 21

        def step(self, actions: Any) -> Any:
            self.stops_after -= 1
            if self.stops_after == 0:
                sampler.request_stop()
            return super().step(actions)

    sampler, _ = sampler_of(Stopping(3), num_steps=16)
    sampler.collect(actor)
    sampler.sample_async(actor)
    with pytest.raises(Stopped):
        sampler.sample_wait()
    assert (sampler.is_paused, sampler.steps_sampled) == (True, (16 + 5) * 3)
    sampler._stop[0] = 0
    rollout = sampler.collect(actor)
    for name, tensor in expected.columns().items():
        assert torch.equal(rollout.columns()[name], tensor), name


# CartPole


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-5)])
def test_cartpole_steps_as_gymnasiums(dtype: torch.dtype, tolerance: float) -> None:
    num = 20
    ours = TorchCartPole(num, dtype=dtype)
    references: list[Any] = [gym.make("CartPole-v1").unwrapped for _ in range(num)]
    ours.reset(seed=7)
    generator, terminations = np.random.default_rng(3), 0
    for reference in references:
        reference.reset(seed=0)
    for _ in range(200):  # of 4,000 steps, each from the same state
        for reference, state in zip(references, ours.state.double().numpy().copy(), strict=True):
            reference.state, reference.steps_beyond_terminated = state, None
        actions = generator.integers(2, size=num)
        observations, rewards, terminated, _, infos = ours.step(torch.from_numpy(actions))
        steps = [reference.step(action)[:3] for reference, action in zip(references, actions, strict=True)]
        expected, reward, is_over = map(np.array, zip(*steps, strict=True))
        assert (terminated.tolist(), rewards.tolist()) == (is_over.tolist(), reward.tolist())
        np.testing.assert_allclose(infos["final_obs"].numpy(), expected, rtol=0, atol=max(tolerance, 1e-6))
        terminations += is_over.sum()
        assert (observations.numpy()[is_over] <= 0.05).all()
        assert (observations.numpy()[is_over] >= -0.05).all()
        states = np.array([reference.state for reference in references])[~is_over]
        np.testing.assert_allclose(ours.state.double().numpy()[~is_over], states, rtol=0, atol=tolerance)
    assert terminations > 100


def test_cartpole_is_truncated_and_goes_on_from_its_state() -> None:
    env = TorchCartPole(4, episode_length=5)
    starts = [env.reset(seed=1)[0]]
    assert len(starts[0].unique(dim=0)) == 4
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 16):
        observations, _, terminated, truncated, infos = env.step(torch.randint(2, (4,), generator=generator))
        assert not terminated.any()
        assert truncated.all() == (step % 5 == 0)
        assert torch.equal(observations, infos["final_obs"]) == (step % 5 != 0)
    other = TorchCartPole(4, episode_length=5)
    other.set_state({name: tensor.clone() for name, tensor in env.get_state().items()})
    for _ in range(12):
        actions = torch.randint(2, (4,), generator=generator)
        for one, two in zip(env.step(actions)[:4], other.step(actions)[:4], strict=True):
            assert torch.equal(one, two)


# What crosses


CONFIG = ppo_config(
    num_envs=4, num_steps=8, num_epochs=2, num_minibatches=2, hidden_sizes=(8,), fast_updates=False,
    normalize_observations=True, normalize_rewards=True,
)  # fmt: skip


@pytest.mark.parametrize("recurrent", [None, "lstm"])
def test_nothing_crosses_within_an_iteration(
    recurrent: Any, monkeypatch: pytest.MonkeyPatch, second_device: str
) -> None:
    found: dict[str, list[tuple[int, int]]] = {"filling": [], "reading": [], "learning": []}

    def counted(owner: Any, method: str, part: str) -> None:
        function = getattr(owner, method)

        def call(*arguments: Any) -> Any:
            with second.counted_crossings() as crossings:
                result = function(*arguments)
            found[part].append((len(crossings.to_host), len(crossings.to_device)))
            return result

        monkeypatch.setattr(owner, method, call)

    counted(TensorSampler, "_fill", "filling")
    counted(TensorSampler, "_read", "reading")
    counted(PPO, "update", "learning")
    config = ppo_config(**{**vars(CONFIG), "recurrent": recurrent, "sequence_length": 4, "recurrent_size": 4})
    hybridppo.train(
        TorchCartPole, total_steps=3 * 32, seed=0, config=config, placement=SingleDevice(second_device),
        env_kwargs={"device": second_device, "episode_length": 5}, progress=False,
    )  # fmt: skip
    assert found["filling"] == [(0, 0)] * 3
    assert found["reading"] == [(4, 0), (1, 0), (1, 0)]  # one tensor of numbers; once, what is checked of values
    # The update's own: its metrics, and the orders of all passes from the host, together. With a memory, sequences are
    # cut at episode starts on the host: those cross once, the order once an epoch, and places once a minibatch.
    epochs, minibatches = config.num_epochs, config.num_epochs * config.num_minibatches
    assert found["learning"] == [(1, 1) if recurrent is None else (2 + epochs, epochs + 3 * minibatches)] * 3


def test_a_crossing_is_seen_where_there_is_one(monkeypatch: pytest.MonkeyPatch, second_device: str) -> None:
    there = torch.ones(3, device=second_device)
    for cross, expected in (
        (lambda: there + 1.0, (0, 0)),
        (lambda: there.cpu(), (1, 0)),
        (lambda: bool((there > 0).any()), (1, 0)),
        (lambda: there.tolist(), (1, 0)),
        (lambda: torch.empty(3).copy_(there), (1, 0)),
        (lambda: torch.ones(3).to(second_device), (0, 1)),
        (lambda: there.copy_(torch.ones(3)), (0, 1)),
        (lambda: torch.equal(there, there), (1, 0)),
    ):
        with second.counted_crossings() as crossings:
            cross()
        assert (len(crossings.to_host), len(crossings.to_device)) == expected


PLACEMENTS = {
    "single": lambda there: SingleDevice(there),
    "mirrored on one": lambda there: Mirrored(there, there),
    "mirrored by force": lambda there: Mirrored(there, there, force_copy=True, verify=True),
    "learning on the host": lambda there: Mirrored(there, "cpu", force_copy=True),
    "migrating to the host": lambda there: hybridppo.Migrating(there, "cpu", force_copy=True),
}


def trained(placement: Any, device: str, config: PPOConfig = CONFIG, **options: Any) -> tuple[Any, list[Any]]:
    history: list[Any] = []
    arguments = {"total_steps": 4 * config.batch_size, **options}
    result = hybridppo.train(
        TorchCartPole, seed=3, config=config, placement=placement, progress=False, on_interrupt="return",
        env_kwargs={"device": device, "episode_length": 11},
        on_iteration=lambda m: history.append({k: m[k] for k in m if "second" not in k and k not in COUNTED}),
        **arguments,
    )  # fmt: skip
    return result, history


COUNTED = ("publishes", "bytes_copied")


@cache
def on_the_cpu() -> tuple[Any, list[Any]]:
    return trained(SingleDevice("cpu"), "cpu")


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_and_device_gives_the_same_bits(name: str, second_device: str) -> None:
    expected, expected_history = on_the_cpu()
    for device in ("cpu", second_device):
        placement = PLACEMENTS[name](device)
        result, history = trained(placement, device)
        assert result.agent.parameters.values.device == placement.learning_device
        np.testing.assert_equal(history, expected_history)
        for key, tensor in result.agent.state()[0].items():
            assert torch.equal(tensor.cpu(), expected.agent.state()[0][key]), key
    rollout_crosses = name in ("learning on the host", "migrating to the host")
    assert (placement.counters.bytes_copied > 4 * 8 * 4 * 4 * 4) == rollout_crosses or placement.counters.publishes > 0


def test_seeds_differ_and_one_repeats() -> None:
    one, other = trained("auto", "cpu")[1], trained("auto", "cpu")[1]
    np.testing.assert_equal(one, other)
    history: list[Any] = []
    hybridppo.train(
        TorchCartPole, seed=4, config=CONFIG, total_steps=4 * 32, progress=False, env_kwargs={"episode_length": 11},
        on_iteration=history.append,
    )  # fmt: skip
    assert history[-1]["value_loss"] != one[-1]["value_loss"]
