"""The command that runs the tests of transformers with and without acceleration finds what differs."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
pytestmark = pytest.mark.long  # each run imports transformers three times
COMMAND = Path(__file__).parents[2] / "upstream/models_of_transformers.py"
PASSING = "\n".join(f"def test_{i}(): pass" for i in range(10))
MODEL = """
from transformers import BambaConfig, BambaModel
small = dict(num_hidden_layers=1, hidden_size=32, intermediate_size=32, vocab_size=8, num_attention_heads=2)
mamba = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8)
def test_plain(): assert type(BambaModel(BambaConfig(**small, **mamba)).layers[0].mamba).__mro__[1].__name__ == {base!r}
"""


@pytest.fixture
def compare(tmp_path):
    """Run the command on a checkout whose tests of Bamba are the given text."""

    def run(text):
        folder = tmp_path / "tests/models/bamba"
        folder.mkdir(parents=True)
        (folder / "test_modeling_bamba.py").write_text(text)
        return subprocess.run([sys.executable, COMMAND, tmp_path, "bamba"], capture_output=True, text=True, timeout=300)

    return run


def test_a_test_that_acceleration_breaks_is_named(compare):
    done = compare(PASSING + MODEL.format(base="Module"))
    assert done.returncode == 1
    assert "11 of 11 tests pass, 1 layers accelerated" in done.stdout
    assert done.stdout.endswith("test_plain: failure\n")


def test_tests_that_pass_with_acceleration_are_no_failures(compare):
    text = PASSING + MODEL.format(base="Module").replace("== 'Module'", "!= ''")
    assert compare(text).returncode == 0


def test_a_run_in_which_nothing_is_accelerated_fails(compare):
    assert compare(PASSING).returncode == 1
