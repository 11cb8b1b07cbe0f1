"""The CUDA kernels of factors, applications and packing without a GPU: compiled for every architecture, emulated."""

from itertools import product

import numpy as np
import pytest

from householder._cuda import instances
from householder._cuda.packing import Packing
from tests.cuda import applications, cases, cuda_standin, emulation, nvrtc
from tests.cuda.test_kernels import CAPABILITIES, EVERY, RELATED, concurrently, needs_compiler, needs_nvrtc

REGISTERS = {"factors": (128, 168), "gradients": (128, 168), "application": (128, 128), "packing": (32, 32)}
"""Most of a thread, of real and of complex instances, which have half as many threads."""
LAUNCHED = {"factors": cases.factors, "application": cases.applied}
WAITS = {"factors": 8 + 2 * 4 - 1, "gradients": 4, "application": 2}
"""Of a block; the factors' for K = 16, in four rounds of doubling of which the first has one wait."""


def every_name():
    for dtype in instances.NUMBERS:
        for kernel, k in product(("factors", "gradients"), instances.FACTOR_COLUMNS[dtype]):
            yield kernel, instances.square_name(kernel, k, dtype)
        for lanes in instances.APPLICATION_LANES:
            yield from (("application", instances.application_name(d, lanes, dtype)) for d in ("forward", "backward"))
    yield from (("packing", name) for name in instances.PACKING_NAMES.values())


@pytest.mark.long
@needs_nvrtc
@pytest.mark.parametrize("capability", CAPABILITIES + RELATED if EVERY else CAPABILITIES)
def test_instances_compile_within_their_registers(capability):
    """Every instance for one of the architectures, in turn; every one for each if asked for."""
    names = list(every_name())
    chosen = names if EVERY else names[CAPABILITIES.index(capability) :: len(CAPABILITIES)]

    def resources(instance):
        kernel, name = instance
        code = nvrtc.source(instances.SOURCES[kernel])
        return nvrtc.compile_kernels(code, [name], f"sm_{capability}")[name]

    for (kernel, name), used in zip(chosen, concurrently(resources, chosen), strict=True):
        assert (used.spilled_bytes, used.stack_bytes) == (0, 0), name
        assert used.registers <= REGISTERS[kernel]["Complex" in name], name


def test_launches_fit_every_device():
    for dtype in instances.NUMBERS:
        for n, m in ((1, 1), (9, 8), (16, 16), (33, 32), (128, 20), (1000, 64), (5000, 8)):
            square = instances.square("factors", n, m, 7, dtype, 90)
            calls = [square, instances.application("backward", n, m, 7, 2, dtype)]
            assert all(call.shared_bytes <= instances.DEFAULT_SHARED_BYTES for _, call in filter(None, calls))
    assert instances.square("factors", 256, 32, 1, "float32", 90)
    assert instances.square("factors", 256, 32, 1, "float32", 75) is None  # few units for doubles
    assert instances.square("factors", 4096, 64, 1, "float32", 90) is None  # products use more than one multiprocessor
    assert instances.application("forward", 32, 16, 8192, 17, "float32") is None
    _, launch = instances.application("forward", 32, 16, 8192, 1, "float32")
    assert launch.grid == 2048


@pytest.fixture(scope="module")
def libraries():
    """A build of the emulator for each kernel."""
    kernels = {kernel: [name for case in chosen() for name in case.names] for kernel, chosen in LAUNCHED.items()}
    return dict(zip(kernels, concurrently(emulation.build, kernels.values()), strict=True))


@needs_compiler
@pytest.mark.parametrize("kernel", LAUNCHED)
def test_kernels_compute_what_reflections_do_whatever_the_order_of_threads(libraries, kernel):
    messages = [applications.check(case, libraries[kernel]) for case in LAUNCHED[kernel]()]
    assert [message for message in messages if message] == []


@needs_compiler
@pytest.mark.parametrize("kernel", WAITS)
def test_every_wait_is_needed(libraries, kernel):
    """Left out one after the other, as a block comes to them, each spoils some result; one too many does not."""
    case = cases.applied()[0] if kernel == "application" else cases.factors()[4]
    library = libraries["application" if kernel == "application" else "factors"]
    unnoticed = []
    for wait in range(WAITS[kernel] + 1):
        library.omit(kernel, wait)
        if not applications.check(case, library):
            unnoticed.append(wait)
    library.omit(kernel, -1)
    assert unnoticed == [WAITS[kernel]]


@needs_compiler
@pytest.mark.parametrize("kernel", LAUNCHED)
def test_a_nan_spoils_its_own_matrix_alone(libraries, kernel):
    case = {"factors": cases.factors()[0], "application": cases.applied()[0]}[kernel]
    run = applications.apply if case.rows else applications.form
    clean = run(case, libraries[kernel])
    spoiled = run(applications.Spoiled(*case), libraries[kernel])
    for name, a in clean.items():
        np.testing.assert_array_equal(np.delete(spoiled[name], 2, 0), np.delete(a, 2, 0))
    assert np.isnan(spoiled["c" if case.rows else "a"][2]).any()


@needs_compiler
@pytest.mark.parametrize("sizes", [[1], [4, 4, 4], [5, 3, 3, 1], [3] * 150 + [2] * 150 + [1] * 300])
def test_rows_of_packed_sequences(monkeypatch, sizes):
    """Batches that do not grow; more steps than one launch tells of."""
    cuda_standin.install(monkeypatch)
    sizes = np.array(sizes)
    packing = Packing(cuda_standin.library.library_of(sizes), sizes, np.empty(0))
    starts = np.cumsum([0, *sizes])
    np.testing.assert_array_equal(packing.offsets, starts)
    row_of = {(t, b): starts[t] + b for t, size in enumerate(sizes) for b in range(size)}
    np.testing.assert_array_equal(packing.previous(), [row_of[t - 1, b] for t, b in row_of if t])
    lengths = [max(t for t, b in row_of if b == sequence) for sequence in range(sizes[0])]
    np.testing.assert_array_equal(packing.last(), [row_of[t, b] for b, t in enumerate(lengths)])
    np.testing.assert_array_equal(packing.reversal(), [row_of[lengths[b] - t, b] for t, b in row_of])
