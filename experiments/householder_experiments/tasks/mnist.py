"""Pixel-by-pixel classification of MNIST, in reading order or in one fixed random order."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from householder.cli.errors import UserError
from householder_experiments.settings import Settings
from householder_experiments.tasks.base import HeldOut
from householder_experiments.tasks.classification import Labelled, PixelClassification
from householder_experiments.tasks.idx import read_idx

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_VALIDATION = 5000
_ORDER_SEED = 0


class MNISTSettings(Settings):
    """784 steps of one pixel. The last 5,000 training images are kept for validation."""

    kind: Literal["mnist"] = "mnist"
    data: Path | None = None
    """The folder with the four IDX files, plain or gzipped. It must be given."""
    judged_on: HeldOut = "test"
    """The part that judges the run; on ``"validation"`` the test part is not read."""

    def load(self) -> PixelClassification:
        """Return the task with its data."""
        if self.data is None:
            raise UserError(
                f"{self.kind} needs --data DIR, a folder that holds {', '.join(FILES)}, each plain or gzipped; "
                "the task digits needs no files"
            )
        x, y = _images(self.data, "train")
        if len(y) <= _VALIDATION:
            raise UserError(f"{self.data} holds {len(y)} training images, expected more than {_VALIDATION}")
        train = self._arrange(x[:-_VALIDATION]), y[:-_VALIDATION]
        held_out: dict[HeldOut, Labelled] = {"validation": (self._arrange(x[-_VALIDATION:]), y[-_VALIDATION:])}
        if self.judged_on == "test":
            x_test, y_test = _images(self.data, "t10k")
            if x_test.shape[1] != x.shape[1]:
                raise UserError(f"{self.data}: test images of {x_test.shape[1]} pixels, training ones of {x.shape[1]}")
            if y_test.max() > y.max():
                raise UserError(f"{self.data}: the label {y_test.max()} is only in the test part")
            held_out["test"] = self._arrange(x_test), y_test
        return PixelClassification(train, held_out, white=255)

    def _arrange(self, pixels: NDArray[Any]) -> NDArray[Any]:
        return pixels


class PermutedMNISTSettings(MNISTSettings):
    """MNIST with the pixels of every image in the same random order, so that neighbours are far apart."""

    kind: Literal["permuted-mnist"] = "permuted-mnist"  # type: ignore[assignment]

    @override
    def _arrange(self, pixels: NDArray[Any]) -> NDArray[Any]:
        return pixels[:, np.random.default_rng(_ORDER_SEED).permutation(pixels.shape[1])]


def _images(directory: Path, part: Literal["train", "t10k"]) -> Labelled:
    images = read_idx(directory, f"{part}-images-idx3-ubyte", axes=3)
    labels = read_idx(directory, f"{part}-labels-idx1-ubyte", axes=1)
    if len(images) != len(labels):
        raise UserError(f"{directory}: {len(images)} images but {len(labels)} labels in the {part} part")
    return images.reshape(len(images), -1), labels
