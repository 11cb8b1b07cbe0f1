"""What JAX's transformations make of a call: how many kernels, which program for which device, what they refuse."""

import re

import numpy as np
import pytest

from tests.conftest import assert_close, of_arrays

pytest.importorskip("jax", reason="needs jax")

import jax
import jax.numpy as jnp
import torch

import householder.jax as hj
from tests.cases.jax import CASES, PHASES, arrays, loss
from tests.oracles.torch import exact
from tests.tester import oracle


def kernels(function, *arguments, platform="cpu"):
    """The kernels that a program calls, with the shapes that they get."""
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    calls = [line for line in text.splitlines() if "@householder_" in line]
    return [line.partition("@")[2].partition("(")[0] for line in calls], "\n".join(calls)


U, X = arrays((4, 2), (6, 5, 4))


def total(u, x):
    return jax.vmap(lambda x: (hj.apply(u, x) ** 2).sum())(x).sum()


def test_a_gradient_of_mapped_vectors_is_one_call_for_all_of_them():
    names, calls = kernels(jax.grad(total), U, X)
    assert names == ["householder_apply", "householder_apply_backward"]
    assert "tensor<1x30x4xf64>" in calls
    assert "tensor<1x4x2xf64>" in calls


def test_a_gradient_of_mapped_sequences_is_one_call_for_all_of_them():
    def total(u, x):
        return jax.vmap(lambda x: (hj.rnn(u, x, nonlinearity="tanh")[1] ** 2).sum())(x).sum()

    names, calls = kernels(jax.grad(total), U, X)
    assert names == ["householder_rnn", "householder_rnn_backward"]
    assert "tensor<1x5x6x4xf64>" in calls


def test_gradients_for_each_vector_are_one_call_with_a_matrix_each():
    names, calls = kernels(jax.vmap(jax.grad(lambda u, x: hj.apply(u, x).sum()), (None, 0)), U, X)
    assert names == ["householder_apply_backward"]
    assert "tensor<6x4x2xf64>" in calls


@pytest.mark.parametrize(
    ("name", "operation"),
    [("apply, full columns", "apply"), ("apply, tau", "apply"), ("matrix, tau", "apply"), ("rnn, tau", "rnn")],
)
def test_columns_of_any_kind_are_computed_by_the_kernels(name, operation):
    case = CASES[name]
    gradient = jax.grad(loss(case.ours), tuple(range(len(case.arguments))))
    assert kernels(gradient, *case.arguments)[0] == [f"householder_{operation}", f"householder_{operation}_backward"]


def test_a_map_over_nothing_gives_nothing():
    def gradients(u, x):
        return jax.grad(lambda u, x: (hj.apply(u, x) ** 2).sum(), (0, 1))(u, x)

    assert jax.vmap(hj.apply, (None, 1))(U, X[:, :0]).shape == (0, 6, 4)
    assert jax.vmap(hj.matrix, 2)(jnp.zeros((4, 2, 0))).shape == (0, 4, 4)
    assert [g.shape for g in jax.vmap(gradients, (0, None))(jnp.zeros((0, 4, 2)), X)] == [(0, 4, 2), (0, 6, 5, 4)]
    assert jax.hessian(lambda x: (hj.apply(U, x) ** 2).sum())(jnp.zeros((0, 4))).shape == (0, 4, 0, 4)


def test_a_checkpoint_computes_the_states_again():
    def value(u, x):
        return (jax.checkpoint(lambda u, x: hj.rnn(u, x, nonlinearity="tanh")[0])(u, x) ** 2).sum()

    def plain(u, x):
        return (hj.rnn(u, x, nonlinearity="tanh")[0] ** 2).sum()

    names, _ = kernels(jax.grad(value), U, X)
    assert names.count("householder_rnn") == 2
    for a, b in zip(jax.grad(value, (0, 1))(U, X), jax.grad(plain, (0, 1))(U, X), strict=True):
        assert_close(a, b)


def test_a_loss_of_the_last_states_needs_no_gradient_of_all_states():
    _, calls = kernels(jax.grad(lambda u, x: hj.rnn(u, x, nonlinearity="tanh")[1].sum()), U, X)
    inputs = int(re.search(r"@householder_rnn_backward.*\binputs = (\d+)", calls)[1])
    of_all_states, of_last_states = 1 << 10, 1 << 11
    assert inputs & of_last_states
    assert not inputs & of_all_states


