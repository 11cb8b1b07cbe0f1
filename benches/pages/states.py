"""States after chosen tokens, and drafts of speculative decoding, beside plain calls and single steps.

    python -m benches.pages.states --threads 1

The first rows have one sequence of 16 heads of 128 x 128 with one gate per head, in NumPy and in torch: the plain call,
and the call that also returns the states after every 256th and every 64th token. The others have the recurrence of
Qwen3.5-0.8B, which has the same heads: k single steps that update the states in place, as in accelerated models; the
outputs of a draft of k tokens without its states; and commits in place of all its tokens, of half of them, and of
another number of each sequence.

Times are medians of interleaved rounds, in float32 without gradients. Ratios to the first row of each group are medians
of the rounds' ratios.
"""

import statistics
from functools import partial

import torch

import householder as hh
import householder.torch as ht
from benches.measure import PAUSE, SHORTEST, clock, heading, in_turn, options, row
from householder.torch.acceleration.pretrained import _delta_step

HEADS, WIDTH = 16, 128


def problem(batch, tokens):
    """Return queries, keys and values, and the other operands by name; decays are near one."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, batch, tokens, HEADS, WIDTH).unbind()
    return (q, k, v), {"beta": torch.rand(batch, tokens, HEADS), "g": -0.1 * torch.rand(batch, tokens, HEADS)}


def of_states(tokens, library):
    """Return calls with the states after every so many tokens."""
    (q, k, v), others = problem(1, tokens)
    if library is hh:
        (q, k, v), others = (a.numpy() for a in (q, k, v)), {name: a.numpy() for name, a in others.items()}
    call = partial(library.delta_rule, q, k, v, **others, output_final_state=True, use_qk_l2norm_in_kernel=True)
    name = f"{library.__name__}, {tokens} tokens"
    calls = {f"{name}, no states": call}
    for every in (256, 64):
        calls[f"{name}, states after every {every}"] = partial(call, states_at=range(every, tokens + 1, every))
    return calls


def of_drafts(batch, tokens):
    """Return single steps, the outputs of a draft, and commits of accepted tokens."""
    (q, k, v), others = problem(batch, tokens)
    state = torch.randn(batch, HEADS, WIDTH, WIDTH)
    normalized = {"use_qk_l2norm_in_kernel": True}
    steps = [[a[:, t : t + 1].contiguous() for a in (q, k, v, others["g"], others["beta"])] for t in range(tokens)]
    commit = partial(ht.commit, state, k, v, **others, **normalized, in_place=True)

    def one_by_one():
        for step in steps:
            _delta_step(*step, initial_state=state, output_final_state=True, **normalized)

    def verified():
        ht.delta_rule(q, k, v, **others, initial_state=state, **normalized)

    name = f"batch {batch}, {tokens} tokens"
    half, ragged = tokens // 2, [1 + i % tokens for i in range(batch)]
    calls = {
        f"{name}, one by one": one_by_one,
        f"{name}, outputs of the draft": verified,
        f"{name}, commit of {tokens}": partial(commit, accepted=[tokens] * batch),
        f"{name}, commit of {half}": partial(commit, accepted=[half] * batch),
    }
    if batch > 1:
        calls[f"{name}, commit of 1 to {max(ragged)}"] = partial(commit, accepted=ragged)
    return calls


@torch.no_grad()
def table(calls, rounds, clock):
    """Print a row for each call."""
    seconds = in_turn(calls, rounds, 3, 30, clock, SHORTEST, PAUSE)
    first = next(iter(seconds.values()))
    for name, each in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(each, first, strict=True))
        row(name, 1e3 * statistics.median(each), ratio)


def main():
    found = options(__doc__, threads=1, rounds=15, tokens=2048)
    heading(found.threads, "work", "ms", "ratio")
    for library in (hh, ht):
        table(of_states(found.tokens, library), found.rounds, clock(found.threads))
    for batch in (1, 8):
        for tokens in (4, 8):
            table(of_drafts(batch, tokens), found.rounds, clock(found.threads))


if __name__ == "__main__":
    main()
