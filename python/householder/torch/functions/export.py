"""Exported programs that run where this package is not installed."""

from __future__ import annotations

from typing import Any

import torch

from householder.torch._ops import OPERATORS


def decompositions() -> dict[Any, Any]:
    """Return torch's default table of decompositions with the operators of this package in it.

    ``exported.run_decompositions(decompositions())`` leaves only ATen operators. They run where this package is not
    installed, and ``torch.onnx.export`` can write them. A sequence of shape ``(T, B, d)`` becomes T steps, and that of
    a delta rule its chunks. Lengths are therefore fixed at the export. Packed sequences and gradients keep their
    operators.

    Returns
    -------
    dict
        From operators to functions, for ``torch.export.ExportedProgram.run_decompositions``.

    Raises
    ------
    RuntimeError
        Later, where ``torch.export`` left the length of a sequence open.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> exported = torch.export.export(ht.Orthogonal(6), (torch.randn(2, 6),))
    >>> plain = exported.run_decompositions(ht.decompositions())
    >>> any("householder" in str(node.target) for node in plain.graph.nodes)
    False
    """
    table: dict[Any, Any] = torch.export.default_decompositions()
    table.update({operator.forward_op: operator.kernels.decompose for operator in OPERATORS})
    return table