def test_only_gradients_that_are_asked_for_are_computed():
    _, calls = kernels(jax.grad(lambda u, x: hj.rnn(u, x)[0].sum()), U, X)
    assert "outputs = 1 " in calls


@pytest.mark.slow_combinations
@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
@pytest.mark.parametrize("name", ["apply, complex", "apply, tau", "matrix, m == n", "rnn", "delta rule"])
def test_other_devices_get_the_expression(name, platform):
    case = CASES[name]
    arguments = [a.astype({8: "float32", 16: "complex64"}[a.dtype.itemsize]) for a in case.arguments]
    assert kernels(jax.grad(loss(case.ours)), *arguments, platform=platform)[0] == []


VIEWS = {"reshape", "slice", "broadcast_in_dim", "transpose", "constant", "return"}
"""Operations that move or write no numbers."""


def test_the_delta_rule_of_other_devices_is_few_operations_and_one_loop():
    """Its 32 chunks are computed at once but for their states, and nothing is solved."""
    rows, numbers = (jax.ShapeDtypeStruct((1, 2048, 16, *width), "float32") for width in ((128,), ()))

    def outputs(q, k, v, beta, g):
        return hj.delta_rule(q, k, v, beta=beta, g=g, use_qk_l2norm_in_kernel=True)[0]

    traced = jax.jit(outputs).trace(rows, rows, rows, numbers, numbers)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    names = [name for name in re.findall(r"stablehlo\.(\w+)", text) if name not in VIEWS]
    assert names.count("while") == 1
    assert not {"custom_call", "triangular_solve"} & set(names)
    assert len(names) <= 220


APPLICATIONS = {
    "real": (arrays((4, 2), (3, 4)), {}),
    "adjoint, m == n": (arrays((4, 4), (3, 4)), {"transpose": True}),
    "many matrices": (arrays((2, 1, 4, 2), (3, 4)), {}),
    "full columns": (arrays((4, 6), (3, 4)), {"columns": "full"}),
    "complex": (arrays((4, 2), (3, 4), dtype="complex128"), {"phases": PHASES}),
    "complex adjoint": (arrays((4, 2), (3, 4), dtype="complex128"), {"phases": PHASES, "transpose": True}),
}


@pytest.mark.slow_combinations
@pytest.mark.parametrize(("operands", "options"), APPLICATIONS.values(), ids=APPLICATIONS)
@pytest.mark.parametrize("wrapped", ["plain", "jit", "vmap"])
def test_applications_are_linear_and_jax_transposes_them(operands, options, wrapped):
    u, h = operands

    def ours(h):
        return of_arrays(hj.apply)(u, h, **options)

    function = {"plain": ours, "jit": jax.jit(ours), "vmap": jax.vmap(ours)}[wrapped]
    h = jnp.stack([h, 2 * h])[:, None] if wrapped == "vmap" else h
    c = function(h)
    g = arrays(c.shape, dtype=c.dtype)[0]
    transposed = jax.linear_transpose(function, h)
    phases, adjoint, columns = (options.get(name) for name in ("phases", "transpose", "columns"))

    def explicit(u, h, p):
        w = oracle.of_columns(u, None, columns) if columns else oracle.matrix(u, p)
        return ((w.mH if adjoint else w) @ h.unsqueeze(-1)).squeeze(-1)

    _, (_, pulled, _) = exact(explicit, g.conj(), u, h, phases)
    expected = pulled.conj()
    assert_close(transposed(g)[0], expected)
    (again,) = jax.linear_transpose(lambda g: transposed(g)[0], g)(h)
    assert_close(again, c)
    if wrapped == "vmap":
        assert_close(jax.vmap(jax.linear_transpose(ours, h[0]))(g)[0], expected)


def test_a_transposed_application_is_one_call():
    names, _ = kernels(lambda g: jax.linear_transpose(lambda x: hj.apply(U, x), X)(g)[0], X)
    assert names == ["householder_apply"]
    assert kernels(lambda g: jax.linear_transpose(lambda x: hj.apply(U, x), X)(g)[0], X, platform="cuda")[0] == []


