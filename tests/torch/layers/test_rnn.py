"""``ht.OrthogonalRNN`` against a plain loop with an explicit W, and against the manners of ``torch.nn.RNN``."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import householder.torch as ht
from householder._spec import NONLINEARITIES, OF_COMPLEX
from householder.torch._recurrent import Sequences
from tests.oracles.torch import phi, rnn, stack

F64 = torch.float64


def layer(*sizes, **options):
    torch.manual_seed(0)
    module = ht.OrthogonalRNN(*sizes, dtype=F64, **options)
    for parameter in module.parameters():  # biases are zero at first, which hides mistakes
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("steps", [1, 7])
def test_a_layer_is_the_recurrence(nonlinearity, m, steps):
    module = layer(3, 8, num_reflections=m, nonlinearity=nonlinearity, negative_slope=0.3)
    x = torch.randn(steps, 4, 3, dtype=F64)
    torch.testing.assert_close(module(x), stack(module, x))


@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 3},
        {"bidirectional": True},
        {"num_layers": 2, "bidirectional": True, "learn_h0": True},
        {"bias": False},
        {"learn_h0": True},
        {"num_layers": 2, "num_reflections": [1, 6]},
        {"method": "dense"},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [(), (4,)])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("steps", [1, 5])
def test_options_compose(options, batch, given, steps):
    module = layer(3, 6, **options)
    x = torch.randn(steps, *batch, 3, dtype=F64)
    hx = torch.randn(len(module.cells), *batch, 6, dtype=F64) if given else None
    output, h_n = module(x, hx)
    expected, last = stack(module, x, hx)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(h_n, last)


def test_sizes_may_be_integers_of_numpy():
    sizes = {"input_size": 3, "hidden_size": 6, "num_layers": 2, "num_reflections": 4}
    module = ht.OrthogonalRNN(**{name: np.int64(size) for name, size in sizes.items()})
    assert [cell.num_reflections for cell in module.cells] == [4, 4]
    assert module(torch.ones(5, 3))[0].shape == (5, 6)


def test_batch_first():
    module = layer(3, 6, num_layers=2, batch_first=True)
    x = torch.randn(4, 5, 3, dtype=F64)
    output, h_n = module(x)
    expected, last = stack(module, x.transpose(0, 1))
    torch.testing.assert_close(output, expected.transpose(0, 1))
    torch.testing.assert_close(h_n, last)
    unbatched, _ = module(x[0])
    torch.testing.assert_close(unbatched, output[0])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("enforce_sorted", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_packed_sequences_run_each_in_its_length(bidirectional, enforce_sorted, given):
    module = layer(3, 6, num_layers=2, bidirectional=bidirectional, learn_h0=True)
    lengths = [5, 3, 3, 1] if enforce_sorted else [3, 1, 5, 3]
    sequences = [torch.randn(k, 3, dtype=F64) for k in lengths]
    hx = torch.randn(len(module.cells), 4, 6, dtype=F64) if given else None
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
    module = layer(3, 6, num_layers=2, bidirectional=True, learn_h0=True)
    x = torch.randn(5, 2, 3, dtype=F64, requires_grad=True)
    lengths = [5, 2]
    output, h_n = module(pack_padded_sequence(x, lengths))
    loss = pad_packed_sequence(output)[0].sin().sum() + h_n.cos().sum()
    ours = torch.autograd.grad(loss, (x, *module.parameters()))
    singles = [module(x[:k, i]) for i, k in enumerate(lengths)]
    loss = sum(output.sin().sum() + h_n.cos().sum() for output, h_n in singles)
    torch.testing.assert_close(ours, torch.autograd.grad(loss, (x, *module.parameters())))


def test_dropout_acts_between_layers_in_training():
    module = layer(3, 8, num_layers=2, dropout=0.5)
    x = torch.randn(6, 4, 3, dtype=F64)
    assert not torch.equal(module(x)[0], module(x)[0])
    torch.manual_seed(3)
    first = module(x)
    torch.manual_seed(3)
    torch.testing.assert_close(module(x), first, rtol=0, atol=0)
    module.eval()
    torch.testing.assert_close(module(x), stack(module, x))
    module.train()
    module.dropout = 1.0
    inner = module.cells[1](torch.zeros(6, 4, 8, dtype=F64), None, over=Sequences(None))
    torch.testing.assert_close(module(x)[0], inner[0])


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("batch", [(), (4,)])
def test_a_loop_of_cells_agrees_with_the_layer(nonlinearity, batch):
    module = layer(3, 8, num_reflections=8, nonlinearity=nonlinearity, learn_h0=True)
    x = torch.randn(6, *batch, 3, dtype=F64)
    output, h_n = module(x)
    h, states = None, []
    for step in x:
        h = module.cells[0](step, h)
        states.append(h)
    torch.testing.assert_close(torch.stack(states), output)
    torch.testing.assert_close(h, h_n[0])


@pytest.mark.parametrize("kind", [ht.OrthogonalRNN, ht.UnitaryRNN])
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
    output, h_n = layer(3, n, num_reflections=m)(torch.randn(1, 4, 3, dtype=F64))
    before = h_n.detach().clone()
    output.detach().zero_()
    assert torch.equal(h_n, before)


def test_empty_batches_and_sequences():
    module = layer(3, 6, num_layers=2)
    output, h_n = module(torch.randn(5, 0, 3, dtype=F64))
    assert (output.shape, h_n.shape) == ((5, 0, 6), (2, 0, 6))
    hx = torch.randn(2, 4, 6, dtype=F64, requires_grad=True)
    output, h_n = module(torch.randn(0, 4, 3, dtype=F64), hx)
    assert output.shape == (0, 4, 6)
    assert torch.equal(h_n, hx)
    (h_n.sum() + output.sum()).backward()
    assert torch.equal(hx.grad, torch.ones_like(hx))
    assert not module.cells[0].reflections.grad.any()


class TestInitialisation:
    def test_as_in_the_paper(self):
        module = ht.OrthogonalRNN(10, 64, learn_h0=True)
        cell = module.cells[0]
        assert cell.num_reflections == 32
        u = cell.reflections.detach()
        torch.testing.assert_close(u.norm(dim=0), torch.ones(32))
        assert torch.equal(u, u.tril())
        assert cell.weight_ih.abs().max() <= (6 / 74) ** 0.5
        assert cell.weight_ih.abs().max() > 0.9 * (6 / 74) ** 0.5
        assert not cell.bias.any()
        assert 0.5 * (3 / 128) ** 0.5 < cell.h0.abs().max() <= (3 / 128) ** 0.5

    @pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 7), (32, 32), (33, 32), (128, 32), (512, 64)])
    def test_the_default_number_of_reflections_is_32_or_an_eighth_of_the_units(self, n, m):
        assert ht.OrthogonalRNN(2, n).cells[0].num_reflections == m
        assert ht.UnitaryRNN(2, n + 1).cells[0].num_reflections == min(n, m) == m

    def test_a_full_product_starts_with_a_sign(self):
        signs = {ht.OrthogonalRNNCell(1, 3, num_reflections=3).reflections[-1, -1].item() for _ in range(40)}
        assert signs == {-1.0, 1.0}

    def test_reset_draws_anew_and_seeds_repeat(self):
        torch.manual_seed(5)
        module = ht.OrthogonalRNN(2, 8, num_layers=2)
        first = [p.detach().clone() for p in module.parameters()]
        module.reset_parameters()
        assert not torch.equal(first[0], module.cells[0].reflections)
        torch.manual_seed(5)
        again = ht.OrthogonalRNN(2, 8, num_layers=2)
        assert all(torch.equal(a, b) for a, b in zip(first, again.parameters(), strict=True))


class TestTheLastNumber:
    """``u_1`` of a full product: latent, snapped or clamped, its gradient straight through."""

    @staticmethod
    def cell(latent, constraint):
        cell = layer(1, 4, num_reflections=4, constraint=constraint).cells[0]
        cell.reflections.data[-1, -1] = latent
        return cell

    @pytest.mark.parametrize(("latent", "seen"), [(0.3, 1), (-2.0, -1), (0.0, -1), (-0.0, -1), (1e-300, 1), (5.0, 1)])
    def test_hard(self, latent, seen):
        u = self.cell(latent, "hard").reflections.detach().clone()
        u[-1, -1] = seen
        assert torch.equal(self.cell(latent, "hard").matrix(), ht.matrix(u))

    @pytest.mark.parametrize(("latent", "seen"), [(0.3, 0.3), (-2.0, -1), (0.0, 0.0), (5.0, 1)])
    def test_soft(self, latent, seen):
        u = self.cell(latent, "soft").reflections.detach().clone()
        u[-1, -1] = seen
        assert torch.equal(self.cell(latent, "soft").matrix(), ht.matrix(u))

    @pytest.mark.parametrize("constraint", ["hard", "soft"])
    @pytest.mark.parametrize("latent", [0.3, -2.0])
    def test_the_gradient_passes_straight_through(self, constraint, latent):
        cell = self.cell(latent, constraint)
        cell.matrix().sin().sum().backward()
        u = cell.reflections.detach().clone()
        u[-1, -1] = (1 if latent > 0 else -1) if constraint == "hard" else max(latent, -1)
        u.requires_grad_()
        ht.matrix(u).sin().sum().backward()
        torch.testing.assert_close(cell.reflections.grad, u.grad)

    @pytest.mark.parametrize("m", [3, 4])
    def test_weight_decay_is_harmless(self, m):
        cell = layer(1, 4, num_reflections=m).cells[0]
        before = cell.matrix().detach()
        optimizer = torch.optim.SGD([cell.reflections], lr=0.5, weight_decay=0.9)
        for _ in range(100):
            cell.reflections.grad = torch.zeros_like(cell.reflections)
            optimizer.step()
        assert cell.reflections.abs().max() < 1e-20
        torch.testing.assert_close(cell.matrix(), before)

    def test_training_keeps_w_orthogonal(self):
        torch.manual_seed(0)
        module = ht.OrthogonalRNN(2, 12, num_reflections=12)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.1)
        x = torch.randn(10, 3, 2)
        for _ in range(20):
            optimizer.zero_grad()
            module(x)[1].square().mean().backward()
            optimizer.step()
        w = module.cells[0].matrix()
        torch.testing.assert_close(w.T @ w, torch.eye(12), atol=1e-5, rtol=0)
        u = module.cells[0].reflections
        assert torch.equal(u, u.tril())


BIASED = [phi for phi in NONLINEARITIES.values() if phi.has_bias]


@pytest.mark.parametrize("nonlinearity", BIASED, ids=lambda phi: phi.name)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}], ids=str)
def test_a_layer_learns_a_bias_for_each_modulus(nonlinearity, options):
    torch.manual_seed(0)
    n, name = 8 if nonlinearity.is_paired else 7, nonlinearity.name
    layer = ht.OrthogonalRNN(3, n, nonlinearity=name, num_reflections=4, dtype=torch.float64, **options)
    for cell in layer.cells:
        assert cell.nonlinearity_bias.shape == (nonlinearity.moduli(n, False),)
        torch.nn.init.uniform_(cell.nonlinearity_bias, -0.3, 0.1)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    output, h_n = layer(x)
    h, cell = torch.zeros(2, n, dtype=torch.float64), layer.cells[0]
    a = lambda x_t: x_t @ cell.weight_ih.mT + cell.bias  # noqa: E731
    for x_t in x:
        h = phi(a(x_t) + h @ cell.matrix().mT, name, bias=cell.nonlinearity_bias)
    torch.testing.assert_close(h_n[0], h)
    torch.testing.assert_close(cell(x[0]), phi(a(x[0]), name, bias=cell.nonlinearity_bias))
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [5, 5])
    torch.testing.assert_close(layer(packed)[1], h_n)
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("nonlinearity", BIASED, ids=lambda phi: phi.name)
def test_a_bias_is_needed_and_fits(nonlinearity):
    u, x, name, moduli = torch.randn(4, 2), torch.randn(3, 4), nonlinearity.name, nonlinearity.moduli(4, False)
    with pytest.raises(ValueError, match=f"nonlinearity_bias is missing with nonlinearity '{name}'"):
        ht.rnn(u, x, nonlinearity=name)
    with pytest.raises(ValueError, match=rf"nonlinearity_bias has shape \(5,\), expected \({moduli},\)"):
        ht.rnn(u, x, nonlinearity=name, nonlinearity_bias=torch.ones(5))


@pytest.mark.parametrize("name", [name for name in NONLINEARITIES if name not in OF_COMPLEX])
def test_a_nonlinearity_of_real_numbers_refuses_complex_states(name):
    advice = ": use 'modrelu'" if NONLINEARITIES[name].has_bias else "$"
    with pytest.raises(ValueError, match=f"{name!r} acts on real numbers, but the state is complex{advice}"):
        ht.UnitaryRNN(3, 8, nonlinearity=name)
