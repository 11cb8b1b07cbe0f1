"""Write docs/command-line.md from the code: ``python docs/command_line.py``."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic.fields import FieldInfo

from householder.cli.entry import commands
from householder_experiments.catalogue import MODELS, TASKS
from householder_experiments.experiment import Experiment
from householder_experiments.models import PACKAGED_MODELS, ModelSettings
from householder_experiments.settings import Settings, Unit, field_type
from householder_experiments.tasks import PACKAGED_TASKS

PAGE = Path(__file__).with_name("command-line.md")
TABLE = ["| setting | type | default | unit | |", "|---|---|---|---|---|"]


def page() -> str:
    """Return the page."""
    lines = [
        "# Commands and settings",
        "",
        "All commands, tasks, models and settings, as `python docs/command_line.py` reads them from the code.",
        "",
        "## Commands",
    ]
    for command in commands():
        lines += ["", f"### householder {command.name}", "", f"{command.summary[0].upper()}{command.summary[1:]}.", ""]
        lines += arguments(command.add_arguments)
    lines += ["", "## Settings of an experiment", "", "`--set NAME=VALUE`, or a YAML file given by `--config`.", ""]
    lines += settings(Experiment, "", {})
    lines += ["", "## Tasks", "", "`--set task.NAME=VALUE`. Your own task is `my_module:MyTask`.", ""]
    for name, kind in PACKAGED_TASKS.items():
        lines += section(name, TASKS[name], kind, "task.", {})
    lines += ["## Models", "", "`--set models.MODEL.NAME=VALUE`. Your own model is `my_module:MyRNN`.", ""]
    shared = ModelSettings.model_fields
    lines += ["### Settings of every model", "", *settings(ModelSettings, "models.MODEL.", {}), ""]
    for name, kind in PACKAGED_MODELS.items():
        lines += section(name, MODELS[name], kind, f"models.{name}.", shared)
    return "\n".join(lines).rstrip() + "\n"


def arguments(declare: object) -> Iterator[str]:
    """Yield the rows of a command's arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    declare(parser)  # type: ignore[operator]
    actions = parser._actions
    if not actions:
        yield "It takes no arguments."
        return
    yield from ("| argument | |", "|---|---|")
    for action in actions:
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        wanted = action.metavar or "|".join(action.choices or [])
        value = "" if action.nargs == 0 else f" `{cell(wanted)}`"
        yield f"| {f'{names}{value}'.strip()} | {cell(action.help or '')} |"


def section(name: str, line: str, kind: type[Settings], prefix: str, shared: Mapping[str, FieldInfo]) -> list[str]:
    """Return the section of a task or model."""
    return [f"### {name}", "", f"{line[0].upper()}{line[1:]}.", "", *settings(kind, prefix, shared), ""]


def settings(kind: type[Settings], prefix: str, shared: Mapping[str, FieldInfo]) -> list[str]:
    """Return a table of settings, without those that are shared."""
    fields = {name: field for name, field in kind.model_fields.items() if name not in (*shared, "kind")}
    rows = [f"| `{prefix}{name}` | {' | '.join(described(field))} |" for name, field in fields.items()]
    return [*TABLE, *rows] if rows else ["It has no other settings."]


def described(field: FieldInfo) -> list[str]:
    """Return the cells of a setting's row."""
    kind = field_type(field)
    if "householder_experiments." in kind:  # all kinds of tasks, or models by name
        kind = "models by name" if "dict" in kind else "a task"
    default = "must be given" if field.is_required() else "none" if field.default is None else f"`{field.default}`"
    return [cell(kind), default, unit(field), cell(field.description or "")]


def unit(field: FieldInfo) -> str:
    """Return the unit of a setting, if its numbers have one."""
    found = [each.name for each in (*field.metadata, *inner(field.annotation)) if isinstance(each, Unit)]
    return found[0] if found else ""


def inner(annotation: object) -> Iterator[object]:
    """Yield what annotates a type within an optional one."""
    for each in getattr(annotation, "__args__", ()):
        yield from getattr(each, "__metadata__", ())


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
