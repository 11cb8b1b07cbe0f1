"""Recordings in WAV files."""

import struct
from collections.abc import Iterator
from io import BytesIO
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from householder.cli.errors import UserError
from householder_experiments.readers import read_bytes

_LARGEST = 1 << 28  # bytes: 25 minutes of a CD
_RATES = range(1_000, 1_000_001)
_COARSEST = 100_000
"""The largest term of a ratio of rates. A filter has twenty times as many taps."""


def read_wav(path: Path, rate: int) -> NDArray[Any]:
    """Read a recording as one channel at a given rate.

    Parameters
    ----------
    path : Path
        A WAV file of integers or floats. Channels are mixed down.
    rate : int
        Samples per second to return; frequencies above half of it are filtered out.

    Raises
    ------
    UserError
        If there is no such file, or it is not what it should be.
    """
    from scipy.signal import resample_poly  # takes a second to load, and only recordings need it

    own_rate, samples = _read(path)
    if own_rate not in _RATES:
        raise UserError(f"{path} has {own_rate} samples per second, expected {_RATES[0]:,} to {_RATES[-1]:,}")
    up, down = rate // gcd(rate, own_rate), own_rate // gcd(rate, own_rate)
    if max(up, down) > _COARSEST:
        raise UserError(
            f"{path} has {own_rate} samples per second, and {up}:{down} is no simple ratio to {rate}: resample it"
        )
    if samples.size == 0:
        raise UserError(f"{path} holds no samples")
    if not np.isfinite(samples).all():
        raise UserError(f"{path} holds samples that are not finite")
    silence = 128.0 if samples.dtype == np.uint8 else 0.0  # only samples of one byte are unsigned
    mono = samples.reshape(len(samples), -1).mean(axis=1, dtype=np.float64) - silence
    resampled: NDArray[Any] = resample_poly(mono, up, down) if len(mono) else mono
    return resampled


def _read(path: Path) -> tuple[int, NDArray[Any]]:
    from scipy.io import wavfile

    content = read_bytes(path, _LARGEST)
    try:
        own_rate, samples = wavfile.read(BytesIO(_tidied(content)))
    except Exception as error:  # garbled files raise many types
        raise UserError(f"{path} is truncated, or is not a WAV file of integers or floats: {error}") from error
    return own_rate, samples


def _tidied(content: bytes) -> bytes:
    """Return a WAV file of nothing but the format and the samples, with true sizes.

    Raises
    ------
    ValueError, ZeroDivisionError, struct.error
        It is no WAV file, or ends within a chunk whose size it tells.
    """
    order = {b"RIFF": "<", b"RF64": "<", b"RIFX": ">"}.get(content[:4])
    if order is None or content[8:12] != b"WAVE":
        raise ValueError(f"it begins with {content[:12]!r}")
    chunks = dict(_chunks(content, order))
    if missing := {b"fmt ", b"data"} - set(chunks):
        raise ValueError(f"it has no chunk {missing.pop().decode()!r}")
    (frame,) = struct.unpack(f"{order}H", chunks[b"fmt "][12:14])
    chunks[b"data"] = chunks[b"data"][: len(chunks[b"data"]) // frame * frame]  # the last one may be torn
    parts = [name + struct.pack(f"{order}I", len(chunks[name])) + chunks[name] for name in (b"fmt ", b"data")]
    body = b"WAVE" + b"".join(part + bytes(len(part) % 2) for part in parts)
    return (b"RIFF" if order == "<" else b"RIFX") + struct.pack(f"{order}I", len(body)) + body


def _chunks(content: bytes, order: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the names and contents of chunks up to the samples, which last until the end if their size is unknown."""
    (whole,) = struct.unpack(f"{order}I", content[4:8])
    begin, long_size = 12, None
    name = b""
    while name != b"data" and len(content) - begin >= 8:
        name, size = struct.unpack(f"{order}4sI", content[begin : begin + 8])
        begin += 8
        remaining = len(content) - begin
        if name == b"ds64":  # of RF64: sizes in 64 bits
            (long_size,) = struct.unpack("<Q", content[begin + 8 : begin + 16])
        if name == b"data":
            if size == 0xFFFFFFFF and long_size is not None:
                size = long_size
            # A program that writes to a pipe leaves the sizes zero, or larger than any file.
            if size >= 0x7FFF0000 or (size == 0 and whole + 8 <= begin):
                size = remaining
        if size > remaining:
            raise ValueError(f"{remaining} bytes are left of a chunk of {size}")
        yield name, content[begin : begin + size]
        begin += size + size % 2
