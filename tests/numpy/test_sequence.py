"""Whole sequences against the step-by-step reference, finite differences and single applications."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import householder as hh
from householder._base import spec
from householder.reference import sequence as reference
from tests.conftest import (
    COMPLEX_DTYPES,
    DOUBLES,
    NONLINEARITIES,
    SEQUENCE_METHODS,
    assert_close,
    each_nonlinearity,
    of_arrays,
    problem,
    randn,
    real,
    real_of,
)


class Case:
    """Random arguments of a sequence, and what the reference makes of them."""

    def __init__(
        self, dtype, n=6, m=4, steps=5, batch=3, *, width=None, h0="batch", bias=False, nonlinearity=None,
        sizes=None, batched=True, transpose=False, reverse=False, seed=0,
    ):  # fmt: skip
        nonlinearity = nonlinearity or NONLINEARITIES[dtype.kind][:2][-1]
        self.u, _, _, phases = problem(n, min(m, n), 1, dtype, seed)
        n = len(self.u)
        rng = np.random.default_rng(seed)
        self.batch, self.batched, self.sizes = batch, batched, sizes
        self.rows = sizes if sizes is not None else [batch] * steps
        lead = (sum(sizes),) if sizes is not None else (steps, batch) if batched else (steps,)
        self.states = (batch, n) if batched else (n,)
        self.x = randn(rng, (*lead, width or n), dtype)
        self.h0 = {"batch": randn(rng, self.states, dtype), "shared": randn(rng, (n,), dtype), "none": None}[h0]
        phi = spec.NONLINEARITIES[nonlinearity]
        moduli = phi.moduli(n, dtype.kind == "c")
        arrays = {
            "input_weight": randn(rng, (n, width), dtype) if width else None,
            "bias": randn(rng, (n,), dtype) if bias else None,
            "phases": phases,
            "nonlinearity_bias": randn(rng, moduli, real_of(dtype)) if phi.has_bias else None,
        }
        self.arrays = {name: a for name, a in arrays.items() if a is not None}
        self.options = {"nonlinearity": nonlinearity, "transpose": transpose, "reverse": reverse}
        if sizes is not None:
            self.options["batch_sizes"] = sizes
        self.grad_h, self.grad_last = randn(rng, (*lead, n), dtype), randn(rng, self.states, dtype)

    def forward(self, backend, **more):
        return backend(of_arrays(hh.rnn), self.u, self.x, self.h0, **self.arrays, **self.options, **more)[0]

    def both(self, backend, **more):
        """The states, and the gradients of a loss of them."""
        (h, _), vjp = backend(of_arrays(hh.rnn_vjp), self.u, self.x, self.h0, **self.arrays, **self.options, **more)
        return h, backend(vjp, self.grad_h, grad_last=self.grad_last)

    def in_time(self, a):
        """The steps of an array in the order in which they are run."""
        return a[::-1] if self.options["reverse"] else a

    def _reference(self):
        """Arguments of the reference: doubles, packed, in the order of time."""
        wide = np.result_type(self.u.dtype, float)
        n = len(self.u)
        arrays = dict(self.arrays)
        phi = reference.ReferenceNonlinearity(self.options["nonlinearity"], 0.1, arrays.pop("nonlinearity_bias", None))
        h0 = (
            np.zeros((self.batch, n), wide)
            if self.h0 is None
            else np.broadcast_to(self.h0, (self.batch, n)).astype(wide)
        )
        x = self.in_time(self.x).reshape(-1, self.x.shape[-1]).astype(wide)
        return (self.u, x, h0), (self.rows, phi), {**arrays, "transpose": self.options["transpose"]}

    def expected(self, states):
        """The states, and the gradients in the shapes of the arguments, on the sides of bends where ``states`` are."""
        arrays, how, more = self._reference()
        h = reference.rnn_forward(*arrays, *how, **more)
        grad_h = np.zeros(h.shape) if self.grad_h is None else self.in_time(self.grad_h).reshape(h.shape)
        grad_last = np.zeros(self.states) if self.grad_last is None else self.grad_last
        grad_last = grad_last.reshape(self.batch, -1)
        states = self.in_time(states).reshape(h.shape).astype(h.dtype)
        grads = reference.rnn_backward(*arrays, states, grad_h, grad_last, *how, **more)
        h0 = None
        if self.h0 is not None:
            h0 = grads.h0.sum(axis=0) if self.batched and self.h0.ndim == 1 else grads.h0.reshape(self.h0.shape)
        h, x = self.in_time(h.reshape(*self.x.shape[:-1], len(self.u))), self.in_time(grads.x.reshape(self.x.shape))
        return h, grads._replace(x=x, h0=h0)


def assert_gradients(actual, expected, dtype):
    for name, a, e in zip(actual._fields, actual, expected, strict=True):
        assert (a is None) == (e is None), name
        if a is not None:
            assert_close(a, e, dtype, factor=1000)


@given(data=st.data())
def test_sequences_are_what_the_reference_computes_step_by_step(backend, dtype, data):
    n = data.draw(st.sampled_from([2, 4, 6, 16, 34]))
    packed, batched = data.draw(st.sampled_from([(True, True), (False, True), (False, False)]))
    batch = data.draw(st.integers(1, 9)) if batched else 1
    steps = data.draw(st.integers(1, 12))
    sizes = None
    if packed:
        sizes = sorted(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8)), reverse=True)
        batch = sizes[0]
    case = Case(
        dtype, n, data.draw(st.integers(1, n)), steps, batch,
        width=data.draw(st.sampled_from([None, 1, 3, 17])),
        h0=data.draw(st.sampled_from(["batch", "shared", "none"])),
        bias=data.draw(st.booleans()),
        nonlinearity=data.draw(st.sampled_from(NONLINEARITIES[dtype.kind])),
        sizes=sizes, batched=batched, transpose=data.draw(st.booleans()),
        reverse=not packed and data.draw(st.booleans()), seed=data.draw(st.integers(0, 99)),
    )  # fmt: skip
    method = data.draw(st.sampled_from(SEQUENCE_METHODS))
    states, found = case.both(backend, method=method)
    h, grads = case.expected(states)
    assert states.dtype == dtype
    assert_close(states, h, dtype, factor=1000)
    # The reference rounds otherwise: a state that rounds to the other side of a bend has another gradient.
    sides = [np.sign(np.ascontiguousarray(a, dtype).view(real_of(dtype))) for a in (states, h)]
    assume("relu" not in case.options["nonlinearity"] or np.array_equal(*sides))
    assert_gradients(found, grads, dtype)


@pytest.mark.slow_combinations
@pytest.mark.parametrize("method", SEQUENCE_METHODS)
@pytest.mark.parametrize(("n", "m", "batch"), [(1, 1, 1), (33, 33, 17), (64, 8, 65), (129, 16, 7), (100, 99, 8)])
def test_sequences_around_the_edges_of_blocks(backend, dtype, n, m, batch, method):
    case = Case(dtype, n, m, 6, batch, width=2, bias=True)
    states, found = case.both(backend, method=method)
    h, grads = case.expected(states)
    assert_close(states, h, dtype, factor=1000)
    assert_gradients(found, grads, dtype)


def test_states_with_gradients_are_those_without(backend, dtype):
    for method in SEQUENCE_METHODS:
        for sizes in (None, [3, 2, 2]):
            case = Case(dtype, sizes=sizes, width=2, bias=True)
            assert np.array_equal(case.both(backend, method=method)[0], case.forward(backend, method=method))


@each_nonlinearity("dtype")
def test_gradients_belong_to_the_arguments_of_the_forward_pass(backend, dtype, nonlinearity):
    """No option is given twice, so none can be forgotten, and a second call of the function is as good as the first."""
    case = Case(dtype, width=3, bias=True, nonlinearity=nonlinearity, transpose=True, reverse=True)
    (h, _), vjp = backend(of_arrays(hh.rnn_vjp), case.u, case.x, case.h0, **case.arrays, **case.options)
    first = backend(vjp, case.grad_h, grad_last=case.grad_last)
    assert_gradients(first, case.expected(h)[1], dtype)
    for a, b in zip(backend(vjp, 2 * case.grad_h, grad_last=2 * case.grad_last), first, strict=True):
        assert a is b is None or np.array_equal(a, 2 * b)


def test_states_that_gradients_are_computed_from_cannot_be_changed(dtype):
    case = Case(dtype)
    (h, _), _ = of_arrays(hh.rnn_vjp)(case.u, case.x, case.h0, **case.arrays)
    with pytest.raises(ValueError, match="read-only"):
        h *= 2


@each_nonlinearity("double", DOUBLES)
@pytest.mark.parametrize("h0", ["batch", "shared"])
@pytest.mark.parametrize("sizes", [None, [3, 3, 2, 1]])
@pytest.mark.parametrize("transpose", [False, True])
def test_gradients_of_sequences_are_finite_differences(backend, double, nonlinearity, h0, sizes, transpose):
    more = {"width": 2, "h0": h0, "bias": True, "nonlinearity": nonlinearity, "sizes": sizes, "transpose": transpose}
    m = 6 if double.kind == "f" else 5
    case, direction = Case(double, 6, m, **more), Case(double, 6, m, **more, seed=1)

    def loss(sign):
        move = sign * 1e-6
        moved = {name: a + move * direction.arrays[name] for name, a in case.arrays.items()}
        h, h_last = backend(
            of_arrays(hh.rnn), case.u + move * direction.u, case.x + move * direction.x, case.h0 + move * direction.h0,
            **moved, **case.options,
        )  # fmt: skip
        return (np.vdot(case.grad_h, h) + np.vdot(case.grad_last, h_last)).real

    grads = case.both(backend)[1]._asdict()
    directions = {"u": direction.u, "x": direction.x, "h0": direction.h0, **direction.arrays}
    slope = sum(np.vdot(gradient, directions[name]).real for name, gradient in grads.items() if gradient is not None)
    assert slope == pytest.approx((loss(1) - loss(-1)) / 2e-6, rel=2e-7, abs=2e-7)


def test_a_linear_sequence_without_input_is_a_power_of_w(backend, dtype):
    p = problem(8, 5, 3, dtype)
    h, _ = backend(of_arrays(hh.rnn), p.u, np.zeros((4, 3, 8), dtype), p.h, nonlinearity="identity", **p.options)
    c = p.h
    for t in range(4):
        c = backend(of_arrays(hh.forward), p.u, c, **p.options)
        assert_close(h[t], c)


def test_norms_stay_for_a_long_time(backend, dtype):
    p = problem(16, 8, 2, dtype)
    h, _ = backend(of_arrays(hh.rnn), p.u, np.zeros((2000, 2, 16), dtype), p.h, nonlinearity="identity", **p.options)
    drift = np.linalg.norm(h, axis=-1) / np.linalg.norm(p.h, axis=-1) - 1
    assert np.abs(drift).max() < 2000 * 2 * np.finfo(dtype).eps


def test_a_projected_input_is_the_raw_one_fused(backend, dtype):
    case = Case(dtype, 16, 4, 7, 3, width=5, bias=True)
    v, b = case.arrays.pop("input_weight"), case.arrays.pop("bias")
    fused, _ = backend(
        of_arrays(hh.rnn), case.u, case.x, case.h0, input_weight=v, bias=b, **case.arrays, **case.options
    )
    added, _ = backend(of_arrays(hh.rnn), case.u, case.x @ v.T + b, case.h0, **case.arrays, **case.options)
    assert_close(fused, added, dtype, factor=1000)


@pytest.mark.parametrize(
    "options", [{}, {"reverse": True}, {"sizes": [3, 2, 2, 1]}, {"batched": False, "batch": 1}], ids=str
)
def test_the_last_states_are_those_in_which_each_sequence_ends(backend, dtype, options):
    case = Case(dtype, **options)
    h, h_last = backend(of_arrays(hh.rnn), case.u, case.x, case.h0, **case.arrays, **case.options)
    lengths = [sum(size > b for size in case.rows) for b in range(case.batch)]
    in_time = case.in_time(h).reshape(-1, 6)
    ends = [in_time[sum(case.rows[: length - 1]) + b] for b, length in enumerate(lengths)]
    assert np.array_equal(h_last, np.reshape(ends, case.states))


def test_without_steps_the_last_states_are_the_first(backend, dtype):
    u, h0 = problem(6, 4, 1, dtype).u, np.arange(18).reshape(3, 6).astype(dtype)
    x = np.zeros((0, 3, 6), dtype)
    assert np.array_equal(backend(hh.rnn, u, x, h0)[1], h0)
    assert np.array_equal(backend(hh.rnn, u, x)[1], 0 * h0)


@pytest.mark.parametrize("slope", [0.0, 0.01, 1.0])
def test_slope_of_the_leaky_relu(backend, dtype, slope):
    case = Case(dtype, nonlinearity="leaky_relu")
    h = case.forward(backend, negative_slope=slope)
    if slope == 1:
        case.options["nonlinearity"] = "identity"
        assert_close(h, case.forward(backend))
    if slope == 0:
        case.options["nonlinearity"] = "relu"
        assert_close(h, case.forward(backend))
    phi = reference.ReferenceNonlinearity("leaky_relu", slope)
    (u, x, h0), (rows, _), more = case._reference()
    assert_close(h.reshape(len(x), -1), reference.rnn_forward(u, x, h0, rows, phi, **more), dtype, factor=1000)


def test_default_nonlinearity_is_the_paper_s(backend, dtype):
    case = Case(dtype, nonlinearity="leaky_relu")
    default, _ = backend(of_arrays(hh.rnn), case.u, case.x, case.h0, **case.arrays)
    assert np.array_equal(default, case.forward(backend, negative_slope=0.1))


@real("dtype")
def test_oplu_sorts_pairs_and_keeps_norms(backend, dtype):
    u, h0 = problem(8, 3, 1, dtype).u, np.arange(8).astype(dtype)
    h, _ = backend(hh.rnn, u, np.zeros((3, 8), dtype), h0, nonlinearity="oplu")
    assert np.all(h[:, :4] >= h[:, 4:])
    assert_close(np.linalg.norm(h, axis=-1), np.full(3, np.linalg.norm(h0)), dtype)


@pytest.mark.parametrize("dtype", COMPLEX_DTYPES)
def test_a_unitary_sequence_and_its_real_form_agree(backend, dtype):
    """Section 3 of the paper, with modReLU, values and gradients."""
    dtype = np.dtype(dtype)
    case = Case(dtype, 5, 3, 4, 2, width=3, nonlinearity="modrelu", bias=True)
    case.x = case.x.real.astype(dtype)
    w = backend(of_arrays(hh.matrix), case.u, phases=case.arrays["phases"])
    real_u = backend(hh.factor, hh.real_form(w))
    real = {
        "input_weight": hh.real_form(case.arrays["input_weight"], axis=0),
        "bias": hh.real_form(case.arrays["bias"], axis=0),
        "nonlinearity_bias": case.arrays["nonlinearity_bias"],
        "nonlinearity": "modrelu",
    }
    x, h0 = case.x.real.copy(), hh.real_form(case.h0, axis=-1)
    (h, grads), ((real_h, _), vjp) = case.both(backend), backend(of_arrays(hh.rnn_vjp), real_u, x, h0, **real)
    assert_close(real_h, hh.real_form(h, axis=-1), factor=1000)
    real_grads = backend(vjp, hh.real_form(case.grad_h, axis=-1), grad_last=hh.real_form(case.grad_last, axis=-1))
    assert_close(real_grads.x, grads.x.real, factor=1000)
    assert_close(real_grads.h0, hh.real_form(grads.h0, axis=-1), factor=1000)
    assert_close(real_grads.input_weight, hh.real_form(grads.input_weight, axis=0), factor=1000)
    assert_close(real_grads.bias, hh.real_form(grads.bias, axis=0), factor=1000)
    assert_close(real_grads.nonlinearity_bias, grads.nonlinearity_bias, factor=1000)


@pytest.mark.parametrize("absent", ["grad_h", "grad_last"])
@pytest.mark.parametrize("sizes", [None, [3, 2, 2, 1]])
def test_a_loss_of_all_states_or_of_the_last_alone(backend, dtype, absent, sizes):
    case = Case(dtype, sizes=sizes, batch=3)
    setattr(case, absent, None)
    h, grads = case.both(backend)
    assert_gradients(grads, case.expected(h)[1], dtype)


@pytest.mark.parametrize(("steps", "batch"), [(0, 3), (4, 0), (0, 0)])
@pytest.mark.parametrize("width", [None, 2])
def test_no_steps_or_no_sequences(backend, dtype, steps, batch, width):
    case = Case(dtype, steps=steps, batch=batch, width=width, bias=True)
    h, grads = case.both(backend)
    assert h.shape == (steps, batch, 6)
    assert all(name == "h0" or gradient is None or not gradient.any() for name, gradient in grads._asdict().items())
    assert grads.x.shape == case.x.shape
    if steps == 0:
        assert_close(grads.h0, case.grad_last)  # the last state is the first
    else:
        assert grads.h0.shape == (batch, 6)


def test_no_packed_steps(backend, dtype):
    u = problem(6, 4, 1, dtype).u
    assert backend(hh.rnn, u, np.zeros((0, 6), dtype), batch_sizes=[], nonlinearity="identity")[0].shape == (0, 6)


@each_nonlinearity("dtype")
def test_nan_propagates_to_every_later_state_of_its_sequence(backend, dtype, nonlinearity):
    case = Case(dtype, 6, 5, nonlinearity=nonlinearity)
    clean = case.forward(backend)
    case.x[2, 1, 0] = np.nan
    h, grads = case.both(backend)
    assert np.array_equal(h[:2], clean[:2])
    assert np.array_equal(h[:, [0, 2]], clean[:, [0, 2]])
    assert np.isnan(h[2:, 1]).any(axis=-1).all()
    assert np.isnan(grads.u).any()


def test_batch_sizes_may_be_any_integers(dtype):
    case = Case(dtype, sizes=[3, 2, 1], batch=3)
    expected = of_arrays(hh.rnn)(case.u, case.x, **case.arrays, **case.options)[0]
    for sizes in (np.array([3, 2, 1], np.uint8), (3, 2, 1), np.array([3, 2, 1], ">i4")):
        case.options["batch_sizes"] = sizes
        assert np.array_equal(of_arrays(hh.rnn)(case.u, case.x, **case.arrays, **case.options)[0], expected)


@pytest.mark.parametrize("bias", [1.0, 0.3])
def test_moduli_that_are_lost_beside_the_bias_have_finite_gradients(backend, bias):
    """modReLU's derivative is found from its outputs: along z it is one, however small z."""
    u, x = np.eye(2, 1, dtype="float32"), np.array([[1e-9, 0]], "float32")
    options = {"nonlinearity": "modrelu", "nonlinearity_bias": np.array([bias], "float32")}
    (h, _), vjp = backend(of_arrays(hh.rnn_vjp), u, x, **options)
    grads = backend(vjp, np.array([[1, 0]], "float32"))
    assert_close(h, [[bias, 0]])
    assert_close(grads.x, [[1, 0]])


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("method", ["wy", "dense"])
def test_the_last_state_of_no_steps_is_the_first_and_so_is_its_gradient(batch, method):
    u, x, h0 = np.ones((3, 1)), np.zeros((0, *batch, 3)), np.ones((*batch, 3))
    grads = hh.rnn_vjp(u, x, h0, method=method)[1](grad_last=2 * h0)
    assert np.array_equal(grads.h0, 2 * h0)
    assert not grads.u.any()
