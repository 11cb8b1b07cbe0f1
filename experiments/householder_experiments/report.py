"""What a command prints and writes: progress while it runs, a table at its end."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table
from typing_extensions import override

from householder.cli.errors import one_line
from householder.cli.output import escape_what_is_lacking
from householder_experiments.files import table, write_text
from householder_experiments.outcome import Outcome, Progress, shown

_WIDE = 120  # characters for a bar and all its numbers; a narrower terminal shows only the loss
_NARROW = 80  # fewer characters than this are no room for all columns of a table
PARAMETERS, SECONDS = "parameters", "seconds"
"""Headings of the columns that a narrow table leaves out."""
_MOST_LINES = 500  # for each model, where the output is not a terminal
_TOLERANCE = 0.02
_BEGINNING = "starting"
"""What is shown of a model until its process has loaded all libraries."""


class _Console(Console):
    """A console that raises where its reader is gone; rich's ends the process as if a model had failed."""

    @override
    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled


def new_console(quiet: bool = False) -> Console:
    """Return the console of a command, which prints texts as they are.

    Output to a file or pipe is wide enough for every column of a table.
    """
    escape_what_is_lacking(sys.stdout)
    console = partial(_Console, quiet=quiet, markup=False, emoji=False, highlight=False)
    wide = console(width=_WIDE)
    return console() if wide.is_terminal or wide.is_jupyter else wide


def say(console: Console, text: str) -> None:
    """Print a line as it is, however long; names in it may have characters that cannot be printed."""
    console.print(one_line(text), soft_wrap=True)


def progress_display(models: Iterable[str], console: Console) -> "ProgressDisplay":
    """Return a bar for each model in a terminal, an HTML bar in a notebook, and a line per epoch elsewhere."""
    kind = _NotebookBars if console.is_jupyter else _TerminalBars if console.is_terminal else _Lines
    return kind(list(models), console)


