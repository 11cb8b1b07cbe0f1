"""The CUDA kernels without a GPU: they compile for every architecture, and run on an emulator of CUDA threads.

``HOUSEHOLDER_EVERY_KERNEL=1`` compiles every instance there is instead of a selection. Give it ``-o timeout=0``: that
takes more than an hour on two processors.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from householder._cuda import instances
from tests.cuda import cases, compute_sanitizer, emulation, nvrtc, sanitized, sequences

ROOT = Path(__file__).parents[2]
CAPABILITIES = [75, 80, 90, 100]
RELATED = [86, 89, 103, 120]
"""Capabilities of the same families: a third of the tiles each, unless every kernel is asked for."""
EVERY = os.environ.get("HOUSEHOLDER_EVERY_KERNEL") == "1"

needs_nvrtc = pytest.mark.skipif(nvrtc.library() is None, reason="needs NVRTC: pip install nvidia-cuda-nvrtc")
needs_compiler = pytest.mark.skipif(emulation.compiler() is None, reason="needs a C++ compiler")


def concurrently(function, arguments):
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, arguments))


def dtypes(scalar):
    return [dtype for dtype, arithmetic in instances.SCALAR_OF.items() if arithmetic == scalar]


def selection():
    """(tile, dtype, nonlinearity) of the instances to compile: each tile once or, if asked for, in every way."""
    tiles, nonlinearities = instances.TILES, instances.PHI
    if EVERY:
        return [(tile, dtype, phi) for tile in tiles for dtype in dtypes(tile.scalar) for phi in nonlinearities]
    turns = zip(tiles, cycle(nonlinearities), strict=False)
    once = [(tile, dtypes(tile.scalar)[i % len(dtypes(tile.scalar))], phi) for i, (tile, phi) in enumerate(turns)]
    smallest = [cases.tile("lowrank", "float", 64, 8), cases.tile("dense", "float", 64)]
    return once + [(tile, "float32", phi) for tile in smallest for phi in nonlinearities]


@pytest.mark.long
@needs_nvrtc
@pytest.mark.parametrize("capability", CAPABILITIES + RELATED)
def test_instances_compile_within_their_registers(capability):
    chosen = [(tile, dtype, phi) for tile, dtype, phi in selection() if tile.runs_on(capability)]
    if capability in RELATED and not EVERY:
        chosen = chosen[RELATED.index(capability) % 3 :: 3]

    def resources(instance):
        tile, dtype, phi = instance
        names = [tile.name(direction, dtype, phi) for direction in ("forward", "backward")]
        code = nvrtc.source(instances.SOURCES[tile.kernel])
        options = instances.CLUSTERS if tile.cluster > 1 else ()
        return nvrtc.compile_kernels(code, names, f"sm_{capability}", *options)

    for (tile, _, _), taken in zip(chosen, concurrently(resources, chosen), strict=True):
        for name, used in taken.items():
            assert (used.spilled_bytes, used.stack_bytes) == (0, 0), name
            assert used.registers <= tile.register_budget, name


@pytest.mark.long
@needs_nvrtc
@pytest.mark.parametrize("capability", CAPABILITIES + RELATED if EVERY else CAPABILITIES[:1])
def test_the_fallback_compiles_for_everything(capability):
    code = nvrtc.source(instances.SOURCES["fallback"])

    def resources(dtype):
        directions, nonlinearities = ("forward", "backward"), instances.PHI
        names = [instances.fallback_name(d, dtype, phi) for d in directions for phi in nonlinearities]
        return nvrtc.compile_kernels(code, names, f"sm_{capability}")

    for taken in concurrently(resources, instances.SCALAR_OF):
        for name, used in taken.items():
            assert used.spilled_bytes == 0, name
            assert used.registers <= instances.FALLBACK_REGISTERS, name


def one_of_each_module():
    """A name of each module, with the options that it needs."""
    lowrank, dense = cases.tile("lowrank", "float", 64, 8), cases.tile("dense", "float", 64)
    names = {
        "lowrank": lowrank.name("backward", "float32", "tanh"),
        "dense": dense.name("backward", "float32", "tanh"),
        "fallback": instances.fallback_name("backward", "float32", "tanh"),
        "factors": instances.square_name("factors", 64, "float32"),
        "gradients": instances.square_name("gradients", 64, "float32"),
        "application": instances.application_name("backward", 32, "float32"),
        "packing": instances.PACKING_NAMES["rows"],
    }
    return [(module, name, ()) for module, name in names.items()] + [(*instances.PROBE[:2], instances.CLUSTERS)]


@pytest.mark.long
@needs_nvrtc
@pytest.mark.parametrize("capability", CAPABILITIES + RELATED)
def test_every_module_compiles_for_every_capability(capability):
    chosen = one_of_each_module()
    assert [module for module, *_ in chosen] == list(instances.SOURCES)
    if capability < instances.CLUSTER_CAPABILITY:
        chosen = [one for one in chosen if one[0] != instances.PROBE[0]]

    def resources(one):
        module, name, options = one
        return nvrtc.compile_kernels(nvrtc.source(instances.SOURCES[module]), [name], f"sm_{capability}", *options)

    for taken in concurrently(resources, chosen):
        for name, used in taken.items():
            assert used.spilled_bytes == 0, name


def test_blocks_of_every_tile_fit_on_a_multiprocessor():
    for tile in instances.TILES:
        assert tile.threads * tile.register_budget <= 65536, tile
        assert tile.shared_bytes <= (instances.OPT_IN_SHARED_BYTES if tile.shared_columns else 48 << 10), tile
        assert tile.cluster <= 8, tile  # what every device with clusters can do
        assert tile.factor_registers <= (80 if tile.shared_columns else tile.register_budget // 2), tile


@pytest.mark.parametrize("dtype", instances.SCALAR_OF)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_plan_has_room_for_the_shape(capability, dtype):
    for n in range(1, 2100, 29):
        for m in {1, n // 8 + 1, n // 2 + 1, n}:
            dense, tile = instances.plan(n, m, dtype, capability)
            if tile is not None:
                assert tile.n >= n
                assert dense or tile.m >= m
                assert tile.runs_on(capability)
                assert tile.kernel == ("dense" if dense else "lowrank")


def build_and_check(chosen):
    """Everything that is wrong with the cases, in as many builds as there are processors."""
    kernels = sorted({case.name("forward") for case in chosen})
    count = os.cpu_count() or 1

    def check(part):
        mine = [case for case in chosen if kernels.index(case.name("forward")) % count == part]
        library = emulation.build(name for case in mine for name in case.names)
        return [message for case in mine if (message := sequences.check(case, library))]

    return [message for part in concurrently(check, range(count)) for message in part]


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize("chosen", [cases.every_tile, cases.every_nonlinearity, cases.special])
def test_kernels_compute_the_recurrence_whatever_the_order_of_threads(chosen):
    assert build_and_check(chosen()) == []


@needs_compiler
@pytest.mark.parametrize("kernel", ["lowrank", "dense", "fallback"])
def test_a_nan_spoils_its_own_sequence_alone(kernel):
    tile = {"lowrank": cases.tile("lowrank", "float", 64, 8), "dense": cases.tile("dense", "float", 64)}.get(kernel)
    case = sequences.Case(tile, 50, 5, batch_sizes=(3, 3, 3, 3), dense=kernel == "dense")
    library = emulation.build(case.names)
    problem = sequences.Problem(case)
    clean = problem.run(library, 0)
    problem.x[3, 7] = np.nan  # step 1 of sequence 0
    spoiled = problem.run(library, 0)
    for before, after in ((clean.h, spoiled.h), (clean.delta, spoiled.delta)):
        np.testing.assert_array_equal(before.reshape(4, 3, 50)[:, 1:], after.reshape(4, 3, 50)[:, 1:])
    assert np.isnan(spoiled.h[3, 7])
    assert np.isnan(spoiled.h.reshape(4, 3, 50)[2:, 0]).all()
    assert np.isnan(spoiled.delta.reshape(4, 3, 50)[0, 0]).all()


@pytest.mark.long
@needs_compiler
def test_no_access_outside_of_arrays_and_no_undefined_behaviour():
    assert run_sanitized() == ""


@pytest.mark.long
@needs_compiler
def test_too_little_shared_memory_is_noticed():
    assert "heap-buffer-overflow" in run_sanitized("4")


def run_sanitized(*arguments):
    """What the sanitizers and the checks have to say."""
    command = [sys.executable, "-m", sanitized.__name__, *arguments]
    run = subprocess.run(command, env=sanitized.environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode == 0) == (run.stderr == ""), run.stderr
    return run.stderr


def faults():
    """Each wait of each kernel, once left out; all but the last of a cluster, a matter of good order."""
    of_a_cluster = {"cluster_sync();": 1, "barrier_wait(arrived + slot(), step >> 1 & 1);": 1}
    waits = {
        "lowrank": {"lowrank.cu": {"block_sync();": 2}, "cluster.cuh": of_a_cluster},
        "dense": {"dense.cu": {"block_sync();": 1}, "cluster.cuh": of_a_cluster},
        "fallback": {"fallback.cu": {"block_sync();": 4}},
    }
    for kernel, files in waits.items():
        for file, texts in files.items():
            for text, count in texts.items():
                yield from ((kernel, (file, text, "", number)) for number in range(count))


def name_of(value):
    return value if isinstance(value, str) else f"{value[0]}-{value[1].partition('(')[0]}-{value[3]}"


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize(("kernel", "fault"), list(faults()), ids=name_of)
def test_a_missing_wait_is_noticed(kernel, fault):
    chosen = {
        "lowrank": [sequences.Case(cases.tile("lowrank", "float", 256, 128), 256, 128)],
        "dense": [
            sequences.Case(cases.tile("dense", "float", 128), 128, 9, dense=True),
            sequences.Case(cases.tile("dense", "float", 256), 256, 9, dense=True),
        ],
        "fallback": [sequences.Case(None, 100, 70), sequences.Case(None, 100, 70, dense=True)],
    }[kernel]
    library = emulation.build((name for case in chosen for name in case.names), edit=fault)
    assert any(is_wrong(case, library) for case in chosen)


def is_wrong(case, library):
    try:
        return bool(sequences.check(case, library))
    except emulation.EmulationError:
        return True


def test_the_cases_for_a_device_s_sanitizer_reach_every_kind_of_kernel():
    kinds = set()
    for case in compute_sanitizer.CASES:
        if case.rows:
            real = {"complex64": "float32", "complex128": "float64"}.get(case.dtype, case.dtype)
            found = instances.application("forward", case.n, case.m, 9, case.rows, case.dtype)
            kinds.add(("application", real) if found else ("products", real))
            continue
        factor, dtype = {"complex64": (2, "float32")}.get(case.dtype, (1, case.dtype))
        _, tile = instances.plan(factor * case.n, factor * case.m, dtype, 90)
        kinds.add(("fallback", 1) if tile is None else (tile.kernel, tile.cluster))
    assert len(compute_sanitizer.CASES) == 12
    assert {("lowrank", 1), ("lowrank", 2), ("lowrank", 8), ("dense", 1), ("dense", 2), ("fallback", 1)} <= kinds
    assert {("application", "float32"), ("application", "float64")} <= kinds
    assert {case.nonlinearity for case in compute_sanitizer.CASES} >= {"oplu", "modrelu", "relu", "tanh"}
