"""The readers of files from elsewhere. No other module of the experiments opens a file to read it.

A file may come from anybody. Each reader has a limit on what it takes in and either returns plain values or raises.
None runs code of the file. Files may be packed by gzip, whatever their names are, and texts may begin with a byte
order mark.
"""

import csv
import gzip
import json
import os
import stat
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from typing_extensions import override

from householder.cli.errors import UserError

NumericColumns = dict[str, NDArray[np.float64]]


class DamagedError(UserError):
    """A file does not hold what it should."""


SETTINGS = 1 << 16
"""The most bytes of settings, and of other files of a run that people could read."""
_DEEPEST = 20
"""The most levels of YAML."""
_LARGEST_INTEGER = (1 << 63) - 1
"""The largest integer of YAML; Python refuses to print those of more than 4,300 digits."""
_TABLE = 1 << 26
DATA = 1 << 30
"""The most bytes of data."""
_TENSORS = 1 << 34
"""The most bytes of a checkpoint."""
_GZIP = b"\x1f\x8b"
_OTHERS = {"d": "folder", "p": "pipe", "c": "device", "b": "device", "s": "socket"}
"""What is no regular file, by the letters of :func:`stat.filemode`."""


def is_there(path: Path) -> bool:
    """Return whether the path exists, or is a broken link, for which reading then raises an error."""
    return os.path.lexists(path)


def regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file, as the ``opener`` of :func:`open`; anything else is neither waited for nor read.

    Raises
    ------
    OSError
        It cannot be opened, or it is a folder, a pipe, a device or a socket.
    """
    if os.path.exists(path):
        _refuse_others(os.stat(path))  # to open a device may do something
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    try:
        _refuse_others(os.fstat(descriptor))  # another may have taken its place
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_others(status: os.stat_result) -> None:
    if kind := _OTHERS.get(stat.filemode(status.st_mode)[0]):
        raise OSError(f"it is a {kind}, expected a regular file")


@contextmanager
def _opened(path: Path, largest: int) -> Iterator[BufferedReader]:
    """Open a file that a run or a user names; every reader of this module uses it.

    Raises
    ------
    UserError
        It cannot be read, is no regular file, or has more than ``largest`` bytes.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            if os.fstat(file.fileno()).st_size > largest:
                raise UserError(f"{path} has more than {largest:,} bytes")
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:  # a null character in the name
        raise UserError(f"cannot read {path}: {error}") from error


@contextmanager
def opened(path: Path, largest: int) -> Iterator[BinaryIO]:
    """Open a file to read it, unpacked if its content is that of gzip.

    Raises
    ------
    UserError
        It cannot be read, is no regular file, or has more than ``largest`` bytes.
    """
    with _opened(path, largest) as file:
        if file.peek(len(_GZIP)).startswith(_GZIP):
            with gzip.open(file) as unpacked:
                yield cast("BinaryIO", unpacked)
        else:
            yield file


def read_bytes(path: Path, largest: int) -> bytes:
    """Return the content of a file.

    Raises
    ------
    UserError
        It cannot be read, or has more than ``largest`` bytes.
    """
    with opened(path, largest) as file:
        content = file.read(largest + 1)  # no more: a small packed file may expand to any size
    if len(content) > largest:
        raise UserError(f"{path} has more than {largest:,} bytes")
    return content


def read_text(path: Path, largest: int) -> str:
    """Return the text of a file, without a byte order mark.

    Raises
    ------
    UserError
        It cannot be read, has more than ``largest`` bytes, or is not UTF-8.
    """
    try:
        return read_bytes(path, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start}") from error


def read_yaml(path: Path) -> object:
    """Return the values of a file of settings.

    Raises
    ------
    UserError
        It cannot be read, is too large, or is not plain YAML.
    """
    try:
        return parse_yaml(read_text(path, SETTINGS))
    except (ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f": line {mark.line + 1}, column {mark.column + 1}: {error.problem}" if mark else ""  # type: ignore[union-attr]
        raise UserError(f"{path} is not valid YAML{where}") from error


def parse_yaml(text: str) -> object:
    """Return the values of plain YAML, whose size is at most proportional to that of the text.

    Raises
    ------
    ValueError, yaml.YAMLError
        It is no YAML, has aliases, or is nested too deeply.
    """
    return yaml.load(text, _PlainLoader)


class _PlainLoader(yaml.SafeLoader):
    """A loader that refuses many levels, and aliases, with which a few lines stand for billions of values."""

    _depth = 0

    @override
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not taken: repeat the values", mark)
        if self._depth == _DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"there are more than {_DEEPEST} levels", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _integer(loader: _PlainLoader, node: yaml.ScalarNode) -> int:
    value: int = loader.construct_yaml_int(node)
    if abs(value) > _LARGEST_INTEGER:
        raise yaml.constructor.ConstructorError(None, None, "an integer has more than 63 bits", node.start_mark)
    return value


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _integer)


def read_json(path: Path) -> Any:
    """Return the values of a JSON file.

    Raises
    ------
    UserError
        It cannot be read, or is too large.
    ValueError
        It is no JSON.
    """
    try:
        return json.loads(read_bytes(path, SETTINGS))
    except RecursionError as error:
        raise ValueError("too many levels") from error


def read_columns(path: Path) -> NumericColumns:
    """Return the columns of a CSV file by the names in its first line; an empty dict if there is no other line.

    Raises
    ------
    UserError
        If the file cannot be read, or does not hold a number in every column of every line.
    """
    lines = csv.reader(read_text(path, _TABLE).splitlines())
    try:
        names = next(lines, [])
        numbers = np.fromiter((float(number) for line in lines for number in _of(len(names), line)), np.float64)
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path} is damaged: expected a line of names, then lines of as many numbers") from error
    if len(set(names)) < len(names):
        raise UserError(f"{path} is damaged: two columns have one name")
    return dict(zip(names, numbers.reshape(-1, len(names)).T, strict=True)) if len(numbers) else {}


def _of(count: int, line: list[str]) -> list[str]:
    if len(line) != count:
        raise ValueError(f"{len(line)} entries, expected {count}")
    return line


def read_tensors(path: Path) -> dict[str, Any]:
    """Return what ``torch.save`` has written: tensors, numbers and names in dictionaries.

    Raises
    ------
    UserError
        It cannot be read, is no regular file, or is too large.
    DamagedError
        It is damaged, holds objects of other classes, or is packed.
    """
    with _opened(path, _TENSORS) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                if sum(record.file_size for record in archive.infolist()) > os.fstat(file.fileno()).st_size:
                    raise ValueError("the records are larger than the file")  # torch packs none
            file.seek(0)
            with warnings.catch_warnings(action="ignore"):  # of foreign files, which are refused below
                state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many types for damaged files, and advises loading them unsafely
            raise DamagedError(f"{path} is damaged") from error
    if not isinstance(state, dict):
        raise DamagedError(f"{path} is damaged: it holds no names")
    return state
