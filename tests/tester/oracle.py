"""What is right: products of explicit n x n reflections and plain loops, in double precision under torch autograd.

Nothing of the package is used here. ``rounded`` marks where a computation in lower precision rounds: it does nothing
unless :func:`disturbed` is active, which shows how far rounding can move the results of a problem.
"""

import contextlib

import torch

_noise = None  # level and generator while results are disturbed


@contextlib.contextmanager
def disturbed(level, seed):
    """Disturb every intermediate result by random numbers of this relative size."""
    global _noise
    _noise = level, torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _noise = None


class _Disturb(torch.autograd.Function):
    """Add noise to a value on its way forward and to its gradient on its way back."""

    @staticmethod
    def forward(_ctx, t):
        return _disturb(t)

    @staticmethod
    def backward(_ctx, g):
        return _Disturb.apply(g)


def _disturb(t):
    """Add noise of this relative size; numbers below the normal ones of that precision lose more."""
    if _noise is None or not t.numel():
        return t.clone()
    level, generator = _noise
    size = t.detach().abs().amax(-1, keepdim=True) if t.dim() else t.detach().abs()
    normal = torch.finfo(torch.float32 if level > 1e-12 else torch.float64).tiny
    size = torch.where(size > 0, size.clamp_min(normal), size)
    return t + level * size * torch.randn(t.shape, generator=generator, dtype=t.dtype)


def rounded(t):
    return t if _noise is None else _Disturb.apply(t)


def wide(t):
    """The same numbers in double precision."""
    if not (t.is_floating_point() or t.is_complex()):
        return t
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64).resolve_conj().resolve_neg()


def matrix(u, phases=None, smallest=0.0):
    """``W (..., n, n)`` of ``u (..., n, m)``; a column shorter than ``smallest`` is the identity."""
    n, m = u.shape[-2:]
    eye = torch.eye(n, dtype=u.dtype)
    columns = rounded(u.tril().mT).mT
    w = eye.expand(*u.shape[:-2], n, n)
    for j in range(m if u.is_complex() else min(m, n - 1)):
        v = columns[..., j]
        size = v.detach().abs().amax(-1, keepdim=True)
        v = v / torch.where(size == 0, 1.0, size)  # H(v) does not change
        square = (v * v.conj()).real.sum(-1)
        present = size[..., 0] * square.detach().sqrt() >= max(smallest, torch.finfo(square.dtype).tiny)
        factor = torch.where(present, 2 / torch.where(present, square, 1.0), 0.0)
        w = reflected(w, v, factor)
    if m == n and not u.is_complex():
        w = torch.cat([w[..., :-1], w[..., -1:] * columns[..., -1:, -1:]], -1)
    return w if phases is None else w * torch.exp(1j * phases)


def vectors(u, has_tau, columns):
    """The vectors of the reflections: LAPACK's trapezoidal ones begin with a one."""
    if columns == "full":
        return u
    return u.tril(-1) + torch.eye(*u.shape[-2:], dtype=u.dtype) if has_tau else u.tril()


def of_columns(u, tau, columns, smallest=0.0):
    """``W`` of columns of either form, ``I - tau v v*`` multiplied out; without tau, as :func:`matrix` has it."""
    n, m = u.shape[-2:]
    eye = torch.eye(n, dtype=u.dtype)
    v_all = rounded(vectors(u, tau is not None, columns).mT).mT
    w = eye.expand(*u.shape[:-2], n, n)
    for j in range(m):
        v = v_all[..., j]
        if tau is None:
            square = (v * v.conj()).real.sum(-1)
            present = square.detach().sqrt() >= max(smallest, torch.finfo(square.dtype).tiny)
            factor = rounded(torch.where(present, 2 / torch.where(present, square, 1.0), 0.0))
        else:
            factor = tau[..., j]
        w = reflected(w, v, factor)
    return w


def reflected(w, v, factor):
    """``W (I - factor v v*)``."""
    return rounded(w - (w @ v.unsqueeze(-1)) * (factor.unsqueeze(-1) * v.conj()).unsqueeze(-2))