class ProgressDisplay(ABC):
    """Somewhere to show progress in a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027
        pass

    @abstractmethod
    def update(self, name: str, progress: Progress) -> None:
        """Show how far a model is."""


class _TerminalBars(ProgressDisplay):
    def __init__(self, models: list[str], console: Console) -> None:
        longest = max(map(len, models), default=0)
        self._wide = console.width >= longest + _WIDE + 10
        name = TextColumn("{task.description}", markup=False)
        latest = TextColumn("{task.fields[latest]}", markup=False)
        time_left = TimeRemainingColumn(compact=not self._wide)
        taken = longest + (_WIDE if self._wide else 32)  # characters around the bar
        bar = BarColumn(bar_width=max(4, min(40, console.width - taken)))
        columns: list[ProgressColumn] = [name, bar, TaskProgressColumn(show_speed=False), latest, time_left]
        if self._wide:
            columns[3:] = [
                TextColumn("epoch {task.fields[epochs]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                time_left,
                latest,
            ]
        self._bars = Bars(*columns, console=console)
        self._tasks = {
            model: self._bars.add_task(model, total=None, start=False, latest=_BEGINNING, epochs="") for model in models
        }

    @override
    def __enter__(self) -> Self:
        self._bars.start()
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @override
    def update(self, name: str, progress: Progress) -> None:
        task = self._tasks[name]
        if not self._bars.tasks[task].started:
            self._bars.start_task(task)
        latest = numbers(progress) if self._wide else _loss(progress)
        epochs = f"{progress.latest.get('epoch', 0):.0f}/{progress.epochs}"
        self._bars.update(task, total=progress.steps, completed=progress.step, latest=latest, epochs=epochs)


class _Lines(ProgressDisplay):
    def __init__(self, models: list[str], console: Console) -> None:
        self._console = console
        self._printed = dict.fromkeys(models, 0)

    @override
    def update(self, name: str, progress: Progress) -> None:
        epoch = int(progress.latest.get("epoch", 0))
        every = -(-progress.epochs // _MOST_LINES)
        if epoch // every > self._printed[name] // every:
            self._printed[name] = epoch
            line = f"{name}: epoch {epoch}/{progress.epochs}  {numbers(progress)}"
            self._console.print(line, soft_wrap=True)


class _NotebookBars(ProgressDisplay):
    def __init__(self, models: list[str], console: Console) -> None:  # noqa: ARG002
        self._rows = dict.fromkeys(models, (0.0, _BEGINNING))

    @override
    def __enter__(self) -> Self:
        from IPython.display import HTML, display

        self._html = HTML
        self._handle = display(HTML(self._page()), display_id=True)
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self._handle.update(self._html(self._page()))

    @override
    def update(self, name: str, progress: Progress) -> None:
        self._rows[name] = progress.step / progress.steps, numbers(progress)
        self._handle.update(self._html(self._page()))

    def _page(self) -> str:
        rows = (
            f"<tr><td>{escape(name)}</td><td><progress value='{fraction:.3f}' max='1'></progress></td>"
            f"<td>{fraction:.0%}</td><td>{escape(latest)}</td></tr>"
            for name, (fraction, latest) in self._rows.items()
        )
        return f"<table>{''.join(rows)}</table>"


def results_table(outcomes: Iterable[Outcome], width: int) -> Table:
    """Return the table of how the models ended, for an output of so many characters."""
    outcomes = list(outcomes)
    losses = distinct([outcome.train_loss for outcome in outcomes])
    columns = [
        ("model", [outcome.model for outcome in outcomes]),
        ("hidden", [f"{outcome.hidden_size}" for outcome in outcomes]),
        (PARAMETERS, [f"{outcome.parameters:,}" for outcome in outcomes]),
        ("train loss", losses),
        (outcomes[0].measured, [outcome.metric_shown for outcome in outcomes]),
        ("epochs", [f"{outcome.epochs}" for outcome in outcomes]),
        (SECONDS, [f"{outcome.seconds:.0f}" for outcome in outcomes]),
    ]
    return filled(Table(box=box.SIMPLE_HEAD), columns, width)


def filled(table: Table, columns: Iterable[tuple[str, list[str]]], width: int) -> Table:
    """Fill a table with columns and their headings; a narrow one lacks those that matter least and breaks no number."""
    columns = [column for column in columns if width >= _NARROW or column[0] not in (PARAMETERS, SECONDS)]
    for heading, _ in columns:
        is_name = heading == "model"
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=not is_name)
    for row in zip(*(texts for _, texts in columns), strict=True):
        table.add_row(*row)
    return table


def distinct(values: Iterable[float | None]) -> list[str]:
    """Format numbers with the fewest digits, from four to ten, that tell different ones apart.

    Examples
    --------
    >>> from householder_experiments.report import distinct
    >>> distinct([1.31, None, 1.30004, 1.30001])
    ['1.31000', '-', '1.30004', '1.30001']
    """
    values = list(values)
    numbers = [value for value in values if value is not None]
    for digits in range(4, 11):
        texts = {value: shown(value, digits=digits) for value in numbers}
        if len(set(texts.values())) == len(texts):
            break
    return ["-" if value is None else texts[value] for value in values]


def uneven_parameters(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a line for each model whose number of parameters is not within 2 % of the first model's."""
    first, *others = {outcome.model: outcome for outcome in outcomes}.values()
    lines = []
    for other in others:
        more = other.parameters / first.parameters - 1
        if abs(more) > _TOLERANCE:
            lines.append(
                f"{other.model} has {abs(100 * more):.1f} % {'more' if more > 0 else 'fewer'} parameters "
                f"than {first.model}"
            )
    return lines


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write dictionaries with the same keys, at least one, as the rows of a CSV file."""
    write_text(path, table(rows))


def numbers(progress: Progress) -> str:
    """Return the losses and metrics of the last whole epoch in a line."""
    names = (key for key in progress.latest if key not in ("epoch", "step", "seconds"))
    units = {"train_loss": ""}
    return "  ".join(
        f"{key.replace('_', ' ')} {shown(progress.latest[key], units.get(key, progress.unit))}" for key in names
    )


def _loss(progress: Progress) -> str:
    return f"loss {shown(progress.latest['train_loss'])}" if progress.latest else ""
