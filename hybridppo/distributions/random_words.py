"""Random words that follow from a key and a counter alone: they depend on neither the device nor the number of words.

Source: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def philox(key_low: Any, key_high: Any, a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    """Four words of 32 bits from a counter of four, `a` to `d`, and a key of two.

    Words are integers of Python or Numba, or arrays or tensors of int64 whose shapes broadcast.
    """
    for _ in range(10):
        # The product of two words may exceed a signed 64-bit integer: it wraps, and the masks take its bits.
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, c = ((right >> 32) & 0xFFFFFFFF) ^ b ^ key_low, ((left >> 32) & 0xFFFFFFFF) ^ d ^ key_high
        b, d = right & 0xFFFFFFFF, left & 0xFFFFFFFF
        key_low, key_high = (key_low + 0x9E3779B9) & 0xFFFFFFFF, (key_high + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def words(
    key: tuple[int, int], block: int, *, num_steps: int, num_envs: int, num_words: int, device: torch.device, first: int
) -> Tensor:
    """A block of random words, `[num_steps, num_envs, num_words]` of int64, each from 0 to `2**32 - 1`.

    A word does not depend on the size of the block.

    Args:
        key: two words.
        block: number of the block.
        num_steps: number of rows.
        num_envs: number of columns.
        num_words: words for each row and column.
        device: where they are made.
        first: number of the first column.
    """
    import torch

    def count(size: int, start: int = 0) -> Tensor:
        return torch.arange(start, start + size, device=device)

    steps, envs, groups = count(num_steps)[:, None, None], count(num_envs, first)[:, None], count(-(-num_words // 4))
    four = philox(*key, groups, envs, steps, torch.full_like(groups, block & 0xFFFFFFFF))
    # four words of [T, N, groups] -> [T, N, 4 * groups]
    return torch.stack(four, -1).flatten(-2)[..., :num_words]
