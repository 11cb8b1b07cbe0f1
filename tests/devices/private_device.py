"""A plugin of pytest: a device that nobody has written kernels for, torch's key PrivateUse1 over host memory."""

import ctypes
import hashlib
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch

SOURCE = Path(__file__).with_name("private_device.cpp")
NAME = "private"
_loaded = []


def _include():
    return Path(torch.__file__).with_name("include")


def pytest_configure():
    """Build the device, once for each version of torch, and register it before there is a backward pass."""
    _loaded.append(ctypes.CDLL(str(_built())))
    torch.utils.rename_privateuse1_backend(NAME)
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        manual_seed_all=lambda _: None,
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
    )
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()


def _built():
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:20]
    path = Path(tempfile.gettempdir()) / f"householder-device-{key}.so"
    if not path.exists():
        folder, include = Path(torch.__file__).with_name("lib"), _include()
        unfinished = path.with_suffix(f".{id(path)}.so")
        command = ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", str(SOURCE), "-o", str(unfinished)]
        command += [f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}", f"-L{folder}"]
        subprocess.run([*command, "-ltorch_cpu", "-ltorch", "-lc10"], check=True)
        unfinished.replace(path)
    return path


@contextmanager
def without_doubles():
    """The device refuses double precision, as mps does."""
    _loaded[0].set_doubles(0)
    try:
        yield
    finally:
        _loaded[0].set_doubles(1)
