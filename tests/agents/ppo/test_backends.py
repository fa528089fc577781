"""The gradient written out by hand against autograd."""

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from loops import loop_of
from ppo_settings import ppo_config

from hybridppo import ConfigurationError, DeviceError
from hybridppo.agents import PPO, PPOConfig
from hybridppo.agents.agent import OptimizationLoop
from hybridppo.agents.ppo import by_numba
from hybridppo.agents.ppo.batch import Batch
from hybridppo.agents.ppo.by_autograd import Backend
from hybridppo.agents.ppo.by_numba import CompiledBackend
from hybridppo.agents.ppo.by_numpy import NumpyBackend
from hybridppo.agents.ppo.loss import STATISTICS
from hybridppo.compiled import perceptrons
from hybridppo.distributions.state_dependent import StateDependentGaussian
from hybridppo.networks.actors import Network
from hybridppo.networks.modes import require, supports_bf16
from hybridppo.spaces.masks import MaskedObservation
from hybridppo.system.threads import limit_threads

BOX = gym.spaces.Box(-np.inf, np.inf, (4,))
DISCRETE = gym.spaces.Discrete(3)
CONTINUOUS = gym.spaces.Box(-1.0, 1.0, (2,))
MASKED = MaskedObservation(BOX, 3)


def make_agent(action_space: gym.Space, config: PPOConfig, observation_space: gym.Space = BOX) -> PPO:
    agent = PPO(observation_space, action_space, config, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # away from the start, where every action is as likely as every other
        agent.parameters.values.add_(0.3 * torch.randn(agent.parameters.values.shape, generator=generator))
    return agent


def make_batch(agent: PPO, size: int) -> Batch:
    """A batch whose ratios lie inside and outside of the clip range, for advantages of both signs."""
    generator = torch.Generator().manual_seed(3)
    observations = torch.randn(size, 4, generator=generator)
    if isinstance(agent.actor, Network) and agent.actor.mask_size:
        masks = torch.randint(0, 2, (size, 3), generator=generator)
        masks[range(size), torch.randint(0, 3, (size,), generator=generator)] = 1
        observations = torch.cat((observations, masks), dim=1)
    with torch.no_grad():
        outputs = agent.actor(observations)
        noise = agent.distribution.draw_noise(np.random.default_rng(4), (size,))
        if isinstance(agent.distribution, StateDependentGaussian):  # what a matrix would have added
            noise = outputs[:, 2:].exp().numpy() * np.random.default_rng(4).standard_normal((size, 2), np.float32)
        actions = torch.from_numpy(agent.distribution.sample(outputs.numpy(), noise))
        log_prob, _ = agent.distribution.log_prob_and_entropy(outputs, actions)
        values = agent.critic(observations).squeeze(-1)
    return Batch(
        observations=observations,
        actions=actions,
        log_probs=log_prob + 0.3 * torch.randn(size, generator=generator),
        values=values + 0.3 * torch.randn(size, generator=generator),
        advantages=torch.randn(size, generator=generator),
        returns=values + torch.randn(size, generator=generator),
    )


def one_step(loop: OptimizationLoop, batch: Batch) -> torch.Tensor:
    """A step on the whole batch, with its rows in the opposite order."""
    orders, sizes = torch.arange(len(batch)).flip(0)[None], [len(batch)]
    (epoch,) = batch.epochs(orders, sizes, loop._agent.config.normalize_advantage)
    (statistics,) = loop.epoch(epoch, sizes, 0.2)
    return statistics


VARIANTS = {
    "defaults": {},
    "relu": {"activation": "relu"},
    "no entropy bonus": {"entropy_coef": 0.0},
    "values not clipped": {"clip_range_vf": None},
    "advantages as they are": {"normalize_advantage": False},
    "one hidden layer": {"hidden_sizes": (16,)},
    "three hidden layers": {"hidden_sizes": (16, 24, 8)},
    "unlike sizes": {"hidden_sizes": (16, 24), "critic_hidden_sizes": (40, 8)},
    "unlike depths": {"hidden_sizes": (16,), "critic_hidden_sizes": (24, 8)},
    "gradient never scaled": {"max_grad_norm": 1e6},
    "gradient without limit": {"max_grad_norm": None},
    "gradient always scaled": {"max_grad_norm": 1e-3},
}


KINDS: dict[str, Any] = {
    "discrete": (DISCRETE, BOX),
    "continuous": (CONTINUOUS, BOX),
    "masked": (DISCRETE, MASKED),
    "choices": (gym.spaces.MultiDiscrete([3, 2, 2]), BOX),
    "both": (gym.spaces.Tuple((CONTINUOUS, DISCRETE, gym.spaces.MultiDiscrete([2, 4]), CONTINUOUS)), BOX),
    "state-dependent": (CONTINUOUS, BOX, {"use_sde": True, "log_std_init": -1.0}),
}
compiled = pytest.mark.extras
"""What needs Numba."""
COMPILED = pytest.param(CompiledBackend, marks=compiled)
BY_HAND = (NumpyBackend, COMPILED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("form", BY_HAND)
def test_by_hand_is_autograd(form: type, kind: str, variant: str) -> None:
    space, observed, *more = KINDS[kind]
    if (more or variant == "unlike depths") and form is not NumpyBackend:
        return  # which has no compiled form
    config = replace(ppo_config(learning_rate=1e-2), **VARIANTS[variant], **dict(*more))
    reference, agent = make_agent(space, config, observed), make_agent(space, config, observed)
    by_autograd, by_hand = loop_of(reference), loop_of(agent, form)
    batch = make_batch(agent, 200)
    for part in (*batch.split([77, 123]), batch):
        expected, found = one_step(by_autograd, part), one_step(by_hand, part)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(agent.parameters.gradient, reference.parameters.gradient, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(agent.parameters.values, reference.parameters.values, rtol=0.0, atol=1e-3)
        assert 0.1 < expected[STATISTICS.index("clip_fraction")] < 0.97  # both sides of the clip range were tried
        # From the same point again: a sample at the very edge of a clip range must not make the paths part.
        agent.parameters.values.data.copy_(reference.parameters.values.data)


@pytest.mark.parametrize("form", [Backend, *BY_HAND])
def test_a_module_that_the_loss_does_not_know_stays_as_it_is(form: type) -> None:
    agent = PPO(BOX, DISCRETE, ppo_config(), modules={"module": torch.nn.Linear(4, 1)})
    agent.optimize(lambda rows: agent.modules_of["module"](rows).sum(), {"rows": torch.ones(4, 4)}, networks=["module"])
    before = agent.parameters.of("module").clone()
    one_step(loop_of(agent, form), make_batch(agent, 20))
    assert torch.equal(agent.parameters.of("module"), before)


@pytest.mark.parametrize("form", [Backend, *BY_HAND])
def test_small_advantages_are_normalised_to_the_same(form: type) -> None:
    """The term that keeps the deviation above 0 must not change the real rewards noticeably."""
    found = []
    for scale in (1.0, 1e-4):
        agent = make_agent(DISCRETE, ppo_config(max_grad_norm=1e6))
        batch = make_batch(agent, 200)
        statistics = one_step(loop_of(agent, form), batch.with_columns(advantages=scale * batch.advantages))
        found.append((statistics, agent.parameters.gradient.clone()))
    for large, small in zip(*found, strict=True):
        torch.testing.assert_close(small, large, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("form", [Backend, *BY_HAND])
def test_a_gradient_of_next_to_nothing_is_neither_scaled_nor_turned_round(form: type) -> None:
    config = ppo_config(value_coef=1e-9, entropy_coef=0.0, normalize_advantage=False, clip_range_vf=None)
    agent, steep = (
        make_agent(DISCRETE, config),
        make_agent(DISCRETE, replace(config, value_coef=1.0, max_grad_norm=1e6)),
    )
    batch = make_batch(agent, 200)
    batch = batch.with_columns(advantages=torch.zeros_like(batch.advantages))
    norm = one_step(loop_of(agent, form), batch)[STATISTICS.index("grad_norm")]
    assert 0.0 < norm < 1e-7
    one_step(loop_of(steep, form), batch)
    torch.testing.assert_close(1e9 * agent.parameters.gradient, steep.parameters.gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("form", [Backend, *BY_HAND])
def test_an_epoch_is_a_step_on_each_minibatch_in_order(space: gym.Space, form: type) -> None:
    whole, single = make_agent(space, ppo_config()), make_agent(space, ppo_config())
    batch = make_batch(whole, 50)
    order = np.random.default_rng(5).permutation(50)
    found = loop_of(whole, form).epoch(batch.gather(torch.as_tensor(order)), [20, 13, 17], 0.2)
    steps = loop_of(single, form)
    for row, rows in zip(found, np.split(order, [20, 33]), strict=True):
        (expected,) = steps.epoch(batch.gather(torch.from_numpy(rows)), [len(rows)], 0.2)
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole.parameters.values, single.parameters.values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("form", "width"), [(NumpyBackend, 4096), pytest.param(CompiledBackend, 300, marks=compiled)])
def test_blocks_of_a_large_minibatch_add_up(form: type, width: int) -> None:
    config = ppo_config(hidden_sizes=(width,))  # wide, so that few rows make a block
    results = []
    for each in (Backend, form):
        agent = make_agent(DISCRETE, config)
        statistics = one_step(loop_of(agent, each), make_batch(agent, 150))
        results.append((statistics, agent.parameters.gradient.clone()))
    for by_autograd, by_hand in zip(*results, strict=True):
        torch.testing.assert_close(by_hand, by_autograd, rtol=2e-3, atol=2e-5)


needs_bf16 = pytest.mark.skipif(not supports_bf16(torch.device("cpu")), reason="no bfloat16 on this processor")


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_threads_share_the_blocks_of_a_large_minibatch_and_change_no_bit(space: gym.Space) -> None:
    config = ppo_config(hidden_sizes=(2048, 32), num_envs=8, num_steps=64, num_minibatches=2)  # blocks of 64 rows

    def learned(num_threads: int) -> list[torch.Tensor]:
        agent = make_agent(space, config)
        batch, order = make_batch(agent, 300), np.random.default_rng(5).permutation(300)
        loop = loop_of(agent, NumpyBackend)
        with limit_threads(num_threads), loop.backend.updating():
            assert torch.get_num_threads() == 1
            values = loop.backend.values(batch.observations)
            statistics = loop.epoch(
                batch.gather(torch.as_tensor(order)), [201, 65, 34], 0.2
            )  # of 4 blocks, of 2, and of one
        assert len(loop.backend._passes) == num_threads
        return [values, statistics, agent.parameters.values.detach().clone()]

    expected = learned(1)
    for num_threads in (2, 3):
        assert all(map(torch.equal, learned(num_threads), expected))


def test_an_error_of_a_thread_is_raised_when_all_have_ended() -> None:
    config = ppo_config(hidden_sizes=(2048,), num_envs=8, num_steps=64, num_minibatches=2)
    agent = make_agent(DISCRETE, config)
    steps, ended = NumpyBackend(agent), threading.Event()

    def work(number: int) -> None:
        if number == 1:
            raise ValueError("in a thread")
        if number == 2:
            assert not ended.wait(0.05)
            ended.set()

    with limit_threads(3), steps.updating(), pytest.raises(ValueError, match="in a thread"):
        steps._side_by_side(work, 3)
    assert ended.is_set()


@pytest.mark.parametrize("form", BY_HAND)
def test_values_are_the_critics(form: type) -> None:
    agent = make_agent(DISCRETE, ppo_config())
    observations = make_batch(agent, 1000).observations
    by_hand = form(agent).values(observations)
    torch.testing.assert_close(by_hand, Backend(agent).values(observations), rtol=1e-4, atol=1e-5)


def test_which_networks_are_done_by_hand() -> None:
    agent = make_agent(DISCRETE, ppo_config())
    assert NumpyBackend.supports(agent)
    assert not NumpyBackend.supports(make_agent(DISCRETE, ppo_config(activation="elu")))
    for sizes, has_compiled_form in (((32, 32), True), ((32,), False), ((), False)):
        agent = make_agent(DISCRETE, ppo_config(critic_hidden_sizes=sizes))
        assert NumpyBackend.supports(agent) == bool(sizes)
        assert CompiledBackend.supports(agent) == has_compiled_form
    agent.critic = torch.nn.Linear(4, 1)
    assert not NumpyBackend.supports(agent)


@compiled
def test_compiled_is_what_was_asked_for_and_no_other() -> None:
    asked = ppo_config(compiled_updates=True)
    assert CompiledBackend.supports(make_agent(DISCRETE, asked))
    assert isinstance(make_agent(DISCRETE, asked).loop().backend, CompiledBackend)
    for space, config in (
        (DISCRETE, ppo_config()),
        (DISCRETE, replace(asked, activation="silu")),
        (DISCRETE, replace(asked, fast_updates=False)),
        (DISCRETE, replace(asked, pool_size=2)),
        (CONTINUOUS, replace(asked, squash_actions=True)),
        (DISCRETE, replace(asked, recurrent="gru")),
    ):
        assert not isinstance(make_agent(space, config).loop().backend, CompiledBackend)


@compiled
def test_compiled_networks_see_the_first_numbers() -> None:
    """Elsewhere, for example if a critic sees all agents, NumPy's gradient is that of the loss."""
    space = gym.spaces.Dict(a=BOX, b=BOX)
    for actor_keys, critic_keys, kind in (
        (("a",), ("a", "b"), CompiledBackend),
        (("b",), ("a", "b"), NumpyBackend),
        (("a", "b"), ("b",), NumpyBackend),
    ):
        config = ppo_config(compiled_updates=True, actor_keys=actor_keys, critic_keys=critic_keys)
        assert type(make_agent(DISCRETE, config, space).loop().backend) is kind


def test_compiled_without_a_compiler_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridppo.compiled.modules.has_numba", lambda: False)
    agent = make_agent(DISCRETE, ppo_config(compiled_updates=True))
    with pytest.raises(ConfigurationError, match=r"compiled_updates=True needs Numba.*pip install '\.\[compiled"):
        agent.loop()


@compiled
@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.slow
def test_compiled_bits_depend_on_neither_tiles_nor_blocks_nor_calls(
    space: gym.Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ppo_config(hidden_sizes=(40, 24), compiled_updates=True)

    def steps() -> list[np.ndarray]:
        agent = make_agent(space, config)
        batch = make_batch(agent, 203)
        order = np.random.default_rng(5).permutation(203)
        statistics = loop_of(agent, CompiledBackend).epoch(batch.gather(torch.as_tensor(order)), [70, 63, 70], 0.2)
        return [
            statistics.numpy(),
            agent.parameters.values.detach().numpy(),
            agent.state()[0]["optimizer.step"].numpy(),
        ]

    expected = steps()
    assert expected[-1] == 3.0
    for module, name, value in (
        (by_numba, "BLOCK_BYTES", 1),
        (by_numba, "PRODUCTS_OF_A_CALL", 1),
        (perceptrons, "tiles_for", lambda features: (8, 16)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            for found, wanted in zip(steps(), expected, strict=True):
                np.testing.assert_array_equal(found, wanted, err_msg=name)


@compiled
@pytest.mark.parametrize("fails", [0, 1])
def test_a_network_whose_thread_fails_keeps_no_other_waiting(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(DISCRETE, ppo_config())
    loop, batch = loop_of(agent, CompiledBackend), make_batch(agent, 64)
    steps: Any = loop.backend
    take_steps = steps._module.take_steps

    def fails_for_one(*arguments: Any) -> None:
        if arguments[3] == fails:  # whose network it is
            raise MemoryError("no room")
        take_steps(*arguments)

    monkeypatch.setattr(steps, "_module", SimpleNamespace(take_steps=fails_for_one))
    with limit_threads(2), steps.updating(), pytest.raises(MemoryError, match="no room"):
        loop.epoch(batch, [32, 32], 0.2)


@compiled
def test_values_of_many_rows_are_those_of_one_thread() -> None:
    agent = make_agent(DISCRETE, ppo_config())
    rows = make_batch(agent, 1001).observations

    def values(num_threads: int) -> torch.Tensor:
        steps = CompiledBackend(agent)
        with limit_threads(num_threads), steps.updating():
            return steps.values(rows)

    assert all(torch.equal(values(num_threads), values(1)) for num_threads in (2, 3))


@compiled
@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_threads_share_a_minibatch_and_end_at_the_same_bits_each_time(space: gym.Space) -> None:
    def steps(num_threads: int, form: type = CompiledBackend) -> tuple[torch.Tensor, torch.Tensor]:
        agent = make_agent(space, ppo_config())
        batch, order = make_batch(agent, 203), np.random.default_rng(5).permutation(203)
        loop = loop_of(agent, form)
        before = torch.get_num_threads()
        torch.set_num_threads(num_threads)
        try:
            with loop.backend.updating():
                # A minibatch of fewer rows than there are threads among them.
                statistics = loop.epoch(batch.gather(torch.as_tensor(order)), [100, 101, 2], 0.2)
        finally:
            torch.set_num_threads(before)
        return statistics, agent.parameters.values.detach().clone()

    expected = steps(1, Backend)
    for num_threads in (1, 2, 3):
        found = steps(num_threads)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        assert all(map(torch.equal, steps(num_threads), found))
    # Two have a network each, to the bits of one; more have shares of a minibatch, which is another rounding.
    assert all(map(torch.equal, steps(2), steps(1)))
    assert not torch.equal(steps(3)[1], steps(1)[1])


@compiled
def test_a_step_that_is_not_finite_is_told_from_others() -> None:
    """The quotient that replaces tanh has bounds, which must not hide NaN."""
    agent = make_agent(DISCRETE, ppo_config())
    batch = make_batch(agent, 50)
    for name in ("observations", "returns", "log_probs"):
        spoiled = getattr(batch, name).clone()
        spoiled.view(-1)[0] = np.nan
        statistics = one_step(loop_of(agent, CompiledBackend), batch.with_columns(**{name: spoiled}))
        assert not torch.isfinite(statistics).all()
        assert not torch.isfinite(agent.parameters.values).all()
        agent = make_agent(DISCRETE, ppo_config())


@needs_bf16
@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_bf16_rounds_products_and_nothing_that_lasts(space: gym.Space) -> None:
    gradients = []
    for precision in ("fp32", "bf16"):
        agent = make_agent(space, ppo_config(precision=precision, max_grad_norm=1e6))
        assert NumpyBackend.supports(agent) == (precision == "fp32")
        one_step(loop_of(agent, Backend), make_batch(agent, 500))
        assert {tensor.dtype for tensor in agent.state()[0].values()} == {torch.float32}
        gradients.append(agent.parameters.gradient.double())
    exact, rounded = gradients
    error = (rounded - exact).norm() / exact.norm()
    assert 1e-5 < error < 0.1  # eight bits: 0.4 % a product


def test_bf16_is_refused_where_it_would_be_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    require("fp32", torch.device("cpu"))
    with pytest.raises(
        DeviceError, match="'bf16' was asked for, but cpu has no AVX512-BF16 or AMX: use precision='fp32'"
    ):
        require("bf16", torch.device("cpu"))
