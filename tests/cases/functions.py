"""Every public function of arrays, with calls that together have every argument, for tests of all of them."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import householder as hh
import householder.jax as hj
import householder.torch as ht

LIBRARIES = {"numpy": (hh, np.asarray), "torch": (ht, torch.from_numpy), "jax": (hj, jnp.asarray)}
"""Each library, and how it makes an array of NumPy's."""
F, C = np.ones, np.complex128
U, H, X, TAU = F((4, 2)), F((3, 4)), F((6, 4)), F(2)
COMPLEX = {"u": F((4, 2), C), "h": F((3, 4), C), "phases": F(4)}
PLACES = np.array([0, 2, 3])
MODRELU = {"nonlinearity": "modrelu", "nonlinearity_bias": F(2)}
SEQUENCE = {"u": U, "x": X, "h0": F((2, 4)), "input_weight": F((4, 4)), "bias": F(4), "batch_sizes": np.full(3, 2)}
CELL = {name: SEQUENCE[name] for name in ("u", "input_weight", "bias")} | MODRELU
ATTENTION = {name: F((1, 3, 2, 4)) for name in ("q", "k", "v")} | {"g": -F((1, 3, 2)), "cu_seqlens": PLACES}
ATTENTION |= {"initial_state": F((2, 2, 4, 4))}
DELTA = ATTENTION | {"beta": F((1, 3, 2))}
LAPACK = dict(zip(("a", "tau"), hh.to_lapack(U), strict=True))

CALLS = {
    "apply": [{"u": U, "h": H, "tau": TAU}, COMPLEX],
    "backward": [
        {"u": U, "h": H, "grad_c": H, "tau": TAU},
        COMPLEX | {"grad_c": F((3, 4), C), "tape": hh.forward_tape(**COMPLEX)[1]},
    ],
    "delta_rule": [DELTA],
    "factor": [{"q": np.eye(4)}],
    "forward_tape": [COMPLEX],
    "frame": [{"u": F((4, 2), C), "phases": F(4)}],
    "from_lapack": [LAPACK],
    "haar": [{"n": 4, "rng": 0}],
    "jvp": [COMPLEX | {"tangent_u": F((4, 2), C), "tangent_h": F((3, 4), C), "tangent_phases": F(4)}],
    "linear_attention": [ATTENTION],
    "matrix": [{"u": U, "tau": TAU}, {"u": F((4, 2), C), "phases": F(4)}],
    "nearest": [{"a": U}],
    "normalize": [{"u": U}],
    "plan": [{"n": 4, "m": 2}],
    "real_form": [{"w": F((2, 2), C)}],
    "Reflections": [{"u": U, "tau": TAU}, {"u": F((4, 2), C), "phases": F(4)}],
    "Recurrence": [CELL | {"tau": TAU}, {"u": F((4, 2), C), "phases": F(4)}],
    "rnn": [SEQUENCE | MODRELU | {"tau": TAU}, {"u": F((4, 2), C), "x": F((6, 4), C), "phases": F(4)}],
    "set_num_threads": [{"k": hh.get_num_threads()}],
    "snap": [{"u": U}],
    "to_lapack": [{"u": U}],
    "wy": [{"u": U}],
}
CALLS |= {f"{name}_vjp": CALLS[name] for name in ("rnn", "delta_rule", "linear_attention")} | {
    "forward": CALLS["apply"]
}
RESULTS = {
    "step of a recurrence": (hh.Recurrence(U).step, {"h": F(4), "x": F(4)}),
    "gradients of a recurrence": (hh.rnn_vjp(U, X)[1], {"grad_h": X, "grad_last": F(4)}),
    "gradients of the delta rule": (
        hh.delta_rule_vjp(**DELTA)[1],
        {"grad_o": F((1, 3, 2, 4)), "grad_final_state": F((2, 2, 4, 4))},
    ),
}
WITHOUT_ARGUMENTS = {"get_num_threads", "release_memory"}
FUNCTIONS = [
    pytest.param(library, name, id=f"{library}, {name}")
    for library, names in (("numpy", hh.__all__), ("torch", hj.__all__), ("jax", hj.__all__))
    for name in names
    if name not in WITHOUT_ARGUMENTS
]
