"""Models that an experiment does not list: settled ways to train them, at a size that makes a fair comparison."""

from functools import partial
from importlib.resources import files
from typing import Any

import torch
import yaml

from householder.experiments.models.base import ModelSettings
from householder.experiments.tasks import Task


def rival_settings() -> dict[str, dict[str, Any]]:
    """Return the settings of each kind of model, without its size."""
    text = (files("householder.experiments") / "models" / "rivals.yaml").read_text(encoding="utf-8")
    settings: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return settings


def count_parameters(settings: ModelSettings, task: Task) -> int:
    """Return how many parameters a model for a task has, without storing them."""
    with torch.device("meta"):
        return settings.num_parameters(settings.build(task))


def resized(settings: ModelSettings, task: Task, parameters: int) -> ModelSettings:
    """Return the settings with that hidden size whose number of parameters comes closest.

    Sizes that a model refuses, such as odd ones of paired units, are passed over.
    """
    with_size = partial(_counted, settings, task)
    largest = 2
    while (with_size(largest) or 0) < parameters:
        largest *= 2
    counts = {size: count for size in range(largest // 2, largest + 1) if (count := with_size(size))}
    closest = min(counts, key=lambda size: abs(counts[size] - parameters))
    return settings.model_copy(update={"hidden_size": closest})


def _counted(settings: ModelSettings, task: Task, size: int) -> int | None:
    try:
        return count_parameters(settings.model_copy(update={"hidden_size": size}), task)
    except ValueError:
        return None
