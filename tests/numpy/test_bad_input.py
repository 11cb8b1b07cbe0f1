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
from householder._base import cpu
from tests.conftest import of_arrays

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


VALUES = {
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
    "ragged phases": (
        lambda: hh.matrix(hh.Reflections(F((2, 5, 3), C), phases=[[0.0] * 5, [0.0]])),
        "phases does not make an array",
    ),
    "ragged cu_seqlens": (
        lambda: hh.delta_rule(*[F((1, 3, 1, 2))] * 3, beta=F((1, 3, 1)), cu_seqlens=[[0], [1, 3]]),
        "cu_seqlens is [[0], [1, 3]], expected one axis of N + 1 integers",
    ),
    "wy": (lambda: hh.wy(F(3)), "u has shape (3,), expected"),
    "normalize": (lambda: hh.normalize(F((2, 3))), "u has shape (2, 3), expected"),
    "snap": (lambda: hh.snap(F((2, 3))), "u has shape (2, 3), expected"),
    "real_form": (lambda: hh.real_form(F((2, 3), C)), "w has shape (2, 3), expected square matrices"),
    "real_form of a number": (lambda: hh.real_form(C(2 + 1j), axis=0), "w has shape (), expected at least one axis"),
    "complex haar of size 1": (lambda: hh.haar(1, dtype=C), "n is 1, expected at least 2"),
    "ragged lists": (lambda: hh.forward([[1.0], [2.0, 3.0]], [1.0]), "u does not make an array"),
    "method with a tape": (
        lambda: hh.backward(U, H, G, method="wy", tape=F((2, 4, 5))),
        "method is 'wy', expected one of 'auto', 'refl",
    ),
    "threads": (lambda: hh.set_num_threads(0), "k is 0, expected at least 1"),
    "too many threads": (lambda: hh.set_num_threads(10**30), "expected at least 1 and at most"),
    "batch_sizes of no rectangle": (
        lambda: hh.rnn(U, F((4, 5)), batch_sizes=[[1, 2], [3]])[0],
        "batch_sizes is [[1, 2], [3]], expected one axis of integers",
    ),
    "batch_sizes of 64 bits": (
        lambda: hh.rnn(U, F((0, 5)), batch_sizes=np.array([2**64 - 1, 1], np.uint64))[0],
        "expected numbers of at most 64 bits with a sign",
    ),
    "unpacked x": (
        lambda: hh.rnn(U, F((5, 1, 5)), batch_sizes=[3, 2])[0],
        "x has shape (5, 1, 5), expected (sum(batch_sizes), d)",
    ),
    "input_weight of no inputs": (
        lambda: hh.Recurrence(U, input_weight=F((5, 0))),
        "input_weight has shape (5, 0), expected (n, d) with d of at least 1",
    ),
    "input_weight of no axis": (
        lambda: hh.Recurrence(U, input_weight=F(())),
        "input_weight has shape (), expected (n, d)",
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
    "no u": (lambda: hh.forward(None, H), "u is None, expected an array"),
    "no h": (lambda: hh.apply(U, None), "h is None, expected an array"),
    "u of no array": (lambda: hh.forward({}, H), "u is a dict, expected an array"),
    "masked u": (lambda: hh.forward(np.ma.masked_array(U), H), "u is a numpy.MaskedArray, expected a numpy.ndarray"),
    "grad_c": (lambda: hh.backward(U, H, F((2, 5), np.float32)), "grad_c has dtype float32 but u has dtype float64"),
    "tape": (lambda: hh.backward(U, H, G, tape=F((2, 4, 5), np.float32)), "tape has dtype float32 but"),
    "h of torch": (
        lambda: hh.forward(U, Torch()),
        "h is a torch.Tensor that NumPy cannot read without a copy, expected a numpy.ndarray",
    ),
    "u of torch": (lambda: hh.forward(Torch(), H), "u is a torch.Tensor that NumPy"),
    "h of CuPy": (lambda: hh.forward(U, CuPy()), "h is a cupy.ndarray that NumPy"),
    "x of torch": (lambda: hh.rnn(U, Torch())[0], "x is a torch.Tensor that NumPy"),
    "booleans in batch_sizes": (
        lambda: hh.rnn(U, F((2, 5)), batch_sizes=[True, True])[0],
        "batch_sizes has dtype bool",
    ),
    "real w": (lambda: hh.real_form(np.eye(2)), "w has dtype float64, expected complex64 or complex128"),
    "threads": (lambda: hh.set_num_threads(1.5), "k is 1.5, expected an integer"),
}


CASES = ("call", "message")


@pytest.mark.parametrize(CASES, VALUES.values(), ids=list(VALUES))
def test_impossible_values_are_value_errors(call, message):
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
    assert np.shares_memory(cpu.array("h", h), h.numpy())
    with pytest.raises(TypeError, match=r"u is a torch\.Parameter that NumPy cannot read without a copy.*gradient"):
        hh.forward(torch.nn.Parameter(torch.ones(5, 3)), H)


def test_arrays_of_jax_are_read_where_they_are():
    jnp = pytest.importorskip("jax.numpy", reason="needs jax")
    u, h, x = jnp.ones((5, 3)), jnp.ones((2, 5)), jnp.ones((4, 2, 5))
    c = hh.forward(u, h)
    assert type(c) is np.ndarray
    assert np.array_equal(c, hh.forward(np.asarray(u), np.asarray(h)))
    assert np.shares_memory(cpu.array("h", h), np.asarray(h))
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


LISTS = {
    "forward": (of_arrays(hh.forward), {"u": U, "h": H, "tau": F(3)}),
    "forward, phases": (of_arrays(hh.forward), {"u": F((5, 3), C), "h": F((2, 5), C), "phases": F(5)}),
    "backward": (hh.backward, {"u": U, "h": H, "grad_c": G, "tape": hh.forward_tape(U, H)[1]}),
    "jvp": (hh.jvp, {"u": U, "h": H, "tangent_u": U, "tangent_h": H}),
    "matrix": (of_arrays(hh.matrix), {"u": F((2, 5, 3), C), "phases": F((2, 5))}),
    "frame": (of_arrays(hh.frame), {"u": F((2, 5, 3), C), "phases": F((2, 5))}),
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
LINEAR = {name: DELTA[name] for name in ("q", "k", "v")}
DRAFTS = {"state": F((1, 2, 4, 5)), "accepted": [2]}
ATTENTION = hh.delta_rule, hh.delta_rule_vjp, hh.linear_attention, hh.linear_attention_vjp, hh.commit
FUNCTIONS += [
    hh.rnn_vjp(GOOD["u"], GOOD["x"])[1],
    hh.delta_rule_vjp(**DELTA)[1],
    hh.linear_attention_vjp(**LINEAR)[1],
]


@settings(max_examples=500)
@given(data=st.data(), function=st.sampled_from(FUNCTIONS))
def test_whatever_the_arguments_a_call_returns_or_refuses(data, function):
    oddities = st.sampled_from(ODDITIES)
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        required = parameter.default is parameter.empty
        if required and data.draw(st.booleans()):
            good = GOOD | DELTA | DRAFTS if function in ATTENTION else GOOD
            arguments[name] = good[name]
        elif required or data.draw(st.integers(0, 3)) == 0:
            arguments[name] = data.draw(oddities)
    with contextlib.suppress(TypeError, ValueError):
        function(**arguments)


def test_a_refused_call_leaves_no_trace():
    before = hh.forward(U, H)
    for call, _ in [*VALUES.values(), *TYPES.values()]:
        with pytest.raises((ValueError, TypeError)):
            call()
    assert np.array_equal(hh.forward(U, H), before)
