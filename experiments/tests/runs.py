"""Experiments that several tests train, what a run leaves, and files as MNIST's."""

import csv
import json
import math

import numpy as np

from householder_experiments.experiment import load_experiment, packaged_config
from householder_experiments.training import Run


def digits(*changes):
    return load_experiment(packaged_config("digits"), changes)


def small_experiment():
    return digits("models={srnn: {hidden_size: 4, learning_rate: 0.01}}", "epochs=1")


def train(experiment, name, directory, steps=math.inf):
    """Train a model, for so many steps at most; return the outcome and the run."""
    run = Run(experiment, name, directory)
    last = run.state.step + steps
    return run.train(lambda _progress: None, lambda: run.state.step >= last), run


def rows(path):
    """Return the rows of a table, without what is a matter of time."""
    with path.open(newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def results(directory):
    """Return the outcomes of a run, or of all runs of a comparison, without what is a matter of time."""
    return [
        {name: value for name, value in outcome.items() if name != "seconds"}
        for path in sorted(directory.rglob("results.json"))
        for outcome in json.loads(path.read_text())
    ]


def idx(array):
    """Return an array as a file of MNIST's."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_mnist(directory, height, width):
    """Write random images of that size and their labels, under the names of MNIST's files."""
    random = np.random.default_rng(0)
    for part, count in (("train", 5012), ("t10k", 20)):
        images, labels = random.integers(256, size=(count, height, width)), np.arange(count) % 10
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            (directory / f"{part}-{name}-ubyte").write_bytes(idx(array))
