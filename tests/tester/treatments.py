"""What is asked of a problem: values, gradients in every order and subset, forward mode, transforms, compilation.

A treatment draws what it needs once and returns a function from (call, tensors) to results, which then runs on the
package's call and on the oracle's.
"""

import contextlib
import io

import layouts
import oracle
import torch
from compare import Result, column_lengths
from problem import outputs
from torch.utils.checkpoint import checkpoint


def choose(source, problem):
    """One of the treatments that the problem has."""
    kinds = ["values", "backward", "backward", "backward", "twice", "accumulated", "files"]
    if problem.transforms and not problem.is_half:
        kinds += ["second", "forward mode", "func"]
        kinds += ["vmap", "vmap"] if problem.whole else []
        kinds += ["checkpoint"]
        if problem.compiles and source.one_in(1000):
            kinds = ["compiled", "exported"] if can_be_exported(problem) else ["compiled"]
    kind = source.choose(kinds)
    return kind, TREATMENTS[kind](source, problem)


def leaves(source, problem, wanted, *, lay):
    """The problem's tensors for the package: its module's own parameters, others laid out in any way.

    Not in forward mode: torch's own views of lazily conjugated duals fail an assertion of its own.
    """
    own = dict(problem.module.named_parameters()) if problem.module is not None else {}
    found = {}
    for name, value in problem.tensors.items():
        if name in own:
            found[name] = own[name].requires_grad_(name in wanted)
        elif name not in differentiable(problem):
            found[name] = value
        else:
            laid = layouts.tensor(source.rng, value) if lay and source.one_in(4) else value.clone()
            found[name] = laid.detach().requires_grad_(name in wanted)
    return found


def exact(problem, wanted=()):
    """The same for the oracle."""
    return {name: oracle.wide(t).requires_grad_(name in wanted) for name, t in problem.tensors.items()}


def differentiable(problem):
    return [name for name, t in problem.tensors.items() if t.is_floating_point() or t.is_complex()]


def subset(source, problem):
    """Names whose gradients are asked for: all, or some, never none."""
    names = differentiable(problem)
    return tuple(names) if source.flag() else source.some(names) or (source.choose(names),)


def cotangents(source, shapes):
    """A gradient of each result, some of them absent, not all."""
    present = [not source.one_in(4) for _ in shapes]
    if not any(present):
        present[source.among(0, len(present) - 1)] = True
    make = lambda shape, kind: oracle.wide(source.numbers(shape, kind))  # noqa: E731
    return [make(shape, kind) if use else None for (shape, kind), use in zip(shapes, present, strict=True)]


def shapes_of(problem):
    """Shapes of the results, and whether they are complex."""
    with torch.no_grad():
        results = outputs(problem.theirs(exact(problem)))
    return [(t.shape, torch.complex128 if t.is_complex() else torch.float64) for t in results]


def product(results, weights):
    """A real number made of results and weights, which round: those of two results may cancel."""
    terms = [_inner(oracle.rounded(r), w) for r, w in zip(results, weights, strict=True) if w is not None]
    return sum(terms)


def _inner(result, weight):
    weight = weight.to(result.dtype) if result.is_complex() == weight.is_complex() else weight
    return (result * weight.conj()).real.sum() if result.is_complex() else (result * weight).sum()


def gradients(total, tensors, wanted, problem, **how):
    """Gradients as results; those of nothing are zero."""
    given = [tensors[name] for name in wanted]
    if not total.requires_grad:
        found = [None] * len(given)
    else:
        found = torch.autograd.grad(total, given, allow_unused=True, **how)
    pairs = zip(wanted, given, found, strict=True)
    return [_gradient(problem, name, torch.zeros_like(t) if g is None else g) for name, t, g in pairs]


def _gradient(problem, name, value):
    u = name in problem.reflections
    return Result(f"gradient of {name}", value, column_lengths(problem.tensors[name]) if u else 1.0)


def named(results, name="result"):
    return [Result(f"{name} {i}", t) for i, t in enumerate(outputs(results))]


def _values(source, problem):
    """Results without gradients; after the first call, layers may use what they have prepared."""
    calls = source.choose((1, 1, 3))
    mode = source.choose((torch.no_grad, torch.inference_mode, contextlib.nullcontext))
    wanted = subset(source, problem) if mode is contextlib.nullcontext else ()

    def treat(call, tensors):
        with mode():
            for _ in range(calls - 1):
                call(tensors)
            return named(call(tensors))

    return wanted, treat


