"""Invalid calls of the functions that NumPy, PyTorch and JAX share: each error names the argument and what was given.

A row has an argument, a wrong value, and what else the call needs for it to be the only mistake. The message has the
name of the argument and, of an array, its shape where that is wrong, its dtype where that is; of others, their value.
Rows that say something else have a text of their own.
"""

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import householder as hh
import householder.torch as ht

hj = pytest.importorskip("householder.jax", reason="needs jax")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

F, C = np.ones, np.complex128
LIBRARIES = {
    "numpy": (hh, np.asarray),
    "torch": (ht, torch.from_numpy),
    "jax": (hj, jnp.asarray),
}
CALLS: dict[str, dict[str, Any]] = {
    "apply": {"u": F((5, 3)), "h": F((2, 5))},
    "matrix": {"u": F((5, 3))},
    "frame": {"u": F((5, 3))},
    "rnn": {"u": F((4, 3)), "x": F((6, 2, 4))},
    "delta_rule": {"q": F((1, 6, 1, 3)), "k": F((1, 6, 1, 3)), "v": F((1, 6, 2, 3)), "beta": F((1, 6, 2))},
    "linear_attention": {"q": F((1, 6, 1, 3)), "k": F((1, 6, 1, 3)), "v": F((1, 6, 2, 3))},
    "factor": {"q": np.eye(3)},
    "nearest": {"a": F((3, 2))},
    "haar": {"n": 4, "rng": 0},
}
COMPLEX = {"u": F((5, 3), C), "h": F((2, 5), C)}
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
]
VALUES = {
    "apply": [
        Mistake("u", F(5)),
        Mistake("u", F((3, 5)), says="(3, 5), expected (..., n, m) with 1 <= m <= n; shape='full' takes any number of"),
        Mistake("u", F((2, 5)), {"h": F((5, 3))}, "h has shape (5, 3): are u and h swapped?"),
        Mistake("h", F((5, 3)), {"u": F((7, 5))}, "h has shape (5, 3): are u and h swapped?"),
        Mistake("u", F((5, 0))),
        Mistake("u", F((5, 5), C), {"h": F((2, 5), C)}, "m <= n - 1"),
        Mistake("u", F((2, 5, 3)), {"h": F((3, 5))}),
        Mistake("h", F((2, 4))),
        Mistake("h", F(())),
        Mistake("h", F((3, 5)), {"u": F((2, 5, 3))}),
        Mistake("phases", F(5), says="float64"),
        Mistake("phases", F(4), COMPLEX),
        Mistake("tau", F(4)),
        Mistake("tau", F(3), {"u": F((3, 5)), "h": F(3), "shape": "full"}),
        Mistake("tau", F(3, C), COMPLEX | {"phases": F(5)}, "phases"),
        Mistake("shape", "square"),
        Mistake("method", "fast"),
        Mistake("method", None),
    ],
    "matrix": [
        Mistake("u", F((0, 0))),
        Mistake("u", F((3, 3), C), says="m <= n - 1"),
        Mistake("phases", F(4), {"u": F((5, 3), C)}),
        Mistake("tau", F((1, 3)), {"u": F((2, 5, 3))}),
    ],
    "frame": [Mistake("u", F(5)), Mistake("phases", F((2, 5)), {"u": F((3, 5, 2), C)})],
    "rnn": [
        Mistake("u", F((2, 4, 3)), says="one matrix"),
        Mistake("x", F(4)),
        Mistake("x", F((1, 6, 2, 4))),
        Mistake("x", F((6, 2, 3))),
        Mistake("x", F((6, 2, 0)), {"input_weight": F((4, 0))}, without=("torch",)),
        Mistake("h0", F((3, 4))),
        Mistake("h0", F((1, 4)), PACKED),
        Mistake("input_weight", F((4, 3))),
        Mistake("bias", F(5)),
        Mistake("phases", F(4), says="float64"),
        Mistake("nonlinearity", "gelu"),
        Mistake("nonlinearity", "oplu", {"u": F((5, 3)), "x": F((6, 5))}, "n = 5"),
        Mistake("nonlinearity", "modrelu", {"u": F((5, 3)), "x": F((6, 5)), "nonlinearity_bias": F(2)}, "n = 5"),
        Mistake("nonlinearity", "oplu", {"u": F((4, 3), C), "x": F((6, 4), C)}, "complex"),
        Mistake("nonlinearity_bias", None, MODRELU, "is missing with nonlinearity 'modrelu'"),
        Mistake("nonlinearity_bias", F(4), MODRELU, "has shape (4,), expected (2,)"),
        Mistake("nonlinearity_bias", F(2), {"nonlinearity": "real_modrelu"}, "has shape (2,), expected (4,)"),
        Mistake("nonlinearity_bias", F(2), says="leaky_relu"),
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
    "delta_rule": [
        *OF_ATTENTION,
        Mistake("beta", F((1, 6))),
        Mistake("cu_seqlens", np.array([0, 6]), TWO_ROWS | {"beta": F((2, 6, 2))}, "B = 1"),
        Mistake("num_householder", 0),
        Mistake("num_householder", 2),
    ],
    "linear_attention": [*OF_ATTENTION, Mistake("cu_seqlens", np.array([0, 6]), TWO_ROWS, "B = 1")],
    "factor": [
        Mistake("q", F((2, 3))),
        Mistake("q", F((0, 0))),
        Mistake("q", F((1, 1), C)),
        Mistake("q", 2 * np.eye(3), says="orthogonal"),
        Mistake("q", np.full((3, 3), np.nan), says="q has entries that are not finite"),
        Mistake("q", np.diag([1, np.inf]), says="q has entries that are not finite"),
        Mistake("m", 4),
        Mistake("m", 3, {"q": np.eye(3, dtype=C)}),
    ],
    "nearest": [Mistake("a", F(3)), Mistake("a", F((2, 2)) * np.nan, says="not finite", without=("jax",))],
    "haar": [
        Mistake("m", 5),
        Mistake("n", 0),
        Mistake("size", (2, -1), says="-1"),
        Mistake("size", -1),
        Mistake("m", 4, {"dtype": "complex128"}),
    ],
}
TYPES = {
    "apply": [
        Mistake("u", F((5, 3), bool), without=("numpy",)),
        Mistake("h", F((2, 5), np.float32)),
        Mistake("h", F((2, 5), C)),
        Mistake("h", None, says="expected"),
        Mistake("phases", F(5, np.float32), COMPLEX),
        Mistake("phases", F(5, C), COMPLEX),
        Mistake("tau", F(3, np.float32)),
        Mistake("transpose", "yes"),
        Mistake("transpose", 1),
    ],
    "rnn": [
        Mistake("x", F((6, 4), np.float32)),
        Mistake("x", None, says="expected"),
        Mistake("transpose", 1),
        Mistake("reverse", 1),
        Mistake("negative_slope", True),
        Mistake("negative_slope", "0.1"),
        Mistake("batch_sizes", F(3) * 2, PACKED),
    ],
    "delta_rule": [*OF_TYPES_OF_ATTENTION, Mistake("beta", None, says="expected")],
    "linear_attention": OF_TYPES_OF_ATTENTION,
    "factor": [
        Mistake("q", None, says="expected"),
        Mistake("m", 1.0),
    ],
    "nearest": [Mistake("a", None, says="expected")],
    "haar": [
        Mistake("n", True),
        Mistake("n", "3"),
        Mistake("rng", "0"),
        Mistake("rng", 7.0),
        Mistake("dtype", "int64"),
    ],
}


def rows(tables):
    return [
        pytest.param(library, name, mistake, id=f"{library}, {name}, {mistake.argument} {i}")
        for library in LIBRARIES
        for name, mistakes in tables.items()
        for i, mistake in enumerate(mistakes)
        if library not in mistake.without
    ]


def refused(library, name, mistake, error):
    """Call with the mistake; the message."""
    functions, convert = LIBRARIES[library]
    arguments = CALLS[name] | mistake.rest | {mistake.argument: mistake.value}
    if library == "jax":
        arguments |= {"rng": jax.random.key(0)} if arguments.get("rng") == 0 else {}
    if library == "torch" and isinstance(arguments.get("dtype"), str):
        arguments["dtype"] = getattr(torch, arguments["dtype"])
    with jax.enable_x64():
        converted = {key: convert(a) if isinstance(a, np.ndarray) else a for key, a in arguments.items()}
        with pytest.raises(error) as refusal:
            getattr(functions, name)(**converted)
    return str(refusal.value)


def check(message, mistake, told):
    assert re.search(rf"\b{mistake.argument}\b", message), message
    assert (told if mistake.says is None else mistake.says) in message, message
    assert "\n" not in message


@pytest.mark.parametrize(("library", "name", "mistake"), rows(VALUES))
def test_wrong_values_are_value_errors(library, name, mistake):
    value = mistake.value
    told = str(value.shape) if isinstance(value, np.ndarray) else repr(value)
    check(refused(library, name, mistake, ValueError), mistake, told)


@pytest.mark.parametrize(("library", "name", "mistake"), rows(TYPES))
def test_wrong_types_are_type_errors(library, name, mistake):
    value = mistake.value
    told = str(value.dtype) if isinstance(value, np.ndarray) else str(value)
    check(refused(library, name, mistake, TypeError), mistake, told)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["delta_rule", "linear_attention"])
def test_beta_and_g_are_named(library, name):
    functions, convert = LIBRARIES[library]
    with pytest.raises(TypeError, match="positional"):
        getattr(functions, name)(*map(convert, CALLS["delta_rule"].values()))


@pytest.mark.parametrize("value", [[1.0], "text", 1, None, {}, object()], ids=lambda value: type(value).__name__)
def test_builtin_types_have_their_plain_names(value):
    arguments = CALLS["apply"] | {"h": value}
    for function in (hh.apply, hj.apply):
        with pytest.raises((TypeError, ValueError), match=r"\bh\b") as refusal:
            function(**arguments)
        assert "builtins" not in str(refusal.value)


def test_jax_draws_nothing_without_a_key():
    with pytest.raises(TypeError, match="rng is None, expected a key"):
        hj.haar(4)
