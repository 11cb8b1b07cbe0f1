"""One record for each public function: what the tests ask of it, in NumPy, torch and JAX.

A record has calls, what they must return, the tester's kinds that draw it, and mistakes. Tests of values, errors,
masks, memory and names read the records. ``structure/test_operations.py`` names the record, and the part of it, that is
missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import householder as hh
import householder.jax as hj
import householder.torch as ht
from tests.conftest import randn
from tests.tester import oracle

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARIES = {"numpy": (hh, np.asarray), "torch": (ht, torch.from_numpy), "jax": (hj, jnp.asarray)}
"""Each library, and how it makes an array of NumPy's."""


F, C = np.ones, np.complex128
COMPLEX = {"u": F((5, 3), C)}
MODRELU = {"nonlinearity": "modrelu"}
PACKED = {"x": F((6, 4))}
TWO_HEADS = {"q": F((1, 6, 2, 3)), "k": F((1, 6, 2, 3))}
TWO_ROWS = {"q": F((2, 6, 1, 3)), "k": F((2, 6, 1, 3)), "v": F((2, 6, 2, 3))}


class Mistake(NamedTuple):
    """An argument with a wrong value, the rest of the call, what else is said, and the libraries that take it."""

    argument: str
    value: Any
    rest: dict[str, Any] = {}  # noqa: RUF012
    says: str | None = None
    without: tuple[str, ...] = ()


class Operation(NamedTuple):
    """What tests ask of a public function. Fields without a default are asked of each."""

    calls: list[dict[str, Any]]
    """Calls that together have every argument that takes an array."""
    expected: Callable[..., Any]
    """The results for the arguments of a call, which are tensors, by the oracle of the tester."""
    kinds: tuple[str, ...]
    """The tester's kinds that draw random calls."""
    seen: Callable[[Any, Any], Any] = lambda _, results: results
    """What of the results is compared, from the library and the results."""
    base: dict[str, Any] = {}  # noqa: RUF012
    """The call in which the mistakes are made."""
    values: list[Mistake] = []  # noqa: RUF012
    """Mistakes that are a ``ValueError``; there is one for each argument that a call needs."""
    types: list[Mistake] = []  # noqa: RUF012
    """Mistakes that are a ``TypeError``."""


def drawn(*shape: int, dtype: Any = float) -> Any:
    """Gaussian numbers, the same for the same shape."""
    return randn(np.random.default_rng(shape), shape, dtype)


OF_ATTENTION = [
    Mistake("q", F(3)),
    Mistake("k", F((1, 5, 1, 3))),
    Mistake("v", F((1, 6, 0, 3))),
    Mistake("g", F((1, 6, 1))),
    Mistake("g", F((1, 6, 2)) / 2, says="0.5", without=("jax",)),
    Mistake("initial_state", F((1, 2, 4, 3))),
    Mistake("cu_seqlens", np.array([0, 4]), says="begin with 0, never decrease and end with T = 6"),
    Mistake("cu_seqlens", np.array([2, 0, 4]), says="these are lengths, whose sequences end at [0, 2, 2, 6]"),
    Mistake("cu_seqlens", np.array([0, 6, 6, 2]), says="never decrease and end with T = 6"),
    Mistake("v", F((1, 6, 3, 3)), TWO_HEADS),
    Mistake("states_at", [2, 2], says="[2, 2], expected increasing numbers of tokens from 0 to T = 6"),
    *(Mistake("states_at", positions) for positions in ([], [-1, 3], [3, 7], [4, 2])),
]
OF_LINEAR_ATTENTION = [*OF_ATTENTION, Mistake("cu_seqlens", np.array([0, 6]), TWO_ROWS, "B = 1")]
OF_DELTA = [
    *OF_ATTENTION,
    Mistake("beta", F((1, 6))),
    Mistake("cu_seqlens", np.array([0, 6]), TWO_ROWS | {"beta": F((2, 6, 2))}, "B = 1"),
    Mistake("num_householder", 0),
    Mistake("num_householder", 2),
]
OF_TYPES_OF_ATTENTION = [
    Mistake("q", F((1, 6, 1, 3), C)),
    Mistake("k", F((1, 6, 1, 3), np.float32)),
    Mistake("v", None, says="expected"),
    Mistake("scale", True),
    Mistake("scale", F(()), says="expected a number"),
    Mistake("scale", "big"),
    Mistake("output_final_state", 1),
    Mistake("use_qk_l2norm_in_kernel", 1),
    Mistake("cu_seqlens", np.array([0.0, 6.0])),
    Mistake("states_at", 3),
    *(Mistake("states_at", [position], says=repr(position)) for position in (1.0, True, None)),
]

