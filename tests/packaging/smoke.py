"""An installed package computes: NumPy's door against the readable algorithm, and torch's if ``--torch`` is given.

Needs nothing but the package, in any environment; prints the instruction set.
"""

import sys

import numpy as np

import householder as hh
from householder import _core, reference

assert "site-packages" in hh.__file__, f"{hh.__file__} is not an installed package"

rng = np.random.default_rng(0)
for dtype in (np.float32, np.float64, np.complex64, np.complex128):
    eps = np.finfo(dtype).eps
    for n, m in ((5, 3), (33, 20), (128, 16)):
        u, h = (rng.standard_normal(shape).astype(dtype) for shape in ((n, m), (17, n)))
        w = reference.matrix(u)
        for method in ("reflections", "wy", "dense"):
            assert np.abs(hh.forward(u, h, method=method) - h @ w.T).max() < 100 * n * eps
        grads = hh.backward(u, h, h)
        assert np.abs(grads.h - h @ w.conj()).max() < 100 * n * eps
        (states, _), vjp = hh.rnn_vjp(u, h[:, None], nonlinearity="tanh")
        assert np.isfinite(vjp(states).u).all()

q, k, v = rng.standard_normal((3, 1, 40, 2, 8))
beta, g = rng.random((1, 40, 2)), -rng.random((1, 40, 2))
(o, last), vjp = hh.delta_rule_vjp(q, k, v, beta=beta, g=g)
grads = vjp(o)
expected = reference.delta_rule_forward(
    q[0, :, 0], k[0, :, 0], v[0, :, 0], beta[0, :, 0], g[0, :, :1], np.zeros((8, 8)), 8**-0.5
)
assert np.abs(o[0, :, 0] - expected[0]).max() < 1e-12 * np.abs(expected[0]).max()
assert np.isfinite(grads.k).all()

q, _ = np.linalg.qr(rng.standard_normal((40, 40)))
assert np.abs(hh.matrix(hh.factor(q)) - q).max() < 1e-12

if "--torch" in sys.argv:
    import torch

    import householder.torch as ht

    layer = ht.OrthogonalRNN(3, 32, num_reflections=8)
    x = torch.randn(20, 4, 3)
    output, last = layer(x)
    output.square().mean().backward()
    assert layer.cells[0].reflections.grad.isfinite().all()
    w = layer.cells[0].matrix()
    assert torch.allclose(w.mT @ w, torch.eye(32), atol=1e-5)
    print(f"torch {torch.__version__}, ", end="")

print(f"NumPy {np.__version__}, Python {sys.version.split()[0]}, {_core.instruction_set()}")