def apply(u, h, phases=None, transpose=False, smallest=0.0):
    """``W h`` or ``W* h`` where leading axes broadcast."""
    w = matrix(u, phases, smallest)
    return rounded(((w.mH if transpose else w) @ rounded(h).unsqueeze(-1)).squeeze(-1))


def _turned(w, h):
    """``W h``. It rounds as ``h`` does, however small it is: a ``u_1`` near zero takes away what was added to ``h``."""
    return h @ w.mT if _noise is None else h @ w.mT + (rounded(h) - h)


def frame(u, phases, rows, columns, smallest=0.0):
    """The first columns of W as a weight ``(rows, columns)``, or their adjoint where that is wider than tall."""
    w = matrix(u, phases, smallest)
    return w[..., :columns] if rows >= columns else w[..., :rows].mH


def _saturating(a, function, first, slope):
    """A function whose derivatives are computed from its rounded value: they lose all digits where they vanish.

    ``first`` is the derivative in terms of that value, of degree two, and ``slope`` the derivative of ``first``.
    """
    value = function(a)
    if _noise is None:
        return value
    near = value.detach()
    noise = _disturb(torch.ones_like(value)) - 1
    t = a - a.detach()
    return value + slope(near) * noise * t + (slope(near) ** 2 - 2 * first(near)) * noise * t**2 / 2


def sigmoid(a):
    return _saturating(a, torch.sigmoid, lambda s: s * (1 - s), lambda s: 1 - 2 * s)


def _modrelu(a, bias):
    """Of complex numbers, or of pairs in two halves. Its derivatives are computed from the rounded result."""
    if a.is_complex():
        square = (a * a.conj()).real
    else:
        re, im = a.chunk(2, -1)
        square = re**2 + im**2
    length = torch.where(square == 0, 1.0, square).sqrt()
    kept = (square > 0) & (length + bias > 0)

    def turned(near):
        scale = torch.where(kept, 1 + bias / (near * length), 0.0)
        return a * scale if a.is_complex() else torch.cat([re * scale, im * scale], -1)

    value = turned(torch.ones_like(length))
    if _noise is None:
        return value
    size = (length + bias).detach().abs()
    other = turned((1 + (_disturb(size) - size) / length).detach())
    return other + (value - other).detach()


def _real_modrelu(a, bias):
    size = a.abs()
    return torch.where((a != 0) & (size + bias > 0), a.sign() * (size + bias), 0.0)


def phi(a, name, slope=0.1, bias=None):
    """The nonlinearities: on real and imaginary parts, on pairs, on moduli.

    The derivative of tanh is ``1 - h^2`` of a rounded state h: a disturbed one is off by as much as h, however small.
    """
    if name == "identity":
        return a
    if bias is not None:
        bias = rounded(bias.expand(*a.shape[:-1], -1))  # its gradient is a sum over all vectors
    if name == "modrelu":
        return _modrelu(a, bias)
    if name == "real_modrelu":
        return _real_modrelu(a, bias)
    if a.is_complex():
        return torch.complex(phi(a.real, name, slope), phi(a.imag, name, slope))
    if name == "oplu":
        first, second = a.chunk(2, -1)
        kept = first >= second
        return torch.cat([torch.where(kept, first, second), torch.where(kept, second, first)], -1)
    if name == "tanh":
        return _saturating(a, torch.tanh, lambda h: 1 - h**2, lambda h: -2 * h)
    if name in ("relu", "leaky_relu"):
        return torch.where(a > 0, a, (0.0 if name == "relu" else slope) * a)
    raise NotImplementedError(f"nonlinearity: no oracle for {name!r}")


