"""Models that an experiment does not list: default settings, and sizes that make a fair comparison."""

from bisect import bisect_left
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import torch

from householder.cli.errors import UserError
from householder_experiments.models.base import LARGEST_SIZE, ModelSettings
from householder_experiments.readers import read_yaml
from householder_experiments.tasks import Task


def rival_settings() -> dict[str, dict[str, Any]]:
    """Return the settings of each kind of model, without its size."""
    settings = read_yaml(Path(str(files("householder_experiments"))) / "models" / "rivals.yaml")
    return cast("dict[str, dict[str, Any]]", settings)


def own_settings(place: str) -> dict[str, Any]:
    """Return the settings of a model of the user's own, without its size."""
    return {"kind": place, "learning_rate": 0.003, "schedule": "cosine", "clip_norm": 1.0}


def count_parameters(settings: ModelSettings, task: Task) -> int:
    """Return how many parameters a model for a task has, without storing them."""
    with torch.device("meta"):
        return settings.num_parameters(settings.build(task))


def resized(settings: ModelSettings, task: Task, parameters: int) -> ModelSettings:
    """Return the settings with the hidden size whose number of parameters is closest to the wanted one.

    Sizes that a model refuses, such as odd ones of paired units, are passed over.

    Raises
    ------
    UserError
        The model refuses every size that is large enough.
    """
    refusal: Exception | None = None

    @cache
    def count(size: int) -> int:
        """Return the number of parameters, 0 where the size is refused."""
        nonlocal refusal
        try:
            return count_parameters(settings.model_copy(update={"hidden_size": size}), task)
        except (ValueError, UserError) as error:
            refusal = error
            return 0

    largest = 2
    while count(largest) < parameters:
        largest *= 2
        if largest > LARGEST_SIZE:
            raise UserError(f"no hidden_size gives {parameters:,} parameters{f': {refusal}' if refusal else ''}")
    reached = bisect_left(range(largest), parameters, lo=1, key=lambda size: count(size) or count(size + 1))
    near = [size for size in range(max(1, reached - 2), reached + 2) if count(size)]
    closest = min(near, key=lambda size: abs(count(size) - parameters))
    return settings.model_copy(update={"hidden_size": closest})
