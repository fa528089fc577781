"""What all commands share: exit codes, the base class, and parsing."""

import copy
import inspect
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from hybridppo._lazy import helps
from hybridppo.agents.ppo.config import DIVIDING
from hybridppo.agents.schedules import sizes_of
from hybridppo.auto.auto import PlacementOptions
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import ConfigurationError, hint
from hybridppo.settings import GROUPS, RunOptions, fields_of, is_kept
from hybridppo.system.messages import printable
from hybridppo.system.validation import each_once, require_path

EXIT_DONE, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

EnvId = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV_ID")]
OwnAgent = Annotated[str | None, tyro.conf.arg(metavar="MODULE:CLASS")]
RunDir = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_DIR")]

_JSON = (dict[str, Any] | None, dict[str, Any], dict[str, tuple[int, ...]] | None)
"""Options of these types are an object of JSON on the command line."""

USUAL = (
    "total_steps", "seed", "num_envs", "learning_rate", "agent", "placement", "evaluate_every", "track", "run_dir",
    "settings_of",
)  # fmt: skip
"""The flags that people use most, which come first in the help."""
SECTIONS: dict[str, tuple[str, ...]] = {
    "": USUAL,
    "run": (*fields_of(RunOptions), "tuned", "tuned_from", "policies", "seeds", "debug_training"),
    "environment": (*fields_of(EnvironmentOptions),),
    "agent": (),
    "network": (
        "hidden_sizes", "critic_hidden_sizes", "activation", "encoder_sizes", "actor_keys", "critic_keys",
        "critic_observes", "layer_norm", "shared_trunk", "orthogonal_init", "log_std_init", "use_sde",
        "sde_sample_freq", "squash_actions", "action_distribution", "convolutions", "recurrent", "recurrent_size",
        "sequence_length",
    ),
    "placement and speed": (
        *fields_of(PlacementOptions), "num_workers", "env_threads", "compiled", "fast_updates", "compiled_updates",
        "cuda_graphs", "precision", "torch_threads", "buffer_on",
    ),
    "saving and logging": (
        "checkpoint_every", "checkpoint_seconds", "keep_checkpoints", "track_project", "track_entity", "track_name",
        "track_tags", "profile", "progress", "verbose",
    ),
    "distributed": ("distributed", "address"),
    "other": ("debug",),
}  # fmt: skip
"""The sections of the help of a long command, and their flags; the last section with a flag has it."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command; its fields are its flags. A field whose default is a dataclass is a group of flags."""

    debug: bool = False
    """Show the traceback of an error."""

    def arguments(self, *others: str) -> dict[str, Any]:
        """The flags as arguments of the library's function, without `debug` and `others`."""
        return {name: value for name, value in vars(self).items() if name not in ("debug", *others)}

    def run(self) -> int | None:
        """Run the command; its exit code, None for 0."""
        raise NotImplementedError


AnyCommand = TypeVar("AnyCommand", bound=Command)


@dataclass(frozen=True)
class Flag:
    """A flag, or a positional argument, of a command."""

    name: str
    kind: Any
    """Its type, with annotations for tyro."""
    default: Any
    """`dataclasses.MISSING` if it must be given."""
    words: str
    """Its help."""
    group: str | None
    """The field of the command that holds it, if it belongs to a group."""
    section: str
    """Its section in the help."""


def show(text: object, **options: Any) -> None:
    """Print a text, in which no name can control the terminal."""
    print(printable(str(text)), **options)