def rnn(
    u,
    x,
    h0=None,
    *,
    input_weight=None,
    bias=None,
    phases=None,
    tau=None,
    columns="trapezoidal",
    nonlinearity_bias=None,
    batch_sizes=None,
    nonlinearity="leaky_relu",
    negative_slope=0.1,
    transpose=False,
    reverse=False,
    smallest=0.0,
):
    """All states and the last ones of ``h_t = phi(W h_{t-1} + V x_t + b)``, one step after the other."""
    n = u.shape[0]
    if tau is None and columns == "trapezoidal":
        w = matrix(u, phases, smallest)
    else:
        w = of_columns(u, tau, columns, smallest)
        w = w if phases is None else w * torch.exp(1j * phases)
    w = w.mH if transpose else w
    a = rounded(x if input_weight is None else x @ rounded(input_weight).mT)
    a = a if bias is None else a + bias
    if batch_sizes is None:
        steps = list(a.unbind(0))
        batch = a.shape[1:-1]
    else:
        steps = list(a.split(batch_sizes.tolist()))
        batch = (int(batch_sizes[0]),)
    h = torch.zeros(*batch, n, dtype=u.dtype) if h0 is None else rounded(h0.expand(*batch, n))
    states, ended = [], []
    for step in reversed(steps) if reverse else steps:
        running = len(step) if batch_sizes is not None else None
        if running is not None:
            ended.insert(0, h[running:])
            h = h[:running]
        h = phi(rounded(_turned(w, h) + step), nonlinearity, negative_slope, nonlinearity_bias)
        states.append(h)
    states = states[::-1] if reverse else states
    join = torch.stack if batch_sizes is None else torch.cat
    return (join(states) if states else a.new_zeros(*a.shape[:-1], n)), torch.cat([h, *ended]) if ended else h


def constrained(u, constraint):
    """``u`` with ``u_1`` as layers see it: its sign, or clamped, its gradient passed through."""
    n, m = u.shape[-2:]
    if m < n or u.is_complex():
        return u
    last = u[..., -1:, -1:]
    value = last.detach().clamp(-1, 1) if constraint == "soft" else torch.where(last.detach() > 0, 1.0, -1.0)
    seen = last + (value - last).detach()
    return torch.cat([u[..., :-1, :], torch.cat([u[..., -1:, :-1], seen], -1)], -2)


def cell(t, options, x, h0=None, prefix="", reverse=False):
    """All states and the last ones of a cell for ``x (T, ..., d)``, by the names of its parameters after a prefix."""
    u = constrained(t[f"{prefix}reflections"], options.get("constraint", "hard"))
    named = {name: t.get(f"{prefix}{name}") for name in ("phases", "bias", "nonlinearity_bias")}
    h0 = t.get(f"{prefix}h0") if h0 is None else h0
    how = {name: options[name] for name in ("nonlinearity", "negative_slope", "smallest") if name in options}
    x = x.to(u.dtype)
    return rnn(u, x, h0, input_weight=t[f"{prefix}weight_ih"], reverse=reverse, **named, **how)


def recurrent_layer(t, options, x, hx=None):
    """States of the last layer and last states of all, for ``x (T, ..., d)``, by the names of the parameters."""
    last, directions = [], 2 if options["bidirectional"] else 1
    for layer in range(options["num_layers"]):
        found = []
        for direction in range(directions):
            h0 = None if hx is None else hx[len(last)]
            states, final = cell(t, options, x, h0, f"cells.{len(last)}.", reverse=bool(direction))
            found.append(states)
            last.append(final)
        x = torch.cat(found, -1)
        if options.get("dropped") and layer < options["num_layers"] - 1:
            x = x * 0
    return x, torch.stack(last)


def delta_net(t, options, x):
    """The layer of the delta rule for ``x (B, T, d)``, by the names of its parameters."""
    heads, steps, taps, gate = (options[name] for name in ("num_heads", "num_householder", "conv_size", "gate"))
    (batch, tokens, size), values = x.shape, t["norm.weight"].shape[0]
    keys = size // heads
    projected = rounded(x @ t["projection.weight"].mT)
    past = torch.cat([projected.new_zeros(batch, taps - 1, projected.shape[2]), projected], 1)
    mixed = rounded(sum(past[:, i : i + tokens] * t["convolution.weight"][:, 0, i] for i in range(taps)))
    mixed = rounded(torch.nn.functional.silu(mixed))
    q, k, v = mixed.split([heads * keys, steps * heads * keys, steps * heads * values], -1)
    beta = options["max_beta"] * sigmoid(rounded(x @ t["beta.weight"].mT + t["beta.bias"]))
    g = None
    if gate is not None:
        g = torch.nn.functional.logsigmoid(rounded(x @ t["decay.weight"].mT + t["decay.bias"]))
        g = g if gate == "head" else g.reshape(batch, tokens, heads, keys)
    shape = batch, tokens * steps, heads
    o, _ = delta_rule(
        q.reshape(batch, tokens, heads, keys), k.reshape(*shape, keys), v.reshape(*shape, values), beta.reshape(shape),
        g, scale=keys**-0.5, reflections=steps, normalize=True,
    )  # fmt: skip
    square = rounded(o.square().mean(-1, keepdim=True) + 2.0**-23)
    return rounded((rounded(o * square.rsqrt()) * t["norm.weight"]).flatten(2) @ t["out.weight"].mT)


