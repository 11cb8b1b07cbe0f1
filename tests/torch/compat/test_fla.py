"""flash-linear-attention: its naive functions as oracles, our functions among its backends, its kernels on CUDA.

They run where it is installed (``pip install fla-core``), but for the choice of kernels, which a stand-in shows.
"""

import sys
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import householder.torch as ht
from householder._base import notices
from householder.torch import fla
from householder.torch.functions import fla_kernels
from tests.torch.ops import test_delta

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # that Triton does not support this platform
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
GATES = pytest.mark.parametrize("gate", [None, "head", "channel"])


def installed(name):
    return pytest.importorskip(name, reason="flash-linear-attention is not installed", exc_type=ImportError)


operands = partial(test_delta.operands, tokens=70, heads=2, group=1, widths=(8, 12), dtype=torch.float32)


def ours(q, k, v, beta, g, state, **options):
    return ht.delta_rule(q, k, v, beta=beta, g=g, initial_state=state, output_final_state=True, **options)


def agree(function, expected, tensors):
    """Values and gradients of the tensors that are there."""
    results = []
    for call in (function, expected):
        leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
        found = call(*leaves)
        given = [t for t in leaves if t is not None]
        results.append([*found, *torch.autograd.grad(sum(x.square().sum() for x in found), given)])
    torch.testing.assert_close(*results, atol=1e-3, rtol=1e-3)


def test_its_delta_rule_agrees():
    naive = installed("fla.ops.delta_rule.naive")

    def theirs(q, k, v, beta, _, state):
        by_heads = [x.transpose(1, 2) for x in (q, k, v, beta)]
        o, last = naive.delta_rule_recurrence(*by_heads, initial_state=state)
        return o.transpose(1, 2), last

    agree(ours, theirs, operands(None))


def test_its_gated_delta_rule_agrees():
    naive = installed("fla.ops.gated_delta_rule.naive")

    def theirs(q, k, v, beta, g, state):
        return naive.naive_recurrent_gated_delta_rule(q, k, v, beta, g, initial_state=state, output_final_state=True)

    agree(ours, theirs, operands("head"))


@pytest.mark.parametrize("group", [1, 2])
def test_its_kimi_delta_attention_agrees(group):
    naive = installed("fla.ops.kda.naive")

    def theirs(q, k, v, beta, g, state):
        return naive.naive_recurrent_kda(q, k, v, g, beta, initial_state=state, output_final_state=True)

    agree(ours, theirs, operands("channel", group=group))


@pytest.mark.parametrize("gate", [None, "head"])
def test_its_gated_delta_product_agrees(gate):
    naive = installed("fla.ops.gated_delta_product.naive")

    def theirs(q, k, v, beta, g, state):
        options = {"initial_state": state, "output_final_state": True, "num_householder": 2}
        return naive.naive_recurrent_gated_delta_product(q, k, v, g, beta, 0.5, **options)

    agree(lambda *tensors: ours(*tensors, num_householder=2, scale=0.5), theirs, operands(gate, r=2))


@pytest.mark.parametrize(("module", "name", "gate"), [("gated_delta_rule", "chunk_gated_delta_rule", "head"),
                                                      ("kda", "chunk_kda", "channel")])  # fmt: skip
def test_registered_functions_compute_on_the_cpu(module, name, gate, caplog):
    caplog.set_level("INFO", logger="householder")
    installed("fla.backends")
    assert name in fla.register()
    assert name in caplog.text
    function = getattr(installed(f"fla.ops.{module}"), name)

    def theirs(q, k, v, beta, g, state):
        return function(q, k, v, g, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)

    agree(lambda *tensors: ours(*tensors, use_qk_l2norm_in_kernel=True), theirs, operands(gate))
    q, k, v, beta, g, _ = operands(gate)
    with pytest.raises(ValueError, match="use_beta_sigmoid_in_kernel is not computed on the CPU"):
        function(q, k, v, g, beta, use_beta_sigmoid_in_kernel=True)


