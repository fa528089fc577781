"""What all commands share: exit codes, the base class, and parsing."""

import inspect
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tyro

from hybridppo._lazy import helps
from hybridppo.agents.ppo.config import DIVIDING
from hybridppo.agents.schedules import sizes_of
from hybridppo.auto.auto import PlacementOptions
from hybridppo.environments.options import EnvironmentOptions
from hybridppo.errors import ConfigurationError, meant
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
    "run": ("tuned", "tuned_from", "policies", "seeds", "debug_training"),
    "environment": (),
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
"""The sections of the help of a long command, with the flags that do not follow from a group of options."""


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
    values = {each.name: defaults.get(each.name, _default_of(each)) for each in fields(kind)}
    groups = {name: value for name, value in values.items() if is_dataclass(value)}
    found = _flags_in(kind, {name: value for name, value in values.items() if name not in groups}, None)
    for name, group in groups.items():
        found += _flags_in(type(group), {each.name: getattr(group, each.name) for each in fields(group)}, name)
    if not groups:  # a short help has no sections
        found = [replace(flag, section="other" if flag.name == "debug" else "") for flag in found]
    order, first = [*SECTIONS], {name: place - len(USUAL) for place, name in enumerate(USUAL)}
    return sorted(found, key=lambda flag: (order.index(flag.section), first.get(flag.name, 0)))


def _flags_in(kind: type[Any], values: Mapping[str, Any], group: str | None) -> list[Flag]:
    words: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        words |= helps(base) if is_dataclass(base) else {}
    hints = get_type_hints(kind, include_extras=True)
    return [
        Flag(name, hints[name], value, words.get(name, ""), group, _section_of(name, group))
        for name, value in values.items()
    ]


def _section_of(name: str, group: str | None) -> str:
    named = next((section for section, names in SECTIONS.items() if name in names), None)
    if named is not None:
        return named
    of_groups = {"environment": EnvironmentOptions, "run": RunOptions}
    known = next((section for section, options in of_groups.items() if name in fields_of(options)), "")
    return "agent" if group == "config" else known if group is not None else ""


def _default_of(option: Any) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


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
    flags, prog = flags_of_command(kind, defaults), f"hybridppo {kind.__name__.lower()}"
    given = [word for argument in arguments for word in _words(argument)]
    _require_known(prog, given, flags)
    sections: dict[str, list[Any]] = {}
    for flag in flags:
        help_text = tyro.conf.arg(help=flag.words or None)
        usual: Any = field() if flag.default is MISSING else field(default_factory=partial(_itself, flag.default))
        sections.setdefault(flag.section, []).append((flag.name, Annotated[flag.kind, help_text], usual))
    own = sections.pop("", [])
    agent = next((flag.default for flag in flags if flag.name == "agent"), "ppo")
    for name, of_section in sections.items():
        section = make_dataclass("Section", of_section, kw_only=True)
        section.__doc__ = ""
        title = tyro.conf.arg(name=str(agent).rpartition(":")[2].upper() if name == "agent" else name)
        own.append((f"section {name}".replace(" ", "_"), Annotated[section, title], field(default_factory=section)))
    flat = make_dataclass(kind.__name__, own, kw_only=True)
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    wrap = textwrap.TextWrapper(max(40, _columns()), initial_indent=" ", subsequent_indent=" ")
    description = "\n\n".join(map(wrap.fill, paragraphs))  # indented, because tyro joins other lines
    values: dict[str, Any] = {}
    for name, value in vars(_read(flat, given, prog, description)).items():
        values |= vars(value) if is_dataclass(value) else {name: value}
    found = {flag.name: values[flag.name] for flag in flags if flag.group is None}
    for each in fields(kind):
        if each.name not in found:
            own_values = {flag.name: values[flag.name] for flag in flags if flag.group == each.name}
            found[each.name] = changed_group(defaults.get(each.name, _default_of(each)), own_values)
    return kind(**found)


