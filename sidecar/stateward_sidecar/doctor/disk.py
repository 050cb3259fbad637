"""The disk and the files on it: syncs, room, and who may read and write what.

The disk: how long a sync takes, whether it can be true, and how much room is left.

The files of the daemon: who may read and write them, and whether they are the right ones.
"""

from __future__ import annotations

import errno
import os
import stat
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateward.v1.admin_service_pb2 import Diagnosis
from stateward_sidecar.addresses import sockets_of
from stateward_sidecar.doctor.diagnosis import failed, fine, skipped, warning
from stateward_sidecar.errors import StartError
from stateward_sidecar.service.admission.accessfile import read_access_file
from stateward_sidecar.settings import KeySource
from stateward_sidecar.storage.engine import DATA_FILE
from stateward_sidecar.storage.exposure import ACCESS, DATA, TOKENS, Exposure, find_exposure, kind_of_key
from stateward_sidecar.storage.keysource import open_key
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.keywraps import is_wrapped_by
from stateward_sidecar.storage.secretfiles import fingerprint, read_token_file
from stateward_sidecar.store.store import KEYS_FILE
from stateward_sidecar.syncing import sync_data, sync_file

# Two pages, as often as fits in the time.
PIECE_BYTES = 8192
ROUNDS_MAX, ROUNDS_MIN, PATIENCE_S = 40, 3, 1.0
# The fastest disks that keep what they have synced take longer than this. A RAM disk takes a microsecond.
PLAUSIBLE_S = 15e-6
SLOW_S = 0.010
NEEDED_BYTES = 1 << 20
LOW_SHARE, LOW_BYTES = 0.05, 1 << 30
LOW_FILES = 1000


@dataclass(frozen=True, slots=True)
class Times:
    """Medians in seconds: of a write alone, of a write with its sync; and the slowest sync."""

    write_s: float
    sync_s: float
    slowest_s: float


def measure(directory: Path) -> Times:
    """Writes and syncs a file of its own, and removes it. Raises OSError."""
    path = directory / f".doctor-{os.getpid()}"
    piece = os.urandom(PIECE_BYTES)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for at in range(ROUNDS_MAX):  # so that no later write has to find room
            os.pwrite(fd, piece, at * PIECE_BYTES)
        sync_file(fd)
        writes = _repeat(lambda at: _write(fd, piece, at))
        syncs = _repeat(lambda at: _write_and_sync(fd, piece, at))
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)
    return Times(statistics.median(writes), statistics.median(syncs), max(syncs))


def _repeat(call: object) -> list[float]:
    assert callable(call)
    end, times = time.perf_counter() + PATIENCE_S, list[float]()
    for at in range(ROUNDS_MAX):
        began = time.perf_counter()
        call(at)
        now = time.perf_counter()
        times.append(now - began)
        if now > end and len(times) >= ROUNDS_MIN:
            break
    return times


def _write(fd: int, piece: bytes, at: int) -> None:
    os.pwrite(fd, piece, at * PIECE_BYTES)


def _write_and_sync(fd: int, piece: bytes, at: int) -> None:
    os.pwrite(fd, piece, at * PIECE_BYTES)
    sync_data(fd)


