"""The commands that this distribution adds to ``householder``. What a command needs is loaded when it runs."""

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from householder.cli.command import Command
from householder_experiments.arguments import (
    compare_arguments,
    cost_arguments,
    evaluate_arguments,
    named_modules,
    plot_arguments,
    train_arguments,
)
from householder_experiments.own import permitted
from householder_experiments.processes import warm_up


def train(options: Namespace) -> int:
    """Run ``householder train``."""
    with _training(options):
        from householder_experiments.compare import train

        return train(options)


def compare(options: Namespace) -> int:
    """Run ``householder compare``."""
    with _training(options):
        from householder_experiments.compare import compare

        return compare(options)


def evaluate(options: Namespace) -> int:
    """Run ``householder evaluate``."""
    with _own_modules(options):
        from householder_experiments.evaluate import evaluate

        return evaluate(options)


def plot(options: Namespace) -> int:
    """Run ``householder plot``."""
    from householder_experiments.plot import plot

    return plot(options)


def cost(options: Namespace) -> int:
    """Run ``householder cost``."""
    from householder_experiments.cost import cost

    return cost(options)


@contextmanager
def _own_modules(options: Namespace) -> Iterator[None]:
    """Permit the modules that the command line names."""
    with permitted(named_modules(options), os.getcwd()):
        yield


@contextmanager
def _training(options: Namespace) -> Iterator[None]:
    """Start the server of the processes that train; an interrupt says that nothing was saved, unless it says more."""
    try:
        warm_up()
        with _own_modules(options):
            yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(str(error) or "nothing was saved yet") from None


COMMANDS = (
    Command("train", "train the models of an experiment side by side and compare them", train_arguments, train),
    Command("compare", "train models with several seeds each and compare them", compare_arguments, compare),
    Command(
        "evaluate", "measure the models of a run again, on the same data or on others", evaluate_arguments, evaluate
    ),
    Command("plot", "draw the learning curves of runs", plot_arguments, plot),
    Command("cost", "measure a gradient step of each model as units and steps grow", cost_arguments, cost),
)
