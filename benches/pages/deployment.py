"""Ways to run a trained layer, in Python and elsewhere: the time of one step and of whole sequences.

    python -m benches.pages.deployment [--threads 1] [--rounds 10] [--hidden 128] [--reflections 16] [--batch 16]
                                       [--steps 100] [--profile release]

One step is one call, which takes the state of one sequence and returns the next. Whole sequences are one call, too. All
ways run in each round, one after the other. A round takes the median of at least a hundred measurements, and the table
has the medians of the rounds. Errors are those of the states, relative to the largest state in float64. ``nn.RNN``
computes another function of the same size, with a dense matrix. ``--profile`` is cargo's.
"""

import copy
import os
import re
import shutil
import statistics
import subprocess
import sys
import timeit
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import householder as hh
import householder.torch as ht
from benches.measure import heading, options, row
from householder._base import torch_library
from householder.reference.sequence import ReferenceNonlinearity, rnn_forward

ROOT = Path(__file__).parents[2]


class Work(NamedTuple):
    """Inputs ``(T, B, 1)`` and first states ``(1, B, n)``, a folder for files, and cargo's profile."""

    x: Tensor
    h: Tensor
    folder: Path
    profile: str


def timed(call):
    """Return what a call returns, and its time in seconds."""
    return call(), statistics.median(timeit.repeat(call, number=10, repeat=100)) / 10


def eager(layer, work):
    return partial(timed, lambda: layer(work.x, work.h)[0])


def by_numpy(layer, work):
    (cell,) = layer.cells
    u, v, b = (tensor.detach().numpy() for tensor in (cell.reflections, cell.weight_ih, cell.bias))
    x, (h,) = work.x.numpy(), work.h.numpy()
    if len(x) > 1:
        return partial(timed, lambda: hh.rnn(u, x, h, input_weight=v, bias=b)[0])
    recurrence = hh.Recurrence(u, input_weight=v, bias=b)
    return partial(timed, lambda: recurrence.step(h, x[0])[None])


def compiled(layer, work):
    return eager(torch.compile(layer, dynamic=False), work)


def packaged(layer, work):
    exported = torch.export.export(layer, (work.x, work.h))
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(work.folder / "network.pt2"))
    return eager(torch._inductor.aoti_load_package(path), work)


def in_cpp(_layer, work):
    """Run the package that ``packaged`` wrote."""
    torch.save([work.x, work.h], work.folder / "inputs.pt")
    command = [program(work.folder.parent), work.folder]

    def run():
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        states = np.fromfile(work.folder / "output", np.float32)[: -work.h.numel()]  # then come the last ones
        return states, 1e-6 * float(re.fullmatch(r"([\d.]+) us a call\n", printed)[1])

    return run


@cache
def program(folder):
    """Compile ``examples/cpp/serve.cpp`` as the page "Running it elsewhere" does."""
    installed, library = Path(torch.__path__[0]), torch_library.path()
    links = ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", library]
    found = ["-I", installed / "include", "-L", installed / "lib", *links]
    found.append(f"-Wl,-rpath,{installed / 'lib'}:{library.parent}")
    command = ["g++", "-std=c++20", "-O1", "examples/cpp/serve.cpp", "-o", folder / "serve", *found]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder / "serve"


def by_onnx_runtime(layer, work):
    import onnxruntime

    exported = torch.export.export(layer, (work.x, work.h)).run_decompositions(ht.decompositions())
    path = str(work.folder / "model.onnx")
    torch.onnx.export(exported, dynamo=True, verbose=False).save(path)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, settings, ["CPUExecutionProvider"])
    names = (given.name for given in session.get_inputs())
    inputs = dict(zip(names, (work.x.numpy(), work.h.numpy()), strict=True))
    return partial(timed, lambda: session.run(None, inputs)[0])


def in_rust(layer, work):
    """Run ``examples/infer.rs``; one step is the mean of a thousand."""
    from safetensors.torch import load_file, save_file

    one = len(work.x) == 1
    kind, pattern = ("stream", r"([\d.]+) us a step") if one else ("sequence", r"([\d.]+) us in one call")
    files = [str(work.folder / f"{name}.safetensors") for name in ("layer", "x", "y")]
    save_file(layer.state_dict(), files[0])
    save_file({"x": work.x.expand(1000 if one else -1, -1, -1).contiguous()}, files[1])
    settings = ["--quiet", "--locked", "--profile", work.profile, "--example", "infer", "--features", "safetensors"]
    subprocess.run(["cargo", "build", *settings], cwd=ROOT, check=True)
    command = ["cargo", "run", *settings, "--", *files, layer.nonlinearity]

    def run():
        printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        return load_file(files[2])[kind][: len(work.x)], 1e-6 * float(re.search(pattern, printed)[1])

    return run


