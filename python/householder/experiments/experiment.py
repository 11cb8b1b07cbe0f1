"""An experiment: a task, the models that are compared on it, and how long they train."""

import re
from collections.abc import Collection, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from householder.experiments.errors import UserError
from householder.experiments.files import HOLDER, LOCK, write_text
from householder.experiments.models import AnyModel
from householder.experiments.models.base import Positive
from householder.experiments.outcome import CONFIG, RESULTS
from householder.experiments.settings import Settings
from householder.experiments.tasks import TaskSettings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_RESERVED = {CONFIG, RESULTS, LOCK, HOLDER, "learning_curves.png", "generated.png"}
"""Files in the directory of a run, where each model has a folder of its name."""


class Experiment(Settings):
    """Everything that determines a run's result."""

    task: TaskSettings
    models: Annotated[dict[str, AnyModel], Field(min_length=1)]
    epochs: Positive
    batch_size: Positive
    seed: Annotated[int, Field(ge=0)] = 1
    threads: Positive = 1
    patience: Annotated[int, Field(ge=0)] | None = None
    """Epochs without a better validation metric that a model may have; one more ends it. Its best state is judged."""
    accelerator: Literal["cpu", "cuda", "auto"] = "cpu"
    precision: Literal["32-true", "64-true"] = "32-true"
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0

    @field_validator("models", mode="before")
    @classmethod
    def _kind_defaults_to_name(cls, models: object) -> object:
        if not isinstance(models, dict):
            return models
        for name in models:
            _check_name(name)
        return {name: {"kind": name} | model if isinstance(model, dict) else model for name, model in models.items()}

    def only(self, names: Collection[str]) -> "Experiment":
        """Return the experiment with the named models alone."""
        if unknown := [name for name in names if name not in self.models]:
            raise UserError(f"unknown model {unknown[0]!r}: this experiment has {', '.join(self.models)}")
        return self.model_copy(update={"models": {name: self.models[name] for name in names}})

    def save(self, path: Path) -> None:
        """Write the settings as YAML."""
        write_text(path, yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False))


def _check_name(name: object) -> None:
    """Refuse what cannot be the name of a model's folder."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"{_shown(name)} cannot name a model: expected at most 100 letters, digits, dots, dashes and underscores, "
            "the first a letter or a digit"
        )
    if name.lower() in _RESERVED:
        raise ValueError(f"{name!r} cannot name a model: a run has a file of that name")


def load_experiment(path: Path, changes: Iterable[str] = ()) -> Experiment:
    """Read an experiment from a YAML file.

    Parameters
    ----------
    path : Path
        The file, or the name of one that comes with the package, such as ``figure4-addition-paper``.
    changes : iterable of str
        Settings to change, as ``"models.ornn.learning_rate=0.003"``; values are YAML.

    Raises
    ------
    UserError
        If the file or a change is missing, garbled or not what the settings allow.
    """
    if not path.exists() and packaged_config(str(path)).is_file():
        path = packaged_config(str(path))
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not valid YAML{_position(error)}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{path} is not an experiment: expected settings such as 'epochs: 400'")
    for change in changes:
        apply_change(raw, change)
    return parse_experiment(raw, path.name)


def parse_experiment(raw: dict[str, Any], origin: str) -> Experiment:
    """Check settings and give them their types; complaints begin with their origin."""
    try:
        return Experiment.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"{origin}: {_first(error)}") from error
    except RecursionError as error:
        raise UserError(f"{origin}: settings are nested too deeply") from error


def packaged_config(name: str) -> Path:
    """Return settings that come with the package: those of a task, or of a figure or table of the paper."""
    return Path(str(files("householder.experiments"))) / "configs" / f"{name}.yaml"


def apply_change(raw: dict[str, Any], change: str, origin: str = "--set") -> None:
    """Change one of the settings, given as ``"models.ornn.learning_rate=0.003"``; complaints begin with its origin."""
    path, equals, value = change.partition("=")
    *parents, leaf = path.split(".")
    if not equals or not leaf:
        raise UserError(f"{origin} {change!r}: expected NAME=VALUE, such as models.ornn.learning_rate=0.003")
    node = raw
    for key in parents:
        node = node.get(key, {})
        if not isinstance(node, dict) or not node:
            raise UserError(f"{origin} {change!r}: there is no {key!r} to change")
    try:
        node[leaf] = yaml.safe_load(value)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{origin} {change!r}: {value!r} is not a valid YAML value") from error


def _position(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f": line {mark.line + 1}, column {mark.column + 1}: {error.problem}" if mark else ""  # type: ignore[attr-defined]


def _first(error: ValidationError) -> str:
    details = error.errors()[0]
    where = list(details["loc"])
    if where[0] in ("task", "models"):
        kind = 1 if where[0] == "task" else 2
        del where[kind : kind + 1]  # pydantic's name for the kind of task or model
    name = ".".join(str(part) if str(part).isprintable() else repr(part) for part in where)
    if details["type"] == "union_tag_invalid":
        return (
            f"{name}: unknown kind {_shown(details['ctx']['tag'])}, expected one of {details['ctx']['expected_tags']}"
        )
    if details["type"] == "extra_forbidden":
        return f"{name}: there is no such setting"
    message = details["msg"].removeprefix("Value error, ")
    given = details["input"]
    shown = "" if details["type"] == "missing" or isinstance(given, dict) else f", got {_shown(given)}"
    return f"{name}: {message[0].lower()}{message[1:]}{shown}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
