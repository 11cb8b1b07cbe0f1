"""The delta rule and linear attention, of tensors and of arrays, and ``ht.DeltaNet``."""

import math

import numpy as np
import oracle
import sizes
import torch
from problem import Problem
from source import HALF, REAL

import householder as hh
import householder.torch as ht
from kinds.arrays import Call, gradients, refuse
from kinds.layers import problem as layer_problem

OPERANDS = ("q", "k", "v", "beta", "g", "initial_state")


def operands(source, extent, normalize, dtype, erases):
    """All operands but ``cu_seqlens``, which changes their batch; steps that let the state grow little or not."""
    batch, tokens, heads, group, keys, values, reflections = extent
    steps, value_heads = tokens * reflections, heads * group
    found = {
        "q": source.numbers((batch, tokens, heads, keys), dtype),
        "k": _keys(source, (batch, steps, heads, keys), normalize, dtype),
        "v": source.numbers((batch, steps, value_heads, values), dtype),
    }
    if erases:
        found["beta"] = _betas(source, (batch, steps, value_heads), dtype)
    if not source.one_in(3):
        by_channel = (keys,) if source.flag() else ()
        found["g"] = _gates(source, (batch, tokens, value_heads, *by_channel), dtype)
    return found


def _of_heads(source, options, shape):
    """A choice for each head of each sequence, to be combined with ``shape (batch, tokens, heads, ..)``."""
    return source.rng.choice(options, (*shape[:1], 1, *shape[2:3], *(1,) * len(shape[3:])))


def _keys(source, shape, normalize, dtype):
    """Unit keys, in some heads the same at all steps, shorter ones or zeros."""
    if normalize:
        return source.numbers(shape, dtype)
    k = source.rng.standard_normal(shape)
    k = np.where(_of_heads(source, (False, False, True), shape), k[:, :1], k)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    lengths = source.rng.random((*shape[:-1], 1))
    k *= np.where(_of_heads(source, (False, False, False, True), shape), lengths, 1)
    k *= source.rng.random(lengths.shape) >= _of_heads(source, (0, 0, 0, 0.5), shape)
    return torch.from_numpy(k).to(dtype)


def _betas(source, shape, dtype):
    """Steps within what a step towards a reflection is, in some heads at its ends."""
    beta, kind = 2 * source.rng.random(shape), _of_heads(source, 8, shape)
    return torch.from_numpy(np.select([kind == 0, kind == 1], [beta.round(), np.full(shape, 2.0)], beta)).to(dtype)


def _gates(source, shape, dtype):
    """Logarithms of decays: ordinary, none, down to -60 a step, to -1e4, to minus infinity, some or all of a head."""
    g = -source.rng.random(shape) * _of_heads(source, (0.01, 1.0, 1.0, 60.0, 1e4), shape)
    extreme = _of_heads(source, (0.0, -60.0, -700.0, -math.inf), shape)
    g = np.where(source.rng.random(shape) < _of_heads(source, (0, 0, 0, 0.1, 1), shape), extreme, g)
    for least, most in ((-104, -87), (-746, -708)):
        g[(least < g) & (g < most)] = most  # decays that would be subnormal are zeros
    return torch.from_numpy(g).to(dtype)


NEGLIGIBLE = 2.0**26
"""Decays over several steps that are less than so many least normal numbers count as zero."""


def reach(tensors):
    """What a decay that counts as zero is multiplied by at most, in gradients of gradients too."""
    sizes = [float(t.abs().max()) for name, t in tensors.items() if name != "g" and t is not None and t.numel()]
    least = 1.0 if tensors.get("g") is None else NEGLIGIBLE
    return least * math.prod(max(1.0, size) for size in sizes) ** 2


def packed(source, tokens):
    """Where so many tokens in a row are cut into sequences, some of them of one token or none."""
    cuts = source.rng.integers(0, tokens + 1, source.among(0, 5))
    if source.flag():
        cuts = [*cuts, *(min(int(cut) + 1, tokens) for cut in cuts)]
    return torch.tensor(sorted([0, tokens, *(int(cut) for cut in cuts)]))


def positions(source, tokens, ends):
    """Increasing numbers of tokens: any of them, the edges of chunks, and where sequences end; None for no states."""
    some = (
        [*range(tokens + 1)] if source.flag() else [0, 31, 32, 33, 64, tokens, *([] if ends is None else ends.tolist())]
    )
    drawn = source.rng.choice(some, source.among(1, 4))
    return (
        None if source.flag() or (ends is not None and len(ends) < 2) else sorted({min(int(t), tokens) for t in drawn})
    )


