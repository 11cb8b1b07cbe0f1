"""Orthogonal and unitary transformations by Householder reflections, for PyTorch.

* The matrix W as an object: :class:`Reflections`, which functions take in the place of ``u``.
* Functions: :func:`apply`, :func:`matrix`, :func:`frame`, :func:`rnn`, :func:`delta_rule`, :func:`linear_attention`;
  :func:`commit` for drafted tokens; for very long sequences, :func:`last_state`.
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

from householder.torch.acceleration.models import accelerate, restore
from householder.torch.functions.apply import apply, matrix
from householder.torch.functions.commit import commit
from householder.torch.functions.delta import delta_rule
from householder.torch.functions.export import decompositions
from householder.torch.functions.lapack import householder_product, ormqr
from householder.torch.functions.linear_attention import linear_attention
from householder.torch.functions.linear_map import Reflections
from householder.torch.functions.matrices import factor, frame, haar, nearest
from householder.torch.functions.optimizer import renormalize_, snap_
from householder.torch.functions.rnn import rnn
from householder.torch.layers.activations import OPLU, ModReLU
from householder.torch.layers.adapted_model import adapt, adapter_state, load_adapter_state, merge_adapters
from householder.torch.layers.adapter import OrthogonalAdapter
from householder.torch.layers.delta_net import DeltaNet
from householder.torch.layers.last_state import last_state
from householder.torch.layers.orthogonal import Orthogonal
from householder.torch.layers.orthogonal_rnn import OrthogonalRNN, OrthogonalRNNCell
from householder.torch.layers.svd import SVDLinear
from householder.torch.layers.unitary import Unitary
from householder.torch.layers.unitary_rnn import UnitaryRNN, UnitaryRNNCell
from householder.torch.parametrizations import orthogonal

__all__ = [
    "OPLU",
    "DeltaNet",
    "ModReLU",
    "Orthogonal",
    "OrthogonalAdapter",
    "OrthogonalRNN",
    "OrthogonalRNNCell",
    "Reflections",
    "SVDLinear",
    "Unitary",
    "UnitaryRNN",
    "UnitaryRNNCell",
    "accelerate",
    "adapt",
    "adapter_state",
    "apply",
    "commit",
    "decompositions",
    "delta_rule",
    "factor",
    "frame",
    "haar",
    "householder_product",
    "last_state",
    "linear_attention",
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
