"""Make the links of both README.md absolute, because a package index shows such a page alone.

They go to the files of this version in the repository that Cargo.toml names. Without a repository nothing changes.
``python tests/packaging/readme.py`` runs before a wheel or a source distribution is built for an index.
"""

import posixpath
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "experiments/README.md")
_LINK = re.compile(r"(?P<picture>!?)(?P<text>\[[^]]*\])\((?!https:)(?P<target>[^)#]*)(?P<anchor>#[^)]*)?\)")


def absolute(page: str, repository: str, version: str, name: str = "README.md") -> str:
    """Return a page, the file of that name, with links and pictures that work anywhere."""

    def address(link: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(posixpath.dirname(name), link["target"])) if link["target"] else name
        place = f"{repository}/{'raw' if link['picture'] else 'blob'}/v{version}/{file}{link['anchor'] or ''}"
        return f"{link['picture']}{link['text']}({place})"

    return _LINK.sub(address, page)


def main() -> None:
    """Rewrite the pages in place."""
    package = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]
    if "repository" in package:
        for name in PAGES:
            page = absolute((ROOT / name).read_text("utf-8"), package["repository"], package["version"], name)
            (ROOT / name).write_text(page, "utf-8", newline="\n")


if __name__ == "__main__":
    main()
