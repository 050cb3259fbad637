"""What a disk holds after a power loss: a model of files and directories that knows what was synced.

A sync of a file makes its content and size durable, a sync of a directory the names in it, and nothing else does (ext4
and XFS promise more; POSIX does not). Of what was not synced, each sector or page has any of the contents it had since
the last sync, the file any of the sizes, and each change of a name happened or did not.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.soak.names import Names
from tests.soak.recording import Kind, Operation

SECTOR_BYTES, PAGE_BYTES = 512, 4096
# Its content is a mapping that the recorder does not see; LMDB makes it anew when nobody else has it open.
VOLATILE = "lock.mdb"


@dataclass
class _File:
    """`content` is what the next sync will make durable, `durable` what is so already."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        self._resize(max(len(self.content), offset + len(data)))
        self.content[offset : offset + len(data)] = data
        self.writes.append((offset, data))

    def resize(self, size: int) -> None:
        if size < len(self.content):
            self.writes.append((size, bytes(len(self.content) - size)))
        self._resize(size)

    def _resize(self, size: int) -> None:
        if size != len(self.content):
            self.sizes.append(size)
            _set_size(self.content, size)

    def sync(self) -> None:
        _set_size(self.durable, len(self.content))
        for offset, data in self.writes:
            self.durable[offset : offset + len(data)] = data[: max(len(self.durable) - offset, 0)]
        self.writes, self.sizes = [], []

    def write_through(self, offset: int, data: bytes) -> None:
        """A write with O_DSYNC: it is durable, with the size it needs, and nothing that was written before it."""
        end = offset + len(data)
        self._resize(max(len(self.content), end))
        self.content[offset:end] = data
        _set_size(self.durable, max(len(self.durable), end))
        self.durable[offset:end] = data
        self.sizes = [size for size in self.sizes if size > len(self.durable)]
        left = []
        for at, older in self.writes:
            left += [(at, older[: max(offset - at, 0)]), (max(at, end), older[max(end - at, 0) :])]
        self.writes = [(at, older) for at, older in left if older]

    def after_loss(self, chance: Chance) -> bytes:
        """One of the contents that may be found."""
        size = chance.pick([len(self.durable), *self.sizes])
        longest = max(size, len(self.durable), *(offset + len(data) for offset, data in self.writes), 0)
        content = bytearray(self.durable.ljust(longest, b"\0"))
        units: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for offset, data in self.writes:
            unit, end = chance.unit_bytes, offset + len(data)
            for start in range(offset // unit * unit, end, unit):
                left, right = max(start, offset), min(start + unit, end)
                units[start].append((left, data[left - offset : right - offset]))
        for versions in units.values():
            for offset, data in versions[: chance.pick(range(len(versions) + 1))]:
                content[offset : offset + len(data)] = data
        return bytes(content[:size])


@dataclass(frozen=True)
class Chance:
    """How the dice fall for what was not synced: how much of it is kept, in units of a sector or a page."""

    dice: random.Random = field(repr=False)
    unit_bytes: int
    kept: float

    def pick(self, choices: list[int] | range) -> int:
        """The newest with probability `kept`, else any older one."""
        if len(choices) == 1 or self.dice.random() < self.kept:
            return choices[-1]
        return self.dice.choice(choices[:-1])

    def keeps(self) -> bool:
        return self.dice.random() < self.kept


class Device:
    """Files and names below a root that is itself durable. `ignores_syncs` makes syncs do nothing: a disk that lies."""

    def __init__(self, root: Path, *, ignores_syncs: bool = False) -> None:
        root_number = root.stat().st_ino
        self._files: dict[int, _File] = {}
        self._names = Names(0)
        # File systems use an inode number again; here each file and directory has one of its own.
        self._numbers, self._made = {root_number: 0}, 0
        self._ignores_syncs = ignores_syncs
        self.mapped: set[str] = set()  # files that are written through a mapping
        self.volatile = b""

    def apply(self, operation: Operation, *, in_flight: bool = False) -> None:
        """One more operation has happened; one in flight has reached the cache and not the disk."""
        if operation.kind in (Kind.CREATE, Kind.MKDIR):
            self._numbers[operation.file] = self._made = self._made + 1
        number = self._numbers.get(operation.file, -1)
        file = self._files.get(number)
        match operation.kind:
            case Kind.WRITE:
                assert file is not None
                is_durable = operation.is_dsync and not in_flight and not self._ignores_syncs
                (file.write_through if is_durable else file.write)(operation.offset, operation.data)
            case Kind.TRUNCATE:
                assert file is not None
                file.resize(operation.length)
            case Kind.ALLOCATE:
                assert file is not None
                file.resize(max(len(file.content), operation.offset + operation.length))
            case Kind.SYNC if not in_flight and not self._ignores_syncs:
                if file is not None:
                    file.sync()
                else:
                    self._names.sync(number)
            case Kind.CREATE | Kind.MKDIR | Kind.LINK | Kind.UNLINK | Kind.RENAME | Kind.RMDIR:
                if operation.kind is Kind.CREATE:
                    self._files[number] = _File()
                self._names.change(operation, number)
            case Kind.MAP:
                paths = self._names.paths().items()
                self.mapped |= {PurePosixPath(path).name for path, each in paths if each == number}
            case _:
                pass

    @contextmanager
    def imagined(self, operation: Operation) -> Iterator[None]:
        """One more write or size is on its way inside the block, and not there any more after it."""
        number = self._numbers[operation.file]
        file = self._files[number]
        before = _File(bytearray(file.content), bytearray(file.durable), list(file.writes), list(file.sizes))
        self.apply(operation, in_flight=True)
        try:
            yield
        finally:
            self._files[number] = before

    def unsynced(self) -> int:
        """How many writes and changes of names could be lost now."""
        return self._names.unsynced() + sum(len(file.writes) for file in self._files.values())

    def write_all(self, target: Path) -> None:
        """The directory with nothing lost."""
        self._write(target, self._names.paths(), lambda file: bytes(file.content))

    def write_after_loss(self, target: Path, chance: Chance) -> None:
        """The directory as a power loss may leave it."""
        self._write(target, self._names.paths_after_loss(chance.keeps), lambda file: file.after_loss(chance))

    def _write(self, target: Path, paths: dict[str, int], content_of: Callable[[_File], bytes]) -> None:
        target.mkdir(mode=0o700)
        done: dict[int, Path] = {}
        for path, number in paths.items():
            place = target / path
            if number in self._names.directories:
                place.mkdir(mode=0o700)
            elif number in done:
                os.link(done[number], place)
            else:
                is_volatile = place.name == VOLATILE
                place.write_bytes(self.volatile if is_volatile else content_of(self._files[number]))
                place.chmod(0o600)
                done[number] = place

    def differences(self, real: Path) -> list[Operation]:
        """What must have happened besides, given what the directory really holds: a process that is killed may die
        between a call and its record."""
        found: list[Operation] = []
        there, end = self._names.paths(), (0, 0)
        here = {str(path.relative_to(real)): path for path in sorted(real.rglob("*")) if path.name != VOLATILE}
        gone = [path for path in there if path not in here and PurePosixPath(path).name != VOLATILE]
        for path in reversed(gone):
            kind = Kind.RMDIR if there[path] in self._names.directories else Kind.UNLINK
            found.append(Operation(kind, 0, end, path))
        for path, place in here.items():
            inode, is_new = place.stat().st_ino, path not in there
            if place.is_dir():
                found += [Operation(Kind.MKDIR, inode, end, path)] * is_new
                continue
            file, data = self._files.get(self._numbers.get(inode, -1)), place.read_bytes()
            found += [Operation(Kind.LINK if file else Kind.CREATE, inode, end, path)] * is_new
            known = bytes(file.content) if file else b""
            if len(known) != len(data):
                found.append(Operation(Kind.TRUNCATE, inode, end, length=len(data)))
            known = known[: len(data)].ljust(len(data), b"\0")
            for at in range(0, len(data) if known != data else 0, SECTOR_BYTES):
                piece = data[at : at + SECTOR_BYTES]
                if known[at : at + SECTOR_BYTES] != piece:
                    found.append(Operation(Kind.WRITE, inode, end, offset=at, data=piece))
        return found


def _set_size(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))
