"""Make the links of README.md absolute, because a package index shows that page alone.

They go to the files of this version in the repository that Cargo.toml names. Without a repository nothing changes.
``python tests/packaging/readme.py`` runs before a wheel or a source distribution is built for an index.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def absolute(page: str, repository: str, version: str) -> str:
    """Return the page with links and pictures that work anywhere."""
    files = f"{repository}/blob/v{version}/"
    page = re.sub(r"(!\[[^]]*\]\()(?!https:)", rf"\g<1>{repository}/raw/v{version}/", page)
    page = re.sub(r"(\]\()(?=#)", rf"\g<1>{files}README.md", page)
    return re.sub(r"(\]\()(?!https:)", rf"\g<1>{files}", page)


def main() -> None:
    """Rewrite the page in place."""
    package = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]
    if "repository" in package:
        path = ROOT / "README.md"
        page = absolute(path.read_text("utf-8"), package["repository"], package["version"])
        path.write_text(page, "utf-8", newline="\n")


if __name__ == "__main__":
    main()
