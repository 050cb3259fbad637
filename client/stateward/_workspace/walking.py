"""The walk through a directory: first what is there, then the content of what changed, then the directory objects.

A directory comes before those in it, so in the reverse order each is made from objects that are there. Nothing is
followed, and nothing is opened that is no regular file.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256

from stateward._workspace.chunking import WHOLE_BYTES_MAX, cut
from stateward._workspace.git import leads_out
from stateward._workspace.ignoring import FILE_BYTES_MAX as RULES_BYTES_MAX
from stateward._workspace.ignoring import RESERVED, Ignored, Names, read_rules
from stateward._workspace.index import DIRECTORY, FACTS, FILE, LINK, PART, Index, Known
from stateward._workspace.objects import DIRECTORY as DIRECTORY_KIND
from stateward._workspace.objects import NAME_BYTES_MAX, TARGET_BYTES_MAX, Chunk, Directory, Entry, WrongObject
from stateward._workspace.root import Root, file_flags, refused
from stateward.workspaces import LeftOut, Rules

READS_MAX = 3
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about the file."""
DEPTH_MAX = 256
BATCH_BYTES = 16 << 20
"""So many bytes of chunks are held at once."""
Chunks = dict[bytes, bytes]
"""Chunks by their digests."""


@dataclass(slots=True)
class Place:
    """A directory that the walk has found."""

    path: bytes
    parent: int
    depth: int
    ignored: Ignored | None
    rows: dict[bytes, bytes] = field(default_factory=dict)
    inner: dict[bytes, int] = field(default_factory=dict)
    """The directories in it: their places in the list."""
    known: Known | None = None
    """What the index has of it."""
    made: Known | None = None
    """Set once its object is made, or is known not to have changed."""
    is_whole: bool = False
    """Whether no rule leaves out what is in it: it is `.git`, or lies below."""


