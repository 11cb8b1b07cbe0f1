"""One case: a kind, drawn by its seed and index, and what it came to."""

import contextlib
import traceback
import warnings

import compare
import numpy as np
import torch
import treatments
from kinds import KINDS
from problem import Problem
from source import Source


def kind_of(seed, index):
    """The kind of a case, and the source of everything else in it."""
    source = Source(seed, index)
    names = list(KINDS)
    weights = np.array([KINDS[name].weight for name in names], float)
    return names[source.rng.choice(len(names), p=weights / weights.sum())], source


def case(seed, index, kinds):
    """Run a case if it is of one of these kinds: its kind, its record, and what went wrong if something did."""
    name, source = kind_of(seed, index)
    if name not in kinds:
        return None
    record, told = compare.Record(cases=1), [name]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            asked = KINDS[name].draw(source)
            if isinstance(asked, Problem):
                told.append(asked.describe())
                solve(source, asked, record, told)
            else:
                asked(record, told)
    except compare.DefectError as defect:
        return name, record, f"{'; '.join(told)}: {defect}"
    except Exception:
        return name, record, f"{'; '.join(told)}: {traceback.format_exc()}"
    return name, record, None


@contextlib.contextmanager
def threads(count):
    """Let calls of the package use so many threads; the oracle has one."""
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def solve(source, problem, record, told):
    """Treat a problem in one way and compare."""
    kind, (wanted, treat) = treatments.choose(source, problem)
    told.append(f"{kind} of {wanted}")
    tensors = treatments.leaves(source, problem, wanted, lay=kind != "forward mode")
    with threads(source.choose((1, 2, 2, 3))):
        found = treat(problem.ours, tensors)

    def again():
        return treat(problem.theirs, treatments.exact(problem, wanted))

    compare.check(record, found, again(), again, problem.eps, problem.operations, problem.reach)
    for name, value in problem.tensors.items():
        if not _same_bits(tensors[name], value):
            raise compare.DefectError(f"{name} was changed")


def _same_bits(a, b):
    a, b = (torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach() for t in (a, b))
    return torch.equal(a.nan_to_num(), b.nan_to_num())
