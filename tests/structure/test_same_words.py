"""The same functions in NumPy, PyTorch and JAX: the same arguments, the same kinds of results, the same numbers."""

import inspect
from functools import partial

import numpy as np
import pytest

import householder as hh
from tests.conftest import of_arrays

ht, hj = (pytest.importorskip(f"householder.{name}") for name in ("torch", "jax"))
import jax  # noqa: E402
import torch  # noqa: E402

NAMES = sorted(set(hh.__all__) & set(ht.__all__) & set(hj.__all__))
OF_ONE_LIBRARY = {"haar": {"device"}, "commit": {"in_place"}}


def test_all_of_jax_is_in_the_three():
    assert hj.__all__ == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_arguments_have_the_same_names_and_defaults(name):
    def arguments(library):
        parameters = inspect.signature(getattr(library, name)).parameters.values()
        kept = [p for p in parameters if p.name not in OF_ONE_LIBRARY.get(name, ())]
        positional = [p.name for p in kept if p.kind is not p.KEYWORD_ONLY]
        return positional, {p.name: p.default for p in kept if p.name != "dtype"}

    assert arguments(hh) == arguments(ht) == arguments(hj)


@pytest.mark.parametrize("suffix", ["", "_vjp"])
def test_linear_attention_has_the_arguments_of_the_delta_rule_but_those_of_reflections(suffix):
    names, of_rule = (
        list(inspect.signature(getattr(hh, name + suffix)).parameters) for name in ("linear_attention", "delta_rule")
    )
    assert names == [name for name in of_rule if name not in ("beta", "num_householder")]


def arrays(rng, dtype):
    def drawn(*shape):
        a = rng.standard_normal(shape)
        return a + 1j * rng.standard_normal(shape) if dtype == "complex128" else a

    return drawn


def problems(dtype):
    """Calls as ``name, arguments, options``, in NumPy."""
    rng = np.random.default_rng(0)
    drawn = arrays(rng, dtype)
    u, h, x, phases = drawn(2, 6, 3), drawn(4, 1, 6), drawn(7, 2, 6), rng.uniform(-3, 3, 6)
    phases = {"phases": phases} if dtype == "complex128" else {}
    full, tau = {"columns": "full"}, {"tau": drawn(2, 3)}
    for options in ({}, {"transpose": True}, phases, full, tau, {**full, **tau}):
        yield "apply", (u, h), options
    for options in ({}, phases, full, tau, {**full, **tau}):
        yield "matrix", (u,), options
    yield "frame", (u,), phases
    for options in ({"h0": drawn(2, 6)}, {"reverse": True, **phases}, full, {"tau": tau["tau"][0]}):
        yield "rnn", (u[0], x), {"nonlinearity": "tanh", **options}
    sizes = [3, 2, 2, 1]
    for options in ({}, phases, {"h0": drawn(3, 6)}, full):
        yield "rnn", (u[0], drawn(8, 6)), {"batch_sizes": np.array(sizes), "input_weight": drawn(6, 6), **options}
    yield "factor", (hh.nearest(drawn(2, 5, 5)),), {}
    yield "factor", (of_arrays(hh.matrix)(u[0], **phases),), {"m": 3}
    yield "nearest", (drawn(2, 5, 3),), {}
    yield "haar", (5,), {"rng": 3, "size": 2, "dtype": dtype}
    yield "haar", (5, 2), {"rng": 3, "dtype": dtype}
    if dtype == "float64":
        q, k = rng.standard_normal((2, 1, 9, 2, 4))
        v, beta, g = rng.standard_normal((1, 9, 4, 5)), rng.random((1, 9, 4)), -rng.random((1, 9, 4))
        state = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        yield "delta_rule", (q, k, v), {"beta": beta, "g": g, **state}
        yield "delta_rule", (q, k, v), {"beta": beta}
        packed = {"cu_seqlens": np.array([0, 3, 3, 9]), "initial_state": rng.standard_normal((3, 4, 4, 5))}
        yield "delta_rule", (q, k, v), {"beta": beta, "g": g, **packed, **state}
        steps = {"num_householder": 3, "cu_seqlens": np.array([0, 1, 3])}
        yield "delta_rule", (q[:, :3], k, v), {"beta": beta, **steps, **state}
        yield "delta_rule", (q[:, :3], k, v), {"beta": beta, **steps, "states_at": [0, 1, 2, 3]}
        for options in ({}, {"g": g, **state}, {"g": g, **packed, **state}, {"g": g, **state, "states_at": [4, 8]}):
            yield "linear_attention", (q, k, v), options
        draft = [a.repeat(2, 0) for a in (k, v, beta, g)]
        drafted = {"beta": draft[2], "g": draft[3], "accepted": np.array([2, 7]), "use_qk_l2norm_in_kernel": True}
        yield "commit", (rng.standard_normal((2, 4, 4, 5)), *draft[:2]), drafted
        yield "commit", (rng.standard_normal((2, 4, 4, 5)), *draft[:2]), {"accepted": np.array([9, 9])}


