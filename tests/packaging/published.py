"""Make the pages tell how to install what the package indexes have, once the first release is there.

``python tests/packaging/published.py`` rewrites the pages in place; the test beside it says which words must be gone.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]
CLONE = f"git clone {PACKAGE.get('repository', 'REPOSITORY')} && cd householder\n"
ACTIVATE = "python3 -m venv .venv && source .venv/bin/activate\n"
INSTALLATION = {
    "README.md": [
        (
            "You need Linux, Python 3.11 or later and Rust 1.89 or later ([rustup.rs](https://rustup.rs); Debian 13's "
            "1.85 is too old). macOS and Windows are not yet tested. The build takes about ten minutes and up to 4 GB "
            "of memory. pip shows it only with `-v`. Clone the repository, or copy its folder. Without a GPU:",
            "You need Linux and Python 3.11 or later. macOS and Windows are not yet tested. Without a GPU:",
        ),
        (f"{CLONE}{ACTIVATE}pip install torch", f"{ACTIVATE}pip install torch"),
        ("pip install . ./experiments\n", "pip install householder-experiments\n"),
        (
            "it is `pip install '.[torch]'`; for NumPy alone, `pip install .`.",
            "it is `pip install 'householder[torch]'`; for NumPy alone, `pip install 'householder'`.",
        ),
        (
            "`pip install '.[torch,cuda13]' ./experiments`",
            "`pip install 'householder[torch,cuda13]' householder-experiments`",
        ),
        ("`cargo add householder`, once it is published. ", "`cargo add householder`. "),
        ("`pip install '.[jax]'` adds", "`pip install 'householder[jax]'` adds"),
        (
            "To test the Python package and the Rust core:\n",
            "The tests need a clone and Rust 1.89 or later:\n",
        ),
    ],
    "experiments/README.md": [
        ("Install it beside the library, from the root of the repository:", "It installs the library, too:"),
        ("pip install . ./experiments\n", "pip install householder-experiments\n"),
    ],
    "docs/index.md": [
        (
            "In a clone of the repository, or a copy of its folder, with Linux, Python 3.11 or later and Rust 1.89 or "
            "later:",
            "With Linux and Python 3.11 or later:",
        ),
        ("pip install '.[torch]'\n", "pip install 'householder[torch]'\n"),
        ("The build takes about ten minutes on two quiet cores and prints nothing meanwhile. Without", "Without"),
        ("`pip install .` is for", "`pip install householder` is for"),
        ("`pip install . ./experiments` also", "`pip install householder-experiments` also"),
    ],
    "docs/quickstart.md": [
        (
            "Install from a clone or a copy of the source, with Python 3.11 or later and Rust 1.89 or later.",
            "You need Python 3.11 or later.",
        ),
        (
            "The first build takes about ten minutes on two quiet cores and up to 4 GB of memory. pip prints nothing "
            "meanwhile; `pip install -v` shows it.\n\n",
            "",
        ),
        ("pip install . ./experiments     # with", "pip install householder-experiments     # with"),
        ("# pip install '.[torch]'        # with", "# pip install 'householder[torch]'      # with"),
        ("# pip install .                 # NumPy", "# pip install 'householder'             # NumPy"),
    ],
    "docs/gpu.md": [
        ("pip install '.[torch,cuda13]'    # in a clone; with", "pip install 'householder[torch,cuda13]'    # with")
    ],
    "docs/jax.md": [("pip install '.[jax]'    # in a clone; jax", "pip install 'householder[jax]'    # jax")],
    "docs/deployment.md": [
        ("Until the crate is published, add `--path` and the folder of your clone to this command. ", ""),
    ],
    "python/householder/cli/entry.py": [
        ("householder-experiments, or in a clone of householder pip install ./experiments", "householder-experiments")
    ],
}
"""Of each file, what it says of a clone and what it says after the release."""


def published(text: str, changes: list[tuple[str, str]]) -> str:
    """Return a text after the release.

    Raises
    ------
    ValueError
        The text does not have one of the passages exactly once.
    """
    for before, after in changes:
        if text.count(before) != 1:
            raise ValueError(f"expected once, found {text.count(before)} times: {before}")
        text = text.replace(before, after)
    return text


def main() -> None:
    """Rewrite the files in place."""
    for name, changes in INSTALLATION.items():
        path = ROOT / name
        path.write_text(published(path.read_text("utf-8"), changes), "utf-8", newline="\n")


if __name__ == "__main__":
    main()
