"""What the tests of torch and JAX compare with: the tester's oracle, and recurrent layers by it."""

import numpy as np
import torch

from tests.tester import oracle

explicit_matrix, of_columns, constrained, frame = oracle.matrix, oracle.of_columns, oracle.constrained, oracle.frame
phi, rnn, delta_rule = oracle.phi, oracle.rnn, oracle.delta_rule

DTYPES = [torch.float64, torch.complex128]

# torch's own doing, when forward mode is first used
IGNORE_CONFIG_WARNING = "ignore:Skipping serialization:UserWarning"


def stack(module, x, hx=None):
    """What a recurrent layer computes for ``x (T, ..., d)``."""
    options = {name: getattr(module, name) for name in ("num_layers", "bidirectional")}
    options |= {name: getattr(module.cells[0], name) for name in ("nonlinearity", "negative_slope", "constraint")}
    return oracle.recurrent_layer(dict(module.named_parameters()), options, x, hx)


def exact(function, grad, *arrays):
    """Return a function's value at NumPy arrays, and their gradients; all in double precision, where None is None."""
    leaves = [None if a is None else torch.from_numpy(np.array(a, np.result_type(a.dtype, float))) for a in arrays]
    given = [t.requires_grad_() for t in leaves if t is not None]
    value = function(*leaves)
    found = iter(torch.autograd.grad(value, given, torch.from_numpy(grad).to(value.dtype)))
    return value.detach().numpy(), [None if t is None else next(found).numpy() for t in leaves]


def problem(n, m, *batch, dtype=torch.float64, seed=0):
    """Random reflections and vectors."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(n, m, dtype=dtype, generator=generator)
    return u, torch.randn(*batch, n, dtype=dtype, generator=generator)
