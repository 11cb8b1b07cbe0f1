"""Results are plain tensors: none is lazily conjugated or negated, so that NumPy and other libraries read it."""

import itertools

import pytest
import torch
from torch import nn

import householder.torch as ht
from tests.cases.layers import LAYERS
from tests.conftest import of_arrays

C128, F64 = torch.complex128, torch.float64


def draw(*shape, dtype=C128):
    return torch.randn(shape, dtype=dtype)


def angles():
    return draw(5, dtype=F64)


def reflectors(*shape):
    return torch.geqrf(draw(*shape))


def tokens():
    rows = {name: draw(1, 6, 2, 3, dtype=F64) for name in "qkv"}
    return rows | {"g": -draw(1, 6, 2, dtype=F64).abs()}


FUNCTIONS = {
    "apply": [
        *(lambda t=t: (draw(5, 3), draw(2, 5), {"phases": angles(), "transpose": t}) for t in (False, True)),
        lambda: (draw(4, 5, 3), draw(2, 4, 5), {}),
        lambda: (draw(5, 3), draw(2, 5), {"tau": draw(3), "columns": "full"}),
    ],
    "matrix": [
        lambda: (draw(5, 3), {"phases": angles()}),
        lambda: (draw(2, 5, 3), {"tau": draw(2, 3)}),
        lambda: (draw(5, 3), {"transpose": True}),
    ],
    "frame": [lambda m=m: (draw(5, m), {"phases": angles()}) for m in (1, 4)],
    "rnn": [
        lambda t=t: (draw(5, 3), draw(6, 2, 5), draw(5), {"phases": angles(), "transpose": t}) for t in (False, True)
    ],
    "delta_rule": [lambda: ({"beta": draw(1, 6, 2, dtype=F64).sigmoid(), "output_final_state": True} | tokens(),)],
    "linear_attention": [lambda: ({"output_final_state": True} | tokens(),)],
    "commit": [
        lambda: (draw(1, 2, 3, 3, dtype=F64), {"accepted": [4]} | {n: t for n, t in tokens().items() if n != "q"})
    ],
    "householder_product": [lambda: (*reflectors(6, 4), {}), lambda: (draw(6, 4), draw(0), {})],
    "ormqr": [
        lambda left=left, t=t, k=k: (
            reflectors(5, 3)[0][:, :k],
            reflectors(5, 3)[1][:k],
            draw(5, 5),
            {"left": left, "transpose": t},
        )
        for left, t, k in itertools.product((False, True), (False, True), (0, 3))
    ],
    "factor": [lambda: (torch.linalg.qr(draw(5, 5)).Q.detach(), {})],
    "nearest": [lambda n=n: (draw(n, 4), {}) for n in (3, 5)],
    "haar": [lambda: ({"n": 5, "dtype": C128},)],
    "renormalize_": [lambda: (draw(5, 3), {})],
    "snap_": [lambda: (draw(4, 4, dtype=F64), {})],
    "last_state": [lambda: (ht.UnitaryRNN(3, 5, dtype=C128), draw(6, 2, 3), {"every": 2})],
}
OF_MODELS = [
    "accelerate",
    "restore",
    "adapt",
    "adapter_state",
    "load_adapter_state",
    "merge_adapters",
    "decompositions",
    "orthogonal",
]
COMPLEX = {
    **{
        f"{name}{sizes}": (lambda make=make, sizes=sizes: make(*sizes), (3, sizes[0]))
        for name, make in (("Unitary", ht.Unitary), ("orthogonal", lambda *s: ht.orthogonal(nn.Linear(*s, dtype=C128))))
        for sizes in ((6, 6), (6, 4), (4, 6), (8, 3))
    },
    "orthogonal Conv2d": (lambda: ht.orthogonal(nn.Conv2d(3, 4, 2, dtype=C128)), (2, 3, 5, 5)),
    "orthogonal stack": (lambda: ht.orthogonal(nn.Conv2d(3, 4, (2, 3), dtype=C128), stack=True), (2, 3, 5, 5)),
    "bidirectional": (lambda: ht.UnitaryRNN(3, 5, 2, bidirectional=True, dropout=0.5), (6, 2, 3)),
    "ModReLU": (lambda: ht.ModReLU(3, dtype=F64), (5, 3)),
}


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors(one)


def are_plain(values):
    for value in tensors(values):
        assert not value.is_conj()
        assert not value.is_neg()
        value.detach().numpy()


def check(function, arguments, options, operands):
    """Results and the gradients of operands, which are computed by autograd and by accumulation."""
    results = function(*arguments, **options)
    are_plain(results)
    losses = [result.abs().sum() for result in tensors(results) if result.requires_grad]
    if losses:
        are_plain(torch.autograd.grad(sum(losses), operands, allow_unused=True, retain_graph=True))
        sum(losses).backward()
        are_plain([t.grad for t in operands if t.is_leaf and t.grad is not None])


def lazily(value):
    """The same numbers, lazily conjugated or, if they are real, lazily negated."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.conj().resolve_conj().conj() if value.is_complex() else torch.complex(value, -value).conj().imag


@pytest.mark.parametrize("convert", [lambda value: value, lazily], ids=["plain", "lazy"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_of_functions_are_plain(name, convert):
    for make in FUNCTIONS[name]:
        torch.manual_seed(0)
        *arguments, options = make()
        arguments, options = [convert(a) for a in arguments], {key: convert(a) for key, a in options.items()}
        if convert is lazily:
            assert name == "haar" or any(t.is_conj() or t.is_neg() for t in tensors([*arguments, *options.values()]))
        operands = list(tensors([*arguments, *options.values()]))
        if not name.endswith("_"):
            for t in operands:
                t.requires_grad_()
        elif convert is lazily:
            continue  # the result is the operand itself
        function = getattr(ht, name)
        of_w = name in ("apply", "matrix", "frame", "rnn")
        check(of_arrays(function) if of_w else function, arguments, options, operands)


def test_every_function_is_tried():
    made = {name for name in ht.__all__ if isinstance(getattr(ht, name), type)}
    assert set(ht.__all__) - made == {*FUNCTIONS, *OF_MODELS}


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("make", "shape"), [*LAYERS.values(), *COMPLEX.values()], ids=[*LAYERS, *COMPLEX])
def test_results_of_layers_are_plain(make, shape, train):
    torch.manual_seed(0)
    layer = make().train(train)
    first = next(layer.parameters(), torch.ones(()))
    x = draw(*shape, dtype=C128 if isinstance(layer, ht.ModReLU) and shape[-1] == 3 else first.dtype)
    check(layer, (x.requires_grad_(),), {}, [x, *(p for p in layer.parameters() if p.requires_grad)])
    with torch.no_grad():
        are_plain(layer(lazily(x)))
    if getattr(layer, "in_features", 0) == getattr(layer, "out_features", 1):
        are_plain(getattr(layer, "logdet", []))
    are_plain(getattr(layer, "weight", []))
    for method in ("matrix", "singular_values"):
        if hasattr(layer, method):
            are_plain(getattr(layer, method)())
    if hasattr(layer, "inverse"):
        are_plain(layer.inverse(layer(x)))
    are_plain(list(layer.state_dict().values()))
