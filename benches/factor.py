"""The way back from a matrix to reflections, compared with LAPACK's QR of the same matrix.

    python benches/factor.py [--size 1024] [--threads 2] [--rounds 10]

Both make reflections of all columns; ``torch.linalg.qr`` forms Q from them as well.
"""

import argparse

import torch
from measure import interleaved

import householder as hh


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    hh.set_num_threads(options.threads)
    torch.manual_seed(0)
    print("| dtype | householder.factor, ms | geqrf, ms | with Q (torch.linalg.qr), ms |\n|---|---|---|---|")
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        q = torch.linalg.qr(torch.randn(options.size, options.size, dtype=dtype)).Q.contiguous()
        calls = {
            "factor": lambda q=q: hh.factor(q.numpy()),
            "geqrf": lambda q=q: torch.geqrf(q),
            "qr": lambda q=q: torch.linalg.qr(q),
        }
        times = (f"{1e3 * median:.0f}" for median, _ in interleaved(calls, options.rounds).values())
        print(f"| {str(dtype).removeprefix('torch.')} | {' | '.join(times)} |")


if __name__ == "__main__":
    main()
