"""Mistakes of the user."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake in the user's input, shown as one line without a traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    r"""Return a text with an escape for each character that cannot be printed, such as a newline in a file's name.

    Examples
    --------
    >>> from householder.cli.errors import one_line
    >>> print(one_line("no file a\nb"))
    no file a\nb
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a hint for the error message about an unknown name: the known name that it resembles, if any.

    Examples
    --------
    >>> from householder.cli.errors import nearest
    >>> nearest("lsmt", ["ornn", "lstm"])
    "; did you mean 'lstm'?"
    >>> nearest("gru", ["ornn", "lstm"])
    ''
    """
    matches = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def first_line(error: BaseException) -> str:
    r"""Return the type of an error and the first line of its message that has anything on it.

    Examples
    --------
    >>> from householder.cli.errors import first_line
    >>> first_line(ValueError("\n it is wrong\nand this is why"))
    'ValueError: it is wrong'
    >>> first_line(ValueError())
    'ValueError'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def system_error(error: BaseException | None) -> OSError | None:
    """Return the refusal of the system that an error is or hides, such as that of a full disk; None if there is none.

    Libraries that write into an open file replace it by an error of their own. Refusals to open a file name the file,
    and libraries recover from them.
    """
    while error is not None:
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            return error
        error = error.__cause__ or error.__context__
    return None
