"""Work is shared among the threads that torch's own kernels run on."""

import sys

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and an OpenMP runtime like GNU's")

SCRIPT = """
import os, torch
{imports}
torch.set_num_threads(3)
a = torch.randn(600, 600)
a @ a  # torch starts its threads
before = set(os.listdir("/proc/self/task"))
u, x = torch.randn(64, 8), torch.randn(500, 50, 64)
h = {call}
print(len(set(os.listdir("/proc/self/task")) - before))
"""


def test_there_are_no_threads_but_torchs(run_script):
    assert run_script(SCRIPT.format(imports="import householder.torch as ht", call="ht.rnn(u, x)")) == "0\n"


def test_calls_with_fewer_tasks_than_threads_end_none_of_torchs(run_script):
    call = "ht.rnn(u, x[:, :32]), a @ a"  # two tasks for three threads; the next loop of torch's would start new ones
    assert run_script(SCRIPT.format(imports="import householder.torch as ht", call=call)) == "0\n"


def test_without_torchs_operators_there_are_our_own(run_script):
    call = "hh.set_num_threads(3) or hh.rnn_forward(u.numpy(), x.numpy())"
    assert run_script(SCRIPT.format(imports="import householder as hh", call=call)) == "2\n"
