"""On a package index, every link and picture of README.md goes to a file of the repository or to another site."""

import re

from tests.packaging.readme import ROOT, absolute

REPOSITORY = "https://example.org/them/householder"
README = (ROOT / "README.md").read_text("utf-8")


def targets(page):
    return re.findall(r"\]\(([^)]*)\)", page)


def test_every_link_is_absolute_and_its_file_exists():
    page = absolute(README, REPOSITORY, "1.2.3")
    assert len(targets(page)) == len(targets(README)) > 30
    assert all(target.startswith("https://") for target in targets(page))
    files = re.findall(rf"\]\({REPOSITORY}/(?:blob|raw)/v1\.2\.3/([^)#]*)", page)
    assert len(files) > 30
    assert all((ROOT / file).is_file() for file in files)


def test_pictures_are_files_and_anchors_stay():
    page = absolute("![a](b.svg) [c](d.md#e) [f](#g) [h](https://i.org/)", REPOSITORY, "1.2.3")
    blob = f"{REPOSITORY}/blob/v1.2.3"
    assert page == f"![a]({REPOSITORY}/raw/v1.2.3/b.svg) [c]({blob}/d.md#e) [f]({blob}/README.md#g) [h](https://i.org/)"
