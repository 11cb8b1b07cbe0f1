"""Run twelve sequences and applications on a GPU under NVIDIA's compute-sanitizer: ``python compute_sanitizer.py``.

Together they launch every module of ``cuda/``: one block and clusters, low rank and dense, packed and not, numbers of
every size. Each runs under each tool in a process of its own. What a tool says goes to ``sanitizer.txt``.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
LIMIT = 600
"""Seconds of a run: racecheck makes kernels some hundred times slower."""


class Case(NamedTuple):
    n: int
    m: int
    dtype: str = "float32"
    nonlinearity: str = "tanh"
    packed: bool = False
    rows: int = 0
    """Vectors of one application of many matrices, in place of a sequence."""


CASES = (
    Case(64, 8),
    Case(63, 7, packed=True),
    Case(128, 60, "float64", "oplu"),
    Case(512, 32, "bfloat16"),
    Case(64, 64, "float32", "modrelu"),
    Case(30, 4, "complex64", "modrelu"),
    Case(512, 64),  # cluster of 2
    Case(1024, 128, nonlinearity="relu", packed=True),  # cluster of 8
    Case(256, 250),  # dense, cluster of 2
    Case(600, 400, "float64"),  # in memory
    Case(32, 16, rows=2),
    Case(20, 20, "complex128", rows=3),
)


def compute(case: Case) -> None:
    """Run the case, forward and backward, on the current device."""
    import torch

    import householder.torch as ht

    dtype = getattr(torch, case.dtype)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    m = min(case.m, case.n - dtype.is_complex)
    if case.rows:
        u = torch.randn(9, case.n, m, dtype=wide, device="cuda", requires_grad=True)
        ht.apply(u, torch.randn(case.rows, 9, case.n, dtype=wide, device="cuda")).abs().sum().backward()
    else:
        u = torch.randn(case.n, m, dtype=wide, device="cuda", requires_grad=True)
        more = {"batch_sizes": torch.tensor([3, 3, 1])} if case.packed else {}
        if case.nonlinearity == "modrelu":
            moduli = case.n if dtype.is_complex else case.n // 2
            more["nonlinearity_bias"] = torch.full((moduli,), -0.1, device="cuda", dtype=wide.to_real())
        x = torch.randn(*((7,) if case.packed else (3, 3)), case.n, dtype=wide, device="cuda").to(dtype)
        h, last = ht.rnn(u, x, nonlinearity=case.nonlinearity, **more)
        (h.abs().float().sum() + last.abs().float().sum()).backward()
    torch.cuda.synchronize()


def command(tool: str, number: int) -> list[str]:
    """Run one case under one tool; races of blocks of a cluster are in its shared memory too."""
    run = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--kernel-name-exclude", "regex=.*at::.*"]
    return [*run, sys.executable, __file__, str(number)]


def main(report: Path) -> int:
    """Run every case under every tool; how many went wrong."""
    if shutil.which("compute-sanitizer") is None:
        sys.exit("compute-sanitizer is not on the PATH; it is part of the CUDA toolkit")
    wrong = 0
    with report.open("w") as lines:
        for number, case in enumerate(CASES):
            for tool in TOOLS:
                try:
                    done = subprocess.run(
                        command(tool, number), capture_output=True, text=True, timeout=LIMIT, check=False
                    )
                    verdict, said = ("clean" if done.returncode == 0 else "WRONG"), done.stdout + done.stderr
                except subprocess.TimeoutExpired:
                    verdict, said = "HUNG", ""
                wrong += verdict != "clean"
                print(f"{verdict:6} {tool:10} {case}", flush=True)
                lines.write(f"== {verdict} {tool} {case}\n{'' if verdict == 'clean' else said}\n")
    return wrong


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compute(CASES[int(sys.argv[1])])
    else:
        sys.exit(main(Path("sanitizer.txt")) != 0)
