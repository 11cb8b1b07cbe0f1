"""The order in which an epoch visits its data."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=2)
def shuffled(count: int, seed: int, epoch: int) -> NDArray[Any]:
    """Return a permutation of ``range(count)`` that depends on seed and epoch alone. It must not be changed."""
    return np.random.default_rng((seed, epoch)).permutation(count)
