r"""The mathematics in ordinary torch operations: every derivative exists, no native code runs.

Forward mode, second derivatives and devices without kernels use it, and it documents what the operators compute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from householder import _norms, _validate
from householder.torch import _autocast, _precision


def unit_columns(u: Tensor) -> Tensor:
    """Scale the columns of ``u`` to norm one; a vanishing column becomes exactly zero."""
    size = u.detach().abs().amax(-2, keepdim=True)
    power = _norms.power_of_two(torch, size)
    scaled = u * power
    present = scaled.masked_fill(size == 0, 1.0)  # the root has no derivative at 0
    norm = torch.linalg.vector_norm(present, dim=-2, keepdim=True)
    unit: Tensor = scaled / norm
    return unit.masked_fill(_norms.vanishes(torch, norm, power) | (size == 0), 0.0)


def apply(u: Tensor, h: Tensor, transpose: bool, tau: Tensor | None = None, shape: str = "trapezoidal") -> Tensor:
    r"""Compute ``W h`` by :math:`W = I - V D (I + \mathrm{striu}(V^* V) D)^{-1} V^*`.

    ``D`` is the diagonal matrix of ``tau``. Without ``tau``, V has unit columns and ``D`` holds ``2 / |v|^2``, computed
    from the rounded columns. The triangle has double precision where the device has it, and ``h`` may have it. ``u`` is
    ``(*c, n, m)`` and ``h`` is ``(*c, *r, n)``, as for the operator.
    """
    with _autocast.off(h.device):
        n, m = u.shape[-2:]
        lead = u.dim() - 2
        rows = h.unsqueeze(-2) if h.dim() == lead + 1 else h.flatten(lead, -2)
        last = None
        if m == n and not u.is_complex() and _validate.is_default(tau, shape):
            last = torch.cat([torch.ones_like(u[..., 1:, -1]), u[..., -1:, -1]], -1).unsqueeze(-2)
            u = u[..., :-1]
        wide = _precision.wide_of(u)
        vectors = columns(u, tau, shape)
        v, wide_v = vectors.to(h.dtype), vectors.to(wide)
        gram = adjoint(wide_v) @ wide_v
        if tau is None:
            squares = gram.diagonal(dim1=-2, dim2=-1).real
            d = (2 / squares.masked_fill(squares == 0, 1)).to(wide)
        else:
            d = tau.to(wide)
        triangle = torch.triu(gram, 1) * d.unsqueeze(-2) + torch.eye(v.shape[-1], dtype=wide, device=v.device)
        if last is not None and not transpose:
            rows = rows * last
        projections = (rows @ v.conj_physical()).mT.to(wide)
        if transpose:
            scaled = d.conj_physical().unsqueeze(-1) * projections
            solved: Tensor = torch.linalg.solve_triangular(adjoint(triangle), scaled, upper=False)
        else:
            solved = d.unsqueeze(-1) * torch.linalg.solve_triangular(triangle, projections, upper=True)
        rows = rows - solved.mT.to(v.dtype) @ v.mT
        if last is not None and transpose:
            rows = rows * last
        return rows.reshape(h.shape)


def adjoint(a: Tensor) -> Tensor:
    """Transpose and conjugate, not lazily: torch's older ``vmap`` loses the tangents of lazy conjugates."""
    return a.mT.conj_physical()


def columns(u: Tensor, tau: Tensor | None, shape: str) -> Tensor:
    """Give the vectors of the reflections; those without ``tau`` have norm one."""
    if shape == "trapezoidal":
        u = u.tril() if tau is None else u.tril(-1) + torch.eye(*u.shape[-2:], dtype=u.dtype, device=u.device)
    return unit_columns(u) if tau is None else u


def matrix(u: Tensor, tau: Tensor | None = None, shape: str = "trapezoidal") -> Tensor:
    """Form ``W`` itself, ``(*c, n, n)``, without phases; it is rounded once, at the end."""
    n = u.shape[-2]
    eye = torch.eye(n, dtype=_precision.wide_of(u), device=u.device)
    return apply(u, eye.expand(*u.shape[:-2], n, n), False, tau, shape).mT.to(u.dtype)


def turn(h: Tensor, phases: Tensor) -> Tensor:
    """Multiply the entries of ``h`` by ``exp(i phases)``."""
    return h * torch.polar(torch.ones_like(phases), phases)