OF_TYPES_OF_DELTA = [*OF_TYPES_OF_ATTENTION, Mistake("beta", None, says="expected")]
ONE_ROW = {"q": F((1, 6, 1, 3)), "k": F((1, 6, 1, 3)), "v": F((1, 6, 2, 3))}

U, H, X, TAU = drawn(4, 2), drawn(3, 4), drawn(6, 4), drawn(2)
ANGLES, UNITARY = drawn(4), drawn(4, 2, dtype=C)
SEQUENCE = {
    "u": U, "x": X, "h0": drawn(2, 4), "input_weight": drawn(4, 4), "bias": drawn(4), "batch_sizes": np.full(3, 2),
    "nonlinearity": "modrelu", "nonlinearity_bias": TAU,
}  # fmt: skip
CELL = {name: SEQUENCE[name] for name in SEQUENCE if name not in ("x", "h0", "batch_sizes")}
ATTENTION = {
    "q": drawn(1, 3, 2, 4), "k": drawn(1, 3, 2, 4) / 2, "v": drawn(1, 3, 2, 4), "g": -abs(drawn(1, 3, 2)),
    "cu_seqlens": np.array([0, 2, 3]), "initial_state": drawn(2, 2, 4, 4),
}  # fmt: skip
DELTA = ATTENTION | {"beta": 1 / (1 + drawn(1, 3, 2) ** 2)}
DRAFT = {
    "state": drawn(2, 2, 4, 4), "k": drawn(2, 3, 2, 4) / 2, "v": drawn(2, 3, 2, 4), "g": -abs(drawn(2, 3, 2)),
    "beta": 1 / (1 + drawn(2, 3, 2) ** 2), "accepted": np.array([1, 3]),
}  # fmt: skip
OF_DRAFT = {
    "state": F((2, 2, 3, 3)), "k": F((2, 6, 1, 3)), "v": F((2, 6, 2, 3)), "beta": F((2, 6, 2)), "accepted": [2, 4],
}  # fmt: skip
LAPACK = dict(zip(("a", "tau"), hh.to_lapack(U), strict=True))


