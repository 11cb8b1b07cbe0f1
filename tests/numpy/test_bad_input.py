"""Invalid input is refused; the message names the argument, its value and what was expected."""

import contextlib
import inspect
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import householder as hh
from householder import _cpu

F = np.ones
U, H, G = F((5, 3)), F((2, 5)), F((2, 5))
X = F((4, 2, 5))  # inputs of a sequence
C = np.complex128


class Foreign:
    """An array of another library, as far as anyone can tell."""

    shape, dtype = (5,), np.dtype(float)

    def __dlpack__(self):
        raise AssertionError("nobody may convert it")


CuPy = type("ndarray", (Foreign,), {"__module__": "cupy"})
Torch = type("Tensor", (Foreign,), {"__module__": "torch"})


SHAPES = {
    "u of one axis": (lambda: hh.forward(F(5), H), "u has shape (5,), expected (..., n, m) with 1 <= m <= n"),
    "m > n": (lambda: hh.forward(F((3, 4)), H), "u has shape (3, 4), expected (..., n, m) with 1 <= m <= n"),
    "m = 0": (lambda: hh.forward(F((3, 0)), H), "u has shape (3, 0), expected"),
    "n = 0": (lambda: hh.matrix(F((0, 0))), "u has shape (0, 0), expected"),
    "complex m = n": (lambda: hh.matrix(F((3, 3), C)), "m <= n - 1; phases (n,) supply the rest of U(n)"),
    "h of another n": (lambda: hh.forward(U, F((2, 4))), "h has shape (2, 4), expected (..., 5)"),
    "h without axes": (lambda: hh.forward(U, F(())), "h has shape (), expected (..., 5)"),
    "leading axes": (lambda: hh.forward(F((2, 5, 3)), F((3, 5))), "u (2, 5, 3) and h (3, 5) do not broadcast"),
    "grad_c": (lambda: hh.backward(U, H, F((3, 5))), "grad_c has shape (3, 5), expected (2, 5)"),
    "grad_c unbroadcast": (
        lambda: hh.backward(F((3, 5, 3)), F((1, 5)), F((1, 5))),
        "grad_c has shape (1, 5), expected (3, 5)",
    ),
    "tape": (lambda: hh.backward(U, H, G, tape=F((2, 3, 5))), "tape has shape (2, 3, 5), expected (2, 4, 5)"),
    "tape of a batch": (lambda: hh.forward_tape(F((2, 5, 3)), H), "forward_tape takes one matrix: expected (n, m)"),
    "backward of a batch": (
        lambda: hh.backward(F((2, 5, 3)), H, G, tape=F((2, 4, 5))),
        "backward with a tape takes one matrix",
    ),
    "tape of another h": (
        lambda: hh.backward(U, 2 * H, G, tape=hh.forward_tape(U, H)[1]),
        "tape does not end in h",
    ),
    "phases of a real u": (lambda: hh.forward(U, H, phases=F(5)), "phases are for complex u, but u has dtype float64"),
    "phases": (lambda: hh.matrix(F((5, 3), C), F(4)), "phases has shape (4,), expected (5,)"),
    "phases in rows": (lambda: hh.matrix(F((2, 5, 3), C), [[0.0] * 5]), "phases has shape (1, 5), expected (2, 5)"),
    "ragged phases": (lambda: hh.matrix(F((2, 5, 3), C), [[0.0] * 5, [0.0]]), "phases does not make an array"),
    "ragged cu_seqlens": (
        lambda: hh.delta_rule(*[F((1, 3, 1, 2))] * 3, beta=F((1, 3, 1)), cu_seqlens=[[0], [1, 3]]),
        "cu_seqlens is [[0], [1, 3]], expected one axis of N + 1 integers",
    ),
    "wy": (lambda: hh.wy(F(3)), "u has shape (3,), expected"),
    "normalize": (lambda: hh.normalize(F((2, 3))), "u has shape (2, 3), expected"),
    "snap": (lambda: hh.snap(F((2, 3))), "u has shape (2, 3), expected"),
    "q": (lambda: hh.factor(F((2, 3))), "q has shape (2, 3), expected (..., n, n) with n >= 1"),
    "q of a batch": (lambda: hh.factor(F((2, 3, 4))), "q has shape (2, 3, 4), expected (..., n, n)"),
    "q of no size": (lambda: hh.factor(F((0, 0))), "q has shape (0, 0), expected (..., n, n) with n >= 1"),
    "complex q of size 1": (lambda: hh.factor(F((1, 1), C)), "q has shape (1, 1), expected (..., n, n) with n >= 2"),
    "m of factor": (lambda: hh.factor(np.eye(3), 4), "m is 4, expected at least 1 and at most 3"),
    "real_form": (lambda: hh.real_form(F((2, 3), C)), "w has shape (2, 3), expected square matrices"),
    "haar": (lambda: hh.haar(3, 4), "m is 4, expected at least 1 and at most 3"),
    "haar of no size": (lambda: hh.haar(0), "n is 0, expected at least 1"),
    "complex haar of size 1": (lambda: hh.haar(1, dtype=C), "n is 1, expected at least 2"),
    "complex haar of full size": (lambda: hh.haar(3, 3, dtype=C), "m is 3, expected at least 1 and at most 2"),
    "ragged lists": (lambda: hh.forward([[1.0], [2.0, 3.0]], [1.0]), "u does not make an array"),
    "method": (
        lambda: hh.forward(U, H, method="fast"),
        "method is 'fast', expected one of 'auto', 'reflections', 'wy', 'dense'",
    ),
    "no method": (lambda: hh.backward(U, H, G, method=None), "method is None, expected one of"),
    "method with a tape": (
        lambda: hh.backward(U, H, G, method="wy", tape=F((2, 4, 5))),
        "method is 'wy', expected one of 'auto', 'refl",
    ),
    "threads": (lambda: hh.set_num_threads(0), "k is 0, expected at least 1"),
    "too many threads": (lambda: hh.set_num_threads(10**30), "expected at least 1 and at most"),
}

