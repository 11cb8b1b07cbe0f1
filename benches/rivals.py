"""What one would use instead of ``householder.torch.apply``: other ways to multiply by a product of reflections.

``u`` is (n, m) with zeros above its diagonal, ``h`` is (B, n); each function returns the rows ``W h``. Those whose name
begins with ``small`` take many matrices, (count, n, m), with one vector for each. ``sequence_rivals.py`` has loops over
time.
"""

import copy
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.func import functional_call
from torch.nn.functional import linear, pad
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal

from householder.torch._base.expressions import activate

BLOCK = 32


def explicit(u: Tensor, h: Tensor) -> Tensor:
    """One reflection after the other, the definition: the oracle, in float64."""
    for v in reversed(u.tril().unbind(1)):
        h = h - (2 / (v @ v)) * torch.outer(h @ v, v)
    return h


def explicit_columns(u: Tensor, h: Tensor) -> Tensor:
    """One reflection after the other along whole columns."""
    for v in reversed(u.unbind(1)):
        h = h - (2 / (v @ v)) * torch.outer(h @ v, v)
    return h


def with_last_number(function):
    """Let a function of m < n reflections take m == n: the last column is then the number u_1 alone."""

    def extended(u: Tensor, h: Tensor) -> Tensor:
        n, m = u.shape
        if m < n:
            return function(u, h)
        return function(u[:, :-1], torch.cat((h[:, :-1], h[:, -1:] * u[-1, -1]), 1))

    return extended


class CompactWY(Function):
    """``W = I - U T^-1 U'`` with the closed-form gradient: the best that plain torch does."""

    @staticmethod
    def forward(ctx, u, h):
        gram = u.mT @ u
        t = gram.triu(1).diagonal_scatter(gram.diagonal() / 2)
        ht = torch.linalg.solve_triangular(t, (h @ u).mT, upper=True)
        ctx.save_for_backward(u, h, t, ht)
        return torch.addmm(h, ht.mT, u.mT, alpha=-1)

    @staticmethod
    def backward(ctx, g):
        u, h, t, ht = ctx.saved_tensors
        ct = torch.linalg.solve_triangular(t.mT, (g @ u).mT, upper=False)
        lower = (ht @ ct.mT).tril()
        lower.diagonal().mul_(0.5)
        grad_u = torch.addmm(u @ (lower + lower.mT), g.mT, ht.mT, alpha=-1)
        grad_u.addmm_(h.mT, ct.mT, alpha=-1).tril_()
        return grad_u, torch.addmm(g, ct.mT, u.mT, alpha=-1)


class Blocked(Function):
    """Blocks of ``BLOCK`` reflections in compact WY form, the idea of FastH.

    All blocks' factors and parameter gradients are batched products; only the passes over ``h`` are sequential.
    """

    @staticmethod
    def forward(ctx, u, h):
        n, m = u.shape
        padding = -m % BLOCK
        blocks = pad(u, (0, padding)).view(n, -1, BLOCK).permute(1, 0, 2)  # (blocks, n, BLOCK)
        gram = blocks.mT @ blocks
        diagonal = gram.diagonal(dim1=1, dim2=2) / 2
        t = gram.triu(1).diagonal_scatter(torch.where(diagonal > 0, diagonal, 1.0), dim1=1, dim2=2)
        a = torch.linalg.solve_triangular(t, blocks, upper=True, left=False)  # U T^-1
        inputs = h.new_empty(len(blocks) + 1, *h.shape)
        inputs[-1] = h
        for k in range(len(blocks) - 1, -1, -1):
            torch.addmm(inputs[k + 1], inputs[k + 1] @ blocks[k], a[k].mT, alpha=-1, out=inputs[k])
        ctx.save_for_backward(blocks, t, a, inputs)
        ctx.m = m
        return inputs[0].clone()

    @staticmethod
    def backward(ctx, g):
        blocks, t, a, inputs = ctx.saved_tensors
        grads = g.new_empty(len(blocks) + 1, *g.shape)  # grads[k]: of the output of block k
        grads[0] = g
        for k in range(len(blocks)):
            torch.addmm(grads[k], grads[k] @ a[k], blocks[k].mT, alpha=-1, out=grads[k + 1])
        ht = torch.linalg.solve_triangular(t, (inputs[1:] @ blocks).mT, upper=True)
        ct = (grads[:-1] @ a).mT
        lower = (ht @ ct.mT).tril()
        lower.diagonal(dim1=1, dim2=2).mul_(0.5)
        grad = blocks @ (lower + lower.mT) - grads[:-1].mT @ ht.mT - inputs[1:].mT @ ct.mT
        grad_u = grad.permute(1, 0, 2).reshape(blocks.shape[1], -1)[:, : ctx.m]
        return grad_u.tril(), grads[-1]


