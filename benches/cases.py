"""The works that ``versus_peers.py`` compares with rivals and ``suite.py`` watches, ours first in each."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import householder as hh
import householder.torch as ht
from benches import rivals, sequence_rivals

OURS = "householder"
"""What the names of our candidates begin with."""


class Candidate(NamedTuple):
    """``forward`` returns the result, ``both`` also its gradients; ``exact`` returns the same in float64.

    ``checked`` makes of the result what is compared.
    """

    name: str
    exact: Callable[[], tuple[Tensor, ...]]
    forward: Callable[[], Any]
    both: Callable[[], tuple[Any, ...]] | None = None
    checked: Callable[[Any], Any] = lambda result: result


def gradients(function, leaves, grad):
    def both():
        output = function()
        return output, *torch.autograd.grad(output, leaves, grad)

    return both


def compared(name, exact, function, leaves, grad) -> Candidate:
    """Return a candidate of torch from a function of no arguments."""
    return Candidate(name, exact, torch.no_grad()(function), gradients(function, leaves, grad))


def of_tensors(name, function, tensors, grad, exact=None) -> Candidate:
    """Return a candidate from a function of tensors, whose gradients are asked for."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    return compared(name, exact or in_float64(function, tensors, grad), lambda: function(*leaves), leaves, grad)


def in_float64(function, tensors, grad):
    """Return a function's result and gradients in float64, as a call that computes once."""
    leaves = [t.detach().to(torch.promote_types(t.dtype, torch.float64)).requires_grad_() for t in tensors]
    return cache(gradients(lambda: function(*leaves), leaves, grad.double()))


@dataclass(frozen=True)
class Case:
    """A kind of work and its sizes."""

    def __str__(self) -> str:
        return f"{self.kind} " + " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))

    def candidates(self) -> Iterator[Candidate]:
        raise NotImplementedError


@dataclass(frozen=True)
class Sequence(Case):
    """``h_t = relu(W h_{t-1} + V x_t + b)`` for an input of shape (T, B, d)."""

    d: int
    n: int
    m: int
    B: int
    T: int
    kind = "sequence"

    def candidates(self):
        torch.manual_seed(0)
        x, grad = torch.randn(self.T, self.B, self.d), torch.randn(self.T, self.B, self.n)
        h0 = torch.randn(self.B, self.n)
        layer = ht.OrthogonalRNN(self.d, self.n, num_reflections=self.m, nonlinearity="relu")
        rnn = nn.RNN(self.d, self.n, nonlinearity="relu")
        rnn.load_state_dict(rivals.dense_weights(layer))

        def by_module(name, module):
            twin = rivals.DenseTwin(layer) if module is layer else copy.deepcopy(module).double()

            def run(module, dtype):
                start = h0[None].to(dtype, copy=True).requires_grad_()
                inputs = x.to(dtype)
                return lambda: module(inputs, start)[0], [*module.parameters(), start], grad.to(dtype)

            return compared(name, cache(gradients(*run(twin, torch.float64))), *run(module, torch.float32))

        ours = by_module("householder.torch.OrthogonalRNN", layer)
        yield ours
        yield (theirs := by_module("nn.RNN", rnn))
        w, v, b = rnn.weight_hh_l0.detach(), rnn.weight_ih_l0.detach(), rnn.bias_ih_l0.detach()
        dense, apply = [w, v, b, h0], sequence_rivals.DenseLoop.apply

        def of_dense():
            """Return what dense rivals compute, from what ``nn.RNN`` computes."""
            h, grad_v, grad_w, grad_b, _, grad_h0 = theirs.exact()
            return h, grad_w, grad_v, grad_b, grad_h0[0]

        def of_reflections():
            *others, grad_h0 = ours.exact()
            return *others, grad_h0[0]

        yield of_tensors("dense loop, by hand", lambda *t: apply(x, *t), dense, grad, of_dense)
        compact = [self.reflections(layer), v, b, h0]
        if 2 * self.m <= self.n:  # else the dense loop is faster
            loop = sequence_rivals.WYLoop.apply
            yield of_tensors("compact WY loop, by hand", lambda *t: loop(x, *t), compact, grad, of_reflections)
        if find_spec("jax"):
            yield Candidate("jax.lax.scan, dense", of_dense, *sequence_rivals.by_jax(x, dense, grad, wy=False))
            if 2 * self.m <= self.n:
                scan = sequence_rivals.by_jax(x, compact, grad, wy=True)
                yield Candidate("jax.lax.scan, compact WY", of_reflections, *scan)
        if find_spec("onnxruntime"):
            yield Candidate("ONNX Runtime", of_dense, sequence_rivals.by_onnx_runtime(x, *dense))
        if sequence_rivals.onednn():
            one = sequence_rivals.OneDNN("relu", x, *dense, grad)
            yield Candidate("oneDNN", of_dense, one.forward, one.both)

    @staticmethod
    def reflections(layer):
        (cell,) = layer.cells
        return cell.reflections.detach()


