"""A user's script, for type checkers: what it assigns must have the types it states."""

from typing import assert_type

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import householder as hh
import householder.torch as ht

u = np.zeros((6, 3))
h = np.ones((5, 6))
c: NDArray[np.float64] = hh.forward(u, h)
gradients = hh.backward(u, h, c)
grad_u: NDArray[np.float64] = gradients.u
states: NDArray[np.float64] = hh.rnn(u, h, nonlinearity="tanh")[0]
matrix: NDArray[np.float64] = hh.matrix(u)
random: NDArray[np.float64] = hh.haar(6, 3)
whole: NDArray[np.float32] = hh.haar(6, rng=0, dtype=np.float32)
unitary_u, phases = hh.haar(6, dtype="complex128")
unitary: NDArray[np.complex128] = hh.matrix(hh.Reflections(unitary_u, phases=phases))
grad_phases: NDArray[np.float64] = hh.backward(hh.Reflections(unitary_u, phases=phases), unitary, unitary).phases
reflections: NDArray[np.float64] = hh.factor(np.eye(3))
again, phases = hh.factor(unitary)
few: NDArray[np.complex128] = hh.haar(6, 2, dtype=np.complex128)
hh.set_num_threads(2)
threads: int = hh.get_num_threads()

rnn = ht.OrthogonalRNN(input_size=2, hidden_size=64, num_reflections=8, batch_first=True)
output, last = rnn(torch.randn(4, 10, 2))
assert_type(output, torch.Tensor)
assert_type(rnn(pack_sequence([torch.randn(10, 2)]))[0], PackedSequence)
recurrent: torch.Tensor = rnn.cells[0].matrix()
cells: list[ht.OrthogonalRNNCell] = list(rnn.cells[:1])
unitary_cell: ht.UnitaryRNNCell = ht.UnitaryRNN(2, 64).cells[0]
assert_type(unitary_cell(torch.randn(4, 2)), torch.Tensor)
loss: torch.Tensor = output.square().mean() + last.sum()
layer = ht.Orthogonal(64, 32)
weight: torch.Tensor = layer.matrix()
for module in (layer, ht.SVDLinear(64, 32), ht.Unitary(64, 32), ht.OPLU(), ht.ModReLU(32)):
    assert_type(module(torch.randn(4, 64)), torch.Tensor)
applied: torch.Tensor = ht.apply(torch.randn(6, 3), torch.randn(5, 6), method="wy")
constrained: torch.nn.Module = ht.orthogonal(torch.nn.Linear(4, 4), "weight")
adapter = ht.OrthogonalAdapter(torch.nn.Linear(4, 4), num_reflections=2)
merged: torch.nn.Linear = adapter.merge()
