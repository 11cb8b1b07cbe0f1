"""Every public function returns, in each library, what the tester's oracle computes for the calls of its record."""

import jax
import numpy as np
import pytest
import torch

from tests.conftest import assert_close
from tests.operations import FUNCTIONS, LIBRARIES, OPERATIONS


def arrays(results):
    """The results as a list of NumPy arrays, without those that are None."""
    results = results if isinstance(results, (tuple, list)) else (results,)
    return [np.asarray(a) for a in results if a is not None]


@pytest.mark.parametrize(("library", "name"), FUNCTIONS)
def test_results_are_those_of_the_oracle(library, name):
    module, convert = LIBRARIES[library]
    operation = OPERATIONS[name]
    for call in operation.calls:
        tensors = {key: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for key, a in call.items()}
        expected = arrays(operation.expected(**tensors))
        with jax.enable_x64():
            arguments = {key: convert(a) if isinstance(a, np.ndarray) else a for key, a in call.items()}
            results = arrays(operation.seen(module, getattr(module, name)(**arguments)))
        assert len(results) == len(expected)
        for a, b in zip(results, expected, strict=True):
            assert_close(a, b, factor=1000)
