"""The kernels are in one library, which the extension module loads, and which must be of the same build."""

import ctypes
import shutil
from pathlib import Path

import pytest

from householder import _core
from householder._base import torch_library

LIBRARY = torch_library.path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the extension module of this system has the kernels")


def test_the_extension_module_has_no_kernels():
    assert 4 * Path(_core.__file__).stat().st_size < LIBRARY.stat().st_size


def imported_with(library, tmp_path, run_script):
    """Import a copy of the extension module beside a library, and return what is said."""
    module = tmp_path / Path(_core.__file__).name
    shutil.copy(_core.__file__, module)
    if library is not None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / LIBRARY.name).write_bytes(library)
    return run_script(f"""
        import importlib.util
        spec = importlib.util.spec_from_file_location("householder._core", {str(module)!r})
        try:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        except ImportError as error:
            print(error)
        else:
            print(module.get_num_threads() >= 1)
    """).strip()


def test_the_module_loads_the_library_beside_it(tmp_path, run_script):
    assert imported_with(LIBRARY.read_bytes(), tmp_path, run_script) == "True"


def test_a_missing_library_is_named(tmp_path, run_script):
    said = imported_with(None, tmp_path, run_script)
    assert str(tmp_path / "lib" / LIBRARY.name) in said
    assert said.endswith("install the package again")


def test_a_library_of_another_build_is_refused(tmp_path, run_script):
    build = bytes(ctypes.c_uint64.in_dll(ctypes.CDLL(str(LIBRARY)), "householder_interface"))
    library = LIBRARY.read_bytes()
    assert library.count(build) == 1
    said = imported_with(library.replace(build, bytes(8)), tmp_path, run_script)
    assert "another version of the extension module" in said
