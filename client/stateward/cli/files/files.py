"""Files that commands write: whole or not at all.

A regular file, or one that does not exist yet, is written under a temporary name in its directory, synced, then
renamed. Symbolic links are followed. Anything else (a device, a FIFO) is opened and written to, because a rename would
destroy it.
"""

from __future__ import annotations

import codecs
import errno
import os
import secrets
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import typer

from stateward.cli.show.output import CommandError, clean_lines, is_terminal

MODE = 0o600
"""The mode of the finished file. Only its owner may read what agents wrote."""
NAME_BYTES_MAX = 100
"""So much of a file's name is in its temporary name. File systems limit names to 255 bytes, some to 143."""
READER_TIMEOUT_S, READER_POLL_S = 10.0, 0.05
"""How long a FIFO may have no reader before the command gives up, and how often it looks."""
LEVEL, GZIP = 6, 31
"""How well a .gz file is packed, and zlib's number for the form of gzip."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in an output, to which it can return."""

    size_bytes: int
    packer: Any


class Output:
    """Takes bytes, packs them if asked, and can forget what came after a place, unless it is a stream."""

    def __init__(self, file: IO[bytes], *, is_packed: bool = False, is_stream: bool = False) -> None:
        self._file = file
        self._packer: Any = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP) if is_packed else None
        self.is_stream = is_stream

    def write(self, data: bytes) -> None:
        """Adds bytes."""
        self._file.write(data if self._packer is None else self._packer.compress(data))

    def place(self) -> Place:
        """Returns where the output is now."""
        size_bytes = 0 if self.is_stream else self._file.tell()
        return Place(size_bytes, None if self._packer is None else self._packer.copy())

    def return_to(self, place: Place) -> None:
        """Removes what came after a place. Does nothing to a stream, whose reader has it already."""
        if self.is_stream:
            return
        self._file.seek(place.size_bytes)
        self._file.truncate()
        self._packer = None if place.packer is None else place.packer.copy()

    def finish(self) -> None:
        """Writes what is left in memory."""
        if self._packer is not None:
            self._file.write(self._packer.flush())
        self._file.flush()


def named(path: Path | None) -> Path | None:
    """Refuses an empty name in an option, which Path takes for the present directory."""
    if path == Path():
        raise typer.BadParameter("it is empty, or the present directory; give the name of a file")
    return path


@contextmanager
def written(path: Path | None) -> Iterator[Output]:
    """Opens a file to write to, packed with gzip if its name ends in .gz. None means stdout.

    If the block raises, a regular file stays as it was, and nothing is left beside it. Raises CommandError if the file
    cannot be written.
    """
    if path is None:
        yield from _written_to_stdout()
        return
    with _explained(path):
        found = _look(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise CommandError(f"{path} is a directory; give the name of a file in it")
        if found is not None and _is_stdout(found):
            yield from _written_to_stdout()
        elif found is None or stat.S_ISREG(found.st_mode):
            yield from _replaced(path, Path(os.path.realpath(path)))
        else:
            yield from _written_directly(path, found)


def _written_to_stdout() -> Iterator[Output]:
    file = sys.stdout.buffer
    output = Output(cast(BinaryIO, _Terminal(file)) if is_terminal() else file, is_stream=True)
    yield output
    output.finish()


class _Terminal:
    """Text of unknown origin on its way to a terminal, which it must not control."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write(self, data: bytes) -> None:
        """Writes it with escapes in place of control characters."""
        self._file.write(clean_lines(self._decoder.decode(data)).encode())

    def flush(self) -> None:
        """Writes what is left in memory."""
        self._file.flush()


def _replaced(path: Path, target: Path) -> Iterator[Output]:
    if target.exists() and not os.access(target, os.W_OK):
        raise CommandError(f"cannot write {path}: it is write-protected")
    # The name is chosen here, so that a signal at any moment finds what must be removed.
    part = target.parent / f".{_beginning(target.name)}.{secrets.token_hex(8)}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        with os.fdopen(descriptor, "wb") as file:
            output = Output(file, is_packed=_is_packed(path))
            yield output
            output.finish()
            os.fchmod(descriptor, MODE)
            os.fsync(descriptor)
        part.replace(target)
        sync_directory(target.parent)
    finally:
        part.unlink(missing_ok=True)


def _written_directly(path: Path, found: os.stat_result) -> Iterator[Output]:
    is_fifo = stat.S_ISFIFO(found.st_mode)
    descriptor = _open_fifo(path) if is_fifo else os.open(path, os.O_WRONLY | os.O_NOCTTY)
    with os.fdopen(descriptor, "wb") as file:
        is_packed = _is_packed(path)
        shown = cast(BinaryIO, _Terminal(file)) if file.isatty() and not is_packed else file
        output = Output(shown, is_packed=is_packed, is_stream=True)
        yield output
        output.finish()


def _open_fifo(path: Path, clock: Callable[[], float] = time.monotonic) -> int:
    """Opens a FIFO once it has a reader. Without O_NONBLOCK the command would wait for one for ever."""
    end = clock() + READER_TIMEOUT_S
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if clock() >= end:
                raise CommandError(f"cannot write {path}: no process reads this FIFO; start its reader first") from None
            time.sleep(READER_POLL_S)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _look(path: Path) -> os.stat_result | None:
    """Returns what is at the path, behind all links; None = nothing is there yet."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _is_stdout(found: os.stat_result) -> bool:
    """Whether this file is open as stdout, as /dev/stdout is. Replacing it would lose what a shell appends to."""
    try:
        return os.path.samestat(found, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):
        return False


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _beginning(name: str) -> str:
    return os.fsencode(name)[:NAME_BYTES_MAX].decode(errors="ignore")


def sync_directory(directory: Path) -> None:
    """Makes a rename in a directory durable, where the file system can."""
    with suppress(OSError):  # not every file system can
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from None
