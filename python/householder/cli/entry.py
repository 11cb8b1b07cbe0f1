"""The command line ``householder``: a table of subcommands, each with its arguments and the function that runs it."""

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import NamedTuple, NoReturn

from householder import __version__
from householder.cli import bench, gpu_check, info
from householder.cli.arguments import (
    compare_arguments,
    cost_arguments,
    evaluate_arguments,
    named_modules,
    plot_arguments,
    train_arguments,
)
from householder.experiments.errors import UserError, nearest, one_line
from householder.experiments.output import standard_output
from householder.experiments.own import permitted

_CLOSED_PIPE = 141
"""The exit status that a shell reports for a process ended by a closed pipe."""


class Command(NamedTuple):
    """A subcommand. Heavy libraries are loaded when it runs, never before: ``--help`` answers at once."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    function: str
    """``"module:name"`` of a function that maps the parsed arguments to an exit status."""
    trains: bool = False
    """Whether it starts processes that train."""


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
    command = next((command for command in COMMANDS if [command.name] == list(arguments[:1])), None)
    try:
        with standard_output(), _termination_as_interrupt():
            return _run(arguments)
    except BrokenPipeError:  # the reader of the output has closed it
        return _CLOSED_PIPE
    except UserError as error:
        return _complain(str(error))
    except KeyboardInterrupt as error:
        saved = str(error) or ("nothing was saved yet" if command and command.trains else "")
        return _complain(f"interrupted; {saved}" if saved else "interrupted", 130)


def _run(arguments: Sequence[str]) -> int:
    names = [command.name for command in COMMANDS]
    if not arguments:
        parser().print_help()
        return 0
    if arguments[0] not in names and not arguments[0].startswith("-"):
        known = f"there are {', '.join(names)}{nearest(arguments[0], names)}"
        raise UserError(f"unknown command {arguments[0]!r}: {known}")
    if lost := [each for each in arguments if re.fullmatch("--[^=]+=--", each)]:  # argparse leaves their values out
        raise UserError(f"{lost[0]}: expected a value (--help explains)")
    options = parser().parse_args(arguments)
    command: Command = options.command
    if command.trains:
        from householder.experiments.processes import warm_up

        warm_up()
    module, name = command.function.split(":")
    try:
        run = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; in a clone of householder: pip install '.[train]'") from error
    with permitted(named_modules(options), os.getcwd()):
        status: int = run(options)
    return status


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Answer SIGTERM in the ``with`` block as Ctrl-C is answered."""
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


COMMANDS = (
    Command(
        "train",
        "train the models of an experiment side by side and compare them",
        train_arguments,
        "householder.experiments.compare:train",
        trains=True,
    ),
    Command(
        "compare",
        "train models with several seeds each and compare them",
        compare_arguments,
        "householder.experiments.compare:compare",
        trains=True,
    ),
    Command(
        "evaluate",
        "measure the models of a run again, on the same data or on others",
        evaluate_arguments,
        "householder.experiments.evaluate:evaluate",
    ),
    Command("plot", "draw the learning curves of runs", plot_arguments, "householder.experiments.plot:plot"),
    Command(
        "cost",
        "measure a gradient step of each model as units and steps grow",
        cost_arguments,
        "householder.experiments.cost:cost",
    ),
    Command(
        "bench",
        "measure this machine against torch, in a minute",
        bench.add_arguments,
        "householder.cli.bench:bench",
    ),
    Command(
        "gpu-check",
        "compare the GPU with the CPU and time it, in five minutes",
        gpu_check.add_arguments,
        "householder.cli.gpu_check:gpu_check",
    ),
    Command("info", "print processor, threads, GPUs and versions", info.add_arguments, "householder.cli.info:info"),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; each leaves its :class:`Command` in ``options.command``."""
    whole = _Parser(prog="householder", description="Orthogonal recurrent networks by Householder reflections.")
    whole.add_argument("--version", action="version", version=f"householder {__version__}")
    subparsers = whole.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
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
