"""``householder.jax``: results and gradients, compiled or not, of the problems that the functions of torch have."""

import compare
import numpy as np
import torch
from objects import of_arrays
from problem import outputs
from treatments import cotangents, exact, gradients, named, product, shapes_of, subset

from kinds import columns, delta, functions

DRAWN = functions.apply, functions.matrix, functions.rnn, columns.apply, columns.sequence, delta.rule


def call(source):
    """A call whose arrays are ordinary numbers in whole sequences: JAX has no others."""
    draw = source.choose(DRAWN)
    while True:
        problem = draw(source)
        if not problem.is_half and not {"batch_sizes", "cu_seqlens"} & set(problem.tensors):
            break
    return lambda record, told: check(source, problem, record, told)


def check(source, problem, record, told):
    import jax

    import householder.jax as hj

    jax.config.update("jax_enable_x64", True)
    wanted, weights, is_compiled = subset(source, problem), cotangents(source, shapes_of(problem)), source.flag()
    told.append(f"{problem.describe()}: householder.jax, gradients of {wanted}, compiled: {is_compiled}")
    given = {key: jax.numpy.asarray(t.numpy()) for key, t in problem.tensors.items()}
    name = problem.name.removeprefix("ht.").removesuffix(" of columns")
    function_of_jax = of_arrays(getattr(hj, name)) if name in ("apply", "matrix", "rnn") else getattr(hj, name)
    factors = [None if w is None else jax.numpy.asarray(w.resolve_conj().numpy()) for w in weights]

    def total(free):
        results = outputs(function_of_jax(**{**given, **free}, **problem.options))
        results = tuple(result for result in results if result is not None)
        products = [(r * w.conj()).real.sum() for r, w in zip(results, factors, strict=True) if w is not None]
        return sum(products), results

    function = jax.value_and_grad(total, has_aux=True)
    (_, results), grads = (jax.jit(function) if is_compiled else function)({key: given[key] for key in wanted})
    tensors = exact(problem, wanted)

    def again():
        expected = outputs(problem.theirs(tensors))
        return named(expected) + gradients(product(expected, weights), tensors, wanted, problem)

    expected = again()
    found = [*results, *(grads[key].conj() for key in wanted)]  # JAX differentiates by the conjugate
    found = [
        compare.Result(right.name, torch.from_numpy(np.array(mine)), right.weight)
        for mine, right in zip(found, expected, strict=True)
    ]
    compare.check(record, found, expected, again, problem.eps, problem.operations, problem.reach)