def _backward(source, problem):
    wanted, weights = subset(source, problem), cotangents(source, shapes_of(problem))

    def treat(call, tensors):
        results = outputs(call(tensors))
        return named(results) + gradients(product(results, weights), tensors, wanted, problem)

    return wanted, treat


def _twice(source, problem):
    """Two backward passes through one graph, with another call in between whose memory could be the first one's."""
    wanted, shapes = subset(source, problem), shapes_of(problem)
    first, second = cotangents(source, shapes), cotangents(source, shapes)
    between = source.flag()

    def treat(call, tensors):
        results = outputs(call(tensors))
        found = gradients(product(results, first), tensors, wanted, problem, retain_graph=True)
        if between:
            others = outputs(call(tensors))
            found += gradients(product(others, second), tensors, wanted, problem)
        found += gradients(product(results, second), tensors, wanted, problem)
        return found + named(results)

    return wanted, treat


def _files(source, problem):
    """Gradients from what was saved in files."""
    wanted, weights = subset(source, problem), cotangents(source, shapes_of(problem))

    def pack(tensor):
        file = io.BytesIO()
        torch.save(tensor, file)
        return file.getvalue()

    def treat(call, tensors):
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda written: torch.load(io.BytesIO(written)))
        with contextlib.nullcontext() if call is problem.theirs else hooks:
            total = product(outputs(call(tensors)), weights)
        return gradients(total, tensors, wanted, problem)

    return wanted, treat


def _accumulated(source, problem):
    """``backward()`` of two calls into the same ``.grad``."""
    wanted, shapes = subset(source, problem), shapes_of(problem)
    both = cotangents(source, shapes), cotangents(source, shapes)

    def treat(call, tensors):
        for name in wanted:
            tensors[name].grad = None
        calls = [product(outputs(call(tensors)), weights) for weights in both]
        for total in calls if between else reversed(calls):
            if total.requires_grad:
                total.backward()
        grads = {name: tensors[name].grad for name in wanted}
        return [
            _gradient(problem, name, torch.zeros_like(tensors[name]) if g is None else g) for name, g in grads.items()
        ]

    between = source.flag()
    return wanted, treat


def _second(source, problem):
    """Gradients of a product of gradients: with respect to all tensors, and in the gradients given."""
    wanted, weights = subset(source, problem), cotangents(source, shapes_of(problem))
    directions = _directions(source, problem, wanted)

    def treat(call, tensors):
        results = outputs(call(tensors))
        first = gradients(product(results, weights), tensors, wanted, problem, create_graph=True)
        total = product([r.value for r in first], [directions[name] for name in wanted])
        return first + gradients(total, tensors, wanted, problem)

    return wanted, treat


def _directions(source, problem, names):
    """A cotangent of the gradient of each tensor."""
    found = {
        name: oracle.wide(source.numbers(problem.tensors[name].shape, problem.tensors[name].dtype)) for name in names
    }
    for name in set(names) & set(problem.reflections):
        found[name] = (found[name] * column_lengths(problem.tensors[name])).tril()
    return found


def _checkpoint(source, problem):
    """Gradients of a product of gradients that are taken within an activation checkpoint."""
    wanted, weights = subset(source, problem), cotangents(source, shapes_of(problem))
    directions = _directions(source, problem, wanted)

    def treat(call, tensors):
        def penalty(*values):
            given = {**tensors, **dict(zip(wanted, values, strict=True))}
            total = product(outputs(call(given)), weights)
            first = gradients(total, given, wanted, problem, create_graph=True)
            return product([r.value for r in first], [directions[name] for name in wanted])

        values = [tensors[name] for name in wanted]
        total = penalty(*values) if call is problem.theirs else checkpoint(penalty, *values, use_reentrant=False)
        return gradients(total, tensors, wanted, problem)

    return wanted, treat


def _forward_mode(source, problem):
    names = subset(source, problem)
    tangents = _tangents(source, problem, names)

    def treat(call, tensors):
        def function(*values):
            return outputs(call({**tensors, **dict(zip(names, values, strict=True))}))

        values = tuple(tensors[name].detach() for name in names)
        directions = tuple(tangents[name].to(v.dtype) for name, v in zip(names, values, strict=True))
        if call is problem.theirs:
            return named(torch.autograd.functional.jvp(function, values, directions)[1], "tangent")
        return named(torch.func.jvp(function, values, directions)[1], "tangent")

    return (), treat


def _tangents(source, problem, names):
    found = {}
    for name in names:
        t = problem.tensors[name]
        found[name] = oracle.wide(source.numbers(t.shape, t.dtype))
        if name in problem.reflections:
            found[name] = found[name] * column_lengths(t)
    return found


