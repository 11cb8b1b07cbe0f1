"""What code that uses other libraries computes, by itself and by householder, in one run.

    python -m benches.pages.migrating [--threads 1] [--rounds 7] [--only REGEX] [--divide 1]

FastH's own kernels are for GPUs. Its loop, reflection by reflection, and its blocks are written in torch here. expRNN
is its loop over time with torch's exponential of a skew-symmetric matrix. Other libraries take part where they are
installed. Candidates of a work are first compared with each other, in float64. Times are the processor's, in float32,
medians of interleaved rounds: of forward plus backward, or of steps of training (copying, pixels and flows).
``--divide`` divides every size, for a short trial.
"""

import copy
import re
from importlib.util import find_spec

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import householder.torch as ht
from benches import rivals
from benches.measure import clock, heading, interleaved, options, row


def results_and_gradients(functions, leaves):
    """Calls of functions of the same tensors, forward plus backward."""

    def call(function):
        y = function(*leaves)
        return y, *torch.autograd.grad(y, leaves, torch.ones_like(y))

    return {name: lambda function=function: call(function) for name, function in functions.items()}


def applications(n, batch):
    """``W h`` for as many reflections as coordinates, the last a sign."""
    u = torch.randn(n, n).tril()
    u[-1, -1] = 1.0
    functions = {
        "ht.apply": ht.apply,
        "FastH's loop": rivals.with_last_number(rivals.explicit),
        "FastH's blocks": rivals.with_last_number(rivals.Blocked.apply),
    }
    if find_spec("torch_householder"):
        functions["torch_householder_orgqr, then a product"] = rivals.with_last_number(rivals.torch_householder)
    return results_and_gradients(functions, (u.requires_grad_(), torch.randn(batch, n, requires_grad=True)))


def frames(n, m):
    """The first m columns of a product of m reflections."""
    u = torch.randn(n, m).tril(-1) + torch.eye(n, m)
    functions = {"ht.frame": ht.frame}
    if find_spec("torch_householder"):
        from torch_householder import torch_householder_orgqr

        functions["torch_householder_orgqr"] = lambda u: torch_householder_orgqr(u.tril())
    return results_and_gradients(functions, (u.requires_grad_(),))


def rotations(features, transforms, batch):
    """A rotation of a flow, with the gradients of its inputs and reflections."""
    ours, theirs = rotation_pair(features, transforms)
    x, weights = torch.randn(batch, features, requires_grad=True), torch.randn(batch, features)
    reflections = slice(features - 1)  # the last number of m = n has a gradient only here

    def by_ours():
        y = ours(x)
        grad_x, grad_u = torch.autograd.grad(y, (x, ours.reflections), weights)
        return y, grad_x, grad_u[:, reflections]

    def by_theirs():
        y, _ = theirs(x)
        grad_x, grad_q = torch.autograd.grad(y, (x, theirs.q_vectors), weights)
        return y, grad_x, grad_q.flip(0).mT.tril()[:, reflections]  # its vectors are full

    return {"ht.Orthogonal": by_ours, "HouseholderSequence": by_theirs}


def flows(features, transforms, batch):
    """Steps of training a flow: five rotations, each followed by an affine autoregressive map."""
    from nflows.distributions import StandardNormal
    from nflows.flows import Flow
    from nflows.transforms import CompositeTransform, MaskedAffineAutoregressiveTransform

    ours, theirs = zip(*(rotation_pair(features, transforms) for _ in range(5)), strict=True)
    maps = [MaskedAffineAutoregressiveTransform(features, 2 * features) for _ in ours]
    x = torch.randn(batch, features)

    def step(turns):
        layers = [layer for pair in zip(turns, copy.deepcopy(maps), strict=True) for layer in pair]
        flow = Flow(CompositeTransform(layers), StandardNormal([features]))
        return training_step(flow, lambda: -flow.log_prob(x).mean())

    return {"ht.Orthogonal": step([Rotation(turn) for turn in ours]), "HouseholderSequence": step(theirs)}


def rotation_pair(features, transforms):
    """The same rotation as ours and as nflows'."""
    from nflows.transforms import HouseholderSequence

    ours, theirs = (
        ht.Orthogonal(features, bias=False, num_reflections=transforms),
        HouseholderSequence(features, transforms),
    )
    with torch.no_grad():
        ours.reflections[-1, features - 1 :] = -1.0  # if m = n: nflows' last reflection
        theirs.q_vectors.copy_(ours.reflections.mT.flip(0))
    return ours, theirs


class Rotation(nn.Module):
    """An ``ht.Orthogonal`` with the interface of nflows' transforms."""

    def __init__(self, turn):
        super().__init__()
        self.turn = turn

    def forward(self, inputs, _context=None):
        return self.turn(inputs), inputs.new_zeros(len(inputs))