def test_every_function_has_a_problem():
    tried = {name for dtype in ("float64", "complex128") for name, *_ in problems(dtype)}
    assert tried == set(NAMES) - {"Reflections"}  # test_linear_maps.py has the object


def called(library, convert, name, arguments, options):
    """The results as NumPy arrays."""
    given = {key: convert(a) if isinstance(a, np.ndarray) else a for key, a in options.items()}
    if "dtype" in given and library is ht:
        given["dtype"] = getattr(torch, given["dtype"])
    positional = (convert(a) if isinstance(a, np.ndarray) else a for a in arguments)
    return numbers(function_of(library, name)(*positional, **given))


def function_of(library, name):
    """The function; those of W take its arrays."""
    function = getattr(library, name)
    return of_arrays(function) if name in ("apply", "matrix", "frame", "rnn") else function


def numbers(results):
    results = results if isinstance(results, tuple) else (results,)
    return [None if a is None else np.asarray(a) for a in results]


@pytest.mark.slow_combinations
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("compiled", [False, True])
def test_results_are_the_same(dtype, compiled):
    for name, arguments, options in problems(dtype):
        expected = called(hh, np.asarray, name, arguments, options)
        with jax.enable_x64():
            if compiled and name not in ("factor", "haar"):
                traced = {key for key, a in options.items() if isinstance(a, np.ndarray)} - {
                    "batch_sizes",
                    "cu_seqlens",
                }
                function = partial(function_of(hj, name), **{key: options[key] for key in options.keys() - traced})
                found = numbers(jax.jit(function)(*arguments, **{key: options[key] for key in traced}))
            else:
                found = called(hj, np.asarray, name, arguments, options)
        for library, results in (("jax", found), ("torch", called(ht, torch.from_numpy, name, arguments, options))):
            assert len(results) == len(expected), (library, name)
            for a, b in zip(results, expected, strict=True):
                assert (a is None) == (b is None), (library, name, options)
                assert a is None or (a.dtype == b.dtype and np.allclose(a, b, rtol=1e-10, atol=1e-10)), (library, name)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_key_draws_haar_matrices(dtype):
    """The trace of a random matrix has mean 0 and mean square 1, and its determinant is 1 or -1 with equal odds."""
    with jax.enable_x64():
        draw = jax.jit(lambda key: hj.haar(3, rng=key, dtype=dtype, size=(2000,)))
        found = draw(jax.random.key(0))
        u, phases = found if dtype == "complex128" else (found, None)
        w = np.asarray(hj.matrix(hj.Reflections(u, phases=phases)))
    assert np.allclose(w @ w.conj().swapaxes(-1, -2), np.eye(3))
    trace, det = np.trace(w, axis1=1, axis2=2), np.linalg.det(w)
    assert abs(trace.mean()) < 0.1
    assert abs((abs(trace) ** 2).mean() - 1) < 0.1
    assert abs(det.mean()) < 0.1


def test_gradients_of_packed_calls_in_jax_are_torchs():
    rng = np.random.default_rng(0)
    u, x, sizes = rng.standard_normal((6, 3)), rng.standard_normal((8, 6)), np.array([3, 2, 2, 1])
    weight, at_end = rng.standard_normal((8, 6)), rng.standard_normal((3, 6))

    def loss(library, u, x, sizes, *weights):
        h, last = library.rnn(u, x, nonlinearity="tanh", batch_sizes=sizes)
        return (h * weights[0]).sum() + (last * weights[1]).sum()

    with jax.enable_x64():
        found = jax.grad(lambda u, x: loss(hj, u, x, sizes, weight, at_end), (0, 1))(u, x)
    tensors = [torch.from_numpy(a).requires_grad_() for a in (u, x)]
    given = (torch.from_numpy(a) for a in (sizes, weight, at_end))
    expected = torch.autograd.grad(loss(ht, *tensors, *given), tensors)
    for a, b in zip(found, expected, strict=True):
        assert np.allclose(a, b)
