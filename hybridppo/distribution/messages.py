"""What travels by Ray: what is small, as bytes. Free of torch.

Ray looks into every value for what of its own may lie in it. For the parts of a small rollout that takes as long as all
else about a call (of 40 KB out and 60 KB back to each of two, 3.8 ms in all, and 1.6 as bytes). What is larger it puts
into its store, where a copy less of it is made as it is.
"""

import pickle
from typing import Any

MOST_BYTES = 96 * 2**10
"""Up to which a value counts as small. Ray carries up to 100 KiB in the call itself (`max_direct_call_object_size`)."""


def packed(value: Any, size: int) -> Any:
    """The value in bytes; or as it is, where it has more than `MOST_BYTES` of them.

    Args:
        value: which `pickle` knows.
        size: of its arrays, in bytes.
    """
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if size <= MOST_BYTES else value


def unpacked(message: Any) -> Any:
    """What was packed."""
    return pickle.loads(message) if isinstance(message, bytes) else message
