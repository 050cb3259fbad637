"""Trees as tars: a tar becomes the objects of a tree, and a tree a tar. Both go through once, from start to end.

Nothing is written anywhere here, so no name of a tar can lead out of a directory. Names are bytes; times are exact.
"""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any

from stateward._workspace.chunking import WHOLE_BYTES_MAX, cut
from stateward._workspace.ignoring import RESERVED, Names
from stateward._workspace.objects import (
    DIRECTORY,
    FILE,
    SYMLINK,
    TARGET_BYTES_MAX,
    Chunk,
    Directory,
    Entry,
    WrongObject,
    is_name,
)
from stateward._workspace.root import refused
from stateward._workspace.walking import BATCH_BYTES, DEPTH_MAX, Chunks
from stateward.v1.workspace_pb2 import TreeEntry
from stateward.workspaces import LeftOut, Rules

BLOCK = 512
EXTRA_BYTES_MAX = 1 << 20
"""A header of more bytes is refused: it is read as a whole."""
NS = 10**9
END = bytes(20 * BLOCK)
_EXTRA = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, RecursionError)


class _Member(tarfile.TarInfo):
    """A member. A tar that is cut off, or damaged, is an error, and not the end of a shorter one."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: Any, errors: str) -> Any:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":
                raise
            raise tarfile.ReadError(f"it is damaged, or cut off: {error}") from None

    def _proc_member(self, tar: Any) -> Any:  # what a subclass is to override, as its source says
        if self.type in _EXTRA and self.size > EXTRA_BYTES_MAX:
            raise tarfile.ReadError(f"it has a header of {self.size:,} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]


class Unpacking:
    """A tar that becomes a tree."""

    def __init__(self, file: Any, rules: Rules) -> None:
        self._file, self._rules, self._names = file, rules, Names(rules)
        self._rows: dict[bytes, dict[bytes, bytes]] = {b"": {}}
        """The entries of each directory, serialized: there may be many. Those of directories are empty."""
        self._count = self._bytes = 0
        self.read = self.read_bytes = 0
        self.left_out: list[LeftOut] = []
        self.root: Directory | None = None

    def contents(self) -> Iterator[Chunks]:
        """Yields the chunks of all files, about BATCH_BYTES at once. Raises WorkspaceRefused for a tar that is damaged
        or cut off, for names that lead out, and for more than the rules allow."""
        batch, size_bytes = Chunks(), 0
        try:
            with tarfile.open(
                fileobj=self._file, mode="r|*", tarinfo=_Member, encoding="utf-8", errors="surrogateescape"
            ) as tar:
                while (member := tar.next()) is not None:
                    vars(tar)["members"].clear()  # or all of them stay in memory
                    for digest, data in self._take(tar, member):
                        if digest not in batch:
                            batch[digest] = data
                            size_bytes += len(data)
                        if size_bytes >= BATCH_BYTES:
                            yield batch
                            batch, size_bytes = Chunks(), 0
        except _BROKEN as error:
            raise refused("", f"this is no whole tar: {error}", "tar") from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise refused("", f"this is no whole tar: {error}", "tar") from None
        if batch:
            yield batch

    def _take(self, tar: Any, member: Any) -> Iterator[tuple[bytes, bytes]]:
        path = self._path(member.name, member.name)
        if not path and member.isdir():
            return
        if not path:
            raise refused(member.name, f"{member.name!a:.300} is no name of a file", "tar")
        if why := self._reason(path):
            if not self.left_out or not path.startswith(self.left_out[-1].path.rstrip(b"/") + b"/"):
                self._take_count(path)
                self.left_out.append(LeftOut(path, why))
            return
        self._take_count(path)
        name = path.rpartition(b"/")[2]
        if member.isdir():
            self._directory(path, is_member=True)
        elif member.issym():
            target = _bytes(member.linkname)
            if not 1 <= len(target) <= TARGET_BYTES_MAX or b"\0" in target:
                self.left_out.append(LeftOut(path, f"its target has {len(target)} bytes"))
                return
            self._put(path, Entry.symlink(name, target, _time(member)))
        elif member.islnk():
            self._link(path, self._path(member.linkname, member.name))
        elif member.isreg():
            yield from self._content(tar, member, path, name)
        else:
            self.left_out.append(LeftOut(path, "it is neither a file, nor a directory, nor a symlink"))

    def _take_count(self, path: bytes) -> None:
        """Counts what stays in memory. A member of a few bytes may name many directories that are no members."""
        self._count += 1
        if self._count > self._rules.max_files:
            what = f"the tar has more than {self._rules.max_files:,} files and directories"
            raise self._limit(path, what, "max_files")

    def _path(self, given: str, member: str) -> bytes:
        raw = _bytes(given)
        names = [name for name in raw.split(b"/") if name not in (b"", b".")]
        if raw.startswith(b"/") or not all(map(is_name, names)) or len(names) > DEPTH_MAX:
            raise refused(member, f"{given!a:.300} is no path within the tar", "tar")
        return b"/".join(names)

    def _reason(self, path: bytes) -> str:
        for name in path.split(b"/"):
            text = name.decode(errors="surrogateescape")
            if self._names.is_whole(text):
                return ""
            if name.startswith(RESERVED):
                return "a restore uses such names"
            if why := self._names.reason(text):
                return why
        return ""

    def _directory(self, path: bytes, *, is_member: bool = False) -> dict[bytes, bytes]:
        """Makes a directory, and those above it, unless they are there."""
        if path not in self._rows:
            above, _, name = path.rpartition(b"/")
            inside = self._directory(above) if above not in self._rows else self._rows[above]
            if name in inside:
                raise refused(_shown(path), f"{_shown(path)} is a directory, and something else, too", "tar")
            if not is_member:
                self._take_count(path)
            inside[name] = b""
            self._rows[path] = {}
        return self._rows[path]

    def _put(self, path: bytes, entry: Entry) -> None:
        """A later member takes the place of an earlier one."""
        if path in self._rows:
            raise refused(_shown(path), f"{_shown(path)} is a directory, and something else, too", "tar")
        self._directory(path.rpartition(b"/")[0])[entry.name] = entry.message().SerializeToString(deterministic=True)

    def _link(self, path: bytes, other: bytes) -> None:
        above, _, name = other.rpartition(b"/")
        row = self._rows.get(above, {}).get(name)
        if not row:
            raise refused(_shown(path), f"{_shown(path)} is a link to {_shown(other)}, which is not before it", "tar")
        entry = Entry.of(TreeEntry.FromString(row))
        self._bytes += entry.size_bytes
        self._check(path, entry.size_bytes)
        message = entry.message()
        message.name = path.rpartition(b"/")[2]
        self._put(path, Entry.of(message))

    def _content(self, tar: Any, member: Any, path: bytes, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._bytes += member.size
        self._check(path, member.size)
        parts, size_bytes, source = list[Chunk](), 0, tar.extractfile(member)
        pieces = cut(source) if member.size > WHOLE_BYTES_MAX else iter((source.read(),))
        for data in pieces:
            if data:
                parts.append(Chunk(sha256(data).digest(), len(data)))
                size_bytes += len(data)
                yield parts[-1].digest, data
        if size_bytes != member.size:
            raise tarfile.ReadError(f"{_shown(path)} is cut off")
        self.read += 1
        self.read_bytes += size_bytes
        entry = Entry.file(name, size_bytes, _time(member), tuple(parts), executable=bool(member.mode & 0o100))
        self._put(path, entry)

    def _check(self, path: bytes, size_bytes: int) -> None:
        most: int = self._rules.max_file_bytes  # type: ignore[assignment]
        if not 0 <= size_bytes <= most:
            raise self._limit(path, f"a file has {size_bytes:,} bytes, more than {most:,}", "max_file_bytes")
        most = self._rules.max_bytes  # type: ignore[assignment]
        if self._bytes > most:
            raise self._limit(path, f"the files have more than {most:,} bytes", "max_bytes")

    def _limit(self, path: bytes, what: str, limit: str) -> Exception:
        return refused(_shown(path), f"{what}, at {_shown(path)}: set Rules({limit}=…)", limit)

    def directories(self) -> Iterator[tuple[bytes, bytes]]:
        """Makes the directories, the root last, and yields their digests and bytes."""
        made: dict[bytes, Directory] = {}
        for path in sorted(self._rows, key=lambda path: path.count(b"/") + bool(path), reverse=True):
            prefix, rows = path + b"/" if path else b"", self._rows.pop(path)
            try:
                directory = Directory.of(
                    Entry.of(TreeEntry.FromString(row)) if row else made.pop(prefix + name).entry(name)
                    for name, row in rows.items()
                )
            except WrongObject as error:
                raise refused(_shown(path), f"the directory {_shown(path) or '.'} {error}", "directory") from None
            made[path] = directory
            yield directory.digest, directory.data
        self.root = made[b""]


def header(path: bytes, entry: Entry) -> bytes:
    """Returns the header of a member. The content of a file follows, and `padding`."""
    info = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
    info.mode = 0o755 if entry.executable or entry.kind != FILE else 0o644
    if entry.kind == DIRECTORY:
        info.type = tarfile.DIRTYPE
    elif entry.kind == SYMLINK:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target.decode("utf-8", "surrogateescape"), 0o777
    else:
        info.size = entry.size_bytes
    if entry.mtime_ns % NS or not 0 <= entry.mtime_ns // NS < 8**11:
        sign, whole = "-" if entry.mtime_ns < 0 else "", abs(entry.mtime_ns)
        info.pax_headers = {"mtime": f"{sign}{whole // NS}.{whole % NS:09d}"}
    else:
        info.mtime = entry.mtime_ns // NS
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size_bytes: int) -> bytes:
    """Returns what follows the content of a file."""
    return bytes(-size_bytes % BLOCK)


def _time(member: Any) -> int:
    try:
        found = int(Decimal(member.pax_headers.get("mtime", str(member.mtime))) * NS)
    except (InvalidOperation, ValueError, OverflowError):
        raise tarfile.ReadError(f"{member.name!a:.300} has no time") from None
    if not -(1 << 63) <= found < 1 << 63:
        raise tarfile.ReadError(f"{member.name!a:.300} has no time")
    return found


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
