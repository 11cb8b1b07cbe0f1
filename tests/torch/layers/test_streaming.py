"""Steps and sequences without gradients: what a cell has prepared serves only the parameters that it has now."""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import parametrizations, prune  # noqa: E402

import householder.torch as ht  # noqa: E402
from householder.torch.layers import prepared  # noqa: E402
from householder.torch.layers.recurrent_cell import Sequences  # noqa: E402

KINDS = {
    "real": (ht.OrthogonalRNNCell, {}),
    "full": (ht.OrthogonalRNNCell, {"num_reflections": 8}),
    "soft": (ht.OrthogonalRNNCell, {"num_reflections": 8, "constraint": "soft"}),
    "pairs": (ht.OrthogonalRNNCell, {"nonlinearity": "modrelu"}),
    "complex": (ht.UnitaryRNNCell, {"nonlinearity": "modrelu"}),
}


@pytest.fixture(params=KINDS)
def cell(request):
    torch.manual_seed(0)
    make, options = KINDS[request.param]
    cell = make(3, 8, dtype=torch.float64, **{"num_reflections": 4, **options})
    with torch.no_grad():
        for p in cell.parameters():
            torch.nn.init.normal_(torch.view_as_real(p) if p.is_complex() else p)
    return cell


def inputs(cell, batch=2):
    dtype = cell.reflections.dtype
    return torch.randn(batch, 3, dtype=torch.float64), torch.randn(batch, 8, dtype=dtype)


def expected(cell, x, h):
    """The same step with gradients, which prepares nothing."""
    with torch.enable_grad():
        return cell(x, h).detach()


