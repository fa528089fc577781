"""The type of the arrays of all parts."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
