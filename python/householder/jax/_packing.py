"""Sequences of different lengths as sequences of one length: XLA's kernel of the delta rule takes arrays of one shape.

A mask says which places of the padded array hold rows, so ``a[mask]`` packs them again. Padding adds zeros after a
sequence. They are tokens without keys, values and gates, so they change no state, and their outputs are not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

if TYPE_CHECKING:
    import numpy as np
    from jax import Array
    from numpy.typing import NDArray


def pad(rows: Array, mask: NDArray[np.bool_]) -> Array:
    """Return an array of the mask's leading shape with the rows, in their order, where it is true."""
    return jnp.zeros((*mask.shape, *rows.shape[1:]), rows.dtype).at[mask].set(rows)
