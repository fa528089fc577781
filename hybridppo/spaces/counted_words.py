"""Random words by counting, as tensors on any device.

A word follows from a key and four numbers that say what it is for, and from nothing else: not from the device, nor from
how many words are made at once. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), the
same as in `hybridppo/compiled/random_numbers.py`.
"""

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
ROUNDS = 10


def philox(key: tuple[int, int], a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words of 32 bits from counters of four, as int64 tensors of one shape or that broadcast to one."""
    low, high = key
    for _ in range(ROUNDS):
        # The product of two words may exceed what 64 bits with a sign hold: it wraps, and the masks take its bits.
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, c = ((right >> 32) & MASK) ^ b ^ low, ((left >> 32) & MASK) ^ d ^ high
        b, d = right & MASK, left & MASK
        low, high = (low + 0x9E3779B9) & MASK, (high + 0xBB67AE85) & MASK
    return a, b, c, d


def words(
    key: tuple[int, int], block: int, *, num_steps: int, num_envs: int, num_words: int, device: torch.device, first: int
) -> Tensor:
    """A block of random words, `[num_steps, num_envs, num_words]` of int64, each from 0 to `2**32 - 1`.

    Args:
        key: two words.
        block: the number of the block.
        num_steps: rows; a row's words do not depend on how many there are.
        num_envs: columns, likewise.
        num_words: in each; likewise.
        device: where they are made.
        first: the number of the first column.
    """

    def count(size: int, start: int = 0) -> Tensor:
        return torch.arange(start, start + size, device=device)

    steps, envs, groups = count(num_steps)[:, None, None], count(num_envs, first)[:, None], count(-(-num_words // 4))
    four = philox(key, groups, envs, steps, torch.full_like(groups, block & MASK))
    # Four of [T, N, groups], which the rounds have made of all counters -> [T, N, 4 * groups]
    return torch.stack(four, -1).flatten(-2)[..., :num_words]