def copying(n, m, batch, delay):
    """The copying task of expRNN's script: ten symbols, asked for after a delay."""
    symbols = torch.randint(1, 9, (10, batch))
    inputs = torch.zeros(delay + 20, batch, dtype=torch.long)
    inputs[:10], inputs[delay + 10] = symbols, 9
    targets = torch.zeros_like(inputs)
    targets[-10:] = symbols
    x = one_hot(inputs, 10).to(torch.get_default_dtype())
    return networks(n, m, x, targets, 9, {"expRNN": rivals.parametrized("matrix_exp")})


def pixels(n, m, batch, steps):
    """Images read pixel by pixel and classified after the last, as in the scripts of expRNN and geotorch."""
    builders = {"expRNN": rivals.parametrized("matrix_exp")}
    if find_spec("geotorch"):
        builders["geotorch"] = rivals.geotorch
    return networks(n, m, torch.rand(steps, batch, 1), torch.randint(10, (batch,)), 10, builders)


def networks(n, m, x, targets, classes, builders):
    """Steps of training recurrent networks that start at equal weights."""
    layer = ht.OrthogonalRNN(x.shape[2], n, nonlinearity="real_modrelu", bias=False, num_reflections=m)
    nn.init.uniform_(layer.cells[0].nonlinearity_bias, -0.01, 0.0)  # at most zero: modReLU is then continuous
    ours = ReadOut(layer, nn.Linear(n, classes), every_step=targets.dim() == 2)
    models = {"ht.OrthogonalRNN": ours} | {name: rivals.Looped(ours, build(n)) for name, build in builders.items()}

    def step(model):
        return training_step(model, lambda: cross_entropy(model(x).flatten(0, -2), targets.flatten()))

    return {name: step(model) for name, model in models.items()}


class ReadOut(nn.Module):
    """A recurrence, read out at every step or after the last one."""

    def __init__(self, layer, readout, every_step):
        super().__init__()
        self.layer = layer
        self.readout = readout
        self.every_step = every_step

    def forward(self, x):
        states, last = self.layer(x)
        return self.readout(states if self.every_step else last[0])


def training_step(model, objective):
    """A step as a function that returns the loss and the gradients of the parameters that all candidates have."""
    own, common = [], []
    for name, parameter in model.named_parameters():
        (own if re.search("reflections|parametrizations|q_vectors", name) else common).append(parameter)
    optimizer = torch.optim.RMSprop([{"params": common}, {"params": own, "lr": 1e-4}], lr=1e-3)

    def step():
        optimizer.zero_grad()
        loss = objective()
        loss.backward()
        optimizer.step()
        return loss.detach(), *(parameter.grad for parameter in common)

    return step


def compare(title, make, sizes):
    """Check that the candidates of a work agree, in float64: in float32, rounding changes signs in modReLU."""
    torch.set_default_dtype(torch.float64)
    ours, *others = (call() for call in make(*sizes).values())
    torch.set_default_dtype(torch.float32)
    for other in others:
        for found, expected in zip(other, ours, strict=True):
            error = ((found - expected).norm() / expected.norm()).item()
            assert error < 1e-6, f"{title}: candidates differ by {error:.1e}"


def main():
    chosen = options(__doc__, threads=1, rounds=7, only="", divide=1)
    torch.manual_seed(0)
    works = [
        (applications, "{} reflections of as many entries, {} vectors", (512, 32)),
        (frames, "frame of {} x {}", (2048, 128)),
        (copying, "copying, n = {}, m = {}, batch {}, delay {}", (190, 190, 128, 1000)),
        (copying, "copying, n = {}, m = {}, batch {}, delay {}", (190, 23, 128, 1000)),
        (pixels, "pixels, n = {}, m = {}, batch {}, {} steps", (170, 170, 128, 784)),
        (pixels, "pixels, n = {}, m = {}, batch {}, {} steps", (170, 21, 128, 784)),
    ]
    if find_spec("nflows"):
        rotation, flow = (f"{name} of {{}} features, {{}} reflections, batch {{}}" for name in ("rotation", "flow"))
        works += [
            (rotations, rotation, (64, 64, 256)),
            (rotations, rotation, (784, 32, 256)),
            (flows, flow, (64, 64, 256)),
            (flows, flow, (784, 32, 256)),
        ]
    heading(chosen.threads, "", "", "median, ms", "times ours")
    for make, title, sizes in works:
        sizes = [max(1, size // chosen.divide) for size in sizes]
        title = title.format(*sizes)
        if not re.search(chosen.only, title):
            continue
        compare(title, make, sizes)
        times = interleaved(make(*sizes), chosen.rounds, at_least=3, clock=clock(chosen.threads))
        fastest = next(iter(times.values())).median
        for name, taken in times.items():
            row(title, name, 1e3 * taken.median, f"{taken.median / fastest:.1f}")


if __name__ == "__main__":
    main()
