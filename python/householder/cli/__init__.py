"""The command ``householder``: ``entry`` lists all commands, ``info``, ``bench`` and ``gpu_check`` are three of them.

The commands that train are in :mod:`householder.experiments`, which knows nothing of this package.
"""

from householder.cli.entry import main

__all__ = ["main"]
