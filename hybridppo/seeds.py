"""Random numbers have owners, and each owner a seed of its own."""

import numpy as np


def seed_of(seed: int, owner: str) -> int:
    """The seed of an owner, from that of the run: far apart also where seeds are neighbours."""
    return int(np.random.SeedSequence([seed, *owner.encode()]).generate_state(1)[0] >> 1)


def fresh_seed() -> int:
    """A seed from the operating system."""
    return int(np.random.SeedSequence().generate_state(1)[0])