@dataclass(frozen=True)
class Application(Case):
    """``c = W h`` for the rows of an h of shape (B, n)."""

    n: int
    m: int
    B: int
    kind = "application"

    def candidates(self):
        torch.manual_seed(0)
        u = torch.randn(self.n, self.m).tril()
        if self.m == self.n:
            u[-1, -1] = -1
        h, grad = torch.randn(self.B, self.n), torch.randn(self.B, self.n)
        exact = in_float64(rivals.with_last_number(rivals.explicit), (u, h), grad)
        for name, function in {"householder.torch.apply": ht.apply, **rivals.same_parameters()}.items():
            yield of_tensors(name, function, (u, h), grad, exact)
        for name, build in rivals.other_parameters().items():
            yield by_module(name, build(self.n), h, grad)


def by_module(name, module, h, grad) -> Candidate:
    def run(module, h):
        h = h.clone().requires_grad_()
        return lambda: module(h), [*module.parameters(), h], grad.to(h.dtype)

    exact = cache(gradients(*run(copy.deepcopy(module).double(), h.double())))
    return compared(name, exact, *run(module, h))


def by_numpy(exact, *tensors) -> Candidate:
    u, h, g = (t.numpy() for t in tensors)

    def both():
        grads = hh.backward(u, h, g)
        return hh.forward(u, h), grads.u, grads.h

    return Candidate("householder, NumPy", exact, lambda: hh.forward(u, h), both)


@dataclass(frozen=True)
class Vectors(Case):
    """``c = W h`` for few rows of h, n = m; LAPACK gets columns with ones on the diagonal and ``tau``."""

    n: int
    B: int
    kind = "vectors"

    def candidates(self):
        torch.manual_seed(0)
        u, h, grad = torch.randn(self.n, self.n).tril(), torch.randn(self.B, self.n), torch.randn(self.B, self.n)
        u[-1, -1] = 1
        exact = in_float64(rivals.with_last_number(rivals.explicit), (u, h), grad)
        yield of_tensors("householder.torch.apply", ht.apply, (u, h), grad, exact)
        yield by_numpy(exact, u, h, grad)
        v, tau = rivals.lapack_form(u[:, :-1])
        v, columns = v.mT.contiguous().mT, h.mT  # column after column
        yield Candidate("torch.ormqr, tau given", exact, lambda: torch.ormqr(v, tau, columns).mT)
        yield by_module("nn.Linear (not orthogonal)", nn.Linear(self.n, self.n, bias=False), h, grad)


@dataclass(frozen=True)
class Matrix(Case):
    """``W`` itself and its gradient; LAPACK gets columns with ones on the diagonal and ``tau``."""

    n: int
    m: int
    dtype: str
    kind = "matrix"

    def candidates(self):
        torch.manual_seed(0)
        dtype = getattr(torch, self.dtype)
        u, grad = torch.randn(self.n, self.m, dtype=dtype).tril(), torch.randn(self.n, self.n, dtype=dtype)
        v, tau = rivals.lapack_form(u)
        padded = pad(v, (0, self.n - self.m)).mT.contiguous().mT  # column after column
        identity = torch.eye(self.n, dtype=torch.float64)
        exact = in_float64(lambda u: rivals.CompactWY.apply(u, identity).mT, (u,), grad)
        yield of_tensors("householder.torch.matrix", ht.matrix, (u,), grad, exact)
        product = torch.linalg.householder_product
        yield Candidate("torch.linalg.householder_product, tau given", exact, lambda: product(padded, tau))


@dataclass(frozen=True)
class Batch(Case):
    """``c = W h`` for ``count`` matrices, one vector each: one call for all."""

    count: int
    n: int
    m: int
    kind = "batch"

    def candidates(self):
        torch.manual_seed(0)
        u = torch.randn(self.count, self.n, self.m).tril()
        if self.m == self.n:
            u[:, -1, -1] = -1
        h, grad = torch.randn(self.count, self.n), torch.randn(self.count, self.n)
        tensors, exact = (u, h), in_float64(rivals.small_products, (u, h), grad)
        yield of_tensors("householder.torch.apply", ht.apply, tensors, grad, exact)
        yield by_numpy(exact, u, h, grad)
        yield of_tensors("loop in torch, by hand", rivals.small_products, tensors, grad, exact)
        if find_spec("jax"):
            yield Candidate("jax.vmap of a loop, compiled", exact, *rivals.small_products_by_jax(u, h, grad))
        if self.m < self.n and self.count <= 1024:
            yield of_tensors("torch.linalg.householder_product", rivals.small_lapack, tensors, grad, exact)


