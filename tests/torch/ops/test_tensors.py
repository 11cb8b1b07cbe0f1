"""What the core reads of arrays and tensors by itself, and which tensors it leaves to torch's dispatcher."""

import numpy as np
import pytest
import torch
from torch import nn

import householder.torch as ht
from householder import _core
from householder.torch._base.dtypes import CORE_NAME
from tests.oracles.torch import explicit_matrix, problem


class Subclass(torch.Tensor):
    pass


def forward(u, h, out=None):
    return _core.forward(u, h, torch.empty_like(h) if out is None else out, None, False, "auto")


@pytest.mark.parametrize("dtype", CORE_NAME)
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_ordinary_tensors_and_arrays_are_read_alike(dtype, shape):
    u, h = torch.randn(5, 2, dtype=dtype).tril(), torch.randn(shape, dtype=dtype)
    c, array = torch.empty_like(h), np.empty_like(h.numpy())
    assert forward(nn.Parameter(u), h, c) is None
    assert forward(u.numpy(), h.numpy(), array) is None
    assert np.array_equal(c.numpy(), array)


FOREIGN = {
    "negated": torch.ones(5, dtype=torch.complex64).conj().imag,
    "conjugated": torch.ones(5, dtype=torch.complex64).conj(),
    "without memory": torch._efficientzerotensor((5,)),
    "subclass": torch.ones(5).as_subclass(Subclass),
    "meta": torch.ones(5, device="meta"),
    "sparse": torch.ones(5).to_sparse(),
    "every other number": torch.ones(10)[::2],
    "unaligned": torch.frombuffer(bytearray(24), dtype=torch.float32, count=5, offset=1),
}


@pytest.mark.parametrize("tensor", FOREIGN.values(), ids=FOREIGN)
def test_other_tensors_are_for_the_dispatcher(tensor):
    u = torch.ones(5, 2, dtype=tensor.dtype).tril()
    assert forward(u, tensor, torch.empty(5, dtype=tensor.dtype)) is NotImplemented


@pytest.mark.parametrize("name", [name for name in FOREIGN if name not in ("meta", "sparse", "unaligned")])
def test_the_dispatcher_gives_the_same(name):
    h = FOREIGN[name]
    u = torch.randn(5, 2, dtype=h.dtype).tril()
    copy = torch.view_as_complex(torch.view_as_real(h.resolve_conj()).clone()) if h.is_complex() else h * 1
    torch.testing.assert_close(torch.Tensor(ht.apply(u, h)), ht.apply(u, torch.Tensor(copy)))


@pytest.mark.parametrize("convert", [torch.Tensor.to_sparse, torch.Tensor.to_mkldnn])
@pytest.mark.parametrize("call", [lambda u, h: ht.apply(u, h), lambda u, _: ht.matrix(u), lambda u, h: ht.rnn(u, h)])
def test_sparse_tensors_are_refused(convert, call):
    with pytest.raises(TypeError, match=r"u has layout torch\.\w+, expected torch\.strided: call to_dense"):
        call(convert(torch.ones(5, 2)), torch.ones(3, 5))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("call", [lambda x: ht.rnn(torch.ones(5, 2), x), ht.OrthogonalRNN(5, 6), ht.Orthogonal(5)])
def test_nested_tensors_are_refused(layout, call):
    x = torch.nested.nested_tensor([torch.ones(3, 5), torch.ones(2, 5)], layout=layout)
    with pytest.raises(TypeError, match=r"is a nested tensor, expected torch\.strided: use torch.*pack_sequence"):
        call(x)


U, X, H0, V, B = ((6, 2), (4, 3, 5), (3, 6), (6, 5), (6,))
OPTIONS = ("tanh", 0.1, False, False, "trapezoidal", "wy")


def sequence(u=U, x=X, h0=H0, v=V, b=B, dtype=torch.float32):
    """Inputs of ``rnn`` as the core wants them, each of a shape or as it is given."""
    given = [torch.ones(t, dtype=dtype) if isinstance(t, tuple) else t for t in (u, x, h0, v, b)]
    return [*given, None, None, None, None]


