"""``householder plot``: the learning curves of runs in one figure."""

from argparse import Namespace

from householder_experiments.curves import find_runs, read_curves
from householder_experiments.figures import learning_curves
from householder_experiments.report import new_console, say


def plot(options: Namespace) -> int:
    """Draw as the command line says; return the exit status."""
    learning_curves(read_curves(find_runs(options.runs)), options.output)
    say(new_console(), f"figure: {options.output}")
    return 0
