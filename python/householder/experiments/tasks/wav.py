"""Recordings in WAV files."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from householder.experiments.errors import UserError


def read_wav(path: Path, rate: int) -> NDArray[Any]:
    """Read a recording as one channel at a given rate.

    Parameters
    ----------
    path : Path
        A WAV file of 8, 16, 24 or 32-bit integers. Channels are mixed down.
    rate : int
        Samples per second to interpolate to, linearly.

    Raises
    ------
    UserError
        If there is no such file, or it is not what it should be.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, own_rate, frames = file.getparams()[:4]
            content = file.readframes(frames)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (wave.Error, EOFError) as error:
        raise UserError(f"{path} is not a WAV file of integers: {str(error) or 'it ends too early'}") from error
    if width not in (1, 2, 3, 4) or own_rate < 1:
        raise UserError(f"{path} has {8 * width} bits at {own_rate} Hz, expected 8, 16, 24 or 32 bits")
    if len(content) < frames * channels * width:
        raise UserError(f"{path} is truncated: its header says {frames} samples")
    mono: NDArray[Any] = _integers(content, width).reshape(-1, channels).mean(axis=1)
    times = np.arange(int(len(mono) * rate / own_rate)) * (own_rate / rate)
    return np.interp(times, np.arange(len(mono)), mono) if len(mono) else mono


def _integers(content: bytes, width: int) -> NDArray[Any]:
    """Return samples as numbers; only those of one byte are unsigned."""
    if width == 1:
        return np.frombuffer(content, np.uint8) - 128.0
    padded = np.zeros((len(content) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(content, np.uint8).reshape(-1, width)
    return padded.view("<i4").ravel().astype(np.float64)
