"""Pages are read in the repository as well, where they link to its files; the site has none of these."""

import re


def on_page_markdown(markdown: str, **_: object) -> str:
    """Turn links that lead out of ``docs`` into the file's name."""
    return re.sub(r"\[[^\]]*\]\(\.\./([^)]+)\)", r"`\1`", markdown)
