"""Train on sequences of your own, of varying length: checkpoint, resume, predict from the file, export.

The task of this example is to name the first symbol of a sequence after 20 to 60 others.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import householder.torch as ht

SYMBOLS, HIDDEN, REFLECTIONS = 4, 64, 16
EPOCHS, BATCHES, BATCH_SIZE = 4, 25, 50


class Classifier(nn.Module):
    """An orthogonal recurrence, and an affine readout of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = ht.OrthogonalRNN(SYMBOLS, HIDDEN, num_reflections=REFLECTIONS, nonlinearity="modrelu")
        self.readout = nn.Linear(HIDDEN, SYMBOLS)

    def forward(self, x: Tensor | PackedSequence) -> Tensor:
        """Map sequences, ``(T, B, SYMBOLS)`` or packed, to scores ``(B, SYMBOLS)``."""
        _, last = self.rnn(x)  # of packed sequences, each at its own end
        return self.readout(last[-1])


def batch(seed: int) -> tuple[PackedSequence, Tensor]:
    """Return packed sequences and the symbols that they began with; put your own data here."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(20, 61, (BATCH_SIZE,), generator=random)
    symbols = [torch.randint(SYMBOLS, (length,), generator=random) for length in lengths.tolist()]
    first = torch.stack([each[0] for each in symbols])
    inputs = [nn.functional.one_hot(each, SYMBOLS).float() for each in symbols]
    return pack_sequence(inputs, enforce_sorted=False), first


def make() -> tuple[Classifier, torch.optim.Adam, torch.optim.lr_scheduler.CosineAnnealingLR]:
    """Return the model, and what trains it."""
    torch.manual_seed(0)
    model = Classifier()
    reflections = [p for name, p in model.named_parameters() if name.endswith("reflections")]
    others = [p for name, p in model.named_parameters() if not name.endswith("reflections")]
    # Where training is unstable, give the reflections a smaller rate; 0.3 to 1 times that of the others is usual.
    groups = [{"params": others, "lr": 0.01}, {"params": reflections, "lr": 0.005}]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * BATCHES)
    return model, optimizer, schedule


def train(checkpoint: Path, until: int) -> Classifier:
    """Train until an epoch has ended, from the checkpoint if there is one."""
    model, optimizer, schedule = make()
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    begin = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        begin = saved["epoch"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    for epoch in range(begin, until):
        for index in range(BATCHES):
            x, first = batch(1 + epoch * BATCHES + index)
            loss = nn.functional.cross_entropy(model(x), first)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
        temporary = checkpoint.with_suffix(".tmp")
        torch.save({"epoch": epoch + 1} | {name: part.state_dict() for name, part in parts.items()}, temporary)
        temporary.replace(checkpoint)  # a kill leaves the old file or the new one, never half of one
    return model


with tempfile.TemporaryDirectory() as folder:
    directory = Path(folder)

    # An interrupted run ends with the same bits as one that was left alone.
    train(directory / "interrupted.pt", until=2)
    resumed = train(directory / "interrupted.pt", until=EPOCHS)
    whole = train(directory / "whole.pt", until=EPOCHS)
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))

    # Inference, here or on another machine: the weights alone are enough.
    torch.save(whole.state_dict(), directory / "weights.pt")
    model = Classifier()
    model.load_state_dict(torch.load(directory / "weights.pt", weights_only=True))
    model.eval()
    x, first = batch(0)  # no training batch has this seed
    with torch.inference_mode():
        accuracy = (model(x).argmax(-1) == first).float().mean()
    print(f"accuracy on new sequences: {accuracy:.2%}")
    assert accuracy > 0.9

    # Export, for any length and any number of sequences.
    padded = torch.randn(30, 5, SYMBOLS)
    sizes = {"x": {0: torch.export.Dim("time"), 1: torch.export.Dim("batch")}}
    torch.export.save(torch.export.export(model, (padded,), dynamic_shapes=sizes), directory / "model.pt2")
    exported = torch.export.load(directory / "model.pt2").module()
    for shape in ((30, 5, SYMBOLS), (47, 3, SYMBOLS)):
        x = torch.randn(shape)
        assert torch.allclose(exported(x), model(x), atol=1e-6)
    print("the exported model agrees")