def gradients(function, grads, *tensors):
    """The gradients of the tensors, from those of the results."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    return torch.autograd.grad(results, leaves, grads)


def tape(u, h):
    """The vectors before the first k columns are applied: a column of zeros is the identity."""
    vectors = [oracle.apply(u * (torch.arange(u.shape[1]) >= k), h) for k in range(u.shape[1] + 1)]
    return vectors[0], torch.stack(vectors, -2)


def of_object(u, tau=None, phases=None, columns="trapezoidal"):
    """W of ``Reflections`` with these arguments."""
    if tau is None and columns == "trapezoidal":
        return oracle.matrix(u, phases)
    return oracle.of_columns(u, tau, columns)


def tangent(u, h, tangent_u, tangent_h, tangent_phases=None):
    """The tangent of an application, of W with phases where they have one."""
    if tangent_phases is None:
        return torch.func.jvp(oracle.apply, (u, h), (tangent_u, tangent_h))[1]
    inputs = torch.from_numpy(UNITARY), h, torch.from_numpy(ANGLES)
    return torch.func.jvp(oracle.apply, inputs, (tangent_u, tangent_h, tangent_phases))[1]


def attention(q, k, v, beta=None, states_at=None, **others):
    """Outputs and no final states, and states after chosen tokens."""
    options = others | {"scale": q.shape[-1] ** -0.5}
    results = oracle.delta_rule(q, k, v, beta, **options)[0], None
    return results if states_at is None else (*results, oracle.states_after(states_at, q, k, v, beta, **options))


def first_of(function, name):
    """The first result of a function, and the gradient of this argument from one of ones."""

    def both(**tensors):
        def result(t):
            return function(**tensors | {name: t})[0]

        first = result(tensors[name])
        return first, gradients(result, torch.ones_like(first), tensors[name])[0]

    return both


def first_and_gradient(name):
    """What ``first_of`` computes, of the results of a function with ``vjp``."""
    return lambda _, results: (results[0][0], getattr(results[1](np.ones_like(results[0][0])), name))


def one_step(u, **others):
    """The state after that of ``seen_step``."""
    return oracle.rnn(u, torch.from_numpy(H[:1]), torch.from_numpy(H[1]), **others)[1]


def nearest(a):
    """The unitary factor of the polar decomposition."""
    left, _, right = torch.linalg.svd(a, full_matrices=False)
    return left @ right


OPERATIONS = {
    "apply": Operation(
        calls=[{"u": U, "h": H}, {"u": UNITARY, "h": drawn(3, 4, dtype=C)}],
        expected=oracle.apply,
        kinds=("apply", "columns", "arrays"),
        base={"u": F((5, 3)), "h": F((2, 5))},
        values=[
            Mistake("u", F(5)),
            Mistake("u", F((3, 5)), says="with 1 <= m <= n; Reflections(u, columns='full') take any number"),
            Mistake("u", F((2, 5)), {"h": F((5, 3))}, "h has shape (5, 3): are u and h swapped?"),
            Mistake("h", F((5, 3)), {"u": F((7, 5))}, "h has shape (5, 3): are u and h swapped?"),
            Mistake("u", F((5, 0))),
            Mistake("u", F((5, 5), C), {"h": F((2, 5), C)}, "m <= n - 1"),
            Mistake("u", F((2, 5, 3)), {"h": F((3, 5))}),
            Mistake("h", F((2, 4))),
            Mistake("h", F(())),
            Mistake("h", F((3, 5)), {"u": F((2, 5, 3))}),
            Mistake("method", "fast"),
            Mistake("method", None),
        ],
        types=[
            Mistake("u", F((5, 3), bool), without=("numpy",)),
            Mistake("h", F((2, 5), np.float32)),
            Mistake("h", F((2, 5), C)),
            Mistake("h", None, says="expected"),
        ],
    ),
    "backward": Operation(
        calls=[{"u": U, "h": H, "grad_c": drawn(4, 3).T.copy(), "tape": hh.forward_tape(U, H)[1]}],
        expected=lambda u, h, grad_c, **_: gradients(oracle.apply, grad_c, u, h),
        kinds=("arrays",),
    ),
    "commit": Operation(
        calls=[DRAFT, DRAFT | {"accepted": np.array([2, 2]), "g": None, "beta": None}],
        expected=oracle.committed,
        kinds=("drafts",),
        base=OF_DRAFT,
        values=[
            Mistake("state", F((2, 2, 4, 3))),
            Mistake("k", F((2, 6, 3))),
            Mistake("k", F((2, 6, 0, 3))),
            Mistake("v", F((2, 5, 2, 3))),
            Mistake("beta", F((2, 6))),
            Mistake("g", F((2, 6, 1))),
            Mistake("g", F((2, 6, 2)) / 2, says="0.5", without=("jax",)),
            Mistake("num_householder", 0),
            Mistake("k", F((2, 6, 1, 3)), {"num_householder": 4}, "num_householder = 4"),
            Mistake("accepted", [1], says="[1], expected a number of tokens from 0 to T = 6 for each of the B = 2"),
            *(Mistake("accepted", numbers) for numbers in ([1, 7], [-1, 2], [1, 2, 3])),
        ],
        types=[
            Mistake("state", F((2, 2, 3, 3), np.float32)),
            Mistake("k", F((2, 6, 1, 3), C)),
            Mistake("v", F((2, 6, 2, 3), np.float32)),
            Mistake("beta", F((2, 6, 2), np.float32)),
            Mistake("use_qk_l2norm_in_kernel", 1),
            Mistake("accepted", 3),
            Mistake("accepted", [1.0, 2.0], says="1.0, expected an integer"),
        ],
    ),
    "delta_rule": Operation(
        calls=[DELTA, DELTA | {"states_at": [0, 1, 2]}],
        expected=attention,
        kinds=("delta rule", "delta arrays", "decoding"),
        base=ONE_ROW | {"beta": F((1, 6, 2))},
        values=OF_DELTA,
        types=OF_TYPES_OF_DELTA,
    ),
    "delta_rule_vjp": Operation(
        calls=[DELTA],
        expected=first_of(attention, "k"),
        kinds=("delta arrays",),
        seen=first_and_gradient("k"),
        base=ONE_ROW | {"beta": F((1, 6, 2))},
        values=OF_DELTA,
        types=OF_TYPES_OF_DELTA,
    ),
    "factor": Operation(
        calls=[{"q": hh.nearest(drawn(4, 4))}],
        expected=lambda q: q,
        kinds=("factor",),
        seen=lambda library, u: library.matrix(u),
        base={"q": np.eye(3)},
        values=[
            Mistake("q", F((2, 3))),
            Mistake("q", F((0, 0))),
            Mistake("q", F((1, 1), C)),
            Mistake("q", 2 * np.eye(3), says="orthogonal"),
            Mistake("q", np.full((3, 3), np.nan), says="q has entries that are not finite"),
            Mistake("q", np.diag([1, np.inf]), says="q has entries that are not finite"),
            Mistake("m", 4),
            Mistake("m", 3, {"q": np.eye(3, dtype=C)}),
        ],
        types=[
            Mistake("q", None, says="expected"),
            Mistake("m", 1.0),
        ],
    ),
    "forward_tape": Operation(
        calls=[{"u": U, "h": H}],
        expected=tape,
        kinds=("arrays",),
    ),
    "frame": Operation(
        calls=[{"u": U}, {"u": UNITARY}],
        expected=lambda u: oracle.matrix(u)[:, : u.shape[1]],
        kinds=("frame",),
        base={"u": F((5, 3))},
        values=[Mistake("u", F(5))],
    ),
    "from_lapack": Operation(
        calls=[LAPACK],
        expected=lambda a, tau: oracle.of_columns(a, tau, "trapezoidal"),
        kinds=(),
        seen=lambda library, u: library.matrix(u),
    ),
    "haar": Operation(
        calls=[{"n": 4, "rng": 0}],
        expected=lambda n, **_: torch.eye(n, dtype=torch.float64),
        kinds=("haar",),
        seen=lambda library, u: (w := library.matrix(u)).T @ w,
        base={"n": 4, "rng": 0},
        values=[
            Mistake("m", 5),
            Mistake("n", 0),
            Mistake("size", (2, -1), says="-1"),
            Mistake("size", -1),
            Mistake("m", 4, {"dtype": "complex128"}),
        ],
        types=[
            Mistake("n", True),
            Mistake("n", "3"),
            Mistake("rng", "0"),
            Mistake("rng", 7.0),
            Mistake("dtype", "int64"),
        ],
    ),
    "jvp": Operation(
        calls=[
            {"u": U, "h": H, "tangent_u": drawn(2, 4).T.copy(), "tangent_h": drawn(4, 3).T.copy()},
            {
                "u": hh.Reflections(UNITARY, phases=ANGLES),
                "h": drawn(3, 4, dtype=C),
                "tangent_u": UNITARY[::-1].copy(),
                "tangent_h": drawn(3, 4, dtype=C)[::-1].copy(),
                "tangent_phases": ANGLES[::-1].copy(),
            },
        ],
        expected=tangent,
        kinds=("arrays",),
    ),
    "linear_attention": Operation(
        calls=[ATTENTION, ATTENTION | {"states_at": [1, 3]}],
        expected=attention,
        kinds=("delta rule", "delta arrays"),
        base=ONE_ROW,
        values=OF_LINEAR_ATTENTION,
        types=OF_TYPES_OF_ATTENTION,
    ),
    "linear_attention_vjp": Operation(
        calls=[ATTENTION],
        expected=first_of(attention, "k"),
        kinds=("delta arrays",),
        seen=first_and_gradient("k"),
        base=ONE_ROW,
        values=OF_LINEAR_ATTENTION,
        types=OF_TYPES_OF_ATTENTION,
    ),
    "matrix": Operation(
        calls=[{"u": U}, {"u": drawn(3, 3)}, {"u": UNITARY}],
        expected=oracle.matrix,
        kinds=("matrix", "columns", "arrays"),
        base={"u": F((5, 3))},
        values=[
            Mistake("u", F((0, 0))),
            Mistake("u", F((3, 3), C), says="m <= n - 1"),
        ],
    ),
    "nearest": Operation(
        calls=[{"a": U}],
        expected=nearest,
        kinds=("haar",),
        base={"a": F((3, 2))},
        values=[Mistake("a", F(3)), Mistake("a", F((2, 2)) * np.nan, says="not finite", without=("jax",))],
        types=[Mistake("a", None, says="expected")],
    ),
    "normalize": Operation(
        calls=[{"u": U}],
        expected=lambda u: u.tril() / u.tril().norm(dim=0),
        kinds=(),
    ),
    "real_form": Operation(
        calls=[{"w": drawn(2, 2, dtype=C)}],
        expected=lambda w: torch.cat([torch.cat([w.real, -w.imag], 1), torch.cat([w.imag, w.real], 1)]),
        kinds=(),
    ),
    "Reflections": Operation(
        calls=[{"u": U, "tau": TAU, "columns": "full"}, {"u": UNITARY, "phases": ANGLES}],
        expected=of_object,
        kinds=("columns",),
        seen=lambda _, w: w.matrix(),
        base={"u": F((5, 3))},
        values=[
            Mistake("u", F(5)),
            Mistake("u", F((3, 5))),
            Mistake("u", F((5, 5), C), says="m <= n - 1"),
            Mistake("phases", F(5), says="float64"),
            Mistake("phases", F(4), COMPLEX),
            Mistake("phases", F((2, 5)), {"u": F((3, 5, 2), C)}),
            Mistake("tau", F(4)),
            Mistake("tau", F((1, 3)), {"u": F((2, 5, 3))}),
            Mistake("tau", F(3), {"u": F((3, 5)), "columns": "full"}),
            Mistake("tau", F(3, C), COMPLEX | {"phases": F(5)}, "phases"),
            Mistake("columns", "square"),
            Mistake("columns", None),
        ],
        types=[
            Mistake("u", F((5, 3), bool), without=("numpy",)),
            Mistake("phases", F(5, np.float32), COMPLEX),
            Mistake("phases", F(5, C), COMPLEX),
            Mistake("tau", F(3, np.float32)),
        ],
    ),
    "Recurrence": Operation(
        calls=[CELL],
        expected=one_step,
        kinds=(),
        seen=lambda _, recurrence: recurrence.step(H[1], H[0]),
    ),
    "rnn": Operation(
        calls=[SEQUENCE, {"u": UNITARY, "x": drawn(6, 4, dtype=C)}],
        expected=oracle.rnn,
        kinds=("rnn", "rnn of columns", "arrays"),
        base={"u": F((4, 3)), "x": F((6, 2, 4))},
        values=[
            Mistake("u", F((2, 4, 3)), says="one matrix"),
            Mistake("x", F(4)),
            Mistake("x", F((1, 6, 2, 4))),
            Mistake("x", F((6, 2, 3))),
            Mistake("x", F((6, 2, 0)), {"input_weight": F((4, 0))}, without=("torch",)),
            Mistake("h0", F((3, 4))),
            Mistake("h0", F((1, 4)), PACKED),
            Mistake("input_weight", F((4, 3))),
            Mistake("bias", F(5)),
            Mistake("nonlinearity", "gelu"),
            Mistake("nonlinearity", "oplu", {"u": F((5, 3)), "x": F((6, 5))}, "n = 5"),
            Mistake("nonlinearity", "modrelu", {"u": F((5, 3)), "x": F((6, 5)), "nonlinearity_bias": F(2)}, "n = 5"),
            Mistake("nonlinearity", "oplu", {"u": F((4, 3), C), "x": F((6, 4), C)}, "complex"),
            Mistake(
                "nonlinearity_bias", None, MODRELU, "nonlinearity 'modrelu' needs a nonlinearity_bias of shape (2,)"
            ),
            Mistake("nonlinearity_bias", F(4), MODRELU, "has shape (4,), expected (2,)"),
            Mistake("nonlinearity_bias", F(2), {"nonlinearity": "real_modrelu"}, "has shape (2,), expected (4,)"),
            Mistake("nonlinearity_bias", F(2), says="'leaky_relu', but only a modReLU takes one: leave it out"),
            Mistake("method", "reflections"),
            Mistake("negative_slope", -0.1),
            Mistake("negative_slope", np.nan),
            Mistake("negative_slope", np.inf),
            Mistake("batch_sizes", np.array([2, 3, 1]), PACKED, "increase"),
            Mistake("batch_sizes", np.array([3, 3, 0]), PACKED, "positive"),
            Mistake("batch_sizes", np.array([[6]]), PACKED, "expected"),
            Mistake("batch_sizes", np.array([3, 2]), PACKED, "5"),
            Mistake("batch_sizes", np.array([2**59] * 32 + [6]), PACKED, "18446744073709551622"),
            Mistake("reverse", True, PACKED | {"batch_sizes": np.array([4, 2])}, "one length"),
        ],
        types=[
            Mistake("x", F((6, 4), np.float32)),
            Mistake("x", None, says="expected"),
            Mistake("reverse", 1),
            Mistake("negative_slope", True),
            Mistake("negative_slope", "0.1"),
            Mistake("batch_sizes", F(3) * 2, PACKED),
        ],
    ),
    "rnn_vjp": Operation(
        calls=[SEQUENCE],
        expected=first_of(oracle.rnn, "u"),
        kinds=("arrays",),
        seen=first_and_gradient("u"),
    ),
    "snap": Operation(
        calls=[{"u": U}, {"u": drawn(3, 3)}],
        expected=lambda u: oracle.constrained(u, "hard") if u.shape[0] == u.shape[1] else u,
        kinds=(),
    ),
    "to_lapack": Operation(
        calls=[{"u": U}],
        expected=oracle.matrix,
        kinds=(),
        seen=lambda library, factors: library.matrix(library.Reflections(*factors)),
    ),
    "wy": Operation(
        calls=[{"u": U}],
        expected=oracle.matrix,
        kinds=("arrays",),
        seen=lambda _, form: np.eye(len(form.v)) - form.v @ form.s @ form.v.T,
    ),
}
OPERATIONS["forward"] = OPERATIONS["apply"]
ONLY_NUMPY = {
    "backward", "delta_rule_vjp", "forward", "forward_tape", "from_lapack", "jvp", "linear_attention_vjp", "normalize",
    "real_form", "Recurrence", "rnn_vjp", "snap", "to_lapack", "wy",
}  # fmt: skip
"""Functions that torch and JAX do in another way, or leave to NumPy; ``docs/api/names.md`` says how."""
ELSEWHERE = {
    "get_num_threads": "numpy/test_threads.py",
    "plan": "numpy/test_plan.py",
    "release_memory": "torch/ops/test_native.py",
    "set_num_threads": "numpy/test_threads.py",
    "accelerate": "torch/compat/test_pretrained.py",
    "adapt": "torch/layers/test_adapters.py",
    "adapter_state": "torch/layers/test_adapters.py",
    "decompositions": "torch/ops/test_export.py",
    "householder_product": "torch/ops/test_columns.py",
    "last_state": "torch/ops/test_checkpoint.py",
    "load_adapter_state": "torch/layers/test_adapters.py",
    "merge_adapters": "torch/layers/test_adapters.py",
    "orthogonal": "torch/layers/test_parametrize.py",
    "ormqr": "torch/ops/test_columns.py",
    "renormalize_": "numpy/test_norms.py",
    "restore": "torch/compat/test_pretrained.py",
    "snap_": "torch/layers/test_optimizer.py",
}
"""Functions without arrays, of one library's own kind, or of modules: the file of their tests."""
FUNCTIONS = [
    pytest.param(library, name, id=f"{library}, {name}")
    for library, (module, _) in LIBRARIES.items()
    for name in module.__all__
    if name in OPERATIONS
]
