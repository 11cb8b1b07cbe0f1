"""A user's script, for type checkers: what it assigns must have the types it states."""

import numpy as np
import torch
from numpy.typing import NDArray

import householder as hh
import householder.torch as ht

u = np.zeros((6, 3))
h = np.ones((5, 6))
c: NDArray[np.float64] = hh.forward(u, h)
gradients = hh.backward(u, h, c)
grad_u: NDArray[np.float64] = gradients.u
states: NDArray[np.float64] = hh.rnn_forward(u, h, nonlinearity="tanh")
matrix: NDArray[np.float64] = hh.matrix(u)
hh.set_num_threads(2)
threads: int = hh.get_num_threads()

rnn = ht.OrthogonalRNN(input_size=2, hidden_size=64, num_reflections=8, batch_first=True)
output, last = rnn(torch.randn(4, 10, 2))
loss: torch.Tensor = output.square().mean() + last.sum()
layer = ht.Orthogonal(64, 32)
weight: torch.Tensor = layer.matrix()
applied: torch.Tensor = ht.apply(torch.randn(6, 3), torch.randn(5, 6), method="wy")
module: torch.nn.Module = ht.orthogonal(torch.nn.Linear(4, 4), "weight")
adapter = ht.OrthogonalAdapter(torch.nn.Linear(4, 4), num_reflections=2)
merged: torch.nn.Linear = adapter.merge()
