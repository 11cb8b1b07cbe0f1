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


TAKE_W = [name for name, operation in OPERATIONS.items() if "u" in operation.base and name != "Reflections"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", TAKE_W)
def test_an_object_stands_for_its_columns(library, name):
    module, convert = LIBRARIES[library]
    if name not in module.__all__:
        pytest.skip("only in NumPy")
    with jax.enable_x64():
        for call in OPERATIONS[name].calls:
            u, *others = ((key, convert(a) if isinstance(a, np.ndarray) else a) for key, a in call.items())
            function = getattr(module, name)
            bare, of_object = (function(w, **dict(others)) for w in (u[1], module.Reflections(u[1])))
            for a, b in zip(arrays(bare), arrays(of_object), strict=True):
                assert_close(a, b)


@pytest.mark.parametrize("name", [name for name in TAKE_W if name in LIBRARIES["jax"][0].__all__])
def test_gradients_in_torch_and_jax_are_those_of_the_oracle(name):
    operation = OPERATIONS[name]
    for call in operation.calls:
        tensors = {key: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for key, a in call.items()}

        def loss(function, u, tensors=tensors):
            results = function(**tensors | {"u": u})
            results = results if isinstance(results, tuple) else (results,)
            return sum(torch.view_as_real(t).sum() if t.is_complex() else t.sum() for t in results)

        expected = torch.func.grad(lambda u: loss(operation.expected, u))(tensors["u"])
        leaf = tensors["u"].clone().requires_grad_()
        loss(getattr(LIBRARIES["torch"][0], name), leaf).backward()
        assert_close(leaf.grad, expected, factor=1e4)
        with jax.enable_x64():
            module, convert = LIBRARIES["jax"]
            arguments = {key: convert(a) if isinstance(a, np.ndarray) else a for key, a in call.items()}

            def of_jax(u, module=module, arguments=arguments):
                leaves = jax.tree.leaves(getattr(module, name)(**arguments | {"u": u}))
                return sum((a.real.sum() + a.imag.sum()) for a in leaves)

            assert_close(np.conj(jax.grad(of_jax)(arguments["u"])), expected, factor=1e4)
