"""Every layer: how it is made, and the shape of an input."""

from torch import nn

import householder.torch as ht

LAYERS = {
    "OrthogonalRNN": (lambda: ht.OrthogonalRNN(3, 8, num_layers=2), (5, 4, 3)),
    "UnitaryRNN": (lambda: ht.UnitaryRNN(3, 8, num_layers=2), (5, 4, 3)),
    "OrthogonalRNNCell": (lambda: ht.OrthogonalRNNCell(3, 8), (4, 3)),
    "UnitaryRNNCell": (lambda: ht.UnitaryRNNCell(3, 8), (4, 3)),
    "large cell": (lambda: ht.OrthogonalRNNCell(3, 128), (4, 3)),
    "one large step": (lambda: ht.OrthogonalRNN(3, 128), (1, 4, 3)),
    "Orthogonal": (lambda: ht.Orthogonal(6, 4), (5, 6)),
    "Unitary": (lambda: ht.Unitary(6, 4), (5, 6)),
    "SVDLinear": (lambda: ht.SVDLinear(6, 4), (5, 6)),
    "orthogonal": (lambda: ht.orthogonal(nn.Linear(6, 4)), (5, 6)),
    "OrthogonalAdapter": (lambda: ht.OrthogonalAdapter(nn.Linear(6, 4), 4), (5, 6)),
    "fused adapter": (lambda: ht.OrthogonalAdapter(nn.Linear(6, 4).requires_grad_(False), 4), (5, 6)),
    "adapter of images": (lambda: ht.OrthogonalAdapter(nn.Conv2d(6, 4, 1), 4), (2, 6, 5, 5)),
    "ModReLU": (lambda: ht.ModReLU(3), (5, 6)),
    "OPLU": (lambda: ht.OPLU(), (5, 6)),
    "DeltaNet": (lambda: ht.DeltaNet(12, 2), (2, 5, 12)),
}
