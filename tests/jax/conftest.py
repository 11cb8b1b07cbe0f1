"""Tests of JAX run as programs do that let JAX refuse to add axes silently."""

import pytest


@pytest.fixture(autouse=True)
def no_axis_is_added_silently():
    jax = pytest.importorskip("jax", reason="needs jax")
    with jax.numpy_rank_promotion("raise"):
        yield
