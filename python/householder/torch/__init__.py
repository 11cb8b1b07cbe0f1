"""Orthogonal and unitary transformations by Householder reflections, for PyTorch.

* Functions: :func:`apply`, :func:`matrix`, :func:`rnn`.
* Layers: :class:`Orthogonal`, :class:`OrthogonalRNN`, :class:`OrthogonalRNNCell`.
* Nonlinearities: :class:`OPLU`, :class:`ModReLU`.

The native code follows ``torch.get_num_threads()``.
"""

from householder.torch.activations import OPLU, ModReLU
from householder.torch.functional import apply, matrix, rnn
from householder.torch.linear import Orthogonal
from householder.torch.orthogonal_rnn import OrthogonalRNN, OrthogonalRNNCell

__all__ = [
    "OPLU",
    "ModReLU",
    "Orthogonal",
    "OrthogonalRNN",
    "OrthogonalRNNCell",
    "apply",
    "matrix",
    "rnn",
]
