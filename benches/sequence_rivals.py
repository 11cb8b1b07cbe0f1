"""What one would use instead of ``householder.torch.OrthogonalRNN``: loops by hand, other libraries' recurrences.

All compute ``h_t = relu(W h_{t-1} + V x_t + b)`` for inputs ``x`` of shape (T, B, d) and return ``h`` of (T, B, n).
"""

import ctypes
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd import Function

from benches.drivers import driver, pointers

relu_backward = torch.ops.aten.threshold_backward.grad_input


def with_inputs(x: Tensor, v: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Return h0 and after it ``V x_t + b`` of all steps by one product: the loop turns them into states in place."""
    return torch.cat((h0[None], torch.addmm(b, x.flatten(0, 1), v.mT).view(*x.shape[:2], -1)))


def products(deltas: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``V`` and ``b`` from those of the arguments of the nonlinearity."""
    return deltas.flatten(0, 1).mT @ x.flatten(0, 1), deltas.sum((0, 1))


class DenseLoop(Function):
    """A loop over time with a dense ``W``."""

    @staticmethod
    def forward(ctx, x, w, v, b, h0):
        states = with_inputs(x, v, b, h0)
        for h, following in pairwise(states):
            following.addmm_(h, w.mT).relu_()
        ctx.save_for_backward(x, w, states)
        return states[1:]

    @staticmethod
    def backward(ctx, g):
        x, w, states = ctx.saved_tensors
        deltas, grad = torch.empty_like(g), g[-1]
        for t in reversed(range(len(g))):
            relu_backward(grad, states[t + 1], 0.0, grad_input=deltas[t])
            grad = torch.addmm(g[t - 1], deltas[t], w) if t else deltas[0] @ w
        grad_w = deltas.flatten(0, 1).mT @ states[:-1].flatten(0, 1)
        return None, grad_w, *products(deltas, x), grad


class WYLoop(Function):
    """A loop over time with ``W = I - U A'``, ``A = U T^-T``: compact WY, with the closed-form gradient."""

    @staticmethod
    def forward(ctx, x, u, v, b, h0):
        gram = u.mT @ u
        t = gram.triu(1).diagonal_scatter(gram.diagonal() / 2)
        a = torch.linalg.solve_triangular(t, u.mT, upper=True).mT
        states, ut = with_inputs(x, v, b, h0), u.mT
        projected = x.new_empty(*x.shape[:2], u.shape[1])
        for (h, following), p in zip(pairwise(states), projected, strict=True):
            torch.mm(h, a, out=p)
            following.add_(h).addmm_(p, ut, alpha=-1).relu_()
        ctx.save_for_backward(x, u, t, a, states, projected)
        return states[1:]

    @staticmethod
    def backward(ctx, g):
        x, u, t, a, states, projected = ctx.saved_tensors
        deltas, grad, at = torch.empty_like(g), g[-1], a.mT
        along = torch.empty_like(projected)
        for i in reversed(range(len(g))):
            relu_backward(grad, states[i + 1], 0.0, grad_input=deltas[i])
            torch.mm(deltas[i], u, out=along[i])
            grad = (g[i - 1] + deltas[i] if i else deltas[0]).addmm(along[i], at, alpha=-1)
        ht = projected.flatten(0, 1).mT
        ct = torch.linalg.solve_triangular(t.mT, along.flatten(0, 1).mT, upper=False)
        lower = (ht @ ct.mT).tril()
        lower.diagonal().mul_(0.5)
        grad_u = torch.addmm(u @ (lower + lower.mT), deltas.flatten(0, 1).mT, ht.mT, alpha=-1)
        grad_u.addmm_(states[:-1].flatten(0, 1).mT, ct.mT, alpha=-1).tril_()
        return None, grad_u, *products(deltas, x), grad


def by_jax(x: Tensor, parameters: list[Tensor], grad: Tensor, *, wy: bool):
    """Return the compiled forward pass and both passes of ``jax.lax.scan``, dense or by compact WY, as calls."""
    import jax
    import jax.numpy as jnp

    def dense(w, v, b, h0):
        def step(h, a):
            h = jax.nn.relu(a + h @ w.T)
            return h, h

        return jax.lax.scan(step, h0, inputs @ v.T + b)[1]

    def compact(u, v, b, h0):
        u = jnp.tril(u)
        gram = u.T @ u
        at = jax.scipy.linalg.solve_triangular(jnp.triu(gram, 1) + jnp.diag(jnp.diag(gram) / 2), u.T)

        def step(h, a):
            h = jax.nn.relu(a + h - (h @ at.T) @ u.T)
            return h, h

        return jax.lax.scan(step, h0, inputs @ v.T + b)[1]

    function = compact if wy else dense
    inputs, g, *leaves = (jnp.asarray(t.detach().numpy()) for t in (x, grad, *parameters))

    @jax.jit
    def both(*leaves):
        h, pull = jax.vjp(function, *leaves)
        return h, *pull(g)

    forward = jax.jit(function)
    return lambda: jax.block_until_ready(forward(*leaves)), lambda: jax.block_until_ready(both(*leaves))


def by_onnx_runtime(x: Tensor, w: Tensor, v: Tensor, b: Tensor, h0: Tensor, nonlinearity: str = "Relu"):
    """Return the forward pass of ONNX Runtime's operator ``RNN`` as a call."""
    import onnx
    import onnxruntime
    from onnx import helper

    given, result = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        for shapes in ({"x": x.shape, "h0": (1, *h0.shape)}, {"h": (len(x), 1, *h0.shape)})
    )
    weights = {"w": w[None], "v": v[None], "b": torch.cat((b, torch.zeros_like(b)))[None]}
    constants = [onnx.numpy_helper.from_array(value.detach().numpy(), name) for name, value in weights.items()]
    names = ["x", "v", "w", "b", "", "h0"]
    node = helper.make_node("RNN", names, ["h"], hidden_size=len(b), activations=[nonlinearity])
    graph = helper.make_graph([node], "rnn", given, result, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    feed = {"x": x.numpy(), "h0": h0.detach().numpy()[None]}
    return lambda: session.run(None, feed)[0][:, 0]


class OneDNN:
    """oneDNN's RNN primitive, through ``native/onednn.cpp``."""

    def __init__(self, nonlinearity: str, x: Tensor, w: Tensor, v: Tensor, b: Tensor, h0: Tensor, grad=None):
        operands = [t.detach().contiguous() for t in (x, h0, w, v, b)]
        self.h = x.new_empty(*x.shape[:2], len(b))
        self.grads = [torch.empty_like(t) for t in operands]
        self.held = [*operands, self.h, *([] if grad is None else [grad, torch.zeros_like(h0), *self.grads])]
        places = pointers(self.held) + [None] * (13 - len(self.held))
        library = onednn()
        self.rnn = library.rnn_new(torch.get_num_threads(), *x.shape, len(b), nonlinearity == "relu", *places)
        self.pack, self.run, self.back = (
            partial(getattr(library, f"rnn_{name}"), ctypes.c_void_p(self.rnn))
            for name in ("pack", "forward", "backward")
        )
        self.pack()

    def step(self) -> Tensor:
        """Return the states, with weights that were packed before."""
        self.run()
        return self.h

    def forward(self) -> Tensor:
        self.pack()
        return self.step()

    def both(self) -> tuple[Tensor, ...]:
        h = self.forward()
        self.back()
        _, grad_h0, grad_w, grad_v, grad_b = self.grads
        return h, grad_w, grad_v, grad_b, grad_h0


def onednn() -> ctypes.CDLL | None:
    """Return the driver of oneDNN, or None.

    ``ONEDNN_ROOT`` is its prefix: of the packages ``onednn-cpu-gomp`` and ``onednn-devel-cpu-gomp``, the virtual
    environment.
    """
    if library := driver("onednn", "-fopenmp", "-ldnnl"):
        library.rnn_new.restype = ctypes.c_void_p
    return library
