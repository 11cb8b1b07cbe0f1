"""The command line ``householder``: its own subcommands, and those that other distributions add."""

import argparse
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from typing import NoReturn

from householder import __version__
from householder.cli import bench, info
from householder.cli.command import Command
from householder.cli.errors import UserError, nearest, one_line
from householder.cli.gpu_check import command as gpu_check
from householder.cli.output import standard_output

GROUP = "householder.commands"
"""The entry points by which distributions add commands; each names a sequence of them."""
OF_EXPERIMENTS = ("train", "compare", "evaluate", "plot", "cost")
"""The commands of the distribution householder-experiments."""
_CLOSED_PIPE = 141
"""The exit status that a shell reports for a process ended by a closed pipe."""

COMMANDS = (
    Command("bench", "measure this machine against torch, in a minute", bench.add_arguments, bench.bench),
    Command(
        "gpu-check",
        "compare the GPU with the CPU and time it, in five minutes",
        gpu_check.add_arguments,
        gpu_check.gpu_check,
    ),
    Command("info", "print processor, threads, GPUs and versions", info.add_arguments, info.info),
)


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)} (--help explains)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The arguments after the program's name; by default those of this process.

    Returns
    -------
    int
        The exit status: 0, 1 if a model failed, 2 for a mistake of the user, 130 if interrupted, 141 if its output
        was closed.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with standard_output(), _termination_as_interrupt():
            return _run(arguments)
    except BrokenPipeError:  # the reader of the output has closed it
        return _CLOSED_PIPE
    except UserError as error:
        return _complain(str(error))
    except KeyboardInterrupt as error:
        return _complain(f"interrupted; {error}" if str(error) else "interrupted", 130)


def _run(arguments: Sequence[str]) -> int:
    name = arguments[0] if arguments else ""
    known = COMMANDS if name in [command.name for command in COMMANDS] else commands()
    if not arguments:
        parser(known).print_help()
        return 0
    if not name.startswith("-") and name not in (names := [command.name for command in known]):
        if name in OF_EXPERIMENTS:
            raise UserError(
                f"{name} is a command of householder-experiments, which is not installed: pip install "
                "householder-experiments, or in a clone of householder pip install ./experiments"
            )
        raise UserError(f"unknown command {name!r}: there are {', '.join(names)}{nearest(name, names)}")
    if lost := [each for each in arguments if re.fullmatch("--[^=]+=--", each)]:  # argparse leaves their values out
        raise UserError(f"{lost[0]}: expected a value (--help explains)")
    options = parser(known).parse_args(arguments)
    command: Command = options.command
    return command.run(options)


def commands() -> tuple[Command, ...]:
    """Return all commands: those of other distributions, then this one's."""
    return (*(command for point in entry_points(group=GROUP) for command in point.load()), *COMMANDS)


def parser(known: Iterable[Command] | None = None) -> argparse.ArgumentParser:
    """Return the parser of commands, by default of all; each leaves its :class:`Command` in ``options.command``."""
    whole = _Parser(prog="householder", description="Orthogonal recurrent networks by Householder reflections.")
    whole.add_argument("--version", action="version", version=f"householder {__version__}")
    subparsers = whole.add_subparsers(required=True, metavar="COMMAND")
    for command in commands() if known is None else known:
        description = f"{command.summary[0].upper()}{command.summary[1:]}."
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.set_defaults(command=command)
        command.add_arguments(subparser)
    return whole


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM in the ``with`` block as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _complain(message: str, status: int = 2) -> int:
    with suppress(OSError):  # standard error is full or closed, too
        print(f"householder: {one_line(message)}", file=sys.stderr)
    return status
