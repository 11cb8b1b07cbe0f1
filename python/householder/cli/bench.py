"""``householder bench``: speed and error on this machine compared with torch's, in a minute."""

import copy
import statistics
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from householder.cli.arguments import positive, seconds
from householder.cli.errors import UserError
from householder.cli.info import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

OURS = "householder"
WARM_UP = 1


class Case(NamedTuple):
    """Modules that do the same work; each maps an input to an output with its own parameters."""

    name: str
    shape: tuple[int, ...]
    candidates: "dict[str, nn.Module]"


class Figure(NamedTuple):
    """The measurements of a candidate."""

    milliseconds: float
    error: float


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--seconds", type=seconds, metavar="S", default=60.0, help="how long to measure in all (default: 60)"
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="threads of torch and of this package")
    parser.add_argument(
        "--output", type=Path, default=Path("bench.png"), metavar="FILE", help="the figure (default: bench.png)"
    )


def bench(options: Namespace) -> int:
    """Measure, print a table, draw a figure; the exit status is 0.

    Raises
    ------
    UserError
        torch is missing, or the figure cannot be written.
    """
    try:
        import torch
    except ModuleNotFoundError:
        raise UserError("torch is not installed; this needs: pip install torch") from None
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    machine = describe()
    processor, instructions = machine["processor"], machine["instruction set"]
    print(f"{processor}, {instructions}, {torch.get_num_threads()} threads, torch {machine['torch']}")
    print("float32, forward and backward with all gradients; the error is relative to float64\n")
    figures = {}
    end = time.perf_counter() + options.seconds
    chosen = cases()
    for remaining, case in zip(range(len(chosen), 0, -1), chosen, strict=True):
        figures[case.name] = measure(case, (end - time.perf_counter()) / remaining)
        print(case.name)
        for name, figure in figures[case.name].items():
            ratio = figure.milliseconds / figures[case.name][OURS].milliseconds
            print(f"  {name:<36}{figure.milliseconds:9.3f} ms{ratio:8.2f}x   error {figure.error:.0e}")
    _draw(figures, options.output)
    return 0


def cases() -> list[Case]:
    """Make the measured cases: three recurrences and two single applications."""
    from torch import nn
    from torch.nn.utils.parametrizations import orthogonal

    import householder.torch as ht

    def recurrence(n: int, m: int, batch: int, steps: int) -> Case:
        return Case(
            f"recurrence, n = {n}, m = {m}, batch {batch}, {steps} steps",
            (steps, batch, 8),
            {
                OURS: ht.OrthogonalRNN(8, n, num_reflections=m, nonlinearity="tanh"),
                "torch.nn.RNN (not orthogonal)": nn.RNN(8, n),
                "torch.nn.LSTM (not orthogonal)": nn.LSTM(8, n),
            },
        )

    def application(n: int, m: int, batch: int) -> Case:
        return Case(
            f"W h, n = {n}, m = {m}, batch {batch}",
            (batch, n),
            {
                OURS: ht.Orthogonal(n, num_reflections=m, bias=False),
                "parametrizations.orthogonal": orthogonal(nn.Linear(n, n, bias=False)),
                "torch.nn.Linear (not orthogonal)": nn.Linear(n, n, bias=False),
            },
        )

    return [
        recurrence(128, 16, 50, 400),
        recurrence(256, 32, 50, 200),
        recurrence(128, 128, 50, 400),
        application(128, 16, 50),
        application(512, 64, 64),
    ]


def measure(case: Case, seconds: float) -> dict[str, Figure]:
    """Compare each candidate with float64, then time them in turn, in rounds, for this many seconds."""
    import torch

    end = time.perf_counter() + seconds
    x = torch.randn(case.shape)
    calls: dict[str, Callable[[], object]] = {}
    errors = {}
    for name, module in case.candidates.items():
        g = torch.randn_like(_output(module, x))
        errors[name] = _error(_results(module, x, g), _results(copy.deepcopy(module).double(), x.double(), g.double()))
        calls[name] = lambda module=module, g=g: _results(module, x, g)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in calls}
    while time.perf_counter() < end or len(times[OURS]) <= WARM_UP:
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    return {name: Figure(1e3 * statistics.median(each[WARM_UP:]), errors[name]) for name, each in times.items()}


def _output(module: "nn.Module", x: "Tensor") -> "Tensor":
    output: Tensor | tuple[Tensor, object] = module(x)
    return output[0] if isinstance(output, tuple) else output


def _results(module: "nn.Module", x: "Tensor", g: "Tensor") -> "list[Tensor]":
    """Return the output and the gradients of all parameters."""
    from torch.autograd import grad

    output = _output(module, x)
    return [output, *grad(output, list(module.parameters()), g)]


def _error(results: "list[Tensor]", exact: "list[Tensor]") -> float:
    pairs = [(a.detach().double(), b.detach()) for a, b in zip(results, exact, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-300)) for a, b in pairs)


def _draw(figures: dict[str, dict[str, Figure]], path: Path) -> None:
    try:
        from matplotlib.figure import Figure as Canvas
    except ModuleNotFoundError:
        print("\nNo figure: matplotlib is not installed (pip install matplotlib)")
        return
    canvas = Canvas(figsize=(11, 6), layout="constrained")
    panels: Any = canvas.subplots(1, 2, sharey=True)
    bars = [(case, name, figure) for case, of_case in figures.items() for name, figure in of_case.items()]
    places = [i + len(figures) - list(figures).index(case) for i, (case, _, _) in enumerate(reversed(bars))][::-1]
    colours = ["tab:blue" if name == OURS else "tab:gray" for _, name, _ in bars]
    for panel, title, values in (
        (panels[0], "milliseconds, forward and backward", [figure.milliseconds for _, _, figure in bars]),
        (panels[1], "relative error", [figure.error for _, _, figure in bars]),
    ):
        panel.barh(places, values, color=colours)
        panel.set(xscale="log", title=title, xlim=(min(values) / 10, max(values) * 3))
        panel.grid(axis="x", alpha=0.3)
    labels = [f"{case}: {name}" if name == OURS else name for case, name, _ in bars]
    panels[0].set_yticks(places, labels, fontsize=8)
    try:
        canvas.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {path}: {error}") from None
    print(f"\nFigure: {path}")
