"""Arguments of ``Reflections`` of every kind, each with its matrix by the tester's oracle."""

import numpy as np
import torch

from tests.conftest import randn
from tests.tester import oracle

N = 6


def _drawn(*shape, dtype="float64"):
    return randn(np.random.default_rng(shape), shape, dtype)


COMPLEX = {"u": _drawn(N, 3, dtype="complex128"), "phases": np.linspace(-1, 2, N)}
ARGUMENTS = {
    "real": {"u": _drawn(N, 3)},
    "square": {"u": _drawn(N, N)},
    "full columns": {"u": _drawn(N, 8), "columns": "full"},
    "tau": {"u": _drawn(N, 3), "tau": _drawn(3)},
    "tau of full columns": {"u": _drawn(N, 8), "tau": _drawn(8), "columns": "full"},
    "complex": {"u": COMPLEX["u"]},
    "complex, phases": COMPLEX,
    "complex, tau": {"u": COMPLEX["u"], "tau": _drawn(3, dtype="complex128")},
    "many": {"u": _drawn(2, 3, N, 4)},
    "many, tau": {"u": _drawn(2, N, 4), "tau": _drawn(2, 4)},
    "many, phases": {"u": _drawn(2, N, 3, dtype="complex128"), "phases": COMPLEX["phases"]},
    "many, phases of each": {"u": _drawn(2, N, 3, dtype="complex128"), "phases": _drawn(2, N)},
}


def matrix(u, tau=None, phases=None, columns="trapezoidal"):
    """The explicit product, from NumPy arrays or from tensors."""
    u, tau, phases = (torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in (u, tau, phases))
    if tau is None and columns == "trapezoidal":
        return oracle.matrix(u, None if phases is None else phases[..., None, :])
    return oracle.of_columns(u, tau, columns)


def calls(arguments, convert):
    """The arguments as a library's arrays."""
    return {name: convert(a) if isinstance(a, np.ndarray) else a for name, a in arguments.items()}