def check_disk(directory: Path) -> Diagnosis:
    """Measures the disk of a directory."""
    try:
        total, free = _sizes(directory)
        if total and free < NEEDED_BYTES:
            return skipped("disk", f"{directory} has no room for a measurement")
        times = measure(directory)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # of files, or by a quota: ``check_space`` has the advice
            return skipped("disk", f"{directory} has no room for a measurement: {error.strerror}")
        return failed(
            "disk", f"cannot write to {directory}: {error.strerror}",
            "Give --data-dir a directory on a disk that the daemon's user may write to.",
            directory=directory,
        )  # fmt: skip
    facts = {
        "directory": directory, "write_us": times.write_s * 1e6, "sync_us": times.sync_s * 1e6,
        "slowest_sync_us": times.slowest_s * 1e6,
    }  # fmt: skip
    said = f"write {times.write_s * 1e6:.0f} µs, write and sync {times.sync_s * 1e6:.0f} µs (slowest {_text(times)})"
    if times.sync_s < PLAUSIBLE_S:
        return warning(
            "disk", f"{said}: faster than any disk that keeps what it has synced; a sync probably does nothing here",
            "Answered saves may be lost with the machine's power. Put the data on a disk: not on tmpfs, and not on a "
            "virtual disk or file system that ignores syncs (cache=unsafe, eatmydata, nobarrier).", **facts,
        )  # fmt: skip
    if times.sync_s > SLOW_S:
        return warning(
            "disk", f"{said}: slow; a commit waits for two of these",
            "Every save takes longer than this. Use a local SSD, or give the volume more operations a second; check "
            "whether another program writes to it.", **facts,
        )  # fmt: skip
    return fine("disk", said, **facts)


def _text(times: Times) -> str:
    return f"{times.slowest_s * 1e3:.1f} ms"


def check_space(directory: Path) -> Diagnosis:
    """Looks at the free space and the free files of the disk."""
    disk = os.statvfs(directory)
    total, free = _sizes(directory)
    if total == 0:  # such as /proc; whether it keeps files, the measurement shows
        return skipped("space", f"the file system of {directory} does not tell its size")
    facts = {"free_bytes": free, "disk_bytes": total, "free_files": disk.f_favail}
    said = f"{_size(free)} of {_size(total)} free"
    if disk.f_files and disk.f_favail < LOW_FILES:
        return warning(
            "space", f"the file system has room for {disk.f_favail} more files; each blob is a file",
            "Remove files from it, or make it again with more inodes.", **facts,
        )  # fmt: skip
    if free < min(LOW_BYTES, total * LOW_SHARE):
        return warning(
            "space", f"{said}: little", "Free space before saves get DISK_FULL: `stateward prune`, `stateward rm`, a "
            "larger volume.", **facts,
        )  # fmt: skip
    return fine("space", said, **facts)


def _sizes(directory: Path) -> tuple[int, int]:
    """All bytes of the file system, and those that are free for this user."""
    disk = os.statvfs(directory)
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize


