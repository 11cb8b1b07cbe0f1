"""What the tests share: backends, dtypes, random problems and tolerances."""

import inspect
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import householder as hh
from householder._base import spec
from tests.tester.objects import of_arrays as of_arrays

REAL_DTYPES = list(spec.REAL)
COMPLEX_DTYPES = list(spec.COMPLEX)
DTYPES = REAL_DTYPES + COMPLEX_DTYPES
DOUBLES = [dtype for dtype in DTYPES if dtype in ("float64", "complex128")]
NONLINEARITIES = {"f": list(spec.NONLINEARITIES), "c": list(spec.OF_COMPLEX)}
METHODS, SEQUENCE_METHODS = list(spec.METHODS), list(spec.SEQUENCE_METHODS)
SIZES = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 128, 129, 257]  # around the edges of blocks and registers

settings.register_profile("fast", max_examples=20, deadline=None, derandomize=True)
settings.register_profile(
    "slow", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def each_nonlinearity(fixture, dtypes=DTYPES):
    """Repeat a test with every dtype, the parameter of this fixture, and every nonlinearity that the dtype has."""
    pairs = [(dtype, phi) for dtype in dtypes for phi in NONLINEARITIES[np.dtype(dtype).kind]]
    return pytest.mark.parametrize((fixture, "nonlinearity"), pairs, indirect=[fixture])


def real(fixture):
    """Repeat a test with the real ones of the dtypes that are parameters of this fixture."""
    dtypes = {"dtype": REAL_DTYPES, "double": ["float64"]}[fixture]
    return pytest.mark.parametrize(fixture, dtypes, indirect=True)


class Backend(NamedTuple):
    """An array library: NumPy arrays go in and come out, the call happens in its own."""

    name: str
    from_numpy: Callable[[Any], Any]
    to_numpy: Callable[[Any], Any]

    def __call__(self, function, *args, **kwargs):
        args = [self._convert(self.from_numpy, a) for a in args]
        kwargs = {name: self._convert(self.from_numpy, a) for name, a in kwargs.items()}
        return self._convert(self.to_numpy, function(*args, **kwargs))

    def _convert(self, convert, a):
        if isinstance(a, tuple):
            converted = tuple(self._convert(convert, entry) for entry in a)
            return a._make(converted) if hasattr(a, "_fields") else converted
        return convert(a) if hasattr(a, "dtype") else a


BACKENDS = [Backend("numpy", np.asarray, np.asarray)]


def repeated(prefix, *modules):
    """Every test of a backend in these modules, to be repeated with another one in the importing module."""
    found = {}
    for module in modules:
        tests = {
            f"test_{prefix}_{name.removeprefix('test_')}": function
            for name, function in vars(module).items()
            if name.startswith("test_") and "backend" in inspect.signature(function).parameters
        }
        assert tests, f"{module.__name__} has no test of a backend"
        found |= tests
    return found


@pytest.fixture(scope="session", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request):
    return request.param


@pytest.fixture(scope="session", params=DTYPES)
def dtype(request):
    return np.dtype(request.param)


@pytest.fixture(scope="session", params=DOUBLES)
def double(request):
    return np.dtype(request.param)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def real_of(dtype):
    return np.empty(0, dtype).real.dtype


def randn(rng, shape, dtype):
    """Gaussian numbers, real and imaginary parts where the dtype has both."""
    a = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    return a.astype(dtype)


class Problem(NamedTuple):
    """One application: reflections, vectors, the gradient of the result, and phases if complex."""

    u: np.ndarray
    h: np.ndarray
    g: np.ndarray
    phases: np.ndarray | None

    @property
    def options(self):
        return {} if self.phases is None else {"phases": self.phases}


def product(u, phases=None):
    """The matrix of what ``factor`` and ``haar`` return."""
    return hh.matrix(hh.Reflections(u, phases=phases))


def problem(n, m, rows, dtype, seed=0):
    """Gaussian ``u (n, m)``, also above the diagonal, and ``rows`` vectors; complex: with phases and ``m <= n - 1``."""
    rng = np.random.default_rng([seed, n, m, rows])
    dtype = np.dtype(dtype)
    phases = None
    if dtype.kind == "c":
        n, m = max(n, 2), max(1, min(m, n - 1))
        phases = rng.uniform(-3, 3, n).astype(real_of(dtype))
    return Problem(randn(rng, (n, m), dtype), randn(rng, (rows, n), dtype), randn(rng, (rows, n), dtype), phases)


def assert_close(actual, expected, dtype=None, factor=100):
    """Largest difference at most ``factor`` units of rounding of the largest entry, or of 1 where all are zero."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    if expected.size:
        scale = np.abs(expected).max() or 1.0
        error = np.abs(actual - expected).max() / scale
        allowed = factor * np.finfo(actual.dtype if dtype is None else dtype).eps
        assert error <= allowed, f"differs by {error:.3g} of the largest entry, allowed {allowed:.3g}"
