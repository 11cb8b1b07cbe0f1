"""An experiment: a task, the models that are compared on it, and how long they train."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import yaml
from pydantic import Field, ValidationError, field_validator

from householder.cli.errors import UserError, nearest
from householder_experiments.files import HOLDER, LOCK, write_text
from householder_experiments.models import PACKAGED_MODELS, AnyModel, SequenceModel
from householder_experiments.models.base import Positive
from householder_experiments.models.rivals import count_parameters, own_settings, resized, rival_settings
from householder_experiments.outcome import CONFIG, RESULTS
from householder_experiments.readers import is_there, parse_yaml, read_yaml
from householder_experiments.settings import CUSTOM, Settings, Unit
from householder_experiments.tasks import PACKAGED_TASKS, Task, TaskSettings

ALL = "all"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_RESERVED = {CONFIG, RESULTS, LOCK, HOLDER, "learning_curves.png", "generated.png"}
"""Files in the directory of a run; no model's folder may have one of these names."""


class Experiment(Settings):
    """Everything that determines a run's result."""

    task: TaskSettings
    """What is learned; its settings are listed with each task."""
    models: Annotated[dict[str, AnyModel], Field(min_length=1)]
    """The models, by name. A model's kind is its name, unless ``kind`` is set."""
    epochs: Annotated[Positive, Unit("epochs")]
    """Passes over the training data. Tasks that generate their data set how many batches an epoch has."""
    batch_size: Annotated[Positive, Unit("sequences")]
    """Sequences per update."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of parameters and batches."""
    threads: Annotated[Positive, Unit("threads")] = 1
    """Threads of each model's process."""
    patience: Annotated[int, Field(ge=0), Unit("epochs")] | None = None
    """Training ends after more epochs than this without a better validation metric. The best state is judged."""
    accelerator: Literal["cpu", "cuda", "auto"] = "cpu"
    """Device of the models; ``auto`` takes a GPU if there is one."""
    precision: Literal["32-true", "64-true"] = "32-true"
    """Precision of parameters and states: float32 or float64."""
    checkpoint_seconds: Annotated[float, Field(ge=0), Unit("seconds")] = 10.0
    """Time from one checkpoint to the next."""

    @field_validator("models", mode="before")
    @classmethod
    def _kind_defaults_to_name(cls, models: object) -> object:
        if not isinstance(models, dict):
            return models
        for name in models:
            _check_name(name)
        return {name: {"kind": name} | model if isinstance(model, dict) else model for name, model in models.items()}

    def only(self, names: Collection[str]) -> "Experiment":
        """Return the experiment with only the named models."""
        if unknown := [name for name in names if name not in self.models]:
            known = f"this experiment has {', '.join(self.models)}{nearest(unknown[0], self.models)}"
            raise UserError(f"unknown model {unknown[0]!r}: {known}")
        return self.model_copy(update={"models": {name: self.models[name] for name in names}})

    @property
    def dtype(self) -> torch.dtype:
        """The type of real parameters and states."""
        return torch.float64 if self.precision == "64-true" else torch.float32

    @contextmanager
    def default_dtype(self) -> Iterator[None]:
        """Let torch make tensors in this precision in the ``with`` block."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def network(self, name: str, task: Task) -> SequenceModel:
        """Return the network of a model for a task, initialised from torch's current seed."""
        with self.default_dtype():
            network = self.models[name].build(task)
        # For classes that fix a type. Unlike to(dtype), double() leaves complex parameters complex.
        return network.double() if self.dtype == torch.float64 else network

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