def draw(source, dtype):
    """Operands, options under the oracle's names, and the roundings of a sequence. One in three is linear attention."""
    extent, erases = attention(source)
    is_packed, normalize = source.one_in(3), source.flag()
    extent = extent._replace(batch=1) if is_packed else extent
    tensors = operands(source, extent, normalize, dtype, erases)
    ends = packed(source, extent.tokens) if is_packed else None
    count = extent.batch if ends is None else len(ends) - 1
    if source.flag():
        shape = count, extent.heads * extent.group, extent.keys, extent.values
        tensors["initial_state"] = source.numbers(shape, dtype)
    scale = source.choose((extent.keys**-0.5, 1.0, 0.5, -2.0))
    options = {"scale": scale, "reflections": extent.reflections, "normalize": normalize}
    return tensors, ends, options, (extent.keys + 8) * (extent.tokens * extent.reflections + 1)


def attention(source):
    """Sizes, and whether keys erase; if not, a token has one step."""
    extent, erases = sizes.attention(source), not source.one_in(3)
    return (extent if erases else extent._replace(reflections=1)), erases


def rule(source):
    """``ht.delta_rule`` or ``ht.linear_attention``."""
    dtype = source.choose((*REAL, *REAL, source.choose(HALF)))
    tensors, ends, options, operations = draw(source, dtype)
    if dtype in HALF and source.flag():  # some operands in float32
        tensors = {name: t.float() if name != "q" and source.flag() else t for name, t in tensors.items()}
    given = {"cu_seqlens": ends.to(source.choose((torch.int32, torch.int64)))} if ends is not None else {}
    both = source.flag()
    name, named = called(tensors, options)
    named |= {"use_qk_l2norm_in_kernel": options["normalize"], "output_final_state": both}
    states_at = positions(source, tensors["q"].shape[1], ends)
    named |= {} if states_at is None else {"states_at": states_at}

    def ours(t):
        results = tuple(a for a in getattr(ht, name)(**t, **named) if a is not None)
        return results if len(results) > 1 else results[0]

    def theirs(t):
        t = {"beta": None, **t}
        o, last = oracle.delta_rule(**t, **options)
        states = () if states_at is None else (oracle.states_after(states_at, **t, **options),)
        return (o, *((last,) if both else ()), *states) if both or states else o

    return Problem(f"ht.{name}", tensors | given, ours, theirs, operations, (), reach=reach(tensors), options=named)


def called(tensors, options):
    """The function of these operands, and its options."""
    if "beta" in tensors:
        return "delta_rule", {"scale": options["scale"], "num_householder": options["reflections"]}
    return "linear_attention", {"scale": options["scale"]}


def decoding(source):
    """Tokens one after the other, each from the state that the one before left, as one sequence."""
    dtype = source.choose(REAL)
    extent, erases = attention(source)
    extent = extent._replace(tokens=min(extent.tokens, 12))
    normalize = source.flag()
    tensors = operands(source, extent, normalize, dtype, erases)
    scale, r = extent.keys**-0.5, extent.reflections
    name, named = called(tensors, {"scale": scale, "reflections": r})

    def ours(t):
        outputs, state = [t["v"][:, :0]], None
        for i in range(extent.tokens):
            rows = {name: t[name][:, i : i + 1] for name in ("q", "g") if name in t}
            rows |= {name: t[name][:, i * r : (i + 1) * r] for name in ("k", "v", "beta") if name in t}
            options = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": normalize}
            o, state = getattr(ht, name)(**rows, **named, **options)
            outputs.append(o)
        return torch.cat(outputs, 1)

    def theirs(t):
        return oracle.delta_rule(**{"beta": None, **t}, scale=scale, reflections=r, normalize=normalize)[0]

    operations = (extent.keys + 8) * (extent.tokens * r + 1)
    return Problem(
        f"decoding, {name}",
        tensors,
        ours,
        theirs,
        operations,
        (),
        reach=reach(tensors),
        options={"normalize": normalize, "r": r},
    )


def drafts(source):
    """The accepted tokens of drafts, which are committed to states."""
    dtype = source.choose((*REAL, *REAL, source.choose(HALF)))
    extent, erases = attention(source)
    extent = extent._replace(tokens=min(extent.tokens, 70))
    normalize, r = source.flag(), extent.reflections
    tensors = operands(source, extent, normalize, dtype, erases)
    del tensors["q"]
    tensors["state"] = source.numbers((extent.batch, extent.heads * extent.group, extent.keys, extent.values), dtype)
    accepted = [int(n) for n in source.rng.integers(0, extent.tokens + 1, extent.batch)]
    if source.flag():
        accepted = [extent.tokens] * extent.batch
    named = {"accepted": accepted, "use_qk_l2norm_in_kernel": normalize, "num_householder": r}

    def ours(t):
        return ht.commit(**t, **named)

    def theirs(t):
        return oracle.committed(**t, accepted=accepted, reflections=r, normalize=normalize)

    operations = (extent.keys + 8) * (extent.tokens * r + 1)
    return Problem("commit", tensors, ours, theirs, operations, (), reach=reach(tensors), options=named)


