"""From arguments to a command: what the flags of options cannot say by their types alone."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import tyro

_JSON = dict[str, Any] | None
"""Options of this type are an object of JSON on the command line."""


def parse(kind: Any, *, arguments: Sequence[str] | None = None, **options: Any) -> Any:
    """An object of `kind` from the command line; `options` as for `tyro.cli`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def _object_of_json(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type != _JSON:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="JSON",
            instance_from_str=_object_in,
            is_instance=lambda value: value is None or isinstance(value, dict),
            str_from_instance=lambda value: [json.dumps(value)],
        )

    return tyro.cli(
        kind,
        args=[_with_plural(argument) for argument in arguments],
        config=(tyro.conf.OmitArgPrefixes,),
        registry=registry,
        **options,
    )


def _with_plural(argument: str) -> str:
    """`--import my_envs` is `--imports my_envs`: Python's word cannot be a field's name."""
    flag, equals, value = argument.partition("=")
    return f"--imports{equals}{value}" if flag == "--import" else argument


def _object_in(texts: list[str]) -> dict[str, Any] | None:
    try:
        found = json.loads(texts[0])
    except ValueError as error:
        raise ValueError(f"no JSON: {error}; write it as '{{\"size\": 8}}'") from None
    if not (found is None or isinstance(found, dict)):
        raise ValueError("no object of JSON; write it as '{\"size\": 8}'")
    return found
