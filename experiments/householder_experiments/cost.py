"""``householder cost``: how the time of one gradient step grows, model by model (the paper's Table 1, measured)."""

import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from pydantic import TypeAdapter
from rich import box
from rich.table import Table

from householder.cli.errors import UserError, nearest
from householder_experiments.catalogue import model_title
from householder_experiments.figures import new_figure, write_figure
from householder_experiments.models import AnyModel, ModelSettings
from householder_experiments.models.rivals import rival_settings
from householder_experiments.report import new_console, say, write_rows

if TYPE_CHECKING:
    from householder_experiments.tasks import Task

SIZES = (32, 64, 128, 256, 512)
LENGTHS = (32, 64, 128, 256, 512)
MIDDLE_SIZE, MIDDLE_LENGTH = 128, 64
_TASK = cast("Task", SimpleNamespace(input_size=1, output_size=1, every_step=False))
_REPEATS = 5
_PATIENCE_SECONDS = 1.0


@dataclass(frozen=True)
class Claim:
    """The claimed norm of W and cost of a step, for n units, m reflections and sequences of length T."""

    norm: str
    step: str


CLAIMS: Mapping[str, Claim] = {
    "ornn": Claim("1", "T n m"),
    "ornn-soft": Claim("1", "T n² + n³"),
    "unitary": Claim("1", "T n² + n² m"),
    "lstm": Claim("-", "T n²"),
    "srnn": Claim("any", "T n²"),
    "srnn-orthogonal": Claim("any", "T n²"),
    "irnn": Claim("any", "T n²"),
    "free-rnn": Claim("any", "T n²"),
    "urnn": Claim("1", "T n log n"),
    "rc-urnn": Claim("1", "T n² + n² log n"),
    "fc-urnn": Claim("1", "T n² + n³"),
    "lie-rnn": Claim("1", "T n² + n³"),
    "usv": Claim("1 + r", "T n² + n³"),
    "delta": Claim("-", "T n²"),
    "gated-delta": Claim("-", "T n²"),
    "delta-product": Claim("-", "T n²"),
}


@dataclass(frozen=True)
class Measurement:
    """The time of one gradient step on one sequence, and the norm of W after a few steps."""

    model: str
    size: int
    length: int
    seconds: float
    norm: float | None


def cost(options: Namespace) -> int:
    """Measure as the command line says; return the exit status."""
    kinds = list(CLAIMS) if options.models is None else list(dict.fromkeys(options.models.split(",")))
    if unknown := [kind for kind in kinds if kind not in CLAIMS]:
        raise UserError(f"unknown model {unknown[0]!r}: there are {', '.join(CLAIMS)}{nearest(unknown[0], CLAIMS)}")
    torch.set_num_threads(1)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {options.output}: {error.strerror}") from error
    console = new_console()
    measured: list[Measurement] = []
    for kind in kinds:
        with console.status(f"{kind}: {len(measured)} measured"):
            measured += measure_all(kind, SIZES, LENGTHS)
    write_rows(options.output / "cost.csv", map(asdict, measured))
    draw(measured, options.output / "cost.png")
    console.print(cost_table(measured))
    say(console, f"table: {options.output / 'cost.csv'}")
    say(console, f"figure: {options.output / 'cost.png'}")
    return 0


def measure_all(kind: str, sizes: Iterable[int], lengths: Iterable[int]) -> list[Measurement]:
    """Measure a kind of model over sizes, until a step takes too long, and over lengths of the sequence."""
    measured: list[Measurement] = []
    for size in sizes:
        measured.append(measure(kind, size, MIDDLE_LENGTH))
        if measured[-1].seconds > _PATIENCE_SECONDS:
            break
    known = {(each.size, each.length) for each in measured}
    places = ((MIDDLE_SIZE, length) for length in lengths)
    return measured + [measure(kind, *place) for place in places if place not in known]


def measure(kind: str, size: int, length: int) -> Measurement:
    """Time gradient steps, optimizer included, and keep the fastest after the first, which sets the libraries up."""
    torch.manual_seed(0)
    settings: ModelSettings = TypeAdapter(AnyModel).validate_python(
        {"kind": kind, "hidden_size": size} | rival_settings()[kind]
    )
    model = settings.build(_TASK)
    optimizer = settings.optimizer(model)
    inputs = torch.randn(length, 1, 1)
    seconds = []
    for _ in range(_REPEATS + 1):
        begun = time.perf_counter()
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
        if seconds[-1] > _PATIENCE_SECONDS:
            break
    w = settings.transition(model)
    norm = None if w is None else float(torch.linalg.matrix_norm(w.detach(), 2))
    return Measurement(kind, size, length, min(seconds[1:] or seconds), norm)


def exponent(measured: Iterable[Measurement], along: str) -> float:
    """Return the power of ``"size"`` or ``"length"`` with which the time grows between the two largest values."""
    middle = ("length", MIDDLE_LENGTH) if along == "size" else ("size", MIDDLE_SIZE)
    line = [each for each in measured if getattr(each, middle[0]) == middle[1]]
    line.sort(key=lambda each: cast("int", getattr(each, along)))
    before, last = line[-2:]
    growth = np.log(last.seconds / before.seconds) / np.log(getattr(last, along) / getattr(before, along))
    return float(growth)


def cost_table(measured: Iterable[Measurement]) -> Table:
    """Return a table that compares the claims about each model with the measurements."""
    by_model: dict[str, list[Measurement]] = {}
    for each in measured:
        by_model.setdefault(each.model, []).append(each)
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("model", "norm", "step"):
        table.add_column(heading)
    for heading in ("norm found", "grows as n^", "as T^", f"ms at n = {MIDDLE_SIZE}, T = {MIDDLE_LENGTH}"):
        table.add_column(heading, justify="right")
    for kind, line in by_model.items():
        claim = CLAIMS[kind]
        middle = next(each for each in line if (each.size, each.length) == (MIDDLE_SIZE, MIDDLE_LENGTH))
        table.add_row(
            kind,
            claim.norm,
            claim.step,
            "-" if middle.norm is None else f"{middle.norm:.4f}",
            f"{exponent(line, 'size'):.1f}",
            f"{exponent(line, 'length'):.1f}",
            f"{1000 * middle.seconds:.2f}",
        )
    return table


def draw(measured: Iterable[Measurement], path: Path) -> None:
    """Draw the time of a step over n and over T, both axes logarithmic."""
    measured = list(measured)
    figure = new_figure(11, 4.5)
    over_size, over_length = figure.subplots(1, 2, sharey=True)
    for number, kind in enumerate(dict.fromkeys(each.model for each in measured)):
        of_kind = [each for each in measured if each.model == kind]
        for axes, along, fixed in ((over_size, "size", "length"), (over_length, "length", "size")):
            middle = MIDDLE_LENGTH if fixed == "length" else MIDDLE_SIZE
            line = sorted(
                (getattr(each, along), 1000 * each.seconds) for each in of_kind if getattr(each, fixed) == middle
            )
            axes.plot(
                *zip(*line, strict=True), "o-", color=f"C{number}", markersize=3, linewidth=1, label=model_title(kind)
            )
    over_size.set(xlabel=f"n (T = {MIDDLE_LENGTH})", ylabel="ms for one gradient step, B = 1")
    over_length.set(xlabel=f"T (n = {MIDDLE_SIZE})")
    for axes, ticks in ((over_size, SIZES), (over_length, LENGTHS)):
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
    figure.legend(*over_size.get_legend_handles_labels(), fontsize="small", loc="outside right center")
    write_figure(figure, path)
