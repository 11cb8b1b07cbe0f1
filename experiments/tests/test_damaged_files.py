"""Whatever a file holds, it is read, or one line names it and says what is wrong."""

import gzip
import struct
import tracemalloc
from random import Random

import numpy as np
import pytest
import torch

from experiments.tests.damaged_files import IDX, KINDS, complaint, damaged
from experiments.tests.runs import idx
from householder.cli.errors import UserError
from householder_experiments.checkpoint import NAME, load_checkpoint
from householder_experiments.tasks.idx import read_idx
from householder_experiments.tasks.mnist import MNISTSettings

CASES = {"resumed checkpoint": 20, "plotted results": 60}


@pytest.mark.parametrize("name", KINDS)
def test_valid_files_are_read(name, tmp_path):
    assert complaint(KINDS[name], tmp_path, KINDS[name].content(tmp_path)) is None


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_end_in_one_line_that_names_them(name, tmp_path):
    random, kind = Random(0), KINDS[name]
    valid = kind.content(tmp_path)
    for _ in range(CASES.get(name, 200)):
        message = complaint(kind, tmp_path, damaged(random, valid))
        assert message is None or ("\n" not in message and len(message) < 1000), message
        assert message is None or kind.name.removesuffix(".gz") in message or str(tmp_path) in message, message


def test_a_checkpoint_torn_anywhere_or_garbled_is_one_line(tmp_path):
    whole = KINDS["checkpoint"].content(tmp_path)
    torn = [whole[:length] for length in range(0, len(whole) - 1, len(whole) // 50)]
    for content in (*torn, b"garbage", b"\x80\x04N."):
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(UserError, match=r"no readable checkpoint: .*checkpoint\.pt") as caught:
            load_checkpoint(tmp_path)
        assert "\n" not in str(caught.value)


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


def declared(*shape, content=b""):
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (declared(1 << 31, 1 << 31, 4), "its header says"),  # the product is a multiple of 2 ** 64
        (declared(3, 0, 0), "its header says"),
        (declared(2, 2, 2, content=bytes(7)), "holds 7 bytes"),
        (declared(2, 2, 2, content=bytes(9)), "more than 8 bytes"),
    ],
)
def test_impossible_headers(content, message, tmp_path):
    (tmp_path / IDX).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_idx(tmp_path, IDX, 3)


def test_a_small_compressed_file_does_not_fill_the_memory(tmp_path):
    (tmp_path / f"{IDX}.gz").write_bytes(gzip.compress(declared(2, 2, 2, content=bytes(1 << 28))))
    tracemalloc.start()
    with pytest.raises(UserError, match="more than 8 bytes"):
        read_idx(tmp_path, IDX, 3)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_both_parts_have_images_of_one_size(tmp_path):
    for part, count, side in (("train", 5001, 2), ("t10k", 3, 3)):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(np.zeros((count, side, side))))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.zeros(count)))
    with pytest.raises(UserError, match="test images of 9 pixels, training ones of 4"):
        MNISTSettings(data=tmp_path).load()
