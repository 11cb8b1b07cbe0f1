"""The mLSTM of xLSTM and lightning attention by our functions are their recurrences, token by token."""

import copy
import sys
from unittest import mock

import pytest
import torch

import householder.torch as ht
from benches.pages import operations
from householder.torch.acceleration import mlstm
from householder.torch.acceleration.lightning import _alternating as alternating
from tests.tester import oracle

pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
LENGTHS = [1, 2, 15, 16, 17, 64, 70]
"""Single tokens, and sequences around the ends of chunks of 16 tokens."""


@pytest.fixture
def xlstm():
    module = pytest.importorskip("transformers.models.xlstm.modeling_xlstm")
    if not hasattr(module, "xLSTMBackend"):
        pytest.skip("xLSTM is computed by a package of its own")
    return module


@pytest.fixture
def minimax():
    return pytest.importorskip("transformers.models.minimax.modeling_minimax")


def backend(xlstm, chunk_size=16, **options):
    return xlstm.xLSTMBackend(xlstm.xLSTMConfig(chunk_size=chunk_size, **options))


def accelerated(module):
    twin = copy.deepcopy(module)
    assert ht.accelerate(twin)
    return twin


def operands(tokens, dtype=torch.float64, batch=2):
    """Queries, keys, values, gates as an mLSTM gets them, and a state."""
    generator = torch.Generator().manual_seed(0)
    lead = batch, 3
    shapes = (*lead, tokens, 5), (*lead, tokens, 5), (*lead, tokens, 7), (*lead, tokens), (*lead, tokens)
    states = (*lead, 5, 7), (*lead, 5), (*lead, 1)
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in (*shapes, *states)]
    numbers[4] += 3
    return [t.to(dtype) for t in numbers[:5]], [t.to(dtype) for t in numbers[5:]]


