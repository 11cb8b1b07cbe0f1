"""The operators' kernels for the CPU without Python: torch's C interface, schemas, bits, errors, ownership, signals."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from householder._base import torch_library
from householder._base.spec import NONLINEARITIES
from householder.torch._ops import OPERATORS, apply, delta, matrix, rnn

PATH = torch_library.path()
pytestmark = pytest.mark.skipif(PATH is None, reason="this system has no library without Python")

ROOT = Path(__file__).parents[3]
INCLUDE = Path(torch.__file__).parent / "include/torch/csrc"
HEADERS = INCLUDE / "inductor/aoti_torch/c/shim.h", INCLUDE / "stable/c/shim.h"
TYPES = {
    "AOTITorchError": "Code",
    "AtenTensorHandle": "Handle",
    "ParallelFunc": "Chunk",
    "StableIValue": "Value",
    "StableListHandle": "Handle",
    "StringHandle": "Handle",
    "TorchLibraryHandle": "Handle",
    "bool": "bool",
    "char": "c_char",
    "int32_t": "i32",
    "int64_t": "i64",
    "size_t": "usize",
    "uint32_t": "u32",
    "uint8_t": "u8",
    "uint64_t": "u64",
    "void": "c_void",
}
FLOOR = 2, 10
KEEPS = 2, 11
BIASED = next(name for name, phi in NONLINEARITIES.items() if phi.has_bias and phi.is_real)
ops = torch.ops.householder


def translate(declared):
    """A type of C as Rust writes it."""
    if "(" in declared:
        arguments = re.fullmatch(r"void \(\*\w+\)\((.*)\)", declared)[1]
        return {"StableIValue*, uint64_t, uint64_t": "Kernel", "void* data, void* ctx": "Deleter"}[arguments]
    first, *pointers = declared.replace("const ", "").partition("*")[0].strip(), *re.findall(r"\*", declared)
    kind = TYPES[first]
    for i, _ in enumerate(pointers):
        kind = f"{'*const' if i == 0 and declared.startswith('const ') else '*mut'} {kind}"
    return kind


def declared_by_torch():
    """Each function's arguments and result, as C writes them, and the version that brought it."""
    found, line = {}, r"^#if(.*)|^(#endif)|^AOTI_TORCH_EXPORT ([^;(]+)\(([^;]*)\);"
    for header in HEADERS:
        text = re.sub(r"//.*|/\*[\s\S]*?\*/", "", header.read_text("utf-8"))
        since = [(0, 0)]  # of each condition around
        for condition, end, head, arguments in re.findall(line, text, re.MULTILINE):
            if condition:
                version = re.search(r"TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)_0", condition)
                since.append((int(version[1]), int(version[2])) if version else since[-1])
            elif end:
                since.pop()
            else:
                result, name = re.match(r"(.*?)(\w+)$", " ".join(head.split())).groups()
                parts = re.split(r",(?![^(]*\))", " ".join(arguments.split()))
                kinds = [part if "(" in part else re.sub(r"\w+$", "", part) for part in parts if part]
                found[name] = [kind.strip() for kind in kinds], result.strip(), since[-1]
    return found


def declared_by_us():
    source = (ROOT / "rust/torch/abi.rs").read_text("utf-8")
    body = re.search(r"^functions! \{\n(.*?)^\}", source, re.DOTALL | re.MULTILINE)[1]
    required, _, optional = body.partition("    optional {\n")
    for part, is_optional in ((required, False), (optional, True)):
        for name, arguments, result, since in re.findall(
            r"(\w+): fn\((.*?)\)(?: -> ([^;]+))?;(?: // since (\S+))?", part
        ):
            version = tuple(map(int, since.split("."))) if is_optional else FLOOR
            yield name, [a.strip() for a in arguments.split(",") if a.strip()], result or None, version


DECLARED = [pytest.param(*function, id=function[0]) for function in declared_by_us()]


@pytest.mark.parametrize(("name", "arguments", "result", "version"), DECLARED)
def test_a_function_is_declared_as_in_the_headers_of_torch(name, arguments, result, version):
    theirs = declared_by_torch()
    if name not in theirs:  # an older torch lacks what is optional
        assert version > FLOOR
        return
    kinds, kind, since = theirs[name]
    assert [translate(kind) for kind in kinds] == arguments
    assert result == (None if kind == "void" else translate(kind))
    assert since <= version


def test_forward_passes_can_save_where_torch_makes_tensors_of_given_memory():
    assert torch_library.can_save() == (tuple(map(int, torch.__version__.split(".")[:2])) >= KEEPS)


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF")
def test_the_library_needs_no_symbol_of_torch_or_of_python():
    needed = subprocess.run(["nm", "-D", "--undefined-only", PATH], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"\b(aoti_|torch_|Py|_Py)\w+", needed)


def test_a_process_without_this_package_gets_the_same_schemas(run_script):
    schemas = [str(op.default._schema) for name in NAMES if (op := getattr(ops, name))]
    out = run_script(
        f"""
        import ctypes, sys, torch
        register = ctypes.CDLL({str(PATH)!r}).householder_torch_register
        register.restype = ctypes.c_char_p
        assert register() is register() is None
        print([str(getattr(torch.ops.householder, name).default._schema) for name in {NAMES}])
        """
    )
    assert out.strip() == str(schemas)


