"""Docstrings are written for a terminal, with reStructuredText's roles; the site reads Markdown."""

import re
from typing import Any

import griffe


class Roles(griffe.Extension):
    """``:func:`f``` becomes code, ``:math:`` and ``.. math::`` become formulas."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            text = re.sub(r":math:`([^`]+)`", r"$\1$", obj.docstring.value)
            text = re.sub(r"\.\. math::\s*(.+)", r"$$\1$$", text)
            obj.docstring.value = re.sub(r":(?:func|class|meth|mod):`~?([^`]+)`", r"`\1`", text)
