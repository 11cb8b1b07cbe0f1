"""An orthogonal RNN in JAX, without a library of layers: add the two marked ones of many numbers.

    python examples/jax_addition.py [--steps 300] [--length 50]

The recurrence and its gradient are one native call each inside of the compiled training step. A model that always
answers 1 has a mean squared error of 1/6.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import householder as hh
import householder.jax as hj

HIDDEN, REFLECTIONS, BATCH = 64, 16, 50


def sequences(rng, length):
    """Numbers and marks ``(length, BATCH, 2)``, one set in each half, and the sums of the marked numbers."""
    x = np.zeros((length, BATCH, 2), np.float32)
    x[..., 0] = rng.random((length, BATCH))
    first, second, each = rng.integers(length // 2, size=BATCH), rng.integers(length // 2, length, BATCH), range(BATCH)
    x[first, each, 1] = x[second, each, 1] = 1
    return x, x[first, each, 0] + x[second, each, 0]


def initial(rng):
    """A random orthogonal transition, small weights of the inputs and of the output."""
    return {
        "u": hh.haar(HIDDEN, REFLECTIONS, rng=rng, dtype="float32"),
        "input_weight": rng.uniform(-0.5, 0.5, (HIDDEN, 2)).astype("float32"),
        "bias": np.zeros(HIDDEN, np.float32),
        "head": rng.uniform(-0.1, 0.1, HIDDEN).astype("float32"),
    }


def loss(parameters, x, target):
    u, v, bias, head = (parameters[name] for name in ("u", "input_weight", "bias", "head"))
    _, last = hj.rnn(u, x, input_weight=v, bias=bias, nonlinearity="leaky_relu")
    return jnp.mean((last @ head - target) ** 2)


@jax.jit
def step(parameters, moments, count, x, target):
    """One step of Adam."""
    value, gradients = jax.value_and_grad(loss)(parameters, x, target)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g**2, moments[1], gradients)
    rate = 3e-3 * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    parameters = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), parameters, first, second)
    return parameters, (first, second), value


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=50)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    parameters = initial(rng)
    moments = (jax.tree.map(np.zeros_like, parameters),) * 2
    for count in range(1, arguments.steps + 1):
        parameters, moments, value = step(parameters, moments, float(count), *sequences(rng, arguments.length))
        if count % max(1, arguments.steps // 5) == 0:
            print(f"step {count}: mean squared error {value:.4f}")
    errors = [float(loss(parameters, *sequences(rng, arguments.length))) for _ in range(10)]
    w = hj.matrix(parameters["u"])
    print(f"new sequences: {np.mean(errors):.4f} (1/6 = 0.1667 without learning)")
    print(f"|W' W - I| <= {jnp.abs(w.T @ w - jnp.eye(HIDDEN)).max():.1e}")
