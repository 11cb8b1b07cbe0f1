"""Small problems on which kernels are compared with the core or the reference at their first use on a device."""

from collections.abc import Sequence as Many

import numpy as np

from householder._base import cpu
from householder._base.spec import COMPLEX, DTYPES, NONLINEARITIES
from householder._base.types import AnyArray, Sequence, SequenceGradients
from householder._cuda.library import KernelLibrary
from householder._cuda.verdicts import WrongError

STEPS = 6
_ALLOWED = {"float32": 1000 * 2.0**-23, "float64": 1000 * 2.0**-52, "bfloat16": 16 * 2.0**-8, "float16": 16 * 2.0**-11}
_ALLOWED_TF32 = 16 * 2.0**-10
"""Errors relative to the largest entry. A wrong kernel is off by far more."""


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> AnyArray:
    """Draw numbers in double precision that ``dtype`` represents exactly."""
    parts = np.random.default_rng([seed, *shape]).standard_normal((2, *shape))
    return rounded(parts[0] + 1j * parts[1] if dtype in COMPLEX else parts[0], dtype)


def rounded(a: AnyArray, dtype: str) -> AnyArray:
    """Round to a dtype, still in double precision."""
    if dtype == "bfloat16":  # float32 without its last 16 bits
        return (a.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    return a.astype(dtype).astype(a.dtype)


def compare(library: KernelLibrary, results: Many[AnyArray], expected: Many[AnyArray], dtype: str) -> None:
    """Compare arrays of the device with those of the host.

    Raises
    ------
    WrongError
        They differ by more than rounding.
    """
    allowed = _ALLOWED[DTYPES[dtype].real]
    if library.allows_tf32() and DTYPES[dtype].real != "float64":  # for products outside the kernel
        allowed = max(allowed, _ALLOWED_TF32)
    for a, b in zip(results, expected, strict=True):
        wide = library.xp.complex128 if np.iscomplexobj(b) else library.xp.float64
        error = np.abs(library.to_host(library.cast(a, wide)) - b).max() / max(1.0, np.abs(b).max())
        if not error <= allowed:
            raise WrongError(f"an error of {error:.1e} of the largest entry")


class TrialSequence:
    """A sequence in which every kernel takes both branches, and what the core computes for it.

    Pre-activations stay away from the points where nonlinearities bend, so that rounding changes no branch. Packed
    sequences end after different steps.
    """

    def __init__(self, n: int, m: int, batch: int, dtype: str, nonlinearity: str, method: str, *, packed: bool = False):
        u = numbers((n, m), DTYPES[dtype].compute)
        h0, self.grad_last = numbers((batch, n), dtype, 1), numbers((batch, n), dtype, 2)
        self.grad_h = numbers((STEPS, batch, n), dtype, 3)
        bias = None
        phi = NONLINEARITIES[nonlinearity]
        if phi.has_bias:
            bias = rounded(np.linspace(-0.3, -0.1, phi.moduli(n, np.iscomplexobj(u))), "float32")
        preactivations = _away_from_bends(numbers((STEPS, batch, n), dtype, 4), nonlinearity)
        s = Sequence(u, preactivations, h0, None, None, None, None, nonlinearity, 0.1, bias, False, False, method)
        alone = s._replace(x=preactivations.reshape(1, -1, n), h0=None)  # one step from zero: the nonlinearity
        states = cpu.rnn(alone, 1, STEPS * batch).reshape(preactivations.shape)
        before = np.concatenate([h0[None], states[:-1]])
        x = rounded(preactivations - before @ cpu.matrix(u, None).T, dtype)
        sizes = None
        if packed:
            sizes = np.maximum(batch * np.array([6, 6, 5, 3, 1, 1]) // STEPS, 1)
            running = np.arange(batch) < sizes[:, None]
            x, self.grad_h = x[running], self.grad_h[running]
        self.dtype, self.batch, self.sequence = dtype, batch, s._replace(x=x, batch_sizes=sizes)

    def expected(self) -> tuple[AnyArray, SequenceGradients]:
        """Return states and gradients."""
        h, pull = cpu.rnn_vjp(self.sequence, STEPS, self.batch)
        return h, pull(self.grad_h, self.grad_last)


def _away_from_bends(a: AnyArray, nonlinearity: str) -> AnyArray:
    """Return numbers of the same signs with magnitudes from 1/2 to 1; the second numbers of OPLU's pairs are larger."""
    parts = a.view(np.float64)
    parts = np.sign(parts) * (0.5 + np.abs(parts) % 0.5)
    if nonlinearity == "oplu":
        half = parts.shape[-1] // 2
        parts[..., half:] += np.sign(parts[..., half:])
    return parts.view(a.dtype)
