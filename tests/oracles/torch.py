"""What the tests of ``householder.torch`` compare with: explicit reflections, and a recurrence as a plain loop."""

import torch

DTYPES = [torch.float64, torch.complex128]

# torch's own doing, when forward mode is first used
IGNORE_JIT_WARNING = "ignore:.torch.jit.script. is deprecated"
# torch's own doing, when older versions compile
IGNORE_INSTANCE_WARNING = "ignore:.*should not be instantiated:DeprecationWarning"
IGNORE_CONFIG_WARNING = "ignore:Skipping serialization:UserWarning"


def explicit_matrix(u, phases=None):
    """The product of explicit reflections, for one ``u (n, m)``."""
    n, m = u.shape
    eye = torch.eye(n, dtype=u.dtype)
    w = eye
    for j, v in enumerate(u.tril().T):
        reflects = v.norm() > 0 and (j < n - 1 or u.is_complex())
        w = w @ (eye - 2 * torch.outer(v, v.conj()) / v.norm() ** 2) if reflects else w
    if m == n and not u.is_complex():
        w = torch.cat([w[:, :-1], w[:, -1:] * u[-1, -1]], 1)
    return w if phases is None else w * torch.exp(1j * phases)


def phi(a, nonlinearity, slope=0.1, bias=None):
    match nonlinearity:
        case "identity":
            return a
        case "tanh":
            return torch.tanh(a)
        case "relu":
            return a.clamp(min=0)
        case "leaky_relu":
            return torch.where(a > 0, a, slope * a)
        case "oplu":
            k = a.shape[-1] // 2
            return torch.cat([torch.maximum(a[..., :k], a[..., k:]), torch.minimum(a[..., :k], a[..., k:])], -1)
        case "real_modrelu":
            return a.sign() * (a.abs() + bias).clamp(min=0)
    k = a.shape[-1] // 2
    modulus = a.abs() if a.is_complex() else (a[..., :k] ** 2 + a[..., k:] ** 2).sqrt()
    scale = (modulus + bias).clamp(min=0) / modulus
    return a * (scale if a.is_complex() else torch.cat([scale, scale], -1))


def loop(w, x, h, nonlinearity="leaky_relu", slope=0.1, bias=None):
    """All states of ``h_t = phi(W h_{t-1} + x_t)``, ``x (T, ..., n)``."""
    states = []
    for x_t in x:
        h = phi(h @ w.T + x_t, nonlinearity, slope, bias)
        states.append(h)
    return torch.stack(states)


def stack(module, x, hx=None):
    """What a recurrent layer computes for ``x (T, ..., d)``, by loops over explicit matrices."""
    last, directions = [], 2 if module.bidirectional else 1
    for first in range(0, len(module.cells), directions):
        outputs = []
        for k in range(first, first + directions):
            cell = module.cells[k]
            h0 = torch.zeros(cell.hidden_size, dtype=cell.weight_ih.dtype) if cell.h0 is None else cell.h0
            inputs = (x.flip(0) if k > first else x) @ cell.weight_ih.T + (0 if cell.bias is None else cell.bias)
            phases = None if cell.phases is None else cell.phases.detach()
            w = explicit_matrix(cell.reflections.detach(), phases)
            options = cell.nonlinearity, cell.negative_slope, cell.nonlinearity_bias
            states = loop(w, inputs, h0 if hx is None else hx[k], *options)
            last.append(states[-1])
            outputs.append(states.flip(0) if k > first else states)
        x = torch.cat(outputs, -1)
    return x, torch.stack(last)


def problem(n, m, *batch, dtype=torch.float64, seed=0):
    """Random reflections and vectors."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(n, m, dtype=dtype, generator=generator)
    return u, torch.randn(*batch, n, dtype=dtype, generator=generator)