def arrays(source):
    """The NumPy functions, or a call that is to be refused."""
    dtype = source.choose(REAL)
    tensors, ends, options, operations = draw(source, dtype)
    options["normalize"] = False
    tensors["k"] = _keys(source, tuple(tensors["k"].shape), False, dtype)
    given = {"g": None, **tensors}
    rule, named = called(tensors, options)
    if ends is not None:
        named["cu_seqlens"] = ends.tolist()
    names, backward = [name for name in OPERANDS if name in tensors], source.flag()
    states_at = positions(source, tensors["q"].shape[1], ends)
    named |= {} if states_at is None else {"states_at": states_at}
    if backward:
        (batch, tokens), (heads, values) = tensors["q"].shape[:2], tensors["v"].shape[2:]
        count = batch if ends is None else len(ends) - 1
        shapes = {
            "grad_o": (batch, tokens, heads, values),
            "grad_final_state": (count, heads, tensors["k"].shape[3], values),
        }
        if states_at is not None:
            count = (len(states_at),) if ends is not None else (batch, len(states_at))
            shapes["grad_states"] = (*count, *shapes["grad_final_state"][1:])
        kept = source.some(tuple(shapes)) or ("grad_o",)
        given |= {"grad_o": None} | {name: source.numbers(shapes[name], dtype) for name in kept}

    def theirs(t):
        t = {name: a.requires_grad_(name in names) if isinstance(a, torch.Tensor) else a for name, a in t.items()}
        given = {"beta": None} | {name: t[name] for name in names}
        o, last = oracle.delta_rule(**given, cu_seqlens=ends, **options)
        results = {"o": o, "final_state": last}
        if states_at is not None:
            results["states"] = oracle.states_after(states_at, **given, cu_seqlens=ends, **options)
        if not backward:
            return results
        of_results = (t["grad_o"], *(t.get(f"grad_{name}") for name in ("final_state", "states")))[: len(results)]
        found = gradients(tuple(results.values()), of_results, t, names)
        return dict(zip(names, found, strict=True))

    def results_of_arrays(**arguments):
        return getattr(hh, rule)(**arguments, output_final_state=True)

    def gradients_of_arrays(grad_o=None, **arguments):
        others = {name: arguments.pop(name) for name in ("grad_final_state", "grad_states") if name in arguments}
        return getattr(hh, f"{rule}_vjp")(**arguments)[1](grad_o, **others)

    function = gradients_of_arrays if backward else results_of_arrays
    call = Call(function, given, theirs, operations, named, reach=reach(given))
    if source.one_in(8) and (backward or "initial_state" in tensors):  # else values may be of any width
        return lambda record, told: refuse(source, call, record, told)
    return lambda record, told: call.run(source, record, told)


def layer(source):
    """``DeltaNet``: whole sequences, steps, and what follows the state of a prefix."""
    dtype = source.choose(REAL)
    heads, width, taps = source.among(1, 3), source.among(1, 5), source.choose((1, 2, 4))
    reflections, gate = source.choose((1, 1, 2)), source.choose((None, "head", "channel"))
    module = ht.DeltaNet(
        heads * width, heads, expand_v=source.choose((1, 2, 1.5)) if width > 1 else 1, gate=gate,
        num_householder=reflections, conv_size=taps,
    ).to(dtype)  # fmt: skip
    with torch.no_grad():
        for p in module.parameters():  # ordinary numbers: products of five small ones would vanish
            p.copy_(torch.from_numpy(source.rng.standard_normal(p.shape)))
    form, batch, tokens = source.choose(("sequences", "steps", "prefixes")), source.among(1, 3), source.among(1, 7)
    tokens = source.near((16, 32)) if source.one_in(8) else tokens
    cut = source.among(0, tokens)
    inputs = {"x": source.numbers((batch, tokens, heads * width), dtype)}

    def ours(call, t):
        if form == "sequences":
            return call(t["x"])
        if form == "prefixes":
            y, _, (prefix,) = module.step(t["x"], states_at=[cut])
            return torch.cat([y[:, :cut], module.step(t["x"][:, cut:], prefix)[0]], 1)
        outputs, state = [], None
        for x in t["x"].unbind(1):
            y, state = module.step(x, state)
            outputs.append(y)
        return torch.stack(outputs, 1)

    options = {"num_heads": heads, "num_householder": reflections, "conv_size": taps, "max_beta": 2.0, "gate": gate}

    def theirs(t):
        return oracle.delta_net(t, options, t["x"])

    return layer_problem(
        f"DeltaNet, {form}", module, inputs, ours, theirs, (width + 16) * (tokens + 1),
        transforms=form == "sequences", whole=form == "sequences", reach=reach({**module.state_dict(), **inputs}),
        options=options,
    )  # fmt: skip