def _size(count_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count_bytes < 1024:
            return f"{count_bytes:.3g} {unit}"
        count_bytes /= 1024
    return f"{count_bytes:.3g} TiB"


def check_directory(directory: Path, *, allows_exposed: bool = False) -> list[Diagnosis]:
    """Looks at the data directory and its files."""
    if not directory.exists():
        return [skipped("data", f"{directory} does not exist yet; the first start makes it")]
    found = list(_faults(directory, allows_exposed=allows_exposed))
    return found or [fine("data", f"{directory} belongs to user {os.geteuid()} alone", directory=directory)]


def _faults(directory: Path, *, allows_exposed: bool) -> Iterator[Diagnosis]:
    user = os.geteuid()
    for path in (directory, directory / DATA_FILE, directory / KEYS_FILE):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            yield failed("data", f"cannot look at {path}: {error.strerror}", "Run the daemon as the owner of its data.")
            return
        mode = stat.S_IMODE(status.st_mode)
        facts = {"path": path, "owner": status.st_uid, "mode": f"{mode:04o}", "user": user}
        if not os.access(path, os.R_OK | os.W_OK | (os.X_OK if path == directory else 0)):
            yield failed(
                "data", f"user {user} may not read and write {path} (owner {status.st_uid}, mode {mode:04o})",
                f"Run the daemon as user {status.st_uid}, or give the directory to its user: chown -R.", **facts,
            )  # fmt: skip
        elif path == directory and (exposed := find_exposure(path, DATA)):
            yield tell_exposure("data", exposed, allows_exposed=allows_exposed, **facts)
        elif mode & (stat.S_IWGRP | stat.S_IRWXO):
            yield warning(
                "data", f"{path} has mode {mode:04o}: other users may change or copy it",
                f"The data are sealed, but whoever changes them can destroy them. Run: chmod go-rwx {path}", **facts,
            )  # fmt: skip


def tell_exposure(check: str, exposed: Exposure, *, allows_exposed: bool, **facts: object) -> Diagnosis:
    """What everybody may use stops the next start, unless that is allowed."""
    facts["path"] = exposed.path
    if exposed.is_to_all and not allows_exposed:
        advice = f"Run: {exposed.advice}. The next start fails without it."
        return failed(check, exposed.said, advice, **facts)
    return warning(check, exposed.said, f"Run: {exposed.advice}", **facts)


def check_key_source(
    source: KeySource, directory: Path, expected: str = "", *, allows_exposed: bool = False, has_archive: bool = False
) -> Diagnosis:
    """Opens the key as the next start would. ``expected``: the fingerprint of the key that a running daemon has; empty
    = none runs."""
    has_data, path = (directory / KEYS_FILE).exists(), source.path
    try:
        key = open_key(source, patience_s=0.0).data
        if has_archive and has_data and not is_wrapped_by(directory / KEYS_FILE, key):
            return warning(
                "key", f"{path or source} holds key {fingerprint(key)}, and another one wraps the data in {directory}",
                "If `stateward keys rotate` made it the next key, start the daemon with it. Else put the other key "
                "back: the next start fails without it.",
                path=path or "", fingerprint=fingerprint(key), expected=expected,
            )  # fmt: skip
        if not expected and has_data:
            KeyStore(directory / KEYS_FILE, key, only_looks=True).close()
    except StartError as error:
        if not has_data and source.kind == "file" and path is not None and not path.exists():
            return skipped("key", f"{path} does not exist yet; the first start makes it, or `stateward keys new`")
        advice = "Put the key file back from its copy" if source.kind == "file" else "Give the daemon its key"
        return failed("key", error.message, f"{advice}: the next start fails without it.", path=path or "")
    found, name = fingerprint(key), path or str(source)
    facts = {"path": path or "", "fingerprint": found, "expected": expected or found}
    if expected and found != expected:
        return failed(
            "key", f"{name} holds key {found}, and the data need {expected}",
            f"Put the key with the fingerprint {expected} back: the next start fails without it.", **facts,
        )  # fmt: skip
    if path is not None and (exposed := find_exposure(path, kind_of_key(path))):
        return tell_exposure("key", exposed, allows_exposed=allows_exposed, **facts)
    return fine("key", f"{name} holds key {found}; keep a copy of it elsewhere", **facts)


def check_token_file(path: Path | None, access: Path | None, *, allows_exposed: bool = False) -> Diagnosis:
    """Looks at the token file; None = there is none. ``access``: the file of principals."""
    if path is None:
        return skipped("tokens", "calls need no token" if access is None else "the access file says who may call")
    try:
        count = len(read_token_file(path))
    except StartError as error:
        return failed("tokens", error.message, "Correct it: the next start fails with it.", path=path)
    if exposed := find_exposure(path, TOKENS):
        return tell_exposure("tokens", exposed, allows_exposed=allows_exposed)
    if access is not None:
        return fine("tokens", f"who has one of the {count} tokens in {path} may do everything", path=path)
    return fine("tokens", f"every call must carry one of the {count} tokens in {path}", path=path)


def check_access_file(
    path: Path | None, listen: Sequence[str] = (), *, allows_exposed: bool = False
) -> Diagnosis:
    """Looks at the file of principals; None = whoever may call may do everything. ``listen``: the addresses of
    everybody."""
    if path is None:
        return skipped("access", "whoever may call may do everything")
    try:
        count = len(read_access_file(path, sockets_of(listen)))
    except StartError as error:
        return failed("access", error.message, "Correct it: the next start fails with it.", path=path)
    if exposed := find_exposure(path, ACCESS):
        return tell_exposure("access", exposed, allows_exposed=allows_exposed)
    return fine("access", f"{path} has {count} identities of callers, and says what each may do", path=path)
