"""The command line ``householder``: a table of subcommands, each with its arguments and what runs it."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NoReturn

from householder import __version__
from householder.cli import bench, gpu_check
from householder.experiments.catalogue import TASKS
from householder.experiments.errors import UserError


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
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help explains)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; by default that of this process.

    Returns
    -------
    int
        The exit status: 0, 1 if a model failed, 2 for a mistake of the user, 130 if interrupted.
    """
    options = parser().parse_args(arguments)
    command: Command = options.command
    try:
        if command.trains:
            from householder.experiments.processes import warm_up

            warm_up()
        module, name = command.function.split(":")
        run = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        return _complain(f"{error.name} is not installed; this needs: pip install 'householder[train]'")
    try:
        status: int = run(options)
        return status
    except UserError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return _complain("ended at once; what the last checkpoints hold can be resumed", 130)


def _complain(message: str, status: int = 2) -> int:
    print(f"householder: {message}", file=sys.stderr)
    return status


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    _experiment_arguments(parser)
    parser.add_argument("--model", metavar="A,B", help="only these models of the experiment")
    parser.add_argument("--seed", type=_natural, metavar="N", help="seed of parameters and batches")
    parser.add_argument(
        "--devices", type=_positive, default=1, metavar="N", help="processes of this machine that share each batch"
    )
    parser.add_argument(
        "--num-nodes",
        type=_positive,
        default=1,
        metavar="N",
        help="machines that share each batch; MASTER_ADDR, MASTER_PORT and NODE_RANK say how they meet",
    )


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    _experiment_arguments(parser)
    parser.add_argument(
        "--models",
        metavar="A,B",
        help="models of the experiment, or any kind, then with as many parameters as the experiment's first; or: all",
    )
    parser.add_argument("--seeds", type=_positive, metavar="K", help="runs of each model (default: 3)")
    parser.add_argument(
        "--over",
        action="append",
        metavar="NAME=A,B",
        help="run each seed with each of these values of a setting, e.g. task.excerpt=1,2,3,4,5",
    )


def _plot_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="what train or compare has left")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("learning_curves.png"),
        metavar="FILE",
        help="the figure; its suffix names the format (default: learning_curves.png)",
    )


def _cost_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", metavar="A,B", help="only these kinds (default: all)")
    parser.add_argument("--output", type=Path, default=Path("runs/cost"), metavar="DIR", help="default: runs/cost")


def _experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every command that trains on a task takes."""
    parser.add_argument("task", choices=TASKS, metavar="TASK", help=f"one of: {', '.join(TASKS)}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (YAML) in place of the packaged ones")
    parser.add_argument("--epochs", type=int, metavar="N", help="passes over the training data")
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        dest="changes",
        type=_data,
        metavar="PATH",
        help="the task's real data in place of what comes with the package: a folder, or audio's WAV file",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="NAME=VALUE",
        help="change any setting, e.g. models.ornn.learning_rate=0.003 or task.validation=0.2",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="where results go (default: runs/TASK-DATE-TIME)")
    parser.add_argument(
        "--resume", type=Path, metavar="RUN", help="continue a run, with the settings it was begun with"
    )
    parser.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        help="models trained at a time (default: as many as there are cores for, each taking its threads)",
    )


def _data(path: str) -> str:
    # Absolute, so that a run can be resumed from anywhere; in quotes, as settings are YAML.
    return f"task.data={json.dumps(str(Path(path).absolute()))}"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got {text!r}")
    return int(text)


COMMANDS = (
    Command(
        "train",
        "train the models of an experiment side by side and compare them",
        _train_arguments,
        "householder.experiments.session:train",
        trains=True,
    ),
    Command(
        "compare",
        "train models with several seeds each and compare them",
        _compare_arguments,
        "householder.experiments.compare:compare",
        trains=True,
    ),
    Command("plot", "draw the learning curves of runs", _plot_arguments, "householder.experiments.plot:plot"),
    Command(
        "cost",
        "measure a gradient step of each model as units and steps grow",
        _cost_arguments,
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
    Command("info", "say what this machine has", lambda _parser: None, "householder.cli.info:info"),
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; each leaves its :class:`Command` in ``options.command``."""
    whole = _Parser(prog="householder", description="Orthogonal recurrent networks by Householder reflections.")
    whole.add_argument("--version", action="version", version=f"householder {__version__}")
    subparsers = whole.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        description = f"{command.summary[0].upper()}{command.summary[1:]}."
        subparser = subparsers.add_parser(command.name, help=command.summary, description=description)
        subparser.set_defaults(command=command)
        command.add_arguments(subparser)
    return whole
