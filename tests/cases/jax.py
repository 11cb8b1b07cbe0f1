"""Functions of ``householder.jax``, each with the same mathematics by explicit reflections and plain loops."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import householder.jax as hj
from tests.conftest import randn

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # programs here take longer to compile than to run


def explicit_matrix(u, phases=None):
    """The product of explicit reflections, for one ``u (n, m)``."""
    n, m = u.shape
    w = jnp.eye(n, dtype=u.dtype)
    last = m == n and not jnp.iscomplexobj(u)
    for v in jnp.tril(u).T[: n - 1 if last else m]:
        w = w - 2 * jnp.outer(w @ v, jnp.conj(v)) / jnp.real(jnp.vdot(v, v))
    if last:
        w = w.at[:, -1].multiply(u[-1, -1])
    return w if phases is None else w * jnp.exp(1j * phases)


def explicit_apply(u, h, phases=None, transpose=False):
    w = jnp.vectorize(partial(explicit_matrix, phases=phases), signature="(n,m)->(n,n)")(u)
    return jnp.einsum("...ij,...j->...i", jnp.conj(w.mT) if transpose else w, h)


def phi(a, nonlinearity, slope, bias):
    n = a.shape[-1]
    match nonlinearity:
        case "identity":
            return a
        case "oplu":
            pairs = a[..., : n // 2], a[..., n // 2 :]
            return jnp.concatenate([jnp.maximum(*pairs), jnp.minimum(*pairs)], -1)
        case "modrelu":
            z = a if jnp.iscomplexobj(a) else a[..., : n // 2] + 1j * a[..., n // 2 :]
            z = z * jnp.maximum(jnp.abs(z) + bias, 0) / jnp.abs(z)
            return z if jnp.iscomplexobj(a) else jnp.concatenate([z.real, z.imag], -1)
    if jnp.iscomplexobj(a):
        return phi(a.real, nonlinearity, slope, bias) + 1j * phi(a.imag, nonlinearity, slope, bias)
    return jnp.tanh(a) if nonlinearity == "tanh" else jnp.where(a > 0, a, slope * a)


def loop(u, x, h0=None, input_weight=None, bias=None, phases=None, nonlinearity_bias=None, **options):
    """Every step for itself: all states and the last ones."""
    w = explicit_matrix(u, phases)
    w = jnp.conj(w.T) if options.get("transpose") else w
    name = options.get("nonlinearity", "leaky_relu")
    slope = 0.0 if name == "relu" else options.get("negative_slope", 0.1)
    x = x if input_weight is None else x @ input_weight.T
    x = x if bias is None else x + bias
    h, states = jnp.zeros((*x.shape[1:-1], len(u)), x.dtype) if h0 is None else h0, []
    h = jnp.broadcast_to(h, (*x.shape[1:-1], len(u)))
    for a in x[::-1] if options.get("reverse") else x:
        h = phi(h @ w.T + a, name, slope, nonlinearity_bias)
        states.append(h)
    return jnp.stack(states[::-1] if options.get("reverse") else states), h


def delta_loop(q, k, v, beta, g=None, initial_state=None, *, scale=None, steps=1, normalize=False):
    """Every step for itself, heads and sequences side by side: outputs and final states."""
    if normalize:
        q, k = (x / jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    group = v.shape[2] // q.shape[2]
    q, k = (jnp.repeat(x, group, 2) for x in (q, k))
    scale = q.shape[3] ** -0.5 if scale is None else scale
    state = (
        jnp.zeros((*v.shape[::2][:1], v.shape[2], q.shape[3], v.shape[3])) if initial_state is None else initial_state
    )
    outputs = []
    for t in range(q.shape[1]):
        if g is not None:
            gate = jnp.exp(g[:, t])
            state = state * (gate[..., None] if gate.ndim == 3 else gate[..., None, None])
        for s in range(t * steps, (t + 1) * steps):
            error = v[:, s] - jnp.einsum("bhxy,bhx->bhy", state, k[:, s])
            state = state + beta[:, s, :, None, None] * k[:, s, :, :, None] * error[:, :, None, :]
        outputs.append(scale * jnp.einsum("bhxy,bhx->bhy", state, q[:, t]))
    return jnp.stack(outputs, 1), state


class Case(NamedTuple):
    """A function, the same by other means, and arguments."""

    ours: Any
    explicit: Any
    arguments: tuple[Any, ...]


def arrays(*shapes, dtype="float64"):
    rng = np.random.default_rng(list(shapes[0]))
    return tuple(randn(rng, shape, dtype) for shape in shapes)


def _rnn(*names, **options):
    def ours(u, x, *others):
        return hj.rnn(u, x, **dict(zip(names, others, strict=True)), **options)

    def explicit(u, x, *others):
        return loop(u, x, **dict(zip(names, others, strict=True)), **options)

    return ours, explicit


def _delta(names=(), normalize=False, steps=1):
    def ours(q, k, v, beta, *others):
        options = {"use_qk_l2norm_in_kernel": normalize, "num_householder": steps, "output_final_state": True}
        return hj.delta_rule(q, k, v, beta=beta, **dict(zip(names, others, strict=True)), **options)

    def explicit(q, k, v, beta, *others):
        return delta_loop(q, k, v, beta, **dict(zip(names, others, strict=True)), steps=steps, normalize=normalize)

    return ours, explicit


def _delta_arrays(tokens, heads, value_heads, by_channel=False, steps=1):
    q, k, v, g, state = arrays(
        (2, tokens, heads, 3), (2, tokens * steps, heads, 3), (2, tokens * steps, value_heads, 2),
        (2, tokens, value_heads, *[3] * by_channel), (2, value_heads, 3, 2),
    )  # fmt: skip
    beta = np.random.default_rng(0).uniform(0, 1, v.shape[:3])
    return q, k / np.linalg.norm(k, axis=-1, keepdims=True), v, beta, -np.abs(g), state


PHASES = np.linspace(-1.0, 2.0, 4)
COMPLEX = arrays((4, 2), (2, 3, 4), (3, 4), dtype="complex128")
SIZES = ((4, 2), (2, 3, 3), (3, 4), (4, 3), (4,))  # u, x, h0, input_weight, bias
ALL = ("h0", "input_weight", "bias")

CASES = {
    "apply": Case(hj.apply, explicit_apply, arrays((4, 2), (3, 4))),
    "apply transposed, m == n": Case(
        partial(hj.apply, transpose=True), partial(explicit_apply, transpose=True), arrays((3, 3), (2, 3))
    ),
    "apply many": Case(hj.apply, explicit_apply, arrays((2, 1, 4, 2), (3, 4))),
    "apply, complex": Case(
        lambda u, h, p: hj.apply(u, h, phases=p), lambda u, h, p: explicit_apply(u, h, p), (*COMPLEX[:2], PHASES)
    ),
    "apply transposed, complex": Case(
        lambda u, h, p: hj.apply(u, h, phases=p, transpose=True),
        lambda u, h, p: explicit_apply(u, h, p, transpose=True),
        (*COMPLEX[:2], PHASES),
    ),
    "matrix, m == n": Case(hj.matrix, jnp.vectorize(explicit_matrix, signature="(n,m)->(n,n)"), arrays((2, 3, 3))),
    "matrix, complex": Case(hj.matrix, explicit_matrix, (COMPLEX[0], PHASES)),
    "rnn": Case(*_rnn(*ALL, nonlinearity="tanh"), arrays(*SIZES)),
    "rnn reversed, transposed, m == n": Case(
        *_rnn(*ALL, nonlinearity="tanh", transpose=True, reverse=True), arrays((4, 4), *SIZES[1:])
    ),
    "rnn of one sequence": Case(
        *_rnn(*ALL, nonlinearity="leaky_relu", method="dense"), arrays((4, 2), (2, 3), (4,), (4, 3), (4,))
    ),
    "rnn, oplu": Case(*_rnn(nonlinearity="oplu"), arrays((4, 2), (2, 3, 4))),
    "rnn, modrelu": Case(*_rnn("nonlinearity_bias", nonlinearity="modrelu"), arrays((4, 2), (2, 3, 4), (2,))),
    "rnn, complex": Case(*_rnn("h0", "phases", nonlinearity="tanh"), (*COMPLEX, PHASES)),
    "rnn, complex modrelu": Case(
        *_rnn("h0", "nonlinearity_bias", nonlinearity="modrelu"), (*COMPLEX, *arrays((4,)))
    ),
    "delta rule": Case(*_delta(), _delta_arrays(2, 1, 1)[:4]),
    "delta rule, gated": Case(*_delta(("g", "initial_state"), normalize=True), _delta_arrays(2, 1, 2)),
    "delta rule, gated by channel, two steps": Case(
        *_delta(("g", "initial_state"), steps=2), _delta_arrays(2, 2, 2, by_channel=True, steps=2)
    ),
}  # fmt: skip


def loss(function, seed=0):
    """A real number that depends on every real and imaginary part of every result."""

    def value(*arguments):
        rng = np.random.default_rng(seed)
        total = 0.0
        for result in jax.tree.leaves(function(*arguments)):
            for part in (result.real, result.imag) if jnp.iscomplexobj(result) else (result,):
                total = total + (part * rng.standard_normal(part.shape) + 0.3 * part**2).sum()
        return total

    return value


def directions(arguments):
    """A tangent for each argument."""
    rng = np.random.default_rng(7)
    return tuple(randn(rng, a.shape, a.dtype) for a in arguments)
