"""``ht.OrthogonalRNN`` and ``ht.UnitaryRNN`` against a plain loop with an explicit W."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import householder.torch as ht
from householder._base.spec import NONLINEARITIES, OF_COMPLEX
from tests.oracles.torch import rnn, stack

F64 = torch.float64
DTYPES = {ht.OrthogonalRNN: F64, ht.UnitaryRNN: torch.complex128}
kinds = pytest.mark.parametrize("kind", DTYPES)
each_nonlinearity = pytest.mark.parametrize(
    ("kind", "nonlinearity"),
    [(ht.OrthogonalRNN, name) for name in NONLINEARITIES] + [(ht.UnitaryRNN, name) for name in OF_COMPLEX],
)


def layer(kind, *sizes, **options):
    torch.manual_seed(0)
    module = kind(*sizes, dtype=DTYPES[kind], **options)
    for parameter in module.parameters():  # biases are zero at first, which hides mistakes
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    return module


@each_nonlinearity
@pytest.mark.parametrize("m", [1, 3, None])  # None: all of them
@pytest.mark.parametrize("steps", [1, 7])
def test_a_layer_is_the_recurrence(kind, nonlinearity, m, steps):
    module = layer(kind, 3, 8, num_reflections=m, nonlinearity=nonlinearity, negative_slope=0.3)
    x = torch.randn(steps, 4, 3, dtype=DTYPES[kind])
    torch.testing.assert_close(module(x), stack(module, x))


@kinds
@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 3},
        {"bidirectional": True},
        {"num_layers": 2, "bidirectional": True, "learn_h0": True},
        {"bias": False},
        {"learn_h0": True},
        {"num_layers": 2, "num_reflections": [1, 5]},
        {"method": "dense"},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [(), (4,)])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("steps", [1, 5])
def test_options_compose(kind, options, batch, given, steps):
    module = layer(kind, 3, 6, **options)
    x = torch.randn(steps, *batch, 3, dtype=F64)
    hx = torch.randn(len(module.cells), *batch, 6, dtype=DTYPES[kind]) if given else None
    torch.testing.assert_close(module(x, hx), stack(module, x, hx))


@kinds
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_packed_sequences_run_each_in_its_length(kind, bidirectional, enforce_sorted, given):
    module = layer(kind, 3, 6, num_layers=2, bidirectional=bidirectional, learn_h0=True)
    lengths = [5, 3, 3, 1] if enforce_sorted else [3, 1, 5, 3]
    sequences = [torch.randn(k, 3, dtype=F64) for k in lengths]
    hx = torch.randn(len(module.cells), 4, 6, dtype=DTYPES[kind]) if given else None
    packed = pack_sequence(sequences, enforce_sorted=enforce_sorted)
    output, h_n = module(packed, hx)
    assert isinstance(output, PackedSequence)
    padded, out_lengths = pad_packed_sequence(output)
    assert out_lengths.tolist() == lengths
    for i, x in enumerate(sequences):
        expected, last = stack(module, x, None if hx is None else hx[:, i])
        torch.testing.assert_close(padded[: len(x), i], expected)
        torch.testing.assert_close(h_n[:, i], last)


def batch_first(t):
    """The same tensor, one sequence after the other."""
    return t.transpose(0, -2).contiguous().transpose(0, -2)


def every_other(t):
    """The same tensor between numbers of another."""
    return torch.stack((t, torch.full_like(t, torch.nan)), -2).flatten(-2)[..., : t.shape[-1]]


def reversed_twice(t):
    """The same tensor in fresh memory."""
    return t.flip(0).flip(0)


@pytest.mark.parametrize("laid", [lambda t: t.mT.contiguous().mT, reversed_twice, batch_first, every_other])
def test_any_layout_of_a_sequence_gives_the_same_result(laid):
    tensors = [torch.randn(shape, dtype=F64) for shape in ((8, 3), (6, 4, 5), (4, 8), (8, 5))]
    g = torch.randn(6, 4, 8, dtype=F64)

    def run(tensors, g):
        u, x, h0, v = tensors = [t.detach().requires_grad_() for t in tensors]
        h, _ = ht.rnn(u, x, h0, input_weight=v)
        return h, *torch.autograd.grad(h, tensors, g)

    for ours, expected in zip(run(map(laid, tensors), laid(g)), run(tensors, g), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("n", [8, 64])
@pytest.mark.parametrize("laid", [reversed_twice, batch_first])
def test_time_may_run_backwards(nonlinearity, n, laid):
    tensors = [torch.randn(shape, dtype=F64) for shape in ((n, 3), (40, 4, 20), (4, n), (n, 20), (n,))]
    found = NONLINEARITIES[nonlinearity]
    bias = torch.randn(found.moduli(n, False), dtype=F64) if found.has_bias else None

    def run(u, x, h0, v, b, reverse):
        options = {"nonlinearity": nonlinearity, "nonlinearity_bias": bias, "reverse": reverse}
        return ht.rnn(u, x, h0, input_weight=v, bias=b, **options)

    there = [t.clone().requires_grad_() for t in tensors]
    back = [t.clone().requires_grad_() for t in tensors]
    back[1] = laid(tensors[1].flip(0)).requires_grad_()
    (h, last), (h_back, last_back) = run(*there, False), run(*back, True)
    assert torch.equal(h, h_back.flip(0))
    assert torch.equal(last, last_back)
    assert torch.equal(last_back, h_back[0])
    g = torch.randn_like(h)
    expected = torch.autograd.grad((h, last), there, (g, g[0]))
    found = list(torch.autograd.grad((h_back, last_back), back, (laid(g.flip(0)), g[0])))
    found[1] = found[1].flip(0)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_expanded_inputs_and_gradients_of_a_sequence():
    u, x = torch.randn(8, 3, dtype=F64, requires_grad=True), torch.randn(8, dtype=F64, requires_grad=True)
    h, _ = ht.rnn(u, x.expand(6, 4, 8))
    expected, _ = rnn(u, x.expand(6, 4, 8))
    torch.testing.assert_close(h, expected)
    ours = torch.autograd.grad(h.sum(), (u, x))  # an expanded gradient
    torch.testing.assert_close(ours, torch.autograd.grad(expected.sum(), (u, x)))


def test_gradients_reach_every_parameter_of_packed_layers():
    module = layer(ht.OrthogonalRNN, 3, 6, num_layers=2, bidirectional=True, learn_h0=True)
    x = torch.randn(5, 2, 3, dtype=F64, requires_grad=True)
    lengths = [5, 2]
    output, h_n = module(pack_padded_sequence(x, lengths))
    loss = pad_packed_sequence(output)[0].sin().sum() + h_n.cos().sum()
    ours = torch.autograd.grad(loss, (x, *module.parameters()))
    singles = [module(x[:k, i]) for i, k in enumerate(lengths)]
    loss = sum(output.sin().sum() + h_n.cos().sum() for output, h_n in singles)
    torch.testing.assert_close(ours, torch.autograd.grad(loss, (x, *module.parameters())))


def test_units_are_dropped_anew_in_each_call_and_seeds_decide_which():
    module, x = layer(ht.OrthogonalRNN, 3, 8, num_layers=2, dropout=0.5), torch.randn(6, 4, 3, dtype=F64)
    assert not torch.equal(module(x)[0], module(x)[0])
    torch.manual_seed(3)
    first = module(x)
    torch.manual_seed(3)
    torch.testing.assert_close(module(x), first, rtol=0, atol=0)


@each_nonlinearity
@pytest.mark.parametrize("batch", [(), (4,)])
def test_a_loop_of_cells_agrees_with_the_layer(kind, nonlinearity, batch):
    module = layer(kind, 3, 8, nonlinearity=nonlinearity, learn_h0=True)
    x = torch.randn(6, *batch, 3, dtype=F64)
    output, h_n = module(x)
    h, states = None, []
    for step in x:
        h = module.cells[0](step, h)
        states.append(h)
    torch.testing.assert_close(torch.stack(states), output)
    torch.testing.assert_close(h, h_n[0])


@kinds
@pytest.mark.parametrize(("n", "m"), [(8, 2), (96, 30)])  # with the factors of W and without
def test_single_steps_give_the_gradients_of_a_sequence(kind, n, m):
    torch.manual_seed(2)
    module = kind(3, n, num_layers=2, num_reflections=m, learn_h0=True, dtype=F64)
    x = torch.randn(6, 4, 3, dtype=F64)
    h_n, outputs = None, []
    for step in x.split(1):
        output, h_n = module(step, h_n)
        outputs.append(output)
    stepped, whole = (
        [states, *torch.autograd.grad(states.abs().square().sin().sum(), list(module.parameters()))]
        for states in (torch.cat(outputs), module(x)[0])
    )
    torch.testing.assert_close(stepped, whole)


@pytest.mark.parametrize(("n", "m"), [(8, 2), (96, 30)])
def test_the_last_state_of_a_single_step_is_a_copy(n, m):
    output, h_n = layer(ht.OrthogonalRNN, 3, n, num_reflections=m)(torch.randn(1, 4, 3, dtype=F64))
    before = h_n.detach().clone()
    output.detach().zero_()
    assert torch.equal(h_n, before)


def test_empty_batches_and_sequences():
    module = layer(ht.OrthogonalRNN, 3, 6, num_layers=2)
    output, h_n = module(torch.randn(5, 0, 3, dtype=F64))
    assert (output.shape, h_n.shape) == ((5, 0, 6), (2, 0, 6))
    hx = torch.randn(2, 4, 6, dtype=F64, requires_grad=True)
    output, h_n = module(torch.randn(0, 4, 3, dtype=F64), hx)
    assert output.shape == (0, 4, 6)
    assert torch.equal(h_n, hx)
    (h_n.sum() + output.sum()).backward()
    assert torch.equal(hx.grad, torch.ones_like(hx))
    assert not module.cells[0].reflections.grad.any()


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 7), (32, 32), (33, 32), (128, 32), (512, 64)])
def test_the_default_number_of_reflections_is_32_or_an_eighth_of_the_units(n, m):
    assert ht.OrthogonalRNN(2, n).cells[0].num_reflections == m
    assert ht.UnitaryRNN(2, n + 1).cells[0].num_reflections == min(n, m) == m


@pytest.mark.parametrize(
    ("constraint", "latent", "seen"),
    [("hard", latent, 1) for latent in (0.3, 1e-300, 5.0)]
    + [("hard", latent, -1) for latent in (-2.0, 0.0, -0.0)]
    + [("soft", latent, latent) for latent in (0.3, 0.0)]
    + [("soft", -2.0, -1), ("soft", 5.0, 1)],
)
def test_u_1_of_a_full_product_is_latent_and_its_gradient_passes_straight_through(constraint, latent, seen):
    cell = layer(ht.OrthogonalRNN, 1, 4, num_reflections=4, constraint=constraint).cells[0]
    cell.reflections.data[-1, -1] = latent
    u = cell.reflections.detach().clone()
    u[-1, -1] = seen
    w, expected = cell.matrix(), ht.matrix(u.requires_grad_())
    assert torch.equal(w, expected)
    w.sin().sum().backward()
    expected.sin().sum().backward()
    torch.testing.assert_close(cell.reflections.grad, u.grad)


@pytest.mark.parametrize("name", [name for name in NONLINEARITIES if name not in OF_COMPLEX])
def test_a_nonlinearity_of_real_numbers_refuses_complex_states(name):
    advice = ": use 'modrelu'" if NONLINEARITIES[name].has_bias else "$"
    with pytest.raises(ValueError, match=f"{name!r} acts on real numbers, but the state is complex{advice}"):
        ht.UnitaryRNN(3, 8, nonlinearity=name)
