"""What the core reads of a tensor by itself, and which tensors it leaves to torch's dispatcher."""

import subprocess
import sys
from textwrap import dedent

import pytest
import torch
from torch import nn

import householder.torch as ht
from householder import _core
from torch_oracle import explicit_matrix, problem


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_ordinary_tensors_are_plain(dtype, shape):
    u, h = torch.randn(5, 2, dtype=dtype), torch.randn(shape, dtype=dtype)
    assert _core.is_plain_application(u, h)
    assert _core.is_plain_application(nn.Parameter(u), h.requires_grad_())
    assert _core.are_plain(u, None, h)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(5, dtype=torch.complex64).conj().imag,
        torch._efficientzerotensor((5,)),
        torch.ones(5).as_subclass(Subclass),
        torch.ones(5, dtype=torch.complex64),
        torch.ones(5, device="meta"),
        torch.ones(5).to_sparse(),
        [1.0] * 5,
    ],
    ids=["negated", "zeros without memory", "subclass", "complex", "meta", "sparse", "list"],
)
def test_others_are_not(tensor):
    u = torch.ones(5, 2).tril()
    assert not _core.are_plain(u, tensor)
    assert not _core.is_plain_application(u, tensor)


@pytest.mark.parametrize(
    ("u", "h"), [((5, 2), (4,)), ((5, 2), ()), ((2, 5), (2,)), ((5, 0), (5,)), ((3, 5, 2), (3, 5))]
)
def test_shapes_that_want_a_look_are_no_plain_application(u, h):
    assert not _core.is_plain_application(torch.ones(u), torch.ones(h))


@pytest.mark.parametrize("kinds", [(torch.float32, torch.float64), (torch.bfloat16,) * 2, (torch.int64,) * 2])
def test_types_that_want_a_look_are_no_plain_application(kinds):
    u, h = (torch.ones(shape, dtype=kind) for shape, kind in zip(((5, 2), (5,)), kinds, strict=True))
    assert not _core.is_plain_application(u, h)
    assert _core.are_plain(u, h)


U, X, H0, V, B = ((6, 2), (4, 3, 5), (3, 6), (6, 5), (6,))
OPTIONS = ("tanh", 0.1, False, False, "wy")


def sequence(u=U, x=X, h0=H0, v=V, b=B, dtype=torch.float32):
    """Inputs of ``rnn`` as the core wants them, each of a shape or as it is given."""
    given = [torch.ones(t, dtype=dtype) if isinstance(t, tuple) else t for t in (u, x, h0, v, b)]
    return [*given, None, None, None]


@pytest.mark.parametrize(
    "inputs",
    [
        sequence(),
        sequence(dtype=torch.float64),
        sequence(h0=None, b=None),
        sequence(x=(4, 3, 6), v=None),
        sequence(x=torch.ones(3, 4, 5).transpose(0, 1)),
        sequence(u=nn.Parameter(torch.ones(U)), x=torch.ones(X, requires_grad=True)),
    ],
)
def test_ordinary_sequences_are_plain(inputs):
    assert _core.plain_rnn_tape_width(inputs, OPTIONS) == 2
    assert _core.plain_rnn_tape_width(inputs, ("tanh", 0.1, False, False, "dense")) == 0


@pytest.mark.parametrize(
    "inputs",
    [
        sequence(x=(4, 3, 6)),
        sequence(v=None),
        sequence(u=(2, 6)),
        sequence(u=(1, 6, 2), x=(1, 4, 3, 5)),
        sequence(x=(4, 5), h0=None),
        sequence(x=(0, 3, 5)),
        sequence(h0=(6,)),
        sequence(x=(4, 1, 5), h0=(6,)),
        sequence(h0=(1, 3, 6)),
        sequence(b=(1, 6)),
        sequence(v=(1, 6, 5)),
        sequence(h0=torch.ones(1, 6).expand(3, 6)),
        sequence(v=torch.ones(5, 6).T),
        sequence(v=(5, 6)),
        sequence(b=torch.ones(6, dtype=torch.float64)),
        sequence(b=[1.0] * 6),
        sequence(x=torch.ones(4, 3, 10)[..., ::2]),
        sequence(dtype=torch.bfloat16),
        sequence(dtype=torch.complex64),
        sequence(dtype=torch.int64),
        sequence(h0=torch.ones(H0, device="meta")),
        [*sequence()[:6], torch.ones(3), None],
        [*sequence()[:6], torch.ones(1, 3), None],
        [*sequence(x=(6, 5))[:7], torch.tensor([3, 2, 1])],
    ],
)
def test_sequences_that_want_a_look_are_not(inputs):
    assert _core.plain_rnn_tape_width(inputs, OPTIONS) is None


