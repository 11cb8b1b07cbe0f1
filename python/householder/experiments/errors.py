"""The one exception that a user may cause."""


class UserError(Exception):
    """A mistake in what the user gave: shown as one line, without a traceback."""