def delta_rule(q, k, v, beta, g=None, initial_state=None, cu_seqlens=None, *, scale, reflections=1, normalize=False):
    """Outputs and final states of the delta rule, one step after the other; packed sequences one by one.

    Without betas nothing is erased.
    """
    group = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(group, 2) for x in (q, k))
    if normalize:  # each value head by itself: what gradients lose to the norm they lose before they are added up
        q, k = (rounded(x * rounded((x.square().sum(-1, keepdim=True) + 1e-6).rsqrt())) for x in (q, k))
    q = scale * q
    if g is not None:
        g = rounded((g if g.dim() == 4 else g.unsqueeze(-1)).exp())
    if initial_state is None:
        count = len(q) if cu_seqlens is None else len(cu_seqlens) - 1
        initial_state = v.new_zeros(count, v.shape[2], k.shape[3], v.shape[3])
    if cu_seqlens is None:
        return _delta_rows(q, k, v, beta, g, initial_state, reflections, range(q.shape[1]))
    ends = cu_seqlens.tolist()
    found = [
        _delta_rows(q, k, v, beta, g, initial_state[i : i + 1], reflections, range(ends[i], ends[i + 1]))
        for i in range(len(ends) - 1)
    ]
    outputs = torch.cat([o for o, _ in found], 1) if found else torch.zeros_like(v)
    return outputs, torch.cat([initial_state[:0], *(state for _, state in found)])


def mlstm(q, k, v, igate, fgate, c=None, n=None, m=None, *, epsilon):
    """Outputs ``(B, H, T, V)`` of the mLSTM and its last states, one token after the other; gates ``(B, H, T)``."""
    c = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]) if c is None else c
    n = q.new_zeros(*q.shape[:2], q.shape[3]) if n is None else n
    m = q.new_zeros(*q.shape[:2], 1) if m is None else m
    decay, outputs = torch.nn.functional.logsigmoid(fgate), [v[:, :, :0]]
    for t in range(q.shape[2]):
        query, key, value = q.shape[3] ** -0.5 * q[:, :, t], k[:, :, t], v[:, :, t]
        before, m = m, rounded(torch.maximum(decay[:, :, t, None] + m, igate[:, :, t, None]))
        exponents = decay[:, :, t, None] + before - m, igate[:, :, t, None] - m, -m
        kept, written, least = (rounded(rounded(x).exp()) for x in exponents)
        c = rounded(kept[..., None] * c + (written * key)[..., None] * value[..., None, :])
        n = rounded(kept * n + written * key)
        normaliser = rounded((query * n).sum(-1, keepdim=True)).abs()
        numerator = rounded((query[..., None, :] @ c).squeeze(-2))
        outputs.append((numerator / (torch.maximum(normaliser, least) + epsilon)).unsqueeze(2))
    return torch.cat(outputs, 2), (c, n, m)


def lightning_attention(t, rates, x, mask=None, *, epsilon):
    """The layer of lightning attention for ``x (B, T, d)``, by the names of its parameters; decays ``exp(-rates)``."""
    silu, heads = torch.nn.functional.silu, len(rates)
    qkv = rounded(silu(rounded(x @ t["qkv_proj.weight"].mT)))
    qkv = qkv if mask is None else qkv * mask[..., None]
    q, k, v = qkv.unflatten(-1, (heads, -1)).chunk(3, -1)
    o, _ = delta_rule(q, k, v, None, -rates.expand(q.shape[:3]), scale=1.0)
    o = rounded(rounded(o).flatten(2))
    o = rounded(rounded(o * (o.square().mean(-1, keepdim=True) + epsilon).rsqrt()) * t["norm.weight"])
    return rounded(rounded(rounded(sigmoid(rounded(x @ t["output_gate.weight"].mT))) * o) @ t["out_proj.weight"].mT)


