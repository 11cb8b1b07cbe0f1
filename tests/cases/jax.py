"""Functions of ``householder.jax``, each with the same of torch's tensors by the tester's oracle."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

import householder.jax as hj
from tests.conftest import of_arrays, randn
from tests.tester import oracle

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # programs here take longer to compile than to run


class Case(NamedTuple):
    """A function, the same of torch's tensors by the oracle, and arguments."""

    ours: Any
    explicit: Any
    arguments: tuple[Any, ...]


def arrays(*shapes, dtype="float64"):
    rng = np.random.default_rng(list(shapes[0]))
    return tuple(randn(rng, shape, dtype) for shape in shapes)


def _columns(form, transpose=False):
    def ours(u, h, tau=None):
        return of_arrays(hj.apply)(u, h, tau=tau, columns=form, transpose=transpose)

    def explicit(u, h, tau=None):
        w = oracle.of_columns(u, tau, form)
        return ((w.mH if transpose else w) @ h.unsqueeze(-1)).squeeze(-1)

    return ours, explicit


def _rnn(*names, **options):
    def ours(u, x, *others):
        return of_arrays(hj.rnn)(u, x, **dict(zip(names, others, strict=True)), **options)

    def explicit(u, x, *others):
        known = {name: value for name, value in options.items() if name != "method"}
        return oracle.rnn(u, x, **dict(zip(names, others, strict=True)), **known)

    return ours, explicit


def _delta(names=(), normalize=False, steps=1):
    def ours(q, k, v, beta, *others):
        options = {"use_qk_l2norm_in_kernel": normalize, "num_householder": steps, "output_final_state": True}
        return hj.delta_rule(q, k, v, beta=beta, **dict(zip(names, others, strict=True)), **options)

    def explicit(q, k, v, beta, *others):
        options = {"scale": q.shape[3] ** -0.5, "reflections": steps, "normalize": normalize}
        return oracle.delta_rule(q, k, v, beta, **dict(zip(names, others, strict=True)), **options)

    return ours, explicit


def _linear(*names, normalize=False):
    def ours(q, k, v, *others):
        given = dict(zip(names, others, strict=True))
        return hj.linear_attention(q, k, v, **given, use_qk_l2norm_in_kernel=normalize, output_final_state=True)

    def explicit(q, k, v, *others):
        given = dict(zip(names, others, strict=True))
        return oracle.delta_rule(q, k, v, None, **given, scale=q.shape[3] ** -0.5, normalize=normalize)

    return ours, explicit


def _linear_arrays(*sizes, **options):
    q, k, v, _, *others = _delta_arrays(*sizes, **options)
    return q, k, v, *others


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
    "apply": Case(hj.apply, oracle.apply, arrays((4, 2), (3, 4))),
    "apply transposed, m == n": Case(
        lambda u, h: hj.apply(hj.Reflections(u).H, h), partial(oracle.apply, transpose=True), arrays((3, 3), (2, 3))
    ),
    "apply many": Case(hj.apply, oracle.apply, arrays((2, 1, 4, 2), (3, 4))),
    "apply, complex": Case(
        lambda u, h, p: hj.apply(hj.Reflections(u, phases=p), h),
        lambda u, h, p: oracle.apply(u, h, p),
        (*COMPLEX[:2], PHASES),
    ),
    "apply transposed, complex": Case(
        lambda u, h, p: hj.apply(hj.Reflections(u, phases=p).H, h),
        lambda u, h, p: oracle.apply(u, h, p, transpose=True),
        (*COMPLEX[:2], PHASES),
    ),
    "apply, full columns": Case(*_columns("full"), arrays((4, 6), (3, 4))),
    "apply, tau": Case(*_columns("trapezoidal"), arrays((2, 1, 4, 3), (3, 4), (2, 1, 3))),
    "apply transposed, tau of full columns, complex": Case(
        *_columns("full", transpose=True), arrays((4, 3), (2, 4), (3,), dtype="complex128")
    ),
    "matrix, tau": Case(
        lambda u, t: hj.matrix(hj.Reflections(u, t)),
        lambda u, t: oracle.of_columns(u, t, "trapezoidal"),
        arrays((2, 4, 3), (2, 3)),
    ),
    "matrix, m == n": Case(hj.matrix, oracle.matrix, arrays((2, 3, 3))),
    "matrix, complex": Case(lambda u, p: hj.matrix(hj.Reflections(u, phases=p)), oracle.matrix, (COMPLEX[0], PHASES)),
    "rnn": Case(*_rnn(*ALL, nonlinearity="tanh"), arrays(*SIZES)),
    "rnn reversed, transposed, m == n": Case(
        *_rnn(*ALL, nonlinearity="tanh", transpose=True, reverse=True), arrays((4, 4), *SIZES[1:])
    ),
    "rnn of one sequence": Case(
        *_rnn(*ALL, nonlinearity="leaky_relu", method="dense"), arrays((4, 2), (2, 3), (4,), (4, 3), (4,))
    ),
    "rnn, oplu": Case(*_rnn(nonlinearity="oplu"), arrays((4, 2), (2, 3, 4))),
    "rnn, modrelu": Case(*_rnn("nonlinearity_bias", nonlinearity="modrelu"), arrays((4, 2), (2, 3, 4), (2,))),
    "rnn, tau": Case(*_rnn("h0", "tau", nonlinearity="tanh", columns="full"), arrays((4, 5), (2, 3, 4), (3, 4), (5,))),
    "rnn, full columns": Case(*_rnn(nonlinearity="tanh", columns="full", reverse=True), arrays((4, 2), (2, 3, 4))),
    "rnn, complex": Case(*_rnn("h0", "phases", nonlinearity="tanh"), (*COMPLEX, PHASES)),
    "rnn, complex modrelu": Case(
        *_rnn("h0", "nonlinearity_bias", nonlinearity="modrelu"), (*COMPLEX, *arrays((4,)))
    ),
    "delta rule": Case(*_delta(), _delta_arrays(2, 1, 1)[:4]),
    "delta rule, gated": Case(*_delta(("g", "initial_state"), normalize=True), _delta_arrays(2, 1, 2)),
    "delta rule, gated by channel, two steps": Case(
        *_delta(("g", "initial_state"), steps=2), _delta_arrays(2, 2, 2, by_channel=True, steps=2)
    ),
    "linear attention": Case(*_linear(), _linear_arrays(2, 1, 1)[:3]),
    "linear attention, gated": Case(*_linear("g", "initial_state", normalize=True), _linear_arrays(2, 1, 2)),
    "linear attention, gated by channel": Case(
        *_linear("g", "initial_state"), _linear_arrays(2, 2, 2, by_channel=True)
    ),
}  # fmt: skip


def loss(function, seed=0):
    """A real number that depends on every real and imaginary part of every result."""

    def value(*arguments):
        rng = np.random.default_rng(seed)
        total = 0.0
        results = function(*arguments)
        for result in results if isinstance(results, tuple) else (results,):
            for part in (result.real, result.imag) if "complex" in str(result.dtype) else (result,):
                weights = rng.standard_normal(part.shape)
                weights = torch.from_numpy(weights) if isinstance(part, torch.Tensor) else weights
                total = total + (part * weights + 0.3 * part**2).sum()
        return total

    return value


def directions(arguments):
    """A tangent for each argument."""
    rng = np.random.default_rng(7)
    return tuple(randn(rng, a.shape, a.dtype) for a in arguments)
