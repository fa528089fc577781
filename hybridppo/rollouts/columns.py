"""The base of everything that holds columns: rollouts, their buffers, batches and transitions.

Workers use this file without torch.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound="Columns")


class Columns:
    """Tensors or arrays by name: the public attributes of an object that have a shape."""

    def columns(self) -> dict[str, Any]:
        """The columns by name."""
        return {name: value for name, value in vars(self).items() if hasattr(value, "shape") and name[0] != "_"}

    def with_columns(self: Kind, **columns: Any) -> Kind:
        """The same with other or further columns."""
        kept = {name: value for name, value in vars(self).items() if name[0] != "_"}
        return type(self)(**{**kept, **columns})

    def map(self: Kind, function: Callable[[Any], Any]) -> Kind:
        """The same with `function` applied to each column."""
        return self.with_columns(**{name: function(column) for name, column in self.columns().items()})

    @property
    def num_bytes(self) -> int:
        """The size of all columns together."""
        return sum(int(column.nbytes) for column in self.columns().values())
