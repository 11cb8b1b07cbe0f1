"""Counts of floating-point operations that several operations share, for one matrix of k reflections of size n."""

from __future__ import annotations


def factors(n: int, k: int) -> int:
    """Count ``V* V``, from which ``T`` follows."""
    return 2 * n * k * k


def forming(n: int, k: int) -> int:
    """Count ``T = striu(V* V) + I / 2`` and ``W = I - (V S) V*``."""
    return factors(n, k) + n * k * k + 2 * n * n * k


def application(method: str, n: int, k: int, rows: int) -> int:
    """Count one application to so many rows."""
    if method == "dense":
        return forming(n, k) + 2 * rows * n * n
    by_reflections = 4 * rows * n * k
    return by_reflections if method == "reflections" else factors(n, k) + by_reflections + rows * k * k


def gradient(n: int, k: int, rows: int) -> int:
    """Count ``V* h``, ``V* g``, two solves, ``J``; then ``V (L + L*)``, ``h c~*``, ``g h~*`` and ``V c~``."""
    return factors(n, k) + 4 * rows * n * k + 4 * rows * k * k + 2 * n * k * k + 6 * rows * n * k
