"""The operators under ``torch.ops.householder`` and the differentiable functions around them."""

from householder.torch.ops import _devices as _devices  # registers the operators of devices without kernels
from householder.torch.ops._adapted import adapted_linear as adapted_linear
from householder.torch.ops._adapted import takes_one_function as takes_one_function
from householder.torch.ops._apply import apply as apply
from householder.torch.ops._cuda_entry import on_cuda as on_cuda
from householder.torch.ops._cuda_entry import reads_halves as reads_halves
from householder.torch.ops._delta import delta_rule as delta_rule
from householder.torch.ops._matrix import matrix as matrix
from householder.torch.ops._rnn import rnn as rnn
