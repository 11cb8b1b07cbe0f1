"""Importing the package is fast, and its public names are complete and documented."""

import inspect
import re

import pytest

import householder as hh

HEAVY = ("torch", "jax", "cupy", "scipy", "lightning_fabric", "matplotlib")


def test_import_and_calls_load_no_heavy_library(run_script):
    out = run_script(
        "import sys, householder as hh, numpy as np; hh.rnn(hh.haar(4, 2), np.zeros((3, 4)))[0];"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert out.strip() == "[]"


def test_the_check_above_can_fail(run_script):
    out = run_script(f"import sys, scipy, householder; print([name for name in {HEAVY} if name in sys.modules])")
    assert "scipy" in out


def test_the_import_of_the_torch_layers_loads_no_compiler(run_script):
    pytest.importorskip("torch")
    late = ("torch._dynamo", "torch._inductor", "torch.onnx", "torch.utils.flop_counter", "triton", "sympy")
    out = run_script(
        "import sys, torch; before = set(sys.modules); import householder.torch;"
        f"print([name for name in {late} if name in sys.modules and name not in before])"
    )
    assert out.strip() == "[]"


def test_the_cpu_loads_no_cuda_modules(run_script):
    pytest.importorskip("torch")
    out = run_script(
        "import sys, torch, householder.torch as ht; layer = ht.OrthogonalRNN(3, 8);"
        "layer(torch.zeros(4, 2, 3))[0].sum().backward(); ht.matrix(layer.cells[0].reflections);"
        "print([name for name in sys.modules if 'householder' in name and 'cuda' in name])"
    )
    assert out.strip() == "[]"


def test_the_import_registers_operators_for_devices_without_kernels(run_script):
    pytest.importorskip("torch")
    out = run_script(
        "import torch, householder.torch; has = torch._C._dispatch_has_kernel_for_dispatch_key;"
        "names = [f'householder::{name}' for name in torch.ops.householder];"
        "print(len(names) > 6, [name for name in names if not has(name, 'CompositeExplicitAutograd')])"
    )
    assert out.strip() == "True []"


def test_version():
    assert re.match(r"\d+", hh.__version__)


def test_all_is_sorted_and_complete():
    kinds = inspect.isfunction, inspect.isclass
    public = {
        name for name, value in vars(hh).items() if any(is_of(value) for is_of in kinds) and not name.startswith("_")
    }
    assert hh.__all__ == sorted(public)


@pytest.mark.parametrize(
    ("name", "modules"),
    [("", []), (".torch", ["acceleration", "functions", "layers", "parametrizations"]), (".jax", [])],
)
def test_nothing_else_shows(run_script, name, modules):
    pytest.importorskip(f"householder{name}")
    out = run_script(f"""
        import householder{name} as library
        print(sorted(name for name in {{*dir(library)}} - {{*library.__all__}} if not name.startswith("_")))
    """)
    assert out.strip() == str(modules)


@pytest.mark.parametrize("name", hh.__all__)
def test_public_functions_are_documented(name):
    doc = inspect.getdoc(getattr(hh, name))
    parameters = inspect.signature(getattr(hh, name)).parameters
    assert ">>> " in doc
    assert all(re.search(rf"\b{parameter}\b", doc) for parameter in parameters)
