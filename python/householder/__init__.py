"""Orthogonal and unitary transformations by Householder reflections.

The columns of a lower-trapezoidal ``u (n, m)`` are the reflection vectors of ``W = H(u_n) .. H(u_{n-m+1})``. The
package applies W to vectors and whole recurrences without forming it, with closed-form gradients:

* the matrix W as an object: :class:`Reflections`, which functions take in the place of ``u``;
* one application: :func:`apply`, which is also :func:`forward`, and :func:`backward`; with stored intermediate
  vectors, :func:`forward_tape`; forward mode, :func:`jvp`;
* sequences: :func:`rnn`; with gradients, :func:`rnn_vjp`; one step at a time, :class:`Recurrence`;
* reflections that depend on the data: :func:`delta_rule`; with gradients, :func:`delta_rule_vjp`;
* its limit without reflections: :func:`linear_attention`; with gradients, :func:`linear_attention_vjp`;
* drafted tokens of both, those that are accepted: :func:`commit`;
* the matrix and its parameters: :func:`matrix`, :func:`frame`, :func:`wy`, :func:`factor`, :func:`nearest`,
  :func:`haar`, :func:`normalize`, :func:`snap`, :func:`real_form`, :func:`to_lapack`, :func:`from_lapack`;
* the method for a shape: :func:`plan`; threads and memory: :func:`set_num_threads`, :func:`get_num_threads`,
  :func:`release_memory`.

``householder.torch`` has layers for PyTorch, and ``householder.reference`` the mathematics in plain NumPy.
"""

from householder._core import __version__ as __version__
from householder._functions.apply import apply, backward, forward, forward_tape, matrix, wy
from householder._functions.commit import commit
from householder._functions.delta import delta_rule, delta_rule_vjp
from householder._functions.linear_attention import linear_attention, linear_attention_vjp
from householder._functions.plan import plan
from householder._functions.recurrence import Recurrence
from householder._functions.reflections import Reflections
from householder._functions.resources import get_num_threads, release_memory, set_num_threads
from householder._functions.sequence import rnn, rnn_vjp
from householder._functions.tangent import jvp
from householder._matrices.factor import factor
from householder._matrices.frame import frame
from householder._matrices.haar import haar
from householder._matrices.lapack import from_lapack, to_lapack
from householder._matrices.nearest import nearest
from householder._matrices.parameters import normalize, real_form, snap

__all__ = [
    "Recurrence",
    "Reflections",
    "apply",
    "backward",
    "commit",
    "delta_rule",
    "delta_rule_vjp",
    "factor",
    "forward",
    "forward_tape",
    "frame",
    "from_lapack",
    "get_num_threads",
    "haar",
    "jvp",
    "linear_attention",
    "linear_attention_vjp",
    "matrix",
    "nearest",
    "normalize",
    "plan",
    "real_form",
    "release_memory",
    "rnn",
    "rnn_vjp",
    "set_num_threads",
    "snap",
    "to_lapack",
    "wy",
]
