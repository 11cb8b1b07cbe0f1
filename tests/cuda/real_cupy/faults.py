"""What becomes of calls where the real CuPy meets a fault: of its compiler, of the driver, of a device.

Run by ``test_real_cupy.py`` in a process of its own, with ``host_driver`` as a plugin of pytest.
"""

import numpy as np
import pytest

import householder as hh
from householder import _cuda
from householder._cuda import instances, kernels, verdicts
from householder._functions import apply
from tests.cuda import cuda_standin
from tests.cuda.real_cupy.host_driver import State
from tests.cuda.test_launch import EVERY_TILE, check, check_shared_memory


@pytest.fixture(autouse=True)
def _device(monkeypatch):
    """Three fresh devices, on which every kernel is tried."""
    arrays = cuda_standin.install(monkeypatch, trials=True)
    monkeypatch.setattr(instances, "TILES", EVERY_TILE)
    monkeypatch.setitem(apply._BACKENDS, np.ndarray, arrays)
    for name, value in {"launched": [], "refused": (), "load_status": 0, "capturing": 0}.items():
        monkeypatch.setattr(State, name, value)
    monkeypatch.setattr(State, "capabilities", [(9, 0), (7, 5), (8, 6)])


def warned(*parts):
    return pytest.warns(UserWarning, match=".*".join(parts))


def kernels_launched():
    return {name.partition("::")[2].partition("<")[0] for name in State.launched}


def test_kernels_that_pass_their_trials_are_used():
    check("float32", 64, 8, 2, 2)
    assert set(verdicts._verdicts.values()) == {""}
    assert kernels_launched() == {"factors_form", "gradients_form", "lowrank_forward", "lowrank_backward"}


def test_cupy_asks_the_driver_for_shared_memory(monkeypatch):
    monkeypatch.setattr(verdicts, "_verdicts", cuda_standin.Trusted())
    check_shared_memory(2)


def test_without_the_compiler_applications_take_matrix_products(monkeypatch):
    from cupy_backends.cuda.libs import nvrtc

    def missing(*_, **__):
        raise RuntimeError("CuPy failed to load libnvrtc.so.13")

    monkeypatch.setattr(nvrtc, "createProgram", missing)
    u, h = np.random.default_rng(0).standard_normal((2, 9, 3))
    with warned("a kernel cannot be used: RuntimeError: CuPy failed to load libnvrtc"):
        found = hh.forward(u, h.T.copy())
    np.testing.assert_allclose(found, h.T @ hh.matrix(u).T, rtol=1e-12, atol=1e-12)
    with pytest.raises(verdicts.UnusableError, match="libnvrtc"):
        hh.rnn(u, h.T.copy()[None])[0]


def test_an_image_that_the_driver_refuses():
    State.load_status = 200
    u, h = np.random.default_rng(0).standard_normal((2, 9, 3))
    with warned("CUDADriverError: CUDA_ERROR_INVALID_IMAGE"):
        hh.forward(u, h.T.copy())
    assert not State.launched


def test_a_cluster_that_does_not_launch_gives_way_to_another_kernel():
    State.refused = [("dense_forward<float, float, 256", 701)]
    with warned("CUDADriverError: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        check("float32", 130, 128, 1, 1)
    assert {"dense_forward", "lowrank_forward", "probe_clusters"} <= kernels_launched()


def test_a_driver_that_refuses_every_cluster():
    State.refused = [("probe", 912)]
    with warned("device 0 refuses clusters of blocks", "CUDA_ERROR_INVALID_CLUSTER_SIZE"):
        check("float32", 130, 128, 1, 1)
    assert "dense_forward" not in kernels_launched()


def test_devices_of_different_capability_have_kernels_of_their_own(monkeypatch):
    monkeypatch.setattr(verdicts, "_verdicts", cuda_standin.Trusted())
    assert [kernels.device_of(i).capability for i in range(2)] == [90, 75]
    for device in range(2):
        _cuda.warm_up(512, 256, device=device)
    tiles = [sorted(name for at, name in kernels._compiled if at == device) for device in range(2)]
    assert "householder::dense_forward<float, float, 512, 512, 8, householder::LEAKY_RELU>" in tiles[0]
    assert "householder::fallback_forward<float, float, householder::LEAKY_RELU>" in tiles[1]
    loads = State.loads
    assert len(kernels.compiled()) == len(kernels._compiled)
    assert State.loads == loads  # a kernel of device 1 is not loaded on device 0 to be described
    assert State.current == 0


def test_a_launch_error_later_on_reaches_the_caller():
    import cupy

    check("float32", 64, 8, 2, 2)
    State.refused = [("lowrank_forward", 700)]
    with pytest.raises(cupy.cuda.driver.CUDADriverError):
        check("float32", 64, 8, 2, 2)