def test_without_torch_the_library_says_so(run_script):
    out = run_script(
        f"""
        import ctypes
        register = ctypes.CDLL({str(PATH)!r}).householder_torch_register
        register.restype = ctypes.c_char_p
        print(register().decode())
        """
    )
    assert re.match(r"householder needs torch 2.10 or later in the process: \w+ is missing", out)


def of(dtype):
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, dtype=dtype, generator=generator)


def calls(dtype):
    """Each operator: its module, its tensors, its options, what its gradients need, and which of them are wanted."""
    number, real = of(dtype), of(dtype.to_real())
    u, is_real = number(9, 4), not dtype.is_complex
    yield apply, (u, number(5, 9), None), (False, "auto", "trapezoidal"), (number(5, 9),), (True, True, False)
    yield apply, (number(2, 9, 4), number(2, 3, 5, 9), None), (True, "wy", "full"), (number(2, 3, 5, 9),), (1, 0, 0)
    unit = u.tril(-1) + torch.eye(9, 4)
    yield apply, (unit, number(5, 9), number(4)), (True, "auto", "trapezoidal"), (number(5, 9),), (1, 1, 1)
    strided = number(4, 9).mT, number(9, 5).mT, None
    yield apply, strided, (False, "auto", "trapezoidal"), (number(5, 1).expand(5, 9),), (1, 1, 0)
    yield matrix, (number(3, 6, 2),), (), (number(3, 6, 6),), (True,)
    others = number(2, 9), number(9, 3), number(9), None if is_real else real(9), None, None
    of_all = number(6, 2, 9), number(2, 9)
    for name in ("tanh", "leaky_relu"):
        options = name, 0.1, name == "tanh", name != "tanh", "trapezoidal", "auto"
        wanted = [True, True, True, True, True, not is_real, False, False]
        yield rnn, (u, number(6, 2, 3), *others, None), options, of_all, wanted
    if is_real:
        packed = number(5, 3), *others[:3], None, number(9), None, torch.tensor([2, 2, 1])
        options = BIASED, 0.0, False, False, "trapezoidal", "auto"
        yield rnn, (u, *packed), options, (number(5, 9), None), [True] * 5 + [False, True, False]
        many = number(4, 8, 3), number(4, 7, 2, 3), number(4, 2, 8), number(4, 8, 3), number(4, 8), *[None] * 4
        options = "oplu", 0.0, False, False, "trapezoidal", "auto"
        yield rnn, many, options, (number(4, 7, 2, 8), None), [True] * 5 + [False] * 3
        q, k, v, state = number(2, 70, 2, 5), number(2, 140, 2, 5), number(2, 140, 4, 3), number(2, 4, 5, 3)
        gates, options = (number(2, 140, 4).sigmoid(), -number(2, 70, 4, 5).square()), (0.5, 2, True)
        given, of_all = (q, k, v, *gates, state, None, None), (number(2, 70, 4, 3), number(2, 4, 5, 3))
        yield delta, given, options, of_all, [True] * 6 + [False]
        row, ends = (q[:1], k[:1, :70], v[:1, :70]), torch.tensor([0, 30, 30, 70])
        others, of_outputs = (-number(1, 70, 4).square(), None), (number(1, 70, 4, 3), None)
        wanted = [True, True, True, False, True, False, False]
        yield delta, (*row, None, *others, None, ends), (1.0, 1, False), of_outputs, wanted
        skipping = *row, gates[0][:1, :70], *others, number(4), ends
        yield delta, skipping, (1.0, 1, False), of_outputs, [True] * 5 + [False, True]
        if dtype is torch.float32:
            mixed = row[0], *(t.bfloat16() for t in row[1:]), *skipping[3:]
            yield delta, mixed, (1.0, 1, False), of_outputs, [True] * 5 + [False, True]
            mixed = row[0].bfloat16(), row[1].half(), *skipping[2:]
            yield delta, mixed, (1.0, 1, False), (of_outputs[0].bfloat16(), None), [True] * 5 + [False, True]


NAMES = [name for operator in OPERATORS for name in (operator.forward_op.name(), operator.backward_op.name())]
NAMES = [name.removeprefix("householder::") for name in NAMES]
ALL = [
    pytest.param(*call, id=f"{call[0].__name__.rpartition('.')[2]} {dtype}")
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
    for call in calls(dtype)
]


def laid_out(tensors):
    return [None if t is None else t.contiguous() for t in tensors]


