"""Progress fits where it is shown: a terminal of any width, a log, a notebook."""

import io
import re
import sys
from types import ModuleType

import pytest
from rich.console import Console

from householder_experiments.compare import summarise, summary_table
from householder_experiments.outcome import Outcome, Progress
from householder_experiments.report import new_console, progress_display, results_table

LATEST = {"train_loss": 0.123456, "train_accuracy": 91.0, "validation_accuracy": 90.0, "seconds": 3.0}


def test_texts_are_printed_as_they_are(capsys):
    new_console().print("my:Bug: [red]:bug:[/red] 12")
    assert capsys.readouterr().out == "my:Bug: [red]:bug:[/red] 12\n"


def progress(epoch, epochs=10):
    latest = {"epoch": epoch, "step": 5 * epoch} | LATEST if epoch else {}
    return Progress(5 * epoch, 5 * epochs, min(epoch + 1, epochs), epochs, latest, "%")


def shown(models, width, **options):
    file = io.StringIO()
    console = Console(file=file, width=width, **options)
    with progress_display(models, console) as display:
        for epoch in range(11):
            for model in models:
                display.update(model, progress(epoch))
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 130, 200])
@pytest.mark.parametrize("models", [["ornn"], ["ornn", "seed-1-excerpt-2/srnn-1000"]])
def test_a_bar_shrinks_and_keeps_what_matters(models, width):
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown(models, width, force_terminal=True, color_system=None))
    lines = [line.rstrip() for line in re.split(r"[\r\n]", text) if "100%" in line]
    assert lines
    for line in lines:
        assert len(line) <= width
        assert "━" in line
        assert "loss 0.1235" in line
        assert re.search(r"\d:\d\d", line)
    assert ("validation" in text) == (width == 200)


def test_a_bar_says_what_a_model_is_waiting_for():
    file = io.StringIO()
    with progress_display(["ornn"], Console(file=file, width=80, force_terminal=True)):
        pass
    assert "starting" in file.getvalue()


@pytest.mark.parametrize("width", [60, 79, 80, 120])
def test_a_narrow_table_leaves_out_what_matters_least_and_breaks_no_number(width):
    outcomes = [Outcome(name, 128, 3602, 80, 12.0, 0.1234, 88.33, "accuracy", "test", "%") for name in ("ornn", "lstm")]
    rows = summarise({(("task.validation", 0.25),): outcomes})
    for table in (results_table(outcomes, width), summary_table(rows, outcomes[0], width)):
        file = io.StringIO()
        Console(file=file, width=width).print(table)
        text = file.getvalue()
        assert "…" not in text
        assert len(re.findall(r"88\.33( %)?", text)) >= 2
        assert all(("parameters" in text, "seconds" in text, "3,602" in text)) == (width >= 80)
        assert any(("parameters" in text, "seconds" in text, "3,602" in text)) == (width >= 80)


def test_what_is_no_terminal_gets_a_line_an_epoch():
    lines = shown(["ornn", "lstm"], 80, force_terminal=False).splitlines()
    expected = "epoch {}/10  train loss 0.1235  train accuracy 91.00 %  validation accuracy 90.00 %"
    assert [line for line in lines if line.startswith("ornn")] == [f"ornn: {expected.format(k)}" for k in range(1, 11)]
    assert len(lines) == 20


def test_thousands_of_epochs_do_not_fill_a_log():
    file = io.StringIO()
    with progress_display(["a"], Console(file=file)) as display:
        for epoch in range(5001):
            display.update("a", progress(epoch, 5000))
    assert len(file.getvalue().splitlines()) == 500


def test_a_notebook_gets_its_own_bar(monkeypatch):
    pages = []

    class Handle:
        def update(self, page):
            pages.append(page)

    display = ModuleType("IPython.display")
    display.HTML = str
    display.display = lambda page, **_: pages.append(page) or Handle()
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    shown(["ornn", "<b>"], 80, force_jupyter=True)
    assert pages[0].count("<progress value='0.000' max='1'>") == 2
    assert pages[-1].count("<progress value='1.000' max='1'>") == 2
    assert "train accuracy 91.00 %" in pages[-1]
    assert "<b>" not in pages[-1]
