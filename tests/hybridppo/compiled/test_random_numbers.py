"""Random numbers by counting."""

import numpy as np

from hybridppo.compiled.random_numbers import begin, integers, normal, uniform
from hybridppo.distributions.base import philox

# The published answers of Random123's kat_vectors for philox4x32-10.
KNOWN = [
    ((0, 0, 0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 6, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0, 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def numbers(seed: int) -> np.ndarray:
    random = np.zeros(4, np.int64)
    begin(random, seed)
    return random


def test_philox_gives_the_published_answers() -> None:
    for arguments, answer in KNOWN:
        assert philox(*arguments) == answer


def test_draws_are_uniform_and_normal() -> None:
    random = numbers(2**40 + 3)
    drawn = np.array([uniform(random, -1.0, 3.0) for _ in range(4000)])
    assert -1.0 <= drawn.min() < -0.98
    assert 2.98 < drawn.max() < 3.0
    assert abs(drawn.mean() - 1.0) < 0.08
    assert random[3] == 4000
    gaussian = np.array([normal(random) for _ in range(4000)])
    assert abs(gaussian.mean()) < 0.06
    assert abs(gaussian.std() - 1.0) < 0.05
    counts = np.bincount([integers(random, 4) for _ in range(4000)], minlength=4)
    assert counts.sum() == 4000
    assert counts.min() > 850


def test_seeds_episodes_and_draws_differ() -> None:
    seen = set()
    for seed in (0, 1, 2**32):
        for episode in range(3):
            random = numbers(seed)
            random[2] = episode
            seen |= {uniform(random, 0.0, 1.0) for _ in range(5)}
    assert len(seen) == 45
