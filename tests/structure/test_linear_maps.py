"""``Reflections`` of NumPy, torch and JAX act as the explicit matrix does, and functions take them like its columns."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import householder as hh

pytest.importorskip("jax", reason="needs jax")
import jax

from tests.cases.linear_maps import ARGUMENTS, N, calls, matrix
from tests.conftest import assert_close, randn
from tests.operations import LIBRARIES

each = pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
each_library = pytest.mark.parametrize("library", LIBRARIES)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64():
        yield


def made(library, arguments):
    """The object, the explicit matrix, and how to make an array."""
    module, convert = LIBRARIES[library]
    return module.Reflections(**calls(arguments, convert)), matrix(**arguments).numpy(), convert


def tanh(a):
    """The hyperbolic tangent of a real number, or of both parts of a complex one."""
    return np.tanh(a.real) + 1j * np.tanh(a.imag) if a.dtype.kind == "c" else np.tanh(a)


def adjoint(w):
    return w.conj().swapaxes(-1, -2)


MATRICES = {
    "W": (lambda w: w, lambda w: w),
    "T": (lambda w: w.T, lambda w: w.swapaxes(-1, -2)),
    "H": (lambda w: w.H, adjoint),
    "conj": (lambda w: w.conj(), np.conj),
    "T of H": (lambda w: w.H.T, np.conj),
}


@each
@each_library
@pytest.mark.parametrize("name", MATRICES)
def test_products_are_those_of_the_matrix(library, arguments, name, rng):
    w, explicit, convert = made(library, arguments)
    of_object, of_matrix = MATRICES[name]
    w, explicit = of_object(w), of_matrix(explicit)
    assert w.shape == explicit.shape
    assert w.ndim == explicit.ndim
    assert len(w) == len(explicit)
    assert str(w.dtype).removeprefix("torch.") == explicit.dtype.name
    assert_close(w.matrix(), explicit)
    assert_close(np.asarray(w), explicit)
    for shape in [(N,), (N, 4), (*explicit.shape[:-2], N, 5), (3, *(1,) * (explicit.ndim - 2), N, 2)]:
        x = randn(rng, shape, explicit.dtype)
        assert_close(w @ convert(x), explicit @ x)
        transposed = x.swapaxes(-1, -2) if x.ndim > 1 else x
        assert_close(convert(transposed) @ w, transposed @ explicit)


@each
@each_library
def test_functions_take_the_object_in_the_place_of_its_columns(library, arguments, rng):
    w, explicit, convert = made(library, arguments)
    module, _ = LIBRARIES[library]
    h = randn(rng, (*explicit.shape[:-2], N), explicit.dtype)
    expected = (explicit @ h[..., None])[..., 0]
    assert_close(module.apply(w, convert(h)), expected)
    assert_close(
        module.apply(w.H, convert(expected), method="reflections"), (adjoint(explicit) @ expected[..., None])[..., 0]
    )
    assert_close(module.matrix(w.T), explicit.swapaxes(-1, -2))
    if explicit.ndim == 2:
        x = randn(rng, (5, 2, N), explicit.dtype)
        states = np.zeros((2, N), explicit.dtype)
        h, _ = module.rnn(w.H, convert(x), nonlinearity="tanh")
        for step, found in zip(x, np.asarray(h), strict=True):
            states = tanh(states @ explicit.conj() + step)
            assert_close(found, states)


@each_library
def test_a_frame_is_that_of_the_matrix(library):
    for arguments in (ARGUMENTS["real"], ARGUMENTS["complex, phases"], ARGUMENTS["many, phases of each"]):
        w, explicit, _ = made(library, arguments)
        assert_close(LIBRARIES[library][0].frame(w), explicit[..., :3])


@each_library
def test_parts_of_a_batch_are_its_matrices(library):
    for name in ("many", "many, tau", "many, phases", "many, phases of each"):
        w, explicit, _ = made(library, ARGUMENTS[name])
        for index in (0, -1, slice(1), ...):
            assert_close(w[index].matrix(), explicit[index])
        assert_close(w[..., 1].matrix(), explicit[..., 1, :, :])
        assert_close(np.stack([np.asarray(part) for part in w]), explicit)
    with pytest.raises(IndexError, match="too many indices"):
        w[0, 0]
    with pytest.raises(TypeError, match="one matrix"):
        iter(w[0])


@each_library
def test_the_text_of_an_object_says_what_it_is(library):
    w, _, _ = made(library, ARGUMENTS["complex, phases"])
    kind = "torch.complex128" if library == "torch" else "complex128"
    text = f"Reflections(shape=(6, 6), m=3, columns='trapezoidal', phases, dtype={kind}"
    assert repr(w) == f"{text})"
    assert repr(w.H) == f"{text}, adjoint)"


class Setup(NamedTuple):
    module: Any
    w: Any
    x: Any
    y: Any


MISTAKES = {
    "W @ x": (lambda s: s.w @ s.y, ValueError, r"W @ x: x has shape \(5,\), expected \(6,\) or \(..., 6, k\)"),
    "x @ W": (lambda s: s.y @ s.w, ValueError, r"x @ W: x has shape \(5,\), expected \(6,\) or \(..., k, 6\)"),
    "W @ W": (lambda s: s.w @ s.w, TypeError, "unsupported operand"),
    "columns": (lambda s: s.module.Reflections(s.w.u, columns="square"), ValueError, "columns is 'square', expected"),
    "an object as an array": (lambda s: s.module.nearest(s.w), TypeError, "a is a .*Reflections, expected"),
    "a frame of an adjoint": (lambda s: s.module.frame(s.w.T), ValueError, "frame takes W itself"),
    "a frame of full columns": (
        lambda s: s.module.frame(s.module.Reflections(s.w.u, columns="full")),
        ValueError,
        "frame takes trapezoidal columns without tau",
    ),
}


@each_library
@pytest.mark.parametrize(("call", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_impossible_calls_are_refused(library, call, error, message):
    w, _, convert = made(library, ARGUMENTS["real"])
    with pytest.raises(error, match=message):
        call(Setup(LIBRARIES[library][0], w, convert(np.ones(N)), convert(np.ones(5))))


def test_numpy_converts_the_other_factor_as_apply_does():
    w = hh.Reflections(np.ones((4, 2), np.float32))
    product = w @ [1, 2, 3, 4]
    assert_close(product, hh.apply(w, [1, 2, 3, 4]))
    assert product.dtype == np.float32
    with pytest.raises(TypeError, match="x has dtype float64 but u has dtype float32"):
        w @ np.ones(4)


def test_further_functions_of_numpy_take_the_object(rng):
    u, h, g = (randn(rng, shape, "float64") for shape in ((N, 3), (4, N), (4, N)))
    w = hh.Reflections(u)
    pairs = [
        (hh.backward(w.T.T, h, g), hh.backward(u, h, g)),
        (hh.forward_tape(w, h), hh.forward_tape(u, h)),
        ((hh.jvp(w, h, u, h),), (hh.jvp(u, h, u, h),)),
        (hh.wy(w), hh.wy(u)),
        (hh.rnn_vjp(w, h)[1](g)[:2], hh.rnn_vjp(u, h)[1](g)[:2]),
        ((hh.Recurrence(w).step(h[0], g[0]),), (hh.Recurrence(u).step(h[0], g[0]),)),
    ]
    for ours, expected in pairs:
        for a, b in zip(ours, expected, strict=True):
            assert np.array_equal(a, b)
    for function in (hh.normalize, hh.snap, hh.to_lapack):
        with pytest.raises(TypeError, match=r"u is a householder\.Reflections, expected an array: W\.u"):
            function(w)


def test_solvers_of_scipy_take_the_object(rng):
    linalg = pytest.importorskip("scipy.sparse.linalg")
    for arguments in (ARGUMENTS["real"], ARGUMENTS["tau"], ARGUMENTS["complex, phases"]):
        w, explicit, _ = made("numpy", arguments)
        operator, b = linalg.aslinearoperator(w), randn(rng, N, explicit.dtype)
        assert operator.dtype == explicit.dtype
        x = randn(rng, (N, 2), explicit.dtype)
        assert_close(operator @ x, explicit @ x)
        assert_close(operator.H @ x, adjoint(explicit) @ x)
        assert_close(operator.rmatvec(b), adjoint(explicit) @ b)
        solved, failed = linalg.gmres(w, b, rtol=1e-13)
        assert not failed
        assert_close(explicit @ solved, b, factor=1e4)
        assert_close(explicit @ linalg.lsqr(w, b, atol=1e-14, btol=1e-14)[0], b, factor=1e4)


def test_copies_of_the_object_are_its_copies():
    import copy
    import pickle

    w, explicit, _ = made("numpy", ARGUMENTS["complex, phases"])
    for other in (copy.copy(w.H), copy.deepcopy(w.H), pickle.loads(pickle.dumps(w.H))):
        assert_close(other.matrix(), adjoint(explicit))
