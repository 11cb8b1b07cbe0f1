"""Pixel-by-pixel classification of the handwritten digits that scikit-learn ships."""

from functools import partial
from typing import Annotated, Literal

from pydantic import Field

from householder.cli.errors import UserError
from householder_experiments.settings import Settings, Unit
from householder_experiments.tasks.base import HeldOut
from householder_experiments.tasks.classification import Labelled, PixelClassification


class DigitsSettings(Settings):
    """1,797 images of 8 x 8 pixels, read as 64 steps of one pixel in [0, 1]; a stratified fifth is the test part."""

    kind: Literal["digits"] = "digits"
    validation: Annotated[float, Field(ge=0, lt=1), Unit("fraction of the training part")] = 0.0
    """Fraction of the training part to judge on instead of the test part, for choosing settings."""

    def load(self) -> PixelClassification:
        """Return the task with its data."""
        train, held_out = digits(self.validation)
        if self.validation > 0:
            del held_out["test"]
        return PixelClassification(train, held_out, white=16)


def digits(validation: float) -> tuple[Labelled, dict[HeldOut, Labelled]]:
    """Return the training part and the held-out parts, ``validation`` being a fraction of what is not test data."""
    # Only the processes that train need scikit-learn, which takes a second to load.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    split = partial(train_test_split, random_state=0)
    x, x_test, y, y_test = split(pixels, labels, test_size=0.2, stratify=labels)
    held_out: dict[HeldOut, Labelled] = {"test": (x_test, y_test)}
    if validation > 0:
        try:
            x, x_held, y, y_held = split(x, y, test_size=validation, stratify=y)
        except ValueError as error:
            raise UserError(f"task.validation is {validation}: a part would lack some of the digits") from error
        held_out["validation"] = x_held, y_held
    return (x, y), held_out
