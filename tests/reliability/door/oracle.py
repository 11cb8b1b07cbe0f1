"""What is right: the readable algorithm of ``householder.reference`` in double precision, one position at a time.

Each function returns the check of a result. Errors are bounded by some roundings times the square root of the number of
operations, relative to the norms that take part; where the readable algorithm finds no number, because none went in,
anything is right.
"""

import math

import numpy as np

from householder import reference, reference_sequence

ROUNDINGS = 16


def close(out, expected, scale, operations):
    """Equal but for the rounding of so many operations on numbers of that scale."""
    if out.shape != expected.shape:
        return False
    bound = ROUNDINGS * np.finfo(out.dtype).eps * math.sqrt(operations) * scale
    return bool(np.all((out == expected) | (np.abs(out - expected) <= bound) | ~np.isfinite(expected)))


def application(axes, u, h, transpose, phases=None):
    """``W h`` for the broadcast leading axes."""
    n, m = u.shape[-2:]
    full = np.broadcast_to(_wide(h), (*axes, n))
    expected = np.empty(full.shape, full.dtype)
    for index in np.ndindex(*axes):
        expected[index] = reference.forward(_own(u, index), full[index], phases, transpose)
    scale = math.sqrt(n) * largest(h) * _sign(u)
    return lambda result: close(result, expected, scale, m)


def gradient(axes, u, h, grad_c, transpose, phases=None):
    """Gradients, summed where an argument was broadcast."""
    n, m = u.shape[-2:]
    grad_u, grad_h, grad_phases = (np.zeros(shape, _wide(u).dtype) for shape in (u.shape, (*axes, n), (n,)))
    full, g = np.broadcast_to(_wide(h), (*axes, n)), _wide(grad_c)
    for index in np.ndindex(*axes):
        of_u, of_h, of_phases = reference.backward(_own(u, index), full[index], g[index], phases, transpose)
        _own(grad_u, index)[...] += of_u
        grad_h[index] = of_h
        grad_phases += 0 if of_phases is None else of_phases
    rows = max(1, math.prod(axes))
    scale = math.sqrt(n) * largest(grad_c) * _sign(u)
    expected = (grad_u, _sum_to(grad_h, h.shape), grad_phases.real)
    product = rows * math.sqrt(n) * largest(h) * scale
    scales = (product / norms(u), rows * scale, product)

    def right(result):
        return all(close(*each, m) for each in zip(result, expected, scales, strict=phases is not None))

    return right


def matrix(u, phases=None):
    """``W`` of each u."""
    n, m = u.shape[-2:]
    expected = np.empty((*u.shape[:-1], n), _wide(u).dtype)
    for index in np.ndindex(*u.shape[:-2]):
        expected[index] = reference.matrix(u[index], phases)
    return lambda result: close(result, expected, _sign(u), m)


def wy(result):
    """``T S = I`` and ``striu(T) = striu(V* V)``."""
    v, t, s = map(_wide, result)
    (n, m), eps = v.shape[-2:], ROUNDINGS * np.finfo(result.v.dtype).eps
    if not np.isfinite(v).all():
        return True
    gram = v.conj().swapaxes(-1, -2) @ v
    errors = np.abs(np.triu(gram - t, 1)), np.abs(t @ s - np.eye(m)) / (4 * m)
    return all(error.max(initial=0) <= eps * math.sqrt(n) for error in errors)


def orthogonal(u):
    """A matrix to factor, rounded to u's dtype."""
    u = u.copy()
    if u.shape[0] == u.shape[1]:
        u[-1, -1] = -1
    return reference.matrix(u).astype(u.dtype)


def factors(q, result):
    """``matrix(factor(q)) = q``."""
    u, phases = result if isinstance(result, tuple) else (result, None)
    return close(u, u, 1, 1) and bool(np.abs(reference.matrix(u, phases) - q).max() <= 10 * len(q) * _eps(q))


