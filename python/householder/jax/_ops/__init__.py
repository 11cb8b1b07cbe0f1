"""Operators: native kernels on CPU, expressions elsewhere. They trust their arguments."""

from householder.jax._ops import apply as apply
from householder.jax._ops import delta as delta
from householder.jax._ops import matrix as matrix
from householder.jax._ops import rnn as rnn
from householder.jax._ops import targets

targets.register()
