"""The files of the daemon: who may read and write them, and whether they are the right ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from stateward.v1.admin_service_pb2 import Diagnosis
from stateward_sidecar.doctor.diagnosis import failed, fine, skipped, warning
from stateward_sidecar.errors import StartError
from stateward_sidecar.storage.engine import DATA_FILE
from stateward_sidecar.storage.keyfile import find_exposure, fingerprint, read_key_file
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.tokenfile import read_token_file
from stateward_sidecar.store.store import KEYS_FILE


def check_directory(directory: Path) -> list[Diagnosis]:
    """Looks at the data directory and its files."""
    if not directory.exists():
        return [skipped("data", f"{directory} does not exist yet; the first start makes it")]
    found = list(_faults(directory))
    return found or [fine("data", f"{directory} belongs to user {os.geteuid()} alone", directory=directory)]


def _faults(directory: Path) -> Iterator[Diagnosis]:
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
        elif mode & (stat.S_IWGRP | stat.S_IRWXO):
            yield warning(
                "data", f"{path} has mode {mode:04o}: other users may change or copy it",
                f"The data are sealed, but whoever changes them can destroy them. Run: chmod go-rwx {path}", **facts,
            )  # fmt: skip


def check_key_file(path: Path, directory: Path, expected: str = "") -> Diagnosis:
    """Looks at the key file. ``expected``: the fingerprint of the key that a running daemon has; empty = none runs."""
    has_data = (directory / KEYS_FILE).exists()
    try:
        key = read_key_file(path)
        if not expected and has_data:
            KeyStore(directory / KEYS_FILE, key).close()
    except StartError as error:
        if not has_data and not path.exists():
            return skipped("key", f"{path} does not exist yet; the first start makes it, or `stateward keys new`")
        return failed(
            "key", error.message, "Put the key file back from its copy: the next start fails without it.", path=path
        )
    found = fingerprint(key)
    facts = {"path": path, "fingerprint": found, "expected": expected or found}
    if expected and found != expected:
        return failed(
            "key", f"{path} holds key {found}, and the data need {expected}",
            f"Put the key with the fingerprint {expected} back: the next start fails without it.", **facts,
        )  # fmt: skip
    if exposed := find_exposure(path):
        return warning("key", exposed, f"Run: chmod 600 {path}", **facts)
    return fine("key", f"{path} holds key {found}; keep a copy of it elsewhere", **facts)


def check_token_file(path: Path | None) -> Diagnosis:
    """Looks at the token file; None = calls need no token."""
    if path is None:
        return skipped("tokens", "calls need no token")
    try:
        count = len(read_token_file(path))
    except StartError as error:
        return failed("tokens", error.message, "Correct it: the next start fails with it.", path=path)
    if exposed := find_exposure(path, "token file", "A token opens all threads"):
        return warning("tokens", exposed, f"Run: chmod 600 {path}", path=path)
    return fine("tokens", f"every call must carry one of the {count} tokens in {path}", path=path)