@pytest.mark.parametrize(
    "inputs",
    [
        sequence(),
        sequence(dtype=torch.float64),
        sequence(dtype=torch.complex64),
        sequence(h0=None, b=None),
        sequence(x=(4, 3, 6), v=None),
        sequence(x=torch.ones(3, 4, 5).transpose(0, 1)),
        sequence(u=nn.Parameter(torch.ones(U)), x=torch.ones(X, requires_grad=True)),
    ],
)
def test_ordinary_sequences_are_read(inputs):
    h = torch.empty(4, 3, 6, dtype=inputs[1].dtype)
    assert _core.rnn_forward(inputs, OPTIONS, h, None, False) is None
    assert h.isfinite().all()


@pytest.mark.parametrize(
    "inputs",
    [
        sequence(h0=torch.ones(1, 6).expand(3, 6)),
        sequence(v=torch.ones(5, 6).T),
        sequence(x=torch.ones(4, 3, 10)[..., ::2]),
        sequence(h0=torch.ones(H0, device="meta")),
        sequence(b=torch.ones(6).as_subclass(Subclass)),
    ],
)
def test_other_sequences_are_for_the_dispatcher(inputs):
    h = torch.empty(4, 3, 6)
    assert _core.rnn_forward(inputs, OPTIONS, h, None, False) is NotImplemented


def test_the_core_reads_no_sequence_whose_sizes_do_not_fit():
    h, last, none = torch.empty(4, 3, 6), torch.empty(3, 6), (None,) * 8
    for inputs, error in [
        (sequence(h0=(3, 5)), r"h0: expected shape \[3, 6\]"),
        (sequence(v=(5, 6)), r"input_weight: expected shape \[6, 5\]"),
        (sequence(b=(5,)), r"bias: expected shape \[6\]"),
        (sequence(b=torch.ones(6, dtype=torch.float64)), "bias is torch.float64, expected torch.float32"),
        (sequence(h0=(1, 3, 6)), r"h0: expected shape \[3, 6\]"),
        (sequence(u=(6, 0)), r"expected u \(\.\., n, m\)"),
        (sequence(u=(6,)), r"expected u \(\.\., n, m\)"),
        (sequence(x=(4, 5)), r"expected u \(\.\., n, m\) .* and x"),
        ([*sequence(x=(7, 5))[:8], torch.tensor([3, 2, 1])], r"expected u \(\.\., n, m\) .* and x"),
        ([*sequence(x=(6, 5))[:8], torch.tensor([3.0, 2.0, 1.0])], "batch_sizes: expected int64"),
        ([None, *sequence()[1:]], "expected u and x"),
        (sequence(b=[1.0] * 6), "expected a NumPy array or a tensor"),
    ]:
        with pytest.raises((TypeError, ValueError, RuntimeError), match=error):
            _core.rnn_forward(inputs, OPTIONS, h, last, False)
        with pytest.raises((TypeError, ValueError, RuntimeError), match=error):
            _core.rnn_backward(inputs, OPTIONS, h, None, None, none, None)
    small = torch.empty(5)
    for arguments in [(small, last), (h, small)]:
        with pytest.raises(ValueError, match="expected"):
            _core.rnn_forward(sequence(), OPTIONS, *arguments, False)
    for i in range(3):
        arguments = [small if i == k else None for k in range(1, 3)]
        with pytest.raises(ValueError, match="expected"):
            _core.rnn_backward(sequence(), OPTIONS, small if i == 0 else h, *arguments, none, None)
    for i in range(7):
        gradients = [torch.empty(7) if i == k else None for k in range(8)]
        with pytest.raises((TypeError, ValueError), match=r"grad_.*: expected"):
            _core.rnn_backward(sequence(), OPTIONS, h, None, None, gradients, None)


