"""Texts for the character model: three files, or Python's documentation topics."""

from pathlib import Path

from householder.cli.errors import UserError
from householder_experiments.readers import DATA, is_there, read_text

Text = list[str]
PARTS = ("train", "valid", "test")
_LONGEST = 10_000


def read_texts(directory: Path) -> dict[str, Text]:
    """Read the lines of ``train.txt``, ``valid.txt`` and ``test.txt``, or of ``ptb.train.txt`` and so on.

    Raises
    ------
    UserError
        If a file is missing, is not text, is empty, or has a line too long for one sequence.
    """
    return {part: _read(directory, part) for part in PARTS}


def embedded_texts() -> dict[str, Text]:
    """Return the lines of Python's documentation topics: nine tenths to learn from, a twentieth for each other part."""
    from pydoc_data.topics import topics

    lines = _lines("\n".join(topics[name] for name in sorted(topics)))
    blocks = [lines[start : start + 50] for start in range(0, len(lines), 50)]  # neighbouring lines resemble each other
    part_of = {0: "valid", 10: "test"}
    texts: dict[str, Text] = {part: [] for part in PARTS}
    for number, block in enumerate(blocks):
        texts[part_of.get(number % 20, "train")] += block
    return texts


def _read(directory: Path, part: str) -> Text:
    paths = [directory / f"{part}.txt", directory / f"ptb.{part}.txt"]
    path = next((path for path in paths if is_there(path)), None)
    if path is None:
        raise UserError(f"{directory} holds no {paths[0].name} or {paths[1].name}")
    lines = _lines(read_text(path, DATA))
    if not lines:
        raise UserError(f"{path} is empty")
    longest = max(lines, key=len)
    if len(longest) > _LONGEST:
        raise UserError(
            f"{path} has a line of {len(longest):,} characters, expected at most {_LONGEST:,} because each line is one "
            f"sequence: break it, for example with fold -s -w 500 {path.name}"
        )
    return lines


def _lines(text: str) -> Text:
    return [line for raw in text.splitlines() if (line := raw.strip())]
