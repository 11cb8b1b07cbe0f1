"""Docstrings of functions that share parameters, among them those of NumPy, torch and JAX: each text stands once."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from householder._base.types import AnyFunction

FunctionT = TypeVar("FunctionT", bound="AnyFunction")
_HEADING = re.compile(r"^(\w+)\n-+\n", re.MULTILINE)
_ENTRY = re.compile(r"^(?=\S)", re.MULTILINE)


def completed_by(source: AnyFunction, array: str) -> Callable[[FunctionT], FunctionT]:
    """Complete a docstring by the parameters and sections that it lacks, from another function.

    Parameters
    ----------
    source : callable
        The other function. Parameters of its own are left out.
    array : str
        What the library at hand calls an array.
    """

    def complete(function: FunctionT) -> FunctionT:
        if function.__doc__ and source.__doc__:  # there are none under python -OO
            summary, changed = _parts(function.__doc__)
            _, sections = _parts(source.__doc__)
            sections = {name: _renamed(body, array) for name, body in sections.items() if name != "Notes"}
            entries = _entries(sections["Parameters"]) | _entries(changed.get("Parameters", ""))
            names = list(inspect.signature(function).parameters)
            present = [entry for entry in entries if entry.partition(",")[0] in names]
            ordered = sorted(present, key=lambda entry: names.index(entry.partition(",")[0]))
            changed["Parameters"] = "".join(map(entries.__getitem__, ordered))
            whole = {**sections, **changed}
            texts = (f"{name}\n{'-' * len(name)}\n{body.rstrip()}" for name, body in whole.items())
            function.__doc__ = "\n\n".join([summary.rstrip(), *texts]) + "\n"
        return function

    return complete


def _parts(docstring: str) -> tuple[str, dict[str, str]]:
    """Return what precedes the sections of a docstring, and the sections by their names."""
    summary, *parts = _HEADING.split(inspect.cleandoc(docstring))
    return summary, dict(zip(parts[::2], parts[1::2], strict=True))


def _entries(section: str) -> dict[str, str]:
    """Return the parameters of a section by their names."""
    return {re.split(" : |\n", entry, maxsplit=1)[0]: entry.rstrip() + "\n" for entry in _ENTRY.split(section)[1:]}


def _renamed(section: str, array: str) -> str:
    """Name the arrays of a library in the types of a section, which are the lines without indentation."""
    return re.sub(r"^(?!>>>)\S.*$", lambda line: re.sub(r"\barray\b", array, line[0]), section, flags=re.MULTILINE)
