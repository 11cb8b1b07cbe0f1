"""Files that the command reads, valid ones and what a kill, a full disk or another program may make of them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import torch
from scipy.io import wavfile

from experiments.tests.runs import idx, small_experiment, train
from householder.cli.errors import UserError
from householder_experiments.checkpoint import NAME, load_checkpoint
from householder_experiments.curves import find_runs, read_curves
from householder_experiments.experiment import load_experiment, packaged_config
from householder_experiments.outcome import CONFIG, METRICS, RESULTS, read_outcomes
from householder_experiments.readers import read_columns
from householder_experiments.tasks.idx import read_idx
from householder_experiments.tasks.text import read_texts
from householder_experiments.tasks.wav import read_wav
from householder_experiments.training import Run

IDX = "train-images-idx3-ubyte"
OUTCOME = {
    "model": "ornn",
    "hidden_size": 8,
    "parameters": 99,
    "epochs": 2,
    "seconds": 1.5,
    "train_loss": 0.5,
    "metric": 0.9,
    "metric_name": "accuracy",
    "unit": "%",
    "judged_on": "test",
    "lower_is_better": False,
    "baseline": None,
}
ROWS = "epoch,step,train_loss,train_accuracy,seconds\n1,10,0.5,0.8,0.1\n2,20,0.4,0.9,0.2\n"
EXPERIMENT = "experiment.yaml"


def checkpoint(directory: Path) -> None:
    if not (directory / NAME).exists():
        train(small_experiment(), "srnn", directory, steps=2)


class Kind:
    """A file of one kind: its name, valid content, and what reads it."""

    def __init__(self, name: str, content: Callable[[Path], bytes], read: Callable[[Path], object]) -> None:
        self.name, self.content, self.read = name, content, read


def _wav(directory: Path) -> bytes:
    path = directory / "valid.wav"
    wavfile.write(path, 8000, (1000 * np.sin(np.arange(2000))).astype(np.int16))
    return path.read_bytes()


def _checkpoint(directory: Path) -> bytes:
    checkpoint(directory / "trained")
    return (directory / "trained" / NAME).read_bytes()


def _resume(directory: Path) -> object:
    return Run(small_experiment(), "srnn", directory).state


def _idx(_: Path) -> bytes:
    return idx(np.arange(80).reshape(5, 4, 4))


def _plot(directory: Path) -> object:
    load_experiment(packaged_config("digits")).save(directory / CONFIG)
    (directory / "ornn").mkdir(exist_ok=True)
    (directory / "ornn" / METRICS).write_text(ROWS, encoding="utf-8")
    return read_curves(find_runs([directory]))


KINDS = {
    "experiment": Kind(
        EXPERIMENT,
        lambda _: packaged_config("digits").read_bytes(),
        lambda directory: load_experiment(directory / EXPERIMENT),
    ),
    "results": Kind(RESULTS, lambda _: json.dumps([OUTCOME]).encode(), read_outcomes),
    "plotted results": Kind(RESULTS, lambda _: json.dumps([OUTCOME]).encode(), _plot),
    "metrics": Kind(METRICS, lambda _: ROWS.encode(), lambda directory: read_columns(directory / METRICS)),
    "checkpoint": Kind(NAME, _checkpoint, load_checkpoint),
    "resumed checkpoint": Kind(NAME, _checkpoint, _resume),
    "images": Kind(IDX, _idx, lambda directory: read_idx(directory, IDX, 3)),
    "packed images": Kind(f"{IDX}.gz", lambda d: gzip.compress(_idx(d)), lambda directory: read_idx(directory, IDX, 3)),
    "text": Kind(
        "train.txt",
        lambda _: b"some lines\nof text\n",
        lambda directory: (
            [(directory / f"{part}.txt").write_text("a line\n") for part in ("valid", "test")] and read_texts(directory)
        ),
    ),
    "packed text": Kind(
        "train.txt",
        lambda _: gzip.compress("some lines\nof text\n".encode("utf-8-sig")),
        lambda directory: KINDS["text"].read(directory),
    ),
    "streamed sound": Kind(
        "sound.wav",
        lambda d: (w := _wav(d))[:4] + b"\xff" * 4 + w[8:40] + b"\xff" * 4 + w[44:],
        lambda directory: read_wav(directory / "sound.wav", 8000),
    ),
    "sound": Kind("sound.wav", _wav, lambda directory: read_wav(directory / "sound.wav", 8000)),
}
WORDS = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"nan",
    b"-1",
    b"1e999",
    b"null",
    b"[" * 3000,
    b"{",
    b"}",
    b"\n",
    b",",
    b":",
    b"true",
    b"- ",
    b"&a",
    b"*a",
    b"\xef\xbb\xbf",
    b"\x1f\x8b\x08",
    b"0x" + b"f" * 5000,
]


def damaged(random: Random, content: bytes) -> bytes:
    """Cut, repeat, overwrite or replace parts of a file."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5))):
        a, b = sorted(random.randint(0, len(data)) for _ in range(2))
        match random.randrange(6):
            case 0:
                del data[a:]
            case 1:
                del data[a:b]
            case 2:
                data[b:b] = data[a:b]
            case 3:
                data[a:a] = random.choice(WORDS)
            case 4:
                for _ in range(random.choice((1, 4, 16))):
                    if data:
                        data[random.randrange(len(data))] = random.randrange(256)
            case _:
                data[a : a + 4] = random.choice((b"\xff" * 4, b"\0" * 4, b"\x80\0\0\0", random.randbytes(4)))
    return bytes(data)


def complaint(kind: Kind, directory: Path, content: bytes) -> str | None:
    """Read a file with that content; return the complaint, ``None`` if it could be read."""
    torch.manual_seed(0)
    (directory / kind.name).write_bytes(content)
    try:
        kind.read(directory)
    except UserError as error:
        return str(error)
    return None
