"""The command line.

    hybridppo train CartPole-v1 --total-steps 100000
    hybridppo train Pendulum-v1 --agent td3 --total-steps 30000
    hybridppo resume runs/CartPole-v1-20260101-120000-seed0
    hybridppo evaluate runs/CartPole-v1-20260101-120000-seed0
    hybridppo placements CartPole-v1
    hybridppo check CartPole-v1
    hybridppo doctor
    hybridppo plot runs --output curves.svg
    hybridppo report runs/CartPole-v1-20260101-120000-seed0
    hybridppo play runs/CartPole-v1-20260101-120000-seed0 --output cartpole.mp4
    hybridppo export runs/CartPole-v1-20260101-120000-seed0 policy.onnx
    hybridppo push runs/CartPole-v1-20260101-120000-seed0 USER/NAME
    hybridppo watch runs/CartPole-v1-20260101-120000-seed0
    hybridppo benchmark classic --seeds 5
    hybridppo tune MyEnv-v0 --total-steps 100000
    hybridppo agents
    hybridppo --version

Exit codes: 0 done; 1 an error, in one message; 2 wrong usage, or an invalid
setting; 130 interrupted, and saved if there is a run directory.
"""

import functools
import logging
import operator
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tyro

from hybridppo._version import __version__
from hybridppo.commands import tools
from hybridppo.commands.parsing import EXIT_DONE, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, Command, parse, show
from hybridppo.commands.train import Resume, Train, train_command
from hybridppo.distributed.choosing import require_alone
from hybridppo.environments.packages import look_in_working_directory
from hybridppo.errors import ConfigurationError, HybridPPOError, failures, shown_error
from hybridppo.system.messages import printable
from hybridppo.system.signals import as_keyboard_interrupts, flushed

_FOR_RUNS = (tools.Evaluate, tools.Plot, tools.Report, tools.Play, tools.Export, tools.Push, tools.Watch, tools.Agents)
_FOR_ENVIRONMENTS = (tools.Check, tools.Placements, tools.Doctor, tools.Benchmark, tools.Tune)
COMMANDS: dict[str, type[Command]] = {
    kind.__name__.lower(): kind for kind in (Train, Resume, *_FOR_RUNS, *_FOR_ENVIRONMENTS)
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
    defaults = train_command(arguments)
    command = _parsed(arguments, defaults)
    if isinstance(command, Train) and (command.tuned or command.tuned_from is not None):
        return _parsed(arguments, command.with_tuned_settings())  # which the flags change
    if isinstance(command, Train) and command.settings_of is not None and command.env_id != defaults.env_id:
        command = _parsed(arguments, defaults.in_another(command.env_id))
    return command


def _parsed(arguments: Sequence[str], train: Train) -> Command:
    """The command that the arguments name, and in which they change the settings of `train`."""
    named: dict[str, Any] = {name: tyro.conf.subcommand(name) for name in COMMANDS}
    named["train"] = tyro.conf.subcommand("train", default=train)
    kinds: list[Any] = [Annotated[kind, named[name]] for name, kind in (COMMANDS | {"train": type(train)}).items()]
    union = functools.reduce(operator.or_, kinds)
    parsed: Command = parse(union, arguments=arguments, prog="hybridppo", description=__doc__)
    return parsed


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
