"""Tasks and models of the user's own, named as ``my_module:MyTask``.

Importing a module runs it, and a run's settings may name any. A module is therefore imported only where the user has
named it in the call itself: on the command line, or in ``imports`` of :func:`householder_experiments.load`.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from householder.cli.errors import UserError, first_line, nearest

PATTERN = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
_PLACE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*):[A-Za-z_]")
_permitted: ContextVar[frozenset[str]] = ContextVar("permitted", default=frozenset())


def modules_in(texts: Iterable[str]) -> set[str]:
    """Return the modules of the classes that texts name.

    Examples
    --------
    >>> from householder_experiments.own import modules_in
    >>> modules_in(["ornn,my_module:MyRNN", "task.length=50"])
    {'my_module'}
    """
    return {module for text in texts for module in _PLACE.findall(text)}


@contextmanager
def permitted(modules: Iterable[str], folder: str | None = None) -> Iterator[None]:
    """Permit modules to be imported in the ``with`` block. If there are any, ``folder`` is searched first."""
    modules = frozenset(modules)
    searched = [folder] if modules and folder is not None else []
    sys.path[:0] = searched
    token = _permitted.set(modules)
    try:
        yield
    finally:
        _permitted.reset(token)
        for each in searched:
            sys.path.remove(each)


def permitted_modules() -> frozenset[str]:
    """Return the modules that may be imported here."""
    return _permitted.get()


def imported(place: str, base: type) -> type[Any]:
    """Return the class that ``"module:Class"`` names.

    Raises
    ------
    UserError
        The module may not be imported, there is no such module or class, the module fails, or the class is not derived
        from ``base``.
    """
    name, _, attribute = place.partition(":")
    if name not in permitted_modules():
        raise UserError(
            f"{place} is a class of another package, and importing it runs that package's code: "
            f"--import {name} permits it (in Python, imports=[{name!r}])"
        )
    try:
        module = import_module(name)
    except Exception as error:
        raise UserError(f"cannot import {name} for {place}: {first_line(error)}") from error
    named = getattr(module, attribute, None)
    if not (isinstance(named, type) and issubclass(named, base)):
        classes = [each for each, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)]
        expected = f"a class derived from {base.__module__}.{base.__name__}"
        fault = f"{place} is not {expected}" if hasattr(module, attribute) else f"{name} has no {attribute}"
        raise UserError(f"{fault}{nearest(attribute, classes)}")
    return named


def called(place: str, base: type, *arguments: object, **settings: object) -> Any:
    """Return an instance of the class that ``"module:Class"`` names, made with these settings.

    Raises
    ------
    UserError
        As for :func:`imported`, or the class takes no such settings, or refuses their values.
    """
    kind = imported(place, base)
    takes = inspect.signature(kind).parameters
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    if not open_ended and (unknown := [name for name in settings if name not in takes]):
        raise UserError(f"{place} has no setting {unknown[0]!r}{nearest(unknown[0], takes)}")
    try:
        return kind(*arguments, **settings)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{place}: {first_line(error)}") from error