def has_colours() -> bool:
    """Whether text may be coloured: in a terminal, unless it is a dumb one or NO_COLOR is set (https://no-color.org)."""
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def flags_of_command(kind: type[Command], defaults: Mapping[str, Any] = {}) -> list[Flag]:
    """The flags of a command, in the order of its help.

    Args:
        kind: the command.
        defaults: values in place of the defaults of some fields.
    """
    values = _values_of(kind, defaults)
    holders: dict[str | None, Any] = {name: vars(value) for name, value in values.items() if is_dataclass(value)}
    found = []
    for group, own in {None: values, **holders}.items():
        of = kind if group is None else type(values[group])
        bases, hints = filter(is_dataclass, reversed(of.__mro__)), get_type_hints(of, include_extras=True)
        words = {name: text for base in bases for name, text in helps(base).items()}
        for name in (each.name for each in fields(of) if group is not None or each.name not in holders):
            section = _section_of(name, group) if holders else ""  # a short help has none
            found.append(Flag(name, hints[name], own[name], words.get(name, ""), group, section))
    order, places = [*SECTIONS], {name: place - len(USUAL) for place, name in enumerate(USUAL)} | {"debug": 1}
    return sorted(found, key=lambda flag: (order.index(flag.section), places.get(flag.name, 0)))