def lapack_form(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return LAPACK's reflectors (unit diagonal) and their factors tau, of one matrix or a batch."""
    v = u / u.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    return v, 2 / v.square().sum(-2)


def householder_product(u: Tensor, h: Tensor) -> Tensor:
    n, m = u.shape
    v, tau = lapack_form(u)
    return h @ torch.linalg.householder_product(pad(v, (0, n - m)), tau).mT


def small_lapack(u: Tensor, h: Tensor) -> Tensor:
    v, tau = lapack_form(u)
    w = torch.linalg.householder_product(pad(v, (0, u.shape[1] - u.shape[2])), tau)
    return (w @ h.unsqueeze(2)).squeeze(2)


def small_products(u: Tensor, h: Tensor) -> Tensor:
    """The natural loop, ``h - 2 v (v' h) / (v' v)``, for all matrices at once."""
    n, m = u.shape[-2:]
    if m == n:  # the last column is a number
        h = torch.cat((h[:, :-1], h[:, -1:] * u[:, -1, -1:]), 1)
    for v in reversed(u.tril().unbind(2)[: n - 1]):
        h = h - v * (2 * (v * h).sum(1) / (v * v).sum(1))[:, None]
    return h


def small_products_by_jax(u: Tensor, h: Tensor, grad: Tensor):
    """Return the compiled forward pass and both passes of the same loop for one matrix under ``jax.vmap``, as calls."""
    import jax
    import jax.numpy as jnp

    def product(u, h):
        n, m = u.shape
        if m == n:
            h = jnp.where(jnp.arange(n) == n - 1, h * u[-1, -1], h)
        for j in reversed(range(min(m, n - 1))):
            v = jnp.tril(u)[:, j]
            h = h - v * (2 * (v * h).sum() / (v * v).sum())
        return h

    u, h, grad = (jnp.asarray(t.numpy()) for t in (u, h, grad))
    forward = jax.jit(jax.vmap(product))

    @jax.jit
    def both(u, h):
        c, pull = jax.vjp(jax.vmap(product), u, h)
        return c, *pull(grad)

    return lambda: jax.block_until_ready(forward(u, h)), lambda: jax.block_until_ready(both(u, h))


def torch_householder(u: Tensor, h: Tensor) -> Tensor:
    from torch_householder import torch_householder_orgqr

    n, m = u.shape
    return h @ torch_householder_orgqr(pad(u.tril(), (0, n - m))).mT  # it has gradients above the diagonal too


def same_parameters():
    """Return the rivals on the same reflections by name."""
    functions = {
        "compact WY, by hand": CompactWY.apply,
        "blocked (FastH's idea), by hand": Blocked.apply,
        "torch.linalg.householder_product": householder_product,
    }
    if find_spec("torch_householder"):
        functions["torch_householder"] = torch_householder
    return {name: with_last_number(function) for name, function in functions.items()}


def parametrized(orthogonal_map: str):
    return lambda n: orthogonal(nn.Linear(n, n, bias=False), orthogonal_map=orthogonal_map)


def geotorch(n: int) -> nn.Module:
    import geotorch

    layer = nn.Linear(n, n, bias=False)
    geotorch.orthogonal(layer, "weight")
    return layer


def other_parameters():
    """Return the builders, from n, of rivals with an n x n parameter, by name."""
    builders = {"nn.Linear (not orthogonal)": lambda n: nn.Linear(n, n, bias=False)}
    for name in ("cayley", "matrix_exp"):
        builders[f"parametrizations.orthogonal {name}"] = parametrized(name)
    return builders


def dense_weights(layer) -> dict[str, Tensor]:
    """Return the state of the ``nn.RNN`` that computes what an ``OrthogonalRNN`` computes."""
    (cell,) = layer.cells
    return {
        "weight_ih_l0": cell.weight_ih.detach(),
        "weight_hh_l0": cell.matrix().detach(),
        "bias_ih_l0": cell.bias.detach(),
        "bias_hh_l0": torch.zeros_like(cell.bias),
    }


class DenseTwin(nn.Module):
    """An ``OrthogonalRNN`` in float64 by explicit reflections and ``nn.RNN``: the oracle of sequences."""

    def __init__(self, layer) -> None:
        super().__init__()
        (cell,) = layer.cells
        self.reflections = nn.Parameter(cell.reflections.detach().double())
        self.weight_ih = nn.Parameter(cell.weight_ih.detach().double())
        self.bias = nn.Parameter(cell.bias.detach().double())
        self._rnn = [nn.RNN(layer.input_size, layer.hidden_size, nonlinearity="relu").double()]  # not a submodule

    def forward(self, x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
        identity = torch.eye(len(self.reflections), dtype=torch.float64)
        weights = {
            "weight_ih_l0": self.weight_ih,
            "weight_hh_l0": with_last_number(explicit)(self.reflections, identity).mT,
            "bias_ih_l0": self.bias,
            "bias_hh_l0": torch.zeros_like(self.bias),
        }
        return functional_call(self._rnn[0], weights, (x, h0))


class Looped(nn.Module):
    """An ``OrthogonalRNN`` whose nonlinearity has a bias, read out, one step after the other in Python.

    The scripts of expRNN and geotorch are written in this way. ``recurrent`` is an ``nn.Linear`` whose weight is
    orthogonal by any parametrization; it is formed once in a sequence.
    """

    def __init__(self, model, recurrent) -> None:
        super().__init__()
        (cell,) = model.layer.cells
        self.weight_ih = nn.Parameter(cell.weight_ih.detach().clone())
        self.nonlinearity = cell.nonlinearity
        self.nonlinearity_bias = nn.Parameter(cell.nonlinearity_bias.detach().clone())
        self.recurrent = recurrent
        self.recurrent.weight = cell.matrix().detach()
        self.readout = copy.deepcopy(model.readout)
        self.every_step = model.every_step

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], len(self.weight_ih))
        outputs = []
        with parametrize.cached():
            for step in x.unbind():
                a = linear(step, self.weight_ih) + self.recurrent(h)
                h = activate(a, self.nonlinearity, 0.0, self.nonlinearity_bias)
                if self.every_step:
                    outputs.append(self.readout(h))
        return torch.stack(outputs) if self.every_step else self.readout(h)
