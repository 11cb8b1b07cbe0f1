"""A plugin of pytest that accelerates every model of transformers once it is made.

    PYTHONPATH=tests/upstream python -m pytest -p accelerated_models ..

At the end it says how many layers it accelerated, so that a run without any is seen.
"""

import functools
import logging

from transformers import PreTrainedModel

import householder.torch as ht

_accelerated = 0


def pytest_configure():
    """Accelerate models at the end of their ``__init__``, where transformers calls ``post_init``."""
    logging.getLogger("householder").setLevel(logging.ERROR)  # most submodels have nothing to accelerate
    before = PreTrainedModel.post_init

    @functools.wraps(before)
    def post_init(self):
        global _accelerated
        before(self)
        _accelerated += len(ht.accelerate(self))

    PreTrainedModel.post_init = post_init


def pytest_terminal_summary(terminalreporter):
    """Say how many layers were accelerated."""
    terminalreporter.write_line(f"accelerated layers: {_accelerated}")
