"""The command ``householder``.

``entry`` reads the command line. ``info``, ``bench`` and ``gpu_check`` are the commands of this package. Other
distributions add theirs, each a :class:`~householder.cli.command.Command`, by entry points of the group
``householder.commands``. They share ``arguments``, ``errors`` and ``output``.
"""

from householder.cli.entry import main

__all__ = ["main"]
