"""``haar`` draws from the uniform distribution on O(n) or U(n)."""

import numpy as np
import pytest

import householder as hh
from tests.conftest import COMPLEX_DTYPES, DTYPES, assert_close, product

N, SAMPLES = 3, 20_000


@pytest.fixture(scope="module", params=[dtype for dtype in DTYPES if dtype in ("float64", "complex128")])
def matrices(request):
    """Many draws of a small matrix, from the public function one by one."""
    rng = np.random.default_rng(0)
    if request.param == "float64":
        return hh.matrix(np.stack([hh.haar(N, rng=rng) for _ in range(SAMPLES)]))
    return np.stack([product(*hh.haar(N, rng=rng, dtype=request.param)) for _ in range(SAMPLES)])


def test_haar_is_orthogonal(dtype):
    factors = hh.haar(20, rng=0, dtype=dtype)
    w = product(*factors) if dtype.kind == "c" else product(factors)
    assert w.dtype == dtype
    assert_close(w.conj().T @ w, np.eye(20), dtype)


def test_every_entry_is_distributed_like_a_coordinate_of_the_sphere(matrices):
    """``E w = 0``, ``E |w|^2 = 1/n``, ``E |w|^4 = 3 / (n (n + 2))``, complex ``2 / (n (n + 1))``."""
    fourth = 3 / (N * (N + 2)) if matrices.dtype == float else 2 / (N * (N + 1))
    assert np.abs(matrices.mean(axis=0)).max() < 5 / np.sqrt(N * SAMPLES)
    assert np.allclose((abs(matrices) ** 2).mean(axis=0), 1 / N, rtol=0, atol=5 * 0.3 / np.sqrt(SAMPLES))
    assert np.allclose((abs(matrices) ** 4).mean(axis=0), fourth, rtol=0, atol=5 * 0.3 / np.sqrt(SAMPLES))


def test_the_distribution_is_invariant_under_rotation(matrices):
    """Entries of ``Q W`` and ``W Q`` have the same mixed moments as those of W: here ``E w_ij^3 w_kl`` and signs."""
    q = np.linalg.qr(np.random.default_rng(1).standard_normal((N, N)))[0]
    for turned in (q @ matrices, matrices @ q):
        assert np.abs(turned.mean(axis=0)).max() < 5 / np.sqrt(N * SAMPLES)
        assert np.allclose((turned.real > 0).mean(axis=0), 0.5, atol=5 * 0.5 / np.sqrt(SAMPLES))


def test_the_trace_has_the_moments_of_the_group(matrices):
    """``E |tr W|^2 = 1`` and ``E |tr W|^4 = 3`` on O(n), 2 on U(n)."""
    trace = abs(np.trace(matrices, axis1=1, axis2=2))
    assert (trace**2).mean() == pytest.approx(1, abs=5 * 1.5 / np.sqrt(SAMPLES))
    assert (trace**4).mean() == pytest.approx(3 if matrices.dtype == float else 2, abs=5 * 8 / np.sqrt(SAMPLES))


def test_both_components_of_the_orthogonal_group_are_equally_likely():
    rng = np.random.default_rng(0)
    signs = [hh.haar(4, rng=rng)[-1, -1] for _ in range(2000)]
    assert set(signs) == {1, -1}
    assert abs(np.mean(signs)) < 5 / np.sqrt(2000)


def test_fewer_reflections_are_the_first_of_all(dtype):
    unitary = dtype.kind == "c"
    everything = hh.haar(8, rng=3, dtype=dtype)
    u = everything[0] if unitary else everything
    assert np.array_equal(hh.haar(8, 3, rng=3, dtype=dtype), u[:, :3])
    assert np.allclose(np.linalg.norm(u, axis=0), 1)
    assert np.array_equal(u, np.tril(u))


def test_seeds_and_generators(dtype):
    first, second, other = (hh.haar(5, 2, rng=rng, dtype=dtype) for rng in (7, np.random.default_rng(7), 8))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)
    assert not np.array_equal(hh.haar(5, 2, dtype=dtype), hh.haar(5, 2, dtype=dtype))


@pytest.mark.parametrize("rng", [np.random.RandomState(0), "7", 7.0, True], ids=lambda rng: type(rng).__name__)
def test_another_source_gets_a_message_that_says_what_is_taken(rng):
    with pytest.raises(TypeError, match=r"rng is .*, expected None, an integer or a numpy\.random\.Generator"):
        hh.haar(3, rng=rng)


@pytest.mark.parametrize("dtype", COMPLEX_DTYPES)
def test_complex_draws_come_with_phases(dtype):
    u, phases = hh.haar(6, dtype=dtype)
    assert u.shape == (6, 5)
    assert phases.shape == (6,)
    assert phases.dtype == u.real.dtype
    _, many = hh.haar(6, rng=0, dtype=dtype, size=2000)
    for power in (1, 2, 3, 4):  # of a uniform distribution in [-pi, pi)
        expected = 0 if power % 2 else np.pi**power / (power + 1)
        spread = np.sqrt(np.pi ** (2 * power) / (2 * power + 1) / many.size)
        assert np.mean(many.astype(float) ** power) == pytest.approx(expected, abs=5 * spread)
    assert hh.haar(6, 2, dtype=dtype).shape == (6, 2)


def test_one_by_one():
    assert abs(hh.haar(1, rng=0)[0, 0]) == 1


@pytest.mark.parametrize("size", [3, (2, 2), (), 0], ids=str)
def test_many_are_drawn_one_after_the_other(dtype, size):
    shape = size if isinstance(size, tuple) else (size,)
    rng = np.random.default_rng(4)
    u = hh.haar(5, 2, rng=4, dtype=dtype, size=size)
    assert u.shape == (*shape, 5, 2)
    for i in np.ndindex(shape):
        assert np.array_equal(u[i], hh.haar(5, 2, rng=rng, dtype=dtype))
    if dtype.kind == "c":
        assert [a.shape for a in hh.haar(5, dtype=dtype, size=size)] == [(*shape, 5, 4), (*shape, 5)]