def changed_group(group: Any, values: Mapping[str, Any]) -> Any:
    """A group of options with other values. A new value excludes an old one that says the same (`DIVIDING`)."""
    changes = {name: value for name, value in values.items() if value != getattr(group, name)}
    for one, other in (DIVIDING, DIVIDING[::-1]):
        if changes.get(one) is not None and other not in changes:
            changes[other] = None
    return replace(group, **changes) if changes else group


def _itself(value: Any) -> Any:
    return value


def _columns() -> int:
    """The width of the terminal; in Python 3.10, 0 if a pseudo-terminal has no size."""
    return shutil.get_terminal_size().columns


def _read(kind: Any, arguments: Sequence[str], prog: str, description: str) -> Any:
    """An object of `kind` from the command line, by tyro."""
    if _columns() < 10:
        os.environ["COLUMNS"] = "80"  # since tyro would not end: the borders of its boxes take all columns
    tyro._experimental_options["ansi_codes"] = has_colours()  # it would look at stdout alone
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

    options: dict[str, Any] = {"prog": prog, "description": description, "registry": registry}
    return tyro.cli(kind, args=arguments, config=(tyro.conf.OmitArgPrefixes,), **options)


def whole_number(text: str) -> int:
    """A whole number from text such as 1000, 1_000 or 1e3.

    Raises:
        ValueError: if it is another text.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not number.is_integer():
        raise ValueError(f"{text!r} is no whole number, such as 1000 or 1e3")
    return int(number)


def _require_known(prog: str, arguments: Sequence[str], flags: Sequence[Flag]) -> None:
    """Refuse an unknown flag.

    Raises:
        ConfigurationError: with the flag that was probably meant.
    """
    names = {"config" if flag.name == "settings_of" else flag.name: flag for flag in flags}
    known = {"help", *(name for name, flag in names.items() if not _is_positional(flag))}
    known |= {f"no_{name}" for name in known if isinstance(names.get(name, flags[0]).default, bool)}
    for place, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        name = flag[2:].replace("-", "_")
        if not flag.startswith("--") or name in known or name.startswith("tyro_"):
            continue
        if prog.endswith(" resume") and is_kept(name.removeprefix("no_")):
            raise ConfigurationError(f"a run keeps {flag}: train ENV_ID --start-from RUN_DIR {flag} begins another")
        following = "".join(arguments[place + 1 : place + 2])
        value = value if equals or following.startswith("--") else following
        sizes = sizes_of({name: flag.default for name, flag in names.items()})
        for size, number in pairwise(arguments):
            if size[2:].replace("-", "_") in sizes and number.isdecimal():
                sizes[size[2:].replace("-", "_")] = int(number)
        hint = _hint(name, value, [*names], sizes)
        raise ConfigurationError(f"{prog} has no flag {flag}{hint or ':'} {prog} --help lists all")


def _hint(name: str, text: str, names: Sequence[str], sizes: Mapping[str, int]) -> str:
    """Suggests a flag and its value for an unknown one; empty if no name is like it."""
    value: Any = text
    with suppress(ValueError):
        value = float(text)
    found = meant(name.removeprefix("no_"), value, names, sizes)
    if found is None:
        return ""
    if found.name == "env_id":
        return f": write the environment without a flag, as {text or 'CartPole-v1'}."
    flag = f"--{'no-' * name.startswith('no_')}{found.name.replace('_', '-')}"
    same = f" {text if found.value == value else found.value}".rstrip() if found.value is not None else ""
    return f": did you mean {flag}{same}?" + (f" ({found.why})" if found.why else "")


def _is_positional(flag: Flag) -> bool:
    return EnvId.__metadata__[0] in getattr(flag.kind, "__metadata__", ())  # type: ignore[attr-defined]


_NUMBERS = re.compile(r"[\[(]?\d+(, *\d+)+[\])]?")


def _words(argument: str) -> list[str]:
    """An argument as the parser takes it: several numbers, such as 64,64, are words of their own."""
    flag, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
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
