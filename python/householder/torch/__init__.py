"""Orthogonal and unitary transformations by Householder reflections, for PyTorch.

* Functions: :func:`apply`, :func:`matrix`, :func:`frame`, :func:`rnn`, :func:`delta_rule`; for very long sequences,
  :func:`last_state`.
* Replacements for torch's functions of the same names: :func:`householder_product`, :func:`ormqr`.
* Reflections of a given matrix: :func:`factor`, :func:`nearest`; of a random matrix: :func:`haar`.
* Layers: :class:`Orthogonal`, :class:`OrthogonalRNN`, :class:`OrthogonalRNNCell`, and their complex counterparts
  :class:`Unitary`, :class:`UnitaryRNN`, :class:`UnitaryRNNCell`; :class:`SVDLinear`.
* Linear attention by the delta rule: :class:`DeltaNet`.
* Existing layers: :func:`orthogonal` constrains a weight, :class:`OrthogonalAdapter` fine-tunes a frozen layer.
* Adapters of a whole model: :func:`adapt`, :func:`adapter_state`, :func:`load_adapter_state`,
  :func:`merge_adapters`.
* Models of transformers and peft: :func:`accelerate`, :func:`restore`.
* Nonlinearities: :class:`OPLU`, :class:`ModReLU`.
* Export to other runtimes: :func:`decompositions`.
* Optional, between optimizer steps: :func:`renormalize_`, :func:`snap_`.

The native code follows ``torch.get_num_threads()``.
"""

from householder.torch._export import decompositions
from householder.torch.activations import OPLU, ModReLU
from householder.torch.adapter import OrthogonalAdapter
from householder.torch.adapters import adapt, adapter_state, load_adapter_state, merge_adapters
from householder.torch.checkpoint import last_state
from householder.torch.delta import delta_rule
from householder.torch.delta_net import DeltaNet
from householder.torch.functional import apply, matrix, rnn
from householder.torch.lapack import householder_product, ormqr
from householder.torch.linear import Orthogonal
from householder.torch.matrices import factor, frame, haar, nearest
from householder.torch.optimizer import renormalize_, snap_
from householder.torch.orthogonal_rnn import OrthogonalRNN, OrthogonalRNNCell
from householder.torch.parametrizations import orthogonal
from householder.torch.pretrained import accelerate, restore
from householder.torch.svd import SVDLinear
from householder.torch.unitary import Unitary, UnitaryRNN, UnitaryRNNCell

__all__ = [
    "OPLU",
    "DeltaNet",
    "ModReLU",
    "Orthogonal",
    "OrthogonalAdapter",
    "OrthogonalRNN",
    "OrthogonalRNNCell",
    "SVDLinear",
    "Unitary",
    "UnitaryRNN",
    "UnitaryRNNCell",
    "accelerate",
    "adapt",
    "adapter_state",
    "apply",
    "decompositions",
    "delta_rule",
    "factor",
    "frame",
    "haar",
    "householder_product",
    "last_state",
    "load_adapter_state",
    "matrix",
    "merge_adapters",
    "nearest",
    "ormqr",
    "orthogonal",
    "renormalize_",
    "restore",
    "rnn",
    "snap_",
]
