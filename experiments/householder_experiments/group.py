"""The processes that train one model together."""

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from householder.cli.errors import UserError

if TYPE_CHECKING:
    from householder_experiments.tasks.base import Batch, Task


@dataclass(frozen=True)
class Group:
    """How many processes share each batch, and which of them this command starts.

    Each of ``nodes`` machines runs the same command, which starts ``devices`` processes. ``torchrun`` starts
    ``devices`` commands itself, and each command then starts one process. Only the first process prints and writes.
    """

    devices: int = 1
    nodes: int = 1
    node: int = 0
    only: int | None = None
    """The one local process that this command starts, if not all."""
    address: str = "127.0.0.1"
    port: int | None = None
    """Port on which the first process listens for the first model; each further model takes the next. Default: any."""

    @property
    def size(self) -> int:
        """The number of processes."""
        return self.devices * self.nodes

    @property
    def started_here(self) -> range:
        """The local ranks of the processes that this command starts."""
        return range(self.devices) if self.only is None else range(self.only, self.only + 1)

    @property
    def is_first(self) -> bool:
        """Whether this command starts the first process."""
        return self.node == 0 and 0 in self.started_here

    @property
    def is_divided(self) -> bool:
        """Whether other commands start processes too."""
        return self.nodes > 1 or self.only is not None

    def environment(self, local_rank: int, port: int) -> dict[str, str]:
        """Return the variables by which the process of a local rank finds the others."""
        return {
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(port),
            "NODE_RANK": str(self.node),
            "LOCAL_RANK": str(local_rank),
            "TORCHELASTIC_USE_AGENT_STORE": "False",  # torchrun's would confuse one model's processes with the next's
        }


def group_of(devices: int, nodes: int) -> Group:
    """Return the group that the command line and the environment ask for.

    Raises
    ------
    UserError
        If several machines are to work together but the environment does not say how they meet.
    """
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment:
        if devices > 1 or nodes > 1:
            raise UserError("torchrun decides how many processes there are: leave out --devices and --num-nodes")
        devices = int(environment["LOCAL_WORLD_SIZE"])
        return Group(
            devices=devices,
            nodes=int(environment["WORLD_SIZE"]) // devices,
            node=int(environment["GROUP_RANK"]),
            only=int(environment["LOCAL_RANK"]),
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]) + 1,  # torchrun's own is taken
        )
    if nodes == 1:
        return Group(devices)
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK") if name not in environment]:
        raise UserError(f"--num-nodes {nodes} needs {missing[0]} in the environment of the command on each machine")
    address, port, node = (environment[name] for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK"))
    if not (port.isdecimal() and node.isdecimal() and int(node) < nodes):
        raise UserError(f"MASTER_PORT={port} and NODE_RANK={node} do not fit --num-nodes {nodes}")
    return Group(devices, nodes, int(node), address=address, port=int(port))


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def share(task: "Task", batch: "Batch", rank: int, size: int) -> tuple["Batch", int]:
    """Return the sequences of a batch that one of ``size`` processes trains on, and the weight of their mean loss.

    If there are fewer sequences than processes, surplus processes repeat a sequence with weight zero.
    """
    if size == 1:
        return batch, task.weight(batch)
    begin, end = batch.size * rank // size, batch.size * (rank + 1) // size
    part = slice(begin, max(end, begin + 1))
    sequences = (slice(None), part) if task.every_step else part
    part_of_batch = batch._replace(inputs=batch.inputs[:, part], targets=batch.targets[sequences])
    return part_of_batch, task.weight(part_of_batch) if end > begin else 0