def _values_of(kind: type[Command], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of the fields of a command; `MISSING` for one that must be given."""
    usual = fields(kind)
    made = {each.name: each.default if each.default_factory is MISSING else each.default_factory() for each in usual}
    return {**made, **defaults}


def _section_of(name: str, group: str | None) -> str:
    usual = "agent" if group == "config" else ""
    return next((section for section in ("", *reversed(SECTIONS)) if name in SECTIONS[section]), usual)


def parse(kind: type[AnyCommand], arguments: Sequence[str], defaults: Mapping[str, Any] = {}) -> AnyCommand:
    """The command with the options that the arguments give.

    Args:
        kind: the command.
        arguments: what follows its name.
        defaults: values in place of the defaults of some fields.

    Raises:
        ConfigurationError: for an unknown flag, with the one that was probably meant; for an invalid option.
        SystemExit: after help, or the message for another mistake.
    """
    flags, sections = flags_of_command(kind, defaults), dict[str, list[Any]]()
    for flag in flags:
        usual: Any = field() if flag.default is MISSING else field(default_factory=partial(copy.copy, flag.default))
        option = flag.name, Annotated[flag.kind, tyro.conf.arg(help=flag.words)], usual
        sections.setdefault(flag.section, []).append(option)
    own = sections.pop("", [])
    for name, of_section in sections.items():
        section = make_dataclass("Section", of_section, kw_only=True)
        section.__doc__ = ""
        agent = str(defaults.get("agent", "ppo")).rpartition(":")[2].upper()
        title = tyro.conf.arg(name=agent if name == "agent" else name)
        group: Any = field(default_factory=section, metadata={"help": ""})  # else tyro looks for it in every source
        own.append((f"section {name}".replace(" ", "_"), Annotated[section, title], group))
    flat = make_dataclass(kind.__name__, own, kw_only=True)
    flat.__doc__ = kind.__doc__
    envs = ("--env", "--env-id") if any(flag.name == "env_id" for flag in flags) else ()  # as in other libraries
    given = [word for argument in arguments for word in _words(argument, envs)]
    parsed, unknown = _read(flat, given)
    values: dict[str, Any] = {}
    for name, value in vars(parsed).items():
        values |= vars(value) if is_dataclass(value) else {name: value}
    if unknown:
        raise ConfigurationError(_of_unknown(f"hybridppo {kind.__name__.lower()}", unknown, given, values))
    found = {flag.name: values[flag.name] for flag in flags if flag.group is None}
    for name, group in _values_of(kind, defaults).items():
        if name not in found:
            found[name] = changed_group(group, {flag.name: values[flag.name] for flag in flags if flag.group == name})
    return kind(**found)


def changed_group(group: Any, values: Mapping[str, Any]) -> Any:
    """A group of options with other values. A new value excludes an old one that says the same (`DIVIDING`)."""
    changes = {name: value for name, value in values.items() if value != getattr(group, name)}
    for one, other in (DIVIDING, DIVIDING[::-1]):
        if changes.get(one) is not None and other not in changes:
            changes[other] = None
    return replace(group, **changes) if changes else group


def _read(kind: Any, arguments: Sequence[str]) -> tuple[Any, list[str]]:
    """An object of `kind` from the command line, by tyro, and the arguments that it does not know."""
    columns = shutil.get_terminal_size().columns  # in Python 3.10, 0 if a pseudo-terminal has no size
    if columns < 10:
        os.environ["COLUMNS"] = "80"  # since tyro would not end: the borders of its boxes take all columns
    tyro._experimental_options["ansi_codes"] = has_colours()  # it would look at stdout alone
    wrap = textwrap.TextWrapper(max(40, columns), initial_indent=" ", subsequent_indent=" ")
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    # As tyro has them, but for an empty path, of which it would make a dot, and 1e6 as a whole number.
    known: dict[Any, Any] = {str: ("STR", str, str), Path: ("PATH", partial(require_path, "it"), Path)}
    known[int] = ("INT", whole_number, int)
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

    return tyro.cli(
        kind,
        args=arguments,
        prog=f"hybridppo {kind.__name__.lower()}",
        description="\n\n".join(map(wrap.fill, paragraphs)),  # indented, because tyro joins other lines
        config=(tyro.conf.OmitArgPrefixes,),
        registry=registry,
        return_unknown_args=True,
    )


def whole_number(text: str) -> int:
    """A whole number from text such as 1000, 1_000 or 1e3.

    Raises:
        ValueError: if it is another text.
    """
    number = int(text) if text.replace("_", "").lstrip("+-").isdecimal() else float(text)
    if number != number // 1:  # NaN, too
        raise ValueError(f"{text!r} is no whole number, such as 1000 or 1e3")
    return int(number)


def _of_unknown(prog: str, unknown: Sequence[str], arguments: Sequence[str], values: Mapping[str, Any]) -> str:
    """The message for unknown arguments, with the flag that was probably meant.

    Args:
        prog: the command.
        unknown: the arguments that it does not know.
        arguments: all of them.
        values: the values of the flags.
    """
    word = next((each for each in unknown if each.startswith("--")), unknown[0])
    flag, equals, text = word.partition("=")
    name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    if prog.endswith(" resume") and is_kept(name):
        return f"a run keeps {flag}: train ENV_ID --start-from RUN_DIR {flag} begins another"
    following = arguments[arguments.index(word) + 1 :][:1]
    given: Any = text if equals else next((each for each in following if not each.startswith("--")), None)
    with suppress(ValueError, TypeError):
        given = float(given)
        given = whole_number(str(given))

    def write(ours: str, value: Any) -> str:
        no = "no-" * flag.startswith("--no-")
        return f"--{no}{ours.replace('_', '-')}" + ("" if value is None else f" {value}")

    names = [{"settings_of": "config"}.get(each, each) for each in values]
    meant = hint(name, given, names, sizes_of(dict(values)), write) if flag.startswith("--") else ""
    return f"{prog} has no flag {flag}{meant or ':'} {prog} --help lists all"


_NUMBERS = re.compile(r"[\[(]?\d+(, *\d+)+[\])]?")


def _words(argument: str, as_positional: Collection[str]) -> list[str]:
    """An argument as the parser takes it: several numbers, such as 64,64, are words of their own.

    Args:
        argument: the argument.
        as_positional: flags of which only the value counts.
    """
    flag, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    if flag in as_positional:
        return [value] * bool(equals)
    flag = "--imports" if flag == "--import" else flag  # Python's word cannot be a field's name
    if _NUMBERS.fullmatch(value):
        return [*filter(None, [flag]), *re.findall(r"\d+", value)]
    return [f"{flag}{equals}{value}"]


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


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        found = None if text == "None" else json.loads(text, object_pairs_hook=each_once)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}; write it as '{{\"size\": 8}}'") from None
    if not (found is None or isinstance(found, dict)):
        raise ValueError("no object of JSON; write it as '{\"size\": 8}'")
    return found
