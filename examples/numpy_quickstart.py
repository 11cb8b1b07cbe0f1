"""The NumPy interface in a minute: apply, differentiate, factorise, run a recurrence.

    python examples/numpy_quickstart.py

Vectors are the last axis of an array; float32, float64 and both complex types are computed in as they are.
"""

import numpy as np

import householder as hh

rng = np.random.default_rng(0)
n, m = 256, 16

u = hh.haar(n, m, rng=rng)  # m reflections of size n: a lower-trapezoidal (n, m) array
h = rng.standard_normal((100, n))
c = hh.forward(u, h)  # W h for each row, in O(n m) instead of O(n^2)
w = hh.matrix(u)
print(f"W h without W: differs from h W' by {np.abs(c - h @ w.T).max():.0e}")
print(f"W is orthogonal: max |W'W - I| = {np.abs(w.T @ w - np.eye(n)).max():.0e}")
print(f"the transpose inverts: {np.abs(hh.forward(hh.Reflections(u).H, c) - h).max():.0e}")

target = rng.standard_normal(c.shape)
gradients = hh.backward(u, h, c - target)  # of L = |c - target|^2 / 2
direction = rng.standard_normal(u.shape)
loss = [((hh.forward(u + step * direction, h) - target) ** 2).sum() / 2 for step in (1e-6, -1e-6)]
slope = (loss[0] - loss[1]) / 2e-6
print(f"gradient along a direction: {(gradients.u * direction).sum():.6f}, by finite differences {slope:.6f}")

found = hh.factor(w, m)  # the way back: reflections of a given orthogonal matrix
print(f"factorised and multiplied again: {np.abs(hh.matrix(found) - w).max():.0e}")

matrices = rng.standard_normal((1000, 32, 8))  # many matrices at once
vectors = rng.standard_normal((1000, 32))
print(f"a thousand matrices, one vector each: {hh.forward(matrices, vectors).shape}")

z = rng.standard_normal((n, m)) + 1j * rng.standard_normal((n, m))
v = hh.matrix(hh.Reflections(z, phases=rng.uniform(-np.pi, np.pi, n)))  # complex reflections and phases
print(f"unitary: max |V*V - I| = {np.abs(v.conj().T @ v - np.eye(n)).max():.0e}")

x, h0 = rng.standard_normal((1000, 20, n)), rng.standard_normal(n)  # 1000 steps of 20 sequences
states = hh.rnn(u, np.zeros_like(x), h0, nonlinearity="identity")[0]
print(f"|h| after 1000 steps over |h| before: {np.linalg.norm(states[-1, 0]) / np.linalg.norm(h0):.12f}")
(states, _), vjp = hh.rnn_vjp(u, x, h0, nonlinearity="leaky_relu")
gradients = vjp(grad_last=states[-1])  # of L = |last states|^2 / 2
print(f"gradients through 1000 steps: {[g.shape for g in gradients if g is not None]}")
