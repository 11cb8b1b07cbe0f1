"""Results that other processes read stay as they are, whatever this process computes next."""

import pytest
import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset

import householder.torch as ht

if "forkserver" not in multiprocessing.get_all_start_methods():
    pytest.skip("needs a fork server", allow_module_level=True)
CONTEXT = multiprocessing.get_context("forkserver")  # this process may have threads, of JAX for example
CONTEXT.set_forkserver_preload(["householder.torch"])

ROWS, N = 600, 256  # 600 kB in float32
U = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))


def application(number):
    return ht.apply(U, torch.full((ROWS, N), float(number)))


def matrix(number):
    return ht.matrix((number * U).contiguous())


def gradient(number):
    h = torch.ones(ROWS, N, requires_grad=True)
    ht.apply(U, h).backward(torch.full((ROWS, N), float(number)))
    return h.grad


def states(number):
    return ht.rnn(U, torch.full((20, 30, N), float(number)), nonlinearity="identity")[0]


def directions(number):
    torch.manual_seed(0)
    layer = ht.OrthogonalRNN(3, 64, num_reflections=2, bidirectional=True)
    return layer(torch.full((50, 30, 3), float(number)))[0].detach()


def tokens(number):
    q = torch.ones(1, 600, 4, 64)
    v = torch.full((1, 600, 4, 64), float(number))
    return ht.delta_rule(q, q / 8, v, beta=torch.ones(1, 600, 4))[0]


EACH = pytest.mark.parametrize("compute", [application, matrix, gradient, states, directions, tokens])


class Computed(Dataset):
    """Batches that a worker computes."""

    def __init__(self, compute):
        self.compute = compute

    def __len__(self):
        return 6

    def __getitem__(self, i):
        torch.set_num_threads(1)
        return self.compute(i + 1)


@EACH
def test_batches_of_a_data_loader_stay_right(compute):
    loader = DataLoader(Computed(compute), batch_size=None, num_workers=1, multiprocessing_context=CONTEXT)
    for i, batch in enumerate(list(loader)):
        torch.testing.assert_close(batch, compute(i + 1))


def _send(queue, sent, done):
    torch.set_num_threads(1)
    for i in range(3):
        queue.put(application(i + 1))
    sent.set()
    done.wait(60)


def test_what_a_queue_brings_stays_right():
    queue, sent, done = CONTEXT.Queue(), CONTEXT.Event(), CONTEXT.Event()
    sender = CONTEXT.Process(target=_send, args=(queue, sent, done))
    sender.start()
    received = [queue.get(timeout=60) for _ in range(3)]
    assert sent.wait(60)
    for i, found in enumerate(received):
        torch.testing.assert_close(found, application(i + 1))
    done.set()
    sender.join()


def _compare(shared, expected, received, go, answer):
    received.set()
    go.wait(60)
    answer.put(torch.equal(shared, expected))


@EACH
def test_a_shared_result_stays_right_in_a_child(compute):
    received, go, answer = CONTEXT.Event(), CONTEXT.Event(), CONTEXT.Queue()
    child = CONTEXT.Process(target=_compare, args=(compute(1).share_memory_(), compute(1), received, go, answer))
    child.start()
    assert received.wait(60)
    for i in range(3):
        compute(7 + i)
    go.set()
    assert answer.get(timeout=60)
    child.join()


def test_a_shared_factor_of_the_backward_pass_stays_right():
    """What a forward pass keeps for its backward pass is shared with nobody."""
    u, h = U.clone().requires_grad_(), torch.ones(ROWS, N)
    expected = torch.autograd.grad(ht.apply(u, h).square().sum(), u)[0]
    c = ht.apply(u, h)
    c.detach().share_memory_()
    for i in range(3):
        application(i)
    torch.testing.assert_close(torch.autograd.grad(c.square().sum(), u)[0], expected)
