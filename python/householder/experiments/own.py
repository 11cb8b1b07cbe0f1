"""Tasks and models of the user's own, named as ``my_module:MyTask``."""

import inspect
import os
import sys
from importlib import import_module
from typing import Any

from householder.experiments.errors import UserError, nearest

PATTERN = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"


def imported(place: str, base: type) -> type[Any]:
    """Return the class that ``"module:Class"`` names; modules are looked for in the working directory first.

    Raises
    ------
    UserError
        There is no such module or class, the module fails, or the class is not derived from ``base``.
    """
    name, _, attribute = place.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(name)
    except Exception as error:
        raise UserError(f"cannot import {name} for {place}: {_first_line(error)}") from error
    found = getattr(module, attribute, None)
    wanted = f"{base.__module__}.{base.__name__}"
    if not (isinstance(found, type) and issubclass(found, base)):
        classes = [each for each, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
        raise UserError(f"{place} is not a class derived from {wanted}{nearest(attribute, classes)}")
    return found


def called(place: str, base: type, *arguments: object, **settings: object) -> Any:
    """Return an instance of the class that ``"module:Class"`` names, made with these settings.

    Raises
    ------
    UserError
        As for :func:`imported`, or the class takes no such settings, or refuses their values.
    """
    found = imported(place, base)
    takes = inspect.signature(found).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    if not open_ended and (unknown := [name for name in settings if name not in takes]):
        raise UserError(f"{place} has no setting {unknown[0]!r}{nearest(unknown[0], takes)}")
    try:
        return found(*arguments, **settings)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{place}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
