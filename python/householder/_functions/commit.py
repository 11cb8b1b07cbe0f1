"""Commit drafted tokens: the states after those of them that are accepted, in one pass over each state."""

import numpy as np

from householder import _core
from householder._base import drafts, validate
from householder._base.cpu import array, operand
from householder._base.types import Array, ArrayLike


def commit(
    state: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    accepted: ArrayLike,
    beta: ArrayLike = None,
    g: ArrayLike = None,
    use_qk_l2norm_in_kernel: bool = False,
    num_householder: int = 1,
) -> Array:
    """Return the states after the accepted tokens of a draft, for speculative decoding.

    Call :func:`delta_rule` for the outputs of all T drafted tokens first: without ``output_final_state`` it writes no
    state. Decide how many tokens of each sequence are accepted, and commit these. A state is read and written once,
    however many tokens there are, and rejected tokens have no effect, even if they are infinite or NaN.

    Parameters
    ----------
    state : array, shape (B, HV, K, V)
        The states before the draft.
    k : array, shape (B, T * num_householder, H, K)
        Keys.
    v : array, shape (B, T * num_householder, HV, V)
        Values; HV is a multiple of H, and consecutive value heads share a key head.
    accepted : sequence of int, length B
        How many of the T tokens each sequence accepts, from 0 to T.
    beta : array, shape (B, T * num_householder, HV), optional
        Step sizes; None for linear attention, which erases nothing.
    g : array, shape (B, T, HV) or (B, T, HV, K), optional
        Logarithms of decays, at most 0, as for :func:`delta_rule`.
    use_qk_l2norm_in_kernel : bool
        Divide keys by ``sqrt(sum x^2 + 1e-6)``.
    num_householder : int
        Steps per token.

    Returns
    -------
    array, shape (B, HV, K, V)

    Raises
    ------
    TypeError
        An unsupported dtype, or arguments of different dtypes, devices or libraries.
    ValueError
        Shapes that do not fit, or a positive gate.

    Examples
    --------
    Two sequences with four drafted tokens each. The first one accepts one of them, the second one three:

    >>> import numpy as np, householder as hh
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4, 2, 8)) / 3
    >>> beta, state = np.full((2, 4, 2), 0.5), np.zeros((2, 2, 8, 8))
    >>> o = hh.delta_rule(q, k, v, beta=beta, initial_state=state).o
    >>> after = hh.commit(state, k, v, beta=beta, accepted=[1, 3])
    >>> prefixes = hh.delta_rule(q, k, v, beta=beta, initial_state=state, states_at=[1, 3]).states
    >>> np.allclose(after, [prefixes[0, 0], prefixes[1, 1]])
    True
    """
    k = array("k", k)
    if k.dtype.kind != "f":
        raise TypeError(f"k has dtype {k.dtype}, expected float32 or float64")
    others = {"v": operand("v", v, k, like="k")}
    if beta is not None:
        others["beta"] = operand("beta", beta, k, like="k")
    g = None if g is None else operand("g", g, k, like="k")
    state = operand("state", state, k, like="k")
    shapes = {name: a.shape for name, a in others.items()}
    sizes = drafts.sizes(k.shape, shapes, None if g is None else g.shape, num_householder)
    validate.shape("state", state, sizes.states)
    normalize = validate.flag("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel)
    numbers = validate.accepted(accepted, sizes.batch, sizes.tokens)
    operands, ends = drafts.first_tokens(np, (k, others["v"], others.get("beta"), g), numbers, sizes.native[-1])
    k, v, beta, g = (None if a is None else np.ascontiguousarray(a) for a in operands)
    q = np.ascontiguousarray(k[:, : k.shape[1] // sizes.native[-1]])  # of any numbers, because no output is asked for
    options = sizes.native, validate.delta_offsets(q.shape, ends), g is not None and g.ndim == 4, 1.0, normalize
    last: Array = state.copy()
    _core.delta_forward((q, k, v, beta, g, None, None), options, None, last, None, True)
    return last
