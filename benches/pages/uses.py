"""Ways to use a recurrent layer, compared with ``torch.nn.RNN``: forward plus backward, gradients of all.

python -m benches.pages.uses [--threads 2] [--hidden 256] [--reflections 32] [--input 64] [--batch 64] [--steps 256]
                       [--rounds 5]
"""

from functools import cache, partial

import torch
from torch.nn.utils.rnn import pack_padded_sequence

import householder.torch as ht
from benches.measure import heading, interleaved, options, row


@cache
def gradient(shape):
    return torch.randn(shape)


def all_states(layer, x):
    states = layer(x)[0]
    states.backward(gradient(states.shape))


def last_states(layer, x):
    layer(x)[1].sum().backward()


def packed(layer, x):
    """Sequences of all lengths from a quarter on."""
    lengths = torch.linspace(x.shape[1] / 4, x.shape[1], len(x)).long().clamp(min=1)
    sequences = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    states = layer(sequences)[0].data
    states.backward(gradient(states.shape))


def one_sequence(layer, x):
    all_states(layer, x[:1])


def inference(layer, x):
    with torch.inference_mode():
        layer(x)


def autocast(layer, x):
    with torch.autocast("cpu", torch.bfloat16):
        states = layer(x)[0]
    states.backward(gradient(states.shape).to(states.dtype))


USES = {
    "`batch_first=False`": ({"batch_first": False}, all_states),
    "`batch_first`": ({}, all_states),
    "`batch_first`, last states alone": ({}, last_states),
    "`batch_first`, packed": ({}, packed),
    "`batch_first`, one sequence": ({}, one_sequence),
    "`batch_first`, inference": ({}, inference),
    "`batch_first`, autocast to bfloat16": ({}, autocast),
    "`num_layers=2`": ({"num_layers": 2}, all_states),
    "`num_layers=2, dropout=0.2`": ({"num_layers": 2, "dropout": 0.2}, all_states),
    "`bidirectional`": ({"bidirectional": True}, all_states),
}


def main() -> None:
    sizes = {"hidden": 256, "reflections": 32, "input": 64, "batch": 64, "steps": 256}
    chosen = options(__doc__, threads=2, rounds=5, **sizes)
    torch.manual_seed(0)
    x = torch.randn(chosen.batch, chosen.steps, chosen.input)
    shape = (chosen.input, chosen.hidden)

    heading(chosen.threads, "", "ht.OrthogonalRNN, ms", "torch.nn.RNN, ms", "ratio")
    for use, (changes, call) in USES.items():
        arguments = {"nonlinearity": "tanh", "batch_first": True, **changes}
        layers = {
            "ours": ht.OrthogonalRNN(*shape, num_reflections=chosen.reflections, **arguments),
            "theirs": torch.nn.RNN(*shape, **arguments),
        }
        given = x if arguments["batch_first"] else x.transpose(0, 1).contiguous()
        calls = {name: partial(call, layer, given) for name, layer in layers.items()}
        ours, theirs = (1e3 * times.median for times in interleaved(calls, chosen.rounds).values())
        row(use, ours, theirs, f"{theirs / ours:.1f}")


if __name__ == "__main__":
    main()
