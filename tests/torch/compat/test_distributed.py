"""Two processes train as one: gradients are averaged by DDP, parameters sharded by FSDP2."""

import os

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

import householder.torch as ht

WORLD = 2


class Model(nn.Module):
    """A layer of each kind that has parameters of its own, the latent ``u_1`` among them."""

    def __init__(self):
        super().__init__()
        self.rnn = ht.OrthogonalRNN(3, 8, num_layers=2, num_reflections=[2, 8], bidirectional=True, learn_h0=True)
        self.svd = ht.SVDLinear(16, 7)
        self.orthogonal = ht.Orthogonal(7)
        self.constrained = ht.orthogonal(nn.Linear(7, 5))
        self.adapter = ht.OrthogonalAdapter(nn.Linear(5, 2), num_reflections=2)

    def forward(self, x):
        return self.adapter(self.constrained(self.orthogonal(self.svd(self.rnn(x)[0]))))


def train(model, x, target):
    """Losses of a few steps of SGD."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def problem():
    torch.manual_seed(0)
    return Model().double(), torch.randn(6, 4, 3, dtype=torch.float64), torch.randn(6, 4, 2, dtype=torch.float64)


def data_parallel(model, x, target):
    return train(nn.parallel.DistributedDataParallel(model), x, target), model.state_dict()


def sharded(model, x, target):
    for part in (*model.rnn.cells, model.rnn, model.svd, model.constrained, model):
        fully_shard(part)
    assert model.rnn.cells[3].reflections.to_local().shape == (8 // WORLD, 8)
    losses = train(model, x, target)
    with pytest.raises(RuntimeError, match="sharding strategy"):  # parameters are whole within forward only ...
        model.svd.matrix()
    register_fsdp_forward_method(model.svd, "matrix")  # ... or where torch is told so
    assert model.svd.matrix().shape == (7, 16)
    state = model.state_dict()
    return losses, {name: v.full_tensor() if isinstance(v, DTensor) else v for name, v in state.items()}


WAYS = {"DDP": data_parallel}
if hasattr(torch.cpu.Stream, "record_event"):  # older FSDP2 needs a GPU
    WAYS["FSDP2"] = sharded


def worker(rank, folder):
    """One of the processes, which sees half of the batch."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    half = slice(rank * 2, rank * 2 + 2)
    for name, way in WAYS.items():
        model, x, target = problem()
        torch.save(way(model, x[:, half], target[:, half]), folder / f"{name}{rank}.pt")
    distributed.barrier()  # nobody leaves while the other one may still be sending
    distributed.destroy_process_group()
    # Gloo's threads may still hold tensors. Freeing them aborts a process whose interpreter is ending (pytorch 179291).
    os._exit(0)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By name and process: losses, and the parameters afterwards."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(worker, (folder,), WORLD)
    return {name: [torch.load(folder / f"{name}{rank}.pt") for rank in range(WORLD)] for name in WAYS}


@pytest.mark.parametrize("name", WAYS)
def test_two_processes_train_as_one(name, results):
    model, x, target = problem()
    losses = train(model, x, target)
    torch.testing.assert_close(sum(losses for losses, _ in results[name]) / WORLD, losses)
    for _, state in results[name]:
        torch.testing.assert_close(state, model.state_dict())