@dataclass(frozen=True)
class Columns(Case):
    """``c = W h`` along m vectors of n entries each, for the rows of an h of shape (B, n)."""

    n: int
    m: int
    B: int
    kind = "full columns"

    def candidates(self):
        torch.manual_seed(0)
        u, h, grad = torch.randn(self.n, self.m), torch.randn(self.B, self.n), torch.randn(self.B, self.n)
        explicit = rivals.explicit_columns
        exact = in_float64(explicit, (u, h), grad)
        full = lambda u, h: ht.apply(ht.Reflections(u, columns="full"), h)  # noqa: E731
        yield of_tensors("householder.torch.apply, full columns", full, (u, h), grad, exact)
        if self.m <= self.n:
            trapezoid = in_float64(rivals.with_last_number(rivals.explicit), (u, h), grad)
            yield of_tensors("householder.torch.apply", ht.apply, (u, h), grad, trapezoid)
        yield of_tensors("one reflection after the other", explicit, (u, h), grad, exact)


@dataclass(frozen=True)
class Product(Case):
    """The first m columns of ``H_1 .. H_m`` from LAPACK's vectors and ``tau``, with both gradients."""

    count: int
    n: int
    m: int
    kind = "product"

    def candidates(self):
        torch.manual_seed(0)
        given = torch.geqrf(torch.randn(self.count, self.n, self.m).squeeze(0))
        grad = torch.randn(self.count, self.n, self.m).squeeze(0)
        theirs = torch.linalg.householder_product
        exact = in_float64(theirs, given, grad)
        yield of_tensors("householder.torch.householder_product", ht.householder_product, given, grad, exact)
        yield of_tensors("torch.linalg.householder_product", theirs, given, grad, exact)


@dataclass(frozen=True)
class Reflected(Case):
    """``c = W h`` from LAPACK's vectors and ``tau``, for the rows of an h of shape (B, n), with all gradients."""

    n: int
    m: int
    B: int
    kind = "product with vectors"

    def candidates(self):
        torch.manual_seed(0)
        given = (*torch.geqrf(torch.randn(self.n, self.m)), torch.randn(self.B, self.n))
        grad = torch.randn(self.B, self.n)

        def theirs(a, tau, h):
            return h @ torch.linalg.householder_product(pad(a, (0, self.n - self.m)), tau).mT

        exact = in_float64(theirs, given, grad)
        ours = lambda a, tau, h: ht.apply(ht.Reflections(a, tau), h)  # noqa: E731
        yield of_tensors("householder.torch.apply, tau", ours, given, grad, exact)
        yield of_tensors("torch.linalg.householder_product", theirs, given, grad, exact)


@dataclass(frozen=True)
class Step(Case):
    """One step for one sequence, ``tanh(W h + V x + b)`` with 8 inputs; the caller switches gradients off."""

    n: int
    m: int
    kind = "step"

    def candidates(self):
        torch.manual_seed(0)
        d, options = 8, {"num_reflections": self.m, "nonlinearity": "tanh"}
        cell, layer = ht.OrthogonalRNNCell(d, self.n, **options), ht.OrthogonalRNN(d, self.n, **options)
        layer.cells[0].load_state_dict(cell.state_dict())
        rnn_cell, rnn = nn.RNNCell(d, self.n), nn.RNN(d, self.n)
        rnn.load_state_dict(rivals.dense_weights(layer))
        rnn_cell.load_state_dict({name.removesuffix("_l0"): t for name, t in rnn.state_dict().items()})
        x, h = torch.randn(1, d), torch.randn(1, self.n)
        u, v, b, w = (t.detach() for t in (cell.reflections, cell.weight_ih, cell.bias, cell.matrix()))
        recurrence = hh.Recurrence(u.numpy(), input_weight=v.numpy(), bias=b.numpy(), nonlinearity="tanh")
        numbers = [t.numpy() for t in (w.contiguous(), v, b, h[0], x[0])]

        @cache
        def exact():
            state = rivals.with_last_number(rivals.explicit)(u.double(), h.double())
            return (torch.tanh(state + x.double() @ v.double().mT + b.double()),)

        def by_numpy():
            w, v, b, h, x = numbers
            return np.tanh(w @ h + v @ x + b)

        def candidate(name, call, checked=lambda h: h):
            return Candidate(name, exact, call, checked=checked)

        def one(h):
            return h[None]

        def first(found):
            return found[0][0]

        inputs, start = x[None], h[None]
        yield candidate("householder.torch.OrthogonalRNNCell", lambda: cell(x, h))
        yield candidate("householder.torch.OrthogonalRNN", lambda: layer(inputs, start), first)
        yield candidate("householder.Recurrence", partial(recurrence.step, *numbers[3:]), one)
        yield candidate("nn.RNNCell", lambda: rnn_cell(x, h))
        yield candidate("nn.RNN", lambda: rnn(inputs, start), first)
        wt, vt = w.mT.contiguous(), v.mT.contiguous()
        yield candidate("torch operations", lambda: torch.tanh_(torch.addmm(torch.addmm(b, x, vt), h, wt)))
        yield candidate("NumPy", by_numpy, one)
        dense = (inputs, w.contiguous(), v, b, h)
        if find_spec("onnxruntime"):
            yield candidate("ONNX Runtime", sequence_rivals.by_onnx_runtime(*dense, "Tanh"), lambda found: found[0])
        if sequence_rivals.onednn():
            yield candidate("oneDNN", sequence_rivals.OneDNN("tanh", *dense).step, lambda found: found[0])


