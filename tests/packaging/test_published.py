"""After the first release, no page tells users to build from a clone."""

import re

import pytest

from tests.packaging.published import INSTALLATION, ROOT, published

OF_A_CLONE = re.compile(
    r"git clone|in a clone|from a clone|from source|pip install \.|once it is published|until the crate", re.IGNORECASE
)
PAGES = [
    "README.md",
    "experiments/README.md",
    "rust/README.md",
    *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")),
]
DEVELOPERS = {"docs/architecture.md", "docs/reliability.md"}
"""Pages whose commands need the repository."""


@pytest.mark.parametrize("name", sorted({*PAGES, *INSTALLATION} - DEVELOPERS))
def test_pages_of_users_speak_of_the_published_package(name):
    text = published((ROOT / name).read_text("utf-8"), INSTALLATION.get(name, []))
    mentioned = [line for line in text.splitlines() if OF_A_CLONE.search(line)]
    assert all("[test]" in line or "tests need a clone" in line for line in mentioned)


def test_a_passage_that_is_not_found_is_an_error():
    with pytest.raises(ValueError, match="expected once, found 0 times: git clone"):
        published("pip install householder", [("git clone", "")])
