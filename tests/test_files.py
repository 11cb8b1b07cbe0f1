"""Files that were torn or garbled on the way: one clear line, and nothing in them is ever executed."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning_fabric")

from householder.experiments.checkpoint import NAME, load_checkpoint, save_checkpoint  # noqa: E402
from householder.experiments.errors import UserError  # noqa: E402
from householder.experiments.experiment import load_experiment, packaged_config  # noqa: E402


def complaint(read, *arguments):
    """What a reader says of a file; nothing if it can read it. Any other exception is a failure."""
    try:
        read(*arguments)
    except UserError as error:
        return str(error)
    return ""


@pytest.fixture
def checkpoint(tmp_path):
    state = {"step": 3, "model": torch.nn.Linear(20, 20).state_dict(), "rows": [[1, 0.5]]}
    save_checkpoint(tmp_path, state)
    return tmp_path / NAME


def test_a_checkpoint_torn_anywhere_is_one_line(checkpoint):
    whole = checkpoint.read_bytes()
    for length in range(0, len(whole) - 1, len(whole) // 50):
        checkpoint.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"no readable checkpoint: .*checkpoint\.pt") as caught:
            load_checkpoint(checkpoint.parent)
        assert "\n" not in str(caught.value)


def test_a_garbled_checkpoint_is_read_or_refused_in_one_line(checkpoint):
    whole, rng = checkpoint.read_bytes(), random.Random(0)
    for _ in range(100):
        garbled = bytearray(whole)
        for place in rng.sample(range(len(whole)), 20):
            garbled[place] = rng.randrange(256)
        checkpoint.write_bytes(garbled)
        assert "\n" not in complaint(load_checkpoint, checkpoint.parent)


class Command:
    """What a hostile checkpoint would hold."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w')",)


def test_a_hostile_checkpoint_is_refused_and_nothing_runs(tmp_path):
    touched = tmp_path / "touched"
    torch.save({"step": Command(touched)}, tmp_path / NAME)
    with pytest.raises(UserError, match="no readable checkpoint"):
        load_checkpoint(tmp_path)
    assert not touched.exists()


def test_garbled_settings_are_read_or_refused_in_one_line(tmp_path):
    whole, rng = packaged_config("digits").read_bytes(), random.Random(0)
    path = tmp_path / "digits.yaml"
    for _ in range(100):
        garbled = bytearray(whole)
        for place in rng.sample(range(len(whole)), rng.randrange(1, 6)):
            garbled[place] = rng.randrange(256)
        path.write_bytes(garbled[: rng.randrange(len(whole))] if rng.random() < 0.3 else garbled)
        assert "\n" not in complaint(load_experiment, path, ())
