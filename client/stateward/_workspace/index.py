"""What the last snapshot of a directory found: so that the next one reads only what changed.

The file is a header, the directories with their rows, and a SHA-256 of all that. A file that is lost, damaged or of
another user is as good as none. A row is the facts of a file, as `FACTS` packs them, and then what it consists of:
digest and size of each chunk. The row of a symlink has its target, and that of a directory its digest.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

MAGIC = b"stateward index 1\n"
FACTS = struct.Struct("<cqqqQ?")
"""Kind, size, mtime_ns, ctime_ns, inode, and whether the owner may execute it."""
PART = struct.Struct("<32sI")
FILE, LINK, DIRECTORY = b"f", b"l", b"d"
_START, _DIRECTORY, _ROW = struct.Struct("<qI"), struct.Struct("<I32sqqqI"), struct.Struct("<HI")
RACY_NS = 2_000_000_000
"""How much older than the start of a snapshot a file must be to be believed unchanged. Clocks of file systems are
coarse: some count two seconds."""


@dataclass(slots=True)
class Known:
    """A directory, as the last snapshot found it."""

    digest: bytes
    files: int
    directories: int
    size_bytes: int
    rows: dict[bytes, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Index:
    """All directories of the last snapshot, and when it began."""

    start_ns: int = 0
    places: dict[bytes, Known] = field(default_factory=dict)

    def is_settled(self, mtime_ns: int, ctime_ns: int) -> bool:
        """Returns whether a file with these times was last changed well before the snapshot began. One that was not may
        have changed again without any trace."""
        return max(mtime_ns, ctime_ns) < self.start_ns - RACY_NS


def index_path(root: bytes, cache: Path) -> Path:
    """Returns where the index of a directory lies."""
    return cache / "stateward" / "workspaces" / f"{sha256(root).hexdigest()[:32]}.index"


def cache_home() -> Path | None:
    """Returns the cache directory of the user; None = there is none."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given.startswith("/"):
        return Path(given)
    home = os.environ.get("HOME", "")
    return Path(home) / ".cache" if home.startswith("/") else None


def load(path: Path) -> Index:
    """Returns the index in a file; an empty one if there is none that can be trusted."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123  a descriptor
            facts = os.fstat(fd)
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o077 or not stat.S_ISREG(facts.st_mode):
                return Index()
            return _parse(file.read())
    except (OSError, ValueError, struct.error):
        return Index()


def _parse(data: bytes) -> Index:
    if not data.startswith(MAGIC) or sha256(data[:-32]).digest() != data[-32:]:
        return Index()
    at = len(MAGIC)
    start_ns, places = _START.unpack_from(data, at)
    at += _START.size
    index = Index(start_ns)
    for _ in range(places):
        length, digest, files, directories, size_bytes, rows = _DIRECTORY.unpack_from(data, at)
        at += _DIRECTORY.size
        path = data[at : at + length]
        at += length
        known = index.places[path] = Known(digest, files, directories, size_bytes)
        for _ in range(rows):
            name_length, row_length = _ROW.unpack_from(data, at)
            at += _ROW.size
            middle = at + name_length
            known.rows[data[at:middle]] = data[middle : middle + row_length]
            at = middle + row_length
    return index


def store(path: Path, index: Index) -> None:
    """Writes the index, for its user alone, in place of the one that is there. Does nothing if it cannot: the next
    snapshot then reads all files."""
    draft = path.with_suffix(f".{os.getpid()}.{os.urandom(4).hex()}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "wb", buffering=1 << 20) as file:  # noqa: PTH123  a descriptor
                digest = sha256()
                for piece in _pieces(index):
                    digest.update(piece)
                    file.write(piece)
                file.write(digest.digest())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def _pieces(index: Index) -> Iterator[bytes]:
    yield MAGIC + _START.pack(index.start_ns, len(index.places))
    for path, known in index.places.items():
        head = _DIRECTORY.pack(
            len(path), known.digest, known.files, known.directories, known.size_bytes, len(known.rows)
        )
        rows = [_ROW.pack(len(name), len(row)) + name + row for name, row in known.rows.items()]
        yield head + path + b"".join(rows)
