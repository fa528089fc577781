"""From arguments to a command: what the flags of options cannot say by their types alone."""

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import tyro

from hybridppo.commands import colours
from hybridppo.commands.exits import EXIT_USAGE
from hybridppo.environments.options import Vectorization
from hybridppo.names import OF_CONFIGS, OF_TRAIN
from hybridppo.runs.options import GROUPS, fields_of

_JSON = dict[str, Any] | None
"""Options of this type are an object of JSON on the command line."""
_VECTORIZATION: Any = Vectorization


def parse(kind: Any, *, arguments: Sequence[str] | None = None, **options: Any) -> Any:
    """An object of `kind` from the command line; `options` as for `tyro.cli`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    tyro._experimental_options["ansi_codes"] = colours.are_wanted()  # it would look at stdout alone
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
            str_from_instance=lambda value: [json.dumps(value, allow_nan=False)],
        )

    @registry.primitive_rule
    def _vectorization(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type != _VECTORIZATION:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar=f"{{{','.join(get_args(_VECTORIZATION))}}}",
            instance_from_str=lambda texts: texts[0],  # which `EnvironmentOptions` refuses with what to do
            is_instance=lambda value: isinstance(value, str),
            str_from_instance=lambda value: [value],
        )

    options |= {"args": [_with_plural(argument) for argument in arguments], "registry": registry}
    options |= {"config": (tyro.conf.OmitArgPrefixes,)}
    try:
        return tyro.cli(kind, **options)
    except SystemExit as exited:
        if exited.code == EXIT_USAGE:
            _say_what_was_meant(kind, options)
        raise


def _say_what_was_meant(kind: Any, options: dict[str, Any]) -> None:
    """Name our flags for those that other libraries have, if that is what was wrong."""
    with contextlib.suppress(SystemExit):  # something else is wrong, too, which has been said
        _, unknown = tyro.cli(kind, return_unknown_args=True, console_outputs=False, **options)
        for flag in unknown:
            name = flag.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
            ours = OF_CONFIGS.get(name) or OF_TRAIN.get(name)
            if flag.startswith("--") and ours is not None:
                print(f"hybridppo: --{name.replace('_', '-')} is --{ours.replace('_', '-')} here", file=sys.stderr)


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """The flags that give options of a run these values."""
    kinds = {name: option.type for name, option in fields_of(*GROUPS).items()}
    flags: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if kinds.get(name) is bool:
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", json.dumps(value, allow_nan=False) if isinstance(value, dict) else str(value)]
    return flags


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
