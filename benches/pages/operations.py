"""Operations of the recurrences that ``ht.accelerate`` replaces, without kernels: transformers' and ours.

    python -m benches.pages.operations

On a device without kernels, each operation is a launch. Operations are those that torch's dispatcher sees on tensors
without memory, views aside; everything includes views. Memory is what lives at most during a forward pass, after one
with gradients, and at most during both passes, beside the operands, in float32. Shapes are those of 16 heads of
128 x 128, of Nemotron-H 8B, xLSTM 7B and a layer of MiniMax-Text-01.
"""

import copy
import importlib
import weakref
from collections import Counter
from unittest import mock

import torch
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

import householder.torch as ht
from benches.pages import versus_mamba
from householder.torch.acceleration import devices, mamba, pretrained

HEADS, WIDTH = 16, 128


class Operations(TorchDispatchMode):
    """The operations that run by name, views by a name of their own, and the bytes that their results hold."""

    VIEWS = "views"

    def __init__(self, operands):
        super().__init__()
        self.names, self.held, self.peak = Counter(), 0, 0
        self._known = {t.untyped_storage()._cdata for t in operands}

    def __torch_dispatch__(self, operation, _types, arguments=(), options=None):
        is_view = operation.is_view or "view" in operation.__name__
        self.names[self.VIEWS if is_view else operation.overloadpacket.__name__] += 1
        results = operation(*arguments, **options or {})
        for result in results if isinstance(results, tuple | list) else (results,):
            if isinstance(result, torch.Tensor):
                self._hold(result.untyped_storage())
        return results

    def _hold(self, storage):
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.held += storage.nbytes()
            self.peak = max(self.peak, self.held)
            weakref.finalize(storage, self._release, storage._cdata, storage.nbytes())

    def _release(self, key, size):
        self._known.discard(key)
        self.held -= size

    @property
    def count(self):
        return self.names.total() - self.names[self.VIEWS]


def forward(function, operands):
    """The operations of a call without gradients."""
    with torch.no_grad(), Operations(operands) as operations:
        function(*operands)
    return operations


def training(function, operands):
    """The operations of a call and its gradients, and the bytes held between the passes."""
    leaves = [t.detach().requires_grad_() for t in operands]
    with Operations(operands) as operations:
        results = [t for t in function(*leaves) if t is not None]
        held = operations.held
        torch.autograd.grad(sum(t.sum() for t in results), leaves)
    return operations, held


def of_transformers(model, name):
    function = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name)
    return getattr(function, "before", function).__wrapped__


def delta_rule(function, *, state=None):
    def call(q, k, v, g, beta):
        options = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
        return function(q, k, v, g=g, beta=beta, **options)

    return call


def delta_operands(tokens, gate):
    q, k, v = torch.empty(3, 1, tokens, HEADS, WIDTH, device="meta").unbind()
    g = torch.empty(1, tokens, HEADS, *{"head": (), "channel": (WIDTH,)}[gate], device="meta")
    return q, k, v, g, torch.empty(1, tokens, HEADS, device="meta")


FUNCTIONS = {
    "gated delta rule": ("head", "qwen3_next", "torch_chunk_gated_delta_rule"),
    "Kimi delta attention": ("channel", "kimi_linear", "chunk_kimi_delta_attention"),
}
STEPS = {
    "a step of the gated delta rule": ("head", "qwen3_next", "torch_recurrent_gated_delta_rule"),
    "a step of Kimi delta attention": ("channel", "kimi_linear", "recurrent_kimi_delta_attention"),
}
TOKENS = {"gated delta rule": (512, 1089, 2048, 8192), "Kimi delta attention": (64, 512)}


def mlstm(mode):
    """The mLSTM of transformers and ours."""
    module = importlib.import_module("transformers.models.xlstm.modeling_xlstm")
    layer = module.xLSTMBackend(module.xLSTMConfig(chunk_size=64))
    return both_ways(layer, lambda layer, *operands: flat(layer(*operands, mode=mode)))


def mlstm_operands(tokens):
    keys, values, gates = (8, tokens, 256), (8, tokens, 512), (8, tokens)
    return [torch.empty(1, *shape, device="meta") for shape in (keys, keys, values, gates, gates)]


