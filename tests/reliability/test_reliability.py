"""Abuse: arrays that lie anyhow, fork, Ctrl-C, no memory. The process lives and the next result is right."""

import sys

import numpy as np
import pytest

import householder as hh

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork, POSIX signals and /proc")

SETUP = """
import os, signal, sys, threading, time
import numpy as np, householder as hh
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with it ignored
rng = np.random.default_rng(0)
u, x = rng.standard_normal((128, 16)).astype(np.float32), rng.standard_normal((50, 64, 128)).astype(np.float32)
def sequence():
    (h, _), vjp = hh.rnn_vjp(u, x)
    return h, vjp(h).u
expected = sequence()
def check():
    assert all(np.array_equal(a, b) for a, b in zip(sequence(), expected))
"""


def test_an_empty_array_may_lie_at_an_odd_address():
    h = np.ndarray((0, 3), np.float64, np.empty(8, np.uint8), offset=1)
    assert hh.forward(np.eye(3)[:, :2], h).shape == (0, 3)


@pytest.fixture(params=["householder", "householder.torch"])
def setup(request):
    """Calls share their work among threads of our own, or among torch's."""
    if request.param == "householder.torch":
        pytest.importorskip("torch")
    return f"import {request.param}\n{SETUP}"


def test_use_after_fork(run_script, setup):
    """As in the workers of a DataLoader: parent and children, and children of children, keep computing."""
    out = run_script(
        setup
        + """
hh.set_num_threads(3)
check()
def fork(depth):
    child = os.fork()
    if child == 0:
        check()
        if depth:
            fork(depth - 1)
        os._exit(0)
    check()
    assert os.waitpid(child, 0)[1] == 0
for _ in range(3):
    fork(1)
print("well")
"""
    )
    assert out == "well\n"


def test_a_fork_while_other_threads_compute(run_script, setup):
    """A child inherits no lock of the core that one of these threads holds."""
    out = run_script(
        setup
        + """
hh.set_num_threads(3)
ends = threading.Event()
def compute():
    while not ends.is_set():
        sequence()
threads = [threading.Thread(target=compute) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        check()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
ends.set()
for thread in threads:
    thread.join()
print("well")
"""
    )
    assert out == "well\n"


@pytest.mark.slow_combinations
@pytest.mark.parametrize(
    "call",
    [
        "hh.rnn(u, x, method='wy')[0]",
        "hh.rnn_vjp(u, x, method='wy')[1](x)",
        "hh.forward(u, x, method='reflections')",
        "hh.backward(u, x, x, method='reflections')",
        "hh.factor(np.eye(1500)[::-1], 700)",
    ],
)
def test_ctrl_c_ends_a_long_call_within_a_second(run_script, setup, call):
    out = run_script(
        f"""{setup}
small = u, x
u, x = rng.standard_normal((512, 511)).astype(np.float32), np.zeros((50_000, 512), np.float32)
sent = []
def interrupt():
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.3, interrupt).start()
try:
    while True:
        {call}
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0])
u, x = small
check()
"""
    )
    assert float(out) < 1


def test_a_handler_of_the_user_s_own_is_called_and_the_call_goes_on(run_script):
    out = run_script(
        SETUP
        + """
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(time.perf_counter()))
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
end = time.perf_counter() + 0.5
while time.perf_counter() < end:
    check()
print(len(got))
"""
    )
    assert out == "1\n"


def test_exhausted_memory_is_a_memory_error(run_script):
    """At whatever point of a call memory ends: the outputs, the workspace, the packed copies."""
    out = run_script(
        SETUP
        + """
import resource
h = np.ones((256, 1024), np.float32)
big = np.ones((1024, 512), np.float32)
square = 2 * np.eye(1024, dtype=np.float32)
def refused_factor():
    try: hh.factor(square)
    except ValueError: pass
calls = [
    lambda: hh.forward(big, h), lambda: hh.backward(big, h, h), lambda: hh.matrix(big), lambda: hh.wy(big),
    lambda: hh.forward_tape(big, h[:16]), lambda: hh.rnn(big, np.ones((40, 64, 1024), np.float32))[0],
    refused_factor,
]
refused = served = 0
for megabytes in (1, 2, 3, 5, 8, 13, 21, 34, 55, 400):
    pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages + megabytes * 2**20, limits[1]))
    for call in calls:
        try:
            call()
            served += 1
        except MemoryError:
            refused += 1
    resource.setrlimit(resource.RLIMIT_AS, limits)
    check()
print(refused >= 10, served >= 6)
"""
    )
    assert out == "True True\n"


def test_memory_does_not_grow_over_many_calls(run_script):
    out = run_script(
        SETUP
        + """
import resource
def many(k):
    for _ in range(k):
        hh.forward(u, x[0]); hh.backward(u, x[0], x[0]); hh.rnn(u, x[:3])[0]
        try: hh.forward(u, u)
        except ValueError: pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = many(300)
print(many(1500) - before)
"""
    )
    assert int(out) < 4096  # kilobytes on Linux
