"""Ways to use a recurrent layer, compared with ``torch.nn.RNN``: forward plus backward, gradients of all.

python benches/uses.py [--threads 2] [--hidden 256] [--reflections 32] [--input 64] [--batch 64] [--steps 256]
                       [--rounds 5]
"""

import argparse
from functools import cache, partial

import torch
from measure import interleaved, machine
from torch.nn.utils.rnn import pack_padded_sequence

import householder.torch as ht


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"hidden": 256, "reflections": 32, "input": 64, "batch": 64, "steps": 256, "rounds": 5, "threads": 2}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    x = torch.randn(options.batch, options.steps, options.input)
    shape = (options.input, options.hidden)

    print("".join(f"- {heading}: {value}\n" for heading, value in machine(options.threads).items()))
    print("| | ht.OrthogonalRNN, ms | torch.nn.RNN, ms | ratio |\n|---|---|---|---|")
    for use, (changes, call) in USES.items():
        arguments = {"nonlinearity": "tanh", "batch_first": True, **changes}
        layers = {
            "ours": ht.OrthogonalRNN(*shape, num_reflections=options.reflections, **arguments),
            "theirs": torch.nn.RNN(*shape, **arguments),
        }
        given = x if arguments["batch_first"] else x.transpose(0, 1).contiguous()
        calls = {name: partial(call, layer, given) for name, layer in layers.items()}
        ours, theirs = (times.median for times in interleaved(calls, options.rounds).values())
        print(f"| {use} | {1e3 * ours:.2f} | {1e3 * theirs:.2f} | {theirs / ours:.1f} |", flush=True)


if __name__ == "__main__":
    main()
