"""Writes files completely or not at all: under a temporary name in the same directory, synced, then renamed."""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stateward.cli.output import CommandError

MODE = 0o600
"""The mode of the finished file. Only its owner may read what agents wrote."""


@contextmanager
def written(path: Path | None) -> Iterator[IO[bytes]]:
    """Opens a file to write to, compressed with gzip if its name ends in .gz. None means stdout.

    Leaves no file behind if the block raises. Raises CommandError if the file cannot be written.
    """
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.is_dir():
        raise CommandError(f"{path} is a directory; give the name of a file in it")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    try:
        with _explained(path):
            with os.fdopen(descriptor, "wb") as file:
                if path.suffix.lower() == ".gz":
                    with gzip.GzipFile(path.stem, "wb", 6, file, mtime=0) as packed:
                        yield packed  # type: ignore[misc]  # GzipFile can be written like any binary file
                else:
                    yield file
                file.flush()
                os.fchmod(descriptor, MODE)
                os.fsync(descriptor)
            Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from None
