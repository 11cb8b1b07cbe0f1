"""What a command shows and leaves: progress while it runs, a table at its end."""

import csv
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from householder.experiments.files import write_whole
from householder.experiments.outcome import Outcome, Progress

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_PLAIN_LINES = 10  # per model, where the output is not a terminal


class ProgressDisplay:
    """A bar for each model; on something that is not a terminal, a line now and then."""

    def __init__(self, models: Iterable[str], console: Console) -> None:
        self._console = console
        self._bars = Bars(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            TextColumn("epoch"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[latest]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {name: self._bars.add_task(name, total=None, start=False, latest="") for name in models}
        self._printed = dict.fromkeys(self._tasks, 0)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, name: str, progress: Progress) -> None:
        """Show how far a model is."""
        latest = _numbers(progress.latest)
        task = self._tasks[name]
        if not self._bars.tasks[task].started:
            self._bars.start_task(task)
        done = progress.epochs * progress.step / progress.steps
        self._bars.update(task, total=progress.epochs, completed=int(done), latest=latest)
        part = _PLAIN_LINES * int(progress.latest.get("epoch", 0)) // progress.epochs
        if not self._console.is_terminal and part > self._printed[name]:
            self._printed[name] = part
            self._console.print(
                f"{name}: epoch {progress.latest['epoch']}/{progress.epochs}  {latest}", highlight=False
            )


def results_table(outcomes: Iterable[Outcome]) -> Table:
    """Return the table of how the models ended."""
    outcomes = list(outcomes)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("model")
    for heading in ("hidden", "parameters", "train loss", f"{outcomes[0].judged_on} {outcomes[0].metric_name}"):
        table.add_column(heading, justify="right")
    table.add_column("epochs", justify="right")
    table.add_column("seconds", justify="right")
    for outcome in outcomes:
        table.add_row(
            outcome.model,
            f"{outcome.hidden_size}",
            f"{outcome.parameters:,}",
            "-" if outcome.train_loss is None else f"{outcome.train_loss:.2g}",
            outcome.metric_shown,
            f"{outcome.epochs}",
            f"{outcome.seconds:.0f}",
        )
    return table


def write_rows(path: Path, rows: "Iterable[DataclassInstance]") -> None:
    """Write dataclasses of one kind, at least one, as the rows of a CSV file."""
    first, *rest = map(asdict, rows)

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, first)
            writer.writeheader()
            writer.writerows([first, *rest])

    write_whole(path, write)


def _numbers(row: dict[str, float]) -> str:
    shown = (key for key in row if key not in ("epoch", "step", "seconds"))
    return "  ".join(f"{key.replace('_', ' ')} {row[key]:.4f}" for key in shown)
