"""Orthogonal and unitary transformations by Householder reflections, for PyTorch."""

from householder.torch.functional import apply as apply
from householder.torch.functional import matrix as matrix
from householder.torch.functional import rnn as rnn