class Recurrence:
    """A sequence and its gradients; with numbers that are not finite only that there is a result is known."""

    def __init__(self, arrays, options, sizes, batch):
        self.arrays, self.sizes, self.reverse = arrays, sizes, options["reverse"]
        u, x = arrays["u"], self.in_time(arrays["x"])
        n, m = u.shape
        self.finite = all(np.isfinite(a).all() for a in (np.tril(u), *(arrays[name] for name in arrays if name != "u")))
        self.phi = reference_sequence.Nonlinearity(options["nonlinearity"])
        named = {name: _wide(arrays[name]) for name in ("input_weight", "bias") if name in arrays}
        self.known = {**named, "phases": arrays.get("phases"), "transpose": options["transpose"]}
        self.x = _wide(x).reshape(sizes.sum(), x.shape[-1])
        self.h0 = np.broadcast_to(_wide(arrays.get("h0", np.zeros(n, u.dtype))), (batch, n))
        self.states = reference_sequence.rnn_forward(u, self.x, self.h0, sizes, self.phi, **self.known)
        self.steps = len(sizes) + 1
        self.growth = math.sqrt(n) * _sign(u) ** self.steps
        self.weight = max(1, x.shape[-1] * largest(arrays.get("input_weight", u[:0])))
        driven = self.weight * largest(x) + largest(arrays.get("bias", u[:0]))
        self.scale = self.growth * (largest(self.h0) + self.steps * driven)  # of states
        self.operations = self.steps * m

    def in_time(self, a):
        """An array's steps in the order in which they are run."""
        return a[::-1] if self.reverse else a

    def right_states(self, result):
        """All states."""
        expected = self.in_time(self.states.reshape(result.shape))
        return not self.finite or close(result, expected, self.scale, self.operations)

    def right_gradients(self, h, grad_h):
        """The check of all gradients."""
        u, n = self.arrays["u"], len(self.arrays["u"])
        states, g = (_wide(self.in_time(a)).reshape(-1, n) for a in (h, grad_h))
        expected = reference_sequence.rnn_backward(
            u, self.x, self.h0, states, g, np.zeros_like(self.h0), self.sizes, self.phi, **self.known
        )
        finite = self.finite and np.isfinite(states).all() and np.isfinite(g).all()
        rows = max(1, len(g)) * self.steps * self.growth * largest(g)
        scales = {
            "u": rows * self.scale / norms(u),
            "x": rows * self.weight,
            "h0": rows,
            "input_weight": rows * max(1, largest(self.x)),
            "bias": rows,
            "phases": rows * self.scale,
        }

        def right(result):
            found = {name: out for name, out in result._asdict().items() if out is not None}
            if set(found) != set(self.arrays):
                return False
            for name, out in found.items():
                value = getattr(expected, name)
                value = _sum_to(value, out.shape) if name == "h0" else value.reshape(out.shape)
                value = self.in_time(value) if name == "x" else value
                if finite and not close(out, value, scales[name], self.operations):
                    return False
            return True

        return right


def largest(a):
    """The largest of the finite numbers, and at least the smallest normal one."""
    return max(np.abs(a[np.isfinite(a)]).max(initial=0), np.finfo(a.dtype).tiny)


def norms(u):
    """Norms of the columns ``(..., 1, m)``: gradients are inverse to them. That of ``u_1`` counts as 1."""
    found = np.ones((*u.shape[:-2], 1, u.shape[-1]))
    for index in np.ndindex(*u.shape[:-2]):
        each = reference.split(u[index], None)[1]
        found[index][0, : len(each)] = each
    return found


def _sign(u):
    """How much ``u_1`` enlarges: its modulus if it is there and above 1."""
    n, m = u.shape[-2:]
    return max(1, largest(u[..., -1, -1])) if m == n else 1


def _own(u, index):
    """The matrix of a position of the broadcast axes."""
    lead = u.shape[:-2]
    return u[tuple(0 if k == 1 else i for i, k in zip(index[len(index) - len(lead) :], lead, strict=True))]


def _sum_to(a, shape):
    a = a.sum(axis=tuple(range(a.ndim - len(shape))))
    return a.sum(axis=tuple(i for i, k in enumerate(shape) if k == 1 and a.shape[i] != 1), keepdims=True)


def _wide(a):
    return a.astype(np.result_type(a.dtype, np.float64), order="C")


def _eps(a):
    return np.finfo(a.dtype).eps
