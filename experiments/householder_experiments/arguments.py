"""The arguments of the commands."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from householder.cli.arguments import natural, positive
from householder.cli.errors import nearest
from householder_experiments.catalogue import MODELS, TASKS
from householder_experiments.own import PATTERN, modules_in


def train_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``householder train``."""
    _experiment_arguments(parser, seeds=1)
    parser.set_defaults(over=None)
    parser.add_argument(
        "--devices", type=positive, default=1, metavar="N", help="processes on this machine that share each batch"
    )
    parser.add_argument(
        "--num-nodes",
        type=positive,
        default=1,
        metavar="N",
        help="machines that share each batch; set MASTER_ADDR, MASTER_PORT and NODE_RANK on each",
    )


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``householder compare``."""
    _experiment_arguments(parser, seeds=3)
    parser.add_argument(
        "--over",
        action="append",
        metavar="NAME=A,B",
        help="run each seed with each value of a setting, e.g. task.excerpt=1,2,3,4,5",
    )


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``householder evaluate``."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a directory that train has written")
    parser.add_argument("--models", "--model", metavar="A,B", help="only these models of the run")
    parser.add_argument("--data", type=Path, metavar="PATH", help="data in place of the run's training data")
    parser.add_argument(
        "--part",
        choices=("training", "validation", "test"),
        help="the part of the data to measure on (default: the part that judged the run)",
    )
    parser.add_argument(
        "--weights",
        choices=("best", "last"),
        default="best",
        help="weights of the epoch that judged the run, or of the last epoch (default: best)",
    )
    _import_argument(parser)


def plot_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``householder plot``."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a directory that train or compare has written"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("learning_curves.png"),
        metavar="FILE",
        help="the figure; its suffix names the format (default: learning_curves.png)",
    )


def cost_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``householder cost``."""
    parser.add_argument("--models", "--model", metavar="A,B", help="only these models (default: all)")
    parser.add_argument("--output", type=Path, default=Path("runs/cost"), metavar="DIR", help="default: runs/cost")


def _experiment_arguments(parser: argparse.ArgumentParser, seeds: int) -> None:
    """Add the options of every command that trains on a task."""
    parser.add_argument(
        "task", nargs="?", type=_task, metavar="TASK", help="a task listed below, or your own class, my_module:MyTask"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a YAML file of settings that replaces the packaged one"
    )
    parser.add_argument(
        "--models",
        "--model",
        metavar="A,B",
        help="models to train, listed below, your own my_module:MyRNN, or all (default: the experiment's models); "
        "models that the experiment does not list get as many parameters as its first",
    )
    parser.add_argument(
        "--epochs", type=positive, metavar="N", help="passes over the training data; with --resume, the total"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        default=None,
        help="the longer training of the documentation's figures, which copy has",
    )
    parser.add_argument(
        "--seed",
        type=natural,
        metavar="N",
        help="seed of parameters and batches; the first one if there are several (default: 1)",
    )
    parser.add_argument("--seeds", type=positive, metavar="K", help=f"runs of each model (default: {seeds})")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="your data in place of the packaged data: a folder, or a WAV file for audio",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="NAME=VALUE",
        help="change any setting, e.g. models.ornn.learning_rate=0.003 or task.validation=0.2",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="directory of the results (default: runs/TASK-DATE-TIME)"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue a run with its own settings; --epochs N extends it",
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="models trained at the same time (default: as many as the cores allow, given each model's threads)",
    )
    _import_argument(parser)
    parser.epilog = f"tasks:\n{_listed(TASKS)}\n\nmodels:\n{_listed(MODELS)}"


def _import_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--import",
        type=_module,
        action="append",
        default=[],
        dest="imports",
        metavar="MODULE",
        help="permit a module of your own to be imported, and thereby run, if settings in a file name its classes",
    )


def named_modules(options: argparse.Namespace) -> set[str]:
    """Return the modules of the user's own that a command line names, which may therefore be imported."""
    values = vars(options)
    texts = [values.get("task"), values.get("models"), *(values.get("changes") or ()), *(values.get("over") or ())]
    return {*values.get("imports", ()), *modules_in(text for text in texts if text is not None)}


def _listed(lines: Mapping[str, str]) -> str:
    return "\n".join(f"  {name:<16}{line}" for name, line in lines.items())


def _module(text: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise argparse.ArgumentTypeError(f"expected the name of a module, such as my_module, got {text!r}")
    return text


def _task(text: str) -> str:
    if ":" in text and not re.match(PATTERN, text):
        expected = "expected my_module:MyTask, with the name of a module that can be imported, not a file"
        raise argparse.ArgumentTypeError(f"{text!r}: {expected}")
    if text not in TASKS and ":" not in text:
        known = f"expected one of {', '.join(TASKS)}, or my_module:MyTask{nearest(text, TASKS)}"
        raise argparse.ArgumentTypeError(f"unknown task {text!r}: {known}")
    return text
