"""Subcommands of ``householder``, as data."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """A subcommand. Heavy libraries are loaded when it runs, never before: ``--help`` answers at once."""

    name: str
    summary: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    """Maps the parsed arguments to an exit status."""