def test_what_nonlinearities_ask_of_states_wants_a_look():
    def width(nonlinearity, bias=None, n=6):
        inputs = sequence(u=(n, 2), h0=None, v=(n, 5), b=None)
        return _core.plain_rnn_tape_width([*inputs[:6], bias, None], (nonlinearity, *OPTIONS[1:]))

    assert width("oplu") > 2  # which entries were exchanged
    assert width("modrelu", torch.ones(3)) == width("real_modrelu", torch.ones(6)) == 2
    assert width("real_modrelu", torch.ones(7), n=7) == 2
    assert width("real_modrelu") is width("real_modrelu", torch.ones(3)) is None
    assert width("modrelu") is width("modrelu", torch.ones(6)) is width("oplu", torch.ones(3)) is None
    assert width("oplu", n=7) is width("modrelu", torch.ones(3), n=7) is None


def test_plain_and_general_ways_of_a_sequence_are_the_same(monkeypatch):
    inputs = [torch.randn(shape, requires_grad=True) for shape in (U, X, H0, V, B)]
    u, x, h0, v, b = inputs

    def results():
        h, last = ht.rnn(u, x, h0, input_weight=v, bias=b, nonlinearity="tanh")
        return h, last, *torch.autograd.grad(h.square().sum() + last.sum(), inputs)

    plain = results()
    monkeypatch.setattr(_core, "plain_rnn_tape_width", lambda *_: None)
    assert all(map(torch.equal, plain, results()))


def test_the_core_reads_no_sequence_whose_sizes_do_not_fit():
    h, last, none = torch.empty(4, 3, 6), torch.empty(3, 6), (None,) * 7
    for inputs, error in [
        (sequence(h0=(3, 5)), r"h0: expected shape \[3, 6\]"),
        (sequence(v=(5, 6)), r"input_weight: expected shape \[6, 5\]"),
        (sequence(b=(5,)), r"bias: expected shape \[6\]"),
        (sequence(b=torch.ones(6, dtype=torch.float64)), "bias is torch.float64, expected torch.float32"),
        (sequence(h0=(1, 3, 6)), r"h0: expected shape \[3, 6\]"),
        (sequence(u=(6, 0)), r"u: expected shape \(\.\., n, m\)"),
        (sequence(v=torch.ones(5, 6).T), "input_weight: expected 30 contiguous numbers"),
        (sequence(x=torch.ones(4, 3, 10)[..., ::2]), "x: expected 60 contiguous numbers"),
        (sequence(u=(6,)), r"expected u \(\.\., n, m\) and x"),
        (sequence(x=(4, 5)), r"expected u \(\.\., n, m\) and x"),
        ([*sequence(x=(7, 5))[:7], torch.tensor([3, 2, 1])], r"expected u \(\.\., n, m\) and x"),
        ([*sequence(x=(6, 5), h0=None)[:7], torch.tensor([3, 2, 1])], "h0: expected a state for each packed sequence"),
        ([*sequence(x=(6, 5))[:7], torch.tensor([3.0, 2.0, 1.0])], "batch_sizes is torch.float32"),
        ([None, *sequence()[1:]], "expected u and x"),
    ]:
        with pytest.raises((ValueError, RuntimeError), match=error):
            _core.rnn_forward_tensors(inputs, OPTIONS, h, None, last, False)
        with pytest.raises((ValueError, RuntimeError), match=error):
            _core.rnn_backward_tensors(inputs, OPTIONS, h, None, None, None, none, None)
    room = torch.empty(5)
    for arguments in [(room, None, last), (h, room, last), (h, None, room)]:
        with pytest.raises(ValueError, match="expected shape"):
            _core.rnn_forward_tensors(sequence(), OPTIONS, *arguments, False)
    for i in range(4):
        arguments = [room if i == k else None for k in range(1, 4)]
        with pytest.raises(ValueError, match="expected shape"):
            _core.rnn_backward_tensors(sequence(), OPTIONS, h if i else room, *arguments, none, None)
    for i in range(7):
        gradients = [torch.empty(7) if i == k else None for k in range(7)]
        with pytest.raises(ValueError, match="gradient: expected"):
            _core.rnn_backward_tensors(sequence(), OPTIONS, h, None, None, None, gradients, None)


