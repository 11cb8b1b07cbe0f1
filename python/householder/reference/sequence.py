"""Sequences in plain NumPy: ``h_t = phi(W h_{t-1} + V x_t + b)`` and its gradients, step by step.

The double-precision companion of :mod:`householder.reference`. Sequences are packed: the rows of ``x (rows, d)``
hold step 1 of all sequences, then step 2 of those that continue: ``batch_sizes[t]`` rows for step t, never increasing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from householder import reference
from householder._base.types import Array, SequenceGradients


class ReferenceNonlinearity(NamedTuple):
    """``phi``: its name, leaky ReLU's slope for negative arguments and modReLU's bias."""

    name: str = "identity"
    negative_slope: float = 0.1
    bias: Array | None = None

    def forward(self, a: Array) -> Array:
        """Return ``phi(a)``; functions of one real number act on real and imaginary parts separately."""
        parts = a.view(np.float64)
        if self.name == "tanh":
            return np.tanh(parts).view(a.dtype)
        if self.name == "relu":
            return np.maximum(parts, 0).view(a.dtype)
        if self.name == "leaky_relu":
            return np.where(parts > 0, parts, self.negative_slope * parts).view(a.dtype)
        if self.name == "oplu":
            return _exchange(a, _descents(a))
        if self.name == "modrelu":
            z = _pairs_to_complex(a)
            return _complex_to_pairs(z * self._gain(z), a)
        if self.name == "real_modrelu":
            return a * self._gain(a)
        if self.name == "identity":
            return a
        raise NotImplementedError(f"nonlinearity: no reference for {self.name!r}")

    def backward(self, a: Array, g: Array) -> tuple[Array, Array | None]:
        """Return ``dL/da`` from ``g = dL/dphi``, and ``dL/db`` of modReLU, summed over all rows."""
        parts = a.view(np.float64)
        if self.name == "tanh":
            return (g.view(np.float64) * (1 - np.tanh(parts) ** 2)).view(g.dtype), None
        if self.name in ("relu", "leaky_relu"):
            slope = self.negative_slope if self.name == "leaky_relu" else 0.0
            return (g.view(np.float64) * np.where(parts > 0, 1, slope)).view(g.dtype), None
        if self.name == "oplu":
            return _exchange(g, _descents(a)), None
        if self.name == "modrelu":
            return self._modrelu_backward(a, g)
        if self.name == "real_modrelu":
            passed = np.where(self._gain(a) == 0, 0, g)
            return passed, (np.sign(a) * passed).reshape(-1, a.shape[-1]).sum(axis=0)
        if self.name == "identity":
            return g, None
        raise NotImplementedError(f"nonlinearity: no reference for the gradient of {self.name!r}")

    def _gain(self, z: Array) -> Array:
        """Return ``(|z| + b) / |z|`` where ``|z| + b > 0`` and z is not 0, else 0."""
        r = np.abs(z)
        return np.where((r + self.bias <= 0) | (r == 0), 0, (r + self.bias) / np.where(r == 0, 1, r))

    def _modrelu_backward(self, a: Array, g: Array) -> tuple[Array, Array]:
        """With ``e = z / |z|`` and ``p = conj(e) g``: ``dL/dz = e (Re p + i gain Im p)``, ``dL/db = sum Re p``."""
        z = _pairs_to_complex(a)
        gain = self._gain(z)
        e = z / np.where(z == 0, 1, np.abs(z))
        p = np.where(gain == 0, 0, e.conj() * _pairs_to_complex(g))
        grad_bias = p.real.reshape(-1, p.shape[-1]).sum(axis=0)
        return _complex_to_pairs(e * (p.real + 1j * gain * p.imag), a), grad_bias


def _descents(a: Array) -> Array:
    """Return where OPLU exchanges its pair ``(a_i, a_{i+n/2})``: the first is smaller."""
    k = a.shape[-1] // 2
    return a[..., :k] < a[..., k:]


def _exchange(a: Array, where: Array) -> Array:
    first, second = np.split(a, 2, axis=-1)
    return np.concatenate([np.where(where, second, first), np.where(where, first, second)], axis=-1)


def _pairs_to_complex(a: Array) -> Array:
    """Return ``z_i = a_i + i a_{i+n/2}`` of a real array; a complex one as it is."""
    if np.iscomplexobj(a):
        return a
    re, im = np.split(a, 2, axis=-1)
    return np.asarray(re + 1j * im)


def _complex_to_pairs(z: Array, like: Array) -> Array:
    return z if np.iscomplexobj(like) else np.concatenate([z.real, z.imag], axis=-1)


def _steps(batch_sizes: Sequence[int]) -> list[slice]:
    """Return the rows of each step."""
    ends = np.cumsum(batch_sizes)
    return [slice(end - size, end) for size, end in zip(batch_sizes, ends, strict=True)]


def rnn_forward(
    u: Array,
    x: Array,
    h0: Array,
    batch_sizes: Sequence[int],
    phi: ReferenceNonlinearity,
    *,
    input_weight: Array | None = None,
    bias: Array | None = None,
    phases: Array | None = None,
    transpose: bool = False,
) -> Array:
    """Return all ``h_t (rows, n)`` from ``h0 (batch, n)``."""
    driven = _drive(x, input_weight, bias)
    h = np.empty(driven.shape, np.result_type(u.dtype, np.float64))
    state = h0
    for step, size in zip(_steps(batch_sizes), batch_sizes, strict=True):
        state = phi.forward(reference.forward(u, state[:size], phases, transpose) + driven[step])
        h[step] = state
    return h


def _drive(x: Array, input_weight: Array | None, bias: Array | None) -> Array:
    """Return ``V x + b``."""
    driven = x if input_weight is None else x @ input_weight.T
    return driven if bias is None else driven + bias


def rnn_backward(
    u: Array,
    x: Array,
    h0: Array,
    h: Array,
    grad_h: Array,
    grad_last: Array,
    batch_sizes: Sequence[int],
    phi: ReferenceNonlinearity,
    *,
    input_weight: Array | None = None,
    bias: Array | None = None,
    phases: Array | None = None,
    transpose: bool = False,
) -> SequenceGradients:
    """Return the gradients: ``dL/da_t = phi'(a_t) (dL/dh_t + W* dL/da_{t+1})``, ``h_t = phi(a_t)``.

    ``grad_last (batch, n)`` is the gradient of each sequence's last state, wherever it ends.
    """
    n = len(u)
    driven = _drive(x, input_weight, bias)
    grad_u = np.zeros(u.shape, h.dtype)
    grad_driven = np.zeros((len(x), n), h.dtype)
    grad_phases, grad_phi_bias = np.zeros(n), np.zeros(0 if phi.bias is None else len(phi.bias))
    carried = grad_last.astype(h.dtype) if len(batch_sizes) else np.zeros_like(h0)  # dL/dh_{t-1} of every sequence
    steps = _steps(batch_sizes)
    for t in reversed(range(len(steps))):
        size = batch_sizes[t]
        before = (h[steps[t - 1]] if t else h0)[:size]
        a = reference.forward(u, before, phases, transpose) + driven[steps[t]]
        g, grad_b = phi.backward(a, grad_h[steps[t]] + carried[:size])
        at_t, carried[:size], phases_at_t = reference.backward(u, before, g, phases, transpose)
        grad_driven[steps[t]] = g
        grad_u += at_t
        grad_phases += 0 if phases_at_t is None else phases_at_t
        grad_phi_bias += 0 if grad_b is None else grad_b
    return SequenceGradients(
        u=grad_u,
        x=grad_driven if input_weight is None else grad_driven @ input_weight.conj(),
        h0=carried,
        input_weight=None if input_weight is None else grad_driven.T @ x.conj(),
        bias=None if bias is None else grad_driven.sum(axis=0),
        phases=None if phases is None else grad_phases,
        nonlinearity_bias=None if phi.bias is None else grad_phi_bias,
    )
