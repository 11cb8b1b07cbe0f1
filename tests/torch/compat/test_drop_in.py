"""``ht.OrthogonalRNN`` in the place of ``torch.nn.RNN``: what torch's own tests ask of it, asked of both."""

import operator

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import householder.torch as ht

KINDS = [nn.RNN, ht.OrthogonalRNN]
both = pytest.mark.parametrize("kind", KINDS, ids=["torch", "ours"])


def twins(**options):
    """``nn.RNN`` and ours with the same weights, biases and initial states."""
    torch.manual_seed(0)
    theirs = nn.RNN(3, 8, nonlinearity="relu", dtype=torch.float64, **options)
    ours = ht.OrthogonalRNN(3, 8, nonlinearity="relu", num_reflections=8, dtype=torch.float64, **options)
    directions = 2 if ours.bidirectional else 1
    with torch.no_grad():
        for k, cell in enumerate(ours.cells):
            suffix = f"l{k // directions}" + "_reverse" * (k % directions)
            nn.init.normal_(cell.bias)
            getattr(theirs, f"weight_hh_{suffix}").copy_(cell.matrix())
            getattr(theirs, f"weight_ih_{suffix}").copy_(cell.weight_ih)
            getattr(theirs, f"bias_ih_{suffix}").copy_(cell.bias)
            getattr(theirs, f"bias_hh_{suffix}").zero_()
    return theirs, ours


