"""How time grows with the size, what odd sizes cost, and float64 compared with float32.

    python -m benches.pages.scaling [--threads 1] [--rounds 5] [--sizes 64 96 128 ...] [--output DIR]

Times are forward plus backward of a recurrence through the NumPy functions, batch 32, 100 steps, tanh.
"""

from pathlib import Path

import numpy as np

import householder as hh
from benches.measure import heading, interleaved, options, row

BATCH, STEPS = 32, 100
SIZES = [64, 96, 128, 192, 256, 384, 512, 768, 1024]
SHARES = {"m = 16": lambda _: 16, "m = n / 8": lambda n: n // 8, "m = n": lambda n: n}
ODD = {100: 112, 130: 144, 257: 272}


def work(n, m, dtype=np.float32, nonlinearity="tanh"):
    """A call, forward and backward."""
    rng = np.random.default_rng(0)
    u = rng.standard_normal((n, m)).astype(dtype)
    x, g = (rng.standard_normal((STEPS, BATCH, n)).astype(dtype) for _ in range(2))

    def run():
        _, vjp = hh.rnn_vjp(u, x, nonlinearity=nonlinearity)
        vjp(g)

    return run


def ratio(first, second, rounds):
    """How many times as long as the second call the first one takes, both in turn."""
    times = interleaved({"first": first, "second": second}, rounds)
    return times["first"].median / times["second"].median


def draw(times, sizes, path):
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(6, 4), layout="constrained")).subplots()
    for name, values in times.items():
        axes.loglog(sizes, values, marker="o", label=name)
    axes.set(xlabel="n", ylabel="ms", title=f"Forward and backward, batch {BATCH}, {STEPS} steps", xticks=sizes)
    axes.set_xticks(sizes, labels=map(str, sizes), minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)


def main():
    chosen = options(__doc__, threads=1, rounds=5, sizes=SIZES, output=Path)
    rounds = chosen.rounds
    times = {
        name: [1e3 * interleaved({"": work(n, m(n))}, rounds)[""].median for n in chosen.sizes]
        for name, m in SHARES.items()
    }
    heading(chosen.threads, "n", *(f"{name}, ms" for name in times))
    for n, *values in zip(chosen.sizes, *times.values(), strict=True):
        row(n, *values)
    print("\n| n, m = 16 | rate relative to the next multiple of 16 |\n|---|---|")
    for n, whole in ODD.items():
        row(f"{n} (to {whole})", ratio(work(whole, 16), work(n, 16), rounds) * n / whole)
    print("\n| n, m | float64, times float32: ReLU | tanh |\n|---|---|---|")
    for n, m in [(128, 16), (256, 32), (256, 256), (512, 64)]:
        ratios = (ratio(work(n, m, np.float64, how), work(n, m, np.float32, how), rounds) for how in ("relu", "tanh"))
        row(f"{n}, {m}", *ratios)
    if chosen.output:
        chosen.output.mkdir(parents=True, exist_ok=True)
        draw(times, chosen.sizes, chosen.output / "scaling.png")


if __name__ == "__main__":
    main()
