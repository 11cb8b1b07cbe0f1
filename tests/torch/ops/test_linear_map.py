"""``Reflections`` under autograd, ``torch.func``, compilation and export: its tensors take part in everything."""

import numpy as np
import pytest
import torch

import householder.torch as ht
from tests.cases.linear_maps import ARGUMENTS, N, calls, matrix
from tests.conftest import assert_close, randn

each = pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)


def through_object(x, columns, **tensors):
    w = ht.Reflections(**tensors, columns=columns)
    return x @ w + (w.T @ x.mT).mT + w.H.matrix()[..., :1, :]


def without_operators(x, columns, **tensors):
    w = ht.Reflections(**tensors, columns=columns)
    return w.T.matmat(x.mT).mT + ht.apply(w.H, x) + w.H.matrix()[..., :1, :]


def explicit(x, columns, **tensors):
    w = matrix(**tensors, columns=columns)
    return x @ w + (w.mT @ x.mT).mT + w.mH[..., :1, :]


def problem(arguments, rng):
    tensors = calls(arguments, torch.from_numpy)
    columns = tensors.pop("columns", "trapezoidal")
    x = torch.from_numpy(randn(rng, (*arguments["u"].shape[:-2], 4, N), arguments["u"].dtype))
    return {"x": x, **tensors}, columns


def gradients(function, tensors, columns):
    tensors = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    result = function(columns=columns, **tensors)
    weights = torch.from_numpy(randn(np.random.default_rng(0), tuple(result.shape), result.detach().numpy().dtype))
    return result, *torch.autograd.grad((result * weights.conj()).sum().real, list(tensors.values()))


@each
def test_gradients_are_those_of_the_matrix(arguments, rng):
    tensors, columns = problem(arguments, rng)
    found, expected = (gradients(f, tensors, columns) for f in (through_object, explicit))
    for a, b in zip(found, expected, strict=True):
        assert_close(a.detach(), b.detach(), factor=1000)


@pytest.mark.parametrize("name", ["real", "tau of full columns", "complex, phases"])
def test_it_may_be_compiled(name, rng):
    tensors, columns = problem(ARGUMENTS[name], rng)
    compiled = torch.compile(without_operators, fullgraph=True, backend="aot_eager")
    found, expected = (gradients(f, tensors, columns) for f in (compiled, without_operators))
    for a, b in zip(found, expected, strict=True):
        assert_close(a.detach(), b.detach())


def test_compilation_leaves_the_operator_as_it_is(rng):
    tensors, columns = problem(ARGUMENTS["real"], rng)
    compiled = torch.compile(through_object, backend="aot_eager")
    assert_close(compiled(columns=columns, **tensors), through_object(columns=columns, **tensors))


def test_a_compiled_function_takes_the_object(rng):
    tensors, _ = problem(ARGUMENTS["complex, phases"], rng)
    w, x = ht.Reflections(tensors["u"], phases=tensors["phases"]), tensors["x"]
    compiled = torch.compile(lambda w, x: ht.apply(w.H, x), fullgraph=True, backend="aot_eager")
    assert_close(compiled(w, x), ht.apply(w.H, x))


@pytest.mark.parametrize("name", ["real", "tau of full columns", "complex, phases"])
def test_it_may_be_mapped_and_differentiated_by_torch_func(name, rng):
    tensors, columns = problem(ARGUMENTS[name], rng)
    x, others = tensors.pop("x"), tuple(tensors)
    several = [torch.stack([t, 2 * t]) for t in tensors.values()]

    def run(*values):
        return through_object(x, columns, **dict(zip(others, values, strict=True)))

    mapped = torch.func.vmap(run)(*several)
    for i in range(2):
        assert_close(mapped[i], run(*(t[i] for t in several)))
    values = tuple(tensors.values())
    tangent = torch.func.jvp(run, values, values)[1]
    expected = torch.func.jvp(lambda *v: explicit(x, columns, **dict(zip(others, v, strict=True))), values, values)[1]
    assert_close(tangent, expected, factor=1000)


def test_half_types_come_out_as_half_types():
    w = ht.Reflections(torch.randn(N, 3))
    x = torch.randn(N, dtype=torch.bfloat16)
    assert (w @ x).dtype == torch.bfloat16
    assert w.device == w.u.device
