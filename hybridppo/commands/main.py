"""hybridppo is a PPO library for PyTorch that finds the fastest split of sampling and learning between CPU and GPU.

usage: hybridppo COMMAND [FLAGS]; hybridppo COMMAND --help lists the flags of a command

{commands}

Examples:
  hybridppo train CartPole-v1 --total-steps 1e5
  hybridppo train Pendulum-v1 --agent td3 --total-steps 3e4
  hybridppo resume runs/CartPole-v1-20260101-120000-seed0
  hybridppo plot runs --output curves.svg
  hybridppo --version

Pages: the first hour is docs/first_hour.md in the repository, and docs/index.md lists all.
Exit codes: 0 done; 1 an error, in one message; 2 wrong usage, or an invalid setting;
130 interrupted, and saved if there is a run directory.
"""

import logging
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence

from hybridppo._version import __version__
from hybridppo.commands import tools
from hybridppo.commands.parsing import EXIT_DONE, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, Command, parse, show
from hybridppo.commands.train import Config, Resume, Train, train_command
from hybridppo.distributed.choosing import require_alone
from hybridppo.environments.packages import look_in_working_directory
from hybridppo.errors import ConfigurationError, HybridPPOError, failures, hint, shown, shown_error
from hybridppo.system.messages import printable
from hybridppo.system.signals import as_keyboard_interrupts, flushed

_FOR_RUNS = (tools.Evaluate, tools.Plot, tools.Report, tools.Play, tools.Export, tools.Push, tools.Watch, tools.Agents)
_FOR_ENVIRONMENTS = (tools.Check, tools.Placements, tools.Doctor, tools.Benchmark, tools.Tune)
COMMANDS: dict[str, type[Command]] = {
    kind.__name__.lower(): kind for kind in (Train, Resume, Config, *_FOR_RUNS, *_FOR_ENVIRONMENTS)
}
"""Every command by its name, in the order in which `--help` lists them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; never returns."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        print(f"hybridppo {__version__}")
        sys.exit(EXIT_DONE)
    sys.exit(run_command(lambda: parse_command(given)))


def parse_command(arguments: Sequence[str]) -> Command:
    """The command that the arguments name, with its options."""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(overview(), file=sys.stdout if arguments else sys.stderr)
        sys.exit(EXIT_DONE if arguments else EXIT_USAGE)
    if name not in COMMANDS:
        meant = hint(name, None, COMMANDS) or ":"
        raise ConfigurationError(f"there is no command {shown(name)}{meant} hybridppo --help lists all commands")
    kind = COMMANDS[name]
    return train_command(rest, kind) if issubclass(kind, Train) else parse(kind, rest)


def overview() -> str:
    """What the program is, its commands, and where its pages are, for the width of the terminal."""
    width, commands = max(shutil.get_terminal_size().columns, 40), []
    for name, kind in COMMANDS.items():
        words = (kind.__doc__ or "").partition("\n\n")[0]
        commands.append(textwrap.fill(f"  {name:12}{words}", width, subsequent_indent=" " * 14))
    lines = (__doc__ or "{commands}").splitlines()
    text = "\n".join(line if line.startswith("  ") else textwrap.fill(line, width) for line in lines)
    return text.replace("{commands}", "\n".join(commands))


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def run_command(parse: Callable[[], Command]) -> int:
    """Parse and run a command; its exit code, after one clear message if there is an error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    look_in_working_directory()
    command: Command | None = None
    try:
        with as_keyboard_interrupts():  # during training, signals are requests instead
            command = parse()
            if not isinstance(command, Train | Resume):  # which may join the others
                require_alone("this command would do the same in each")
            return command.run() or EXIT_DONE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except failures() as error:  # the library's own, or one from an environment's code
        if isinstance(error, SystemExit):
            raise
        if isinstance(error, BrokenPipeError) and not flushed("\n"):
            return EXIT_DONE  # without a reader, the output is not needed any more
        if command is not None and command.debug:
            show("".join(traceback.format_exception(error)), end="", file=sys.stderr)
        else:
            show(f"hybridppo: error: {_message(error)}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_ERROR


def _message(error: BaseException) -> str:
    if isinstance(error, HybridPPOError):
        return str(error)
    return "; ".join([f"{shown_error(error)} (--debug shows where)", *getattr(error, "__notes__", ())])
