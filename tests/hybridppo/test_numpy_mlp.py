"""The NumPy actor against the torch network whose parameters it has."""

import numpy as np
import pytest
import torch

from hybridppo.acting import TorchActor, sampling_actor
from hybridppo.distributions import Categorical, DiagonalGaussian
from hybridppo.networks import MLP, Activation, GaussianActor, is_plain_mlp
from hybridppo.numpy_mlp import NumpyActor
from hybridppo.placement import Counters, Crossing

CROSSING = Crossing(torch.device("cpu"), Counters())


def make_network(hidden: tuple[int, ...], activation: Activation, gaussian: bool) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    mlp = MLP(5, hidden, 3, activation=activation, output_gain=1.0, generator=generator)
    for parameter in mlp.parameters():  # biases too
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return GaussianActor(mlp, 3, initial_log_std=-0.5) if gaussian else mlp


def some_observations(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 5)).astype(np.float32)


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(7,), (64, 64), (33, 16, 8)])
def test_numpy_gives_what_torch_gives(hidden: tuple[int, ...], activation: Activation, gaussian: bool) -> None:
    network = make_network(hidden, activation, gaussian)
    actor = sampling_actor(network, CROSSING, version=3)
    assert isinstance(actor, NumpyActor)
    assert actor.version == 3
    for count in (1, 8, 9, 70, 8):  # also back to a size seen before
        observations = some_observations(count)
        expected = TorchActor(network, CROSSING)(observations)
        np.testing.assert_allclose(actor(observations), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distribution", [Categorical(3), DiagonalGaussian(np.full(3, -1.0), np.full(3, 1.0))])
def test_both_forms_choose_the_same_actions_for_the_same_noise(distribution: Categorical | DiagonalGaussian) -> None:
    network = make_network((64, 64), "tanh", isinstance(distribution, DiagonalGaussian))
    observations = some_observations(500)
    noise = distribution.draw_noise(np.random.default_rng(1), (500,))
    by_numpy = distribution.sample(sampling_actor(network, CROSSING, 0)(observations), noise)
    by_torch = distribution.sample(TorchActor(network, CROSSING)(observations), noise)
    np.testing.assert_allclose(by_numpy, by_torch, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [33, 64, 256])
@pytest.mark.parametrize("gaussian", [False, True])
def test_what_comes_out_does_not_depend_on_how_many_come_in(width: int, gaussian: bool) -> None:
    network = make_network((width, width), "tanh", gaussian)
    observations = some_observations(67)
    together = np.array(sampling_actor(network, CROSSING, 0)(observations))
    for count in (1, 2, 3, 4, 7, 8, 9, 16, 20, 33):
        actor = sampling_actor(network, CROSSING, 0)
        parts = [np.array(actor(observations[i : i + count])) for i in range(0, 67, count)]
        assert np.array_equal(np.concatenate(parts), together), f"in parts of {count}"


def test_parameters_are_those_of_the_moment_it_was_made() -> None:
    network = make_network((8,), "tanh", gaussian=False)
    actor = sampling_actor(network, CROSSING, 0)
    before = np.array(actor(some_observations(4)))
    with torch.no_grad():
        next(network.parameters()).add_(1.0)
    assert np.array_equal(actor(some_observations(4)), before)
    assert not np.allclose(sampling_actor(network, CROSSING, 1)(some_observations(4)), before)


def test_other_networks_take_the_general_form() -> None:
    elu = make_network((8,), "elu", gaussian=False)
    linear = make_network((), "tanh", gaussian=False)
    hooked = make_network((8,), "tanh", gaussian=False)
    hooked.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    for network in (elu, linear, hooked, torch.nn.Linear(5, 3)):
        assert not is_plain_mlp(network)
        assert isinstance(sampling_actor(network, CROSSING, 0), TorchActor)