SEQUENCES = {
    "u of a batch": (lambda: hh.rnn(F((2, 5, 3)), X)[0], "a sequence takes one matrix: expected (n, m)"),
    "x of one axis": (lambda: hh.rnn(U, F(5))[0], "x has shape (5,), expected (T, B, d) or (T, d)"),
    "x without axes": (lambda: hh.rnn(U, F(()))[0], "x has shape ()"),
    "x of four axes": (lambda: hh.rnn(U, F((1, 2, 3, 5)))[0], "expected (T, B, d) or (T, d)"),
    "x of another n": (lambda: hh.rnn(U, F((4, 2, 3)))[0], "x has shape (4, 2, 3), expected a last axis of n = 5"),
    "x of no width": (
        lambda: hh.rnn(U, F((4, 2, 0)), input_weight=F((5, 0)))[0],
        "expected a last axis of at least 1",
    ),
    "h0": (lambda: hh.rnn(U, X, F((3, 5)))[0], "h0 has shape (3, 5), expected (2, 5) or (5,)"),
    "h0 of one sequence": (lambda: hh.rnn(U, F((4, 5)), F((1, 5)))[0], "h0 has shape (1, 5), expected (5,)"),
    "input_weight": (
        lambda: hh.rnn(U, X, input_weight=F((5, 4)))[0],
        "input_weight has shape (5, 4), expected (5, 5)",
    ),
    "bias": (lambda: hh.rnn(U, X, bias=F(4))[0], "bias has shape (4,), expected (5,)"),
    "phases": (lambda: hh.rnn(U, X, phases=F(5))[0], "phases are for complex u"),
    "nonlinearity": (lambda: hh.rnn(U, X, nonlinearity="gelu")[0], "nonlinearity is 'gelu', expected one of"),
    "method": (lambda: hh.rnn(U, X, method="fast")[0], "method is 'fast', expected one of"),
    "negative slope": (
        lambda: hh.rnn(U, X, negative_slope=-0.1)[0],
        "negative_slope is -0.1, expected a finite number >= 0",
    ),
    "slope of NaN": (lambda: hh.rnn(U, X, negative_slope=np.nan)[0], "negative_slope is nan"),
    "slope of infinity": (lambda: hh.rnn(U, X, negative_slope=np.inf)[0], "negative_slope is inf"),
    "odd OPLU": (lambda: hh.rnn(U, X, nonlinearity="oplu")[0], "'oplu' pairs i with i + n/2: n = 5 is odd"),
    "odd modReLU": (
        lambda: hh.rnn(U, X, nonlinearity="modrelu", nonlinearity_bias=F(2))[0],
        "n = 5 is odd, expected an even n",
    ),
    "modReLU without bias": (
        lambda: hh.rnn(F((4, 2)), F((1, 4)), nonlinearity="modrelu")[0],
        "nonlinearity_bias is missing",
    ),
    "modReLU's bias": (
        lambda: hh.rnn(F((4, 2)), F((1, 4)), nonlinearity="modrelu", nonlinearity_bias=F(4))[0],
        "nonlinearity_bias has shape (4,), expected (2,)",
    ),
    "bias of no modReLU": (
        lambda: hh.rnn(U, X, nonlinearity_bias=F(5))[0],
        "nonlinearity_bias is given for 'leaky_relu'",
    ),
    "complex OPLU": (
        lambda: hh.rnn(F((4, 2), C), F((1, 4), C), nonlinearity="oplu")[0],
        "'oplu' acts on real numbers",
    ),
    "increasing batch_sizes": (lambda: hh.rnn(U, F((5, 5)), batch_sizes=[2, 3])[0], "that never increase"),
    "batch_sizes in reverse": (
        lambda: hh.rnn(U, F((3, 5)), batch_sizes=[2, 1], reverse=True)[0],
        "reverse is for sequences of one length",
    ),
    "zero in batch_sizes": (
        lambda: hh.rnn(U, F((2, 5)), batch_sizes=[2, 0])[0],
        "batch_sizes is [2, 0], expected one axis of positive",
    ),
    "batch_sizes of two axes": (
        lambda: hh.rnn(U, F((4, 5)), batch_sizes=[[2, 2]])[0],
        "expected one axis of positive integers",
    ),
    "batch_sizes of no rectangle": (
        lambda: hh.rnn(U, F((4, 5)), batch_sizes=[[1, 2], [3]])[0],
        "batch_sizes is [[1, 2], [3]], expected one axis of integers",
    ),
    "batch_sizes of 64 bits": (
        lambda: hh.rnn(U, F((0, 5)), batch_sizes=np.array([2**64 - 1, 1], np.uint64))[0],
        "expected numbers of at most 64 bits with a sign",
    ),
    "batch_sizes whose sum leaves 64 bits": (
        lambda: hh.rnn(U, F((1, 5)), batch_sizes=np.array([2**59] * 32 + [1]))[0],
        "expected (sum(batch_sizes), d) = (18446744073709551617, d)",
    ),
    "sum of batch_sizes": (
        lambda: hh.rnn(U, F((4, 5)), batch_sizes=[3, 2])[0],
        "expected (sum(batch_sizes), d) = (5, d)",
    ),
    "unpacked x": (
        lambda: hh.rnn(U, F((5, 1, 5)), batch_sizes=[3, 2])[0],
        "x has shape (5, 1, 5), expected (sum(batch_sizes), d)",
    ),
    "grad_h": (lambda: hh.rnn_vjp(U, X)[1](F((4, 1, 5))), "grad_h has shape (4, 1, 5), expected (4, 2, 5)"),
    "grad_last": (lambda: hh.rnn_vjp(U, X)[1](X, grad_last=F(5)), "grad_last has shape (5,), expected (2, 5)"),
    "no gradient": (lambda: hh.rnn_vjp(U, X)[1](), "grad_h and grad_last are both None"),
}

