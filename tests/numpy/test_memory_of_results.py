"""The extension module writes to arrays that its callers made: one that shares memory with another array is refused."""

import numpy as np
import pytest

from householder import _core

N, M, ROWS = 6, 3, 4
OPTIONS = ("tanh", 0.01, False, False, "trapezoidal", "auto")


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def inputs(u: np.ndarray, x: np.ndarray) -> tuple[np.ndarray | None, ...]:
    return (u, x, *(None,) * 7)


def windows(shape: tuple[int, ...], shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays of one shape, so many numbers apart."""
    size = int(np.prod(shape))
    memory = numbers(size + shift)
    return memory[:size].reshape(shape), memory[shift:].reshape(shape)


def one_array(call, shape):
    return lambda shift: call(*windows(shape, shift))


U, H, X, Q = numbers(N, M), numbers(ROWS, N), numbers(5, ROWS, N), numbers(N, N)
CALLS = {
    "forward": one_array(lambda h, c: _core.forward(U, h, c, None, False, "auto"), (ROWS, N)),
    "backward, dL/dh and h": one_array(
        lambda h, grad: _core.backward(U, h, H, (None, grad, None, None), None, False, "auto"), (ROWS, N)
    ),
    "backward, dL/dh and dL/dc": one_array(
        lambda g, grad: _core.backward(U, H, g, (None, grad, None, None), None, False, "auto"), (ROWS, N)
    ),
    "backward, dL/dU and u": one_array(
        lambda u, grad: _core.backward(u, H, H, (grad, None, None, None), None, False, "auto"), (N, M)
    ),
    "backward in place": one_array(lambda h, grad: _core.backward_in_place(U, h, grad, numbers(N, M), None), (ROWS, N)),
    "matrix": one_array(lambda u, w: _core.matrix(u, w, None), (N, N)),
    "dL/dU of a matrix": one_array(lambda w, grad: _core.matrix_backward(Q, w, grad, None), (N, N)),
    "factor": one_array(lambda q, u: _core.factor(q, u, None), (N, N)),
    "states": one_array(lambda x, h: _core.rnn_forward(inputs(U, x), OPTIONS, h, None, False), (5, ROWS, N)),
    "dL/dx": one_array(
        lambda x, grad: _core.rnn_backward(inputs(U, x), OPTIONS, X, X, None, (None, grad, *(None,) * 6), None),
        (5, ROWS, N),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_memory_of_another_array_is_refused(name):
    size = {"factor": N * N, "matrix": N * N, "dL/dU of a matrix": N * N, "states": 5 * ROWS * N, "dL/dx": 5 * ROWS * N}
    size = size.get(name, N * M if "dL/dU and u" in name else ROWS * N)
    for shift in [0, 1, size - 1]:
        with pytest.raises(ValueError, match="expected memory of its own, got an array that overlaps"):
            CALLS[name](shift)
    CALLS[name](size)  # next to each other


def test_results_of_one_call_do_not_overlap():
    memory = numbers(N * N)
    grad_u, grad_h = memory[: N * M].reshape(N, M), memory[N * M - 1 : N * M - 1 + ROWS * N]
    with pytest.raises(ValueError, match="grad_h: expected memory of its own, got an array that overlaps grad_u"):
        _core.backward(
            U, numbers(3, N), numbers(3, N), (grad_u, grad_h[: 3 * N].reshape(3, N), None, None), None, False, "auto"
        )


def test_arrays_that_are_read_may_be_one():
    _core.backward(U, H, H, (None, numbers(ROWS, N), None, None), None, False, "auto")


def test_strided_inputs_count_with_all_they_span():
    memory = numbers(5, 2, ROWS, N)
    x, last = memory[:, 0], memory[2, 1]  # between two steps of x
    h = numbers(5, ROWS, N)
    _core.rnn_forward(inputs(U, x), OPTIONS, h, last.copy(), False)
    with pytest.raises(ValueError, match="last: expected memory of its own, got an array that overlaps x"):
        _core.rnn_forward(inputs(U, x), OPTIONS, h, last, False)
