"""What the README shows runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("heading", ["NumPy", "PyTorch"])
def test_examples_of_the_readme_run(heading):
    section = README.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
