"""Recordings in WAV files."""

import warnings
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from householder.experiments.errors import UserError

_RATES = range(1_000, 1_000_001)


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
    if samples.size == 0:
        raise UserError(f"{path} holds no samples")
    if not np.isfinite(samples).all():
        raise UserError(f"{path} holds samples that are not finite")
    silence = 128.0 if samples.dtype == np.uint8 else 0.0  # only samples of one byte are unsigned
    mono = samples.reshape(len(samples), -1).mean(axis=1, dtype=np.float64) - silence
    common = gcd(rate, own_rate)
    resampled: NDArray[Any] = resample_poly(mono, rate // common, own_rate // common) if len(mono) else mono
    return resampled


def _read(path: Path) -> tuple[int, NDArray[Any]]:
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", wavfile.WavFileWarning)  # raised if the file ends too early
            warnings.filterwarnings("ignore", "Chunk .* not understood", wavfile.WavFileWarning)
            own_rate, samples = wavfile.read(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:  # garbled files raise many types
        raise UserError(f"{path} is truncated, or is not a WAV file of integers or floats: {error}") from error
    return own_rate, samples
