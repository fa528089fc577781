"""What all commands share: exit codes, the base class, and parsing."""

import contextlib
import io
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hybridppo.names import COMMANDS_ELSEWHERE, ELSEWHERE, OF_CONFIGS, OF_TRAIN
from hybridppo.options import GROUPS, fields_of, is_kept

EXIT_DONE, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

EnvId = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
RunDir = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]

_JSON = dict[str, Any] | None
"""Options of this type are an object of JSON on the command line."""
_COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")


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


def has_colours() -> bool:
    """Whether text may be coloured: in a terminal, unless it is a dumb one or NO_COLOR is set (https://no-color.org)."""
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings without colours unless `has_colours()`: gymnasium colours all of its own."""
    before = warnings.formatwarning

    def plain(*arguments: Any, **options: Any) -> str:
        text = before(*arguments, **options)
        return text if has_colours() else _COLOUR_CODES.sub("", text)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = before


def parse(kind: Any, *, arguments: Sequence[str] | None = None, **options: Any) -> Any:
    """An object of `kind` from the command line; `options` as for `tyro.cli`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if shutil.get_terminal_size().columns < 10:  # in Python 3.10, 0 if a pseudo-terminal has no size
        os.environ["COLUMNS"] = "80"  # since tyro would not end: the borders of its boxes take all columns
    tyro._experimental_options["ansi_codes"] = has_colours()  # it would look at stdout alone
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

    options |= {"args": [_with_plural(argument) for argument in arguments], "registry": registry}
    options |= {"config": (tyro.conf.OmitArgPrefixes,)}
    try:
        return tyro.cli(kind, **options)
    except SystemExit as exited:
        if exited.code == EXIT_USAGE:
            _say_what_was_meant(kind, options)
        raise


def _say_what_was_meant(kind: Any, options: dict[str, Any]) -> None:
    """Add to the error what was probably meant: our name for a command or a flag, or another way to write a number."""
    command, *_ = options["args"] or [""]
    if command in COMMANDS_ELSEWHERE:
        print(f"hybridppo: {command} is the command {COMMANDS_ELSEWHERE[command]} here", file=sys.stderr)
    if any(argument.rpartition("=")[2] == "async" for argument in options["args"]):
        print("hybridppo: --vectorization async is --num-workers here", file=sys.stderr)
    names = [_name_of(argument) for argument in options["args"] if argument.startswith("--")]
    for name in names if command == "train" else ():
        if name in ELSEWHERE:
            print(f"hybridppo: {ELSEWHERE[name]}", file=sys.stderr)
    for number in filter(re.compile(r"\d+(\.\d+)?[eE]\+?\d+").fullmatch, options["args"]):
        print(f"hybridppo: write a whole number such as {number} as {float(number):_.0f}", file=sys.stderr)
    for numbers in filter(re.compile(r"[\[(]?\d+(, *\d+)+[\])]?").fullmatch, options["args"]):
        spaced = " ".join(re.findall(r"\d+", numbers))
        print(f"hybridppo: write several numbers such as {numbers} as {spaced}", file=sys.stderr)
    unknown: list[str] = []
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):  # what is wrong was reported
        _, unknown = tyro.cli(kind, return_unknown_args=True, console_outputs=False, **options)
    for flag in unknown:
        name = _name_of(flag)
        ours = OF_CONFIGS.get(name) or OF_TRAIN.get(name)
        if flag.startswith("--") and command == "resume" and is_kept(name):
            print(
                f"hybridppo: a run keeps it: train ENV_ID --start-from RUN_DIR {flag} begins another", file=sys.stderr
            )
        elif flag.startswith("--") and ours is not None:
            print(f"hybridppo: --{name.replace('_', '-')} is --{ours.replace('_', '-')} here", file=sys.stderr)


def _name_of(flag: str) -> str:
    return flag.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")


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
            is_json = isinstance(value, dict) or kinds.get(name) == _JSON
            flags += [f"--{flag}", json.dumps(value, allow_nan=False) if is_json else str(value)]
    return flags


def _with_plural(argument: str) -> str:
    """`--import my_envs` is `--imports my_envs`: Python's word cannot be a field's name."""
    flag, equals, value = argument.partition("=")
    return f"--imports{equals}{value}" if flag == "--import" else argument


def _object_in(texts: list[str]) -> dict[str, Any] | None:
    try:
        found = None if texts[0] == "None" else json.loads(texts[0])
    except ValueError as error:
        raise ValueError(f"no JSON: {error}; write it as '{{\"size\": 8}}'") from None
    if not (found is None or isinstance(found, dict)):
        raise ValueError("no object of JSON; write it as '{\"size\": 8}'")
    return found