@dataclass(frozen=True)
class Factor(Case):
    """The way back from an orthogonal or unitary matrix to reflections, and LAPACK's QR of the same matrix."""

    n: int
    dtype: str
    kind = "factor"

    def candidates(self):
        torch.manual_seed(0)
        q = torch.linalg.qr(torch.randn(self.n, self.n, dtype=getattr(torch, self.dtype))).Q.contiguous()
        number = q.numpy()
        exact = cache(lambda: (q.to(torch.promote_types(q.dtype, torch.float64)),))

        def product(found):
            u, phases = found if isinstance(found, tuple) else (found, None)
            return hh.matrix(hh.Reflections(u, phases=phases))

        def of_lapack(found):
            return torch.linalg.householder_product(*found) @ found.a.triu()

        yield Candidate("householder.factor", exact, lambda: hh.factor(number), checked=product)
        yield Candidate("torch.geqrf", exact, lambda: torch.geqrf(q), checked=of_lapack)
        yield Candidate("torch.linalg.qr", exact, lambda: torch.linalg.qr(q), checked=lambda found: found.Q @ found.R)


CASES: list[Case] = [
    Sequence(2, 128, 16, 50, 400),
    Sequence(1, 256, 32, 50, 784),
    Sequence(64, 512, 64, 64, 64),
    Sequence(49, 512, 64, 1, 300),
    Sequence(1, 64, 8, 16, 100),
    Sequence(1, 32, 32, 1, 50),
    Sequence(2, 128, 128, 50, 100),
    Sequence(1, 256, 256, 50, 50),
    Sequence(49, 512, 510, 1, 300),
    Application(16, 4, 1),
    Application(128, 16, 50),
    Application(256, 32, 50),
    Application(512, 64, 64),
    Application(1024, 64, 256),
    Application(512, 512, 32),
    Application(1024, 1024, 256),
    *(Vectors(n, count) for n in (256, 512, 1024) for count in (1, 8, 32)),
    *(Matrix(n, n - 1, "float32") for n in (256, 512, 1024, 2048)),
    *(Matrix(n, n - 1, "float64") for n in (512, 1024)),
    Batch(1024, 8, 8),
    Batch(100_000, 4, 3),
    Batch(16_384, 8, 4),
    Batch(1024, 32, 8),
    Batch(16_384, 16, 16),
    Columns(128, 16, 50),
    Columns(512, 64, 64),
    Columns(256, 512, 64),
    Reflected(128, 16, 50),
    Reflected(512, 64, 64),
    Product(1, 128, 16),
    Product(1, 512, 64),
    Product(1024, 32, 8),
    *(Step(*shape) for shape in ((32, 32), (64, 8), (128, 16), (512, 64), (512, 512))),
    *(Factor(1024, dtype) for dtype in ("float32", "float64", "complex64", "complex128")),
]
QUICK: list[Case] = [
    Sequence(2, 64, 8, 10, 50),
    Sequence(2, 24, 24, 3, 20),
    Application(64, 8, 10),
    Application(32, 32, 5),
    Vectors(24, 2),
    Matrix(24, 23, "float64"),
    Batch(8, 16, 4),
    Batch(8, 4, 4),
    Columns(24, 40, 5),
    Reflected(24, 8, 5),
    Product(4, 16, 4),
    Step(24, 8),
    Factor(24, "complex64"),
]
"""Small ones of every kind, to see that everything runs."""