@pytest.mark.parametrize("solver", ["gmres", "bicgstab"])
def test_gradients_pass_through_solvers_of_linear_systems(solver):
    u, d, b = U, np.arange(1.0, 5.0), X[0, 0]
    solve = getattr(jax.scipy.sparse.linalg, solver)

    def total(u, b):
        return solve(lambda x: hj.apply(u, d * x) + 3 * x, b, tol=1e-13, atol=1e-13)[0].sum()

    def explicitly(u, b):
        return torch.linalg.solve(oracle.matrix(u) * torch.from_numpy(d) + 3 * torch.eye(4), b).sum()

    _, expected = exact(explicitly, np.ones(()), u, b)
    for found, wanted in zip(jax.grad(total, (0, 1))(u, b), expected, strict=True):
        assert_close(found, wanted, factor=1e6)


def test_what_is_not_linear_is_not_transposed():
    with pytest.raises(NotImplementedError, match="householder_apply is linear in its last operand alone"):
        jax.linear_transpose(lambda u: hj.apply(u, X), U)(X)
    with pytest.raises(NotImplementedError, match="householder_matrix"):
        jax.linear_transpose(hj.matrix, U)(jnp.eye(4))


def test_calls_inside_of_a_scan_are_those_of_a_loop():
    def step(h, x):
        h = jnp.tanh(hj.apply(U, h) + x)
        return h, h

    last, _ = jax.lax.scan(step, jnp.zeros((5, 4)), X)
    assert_close(last, hj.rnn(U, X, nonlinearity="tanh")[1])


def test_without_compilation_results_are_the_same():
    with jax.disable_jit():
        value, grad = jax.value_and_grad(total)(U, X)
    assert_close(value, total(U, X))
    assert_close(grad, jax.grad(total)(U, X))


def test_jacobians_of_both_modes_agree():
    def states(u):
        return hj.rnn(u, X[:2, :2], nonlinearity="tanh")[0]

    forward, reverse = jax.jit(lambda u: (jax.jacfwd(states)(u), jax.jacrev(states)(u)))(U)
    assert_close(forward, reverse)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_are_computed_with_in_float32(dtype):
    u, x = jnp.asarray(U, "float32"), jnp.asarray(X, dtype)
    c, (h, last) = hj.apply(u, x), hj.rnn(u, x)
    assert {a.dtype for a in (c, h, last)} == {jnp.dtype(dtype)}
    assert jnp.array_equal(c, hj.apply(u, x.astype("float32")).astype(dtype))
    assert jax.grad(lambda x: hj.apply(u, x).astype("float32").sum())(x).dtype == jnp.dtype(dtype)


def test_no_vectors_no_steps_and_no_matrices_are_fine():
    assert hj.apply(U, jnp.zeros((0, 4))).shape == (0, 4)
    assert hj.matrix(jnp.zeros((0, 4, 2))).shape == (0, 4, 4)
    assert hj.apply(jnp.zeros((0, 4, 2)), jnp.zeros((3, 1, 4))).shape == (3, 0, 4)
    h, last = hj.rnn(U, jnp.zeros((0, 3, 4)), jnp.ones((3, 4)))
    assert h.shape == (0, 3, 4)
    assert np.all(last == 1)
    assert np.all(hj.rnn(U, jnp.zeros((0, 3, 4)))[1] == 0)
    grads = jax.grad(lambda u, h0: hj.rnn(u, jnp.zeros((0, 3, 4)), h0)[1].sum(), (0, 1))(U, jnp.ones((3, 4)))
    assert np.all(grads[0] == 0)
    assert np.all(grads[1] == 1)
    o, state = hj.delta_rule(*[jnp.zeros((2, 0, 1, 3))] * 3, beta=jnp.zeros((2, 0, 1)), output_final_state=True)
    assert o.shape == (2, 0, 1, 3)
    assert np.all(state == 0)


def test_shard_map_is_told_what_to_do():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = jax.sharding.PartitionSpec("i")
    mapped = jax.shard_map(lambda x: hj.apply(U, x), mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(NotImplementedError, match="check_vma=False"):
        mapped(X)
    mapped = jax.shard_map(lambda x: hj.apply(U, x), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    assert_close(mapped(X), hj.apply(U, X))