TYPES = {
    "u of objects": (
        lambda: hh.forward(F((5, 3), object), H),
        "u has dtype object, expected one of float32, float64, complex64, complex128",
    ),
    "u of strings": (lambda: hh.forward([["a"]], H), "u has dtype <U1"),
    "u of half precision": (
        lambda: hh.forward(F((5, 3), np.float16), H),
        "h has dtype float64 but u has dtype float32",
    ),
    "u of long doubles": (lambda: hh.forward(F((5, 3), np.longdouble), H), "u has dtype"),
    "u of records": (lambda: hh.forward(np.zeros((5, 3), [("a", float)]), H), "u has dtype [('a', '<f8')]"),
    "no u": (lambda: hh.forward(None, H), "u has dtype object"),
    "masked u": (lambda: hh.forward(np.ma.masked_array(U), H), "u is a numpy.MaskedArray, expected a numpy.ndarray"),
    "h of another precision": (
        lambda: hh.forward(U, F((2, 5), np.float32)),
        "h has dtype float32 but u has dtype float64",
    ),
    "h of another field": (lambda: hh.forward(U, F((2, 5), C)), "h has dtype complex128 but u has dtype float64"),
    "grad_c": (lambda: hh.backward(U, H, F((2, 5), np.float32)), "grad_c has dtype float32 but u has dtype float64"),
    "tape": (lambda: hh.backward(U, H, G, tape=F((2, 4, 5), np.float32)), "tape has dtype float32 but"),
    "phases of another precision": (
        lambda: hh.matrix(F((5, 3), C), F(5, np.float32)),
        "phases has dtype float32 but u has dtype complex128: expected phases of float64",
    ),
    "complex phases": (lambda: hh.matrix(F((5, 3), C), F(5, C)), "phases has dtype complex128"),
    "h of torch": (
        lambda: hh.forward(U, Torch()),
        "h is a torch.Tensor that NumPy cannot read without a copy, expected a numpy.ndarray",
    ),
    "u of torch": (lambda: hh.forward(Torch(), H), "u is a torch.Tensor that NumPy"),
    "h of CuPy": (lambda: hh.forward(U, CuPy()), "h is a cupy.ndarray that NumPy"),
    "x of torch": (lambda: hh.rnn(U, Torch())[0], "x is a torch.Tensor that NumPy"),
    "transpose": (lambda: hh.forward(U, H, transpose="yes"), "transpose is 'yes', expected True or False"),
    "transpose of a sequence": (lambda: hh.rnn(U, X, transpose=1)[0], "transpose is 1, expected True or False"),
    "slope as a flag": (lambda: hh.rnn(U, X, negative_slope=True)[0], "negative_slope is True, expected a number"),
    "scale as a flag": (
        lambda: hh.delta_rule(*[F((1, 3, 1, 2))] * 3, beta=F((1, 3, 1)), scale=True),
        "scale is True, expected a number",
    ),
    "slope": (lambda: hh.rnn(U, X, negative_slope="0.1")[0], "negative_slope is '0.1', expected a number"),
    "batch_sizes": (
        lambda: hh.rnn(U, F((4, 5)), batch_sizes=[2.0, 2.0])[0],
        "batch_sizes has dtype float64, expected integers",
    ),
    "booleans in batch_sizes": (
        lambda: hh.rnn(U, F((2, 5)), batch_sizes=[True, True])[0],
        "batch_sizes has dtype bool",
    ),
    "real w": (lambda: hh.real_form(np.eye(2)), "w has dtype float64, expected complex64 or complex128"),
    "m of factor": (lambda: hh.factor(np.eye(3), 1.0), "m is 1.0, expected an integer"),
    "n of haar as a flag": (lambda: hh.haar(True), "n is True, expected an integer"),
    "n of haar": (lambda: hh.haar("3"), "n is '3', expected an integer"),
    "dtype of haar": (lambda: hh.haar(3, dtype=int), "dtype is int64, expected one of"),
    "threads": (lambda: hh.set_num_threads(1.5), "k is 1.5, expected an integer"),
}