def _func(source, problem):
    """``torch.func.vjp`` or ``torch.func.grad``."""
    wanted, weights = subset(source, problem), cotangents(source, shapes_of(problem))
    by_grad = source.flag()

    def treat(call, tensors):
        if call is problem.theirs:
            return gradients(product(outputs(call(tensors)), weights), tensors, wanted, problem)

        def function(*values):
            return product(outputs(call({**tensors, **dict(zip(wanted, values, strict=True))})), weights)

        values = [tensors[name].detach() for name in wanted]
        if by_grad:
            found = torch.func.grad(function, tuple(range(len(values))))(*values)
        else:
            total, pull = torch.func.vjp(function, *values)
            found = pull(torch.ones_like(total))
        return [_gradient(problem, name, g) for name, g in zip(wanted, found, strict=True)]

    return wanted, treat


def _vmap(source, problem):
    """Several problems at once along some axes of some tensors, perhaps with gradients for each."""
    names = subset(source, problem)
    count, with_gradients = source.among(1, 3), source.flag()
    weights = cotangents(source, shapes_of(problem))
    stacks, dims = {}, {}
    for name in names:
        t = problem.tensors[name]
        factor = torch.exp(0.3 * torch.from_numpy(source.rng.standard_normal((count, *t.shape))))  # signs stay
        stacks[name] = (t * factor).to(t.dtype)
        dims[name] = source.among(0, t.dim())

    def treat(call, tensors):
        def function(*values):
            given = {**tensors, **dict(zip(names, values, strict=True))}
            return outputs(call(given))

        def with_respect(*values):
            return torch.func.grad(lambda *v: product(function(*v), weights), tuple(range(len(values))))(*values)

        if call is not problem.theirs:
            stacked = [stacks[name].movedim(0, dims[name]) for name in names]
            over = tuple(dims[name] for name in names)
            inner = with_respect if with_gradients else function
            return named(torch.func.vmap(inner, over)(*stacked))
        separate = []
        for i in range(count):
            values = [oracle.wide(stacks[name][i]).requires_grad_() for name in names]
            results = function(*values)
            if with_gradients:
                given = dict(zip(names, values, strict=True))
                results = [r.value for r in gradients(product(results, weights), given, names, problem)]
            separate.append(results)
        lengths = {
            name: torch.stack([column_lengths(each) for each in stacks[name]])
            for name in set(names) & set(problem.reflections)
        }
        found = named(tuple(torch.stack(each) for each in zip(*separate, strict=True)))
        if with_gradients:
            for result, name in zip(found, names, strict=True):
                result.weight = lengths.get(name, 1.0)
        return found

    return (), treat


def _compiled(source, problem):
    wanted, weights = subset(source, problem), cotangents(source, shapes_of(problem))

    def treat(call, tensors):
        if call is problem.theirs:
            results = outputs(call(tensors))
        else:
            torch._dynamo.reset()
            results = outputs(torch.compile(call, backend="aot_eager")(tensors))
        return named(results) + gradients(product(results, weights), tensors, wanted, problem)

    return wanted, treat


def can_be_exported(problem):
    """Whether a program has no numbers to read: batch sizes and offsets, as with torch's own layers."""
    return problem.module is None and not problem.tensors.keys() - differentiable(problem) and problem.whole


class Program(torch.nn.Module):
    """A call as a module."""

    def __init__(self, call, names):
        super().__init__()
        self.call, self.names = call, names

    def forward(self, *values):
        return self.call(dict(zip(self.names, values, strict=True)))


def _exported(source, problem):
    """A program that was exported strictly trains."""
    wanted, weights = subset(source, problem), cotangents(source, shapes_of(problem))

    def treat(call, tensors):
        if call is problem.theirs:
            results = outputs(call(tensors))
        else:
            torch._dynamo.reset()
            values = tuple(tensors.values())
            program = torch.export.export(Program(call, tuple(tensors)), values, strict=True)
            results = outputs(program.module()(*values))
        return named(results) + gradients(product(results, weights), tensors, wanted, problem)

    return wanted, treat


TREATMENTS = {
    "values": _values,
    "backward": _backward,
    "twice": _twice,
    "accumulated": _accumulated,
    "second": _second,
    "forward mode": _forward_mode,
    "func": _func,
    "vmap": _vmap,
    "compiled": _compiled,
    "exported": _exported,
    "files": _files,
    "checkpoint": _checkpoint,
}
