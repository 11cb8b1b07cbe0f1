"""The IDX files in which handwritten digits are published, plain or gzipped."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from householder.cli.errors import UserError
from householder_experiments.readers import DATA, is_there, opened

_BYTES = 0x08  # the code of unsigned bytes, the only type these files have


def read_idx(directory: Path, name: str, axes: int) -> NDArray[Any]:
    """Read an array of bytes.

    Parameters
    ----------
    directory : Path
        Where the file is.
    name : str
        Its name. Programs that unpack such files write ``.idx`` for ``-idx``; ``.gz`` may follow.
    axes : int
        How many axes the array has.

    Raises
    ------
    UserError
        If there is no such file, or it is not what it should be.
    """
    names = [f"{stem}{suffix}" for stem in (name, name.replace("-idx", ".idx")) for suffix in ("", ".gz")]
    path = next((directory / name for name in names if is_there(directory / name)), None)
    if path is None:
        raise UserError(f"{directory} holds no {', '.join(names[:-1])} or {names[-1]}")
    with opened(path, DATA) as file:
        header = file.read(4 + 4 * axes)
        if len(header) < 4 + 4 * axes or header[:4] != bytes([0, 0, _BYTES, axes]):
            raise UserError(f"{path} is not an IDX file of bytes with {axes} axes")
        shape = np.frombuffer(header, ">u4", axes, 4).tolist()
        size = math.prod(shape)
        if not 0 < size <= DATA:
            raise UserError(f"{path} is garbled: its header says {shape}, expected 1 to {DATA:,} bytes")
        content = file.read(size + 1)  # no more: a small compressed file may expand to any size
    if len(content) != size:
        held = f"{len(content)}" if len(content) < size else f"more than {size}"
        raise UserError(f"{path} is truncated or garbled: it holds {held} bytes, its header says {shape}")
    return np.frombuffer(content, np.uint8).reshape(shape)
