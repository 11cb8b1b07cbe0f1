"""Write the table of arguments in docs/api/names.md from the code: ``python docs/names.py``."""

import inspect
from pathlib import Path

import householder as hh
import householder.jax as hj
import householder.torch as ht

PAGE = Path(__file__).with_name("api") / "names.md"
TITLE = "## Arguments"
SHARED = sorted(set(hh.__all__) & set(ht.__all__) & set(hj.__all__))
"""Functions that all three libraries have."""


def page(text: str) -> str:
    """Return the page's text with a new table, which ends it."""
    lines = [
        TITLE,
        "",
        "These functions are in all three libraries. `python docs/names.py` reads the table from the code.",
        "",
        "| function | arguments | arguments that must be named |",
        "|---|---|---|",
    ]
    return text.partition(TITLE)[0] + "\n".join([*lines, *map(row, SHARED)]) + "\n"


def row(name: str) -> str:
    """Return the row of a function."""
    parameters = inspect.signature(getattr(ht, name)).parameters.values()
    named = [parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters]
    cells = (
        ", ".join(argument(name, one) for one, is_named in zip(parameters, named, strict=True) if is_named is wanted)
        for wanted in (False, True)
    )
    return f"| `{name}` | {' | '.join(cells)} |"


def argument(function: str, parameter: inspect.Parameter) -> str:
    """Return the name of an argument with its default, and the library if it is the only one with it."""
    has_default = parameter.default is not parameter.empty and parameter.name != "dtype"
    text = f"`{parameter.name}{f'={parameter.default!r}' if has_default else ''}`"
    return text if parameter.name in inspect.signature(getattr(hh, function)).parameters else f"{text} (`ht` alone)"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