def error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_the_mlstm_is_token_by_token(xlstm, tokens, has_state):
    given, state = operands(tokens)
    leaves = [t.requires_grad_() for t in (given + state if has_state else given)]
    layer = accelerated(backend(xlstm))
    found, expected = layer(*leaves)[0], oracle.mlstm(*leaves, epsilon=1e-6)[0]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    for ours, theirs in zip(*(torch.autograd.grad(h.sin().sum(), leaves) for h in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("cut", [1, 16, 20, 39])
def test_chunks_of_a_sequence_are_the_sequence(xlstm, cut):
    given, state = operands(40, torch.float32)
    layer = accelerated(backend(xlstm))
    h, last = layer(*given, *state)
    first, between = layer(*(t[:, :, :cut] for t in given), *state)
    second, end = layer(*(t[:, :, cut:] for t in given), *between)
    torch.testing.assert_close(torch.cat([first, second], 2), h, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(end, last, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_the_mlstm_loses_no_more_than_that_of_transformers(xlstm, tokens, dtype):
    """States have the shapes and dtypes of its own."""
    given, state = operands(tokens, dtype)
    before = backend(xlstm)
    (h, states), (their_h, their_states) = (layer(*given, *state) for layer in (accelerated(before), before))
    exact_h, exact_states = oracle.mlstm(*(t.double() for t in given + state), epsilon=1e-6)
    for ours, theirs, exact in zip((h, *states), (their_h, *their_states), (exact_h, *exact_states), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert error(ours, exact) < max(2 * error(theirs, exact), 4 * torch.finfo(torch.float32).eps)


def test_long_sums_of_gates_lose_nothing(xlstm):
    """Weights are exponentials of differences of sums, which grow with the tokens: here to -60,000."""
    given, state = operands(4096, torch.float32, batch=1)
    given[4] = given[4] - 18
    found = accelerated(backend(xlstm))(*given, *state)[0]
    expected = oracle.mlstm(*(t.double() for t in given + state), epsilon=1e-6)[0]
    assert error(found, expected) < 2e-5


@pytest.mark.parametrize("gate", [-30.0, -200.0, -2000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tokens", LENGTHS)
def test_gradients_of_closed_gates_are_finite(xlstm, tokens, dtype, gate):
    """The least normaliser is the exponential of -m, of which a gradient is multiplied by an output of about zero."""
    given, state = operands(tokens, dtype)
    given[3:] = [torch.full_like(t, gate) for t in given[3:]]
    leaves = [t.requires_grad_() for t in given + state]
    h, (*_, m) = accelerated(backend(xlstm))(*leaves)
    expected = oracle.mlstm(*(t.double() for t in leaves), epsilon=1e-6)[0]
    torch.testing.assert_close(h.double(), expected, rtol=1e-4, atol=1e-6)
    assert m.max() < gate / 2
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(h.sum(), leaves))


@torch.no_grad()
def test_steps_of_the_mlstm_leave_the_state_before_as_it_was(xlstm):
    given, state = operands(1, torch.float32)
    before = [t.clone() for t in state]
    _, after = accelerated(backend(xlstm))(*given, *state)
    for kept, copy_of, new in zip(state, before, after, strict=True):
        assert torch.equal(kept, copy_of)
        assert not torch.equal(new, kept)


def outcome(layer, *operands, **options):
    try:
        found = layer(*operands, **options)
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        return str(error)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("tokens", [0, 16, 20])
@pytest.mark.parametrize("returns_states", [True, False, None])
@pytest.mark.parametrize("mode", ["train", "train_with_padding", "inference", "neither"])
def test_modes_of_the_mlstm_do_what_they_did(xlstm, mode, returns_states, tokens):
    given, state = operands(tokens, torch.float32)
    before = backend(xlstm, **({"mode": mode} if mode != "neither" else {}))
    layers, options = (before, accelerated(before)), {"return_last_states": returns_states, "mode": mode}
    expected, found = (outcome(layer, *given, *state, **options) for layer in layers)
    if isinstance(expected, str):
        assert found == expected
    else:
        assert len(found) == len(expected)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("returns_states", [False, True])
@pytest.mark.parametrize("tokens", [16, 48])
def test_gradients_of_training_are_those_of_transformers(xlstm, tokens, returns_states, has_state):
    """Of the outputs, and of the last state if that is returned."""
    given, state = operands(tokens)
    leaves = [t.requires_grad_() for t in (given + state if has_state else given)]
    before = backend(xlstm, mode="train")
    gradients = []
    for layer in (accelerated(before), before):
        found = layer(*leaves, return_last_states=returns_states)
        results = (found[0], *found[1]) if returns_states else (found,)
        gradients.append(torch.autograd.grad(sum(t.sin().sum() for t in results), leaves))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("tokens", [1, 16, 20])
def test_states_of_another_batch_do_what_they_did(xlstm, tokens):
    given, state = operands(tokens, torch.float32)
    before = backend(xlstm)
    expected, found = (outcome(layer, *given, *(t[:1] for t in state)) for layer in (before, accelerated(before)))
    assert type(found) is type(expected)


def test_a_missing_part_of_a_state_is_zero(xlstm):
    given, (c, n, _) = operands(20, torch.float32)
    before = backend(xlstm)
    for state in ((c, None, None), (None, n, None), (None, None, None)):
        (h, last), (their_h, their_last) = (layer(*given, *state) for layer in (accelerated(before), before))
        torch.testing.assert_close((h, *last), (their_h, *their_last), rtol=1e-3, atol=1e-4)


def test_the_gates_of_the_mlstm_never_let_a_state_grow():
    igate, fgate = 10 * torch.randn(2, 1, 3, 500, generator=torch.Generator().manual_seed(0))
    g, written, _ = mlstm._gates(igate, fgate, None)
    assert g.max() <= 0
    assert written.max() <= 1


def lightning(minimax, dtype=torch.float32, index=0):
    config = minimax.MiniMaxConfig(
        hidden_size=12, num_attention_heads=3, head_dim=4, num_hidden_layers=2, block_size=16
    )
    torch.manual_seed(0)
    return minimax.MiniMaxLightningAttention(config, index).to(dtype)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_lightning_attention_is_token_by_token(minimax, tokens, index):
    layer = lightning(minimax, index=index)
    x = torch.randn(2, tokens, 12, generator=torch.Generator().manual_seed(1))
    wide = {name: p.detach().double() for name, p in layer.named_parameters()}
    found = accelerated(layer)(x, None, None)[0].detach()
    expected = oracle.lightning_attention(wide, layer.slope_rate.double().flatten(), x.double(), epsilon=1e-6)
    assert error(found, expected) < 1e-6


@pytest.mark.parametrize("rate", [0.0, 4e-8, 4e-6, 1e-4, 0.0039, 0.5, 200.0])
def test_a_constant_decay_does_not_drift(rate):
    """A constant decay rounded to float32 moves outputs by 3e-5 after 4,096 tokens."""
    g = alternating(torch.tensor([rate], dtype=torch.float64), 4096).float()
    assert g.max() <= 0
    sums = g.exp().double().log().cumsum(0)[:, 0]
    exact = -rate * torch.arange(1, 4097, dtype=torch.float64)
    tolerance = 2 * torch.finfo(torch.float32).eps
    assert ((sums.exp() - exact.exp()).abs() <= tolerance + 4096 * 1e-9).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_lightning_attention_loses_no_more_than_that_of_transformers(minimax, tokens, dtype):
    layer = lightning(minimax, dtype)
    x = torch.randn(2, tokens, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide = {name: p.detach().double() for name, p in layer.named_parameters()}
    expected = oracle.lightning_attention(wide, layer.slope_rate.double().flatten(), x.double(), epsilon=1e-6)
    results = [each(x, None, None) for each in (accelerated(layer), layer)]
    assert [[t.dtype for t in result] for result in results] == [[dtype, dtype]] * 2
    ours, theirs = (error(result[0].detach(), expected) for result in results)
    assert ours < max(2 * theirs, 8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cut", [1, 16, 20])
def test_a_cache_holds_the_state_of_lightning_attention_as_before(minimax, cut, dtype):
    layer = lightning(minimax, dtype)
    x = torch.randn(2, 21, 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    caches, outputs = (minimax.MiniMaxCache(), minimax.MiniMaxCache()), []
    for each, cache in zip((layer, accelerated(layer)), caches, strict=True):
        outputs.append(torch.cat([each(part, None, None, cache)[0] for part in (x[:, :cut], x[:, cut:])], 1))
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(outputs[1], outputs[0], **tolerance)
    torch.testing.assert_close(caches[1].get_linear_cache(0), caches[0].get_linear_cache(0), **tolerance)


def test_autocast_gives_the_dtypes_it_gave(minimax, xlstm):
    x = torch.randn(2, 20, 12)
    torch.manual_seed(0)
    layer = lightning(minimax)
    config = xlstm.xLSTMConfig(hidden_size=128, num_heads=2, chunk_size=16)
    for before, operand in ((layer, (x, None, None)), (xlstm.xLSTMLayer(config), (torch.randn(2, 20, 128),))):
        with torch.autocast("cpu", torch.bfloat16):
            (ours, state), (theirs, their_state) = (each(*operand) for each in (accelerated(before), before))
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.1)
        pairs = zip(state, their_state, strict=True) if isinstance(state, tuple) else [(state, their_state)]
        assert all(a.dtype == b.dtype for a, b in pairs)


@pytest.fixture
def _no_kernels_of_models(monkeypatch):
    for package in ("fla", "kernels"):
        monkeypatch.delitem(sys.modules, package, raising=False)


def counted(layers, call, *shapes):
    """Operations of a call of each layer on a device without kernels, without and with gradients."""
    operands = [torch.empty(shape, device="meta") for shape in shapes]
    calls = [lambda *given, layer=layer: call(layer, *given) for layer in layers]
    return [(operations.forward(each, operands).count, operations.training(each, operands)[0].count) for each in calls]


def operations_of_the_mlstm(xlstm, tokens, chunk_size, mode):
    before = backend(xlstm, chunk_size)
    shapes = [(1, 8, tokens, 256)] * 2 + [(1, 8, tokens, 512)] + [(1, 8, tokens)] * 2
    return counted((before, accelerated(before)), lambda layer, *given: layer(*given, mode=mode)[:1], *shapes)


def operations_of_lightning_attention(minimax, tokens, *, has_state):
    config = minimax.MiniMaxConfig(
        hidden_size=256, num_attention_heads=64, head_dim=128, num_hidden_layers=2, block_size=256
    )
    before = minimax.MiniMaxLightningAttention(config, 0).to("meta")
    state = torch.empty(1, 64, 128, 128, device="meta")
    cache = mock.Mock(get_linear_cache=lambda _: state) if has_state else None
    return counted((before, accelerated(before)), lambda layer, x: layer(x, None, None, cache), (1, tokens, 256))


@pytest.mark.usefixtures("_no_kernels_of_models")
@pytest.mark.parametrize(
    ("chunk_size", "tokens", "mode"),
    [
        *((64, tokens, "inference") for tokens in (5, 63, 68, 131, 194, 257, 320, 2048)),
        *((16, tokens, "inference") for tokens in (20, 65, 80)),
        (64, 320, "train"),
        (16, 80, "train"),
    ],
)
def test_the_mlstm_takes_fewer_operations_on_every_device(xlstm, chunk_size, tokens, mode):
    theirs, ours = operations_of_the_mlstm(xlstm, tokens, chunk_size, mode)
    assert ours[0] < theirs[0]
    assert ours[1] < theirs[1]


@pytest.mark.usefixtures("_no_kernels_of_models")
@pytest.mark.parametrize(("chunk_size", "tokens"), [(64, 1), (64, 64), (64, 65), (64, 256), (16, 64), (128, 2048)])
def test_few_chunks_of_the_mlstm_are_left_to_transformers_on_other_devices(xlstm, chunk_size, tokens):
    theirs, ours = operations_of_the_mlstm(xlstm, tokens, chunk_size, "inference")
    assert ours == theirs


@pytest.mark.usefixtures("_no_kernels_of_models")
@pytest.mark.parametrize("tokens", [20, 33, 65, 512])
def test_lightning_attention_after_a_state_takes_fewer_operations_on_every_device(minimax, tokens):
    theirs, ours = operations_of_lightning_attention(minimax, tokens, has_state=True)
    assert ours[0] < theirs[0]
    assert ours[1] < theirs[1]


@pytest.mark.usefixtures("_no_kernels_of_models")
@pytest.mark.parametrize(("tokens", "has_state"), [(1, False), (2048, False), (8192, False), (1, True), (19, True)])
def test_blocks_of_lightning_attention_are_left_to_transformers_on_other_devices(minimax, tokens, has_state):
    theirs, ours = operations_of_lightning_attention(minimax, tokens, has_state=has_state)
    assert ours == theirs