OPTIONS = [
    {},
    {"num_layers": 3},
    {"bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"num_layers": 2, "dropout": 1.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(5, 3), (5, 4, 3), (1, 1, 3)], ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["zero state", "given state"])
def test_equal_weights_give_equal_results(options, shape, given):
    theirs, ours = twins(**options)
    x = torch.randn(shape, dtype=torch.float64)
    hx = torch.randn_like(theirs(x)[1]) if given else None
    torch.testing.assert_close(ours(x, hx), theirs(x, hx))
    theirs.eval()
    ours.eval()
    torch.testing.assert_close(ours(x, hx), theirs(x, hx))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("lengths", [[5, 3, 3, 1], [3, 5, 1, 3]], ids=str)
@pytest.mark.parametrize("given", [False, True], ids=["zero state", "given state"])
def test_packed_sequences_of_any_order(options, lengths, given):
    theirs, ours = twins(**options)
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    x = x if ours.batch_first else x.transpose(0, 1)
    packed = pack_padded_sequence(x, lengths, batch_first=ours.batch_first, enforce_sorted=False)
    hx = torch.randn_like(theirs(packed)[1]) if given else None
    (expected, expected_last), (output, last) = theirs(packed, hx), ours(packed, hx)
    assert isinstance(output, PackedSequence)
    torch.testing.assert_close(last, expected_last)
    torch.testing.assert_close(pad_packed_sequence(output), pad_packed_sequence(expected))


def test_no_state_is_a_state_of_zeros():
    _, ours = twins(num_layers=2)
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    assert all(map(torch.equal, ours(x), ours(x, torch.zeros(2, 4, 8, dtype=torch.float64))))


@both
@pytest.mark.parametrize(
    ("x", "hx", "error"),
    [
        ((5, 4, 2), None, RuntimeError),
        ((5, 2), None, (ValueError, RuntimeError)),
        ((3,), None, ValueError),
        ((1, 5, 4, 3), None, ValueError),
        ((5, 4, 3), (1, 4, 8), RuntimeError),
        ((5, 4, 3), (2, 3, 8), (ValueError, RuntimeError)),
        ((5, 4, 3), (2, 4, 7), (ValueError, RuntimeError)),
        ((5, 4, 3), (2, 8), RuntimeError),
        ((5, 3), (2, 1, 8), RuntimeError),
        ((5, 3), (2, 7), (ValueError, RuntimeError)),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_the_errors_that_they_are_in_torch(kind, x, hx, error):
    with pytest.raises(error):
        kind(3, 8, num_layers=2)(torch.ones(x), None if hx is None else torch.ones(hx))


@both
def test_what_a_layer_tells_of_itself(kind):
    module = kind(3, 8, 2, nonlinearity="relu", bidirectional=True)
    assert (module.nonlinearity, module.proj_size) == ("relu", 0)
    assert len(module.all_weights) == 4
    listed = [p for weights in module.all_weights for p in weights]
    assert all(map(operator.is_, listed, module.parameters()))


@both
def test_dropout_of_one_layer_is_warned_of(kind):
    with pytest.warns(UserWarning, match="num_layers=1"):
        kind(3, 8, dropout=0.5)


LAYERS = [nn.RNN, ht.OrthogonalRNN, ht.UnitaryRNN]
CELL_KINDS = [nn.RNNCell, ht.OrthogonalRNNCell, ht.UnitaryRNNCell]


@pytest.mark.parametrize("kind", LAYERS)
def test_arguments_have_the_places_of_torchs(kind):
    layer = kind(3, 8, 2, "tanh", False, True, 0.1, True)
    names = ("input_size", "hidden_size", "num_layers", "nonlinearity", "bias", "batch_first", "dropout")
    assert [getattr(layer, name) for name in (*names, "bidirectional")] == [3, 8, 2, "tanh", False, True, 0.1, True]


@pytest.mark.parametrize("kind", CELL_KINDS)
def test_arguments_of_cells_have_the_places_of_torchs(kind):
    cell = kind(3, 8, False, "tanh", "cpu", torch.float64)
    assert (cell.input_size, cell.hidden_size, cell.nonlinearity) == (3, 8, "tanh")
    assert cell.weight_ih.dtype.to_real() == torch.float64
    assert not any("bias" in name for name, p in cell.named_parameters() if p is not None)


@pytest.mark.parametrize("kind", [ht.OrthogonalRNN, ht.UnitaryRNN, ht.OrthogonalRNNCell, ht.UnitaryRNNCell])
def test_what_torch_does_not_have_is_given_by_name(kind):
    with pytest.raises(TypeError, match="positional argument"):
        kind(3, 8, *[1, "tanh", True, False, 0.0, False, 4][: 7 if "Cell" not in kind.__name__ else 9])


@pytest.mark.parametrize("name", ["bias", "batch_first", "bidirectional"])
def test_flags_are_flags(name):
    with pytest.raises(TypeError, match=f"{name} is 'tanh', expected True or False"):
        ht.OrthogonalRNN(3, 8, **{name: "tanh"})


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_the_rnn_of_torch_that_computes_the_same(options, nonlinearity):
    torch.manual_seed(0)
    ours = ht.OrthogonalRNN(3, 8, nonlinearity=nonlinearity, num_reflections=3, dtype=torch.float64, **options)
    for cell in ours.cells:
        nn.init.normal_(cell.bias)
    theirs = ours.to_rnn()
    assert type(theirs) is nn.RNN
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(theirs.eval()(x), ours.eval()(x))
    back = ht.OrthogonalRNN.from_rnn(theirs, num_reflections=3)
    assert not back.training
    torch.testing.assert_close(back(x), ours(x))


@pytest.mark.parametrize("training", [True, False])
def test_conversions_keep_the_mode(training):
    ours = ht.OrthogonalRNN(3, 8, 2, nonlinearity="tanh", dropout=0.5).train(training)
    theirs = ours.to_rnn()
    assert theirs.training is training
    assert all(part.training is training for part in ht.OrthogonalRNN.from_rnn(theirs).modules())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_is_between_layers_and_not_after_the_last(kind, layers, directions, packed):
    torch.manual_seed(0)
    layer = kind(3, 8, layers, "tanh", dropout=0.1, bidirectional=directions == 2)
    x = torch.randn(5, 4, 3)
    output, h_n = layer(pack_padded_sequence(x, [5, 4, 2, 1]) if packed else x)
    output = output.data if packed else output
    assert (output != 0).all()
    assert (h_n != 0).all()
    if not packed:  # the states of the last layer are its outputs
        assert torch.equal(output[-1, :, :8], h_n[-directions])
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "'leaky_relu', but"), ({"nonlinearity": "tanh", "learn_h0": True}, "initial state is learned")],
    ids=str,
)
def test_what_torch_has_no_rnn_for(options, message):
    with pytest.raises(ValueError, match=message):
        ht.OrthogonalRNN(3, 8, **options).to_rnn()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_trained_rnn_is_taken_over_with_the_nearest_orthogonal_matrices(bias, dtype):
    torch.manual_seed(0)
    theirs = nn.RNN(3, 8, 2, "tanh", bias, bidirectional=True, dtype=dtype)
    with pytest.warns(UserWarning, match=r"weight_hh_l0 by \d\.\d+, .*weight_hh_l1_reverse by") as record:
        ours = ht.OrthogonalRNN.from_rnn(theirs)
    w, weight = ours.matrix(1, 1).double(), theirs.weight_hh_l1_reverse.double()
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(w, ht.nearest(weight), rtol=0, atol=tolerance)
    moved = float(str(record[0].message).rpartition(" ")[2])
    assert moved == pytest.approx(((w - weight).norm() / weight.norm()).item(), rel=0.02)
    torch.testing.assert_close(ours.cells[3].weight_ih, theirs.weight_ih_l1_reverse)
    if bias:
        torch.testing.assert_close(ours.cells[0].bias, theirs.bias_ih_l0 + theirs.bias_hh_l0)


def test_an_orthogonal_rnn_is_taken_over_as_it_is():
    theirs, _ = twins()
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(ht.OrthogonalRNN.from_rnn(theirs)(x), theirs(x))


@pytest.mark.parametrize("frozen", ["weight_hh_l0", "weight_ih_l1", "bias_hh_l0"])
def test_what_is_frozen_stays_frozen_there_and_back(frozen):
    theirs, _ = twins(num_layers=2)
    getattr(theirs, frozen).requires_grad_(False)
    if "bias" in frozen:
        theirs.bias_ih_l0.requires_grad_(False)
    ours = ht.OrthogonalRNN.from_rnn(theirs)
    part = {"weight_hh_l0": "cells.0.reflections", "weight_ih_l1": "cells.1.weight_ih", "bias_hh_l0": "cells.0.bias"}
    assert [name for name, p in ours.named_parameters() if not p.requires_grad] == [part[frozen]]
    wanted = {name: p.requires_grad for name, p in theirs.named_parameters()}
    assert {name: p.requires_grad for name, p in ours.to_rnn().named_parameters()} == wanted


def test_a_bias_learns_if_one_of_torchs_two_does():
    theirs, _ = twins()
    theirs.bias_ih_l0.requires_grad_(False)
    assert ht.OrthogonalRNN.from_rnn(theirs).cells[0].bias.requires_grad


def test_shapes_alone_are_converted():
    theirs = nn.RNN(3, 8, 2, bidirectional=True, device="meta")
    ours = ht.OrthogonalRNN.from_rnn(theirs, num_reflections=3)
    assert all(p.is_meta for p in ours.parameters())
    back = ours.to_rnn()
    assert {name: (p.shape, p.device) for name, p in back.named_parameters()} == {
        name: (p.shape, p.device) for name, p in theirs.named_parameters()
    }


def test_other_modules_are_no_rnn():
    with pytest.raises(TypeError, match=r"rnn is an LSTM, expected a torch\.nn\.RNN"):
        ht.OrthogonalRNN.from_rnn(nn.LSTM(3, 8))


@pytest.mark.parametrize("kind", [ht.OrthogonalRNN, ht.UnitaryRNN])
def test_the_matrix_of_each_layer_and_direction(kind):
    layer = kind(3, 8, 2, bidirectional=True)
    assert torch.equal(layer.matrix(), layer.cells[0].matrix())
    assert torch.equal(layer.matrix(1, direction=1), layer.cells[3].matrix())
    with pytest.raises(ValueError, match="layer is 2, expected at least 0 and at most 1"):
        layer.matrix(2)
    with pytest.raises(ValueError, match="direction is 1, expected at least 0 and at most 0"):
        kind(3, 8).matrix(direction=1)


def test_projections_are_of_lstms_alone():
    with pytest.raises((TypeError, ValueError)):
        nn.RNN(3, 8, proj_size=2)
    for kind in (ht.OrthogonalRNN, ht.UnitaryRNN):
        assert kind(3, 8, proj_size=0).proj_size == 0
        with pytest.raises(ValueError, match="proj_size is 2, expected 0"):
            kind(3, 8, proj_size=2)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("layers", [1, 2])
def test_the_last_state_is_detached_in_place_between_pieces_of_a_sequence(kind, layers):
    layer, h = kind(3, 8, layers), None
    for _ in range(3):
        output, h = layer(torch.randn(5, 4, 3), h)
        output.abs().sum().backward()
        h.detach_()
    assert not h.requires_grad


def test_an_output_changed_in_place_before_the_backward_pass_is_an_error():
    torch.manual_seed(0)
    x = torch.randn(5, 4, 3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ht.OrthogonalRNN(3, 8)(x)[0].relu_().sum().backward()
    torch.relu(ht.OrthogonalRNN(3, 8)(x)[0]).sum().backward()


@both
@pytest.mark.parametrize(("nonlinearity", "mode"), [("tanh", "RNN_TANH"), ("relu", "RNN_RELU")])
def test_the_mode_names_the_nonlinearity(kind, nonlinearity, mode):
    assert kind(3, 8, nonlinearity=nonlinearity).mode == mode


@both
def test_another_dtype_is_the_error_that_it_is_in_torch(kind):
    with pytest.raises((ValueError, RuntimeError)):
        kind(3, 8)(torch.ones(5, 4, 3, dtype=torch.float64))


@both
@pytest.mark.parametrize("batch_first", [True, False])
def test_an_empty_batch_gives_empty_states(kind, batch_first):
    x = torch.ones(0, 5, 3) if batch_first else torch.ones(5, 0, 3)
    output, h_n = kind(3, 8, batch_first=batch_first)(x)
    assert output.shape == (*x.shape[:2], 8)
    assert h_n.shape == (1, 0, 8)


@both
def test_a_shared_state_of_all_sequences_is_expanded_by_the_caller(kind):
    layer, h = kind(3, 8), torch.randn(1, 1, 8)
    x = torch.randn(5, 4, 3)
    torch.testing.assert_close(layer(x, h.expand(-1, 4, -1)), layer(x, h.repeat(1, 4, 1)))


@both
def test_what_is_shown(kind):
    layer = kind(3, 8, num_layers=2, batch_first=True, dropout=0.5, bidirectional=True)
    first = repr(layer).split("\n")[0] if kind is nn.RNN else layer.extra_repr()
    for part in ("3, 8, num_layers=2", "batch_first=True", "dropout=0.5", "bidirectional=True"):
        assert part in first
    layer.flatten_parameters()


@both
def test_inputs_are_left_as_they_are_and_need_not_be_contiguous(kind):
    layer = kind(3, 8, batch_first=True)
    x, hx = torch.randn(3, 4, 5).permute(1, 2, 0), torch.randn(8, 4, 1).permute(2, 1, 0)
    before = x.clone(), hx.clone()
    output = layer(x, hx)[0]
    torch.testing.assert_close(output, layer(x.contiguous(), hx.contiguous())[0])
    assert torch.equal(x, before[0])
    assert torch.equal(hx, before[1])


CELLS = pytest.mark.parametrize("kind", [nn.RNNCell, ht.OrthogonalRNNCell], ids=["torch", "ours"])


@CELLS
@pytest.mark.parametrize("batch", [(), (4,)], ids=str)
def test_cells_step(kind, batch):
    cell, h = kind(3, 8), None
    for _ in range(3):
        h = cell(torch.randn(*batch, 3), h)
    assert h.shape == (*batch, 8)


@pytest.mark.parametrize("kind", [ht.OrthogonalRNN, ht.UnitaryRNN])
@pytest.mark.parametrize("name", ["weight_hh_l0", "weight_ih_l1", "bias_hh_l0_reverse", "bias_ih_l0"])
def test_parameters_of_torchs_rnn_are_pointed_to_ours(kind, name):
    layer = kind(3, 8)
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': matrix\(layer\) forms W, and cells\[layer\]"):
        getattr(layer, name)
    with pytest.raises(AttributeError, match=r"no attribute 'weigths'$"):
        layer.weigths  # noqa: B018
    assert not hasattr(layer, name)


@pytest.mark.parametrize("prefix", ["", "rnn."])
def test_the_state_dict_of_a_torch_rnn_is_pointed_to_its_conversion(prefix):
    ours, theirs = (nn.ModuleDict({"rnn": kind(3, 8)}) if prefix else kind(3, 8) for kind in (ht.OrthogonalRNN, nn.RNN))
    told = rf"^{prefix}weight_hh_l0 is of a torch\.nn\.RNN: OrthogonalRNN\.from_rnn takes over its weights$"
    with pytest.warns(UserWarning, match=told), pytest.raises(RuntimeError, match="Missing key"):
        ours.load_state_dict(theirs.state_dict())
    with pytest.warns(UserWarning, match=told):
        ours.load_state_dict(theirs.state_dict(), strict=False)
    ours.load_state_dict(ours.state_dict())