@pytest.mark.parametrize(("module", "tensors", "options", "grads", "wanted"), ALL)
def test_results_have_the_bits_of_the_core_as_python_calls_it(module, tensors, options, grads, wanted):
    operator, operation = module.operator, module.operator.operation
    named, options = operation.inputs_type(*laid_out(tensors)), operation.options_type(*options)
    results, saved = operation.cpu_forward(named, options, module is delta)
    *found, kept = operator.forward_op(*tensors, True, *options)
    for result, other in zip(results if isinstance(results, tuple) else (results,), found, strict=True):
        assert torch.equal(result, other)
    needs_grad = operation.inputs_type(*wanted, *[False] * (len(tensors) - len(wanted)))
    expected = operation.cpu_backward(named, saved, operation.grads_type(*laid_out(grads)), needs_grad, options)
    *among_results, state, _ = saved
    for tensor in (state, kept):
        found = operator.backward_op(*tensors, *among_results, tensor, *grads, list(map(bool, wanted)), *options)
        for gradient, other in zip(expected, found if isinstance(found, tuple) else (found,), strict=True):
            assert (gradient is None) == (other is None)
            assert gradient is None or torch.equal(gradient, other)


OPTIONS = False, False, "auto", "trapezoidal"


def rnn_of(u, x, *others):
    tensors = u, x, *others, *[None] * (7 - len(others))
    return ops.rnn(*tensors, False, "tanh", 0.0, False, False, "trapezoidal", "auto")


def apply_backward(u, h, grad):
    return ops.apply_backward(u, h, None, None, grad, [True] * 3, *OPTIONS[1:])


@pytest.mark.parametrize(
    ("call", "text", "kind"),
    [
        (
            lambda u, h: ops.apply(u.mT, h, None, *OPTIONS),
            "expected u (.., n, m) with 1 <= m <= n, got torch.float32",
            ValueError,
        ),
        (lambda u, h: ops.apply(u, h[:, :3], None, *OPTIONS), "torch.Size([3, 3]) with strides (3, 1)", ValueError),
        (
            lambda u, h: ops.apply(u, h.double(), None, *OPTIONS),
            "expected u and h of one type, got u torch.float32",
            TypeError,
        ),
        (lambda u, h: ops.apply(u.half(), h.half(), None, *OPTIONS), "or complex128, got float16", TypeError),
        (lambda u, h: ops.apply(u.bool(), h.bool(), None, *OPTIONS), "or complex128, got another type", TypeError),
        (lambda u, _: ops.matrix(u.byte(), False), "or complex128, got another type", TypeError),
        (lambda u, h: ops.apply(u, h, None, False, False, "fast", "full"), "or 'dense', got 'fast'", ValueError),
        (
            lambda u, h: ops.apply(u, h, u[0].double(), *OPTIONS),
            "tau is torch.float64, expected torch.float32",
            RuntimeError,
        ),
        (lambda u, h: ops.apply(u, h, u[0, :1], *OPTIONS), "tau: expected 2 contiguous, aligned numbers", ValueError),
        (
            lambda u, h: ops.matrix_backward(u, None, h, [True]),
            "grad_w: expected 16 contiguous, aligned numbers",
            ValueError,
        ),
        (
            lambda u, h: rnn_of(u, h),
            "expected u (.., n, m) and x (.., T, B, d), or rows as batch_sizes say",
            ValueError,
        ),
        (
            lambda u, h: rnn_of(u, h[None], h[:2]),
            "h0: expected shape [3, 4], got torch.float32 torch.Size([2, 4])",
            ValueError,
        ),
        (lambda u, h: apply_backward(u, h, h.double()), "a saved tensor changed its dtype between", RuntimeError),
        (
            lambda u, h: apply_backward(u, h, h[:2]),
            "grad_c has shape (2, 4) on cpu, expected (3, 4) on cpu as h",
            ValueError,
        ),
    ],
)
def test_wrong_arguments_raise_errors_that_say_so(call, text, kind):
    with pytest.raises(kind, match=re.escape(text)):
        call(torch.randn(4, 2), torch.randn(3, 4))


def test_neither_calls_nor_errors_keep_memory():
    import resource  # which Windows does not have

    u = torch.randn(256, 2)

    def fail():
        with pytest.raises(ValueError, match="method"):
            ops.apply(
                u, torch.ones(4096, 255), torch.ones(1 << 20), *OPTIONS[:2], "a method of a long name" * 1000, "full"
            )

    def succeed():
        h = torch.ones(4096, 256)
        apply_backward(u, h.mT.contiguous().mT, ops.apply(u, h, None, *OPTIONS)[0])

    for call in (fail, succeed):
        call()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(60):
            call()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown * (1 if sys.platform == "darwin" else 1024) < 60e6


def test_memory_of_the_library_is_released(run_script):
    run_script("import householder, householder.torch; householder.release_memory()")


@pytest.mark.parametrize(
    ("signal", "handler", "raised"),
    [("SIGINT", "signal.default_int_handler", "KeyboardInterrupt"), ("SIGALRM", "late", "TimeoutError")],
)
def test_a_signal_stops_a_long_call(run_script, signal, handler, raised):
    out = run_script(
        f"""
        import os, signal, threading, time, torch, householder.torch

        def late(*_):
            raise TimeoutError

        signal.signal(signal.{signal}, {handler})
        torch.set_num_threads(1)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.{signal})).start()
        begun = time.monotonic()
        try:
            torch.ops.householder.matrix(torch.randn(5000, 5000, dtype=torch.float64), False)  # ten seconds
        except {raised}:
            print(time.monotonic() - begun < 4)
        """
    )
    assert out.strip() == "True"