WAYS = {
    "eager": (eager, ()),
    "NumPy: `hh.Recurrence`, `hh.rnn`": (by_numpy, ()),
    "`torch.compile`": (compiled, ("g++",)),
    "AOTInductor, from Python": (packaged, ("g++",)),
    "AOTInductor, from C++": (in_cpp, ("g++", "linux")),
    "ONNX Runtime": (by_onnx_runtime, ("onnxruntime", "onnxscript")),
    "Rust": (in_rust, ("cargo", "safetensors")),
    "`nn.RNN`, eager": (eager, ()),
    "`nn.RNN`, ONNX Runtime": (by_onnx_runtime, ("onnxruntime", "onnxscript")),
}
"""How each way is made, and the commands, packages and systems that it needs."""


def is_here(need):
    return bool(shutil.which(need) or find_spec(need) or sys.platform == need)


def exact(layer, work):
    """Return the states in float64."""
    if isinstance(layer, nn.RNN):
        return copy.deepcopy(layer).double()(work.x.double(), work.h.double())[0].numpy()
    (cell,) = layer.cells
    u, v, b, x, h = (
        tensor.detach().double().numpy() for tensor in (cell.reflections, cell.weight_ih, cell.bias, work.x, work.h)
    )
    sizes, phi = [x.shape[1]] * len(x), ReferenceNonlinearity("leaky_relu")
    states = rnn_forward(u, x.reshape(-1, 1), h[0], sizes, phi, input_weight=v, bias=b)
    return states.reshape(*x.shape[:2], -1)


def checked(states, truth, name):
    """Return the largest error, relative to the largest state, once it is no mistake."""
    error = np.abs(np.ravel(states) - truth.ravel()).max() / np.abs(truth).max()
    if not error < 1e-4:
        raise SystemExit(f"{name} is wrong by {error:.2g}")
    return error


@torch.no_grad()
def main():
    sizes = {"hidden": 128, "reflections": 16, "batch": 16, "steps": 100}
    chosen = options(__doc__, threads=1, rounds=10, **sizes, profile="release")
    torch.manual_seed(0)
    ours = ht.OrthogonalRNN(1, chosen.hidden, num_reflections=chosen.reflections, learn_h0=True).eval()
    h0 = nn.init.normal_(ours.cells[0].h0)  # Rust reads it with the parameters
    dense = nn.RNN(1, chosen.hidden, nonlinearity="relu").eval()
    missing = {name: [need for need in needs if not is_here(need)] for name, (_, needs) in WAYS.items()}
    titles = "one step, us", "error", f"{chosen.steps} steps of {chosen.batch} sequences, ms", "error"
    heading(chosen.threads, "", *titles)

    with TemporaryDirectory() as folder:
        runs, truths = {}, {}
        for kind, steps, batch in (("one step", 1, 1), ("sequences", chosen.steps, chosen.batch)):
            x, h = torch.randn(steps, batch, 1), h0.expand(1, batch, -1).contiguous()
            work = Work(x, h, Path(folder) / kind.replace(" ", "-"), chosen.profile)
            work.folder.mkdir()
            for name in (name for name in WAYS if not missing[name]):
                layer, way = dense if "nn.RNN" in name else ours, WAYS[name][0]
                runs[name, kind], truths[name, kind] = way(layer, work), exact(layer, work)

        os.environ["OMP_NUM_THREADS"] = str(chosen.threads)  # of the program in C++
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: chosen.threads])  # Rust has a thread a core
        times, errors = {key: [] for key in runs}, dict.fromkeys(runs, 0.0)
        for _ in range(chosen.rounds):
            for key, run in runs.items():
                states, seconds = run()
                times[key].append(seconds)
                errors[key] = max(errors[key], checked(states, truths[key], ", ".join(key)))

    for name, needs in missing.items():
        if needs:
            row(name, f"left out, needs {' and '.join(needs)}", "", "", "")
            continue
        cells = []
        for kind, unit in (("one step", 1e-6), ("sequences", 1e-3)):
            cells += statistics.median(times[name, kind]) / unit, f"{errors[name, kind]:.1e}"
        row(name, *cells)


if __name__ == "__main__":
    main()
