"""The IDX files in which handwritten digits are published, plain or gzipped."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from householder.experiments.errors import UserError

_BYTES = 0x08  # the code of unsigned bytes, the only type these files have


def read_idx(directory: Path, name: str, axes: int) -> NDArray[Any]:
    """Read an array of bytes.

    Parameters
    ----------
    directory : Path
        Where the file is.
    name : str
        Its name; ``.gz`` may follow.
    axes : int
        How many axes the array has.

    Raises
    ------
    UserError
        If there is no such file, or it is not what it should be.
    """
    path = next((path for path in (directory / name, directory / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise UserError(f"{directory} holds no {name} or {name}.gz")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    header = 4 + 4 * axes
    if len(content) < header or content[:4] != bytes([0, 0, _BYTES, axes]):
        raise UserError(f"{path} is not an IDX file of bytes with {axes} axes")
    shape = np.frombuffer(content, ">u4", axes, 4).tolist()
    array = np.frombuffer(content, np.uint8, offset=header)
    if array.size != np.prod(shape):
        raise UserError(f"{path} is truncated or garbled: it holds {array.size} bytes, its header says {shape}")
    return array.reshape(shape)
