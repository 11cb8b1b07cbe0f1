"""The command line ``householder``."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from householder import __version__
from householder.experiments.errors import UserError

TASKS = ("digits",)


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
    options = _parser().parse_args(arguments)
    try:
        # Heavy libraries are loaded only now: --help answers at once, and they are an extra of the package.
        from householder.experiments.processes import warm_up

        warm_up()
        from householder.experiments.session import train
    except ModuleNotFoundError as error:
        return _complain(f"{error.name} is not installed; training needs: pip install 'householder[train]'")
    try:
        return train(options)
    except UserError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return _complain("ended at once; what the last checkpoints hold can be resumed", 130)


def _complain(message: str, status: int = 2) -> int:
    print(f"householder: {message}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="householder", description="Orthogonal recurrent networks by Householder reflections.")
    parser.add_argument("--version", action="version", version=f"householder {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = commands.add_parser(
        "train",
        help="train models on a task and compare them",
        description="Train the models of an experiment side by side and compare them.",
    )
    train.add_argument("task", choices=TASKS, metavar="TASK", help=f"one of: {', '.join(TASKS)}")
    train.add_argument("--model", metavar="A,B", help="only these models of the experiment")
    train.add_argument("--config", type=Path, metavar="FILE", help="settings (YAML) in place of the packaged ones")
    train.add_argument("--seed", type=int, metavar="N", help="seed of parameters and batches")
    train.add_argument("--epochs", type=int, metavar="N", help="passes over the training data")
    train.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="NAME=VALUE",
        help="change any setting, e.g. models.ornn.learning_rate=0.003 or task.validation=0.2",
    )
    train.add_argument("--output", type=Path, metavar="DIR", help="where results go (default: runs/TASK-DATE-TIME)")
    train.add_argument("--resume", type=Path, metavar="RUN", help="continue a run, with the settings it was begun with")
    train.add_argument(
        "--jobs",
        type=_positive,
        default=os.cpu_count(),
        metavar="N",
        help="models trained at a time (default: cores)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)