class Walk:
    """One snapshot of the files below a root. The files in `doubted` are read, whatever the index has of them."""

    def __init__(self, root: Root, rules: Rules, index: Index, doubted: Container[bytes] = ()) -> None:
        self._root, self._rules, self._index, self._doubted = root, rules, index, doubted
        self._names = Names(rules)
        self.places: list[Place] = []
        self.start_ns = time.time_ns()
        self._to_read: dict[int, list[bytes]] = {}
        """The files that must be read, by the places of their directories in the list."""
        self._count = self._bytes = 0
        self.read = self.read_bytes = 0
        self.torn: list[bytes] = []
        self.left_out: list[LeftOut] = []
        self.collisions: list[bytes] = []

    # -- what is there ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Lists everything. Raises WorkspaceRefused if there is more than the rules allow."""
        self.places.append(Place(b"", -1, 0, None))
        at = 0
        while at < len(self.places):
            place = self.places[at]
            try:
                with self._root.directory(place.path) as fd:
                    self._list(at, place, fd)
            except OSError as error:
                if at == 0:
                    raise
                self._drop(at, error)
            at += 1

    def _drop(self, at: int, error: OSError) -> None:
        """Leaves out a directory that cannot be read, or is no longer there."""
        place = self.places[at]
        parent, name = self.places[place.parent], place.path.rpartition(b"/")[2]
        del parent.inner[name]
        place.parent = -1
        place.rows.clear()
        self._to_read.pop(at, None)
        self._leave_out(place.path + b"/", error)

    def _leave_out(self, path: bytes, why: OSError | str) -> None:
        if isinstance(why, FileNotFoundError):
            return  # it went meanwhile, and is not there
        if isinstance(why, OSError) and why.errno in _OURS:
            raise why
        self.left_out.append(LeftOut(path, why if isinstance(why, str) else (why.strerror or str(why))))

    def _list(self, at: int, place: Place, fd: int) -> None:
        place.known = self._index.places.get(place.path)
        if not place.is_whole:
            self._read_rules(place, fd)
        prefix = place.path + b"/" if place.path else b""
        with os.scandir(fd) as found:
            for item in found:
                name = os.fsencode(item.name)
                if name.startswith(RESERVED):
                    continue
                is_directory = item.is_dir(follow_symlinks=False)
                path = prefix + name
                shown = path + b"/" if is_directory else path
                is_whole = place.is_whole or self._names.is_whole(item.name)
                reason = "" if is_whole else self._names.reason(item.name)
                if not reason and place.ignored is not None and not is_whole:
                    reason = place.ignored.reason(shown)
                if is_whole and not is_directory and not place.is_whole and leads_out(fd, name, place.depth):
                    reason = "it leads to a repository elsewhere"
                if not reason and len(name) > NAME_BYTES_MAX:
                    reason = f"its name has more than {NAME_BYTES_MAX} bytes"
                if not reason and is_directory and place.depth == DEPTH_MAX:
                    reason = f"it lies more than {DEPTH_MAX} directories deep"
                if reason:
                    self._leave_out(shown, reason)
                    continue
                self._take_count(path)
                if is_directory:
                    place.inner[name] = len(self.places)
                    self.places.append(Place(path, at, place.depth + 1, place.ignored, is_whole=is_whole))
                    continue
                try:
                    self._take(at, place, fd, name, item.stat(follow_symlinks=False))
                except OSError as error:
                    self._leave_out(path, error)
        self._find_collisions(place, prefix)

    def _read_rules(self, place: Place, fd: int) -> None:
        for name in self._names.files[::-1]:
            with suppress(FileNotFoundError):
                try:
                    opened = os.open(name, file_flags(), dir_fd=fd)
                except FileNotFoundError:
                    raise
                except OSError:  # a symlink, or one that cannot be read: it is in `left_out`, or in the tree
                    continue
                with open(opened, "rb") as file:  # noqa: PTH123  a descriptor
                    if stat.S_ISREG(os.fstat(opened).st_mode):
                        data = file.read(RULES_BYTES_MAX + 1)
                        place.ignored = read_rules(place.path, name, data, place.ignored)

    def _take_count(self, path: bytes) -> None:
        self._count += 1
        if self._count > self._rules.max_files:
            what = f"the directory has more than {self._rules.max_files:,} files and directories"
            raise self._limit(path, what, "max_files")

    def _limit(self, path: bytes, what: str, limit: str) -> Exception:
        shown = path.decode(errors="backslashreplace")
        return refused(shown, f"{what}, at {shown}: leave out what is not needed, or set Rules({limit}=…)", limit)

    def _take(self, at: int, place: Place, fd: int, name: bytes, facts: os.stat_result) -> None:
        """Takes a file or a symlink."""
        path = place.path + b"/" + name if place.path else name
        if stat.S_ISLNK(facts.st_mode):
            target = os.readlink(name, dir_fd=fd)
            if not 1 <= len(target) <= TARGET_BYTES_MAX:
                self._leave_out(path, f"its target has {len(target)} bytes")
                return
            place.rows[name] = FACTS.pack(LINK, 0, facts.st_mtime_ns, 0, 0, False) + target
        elif stat.S_ISREG(facts.st_mode):
            self._check_size(path, facts.st_size)
            row = _facts_of(facts)
            before = place.known.rows.get(name) if place.known is not None else None
            is_same = before is not None and before.startswith(row) and (len(before) > len(row) or not facts.st_size)
            is_same = is_same and self._index.is_settled(facts.st_mtime_ns, facts.st_ctime_ns)
            if before is not None and is_same and path not in self._doubted:
                row = before
            elif facts.st_size:
                self._to_read.setdefault(at, []).append(name)
            place.rows[name] = row
        else:
            self._leave_out(path, "it is neither a file, nor a directory, nor a symlink")

    def _check_size(self, path: bytes, size_bytes: int) -> None:
        most: int = self._rules.max_file_bytes  # type: ignore[assignment]  # a number since it was made
        if size_bytes > most:
            raise self._limit(path, f"a file has {size_bytes:,} bytes, more than {most:,}", "max_file_bytes")
        self._bytes += size_bytes
        most = self._rules.max_bytes  # type: ignore[assignment]
        if self._bytes > most:
            raise self._limit(path, f"the files have more than {most:,} bytes", "max_bytes")

    def _find_collisions(self, place: Place, prefix: bytes) -> None:
        folded: dict[str, bytes] = {}
        for name in (*place.rows, *place.inner):
            other = folded.setdefault(os.fsdecode(name).casefold(), name)
            if other is not name:
                self.collisions.append(prefix + name)

    # -- what changed -------------------------------------------------------------------------------------------------

    def unchanged_chunks(self) -> Iterator[bytes]:
        """Yields the digests of all files that are not read."""
        for at, place in enumerate(self.places):
            unread = set(self._to_read.get(at, ()))
            for name, row in place.rows.items():
                if row[:1] == FILE and name not in unread:
                    for digest, _ in PART.iter_unpack(row[FACTS.size :]):
                        yield digest

    def read_again(self, missing: set[bytes]) -> None:
        """Has files read that have one of these chunks."""
        for at, place in enumerate(self.places):
            unread = set(self._to_read.get(at, ()))
            for name, row in place.rows.items():
                if row[:1] == FILE and name not in unread:
                    parts = PART.iter_unpack(row[FACTS.size :])
                    if any(digest in missing for digest, _ in parts):
                        self._to_read.setdefault(at, []).append(name)

    def contents(self) -> Iterator[Chunks]:
        """Reads the files that changed, and yields their chunks, so many that they have about BATCH_BYTES."""
        batch, size_bytes = Chunks(), 0
        for at, names in self._to_read.items():
            place = self.places[at]
            try:
                with self._root.directory(place.path) as fd:
                    for name in names:
                        for digest, data in self._content(place, fd, name):
                            if digest not in batch:
                                batch[digest] = data
                                size_bytes += len(data)
                            if size_bytes >= BATCH_BYTES:
                                yield batch
                                batch, size_bytes = Chunks(), 0
            except OSError as error:
                if at == 0:
                    raise
                self._drop_read(at, error)
        if batch:
            yield batch

    def _drop_read(self, at: int, error: OSError) -> None:
        """Leaves out a directory that went after it was listed, with all below it."""
        place = self.places[at]
        self.places[place.parent].inner.pop(place.path.rpartition(b"/")[2], None)
        place.parent = -1
        place.rows.clear()
        self._leave_out(place.path + b"/", error)

    def _content(self, place: Place, fd: int, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields digest and bytes of the chunks of a file, and notes its row. A file that changes is read again."""
        path = place.path + b"/" + name if place.path else name
        for attempt in range(1, READS_MAX + 1):
            try:
                opened = os.open(name, file_flags(), dir_fd=fd)
            except OSError as error:
                del place.rows[name]
                self._leave_out(path, error)
                return
            with open(opened, "rb", buffering=0) as file:  # noqa: PTH123  a descriptor
                before = os.fstat(opened)
                if not stat.S_ISREG(before.st_mode):
                    del place.rows[name]
                    self._leave_out(path, "it became something else while it was read")
                    return
                if before.st_size > self._rules.max_file_bytes:  # type: ignore[operator]
                    self._check_size(path, before.st_size)
                source, parts, size_bytes = _Bounded(file, before.st_size), bytearray(), 0
                try:
                    for data in source.chunks():
                        digest = sha256(data).digest()
                        parts += PART.pack(digest, len(data))
                        size_bytes += len(data)
                        yield digest, data
                except OSError as error:
                    del place.rows[name]
                    self._leave_out(path, error)
                    return
                is_whole = size_bytes == before.st_size and _facts_of(os.fstat(opened)) == _facts_of(before)
            place.rows[name] = _facts_of(before) + parts
            if is_whole:
                break
            if attempt == READS_MAX:
                self.torn.append(path)
        self.read += 1
        self.read_bytes += size_bytes

    # -- directory objects --------------------------------------------------------------------------------------------

    def make(self) -> Iterator[tuple[bytes, bytes]]:
        """Makes the directories, the root last, and yields digests and bytes of those that changed. Raises
        WorkspaceRefused for a directory that is too large."""
        for at in range(len(self.places) - 1, -1, -1):
            place = self.places[at]
            if place.parent < 0 and at:
                continue
            if self._is_unchanged(place):
                assert place.known is not None
                place.made = place.known
                continue
            made = self.directory(at)
            place.made = Known(made.digest, made.files, made.directories, made.size_bytes, place.rows)
            yield made.digest, made.data

    @property
    def root(self) -> Known:
        """The root, once everything is made."""
        made = self.places[0].made
        assert made is not None
        return made

    @property
    def has_changed(self) -> bool:
        """Whether the index has become another one."""
        return bool(self.read) or self.root is not self.places[0].known

    def _is_unchanged(self, place: Place) -> bool:
        known = place.known
        if known is None or len(known.rows) != len(place.rows) + len(place.inner):
            return False
        for name, at in place.inner.items():
            made = self.places[at].made
            if made is None or known.rows.get(name) != DIRECTORY + made.digest:
                return False
        return all(known.rows.get(name) == row for name, row in place.rows.items())

    def directory(self, at: int) -> Directory:
        """Makes the object of a directory whose inner ones are made."""
        place = self.places[at]
        entries = [_entry(name, row) for name, row in place.rows.items()]
        for name, inner in place.inner.items():
            made = self.places[inner].made
            assert made is not None
            entries.append(
                Entry(
                    name,
                    kind=DIRECTORY_KIND,
                    size_bytes=made.size_bytes,
                    digest=made.digest,
                    files=made.files,
                    directories=made.directories,
                )
            )
        try:
            return Directory.of(entries)
        except WrongObject as error:
            shown = place.path.decode(errors="backslashreplace") or "."
            raise refused(shown, f"the directory {shown} {error}", "directory") from None

    def index(self) -> Index:
        """Returns what the next snapshot may believe."""
        torn = set(self.torn)
        index = Index(self.start_ns)
        for place in self.places:
            if place.made is None:
                continue
            if place.made is place.known:
                index.places[place.path] = place.known
                continue
            prefix = place.path + b"/" if place.path else b""
            rows = place.rows if not torn else {n: row for n, row in place.rows.items() if prefix + n not in torn}
            known = place.made
            made = {name: self.places[at].made for name, at in place.inner.items()}
            inner = {name: DIRECTORY + each.digest for name, each in made.items() if each is not None}
            index.places[place.path] = Known(
                known.digest, known.files, known.directories, known.size_bytes, {**rows, **inner}
            )
        return index


class _Bounded:
    """The first bytes of a file: as many as it had when it was opened."""

    def __init__(self, file: object, size_bytes: int) -> None:
        self._file, self._left = file, size_bytes

    def readinto(self, buffer: object) -> int:
        """Reads into a buffer. Returns 0 at the end."""
        view = memoryview(buffer)[: self._left]  # type: ignore[arg-type]
        count: int = self._file.readinto(view) if self._left else 0  # type: ignore[attr-defined]
        self._left -= count
        return count

    def chunks(self) -> Iterator[bytes]:
        """Yields the chunks."""
        if self._left > WHOLE_BYTES_MAX:
            yield from cut(self)
            return
        data, at = bytearray(self._left), 0
        while count := self.readinto(memoryview(data)[at:]):
            at += count
        if at:
            yield bytes(memoryview(data)[:at])


def _facts_of(facts: os.stat_result) -> bytes:
    executable = bool(facts.st_mode & stat.S_IXUSR)
    return FACTS.pack(FILE, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, executable)


def _entry(name: bytes, row: bytes) -> Entry:
    kind, _, mtime_ns, _, _, executable = FACTS.unpack_from(row)
    if kind == LINK:
        return Entry.symlink(name, row[FACTS.size :], mtime_ns)
    chunks = tuple(Chunk(digest, size_bytes) for digest, size_bytes in PART.iter_unpack(row[FACTS.size :]))
    return Entry.file(name, sum(each.size_bytes for each in chunks), mtime_ns, chunks, executable=executable)
