"""The training loop: one model on one task, on Lightning Fabric.

A run is a pure function of its experiment: parameters are drawn from the seed, batches are addressed
by (seed, epoch, index), the learning rate depends on the step. A checkpoint therefore needs no state
of generators or loaders, and a run that was killed and resumed ends as if nothing had happened.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn
from torch.optim import Adam

from householder.cli.errors import UserError
from householder_experiments.checkpoint import NAME, Interface, interface, load_checkpoint, save_checkpoint
from householder_experiments.checks import check
from householder_experiments.experiment import Experiment
from householder_experiments.files import appended, table, write_text
from householder_experiments.group import Group, share
from householder_experiments.outcome import METRICS, Outcome, Progress
from householder_experiments.tasks.base import HeldOut, Task

_REPORT_SECONDS = 0.1


@dataclass
class State:
    """What changes while training, besides the model and its optimizer."""

    step: int = 0
    seconds: float = 0.0
    sums: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    """Sums over the epoch so far: loss and metric, each times the batch's weight, and the weights."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One row per whole epoch."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The best parameters, by the validation metric with ``patience``, by the training metric if it judges the run."""
    best_metric: float | None = None
    """The training metric of ``best``, if it judges the run."""

    @classmethod
    def restored(cls, saved: dict[str, Any], steps: int, task: Task, model: nn.Module) -> "State":
        """Return the state of a checkpoint.

        Raises
        ------
        ValueError, TypeError
            It is not the state of a run of ``steps`` steps on this task.
        """
        state = cls(**saved)
        columns = {"epoch", "step", "train_loss", f"train_{task.metric}", "seconds"}
        columns |= {f"validation_{task.metric}"} if task.watched else set()
        fits = (
            type(state.step) is int
            and 0 <= state.step <= steps
            and isinstance(state.seconds, float)
            and isinstance(state.sums, Tensor)
            and (state.sums.dtype, state.sums.shape) == (torch.float64, (3,))
            and isinstance(state.history, list)
            and all(isinstance(row, dict) and set(row) == columns for row in state.history)
            and all(isinstance(value, int | float) for row in state.history for value in row.values())
            and (not state.best or _shapes(state.best) == _shapes(model.state_dict()))
            and isinstance(state.best_metric, float | None)
        )
        if not fits:
            raise ValueError("a state of another run")
        return state


