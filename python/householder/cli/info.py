"""``householder info``: what this machine has and what the package uses."""

import os
import platform
from argparse import ArgumentParser, Namespace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import householder
from householder import _core, _cuda
from householder._base import torch_library
from householder.cli.errors import UserError

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROCESSOR = Path("/proc/cpuinfo")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    text = "only the path of the library for programs without Python"
    parser.add_argument("--libraries", action="store_true", help=text)


def info(options: Namespace) -> int:
    """Print the description of this machine, or the path of the library; the exit status is 0.

    Raises
    ------
    UserError
        The library is asked for, and this installation has none.
    """
    if options.libraries:
        path = torch_library.path()
        if path is None:
            raise UserError(
                "this installation has no library for programs without Python; wheels for Linux and macOS do"
            )
        print(path)
        return 0
    machine = describe()
    width = max(map(len, machine))
    for heading, text in machine.items():
        print(f"{heading:<{width}}  {text}")
    return 0


def describe() -> dict[str, str]:
    """Say which versions are installed and what the kernels use, as ``{heading: text}``.

    Examples
    --------
    >>> from householder.cli.info import describe
    >>> describe()["instruction set"] in ("avx512", "avx2", "neon", "scalar")
    True
    """
    return {
        "householder": f"{householder.__version__}, {Path(householder.__file__).parent}",
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "NumPy": _version("numpy"),
        "torch": _version("torch"),
        "processor": processor(),
        "instruction set": _core.instruction_set() + _forced(),
        "threads": f"{householder.get_num_threads()} of {os.cpu_count()} processors; torch's own in householder.torch",
        "huge pages": _huge_pages(),
    } | _cuda.describe()


def processor() -> str:
    """Name the processor."""
    if PROCESSOR.exists():
        for line in PROCESSOR.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _forced() -> str:
    requested = os.environ.get("HOUSEHOLDER_SIMD")
    if not requested:
        return ""
    heeded = "" if requested == _core.instruction_set() else " is ignored: this machine does not have it"
    return f" (HOUSEHOLDER_SIMD={requested}{heeded})"


def _huge_pages() -> str:
    if not HUGE_PAGES.exists():
        return "not on this system"
    setting = HUGE_PAGES.read_text().split("[")[1].split("]")[0]
    return setting + (" (long sequences ask for them)" if setting == "madvise" else "")