def lightning_attention(*, has_state=False):
    """The layer of transformers and ours as functions of tokens and parameters, and the parameters."""
    module = importlib.import_module("transformers.models.minimax.modeling_minimax")
    config = module.MiniMaxConfig(hidden_size=6144, num_attention_heads=64, head_dim=128, block_size=256)
    with torch.device("meta"):
        layer = module.MiniMaxLightningAttention(config, 0)
        cache = OneState(torch.empty(1, 64, 128, 128)) if has_state else None
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(layer, x, *given):
        return functional_call(layer, dict(zip(names, given, strict=True)), (x, None, None, cache))

    return both_ways(layer, call), parameters


class OneState:
    """A cache that always has the same state."""

    def __init__(self, state):
        self._state = state

    def get_linear_cache(self, _layer):
        return self._state

    def set_linear_cache(self, _layer, _state):
        pass


def both_ways(layer, call):
    """Calls of a layer of transformers and of its accelerated twin, which then is ours at any size."""
    twin = copy.deepcopy(layer)
    ht.accelerate(twin)

    def ours(*operands):
        with mock.patch.object(devices, "is_ours", return_value=True):
            return call(twin, *operands)

    return [lambda *operands: call(layer, *operands), ours]


def flat(results):
    return [t for each in results for t in (each if isinstance(each, tuple) else (each,))]


def rows():
    """Works, their operands, and the functions of transformers and ours."""
    for name, (gate, model, theirs) in FUNCTIONS.items():
        both = [delta_rule(function) for function in (of_transformers(model, theirs), pretrained._delta_rule)]
        for tokens in TOKENS[name]:
            yield f"{name}, {tokens:,} tokens", delta_operands(tokens, gate), both
    state = torch.empty(1, HEADS, WIDTH, WIDTH, device="meta")
    for name, (gate, model, theirs) in STEPS.items():
        functions = of_transformers(model, theirs), pretrained._delta_rule
        yield name, delta_operands(1, gate), [delta_rule(function, state=state) for function in functions]
    work = versus_mamba.WORKS[0]
    for tokens in (256, 2048):
        operands = [t.detach().to("meta") for t in versus_mamba.operands(work, tokens)]
        functions = of_transformers("mamba2", "mamba2_chunk_scan"), mamba.chunk_scan
        scans = [versus_mamba.scan(function, work) for function in functions]
        yield f"Mamba-2, {tokens:,} tokens", operands, [lambda *t, scan=scan: (scan(*t),) for scan in scans]
    for tokens in (80, 320, 2048):
        yield f"mLSTM, {tokens:,} tokens", mlstm_operands(tokens), mlstm("inference")
    for name, tokens, has_state in (
        ("lightning attention, 2,048 tokens", 2048, False),
        ("lightning attention, 4,609 tokens", 4609, False),
        ("lightning attention after a state, 20 tokens", 20, True),
        ("lightning attention after a state, 512 tokens", 512, True),
    ):
        both, parameters = lightning_attention(has_state=has_state)
        yield name, [torch.empty(1, tokens, 6144, device="meta"), *parameters], both


def solves(operations):
    return sum(count for name, count in operations.names.items() if "triangular" in name)


def main():
    titles = "forward", "solves", "everything", "peak, MB", "with gradients", "held, MB", "peak, MB"
    print(f"| work, transformers → ours | {' | '.join(titles)} |")
    print("|---" * (len(titles) + 1) + "|")
    for name, operands, both in rows():
        passes = [forward(function, operands) for function in both]
        trained = [training(function, operands) for function in both]
        cells = [
            [each.count for each in passes],
            [solves(each) for each in passes],
            [each.names.total() for each in passes],
            [round(each.peak / 1e6) for each in passes],
            [each.count for each, _ in trained],
            [round(held / 1e6) for _, held in trained],
            [round(each.peak / 1e6) for each, _ in trained],
        ]
        print(f"| {name} | " + " | ".join(f"{theirs:,} → {ours:,}" for theirs, ours in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
