"""One check of ``householder gpu-check``, in the process that the supervisor started for it.

``python -m householder.cli.gpu_check.worker KIND NAME WORD FILE`` writes what the check found to the file. The kinds
are ``machine``, ``check``, ``block-scope``, ``timing`` and ``quick-timing``.
"""

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from householder import _cuda
from householder._base import notices
from householder._cuda import instances, kernels
from householder.cli.gpu_check.supervisor import Row


def main(arguments: list[str]) -> None:
    """Run the check and write its result; a broken kernel may end the process at any point."""
    kind, name, word, file = arguments
    os.environ[notices.VARIABLE] = "require"  # torch operations must not replace a kernel unnoticed
    try:
        row = {"passed": True, "detail": "", **KINDS[kind](name)}
    except Exception as error:  # every exception is a result
        traceback.print_exc()
        row = {"passed": False, "detail": f"{type(error).__name__}: {error}"}
    row |= {"check": name, "word": word, "kernels": kernels.compiled()}
    Path(file).write_text(json.dumps(row))


def machine(name: str) -> Row:  # noqa: ARG001
    """Describe the machine, and say whether it can run the checks."""
    described = _cuda.describe()
    if described["CUDA"] != "available":
        return {"passed": False, "detail": f"CUDA is {described['CUDA']}"}
    try:
        import torch
    except ModuleNotFoundError:
        return {"passed": False, "detail": "torch is not installed; this needs: pip install torch"}
    if not torch.cuda.is_available():
        return {"passed": False, "detail": "this torch finds no CUDA device"}
    cudnn: Any = torch.backends.cudnn
    described["torch"] = f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn.version()}"
    return {"machine": described | _of_the_driver()}


def _of_the_driver() -> dict[str, str]:
    """Ask the driver's own program for its version, clocks, power and temperature."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    fields = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,temperature.gpu,compute_mode"
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader"]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return {f"nvidia-smi ({fields})": asked.stdout.strip().replace("\n", "; ") or asked.stderr.strip()}


def check(name: str) -> Row:
    """Compare with the CPU."""
    from householder.cli.gpu_check.correctness import CHECKS

    return {"detail": CHECKS[name]("cuda")}


def block_scope(name: str) -> Row:  # noqa: ARG001
    """Compare clusters with the CPU where barriers have the default scope of PTX."""
    instances.CLUSTERS = (*instances.CLUSTERS, "-DHOUSEHOLDER_BLOCK_SCOPE")
    return check("clusters")


def timing(name: str, *, quick: bool = False) -> Row:
    """Time a case."""
    from householder.cli.gpu_check.timing import cases, compare

    (case,) = (case for case in cases(quick) if str(case) == name)
    report = compare(case, quick=quick)
    verdicts = (f"{f['pass']}, {f['way']}: {f['winner']} {f['times']:.2f} times faster" for f in report["faster"])
    return {"timing": report, "detail": "; ".join(verdicts)}


KINDS: dict[str, Callable[[str], Row]] = {
    "machine": machine,
    "check": check,
    "block-scope": block_scope,
    "timing": timing,
    "quick-timing": partial(timing, quick=True),
}


if __name__ == "__main__":
    main(sys.argv[1:])