class Run:
    """One model of an experiment, from its last checkpoint if the directory has one.

    Parameters
    ----------
    experiment : Experiment
        What to do.
    name : str
        Which of the experiment's models.
    directory : Path
        Where checkpoints and logs go, and are found again.
    group : Group, optional
        The processes that train the model together, of which this is one; by default it is alone.

    Raises
    ------
    UserError
        If there is a checkpoint but it cannot be used, or the settings do not go together.
    """

    def __init__(self, experiment: Experiment, name: str, directory: Path, group: Group | None = None) -> None:
        group = group or Group()
        directory.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(experiment.threads)
        torch.set_default_dtype(experiment.dtype)
        torch.manual_seed(experiment.seed)
        self.experiment, self.name, self.directory = experiment, name, directory
        self.settings = experiment.models[name]
        self.task = check(experiment.only([name]))
        self.steps_per_epoch = self.task.steps_per_epoch(experiment.batch_size)
        self.epochs = max(1, round(self.settings.epochs_factor * experiment.epochs))
        self.steps = self.epochs * self.steps_per_epoch
        self.model = experiment.network(name, self.task)
        optimizer = self.settings.optimizer(self.model)
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.state = self._restore(optimizer)
        self.board = TensorBoardLogger(directory, name="", version="", purge_step=self.state.step)
        self.fabric = Fabric(
            accelerator=experiment.accelerator,
            # Buffers are constants: broadcasting them would make all processes take part in every forward pass.
            strategy=DDPStrategy(broadcast_buffers=False) if group.size > 1 else "auto",
            devices=group.devices,
            num_nodes=group.nodes,
            precision=experiment.precision,
            loggers=self.board,
        )
        self.fabric.launch()
        self.network, self.optimizer = self.fabric.setup(self.model, optimizer)

    def train(self, report: Callable[[Progress], None], stopped: Callable[[], bool]) -> Outcome:
        """Train to the end, or until ``stopped`` returns True; write a checkpoint either way.

        Raises
        ------
        UserError
            If the loss is no longer finite.
        """
        state = self.state
        if self.fabric.is_global_zero:
            # Later rows, which a kill may have torn, are written again by training.
            write_text(self.directory / METRICS, table(state.history))
        saved = reported = time.perf_counter()
        begun = saved - state.seconds
        while not self._finished() and not self._total(torch.tensor(float(stopped()))):
            epoch, index = divmod(state.step, self.steps_per_epoch)
            self._step(epoch, index)
            now = time.perf_counter()
            state.seconds = now - begun
            closed = index + 1 == self.steps_per_epoch
            if closed:
                self._close_epoch(epoch)
            if now - saved >= self.experiment.checkpoint_seconds:
                self._save()
                saved = time.perf_counter()
            if closed or now - reported >= _REPORT_SECONDS:
                report(self._progress())
                reported = now
        self._save()
        report(self._progress())
        self.board.finalize("success")
        return self._outcome()

    def _step(self, epoch: int, index: int) -> None:
        experiment, settings, task = self.experiment, self.settings, self.task
        factor = learning_rate_factor(settings.schedule, settings.warm_up, self.state.step / self.steps)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = factor * rate
        whole = task.batch(experiment.batch_size, experiment.seed, epoch, index)
        batch, weight = share(task, whole, self.fabric.global_rank, self.fabric.world_size)
        inputs, targets = self.fabric.to_device((batch.inputs, batch.targets))
        prediction = self.network(inputs)
        loss = task.loss(prediction, targets)
        self.optimizer.zero_grad()
        self.fabric.backward(loss * (self.fabric.world_size * weight / task.weight(whole)))
        if settings.clip_norm is not None:
            self.fabric.clip_gradients(
                self.network, self.optimizer, max_norm=settings.clip_norm, error_if_nonfinite=False
            )
        metric = task.measure(prediction.detach(), targets)
        self.state.sums += self._total(weight * torch.tensor([loss.item(), metric.item(), 1.0], dtype=torch.float64))
        if task.judged_on == "training":
            self._keep_if_best()
        self.optimizer.step()
        self.state.step += 1

    def _keep_if_best(self) -> None:
        """Keep the parameters that the prediction was made with, which the step is about to change."""
        state = self.state
        _, measured, count = state.sums.tolist()
        metric = measured / count
        if state.best_metric is None or self._best([state.best_metric, metric]) != state.best_metric:
            state.best, state.best_metric = self._parameters(), metric

    def _parameters(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def _close_epoch(self, epoch: int) -> None:
        state, metric = self.state, self.task.metric
        loss, measured, count = state.sums.tolist()
        if not math.isfinite(loss):
            raise UserError(
                f"{self.name}: the loss is not finite in epoch {epoch + 1}; "
                f"try a smaller learning_rate than {self.settings.learning_rate:g}, or clip_norm: 1.0"
            )
        row = {"epoch": epoch + 1, "step": state.step, "train_loss": loss / count, f"train_{metric}": measured / count}
        if self.task.watched:
            row[f"validation_{metric}"] = self._judge("validation")
        self.fabric.log_dict({key: row[key] for key in row if key not in ("epoch", "step")}, step=state.step)
        state.history.append(row | {"seconds": round(state.seconds, 3)})
        state.sums = torch.zeros_like(state.sums)
        if self.experiment.patience is not None and self._epochs_since_best() == 0:
            state.best = self._parameters()
        if self.fabric.is_global_zero:
            with appended(self.directory / METRICS) as file:
                file.write(table(state.history[-1:], header=len(state.history) == 1).encode())

    def _finished(self) -> bool:
        patience = self.experiment.patience
        return self.state.step == self.steps or (patience is not None and self._epochs_since_best() > patience)

    def _epochs_since_best(self) -> int:
        values = [row[f"validation_{self.task.metric}"] for row in self.state.history]
        return len(values) - 1 - values.index(self._best(values)) if values else 0

    def _best(self, metrics: list[float]) -> float:
        return min(metrics) if self.task.lower_is_better else max(metrics)

    def _total(self, numbers: Tensor) -> Tensor:
        """Return the sum over the processes."""
        total = self.fabric.all_reduce(self.fabric.to_device(numbers), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total.cpu()

    @torch.no_grad()
    def _judge(self, part: HeldOut) -> float:
        total = count = 0.0
        for batch in self.task.held_out(part):
            inputs, targets = self.fabric.to_device((batch.inputs, batch.targets))
            weight = self.task.weight(batch)
            total += weight * self.task.measure(self.network(inputs), targets).item()
            count += weight
        return total / count

    def _progress(self) -> Progress:
        state = self.state
        epoch = min(state.step // self.steps_per_epoch + 1, self.epochs)
        latest = state.history[-1] if state.history else {}
        return Progress(state.step, self.steps, epoch, self.epochs, latest, self.task.unit)

    def _metric(self) -> float:
        task = self.task
        if task.judged_on != "training":
            return self._judge(task.judged_on)
        return self._best([row[f"train_{task.metric}"] for row in self.state.history])

    def _outcome(self) -> Outcome:
        state, task = self.state, self.task
        metric = None
        if self._finished():
            if state.best:
                self.model.load_state_dict(state.best)
            metric = self._metric()
            if self.fabric.is_global_zero:
                with torch.no_grad():
                    task.leave_files(self.directory, lambda inputs: self.network(self.fabric.to_device(inputs)))
        return Outcome(
            model=self.name,
            hidden_size=self.settings.hidden_size,
            parameters=self.settings.num_parameters(self.model),
            epochs=len(state.history),
            seconds=state.seconds,
            train_loss=state.history[-1]["train_loss"] if state.history else None,
            metric=metric,
            metric_name=task.metric,
            unit=task.unit,
            judged_on=task.judged_on,
            lower_is_better=task.lower_is_better,
            baseline=task.baseline,
        )

    def _save(self) -> None:
        if not self.fabric.is_global_zero:
            return
        state = {
            "task": interface(self.task),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "state": vars(self.state),
        }
        save_checkpoint(self.directory, state)

    def _restore(self, optimizer: Adam) -> State:
        checkpoint = load_checkpoint(self.directory)
        if checkpoint is None:
            return State()
        try:
            self._refuse_another_task(Interface(**checkpoint["task"]))
            self.model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            return State.restored(checkpoint["state"], self.steps, self.task, self.model)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            raise UserError(
                f"the checkpoint in {self.directory} does not fit model {self.name!r} of this experiment"
            ) from error

    def _refuse_another_task(self, saved: Interface) -> None:
        """Name what has changed in the task since the checkpoint was written."""
        pairs = zip(Interface._fields, saved, interface(self.task).values(), strict=True)
        if changes := [f"{name} was {before!r} and is {now!r}" for name, before, now in pairs if before != now]:
            raise UserError(
                f"the task has changed since {self.directory / NAME} was written: {', '.join(changes)}; "
                "change it back, or start again in another directory"
            )


def _shapes(parameters: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in parameters.items()}


def learning_rate_factor(schedule: Literal["constant", "cosine", "hold"], warm_up: float, progress: float) -> float:
    """Return the factor on the learning rate after a fraction ``progress`` of the steps.

    Examples
    --------
    >>> [learning_rate_factor("hold", 0.0, progress) for progress in (0, 0.7, 0.85)]
    [1.0, 1.0, 0.5]
    >>> [learning_rate_factor("constant", 0.1, progress) for progress in (0, 0.05, 0.1, 1)]
    [0.0, 0.5, 1.0, 1.0]
    """
    factor = 1.0
    if schedule == "cosine":
        factor = (1 + math.cos(math.pi * progress)) / 2
    elif schedule == "hold":
        factor = min(1.0, round((1 - progress) / 0.3, 12))
    return factor * min(1.0, progress / warm_up) if warm_up > 0 else factor
