"""What all commands share: exit codes, the base class, and parsing."""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from hybridppo.settings import GROUPS, fields_of, is_kept
from hybridppo.system.messages import printable
from hybridppo.system.validation import each_once, require_path

EXIT_DONE, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

EnvId = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
RunDir = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]

_JSON = (dict[str, Any] | None, dict[str, Any], dict[str, tuple[int, ...]] | None)
"""Options of these types are an object of JSON on the command line."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command; its fields are its flags."""

    debug: bool = False
    """Show the traceback of an error."""

    def arguments(self, *others: str) -> dict[str, Any]:
        """The flags as arguments of the library's function, without `debug` and `others`."""
        return {name: value for name, value in vars(self).items() if name not in ("debug", *others)}

    def run(self) -> int | None:
        """Run the command; its exit code, None for 0."""
        raise NotImplementedError


def show(text: object, **options: Any) -> None:
    """Print a text, in which no name can control the terminal."""
    print(printable(str(text)), **options)


def has_colours() -> bool:
    """Whether text may be coloured: in a terminal, unless it is a dumb one or NO_COLOR is set (https://no-color.org)."""
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def parse(kind: Any, *, arguments: Sequence[str] | None = None, **options: Any) -> Any:
    """An object of `kind` from the command line; `options` as for `tyro.cli`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if shutil.get_terminal_size().columns < 10:  # in Python 3.10, 0 if a pseudo-terminal has no size
        os.environ["COLUMNS"] = "80"  # since tyro would not end: the borders of its boxes take all columns
    tyro._experimental_options["ansi_codes"] = has_colours()  # it would look at stdout alone
    # As tyro has them, but for an empty path, of which it would make a dot.
    known: dict[Any, Any] = {str: ("STR", str, str), Path: ("PATH", partial(require_path, "it"), Path)}
    known |= dict.fromkeys(_JSON, ("JSON", _object_in, dict | None))
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def _of_one_word(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type not in known:
            return None
        metavar, read, kinds = known[info.type]
        text_of = partial(json.dumps, allow_nan=False) if metavar == "JSON" else str
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar,
            instance_from_str=lambda texts: read(texts[0]),
            is_instance=lambda value: isinstance(value, kinds),
            str_from_instance=lambda value: [printable(text_of(value))],  # in the help, a default may be a file's
        )

    options |= {"args": [_with_plural(argument) for argument in arguments], "registry": registry}
    options |= {"config": (tyro.conf.OmitArgPrefixes,)}
    try:
        return tyro.cli(kind, **options)
    except SystemExit as exited:
        if exited.code == EXIT_USAGE:
            _say_what_was_meant(options["args"])
        raise


def _say_what_was_meant(arguments: Sequence[str]) -> None:
    """Add to the error what was probably meant: another command, or another way to write a number."""
    for number in filter(re.compile(r"\d+(\.\d+)?[eE]\+?\d+").fullmatch, arguments):
        print(f"hybridppo: write a whole number such as {number} as {float(number):_.0f}", file=sys.stderr)
    for numbers in filter(re.compile(r"[\[(]?\d+(, *\d+)+[\])]?").fullmatch, arguments):
        spaced = " ".join(re.findall(r"\d+", numbers))
        print(f"hybridppo: write several numbers such as {numbers} as {spaced}", file=sys.stderr)
    for flag in arguments if arguments[:1] == ["resume"] else ():
        name = flag.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        if flag.startswith("--") and is_kept(name):
            print(
                f"hybridppo: a run keeps it: train ENV_ID --start-from RUN_DIR {flag} begins another", file=sys.stderr
            )


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """The flags for these options of a run."""
    kinds = {name: option.type for name, option in fields_of(*GROUPS).items()}
    flags: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if kinds.get(name) is bool:
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (list, tuple)):
            flags += [f"--{flag}", *map(str, value)]
        else:
            is_json = isinstance(value, dict) or kinds.get(name) in _JSON
            flags += [f"--{flag}", json.dumps(value, allow_nan=False) if is_json else str(value)]
    return flags


def _with_plural(argument: str) -> str:
    """`--import my_envs` is `--imports my_envs`: Python's word cannot be a field's name."""
    flag, equals, value = argument.partition("=")
    return f"--imports{equals}{value}" if flag == "--import" else argument


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        found = None if text == "None" else json.loads(text, object_pairs_hook=each_once)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}; write it as '{{\"size\": 8}}'") from None
    if not (found is None or isinstance(found, dict)):
        raise ValueError("no object of JSON; write it as '{\"size\": 8}'")
    return found