def test_registered_decoding_computes_on_the_cpu():
    installed("fla.backends")
    fla.register()
    function = installed("fla.ops.kda").fused_recurrent_kda
    q, k, v, beta, g, state = operands("channel", tokens=1)
    found = function(q, k, v, g, beta, initial_state=state, output_final_state=True)
    torch.testing.assert_close(found, ours(q, k, v, beta, g, state))


def test_registering_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla.backends", None)
    with pytest.raises(ImportError, match=r"install fla-core 0\.6 or later"):
        fla.register()


@pytest.fixture
def kernels(monkeypatch):
    """Stand-ins for the kernels, which note what they were called with."""
    calls = []

    def stand_in(name):
        def kernel(q, k, v, g, beta, **options):
            calls.append((name, q.dtype, k.dtype, v.dtype, None if g is None else tuple(g.shape), beta.dtype, options))
            state = q.new_empty(len(q), v.shape[2], q.shape[3], v.shape[3], dtype=torch.float32)
            return q.new_empty(*q.shape[:2], *v.shape[2:]), state

        return kernel

    names = {"gated_delta_rule": "chunk_gated_delta_rule", "kda": "chunk_kda"}
    for module, name in (names | {"gated_delta_product": "chunk_gated_delta_product"}).items():
        monkeypatch.setitem(sys.modules, f"fla.ops.{module}", SimpleNamespace(**{name: stand_in(name)}))
    monkeypatch.setattr(fla_kernels, "_installed", lambda: True)
    return calls


def on_cuda(tensors, dtype, **options):
    """Call with tensors of these shapes that are on CUDA but have no memory."""
    with FakeTensorMode():
        return ours(
            *(None if t is None else torch.empty(t.shape, dtype=dtype, device="cuda") for t in tensors), **options
        )


@pytest.mark.parametrize(("gate", "r", "name"), [
    (None, 1, "chunk_gated_delta_rule"), ("head", 1, "chunk_gated_delta_rule"), ("channel", 1, "chunk_kda"),
    (None, 2, "chunk_gated_delta_product"), ("head", 2, "chunk_gated_delta_product"),
])  # fmt: skip
def test_half_types_on_cuda_go_to_its_kernels(gate, r, name, kernels):
    o, last = on_cuda(operands(gate, r=r), torch.bfloat16, num_householder=r)
    assert (o.dtype, o.device.type, last.dtype) == (torch.bfloat16, "cuda", torch.float32)
    (call,) = kernels
    assert call[0] == name
    assert call[-1]["initial_state"].dtype is torch.float32
    assert call[-1].get("num_householder", 1) == r


def test_what_it_has_no_kernels_for_goes_to_torch_operations(kernels):
    for tensors, dtype, r in (
        (operands("head"), torch.float32, 1),
        (operands("head", tokens=0), torch.bfloat16, 1),
        (operands("channel", r=2), torch.bfloat16, 2),
        (operands(None, r=2, group=2), torch.bfloat16, 2),
    ):
        o, _ = on_cuda(tensors, dtype, num_householder=r)
        assert (o.dtype, o.device.type) == (dtype, "cuda")
    assert not kernels


@GATES
def test_without_it_cuda_goes_to_torch_operations(gate, monkeypatch):
    monkeypatch.setattr(fla_kernels, "_installed", lambda: False)
    o, _ = on_cuda(operands(gate), torch.bfloat16)
    assert (o.dtype, o.device.type) == (torch.bfloat16, "cuda")


def test_that_cuda_has_no_kernels_is_said_once_unless_its_kernels_compute(kernels, monkeypatch):
    monkeypatch.setattr(notices, "_said", {})
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        on_cuda(operands("head"), torch.bfloat16)
        assert (len(kernels), given) == (1, [])
        for _ in range(2):
            on_cuda(operands("head"), torch.float32)
    assert len(given) == 1
    reason = "delta_rule has kernels for the CPU only; flash-linear-attention has some for half types: pip install fla"
    assert f"on cuda:0 ({reason}" in str(given[0].message)
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "require")
    with pytest.raises(RuntimeError, match="'require', but on cuda:0 delta_rule has kernels for the CPU only"):
        on_cuda(operands("head"), torch.float32)
    on_cuda(operands("head"), torch.bfloat16)
