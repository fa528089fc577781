"""Random words that follow from a key and a counter alone: they depend on neither the device nor the number of words.

Source: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from typing import Any


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