def load_experiment(
    path: Path, changes: Iterable["str | Change"] = (), models: Iterable[str] | None = None, *, full: bool = False
) -> Experiment:
    """Read an experiment from a YAML file.

    Parameters
    ----------
    path : Path
        The file, or the name of one that comes with the package, such as ``figure4-addition-paper``.
    changes : iterable of str or Change
        Settings to change, as ``"models.ornn.learning_rate=0.003"``; values are YAML.
    models : iterable of str, optional
        The models to keep: the file's, other kinds, or classes as ``"my_module:MyRNN"``; ``["all"]`` is every kind.
    full : bool
        Whether the settings under the file's ``full`` replace the others.

    Raises
    ------
    UserError
        If the file, a name or a change is missing, garbled or not what the settings allow.
    """
    if not is_there(path) and packaged_config(str(path)).is_file():
        path = packaged_config(str(path))
    raw = _raw(path)
    longer = raw.pop("full", None)
    if full:
        if not isinstance(longer, dict):
            raise UserError(f"{path.name} has no settings under 'full': leave out --full")
        raw |= longer
    names = None if models is None else _add_models(raw, list(models))
    applied = [change if isinstance(change, Change) else Change(change) for change in changes]
    for change in applied:
        apply_change(raw, change)
    experiment = parse_experiment(raw, path.name, applied)
    return experiment if names is None else experiment.only(names)


def saved_experiment(path: Path) -> Experiment:
    """Read the experiment of a run, which states all sizes. Nothing is imported, and no data are read.

    Raises
    ------
    UserError
        The file is missing, garbled or not what the settings allow.
    """
    return validated(_raw(path), path.name)


def _raw(path: Path) -> dict[str, Any]:
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise UserError(f"{path} is not an experiment: expected settings such as 'epochs: 400'")
    return raw


def _add_models(raw: dict[str, Any], asked: list[str]) -> list[str]:
    """Add the requested models that a file lacks; return the names of all requested models."""
    if not isinstance(raw.get("models"), dict):
        return asked  # parsing will complain
    known, rivals = raw["models"], rival_settings()
    if asked == [ALL]:
        asked = list(dict.fromkeys([*known, *rivals]))
    names = []
    for name in asked:
        place, name = name, name.rpartition(":")[2]
        if name in names:
            raise UserError(f"model {name!r} is given twice: name each model once")
        if ":" in place:
            known.setdefault(name, own_settings(place))
        elif name in rivals:
            known.setdefault(name, dict(rivals[name]))
        elif name not in known:
            everything = list(dict.fromkeys([*known, *rivals]))
            raise UserError(
                f"unknown model {name!r}: there are {', '.join(everything)}, and your own as my_module:MyRNN, such as "
                f"torch.nn:GRU{nearest(name, everything)}"
            )
        names.append(name)
    return names


def parse_experiment(raw: dict[str, Any], origin: str, changes: Collection["Change"] = ()) -> Experiment:
    """Validate settings as :func:`validated` does, and choose sizes for models without one.

    A chosen size gives as many parameters as the first model with a size, for the task's inputs and outputs.
    """
    models = raw.get("models")
    settings = models if isinstance(models, dict) else {}
    unsized = [name for name, model in settings.items() if isinstance(model, dict) and "hidden_size" not in model]
    reference = next((name for name in settings if name not in unsized), None)
    if unsized and reference is not None:
        raw = raw | {"models": settings | {name: settings[name] | {"hidden_size": 1} for name in unsized}}
    experiment = validated(raw, origin, changes)
    if reference is None or not unsized:
        return experiment
    task, sized = experiment.task.load(), dict(experiment.models)
    try:
        parameters = count_parameters(sized[reference], task)
        sized |= {name: resized(sized[name], task, parameters) for name in unsized}
    except ValueError as error:
        place = f"models.{reference}"
        raise UserError(f"{_blamed(place, origin, changes)}{place}: {error}") from error
    return experiment.model_copy(update={"models": sized})


def validated(raw: dict[str, Any], origin: str, changes: Collection["Change"] = ()) -> Experiment:
    """Validate settings.

    Parameters
    ----------
    raw : dict
        The settings.
    origin : str
        Where they are from; error messages begin with it.
    changes : collection of Change
        What has changed some of them; error messages about these begin with the option that asked for the change.
    """
    try:
        return Experiment.model_validate(raw)
    except ValidationError as error:
        place, message = _first(error, raw)
        raise UserError(f"{_blamed(place, origin, changes)}{place}{': ' if place else ''}{message}") from error
    except RecursionError as error:
        raise UserError(f"{origin}: settings are nested too deeply") from error


def packaged_config(name: str) -> Path:
    """Return the path of packaged settings: those of a task, or of a figure or table of the paper."""
    return Path(str(files("householder_experiments"))) / "configs" / f"{name}.yaml"


