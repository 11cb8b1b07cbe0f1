"""Numbers as arguments of commands."""

import argparse
import math


def positive(text: str) -> int:
    """Read a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 on, got {text!r}")
    return int(text)


def natural(text: str) -> int:
    """Read an integer that is not negative."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer from 0 on, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time that is not negative."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds from 0 on, got {text!r}")
    return value