def assert_current(cell, x, h):
    """Steps of the present parameters, prepared and not."""
    for _ in range(3):
        torch.testing.assert_close(cell(x, h), expected(cell, x, h), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_steps_are_prepared_once_and_equal(cell):
    x, h = inputs(cell)
    assert_current(cell, x, h)
    options, recurrence = prepared._known[cell]
    for _ in range(3):
        h = cell(x, h)
    assert prepared._known[cell] == (options, recurrence)


def by_optimizer(cell):
    for p in cell.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(cell.parameters(), lr=0.1).step()


def by_numpy(cell):
    cell.reflections.detach().numpy()[0] += 1


def by_another_parameter(cell):
    cell.weight_ih = torch.nn.Parameter(cell.weight_ih.detach() + 1)


def by_new_memory(cell):
    cell.bias.data = cell.bias.data + 1


CHANGES = {
    "in place": lambda cell: cell.reflections.add_(0.1),
    "in place through .data, which torch does not count": lambda cell: cell.weight_ih.data.mul_(2),
    "one number": lambda cell: cell.reflections.data[-1, -1].sub_(0.5),
    "by an optimizer": by_optimizer,
    "through NumPy": by_numpy,
    "by a state dict": lambda cell: cell.load_state_dict({k: v + 1 for k, v in cell.state_dict().items()}),
    "another parameter": by_another_parameter,
    "new memory": by_new_memory,
    "drawn anew": lambda cell: cell.reset_parameters(),
    "precision": lambda cell: cell.float(),
    "an option": lambda cell: setattr(cell, "negative_slope", 0.7),
    "the constraint": lambda cell: setattr(cell, "constraint", "soft" if cell.constraint == "hard" else "hard"),
    "the method": lambda cell: setattr(cell, "method", "dense"),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_every_change_of_a_parameter_counts(cell, change):
    x, h = inputs(cell)
    assert_current(cell, x, h)
    CHANGES[change](cell)
    kind = cell.reflections.dtype
    x, h = x.to(kind.to_real()), h.to(kind)
    for _ in range(3):
        tolerance = 1e-12 if kind.to_real() is torch.float64 else 1e-5
        torch.testing.assert_close(cell(x, h), expected(cell, x, h), rtol=tolerance, atol=tolerance)


def sequences(cell, steps=5, batch=2):
    return torch.randn(steps, batch, 3, dtype=torch.float64), inputs(cell, batch)[1]


def run(cell, x, h, *, reverse=False):
    return cell(x, h, over=Sequences(None, reverse))


def assert_current_run(cell, x, h, *, reverse=False):
    """Sequences of the present parameters, prepared and not, have the same bits."""
    with torch.enable_grad():
        expected = [result.detach() for result in run(cell, x, h, reverse=reverse)]
    first = run(cell, x, h, reverse=reverse)
    torch.testing.assert_close(first, tuple(expected), rtol=1e-12, atol=1e-12)
    for _ in range(3):
        torch.testing.assert_close(run(cell, x, h, reverse=reverse), first, rtol=0, atol=0)


@torch.no_grad()
def test_sequences_are_prepared_once_and_have_the_same_bits(cell):
    x, h = sequences(cell)
    assert_current_run(cell, x, h)
    known = prepared._known[cell]
    assert_current_run(cell, x, None)
    assert_current_run(cell, x.transpose(0, 1).contiguous().transpose(0, 1), h)
    assert prepared._known[cell] == known
    assert_current(cell, x[0], h)
    assert_current_run(cell, x, h, reverse=True)
    for steps, batch in [(2, 1), (30, 1), (3, 20), (70, 2), (4, 0)]:
        assert_current_run(cell, *sequences(cell, steps, batch))


@pytest.mark.parametrize("method", ["wy", "dense"])
@torch.no_grad()
def test_sequences_of_either_method(cell, method):
    cell.method = method
    assert_current_run(cell, *sequences(cell))


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_every_change_of_a_parameter_counts_for_sequences(cell, change):
    x, h = sequences(cell)
    assert_current_run(cell, x, h)
    CHANGES[change](cell)
    if change != "precision":
        assert_current_run(cell, x, h)


@torch.no_grad()
def test_a_layer_prepares_each_of_its_cells():
    layer = ht.OrthogonalRNN(3, 8, 2, bidirectional=True, batch_first=True, num_reflections=8, dtype=torch.float64)
    x, h = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(4, 2, 8, dtype=torch.float64)
    with torch.enable_grad():
        expected = layer(x, h)
    for _ in range(3):
        torch.testing.assert_close(layer(x, h), expected)
        torch.testing.assert_close(layer(x[0], h[:, 0]), (expected[0][0], expected[1][:, 0]))
    assert all(cell in prepared._known for cell in layer.cells)


@torch.no_grad()
def test_mistakes_in_sequences_are_told_as_before(cell):
    x, h = sequences(cell)
    assert_current_run(cell, x, h)
    for bad in ((x[:, :1], h), (x, h[:, :7]), (x[..., :2], h)):
        with pytest.raises(ValueError, match="has shape"):
            run(cell, *bad)


@torch.no_grad()
def test_parametrized_and_pruned_parameters():
    cell = ht.OrthogonalRNNCell(3, 8, num_reflections=4, dtype=torch.float64)
    parametrizations.weight_norm(cell, "weight_ih")
    prune.l1_unstructured(cell, "bias", amount=0.5)
    x, h = inputs(cell)
    assert_current(cell, x, h)
    cell.parametrizations.weight_ih.original0.mul_(3)
    assert_current(cell, x, h)


@torch.no_grad()
def test_vectors_without_a_batch_and_many_sequences(cell):
    for batch in (1, 15, 16, 17, 40):
        assert_current(cell, *inputs(cell, batch))
    x, h = inputs(cell)
    for _ in range(3):
        torch.testing.assert_close(cell(x[0], h[0]), expected(cell, x, h)[0])


@torch.no_grad()
def test_one_step_of_a_layer(cell):
    layer = (ht.UnitaryRNN if cell.is_complex else ht.OrthogonalRNN)(
        3, 8, 2, bidirectional=True, num_reflections=4, dtype=torch.float64
    )
    x, h = torch.randn(1, 2, 3, dtype=torch.float64), torch.randn(4, 2, 8, dtype=cell.reflections.dtype)
    with torch.enable_grad():
        expected = layer(x, h)
    for _ in range(3):
        output, last = layer(x, h)
        torch.testing.assert_close((output, last), expected)
        assert not {output.data_ptr()} & {last.data_ptr()}


@torch.no_grad()
def test_mistakes_are_told_as_before(cell):
    x, h = inputs(cell)
    assert_current(cell, x, h)
    for bad, error in (((x[:1], h), ValueError), ((x, h[:, :7]), ValueError), ((x[:, :2], h), ValueError)):
        with pytest.raises(error, match="has shape"):
            cell(*bad)


@torch.no_grad()
def test_copies_and_pickles_prepare_their_own(cell):
    x, h = inputs(cell)
    assert_current(cell, x, h)
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert other not in prepared._known
        assert_current(other, x, h)


def test_threads_share_a_cell(cell):
    x, h = inputs(cell)
    want = expected(cell, x, h)

    def steps(_):
        with torch.no_grad():
            return [cell(x, h) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for states in pool.map(steps, range(8)):
            for state in states:
                torch.testing.assert_close(state, want, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_what_was_prepared_ends_with_its_cell():
    cell = ht.OrthogonalRNNCell(3, 8, num_reflections=4, dtype=torch.float64)
    assert_current(cell, *inputs(cell))
    recurrence = weakref.ref(prepared._known[cell][1])
    del cell
    gc.collect()
    assert recurrence() is None


@torch.no_grad()
def test_an_initial_state_that_is_learned():
    cell = ht.OrthogonalRNNCell(3, 8, num_reflections=4, learn_h0=True, dtype=torch.float64)
    x = torch.randn(2, 3, dtype=torch.float64)
    for _ in range(3):
        with torch.enable_grad():
            expected = cell(x).detach()
        torch.testing.assert_close(cell(x), expected)


def test_inference_mode(cell):
    x, h = inputs(cell)
    with torch.inference_mode():
        found = [cell(x, h) for _ in range(3)]
    for state in found:
        torch.testing.assert_close(state.clone(), expected(cell, x, h))


def test_cells_that_need_no_gradients_are_prepared_though_gradients_are_enabled(cell):
    x, h = inputs(cell)
    cell.requires_grad_(False)
    assert_current(cell, x, h)
    assert cell in prepared._known
    assert cell(x.requires_grad_(), h).requires_grad
    cell.requires_grad_(True)
    assert cell(x.detach(), h).requires_grad
