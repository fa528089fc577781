"""The NumPy actor against the torch network that has the same parameters."""

import numpy as np
import pytest
import torch
from torch.nn.utils.parametrizations import spectral_norm

from hybridppo.distributions.categorical import Categorical
from hybridppo.distributions.gaussian import DiagonalGaussian
from hybridppo.networks import numpy_actors
from hybridppo.networks.actors import Network, twin_of
from hybridppo.networks.layers import MLP, Activation, EmptyLinear
from hybridppo.networks.numpy_actors import FORBIDDEN, NumpyActor
from hybridppo.placements.crossing import Counters, Crossing, TorchActor, sampling_actor

CROSSING = Crossing(torch.device("cpu"), Counters())


def make_network(hidden: tuple[int, ...], activation: Activation, gaussian: bool, mask_size: int = 0) -> Network:
    generator = torch.Generator().manual_seed(0)
    body = MLP(5, hidden, activation=activation, generator=generator)
    head = EmptyLinear((5, *hidden)[-1], 3)
    for parameter in (*body.parameters(), *head.parameters()):  # biases too
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return Network(body, head, mask_size=mask_size, log_std=torch.full((3,), -0.5) if gaussian else None)


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


@pytest.mark.parametrize("count", [1, 8, 70])
def test_numpy_masks_what_torch_masks(count: int) -> None:
    network = make_network((16, 16), "tanh", gaussian=False, mask_size=3)
    observations = some_observations(count)
    observations[:, -3:] = np.random.default_rng(1).integers(0, 2, (count, 3))
    actor = sampling_actor(network, CROSSING, version=3)
    assert isinstance(actor, NumpyActor)
    found = actor(observations)
    np.testing.assert_allclose(found, TorchActor(network, CROSSING)(observations), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found == FORBIDDEN, observations[:, -3:] == 0)


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


@pytest.mark.parametrize("sizes", [(64, 64), (256,), (33, 16)])
def test_products_of_all_observations_give_the_bits_of_those_in_chunks(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = make_network(sizes, "tanh", gaussian=False)
    counts = (8, 9, 16, 40, 64)
    by_finding_out = [np.array(sampling_actor(network, CROSSING, 0)(some_observations(count))) for count in counts]
    monkeypatch.setattr(numpy_actors, "_rounds_alike", lambda sizes, num_columns: False)
    in_chunks = [np.array(sampling_actor(network, CROSSING, 0)(some_observations(count))) for count in counts]
    for found, chunked in zip(by_finding_out, in_chunks, strict=True):
        assert np.array_equal(found, chunked)


def test_a_shape_that_rounds_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (5, 7, 3)
    numpy_actors._rounds_alike.cache_clear()
    assert numpy_actors._rounds_alike(sizes, 8)
    lay_out = NumpyActor._lay_out

    def worse_when_wide(actor: NumpyActor, num_rows: int, width: int) -> None:
        lay_out(actor, num_rows, width)
        if width > 8:  # a unit in the last place, as another order of summation would give
            actor._head = np.nextafter(actor._head, np.float32(2.0))

    monkeypatch.setattr(NumpyActor, "_lay_out", worse_when_wide)
    assert not numpy_actors._rounds_alike(sizes, 24)
    numpy_actors._rounds_alike.cache_clear()


def test_parameters_are_those_of_the_moment_it_was_made() -> None:
    network = make_network((8,), "tanh", gaussian=False)
    actor = sampling_actor(network, CROSSING, 0)
    before = np.array(actor(some_observations(4)))
    with torch.no_grad():
        next(network.parameters()).add_(1.0)
    assert np.array_equal(actor(some_observations(4)), before)
    assert not np.allclose(sampling_actor(network, CROSSING, 1)(some_observations(4)), before)


class Doubled(torch.nn.Linear):
    """A user's own layer."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(inputs)


def test_other_networks_take_the_general_form() -> None:
    elu = make_network((8,), "elu", gaussian=False)
    linear = make_network((), "tanh", gaussian=False)
    hooked = make_network((8,), "tanh", gaussian=False)
    hooked.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    doubled, normalised, unbiased = (make_network((8,), "tanh", gaussian=True) for _ in range(3))
    unbiased.body[0] = torch.nn.Linear(5, 8, bias=False)
    doubled.body[0].__class__ = Doubled
    spectral_norm(normalised.head)
    for network in (elu, linear, hooked, doubled, normalised, unbiased, torch.nn.Linear(5, 3)):
        assert twin_of(network) is None
        assert isinstance(sampling_actor(network, CROSSING, 0), TorchActor)