def activate(a: Tensor, nonlinearity: str, negative_slope: float, nonlinearity_bias: Tensor | None) -> Tensor:
    """Apply one of the named nonlinearities; those of one real number act on real and imaginary parts."""
    if nonlinearity == "identity":
        return a
    if nonlinearity in ("modrelu", "real_modrelu"):
        assert nonlinearity_bias is not None
        function = modrelu if nonlinearity == "modrelu" else real_modrelu
        return function(a, nonlinearity_bias)
    if a.is_complex():
        re, im = (activate(part, nonlinearity, negative_slope, None) for part in (a.real, a.imag))
        return torch.complex(re, im)
    if nonlinearity == "tanh":
        return a.tanh()
    if nonlinearity == "relu":
        return a.relu()
    if nonlinearity == "leaky_relu":
        return torch.nn.functional.leaky_relu(a, negative_slope)
    return oplu(a)


def oplu(a: Tensor) -> Tensor:
    """Sort the pairs ``(a_i, a_{i+n/2})``: the greater first."""
    first, second = a.chunk(2, -1)
    swapped = first < second  # maximum and minimum would share a tie's gradient between both
    return torch.cat([torch.where(swapped, second, first), torch.where(swapped, first, second)], -1)


def modrelu(a: Tensor, bias: Tensor) -> Tensor:
    """Add ``bias`` to the moduli of ``a``, cut off at zero; real ``a`` holds ``[Re; Im]`` of half as many numbers."""
    if a.dtype in (torch.bfloat16, torch.float16):
        return modrelu(a.float(), bias.float()).to(a.dtype)
    re, im = (a.real, a.imag) if a.is_complex() else a.chunk(2, -1)
    # The direction is that of a / size, whose squares neither overflow nor vanish.
    size = torch.maximum(re.detach().abs(), im.detach().abs())
    zero = size == 0
    size = size.masked_fill(zero, 1.0)
    x, y = (re / size).masked_fill(zero, 1.0), im / size
    length = (x.square() + y.square()).sqrt()
    dead = zero | (size * length.detach() + bias.detach() <= 0)  # NaN is neither
    re, im = (torch.where(dead, 0.0, part + bias * (unit / length)) for part, unit in ((re, x), (im, y)))
    return torch.complex(re, im) if a.is_complex() else torch.cat([re, im], -1)


def real_modrelu(a: Tensor, bias: Tensor) -> Tensor:
    """Add ``bias`` to the magnitudes of real numbers, cut off at zero."""
    return a.sign() * (a.abs() + bias).relu()


def rnn(
    u: Tensor,
    x: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    phases: Tensor | None,
    nonlinearity_bias: Tensor | None,
    tau: Tensor | None,
    batch_sizes: Tensor | None,
    nonlinearity: str,
    negative_slope: float,
    transpose: bool,
    reverse: bool,
    shape: str,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step with ``W`` formed once: all states and each sequence's last one.

    For many matrices every tensor but ``batch_sizes`` has the same leading axes.
    """
    with _autocast.off(x.device):
        kind, x = x.dtype, x.to(u.dtype)
        w = matrix(u, tau, shape)
        w = w if phases is None else turn(w, phases.unsqueeze(-2))
        w = adjoint(w) if transpose else w
        h, last = recurrence(
            w, x, h0, input_weight, bias, nonlinearity_bias, batch_sizes, nonlinearity, negative_slope, reverse
        )
        return h.to(kind), last.to(kind)


def recurrence(
    w: Tensor,
    x: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    nonlinearity_bias: Tensor | None,
    batch_sizes: Tensor | None,
    nonlinearity: str,
    negative_slope: float,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence of a given matrix, in its dtype."""
    packed = batch_sizes is not None
    if input_weight is not None:
        by_steps = w.dim() > 2 and not packed  # each of many matrices multiplies the rows of every step
        x = x @ (input_weight.unsqueeze(-3) if by_steps else input_weight).mT
    if bias is not None:
        x = x + (bias.unsqueeze(-2) if packed else bias.unsqueeze(-2).unsqueeze(-2))
    x = x.flip(-3) if reverse else x
    steps = x.unbind(-3) if batch_sizes is None else torch.split(x, [int(size) for size in batch_sizes], -2)
    state = x.new_zeros(*x.shape[:-3], *x.shape[-2:]) if h0 is None else h0.to(w.dtype)
    phi_bias = None if nonlinearity_bias is None else nonlinearity_bias.unsqueeze(-2)
    states, ended = [], []
    for a in steps:
        running = a.shape[-2]
        ended.append(state[..., running:, :])
        state = activate(state[..., :running, :] @ w.mT + a, nonlinearity, negative_slope, phi_bias)
        states.append(state)
    last = torch.cat([state, *reversed(ended)], -2)
    if not states:
        return torch.empty_like(x), last
    h = torch.cat(states, -2) if packed else torch.stack(states, -3)
    return h.flip(-3) if reverse else h, last