def gated_convolution(t, x, mask=None):
    """The short convolution of LFM2 between its two gates for ``x (B, T, d)``, by the names of its parameters."""
    x = x if mask is None else x * mask[..., None]
    first, second, x = rounded(x @ t["in_proj.weight"].mT + t.get("in_proj.bias", 0)).chunk(3, -1)
    mixed = _convolved(rounded(first * x), t["conv.weight"]) + t.get("conv.bias", 0)
    return rounded(rounded(second * rounded(mixed)) @ t["out_proj.weight"].mT + t.get("out_proj.bias", 0))


def residual_convolution(t, x, mask=None):
    """The short convolution of Inkling for ``x (B, T, d)``, added to all tokens, also to those that are masked."""
    return rounded(x + rounded(_convolved(x if mask is None else x * mask[..., None], t["conv1d.weight"])))


def _convolved(x, weight):
    """Each channel of ``x (B, T, d)`` along time by its taps ``(d, 1, taps)``."""
    taps = weight.shape[-1]
    past = torch.nn.functional.pad(x, (0, 0, taps - 1, 0))
    return sum(past[:, i : i + x.shape[1]] * weight[:, 0, i] for i in range(taps))


def states_after(positions, q, k, v, beta, g=None, initial_state=None, cu_seqlens=None, *, reflections=1, **options):
    """The states in which the first tokens end; of packed ones, that of the sequence whose token is the last."""
    states = []
    for t in positions:
        steps = t * reflections
        first = [None if x is None else x[:, :n] for x, n in ((q, t), (k, steps), (v, steps), (beta, steps), (g, t))]
        ends = None if cu_seqlens is None else cu_seqlens.clamp(max=t)
        last = delta_rule(*first, initial_state, ends, reflections=reflections, **options)[1]
        states.append(last if ends is None else last[max(int((cu_seqlens < t).sum()) - 1, 0)])
    return torch.stack(states, 1 if cu_seqlens is None else 0)


def committed(state, k, v, accepted, beta=None, g=None, *, reflections=1, normalize=False):
    """The states after the first tokens of each sequence."""
    parts = []
    for i, t in enumerate(accepted.tolist() if isinstance(accepted, torch.Tensor) else accepted):
        steps = t * reflections
        first = [
            None if x is None else x[i : i + 1, :n] for x, n in ((k, t), (k, steps), (v, steps), (beta, steps), (g, t))
        ]
        options = {"scale": 1.0, "reflections": reflections, "normalize": normalize}
        parts.append(delta_rule(*first, state[i : i + 1], **options)[1])
    return torch.cat([state[:0], *parts])


def _delta_rows(q, k, v, beta, decay, state, reflections, tokens):
    """A sequence. What a chunk gets wrong of a state is replaced by no later step, because chunks are sums of steps:
    ``lost`` is wrong in outputs, ``missed`` in what steps correct.
    """
    outputs, lost, missed = [v[:, :0]], 0.0, 0.0
    for t in tokens:
        if decay is not None:
            state, lost, missed = (decay[:, t].unsqueeze(-1) * x for x in (state, lost, missed))
        for i in range(t * reflections, (t + 1) * reflections):
            lost, missed = lost + _parts_of(state), missed + _parts_of(state)
            key, d = k[:, i].unsqueeze(-1), v[:, i].unsqueeze(-2)
            if beta is not None:
                d = beta[:, i, :, None, None] * rounded(d - rounded(key.mT @ (state + missed)))
            state = rounded(state + key * d)
        outputs.append(rounded(q[:, t].unsqueeze(-2) @ (state + lost)).transpose(1, 2))
    return torch.cat(outputs, 1), state + lost


def _parts_of(t):
    """Random numbers times those of ``t``, of the size of the noise; zero unless results are disturbed."""
    if _noise is None:
        return 0.0
    level, generator = _noise
    return level * torch.randn(t.shape, generator=generator, dtype=t.dtype) * t