def test_gradients_are_not_read_at_the_distances_of_another_shape():
    far = torch.zeros(4 * 3 * 7).as_strided((12, 1, 6), (7, 1 << 34, 1))  # as many numbers as (4, 3, 6)
    with pytest.raises(ValueError, match=r"grad_h: expected shape \[4, 3, 6\]"):
        _core.rnn_backward(sequence(), OPTIONS, torch.ones(4, 3, 6), far, None, (None,) * 8, None)
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
        (torch.empty(2, 5), "out: expected 15 contiguous, aligned numbers"),
        (torch.empty(3, 5, dtype=torch.float64), "out is torch.float64, expected torch.float32"),
        (np.broadcast_to(np.float32(0), (3, 5)), "out: expected 15 contiguous"),
        (np.zeros((3, 5), ">f4"), "out: expected a native float32 array"),
        (np.zeros(61, np.uint8)[1:].view(np.float32).reshape(3, 5), "out: expected 15 contiguous, aligned"),
        (np.frombuffer(bytes(60), np.float32).reshape(3, 5), "out: the array is read-only"),
    ]:
        with pytest.raises((ValueError, RuntimeError, TypeError), match=error):
            forward(u, h, out)
    for u_of, h_of in [((3, 1), (4,)), ((5, 2), (2, 4)), ((0, 0), (0,)), ((5,), (5,)), ((2, 3), (2,))]:
        with pytest.raises(ValueError, match=r"expected u \(\.\., n, m\)"):
            torch.ops.householder.apply(torch.ones(u_of), torch.ones(h_of), None, False, False, "auto", "trapezoidal")
    with pytest.raises(TypeError, match=r"expected u and h of one type, got u torch\.float32"):
        torch.ops.householder.apply(u, h.double(), None, False, False, "auto", "trapezoidal")
    with pytest.raises((ValueError, RuntimeError), match="grad_u: expected 10"):
        _core.backward(u, h, h, (torch.empty(4, 2), None, None, None), None, False, "auto", None)


def test_a_wrong_call_is_an_exception(run_script):
    """Whatever a caller hands to the core, addresses among it: it reads headers, and believes nothing else."""
    code = """
        import random
        import numpy as np, torch
        import householder.torch
        from householder import _core
        rng = random.Random(0)
        shapes = [(), (0,), (5,), (5, 2), (3, 5), (4, 3, 5), (2, 5, 2), (2, 3, 4, 5), (6, 6), (1, 1), (0, 5, 2)]
        dtypes = [torch.float32] * 4 + [torch.float64, torch.complex64, torch.int64]
        values = [None, True, 0, -1, 2, 1 << 40, 0.5, "auto", "wy", "tanh", "oplu", "float32", object()]
        def thing(depth=0):
            kind = rng.randrange(9 if depth < 2 else 6)
            shape = rng.choice(shapes)
            if kind <= 2:
                tensor = torch.ones(shape, dtype=rng.choice(dtypes))
                return tensor.mT if tensor.dim() > 1 and rng.random() < 0.2 else tensor
            if kind <= 4:
                return np.ones(shape, rng.choice(["f4", "f4", "f8", ">f4", "c8", "i8", "O", "U3"]))
            if kind == 5:
                return rng.choice(values)
            return [tuple, list][kind % 2](thing(depth + 1) for _ in range(rng.choice([2, 3, 5, 6, 6, 7, 8])))
        names = sorted(set(dir(_core)) - {"set_num_threads", "share_tensor_types", "Saved"})
        functions = [getattr(_core, name) for name in names if callable(getattr(_core, name))]
        outcomes = {}
        for _ in range(20000):
            function = rng.choice(functions)
            count = function.__text_signature__.count(",") + 1
            try:
                function(*[thing() for _ in range(count)])
                outcome = "result"
            except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
                outcome = type(error).__name__
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        print(outcomes)
    """
    run_script(code)


def test_a_torch_without_the_exchange_of_functions_is_refused(run_script):
    code = """
        import torch
        del torch.Tensor.__dlpack_c_exchange_api__
        try:
            import householder.torch
        except ImportError as error:
            print(error)
    """
    assert "householder.torch needs torch 2.10 or later" in run_script(code)
