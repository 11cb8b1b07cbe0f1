"""Functions of W as functions of its arrays."""

import sys
from functools import wraps


def of_arrays(function):
    """The function of W with the arguments of ``Reflections`` in W's place, and ``transpose`` for the adjoint."""
    root, *parts = function.__module__.split(".")
    library = sys.modules[f"{root}.{parts[0]}" if parts[0] in ("torch", "jax") else root]

    @wraps(function)
    def call(u, *arguments, tau=None, phases=None, columns="trapezoidal", transpose=False, **options):
        w = library.Reflections(u, tau, phases, columns)
        return function(w.H if transpose else w, *arguments, **options)

    return call