class Change(NamedTuple):
    """A change of a setting, such as ``"models.ornn.learning_rate=0.003"``."""

    text: str
    option: str = "--set"
    """The option of the command that asked for it."""

    @property
    def place(self) -> str:
        """The name of the setting."""
        return self.text.partition("=")[0]


def apply_change(raw: dict[str, Any], change: Change) -> None:
    """Apply a change."""
    text, option = change
    path, equals, value = text.partition("=")
    *parents, leaf = path.split(".")
    if not equals or not leaf:
        raise UserError(f"{option} {text!r}: expected NAME=VALUE, such as models.ornn.learning_rate=0.003")
    node = raw
    for key in parents:
        before, node = node, node.get(key, {})
        if not isinstance(node, dict) or not node:
            raise UserError(f"{option} {text!r}: there is no {key!r} to change{nearest(key, map(str, before))}")
    try:
        node[leaf] = parse_yaml(value)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{option} {text!r}: {value!r} is not a valid YAML value") from error


def _blamed(place: str, origin: str, changes: Iterable[Change]) -> str:
    """Return the beginning of a message about a setting: the option that last changed it, or a part of it."""
    for change in reversed([*changes]):
        if f"{change.place}.".startswith(f"{place}.") or f"{place}.".startswith(f"{change.place}."):
            return f"{change.option} "
    return f"{origin}: "


def data_change(data: Path, kind: str) -> Change:
    """Return the change of settings that ``--data`` asks for.

    Raises
    ------
    UserError
        The task takes no data.
    """
    takes = [name for name, settings in PACKAGED_TASKS.items() if "data" in settings.model_fields]
    if kind in PACKAGED_TASKS and kind not in takes:
        raise UserError(f"--data: {kind} takes no data, but {', '.join(takes)} do")
    # Absolute, so that a run can be resumed from anywhere.
    quoted = yaml.safe_dump(str(data.absolute()), default_style='"', width=math.inf).rstrip()
    return Change(f"task.data={quoted}", "--data")


def _first(error: ValidationError, raw: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the first setting that is wrong, and why."""
    details = error.errors()[0]
    where, known = list(details["loc"]), list(Experiment.model_fields)
    if where and where[0] in ("task", "models"):
        kind = 1 if where[0] == "task" else 2
        tags = 1 if where[kind : kind + 1] == [CUSTOM] else 2
        kinds: Mapping[str, type[Settings]] = PACKAGED_TASKS if where[0] == "task" else PACKAGED_MODELS
        tag = next(iter(where[kind + 1 : kind + tags]), None)
        known = list(kinds[str(tag)].model_fields) if tag in kinds else []
        del where[kind : kind + tags]  # pydantic's names for the kind of task or model
    name = ".".join(str(part) if str(part).isprintable() else repr(part) for part in where)
    if details["type"] == "union_tag_invalid":
        expected = details["ctx"]["expected_tags"]
        tag = details["ctx"]["tag"]
        return name, f"unknown kind {_shown(tag)}, expected one of {expected}{nearest(tag, kinds)}"
    if details["type"] == "extra_forbidden":
        place = _place_of(name, raw) if len(where) == 1 else None
        hint = f"; did you mean {place!r}?" if place else nearest(where[-1], known)
        return name, f"there is no such setting{hint}"
    message = details["msg"].removeprefix("Value error, ")
    value = details["input"]
    shown = "" if details["type"] == "missing" or isinstance(value, dict) else f", got {_shown(value)}"
    return name, f"{message[0].lower()}{message[1:]}{shown}"


def _place_of(setting: str, raw: Mapping[str, Any]) -> str | None:
    """Return where a setting is that an experiment itself does not have: at its first model with it, or at the task."""
    kinds: Mapping[str, type[Settings]] = {**PACKAGED_MODELS, **PACKAGED_TASKS}  # no model is called as a task is
    places = {f"models.{name}": settings for name, settings in raw["models"].items()} | {"task": raw["task"]}
    for place, settings in places.items():
        kind = settings.get("kind", place.rpartition(".")[2])
        if kind in kinds and setting in kinds[kind].model_fields:
            return f"{place}.{setting}"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
