"""On a package index, every link and picture of a README.md goes to a file of the repository or to another site."""

import re

import pytest

from tests.packaging.readme import PAGES, ROOT, absolute

REPOSITORY = "https://example.org/them/householder"


def targets(page):
    return re.findall(r"\]\(([^)]*)\)", page)


@pytest.mark.parametrize(("name", "fewest"), list(zip(PAGES, (30, 3), strict=True)))
def test_every_link_is_absolute_and_its_file_exists(name, fewest):
    before = (ROOT / name).read_text("utf-8")
    page = absolute(before, REPOSITORY, "1.2.3", name)
    assert len(targets(page)) == len(targets(before)) > fewest
    assert all(target.startswith("https://") for target in targets(page))
    files = re.findall(rf"\]\({REPOSITORY}/(?:blob|raw)/v1\.2\.3/([^)#]*)", page)
    assert len(files) > fewest
    assert all((ROOT / file).is_file() for file in files)


def test_pictures_are_files_and_anchors_stay():
    links = "![a](b.svg) [c](d.md#e) [f](#g) [h](https://i.org/)"
    blob, raw = (f"{REPOSITORY}/{kind}/v1.2.3" for kind in ("blob", "raw"))
    for name, folder in (("README.md", ""), ("sub/README.md", "sub/")):
        page = absolute(links, REPOSITORY, "1.2.3", name)
        expected = f"![a]({raw}/{folder}b.svg) [c]({blob}/{folder}d.md#e) [f]({blob}/{name}#g) [h](https://i.org/)"
        assert page == expected
    assert absolute("[a](../b.md)", REPOSITORY, "1.2.3", "sub/README.md") == f"[a]({blob}/b.md)"
