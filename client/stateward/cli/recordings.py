"""Files of recorded runs: JSON Lines, plain or gzip by content. Tells what is wrong with a file in one line.

A file is looked through once before anything is imported (is it readable to its end, is it what it should be, how
large is it), and then read again line by line, so that only the runs at work are in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stateward.cli.exporting import FORMAT, FORMAT_OLD, MARK
from stateward.cli.importing import EXAMPLE, Run, RunInvalid, check_run, read_run
from stateward.cli.output import CommandError

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINE_BYTES_MAX = 1 << 30
CHUNK_BYTES = 1 << 20
THREAD_NAME_BYTES_MAX = 1024
ENDINGS = (".gz", ".jsonl", ".ndjson", ".json")


class CutOff(CommandError):
    """A packed file ends before its own end. What came before that was read."""


@dataclass(frozen=True)
class Recording:
    """A file that was looked through."""

    path: Path
    runs: int
    """Lines that hold something, as far as they are asked for."""
    size_bytes: int
    """Their bytes, uncompressed."""
    has_versions: bool = False
    """True where the lines are exported threads and not runs."""
    is_old: bool = False
    """True where these are of the format without ends."""

    @property
    def stem(self) -> str:
        """The file's name without its endings."""
        return stem(self.path)


@dataclass(frozen=True)
class Line:
    """One line that holds something."""

    number: int
    data: bytes


def stem(path: Path) -> str:
    """A file's name without the endings that say its format."""
    name = path.name
    for ending in ENDINGS:
        if name.lower().endswith(ending) and len(name) > len(ending):
            name = name[: -len(ending)]
    return name


def examine(path: Path, limit: int | None) -> Recording:
    """Looks a file through, to its end whatever the limit is. Raises CommandError."""
    runs = size_bytes = 0
    has_versions = is_old = False
    try:
        for line in read_lines(path):
            if not runs:
                has_versions, is_old = _check_first(line, path)
            if limit is None or runs < limit:
                runs += 1
                size_bytes += len(line.data)
    except CutOff:
        if not has_versions or is_old:
            raise  # else each thread has an end, and those that are whole are restored
    if not runs:
        raise CommandError(f"{path} is empty; it should hold one run a line")
    return Recording(path, runs, size_bytes, has_versions, is_old)


def _check_first(line: Line, path: Path) -> tuple[bool, bool]:
    """Whether it is a record of an export, and of the old format.

    One wrong line is left out later; if already the first is wrong, it is probably not the right file.
    """
    try:
        record = parse(line, path)
        if isinstance(record, dict) and MARK in record:
            if record[MARK] not in (FORMAT, FORMAT_OLD):
                raise CommandError(f"{path} has format {record[MARK]!r}; use a newer program, this one reads {FORMAT}")
            return True, record[MARK] == FORMAT_OLD
        check_run(record, f"{path} line {line.number}")
    except RunInvalid as error:
        hint = "" if EXAMPLE in str(error) else f"; each line must be a run such as {EXAMPLE}"
        raise CommandError(f"{error}{hint}") from None
    return False, False


def read_runs(recording: Recording, prefix: str, limit: int | None) -> Iterator[tuple[Line, Run | RunInvalid]]:
    """The file's runs, each with its line; what is wrong with a line takes the place of its run.

    A run_id that comes again in the file is made distinct by its line, and a missing one replaced by it.
    """
    path, used = recording.path, set[str]()
    for count, line in enumerate(read_lines(path)):
        if limit is not None and count >= limit:
            return
        where = f"{path} line {line.number}"
        try:
            record = parse(line, path)
            check_run(record, where)
            name = thread_name(prefix, record.get("run_id"), line.number)
            while name in used:
                name = thread_name("", f"{name}#{line.number}", line.number)
            used.add(name)
            yield line, read_run(record, where=where, thread=name, file=path.name, line=line.number)
        except RunInvalid as error:
            yield line, error


def parse(line: Line, path: Path) -> Any:
    """The value on a line. Raises RunInvalid."""
    where = f"{path} line {line.number}"
    try:
        return json.loads(line.data.decode())
    except UnicodeDecodeError as error:
        raise RunInvalid(f"{where} is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise RunInvalid(f"{where} is not JSON: {error.msg.removesuffix(' at')} at column {error.colno}") from None
    except ValueError:  # Python's own limit against numbers that take for ever
        raise RunInvalid(f"{where} has a number with more digits than Python reads") from None
    except RecursionError:
        raise RunInvalid(f"{where} is nested too deeply") from None


def thread_name(prefix: str, run_id: Any, line: int) -> str:
    """A name the daemon takes: what it would refuse is replaced, and a digest keeps such names distinct."""
    given = str(run_id) if isinstance(run_id, (str, int)) and str(run_id) else f"line-{line}"
    name = prefix + given
    allowed = "".join("_" if _is_refused(each) else each for each in name)
    if allowed == name and len(name.encode()) <= THREAD_NAME_BYTES_MAX:
        return name if name != "-" else f"line-{line}"
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    short = allowed.encode()[: THREAD_NAME_BYTES_MAX - 13].decode(errors="ignore")
    return f"{short}~{digest}"


def _is_refused(character: str) -> bool:
    code = ord(character)
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000


def read_lines(path: Path) -> Iterator[Line]:
    """The lines that hold something. Raises CommandError where the file cannot be read to its end; CutOff after them
    where it has none."""
    with _explained(path), _opened(path) as file:
        number = 0
        while data := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(data) > LINE_BYTES_MAX:
                raise CommandError(f"{path} line {number} is longer than {LINE_BYTES_MAX:,} bytes")
            data = (data.removeprefix(BYTE_ORDER_MARK) if number == 1 else data).strip()
            if data:
                yield Line(number, data)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        if not path.is_file():
            raise CommandError(f"{path} is no regular file; it is read twice, so save it first")
        is_gzip = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        if not is_gzip:
            yield file
            return
        with gzip.open(file) as unpacked:
            yield unpacked  # type: ignore[misc]  # reads as any binary file does


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except EOFError:
        raise CutOff(f"{path} is broken gzip: it is cut off; get the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise CommandError(f"{path} is broken gzip: {str(error).rstrip('.')}; get the file again") from None
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from None
