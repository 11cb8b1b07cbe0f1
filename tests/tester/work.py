"""A share of the cases, for a process."""

import logging

import run
import torch
from compare import Record

torch._logging.set_logs(dynamo=40, aot=40)  # errors only
logging.getLogger("householder").setLevel(logging.ERROR)  # `ht.accelerate` says what it does
torch.set_num_threads(1)


def chunk(share):
    """Run the cases of these indices: a record for each kind, and (index, message) of each wrong case."""
    seed, indices, kinds = share
    records, failures = {name: Record() for name in kinds}, []
    for index in indices:
        done = run.case(seed, index, kinds)
        if done is None:
            continue
        name, record, message = done
        records[name].add(record)
        if message:
            failures.append((index, message))
    return records, failures
