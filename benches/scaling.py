"""How time grows with the size, what odd sizes cost, and float64 compared with float32.

    python benches/scaling.py [--threads 1] [--rounds 5] [--sizes 64 96 128 ...] [--output DIR]

Times are forward plus backward of a recurrence through the NumPy functions, batch 32, 100 steps, tanh.
"""

import argparse
from pathlib import Path

import numpy as np
from measure import interleaved

import householder as hh

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
        axes.loglog(sizes, [1e3 * t for t in values], marker="o", label=name)
    axes.set(xlabel="n", ylabel="ms", title=f"Forward and backward, batch {BATCH}, {STEPS} steps", xticks=sizes)
    axes.set_xticks(sizes, labels=map(str, sizes), minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of the first table and the figure")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write scaling.png there")
    options = parser.parse_args()
    rounds = options.rounds
    hh.set_num_threads(options.threads)
    times = {
        name: [interleaved({"": work(n, m(n))}, rounds)[""].median for n in options.sizes] for name, m in SHARES.items()
    }
    print("| n | " + " | ".join(f"{name}, ms" for name in times) + " |\n|---|" + "---|" * len(times))
    for i, n in enumerate(options.sizes):
        print(f"| {n} | " + " | ".join(f"{1e3 * values[i]:.2f}" for values in times.values()) + " |")
    print("\n| n, m = 16 | rate relative to the next multiple of 16 |\n|---|---|")
    for n, whole in ODD.items():
        print(f"| {n} (to {whole}) | {ratio(work(whole, 16), work(n, 16), rounds) * n / whole:.2f} |")
    print("\n| n, m | float64, times float32: ReLU | tanh |\n|---|---|---|")
    for n, m in [(128, 16), (256, 32), (256, 256), (512, 64)]:
        ratios = (ratio(work(n, m, np.float64, how), work(n, m, np.float32, how), rounds) for how in ("relu", "tanh"))
        print(f"| {n}, {m} | {' | '.join(f'{r:.2f}' for r in ratios)} |")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        draw(times, options.sizes, options.output / "scaling.png")


if __name__ == "__main__":
    main()
