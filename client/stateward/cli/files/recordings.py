"""Reads files of recorded runs: JSON Lines, plain or gzip (recognised by content). Errors are one line each.

Every file is read twice. The first pass, before the import, checks that the file can be read to its end, checks its
format, and measures its size. The second pass reads line by line, so that only the runs being imported are in memory.
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

from stateward._naming import is_orphans
from stateward.cli.files.exporting import FORMAT, MARK
from stateward.cli.files.importing import EXAMPLE, Run, RunInvalid, check_run, read_run
from stateward.cli.show.output import CommandError

GZIP_MAGIC = b"\x1f\x8b"
SQLITE_MAGIC = b"SQLite format 3\0"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A state has at most 64 MiB, and JSON writes a character of two bytes with six. A larger line is no run and no version,
# but may be a few kilobytes of gzip.
LINE_BYTES_MAX = 256 << 20
CHUNK_BYTES = 1 << 20
THREAD_NAME_BYTES_MAX = 1024
ENDINGS = (".gz", ".jsonl", ".ndjson", ".json")


class Damaged(CommandError):
    """Raised where a file cannot be unpacked any further."""


class CutOff(CommandError):
    """Raised if a compressed file is truncated. All lines before the cut were read."""


@dataclass(frozen=True)
class Recording:
    """A file that passed the first check."""

    path: Path
    runs: int
    """Number of lines that are not empty, up to the limit."""
    size_bytes: int
    """Total size of these lines, uncompressed."""
    has_versions: bool = False
    """True if the lines are records of exported threads, not runs."""

    @property
    def stem(self) -> str:
        """The file's name without its endings."""
        return stem(self.path)


@dataclass(frozen=True)
class Line:
    """One line that is not empty."""

    number: int
    data: bytes


def stem(path: Path) -> str:
    """Returns the file's name without the endings in ENDINGS."""
    name = path.name
    for ending in ENDINGS:
        if name.lower().endswith(ending) and len(name) > len(ending):
            name = name[: -len(ending)]
    return name


def examine(path: Path, limit: int | None) -> Recording:
    """Checks a file and counts its lines. Reads it to its end, even beyond the limit. Raises CommandError."""
    runs = size_bytes = 0
    has_versions = False
    try:
        for line in read_lines(path):
            if not runs:
                has_versions = _check_first(line, path)
            if limit is None or runs < limit:
                runs += 1
                size_bytes += len(line.data)
    except CutOff:
        if not has_versions:
            raise  # an exported thread has an end record, so complete threads are restored
    if not runs:
        raise CommandError(f"{path} is empty; it must hold one run per line")
    return Recording(path, runs, size_bytes, has_versions)


def _check_first(line: Line, path: Path) -> bool:
    """Returns whether the line is a record of an export.

    Later invalid lines are skipped, but an invalid first line probably means that this is the wrong file.
    """
    try:
        record = parse(line, path)
        if isinstance(record, dict) and MARK in record:
            if record[MARK] != FORMAT:
                raise CommandError(
                    f"{path} has format {record[MARK]!r}, not {FORMAT}; use a newer version of stateward"
                )
            return True
        check_run(record, f"{path} line {line.number}")
    except RunInvalid as error:
        hint = "" if EXAMPLE in str(error) else f"; each line must be a run such as {EXAMPLE}"
        raise CommandError(f"{error}{hint}") from None
    return False


def read_runs(recording: Recording, prefix: str, limit: int | None) -> Iterator[tuple[Line, Run | RunInvalid]]:
    """Yields each line with its run, or with a RunInvalid if the line is not a run.

    If a run_id repeats in the file, the line number is added to it. A missing run_id is replaced by the line number.
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
    """Returns the JSON value of a line. Raises RunInvalid."""
    where = f"{path} line {line.number}"
    try:
        return json.loads(line.data.decode())
    except UnicodeDecodeError as error:
        raise RunInvalid(f"{where} is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise RunInvalid(f"{where} is not JSON: {error.msg.removesuffix(' at')} at column {error.colno}") from None
    except ValueError:  # Python limits the digits of a number, because parsing them takes quadratic time
        raise RunInvalid(f"{where} has a number with more digits than Python reads") from None
    except RecursionError:
        raise RunInvalid(f"{where} is nested too deeply") from None


def thread_name(prefix: str, run_id: Any, line: int) -> str:
    """Returns a thread name that the daemon accepts.

    Replaces refused characters, cuts long names, and adds a digest to changed names to keep them distinct. Adds it to
    names that end like the name of an orphan, too: no thread can be made with them.
    """
    given = str(run_id) if isinstance(run_id, (str, int)) and str(run_id) else f"line-{line}"
    name = prefix + given
    allowed = "".join("_" if _is_refused(each) else each for each in name)
    if allowed == name and len(name.encode()) <= THREAD_NAME_BYTES_MAX and not is_orphans(name):
        return name if name != "-" else f"line-{line}"
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    short = allowed.encode()[: THREAD_NAME_BYTES_MAX - 13].decode(errors="ignore")
    return f"{short}~{digest}"


def _is_refused(character: str) -> bool:
    code = ord(character)
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000


def read_lines(path: Path) -> Iterator[Line]:
    """Yields the lines that are not empty.

    Raises CommandError if the file cannot be read to its end. Raises CutOff, after all lines, if it is truncated.
    """
    with _explained(path), _opened(path) as file:
        number = 0
        while data := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(data) > LINE_BYTES_MAX:
                raise CommandError(
                    f"{path} line {number} is longer than {LINE_BYTES_MAX:,} bytes; no run and no version needs as many"
                )
            data = (data.removeprefix(BYTE_ORDER_MARK) if number == 1 else data).strip()
            if data:
                yield Line(number, data)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        if not path.is_file():
            raise CommandError(f"{path} is not a regular file; it must be read twice, so save it to a file first")
        start = file.read(len(SQLITE_MAGIC))
        if start == SQLITE_MAGIC:
            raise CommandError(
                f"{path} is a database of SQLite; if LangGraph wrote it, use: stateward import langgraph {path}"
            )
        is_gzip = start.startswith(GZIP_MAGIC)
        file.seek(0)
        if not is_gzip:
            yield file
            return
        with gzip.open(file) as unpacked:
            yield unpacked  # type: ignore[misc]  # GzipFile can be read like any binary file


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except EOFError:
        raise CutOff(f"{path} is damaged gzip: it is truncated; get the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise Damaged(f"{path} is damaged gzip: {str(error).rstrip('.')}; get the file again") from None
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}") from None