def test_gradients_are_not_read_at_the_distances_of_another_shape():
    far = torch.zeros(4 * 3 * 7).as_strided((12, 1, 6), (7, 1 << 34, 1))  # as many numbers as (4, 3, 6)
    with pytest.raises(ValueError, match=r"grad_h: expected shape \[4, 3, 6\]"):
        _core.rnn_backward_tensors(sequence(), OPTIONS, torch.ones(4, 3, 6), None, far, None, (None,) * 7, None)
    u, x = torch.ones(U, requires_grad=True), torch.ones(5, 2, 6)
    h, _ = ht.rnn(u, x)
    x.data = x.data.reshape(2, 5, 6)
    with pytest.raises(ValueError, match=r"h: expected shape \[2, 5, 6\]"):
        torch.autograd.grad(h, u, torch.ones_like(h))


@pytest.mark.parametrize("change", [lambda t: torch._neg_view(-t), lambda t: t.mT.contiguous().mT])
def test_saved_states_may_come_back_otherwise(change):
    u, x = torch.randn(U, requires_grad=True), torch.randn(4, 3, 6)

    def gradient():
        h, last = ht.rnn(u, x, nonlinearity="tanh")
        return torch.autograd.grad(h.square().sum() + last.sum(), u)[0]

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: change(t) if t.shape == (4, 3, 6) else t):
        found = gradient()
    torch.testing.assert_close(found, gradient())


def test_views_are_read_where_they_begin():
    u, h = problem(6, 3, 4)
    shifted = torch.cat([torch.zeros(1), h.float().flatten()])[1:].view_as(h)
    torch.testing.assert_close(ht.apply(u.float(), shifted), (h @ explicit_matrix(u).mT).float())


def test_the_core_writes_nothing_where_sizes_do_not_fit():
    u, h = torch.randn(5, 2), torch.randn(3, 5)
    for out, error in [
        (torch.empty(2, 5), "out: expected 15 contiguous numbers"),
        (torch.empty(5, 3).T, r"out: expected 15 contiguous numbers .* with strides \(1, 3\) on cpu"),
        (torch._efficientzerotensor((3, 5)), "out: expected 15 contiguous numbers"),
        (torch.empty(3, 5, dtype=torch.float64), "out is torch.float64, expected torch.float32"),
        (torch.empty(3, 5, device="meta"), "meta"),
        (h.numpy(), "expected a tensor, got <class 'numpy.ndarray'>"),
    ]:
        with pytest.raises((ValueError, RuntimeError, TypeError), match=error):
            _core.forward_tensors(u, h, out, False, "auto", False)
    for u_of, h_of in [((3, 1), (4,)), ((5, 2), (2, 4)), ((0, 0), (0,)), ((5,), (5,)), ((2, 3), (2,))]:
        with pytest.raises(ValueError, match=r"expected u \(\.\., n, m\)"):
            torch.ops.householder.apply(torch.ones(u_of), torch.ones(h_of), False, "auto")
    with pytest.raises(TypeError, match=r"expected u and h of one type, got u torch\.float32"):
        torch.ops.householder.apply(u, h.double(), False, "auto")
    with pytest.raises((ValueError, RuntimeError), match="grad_u: expected 10"):
        _core.backward_tensors(u, h, h, torch.empty(4, 2), None, False, "auto", None)


def test_a_torch_without_the_exchange_of_functions_gives_the_same():
    code = dedent("""
        import torch
        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            del torch.Tensor.__dlpack_c_exchange_api__
        import householder.torch as ht
        from householder import _core
        torch.manual_seed(0)
        for kind in (torch.float32, torch.float64, torch.complex64):
            u, h = (torch.randn(s, dtype=kind).requires_grad_() for s in ((2, 7, 3), (2, 5, 7)))
            c = ht.apply(u.tril(), h[:, 0])
            ht.apply(u[0].tril(), h).real.sum().backward()
            assert u.grad.isfinite().all() and h.grad.norm() > 0
            x, h_0 = torch.ones(4, 2, 7, dtype=kind).transpose(0, 1), h[0, :4].detach()
            for options in ({"h0": h_0}, {"h0": h_0[:2], "batch_sizes": torch.tensor([2, 1, 1])}):
                states, last = ht.rnn(u[0].tril(), x if len(options) == 1 else x[0], nonlinearity="tanh", **options)
                last.abs().sum().backward()
                print(states.abs().sum().item())
            print(c.abs().sum().item(), u.grad.abs().sum().item(), h.grad.abs().sum().item())
        ones = torch.ones(5)
        assert _core.are_plain(ones) and _core.is_plain_application(torch.ones(5, 2), ones)
        for other in (torch._efficientzerotensor((5,)), torch._neg_view(ones), ones.to_sparse(), ones.to("meta")):
            assert not _core.are_plain(other)
    """)
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with_exchange = subprocess.run(
        [sys.executable, "-c", code.replace("del torch", "torch")], capture_output=True, text=True, check=True
    )
    assert without.stdout == with_exchange.stdout != ""
