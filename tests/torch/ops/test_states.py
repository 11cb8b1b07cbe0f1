"""States after chosen tokens, and commits of drafts, in torch: derivatives, transforms, types, states in place."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend, EagerAndRecordGraphs

import householder.torch as ht
from tests.cases.torch import results
from tests.torch.ops.test_delta import ERASES, GATES, call, operands

POSITIONS = [0, 2, 5]


def with_states(*tensors, **options):
    return call(*tensors, states_at=POSITIONS, **options)


def prefixes(*tensors, **options):
    """The same by calls of their own."""
    *arrays, state = tensors
    r = options.get("num_householder", 1)
    states = []
    for t in POSITIONS:
        lengths = t, t * r, t * r, t * r, t
        first = [None if a is None else a[:, :length] for a, length in zip(arrays, lengths, strict=True)]
        states.append(call(*first, state, **options)[1])
    return *call(*tensors, **options), torch.stack(states, 1)


@GATES
@ERASES
@pytest.mark.parametrize("normalize", [False, True])
def test_states_and_their_gradients_are_those_of_prefixes(gate, erases, normalize):
    tensors = operands(gate, erases=erases)
    options = {"use_qk_l2norm_in_kernel": normalize, **({"num_householder": 1} if erases else {})}
    found, expected = (results(lambda *t, f=f: f(*t, **options), tensors) for f in (with_states, prefixes))
    torch.testing.assert_close(found, expected)


@ERASES
@pytest.mark.parametrize("packed", [False, True])
def test_derivatives_through_states(erases, packed):
    options = {"cu_seqlens": torch.tensor([0, 2, 2, 5])} if packed else {}
    tensors = operands("head", erases=erases, batch=1, count=3 if packed else None, widths=(2, 2), group=1)
    given = [t for t in tensors if t is not None]

    def function(*leaves):
        rest = iter(leaves)
        return with_states(*(None if t is None else next(rest) for t in tensors), **options)

    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


@ERASES
def test_transforms_reach_states(erases):
    tensors = [None if t is None else t.detach() for t in operands("channel", erases=erases)]
    expected = with_states(*tensors)[2]
    q, k, v, *others = tensors

    def states(v):
        return with_states(q, k, v, *others)[2]

    mapped = torch.func.vmap(states)(torch.stack([v, -v]))
    torch.testing.assert_close(mapped, torch.stack([expected, states(-v)]))
    tangent = torch.func.jvp(states, (v,), (v,))[1]
    torch.testing.assert_close(tangent, (states(v + 1e-6 * v) - states(v - 1e-6 * v)) / 2e-6, rtol=1e-6, atol=1e-8)
    compiled = torch.compile(states, fullgraph=True, backend="aot_eager")(v)
    torch.testing.assert_close(compiled, expected)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_states_of_half_types_are_float32(half):
    tensors = [None if t is None else t.detach().to(half) for t in operands("head", tokens=40)]
    o, last, states = call(*tensors, states_at=[16, 40])
    assert (o.dtype, states.dtype) == (half, torch.float32)
    torch.testing.assert_close(states[:, 1], last)


def test_states_of_strided_operands():
    tensors = [t.detach() for t in operands("head", tokens=5)]
    apart = [torch.stack([t, t], -1)[..., 0] for t in tensors]
    torch.testing.assert_close(with_states(*apart), with_states(*tensors))


@ERASES
def test_final_states_of_no_tokens_are_copies_without_kernels_too(erases):
    """Forward mode computes as devices without kernels do."""
    *tensors, state = (t if t is None else t.detach() for t in operands("head", erases=erases))
    none = [None if t is None else t[:, :0] for t in tensors]
    last, _ = torch.func.jvp(lambda s: call(*none, s)[1], (state,), (state,))
    assert torch.equal(last, state)
    assert last.data_ptr() != state.data_ptr()


def test_outputs_alone_are_those_beside_states():
    q, k, v, beta, g, state = operands("head", tokens=40)
    with torch.no_grad():
        alone, last = ht.delta_rule(q, k, v, beta=beta, g=g, initial_state=state)
    assert last is None
    torch.testing.assert_close(alone, call(q, k, v, beta, g, state)[0].detach(), rtol=0, atol=0)


def draft(**options):
    """Positional and named arguments of a commit."""
    _, k, v, beta, g, state = (t if t is None else t.detach() for t in operands(**options))
    return (state, k, v), {"beta": beta, "g": g}


def expected_states(arguments, named, accepted, r=1):
    state, k, v = arguments
    rows = []
    for i, n in enumerate(accepted):
        beta, g = (None if t is None else t[i : i + 1, : n * each] for t, each in ((named["beta"], r), (named["g"], 1)))
        first = k[i : i + 1, : n * r], v[i : i + 1, : n * r], beta, g, state[i : i + 1]
        options = {"num_householder": r} if beta is not None else {}
        rows.append(call(k[i : i + 1, :n], *first, **options)[1])
    return torch.cat(rows)


@GATES
@ERASES
@pytest.mark.parametrize("accepted", [[2, 4], [3, 3], [0, 5], [0, 0]], ids=str)
def test_accepted_tokens_are_committed(gate, erases, accepted):
    arguments, named = draft(gate=gate, erases=erases)
    before = arguments[0].clone()
    expected = expected_states(arguments, named, accepted)
    for given in (accepted, torch.tensor(accepted)):
        torch.testing.assert_close(ht.commit(*arguments, accepted=given, **named), expected)
    assert torch.equal(arguments[0], before)


@pytest.mark.parametrize("accepted", [[2, 4], [3, 3]], ids=str)
def test_a_commit_has_gradients(accepted):
    (state, k, v), named = draft(r=2)
    leaves = [t.requires_grad_() for t in (state, k, v, *named.values())]

    def function(state, k, v, beta, g):
        return ht.commit(state, k, v, beta=beta, g=g, accepted=accepted, num_householder=2)

    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("accepted", [[2, 4], [5, 5]], ids=str)
def test_a_commit_in_place_writes_to_the_cache(accepted):
    (state, k, v), named = draft(dtype=torch.float32)
    expected = expected_states((state, k, v), named, accepted)
    caches = {
        "float32": state.clone(),
        "another order": state.mT.contiguous().mT,
        "a part": torch.stack([state, state], 1)[:, 0],
    }
    for name, cache in caches.items():
        version, address = cache._version, cache.data_ptr()
        result = ht.commit(cache, k, v, accepted=accepted, **named, in_place=True)
        assert result is cache, name
        assert (cache.data_ptr(), cache._version > version) == (address, True), name
        torch.testing.assert_close(cache, expected, msg=name)
    half = state.bfloat16()
    assert ht.commit(half, k, v, accepted=accepted, **named, in_place=True) is half
    torch.testing.assert_close(half, expected.bfloat16(), rtol=2e-2, atol=2e-2)


def test_a_commit_in_place_is_recorded_where_gradients_are():
    (state, k, v), named = draft()
    leaf = state.requires_grad_()
    cache = leaf.clone()
    ht.commit(cache, k, v, accepted=[2, 4], **named, in_place=True).sum().backward()
    expected = torch.autograd.grad(ht.commit(leaf, k, v, accepted=[2, 4], **named).sum(), leaf)[0]
    torch.testing.assert_close(leaf.grad, expected)
    with pytest.raises(RuntimeError, match="leaf"):
        ht.commit(leaf, k, v, accepted=[2, 4], **named, in_place=True)


def test_a_commit_in_place_is_a_flag():
    arguments, named = draft()
    with pytest.raises(TypeError, match="in_place is 1, expected True or False"):
        ht.commit(*arguments, accepted=[1, 1], **named, in_place=1)


@pytest.mark.parametrize("mask", [torch.tensor([False, True]), torch.tensor([[1], [2]])], ids=str)
def test_tensors_of_other_kinds_are_no_numbers_of_tokens(mask):
    arguments, named = draft()
    with pytest.raises(TypeError, match=r"accepted is .*expected an integer"):
        ht.commit(*arguments, accepted=mask, **named)
    _, k, v = arguments
    with pytest.raises(TypeError, match=r"states_at is .*expected an integer"):
        ht.delta_rule(k, k, v, **named, states_at=mask)


def test_commits_on_other_devices_go_through_torch_operations():
    arguments, named = draft()
    arguments, named = [t.to("meta") for t in arguments], {name: t.to("meta") for name, t in named.items()}
    assert ht.commit(*arguments, accepted=[5, 5], **named).device.type == "meta"


def operators_of_graphs(function, *tensors):
    """How often each graph of a compiled function, which has the same results and gradients, calls the recurrence."""
    torch.compiler.reset()
    recorder, given = EagerAndRecordGraphs(), [t for t in tensors if t is not None and t.requires_grad]
    values = [of(*tensors) for of in (torch.compile(function, backend=recorder), function)]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad([t.sum() for t in each], given) for each in values))
    return [sum("delta_rule" in str(node.target) for node in graph.graph.nodes) for graph in recorder.graphs]


def test_compiled_calls_with_states_take_any_number_of_tokens_and_sequences():
    torch.compiler.reset()
    counter = CompileCounterWithBackend("eager")

    def states(k, beta):
        return ht.delta_rule(k, k, k, beta=beta, states_at=[3], use_qk_l2norm_in_kernel=True)

    compiled = torch.compile(states, fullgraph=True, dynamic=True, backend=counter)
    for batch, tokens in ((2, 6), (5, 9), (7, 40)):
        operands = torch.randn(batch, tokens, 3, 4, dtype=torch.float64), torch.rand(batch, tokens, 3).double()
        torch.testing.assert_close(compiled(*operands), states(*operands))
    assert counter.frame_count == 1


OF_GRAPH_BREAKS = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own


@OF_GRAPH_BREAKS
@ERASES
def test_numbers_of_packed_tokens_break_a_graph_once(erases):
    """All segments are one graph, after what comes before the numbers are read."""
    tensors = operands("head", erases=erases, batch=1, count=3)
    ends = torch.tensor([0, 2, 2, 5])
    counts = operators_of_graphs(lambda *t: with_states(*t, cu_seqlens=ends), *tensors)
    assert [count for count in counts if count] == [len(POSITIONS)]


@OF_GRAPH_BREAKS
def test_numbers_of_accepted_tokens_break_a_graph_only_if_they_are_in_a_tensor():
    (state, k, v), named = draft()
    leaves = [t.requires_grad_() for t in (state, k, v)]
    for accepted in ([1, 4], torch.tensor([1, 4])):
        counts = operators_of_graphs(lambda *t, n=accepted: (ht.commit(*t, accepted=n, **named) * 2,), *leaves)
        assert counts == ([1] if isinstance(accepted, list) else [1, 0])


@pytest.mark.parametrize("cu_seqlens", [None, [0, 20, 50]])
def test_states_are_where_the_operands_are_whatever_the_default_device_is(cu_seqlens):
    q, k, v = torch.randn(3, 1, 50, 2, 4).unbind()
    ends = None if cu_seqlens is None else torch.tensor(cu_seqlens)
    options = {"beta": torch.rand(1, 50, 2), "cu_seqlens": ends, "states_at": [16, 30], "output_final_state": True}
    expected = ht.delta_rule(q, k, v, **options)
    with torch.device("meta"):
        results = ht.delta_rule(q, k, v, **options)
    for result, one in zip(results, expected, strict=True):
        assert torch.equal(result, one)
