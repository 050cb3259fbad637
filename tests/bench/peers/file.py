"""The other floor: what the disk alone takes. The echo knows no disk, and that is what a busy machine slows most."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.bench.peers.base import Call, Contender

FILE = "file, append and sync"


class SyncedFile(Contender):
    """A message at the end of a file and fdatasync, in this process: no server, no transaction, no index."""

    name = FILE

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open: dict[str, int] = {}
        directory.mkdir()

    def fill(self, thread: str, messages: list[bytes]) -> None:
        path = self.directory / f"{len(self.open)}.jsonl"
        self.open[thread] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.write(self.open[thread], b"\n".join(messages) + b"\n")

    def step(self, thread: str, message: bytes) -> Call:
        return partial(self._append, self.open[thread], message + b"\n")

    def read(self, thread: str) -> Call:
        file = self.open[thread]
        return lambda: os.pread(file, os.fstat(file).st_size, 0)

    def close(self) -> None:
        for file in self.open.values():
            os.close(file)

    @staticmethod
    def _append(file: int, line: bytes) -> None:
        os.write(file, line)
        getattr(os, "fdatasync", os.fsync)(file)
