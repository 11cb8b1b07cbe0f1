"""The delta rule in plain NumPy, step by step, in double precision: its definition, and an oracle.

``S_t = (I - b_t k_t k_t') Diag(exp g_t) S_{t-1} + b_t k_t v_t'`` and ``o_t = scale S_t' q_t``, for one head:
``q (T, K)``, ``k (T r, K)``, ``v (T r, V)``, ``beta (T r,)`` and ``g``, None, ``(T, 1)`` or ``(T, K)``. A token has
``r`` steps: its gate acts at the first of them, and its output follows the last.

Linear attention has no ``beta``: ``S_t = Diag(exp g_t) S_{t-1} + k_t v_t'``.
"""

import numpy as np

from householder._base.types import Array, DeltaGradients


def delta_rule_forward(
    q: Array, k: Array, v: Array, beta: Array | None, g: Array | None, initial_state: Array, scale: float
) -> tuple[Array, Array]:
    """Return the outputs ``(T, V)`` and the final state ``(K, V)``."""
    out, states = _run(q, k, v, beta, g, initial_state, scale)
    return out, states[-1]


def _run(
    q: Array, k: Array, v: Array, beta: Array | None, g: Array | None, initial_state: Array, scale: float
) -> tuple[Array, list[Array]]:
    """Return the outputs, and the states before and after each step."""
    reflections = len(k) // max(len(q), 1)
    states, out = [np.asarray(initial_state, np.float64)], []
    for i in range(len(k)):
        state = _decay(g, i, reflections) * states[-1]
        d = v[i] if beta is None else beta[i] * (v[i] - k[i] @ state)
        states.append(state + np.outer(k[i], d))
        if (i + 1) % reflections == 0:
            out.append(scale * (q[i // reflections] @ states[-1]))
    return np.array(out).reshape(len(q), v.shape[-1]), states


def _decay(g: Array | None, i: int, reflections: int) -> Array:
    return np.ones((1, 1)) if g is None or i % reflections else np.exp(np.asarray(g[i // reflections], float))[:, None]


def delta_rule_backward(
    q: Array,
    k: Array,
    v: Array,
    beta: Array | None,
    g: Array | None,
    initial_state: Array,
    scale: float,
    grad_o: Array,
    grad_final: Array,
) -> DeltaGradients:
    """Return the gradients, by back-propagation through time."""
    reflections = len(k) // max(len(q), 1)
    _, states = _run(q, k, v, beta, g, initial_state, scale)
    grad = np.array(grad_final, np.float64)
    grad_q, grad_k, grad_v = (np.zeros(a.shape) for a in (q, k, v))
    grad_beta, grad_g = (None if a is None else np.zeros(a.shape) for a in (beta, g))
    for i in reversed(range(len(k))):
        t, last = divmod(i, reflections)
        if last == reflections - 1:
            grad_q[t] = scale * (states[i + 1] @ grad_o[t])
            grad += scale * np.outer(q[t], grad_o[t])
        decay = _decay(g, i, reflections)
        state = decay * states[i]
        along = k[i] @ grad
        if beta is None or grad_beta is None:
            grad_k[i], grad_v[i] = grad @ v[i], along
        else:
            error = v[i] - k[i] @ state
            grad_k[i] = beta[i] * (grad @ error - state @ along)
            grad_v[i], grad_beta[i] = beta[i] * along, along @ error
            grad = grad - beta[i] * np.outer(k[i], along)
        if grad_g is not None and last == 0:
            each = (grad * state).sum(axis=1)
            grad_g[t] = each if g is not None and g.shape[-1] == k.shape[-1] else each.sum()
        grad = decay * grad
    return DeltaGradients(grad_q, grad_k, grad_v, grad_beta, grad_g, grad)