CASES = ("call", "message")


@pytest.mark.parametrize(CASES, SHAPES.values(), ids=list(SHAPES))
def test_impossible_values_are_value_errors(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(CASES, SEQUENCES.values(), ids=list(SEQUENCES))
def test_impossible_values_of_sequences_are_value_errors(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(CASES, TYPES.values(), ids=list(TYPES))
def test_impossible_types_are_type_errors(call, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("dtype", [float, C])
def test_no_matrices_at_all_are_a_batch(dtype):
    u = np.zeros((2, 0, 6, 3), dtype)
    assert hh.normalize(u).shape == u.shape
    if dtype is float:
        a, tau = hh.to_lapack(u)
        assert (a.shape, tau.shape) == ((2, 0, 6, 3), (2, 0, 3))


def test_tensors_are_read_where_they_are():
    torch = pytest.importorskip("torch")
    h = torch.randn(2, 5, dtype=torch.float64)
    c = hh.forward(U, h)
    assert type(c) is np.ndarray
    assert np.array_equal(c, hh.forward(U, h.numpy()))
    assert np.shares_memory(_cpu.array("h", h), h.numpy())
    with pytest.raises(TypeError, match=r"u is a torch\.Parameter that NumPy cannot read without a copy.*gradient"):
        hh.forward(torch.nn.Parameter(torch.ones(5, 3)), H)


def test_arrays_of_jax_are_read_where_they_are():
    jnp = pytest.importorskip("jax.numpy", reason="needs jax")
    u, h, x = jnp.ones((5, 3)), jnp.ones((2, 5)), jnp.ones((4, 2, 5))
    c = hh.forward(u, h)
    assert type(c) is np.ndarray
    assert np.array_equal(c, hh.forward(np.asarray(u), np.asarray(h)))
    assert np.shares_memory(_cpu.array("h", h), np.asarray(h))
    assert np.array_equal(hh.backward(u, h, h).u, hh.backward(np.asarray(u), np.asarray(h), np.asarray(h)).u)
    assert np.array_equal(hh.rnn(u, x)[0][0], hh.rnn(np.asarray(u), np.asarray(x))[0][0])


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16, bool])
def test_integers_become_numbers_of_the_dtype_that_the_others_have(dtype):
    rng = np.random.default_rng(0)
    u, h = (rng.integers(0, 2, shape).astype(dtype) for shape in ((5, 3), (2, 5)))
    assert np.array_equal(hh.forward(u, h), hh.forward(u.astype(float), h.astype(float)))
    for kind in ("float32", "complex64"):
        assert np.array_equal(hh.forward(F((5, 3), kind), h), hh.forward(F((5, 3), kind), h.astype(kind)))
    assert np.array_equal(hh.matrix(hh.factor(np.eye(3, dtype=dtype))), np.eye(3))


def test_integers_of_numpy_are_integers_and_its_numbers_numbers():
    assert np.array_equal(hh.haar(np.int64(5), np.uint8(3), rng=np.int32(0)), hh.haar(5, 3, rng=0))
    assert hh.plan(np.int64(64), np.int32(8), np.uint8(3), np.int16(5)) == hh.plan(64, 8, 3, 5)
    w = hh.matrix(U)
    assert np.array_equal(hh.factor(w, np.int8(3)), hh.factor(w, 3))
    assert np.array_equal(hh.real_form(F((2, 2), C), axis=np.int64(0)), hh.real_form(F((2, 2), C), axis=0))
    for slope in (np.float32(0.5), np.float64(0.5), np.float16(0.5)):
        assert np.array_equal(hh.rnn(U, X, negative_slope=slope)[0], hh.rnn(U, X, negative_slope=0.5)[0])
    assert np.array_equal(hh.rnn(U, X, negative_slope=np.int64(1))[0], hh.rnn(U, X, negative_slope=1.0)[0])
    assert np.array_equal(hh.forward(U, H, transpose=np.True_), hh.forward(U, H, transpose=True))


LISTS = {
    "forward": (hh.forward, {"u": U, "h": H, "tau": F(3)}),
    "forward, phases": (hh.forward, {"u": F((5, 3), C), "h": F((2, 5), C), "phases": F(5)}),
    "backward": (hh.backward, {"u": U, "h": H, "grad_c": G, "tape": hh.forward_tape(U, H)[1]}),
    "jvp": (hh.jvp, {"u": U, "h": H, "tangent_u": U, "tangent_h": H}),
    "matrix": (hh.matrix, {"u": F((2, 5, 3), C), "phases": F((2, 5))}),
    "frame": (hh.frame, {"u": F((2, 5, 3), C), "phases": F((2, 5))}),
    "rnn_forward": (
        hh.rnn,
        {"u": U, "x": F((5, 3)), "h0": F((3, 5)), "input_weight": F((5, 3)), "batch_sizes": np.array([3, 2])},
    ),
    "gradients of a recurrence": (hh.rnn_vjp(U, X)[1], {"grad_h": X, "grad_last": X[0]}),
    "factor": (hh.factor, {"q": np.eye(4)}),
    "nearest": (hh.nearest, {"a": U}),
    "to_lapack": (hh.to_lapack, {"u": U}),
    "from_lapack": (hh.from_lapack, dict(zip(("a", "tau"), hh.to_lapack(U), strict=True))),
}


@pytest.mark.parametrize(("function", "arguments"), LISTS.values(), ids=LISTS)
def test_lists_are_arrays(function, arguments):
    found = function(**{name: a.tolist() for name, a in arguments.items()})
    expected = function(**arguments)
    found, expected = (a if isinstance(a, tuple) else (a,) for a in (found, expected))
    for a, b in zip(found, expected, strict=True):
        assert a is b is None or np.array_equal(a, b)


def test_half_precision_is_computed_in_single():
    u, h = F((5, 3), np.float16), F((2, 5), np.float16)
    c = hh.forward(u, h)
    assert c.dtype == np.float32
    assert np.array_equal(c, hh.forward(u.astype(np.float32), h.astype(np.float32)))


def test_cuda_arrays_need_the_cuda_backend(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"^.*pip install 'cupy-cuda1[23]x\[ctk\]>=.*$"):
        hh.forward(CuPy(), H)


ODDITIES = [None, 0, -1, 2, 10**30, 1.5, float("nan"), 2j, "", "wy", b"x", True, (), {}, object(), int, ..., Foreign()]
ODDITIES += [[], [1], [2, 1], [1, 2], [[1.0], [2.0, 3.0]], np.float64(1), np.array(1.0), np.eye(4), 2 * np.eye(4)]
ODDITIES += [F(s) for s in (0, 4, (4, 2), (4, 4), (2, 4), (2, 4, 2), (3, 2, 4), (0, 4), (4, 0))]
ODDITIES += [np.zeros((4, 2), dtype) for dtype in ("f4", "i8", "?", "O", "f2", ">f8", "c16", "S3", "M8[s]")]
ODDITIES += [F((4, 2))[::-1], np.broadcast_to(F(2), (4, 2)), np.full((4, 2), np.nan), (1.0, (2.0,))]
GOOD = {"u": F((4, 2)), "h": F((2, 4)), "grad_c": F((2, 4)), "x": F((3, 2, 4)), "h0": F(4)}
GOOD |= {
    "tangent_u": F((4, 2)),
    "tangent_h": F((2, 4)),
    "q": np.eye(4),
    "w": F((2, 2), C),
    "n": 4,
    "m": 2,
    "a": F((4, 2)),
    "tau": F(2),
}
DELTA = {
    "q": F((1, 3, 2, 4)),
    "k": F((1, 3, 2, 4)),
    "v": F((1, 3, 2, 5)),
    "beta": F((1, 3, 2)),
    "g": -(F((1, 3, 2)) ** 2),
}
FUNCTIONS = [getattr(hh, name) for name in hh.__all__ if not name.endswith("num_threads")]
FUNCTIONS += [hh.rnn_vjp(GOOD["u"], GOOD["x"])[1], hh.delta_rule_vjp(**DELTA)[1]]


@settings(max_examples=500)
@given(data=st.data(), function=st.sampled_from(FUNCTIONS))
def test_whatever_the_arguments_a_call_returns_or_refuses(data, function):
    oddities = st.sampled_from(ODDITIES)
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        required = parameter.default is parameter.empty
        if required and data.draw(st.booleans()):
            good = GOOD | DELTA if function in (hh.delta_rule, hh.delta_rule_vjp) else GOOD
            arguments[name] = good[name]
        elif required or data.draw(st.integers(0, 3)) == 0:
            arguments[name] = data.draw(oddities)
    with contextlib.suppress(TypeError, ValueError):
        function(**arguments)


def test_a_refused_call_leaves_no_trace():
    before = hh.forward(U, H)
    for call, _ in [*SHAPES.values(), *SEQUENCES.values(), *TYPES.values()]:
        with pytest.raises((ValueError, TypeError)):
            call()
    assert np.array_equal(hh.forward(U, H), before)
