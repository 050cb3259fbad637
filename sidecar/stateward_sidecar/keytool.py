"""What `stateward keys` does with keys and archives: reads an order as JSON, and prints what came of it as JSON.

    {"do": "wrap", "with": "awskms:alias/agents", "file": "/etc/stateward/key", "from": "", "archive": ""}
    {"do": "list", "key": "file:/etc/stateward/key", "archive": "s3://bucket/agents"}
    {"do": "rotate", "key": …, "to": "file:/etc/stateward/next", "archive": …, "data_dir": ""}
    {"do": "retire", "key": …, "archive": …, "key_id": "0123456789abcdef", "force": false}
    {"do": "change", "key": …, "what": "root", "archive": …, "data_dir": "", "now": false}
    {"do": "end", "key": …, "what": "namespace", "namespace": "default", "archive": …, "force": false}

`change` and `end` are for the root, and for the key of a namespace. They say on stderr how far they have come, in lines
that begin with `- `.

``from`` names the key file whose key is wrapped, plain or wrapped; empty = a new key. Without ``archive`` the new file
is for the archive of ``from``, or for one that is still to be made. A key that the same service has wrapped stays there
if it can. Exit code 1 with one line on stderr says what is
wrong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from stateward_sidecar import hardening
from stateward_sidecar.archive.fleet import innerkeys, rootkeys
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.bucket.open import open_bucket
from stateward_sidecar.bucket.retrying import Patience
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import ArchiveUnavailable, StartError
from stateward_sidecar.settings import KeySource, parse_source
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.engine import Engine
from stateward_sidecar.storage.keysource import Key, open_key, rewrap_key, wrap_key
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.secretfiles import KEY_BYTES, fingerprint
from stateward_sidecar.storage.wrappedkey import PROVIDERS, WrappedKey, is_wrapped, read_wrapped, write_wrapped
from stateward_sidecar.store.store import KEYS_FILE

MAP_BYTES = 64 << 30
PATIENCE_S = 10.0
PROGRESS_S = 2.0


def main() -> None:
    """Runs one order."""
    hardening.begin()
    hardening.finish(is_debuggable=False)
    try:
        order = json.load(sys.stdin)
        print(json.dumps(_ORDERS[order["do"]](order, os.environ)))
    except (StartError, ArchiveUnavailable) as error:
        print(f"stateward keys: {error.message}", file=sys.stderr)
        sys.exit(1)


def wrap(order: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Writes a wrapped key file. Returns what is in it. Raises StartError."""
    provider, _, name = order["with"].partition(":")
    path = Path(order["file"])
    if provider not in PROVIDERS or not name:
        raise StartError("--with: write awskms:KEY, the key's ARN or alias, or vault:MOUNT/NAME")
    if path.exists():
        raise StartError(f"{path} exists already, and may hold the key to data; give another name")
    source = Path(order["from"]).absolute() if order["from"] else None
    wrapped = _rewrap(source, provider, name, order["archive"], environment) if source is not None else None
    is_rewrapped = wrapped is not None
    if wrapped is None:
        key = Key(os.urandom(KEY_BYTES))
        if source is not None:
            key = open_key(KeySource("file", str(source)), patience_s=PATIENCE_S)
        archive_id = _find_archive(order["archive"], environment, key.data)
        wrapped = wrap_key(provider, name, key.data, archive_id or key.archive_id)
    write_wrapped(path, wrapped)
    return {
        "file": str(path), "key_id": wrapped.key_id, "provider": provider, "key": wrapped.key,
        "archive_id": wrapped.archive_id, "rewrapped": is_rewrapped,
    }  # fmt: skip


def _rewrap(
    source: Path, provider: str, name: str, archive: str, environment: Mapping[str, str]
) -> WrappedKey | None:
    """Lets the service that has wrapped a key wrap it anew, so that the key stays there; None if it must be opened."""
    if not is_wrapped(source):
        return None
    wrapped = read_wrapped(source)
    if wrapped.provider != provider or _find_archive(archive, environment) not in ("", wrapped.archive_id):
        return None
    return rewrap_key(wrapped, name)


def _find_archive(url: str, environment: Mapping[str, str], key: bytes = b"") -> str:
    """Returns the id of an archive in hex; empty = there is none at this URL yet, or no URL."""
    if not url:
        return ""
    with _wire(url, environment) as wire:
        return rootkeys.find_archive_id(wire, key)


def list_all(order: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns which keys wrap the root of an archive, and which sidecars use them. Raises StartError."""
    with _wire(order["archive"], environment) as wire:
        return _described(wire, _open(order["key"]).data, order.get("namespace", ""))


def rotate(order: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Wraps the root with another key: in an archive with both, in a data directory without one with the new one alone.
    Raises StartError."""
    key, other = _open(order["key"]), _open(order["to"])
    if order["data_dir"]:
        return _rotate_directory(Path(order["data_dir"]).absolute(), key.data, other.data)
    with _wire(order["archive"], environment) as wire:
        archive_id = rootkeys.list_keys(wire, key.data).archive_id
        if other.archive_id not in ("", archive_id):
            raise StartError(
                f"--to: this wrapped key file is for the archive {other.archive_id}, and this is {archive_id}; make it "
                "with --archive"
            )
        is_new = rootkeys.rotate(wire, key.data, other.data, Clock().now_us())
        return {"is_new": is_new, "key_id": fingerprint(other.data), **_described(wire, other.data)}


def retire(order: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Removes a key from those that wrap the root of an archive. Raises StartError."""
    key = _open(order["key"]).data
    with _wire(order["archive"], environment) as wire:
        rootkeys.retire(wire, key, order["key_id"], is_forced=order["force"])
        return _described(wire, key)


def change(order: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Makes a new root, or a new key of a namespace. Raises StartError."""
    key, is_root = _open(order["key"]).data, order["what"] == "root"
    if order["data_dir"]:
        with _keys_in(Path(order["data_dir"]).absolute(), key) as store:
            if is_root:
                store.change_root()
                return {"generation": store.root_generation, "is_new": True}
            return {"generation": store.change_namespace(order["namespace"]), "is_new": True}
    now_us, tell = Clock().now_us(), _Progress()
    with _wire(order["archive"], environment) as wire:
        if is_root:
            return asdict(innerkeys.change_root(wire, key, now_us, tell))
        name, seals_heads = order["namespace"], order["now"]
        return asdict(innerkeys.change_namespace(wire, key, name, now_us, tell, seals_heads=seals_heads))


def end(order: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Removes the old root, or the old key of a namespace. Raises StartError."""
    key, now_us, tell, is_forced = _open(order["key"]).data, Clock().now_us(), _Progress(), order["force"]
    with _wire(order["archive"], environment) as wire:
        if order["what"] == "root":
            return asdict(innerkeys.retire_root(wire, key, now_us, tell, is_forced=is_forced))
        name = order["namespace"]
        return asdict(innerkeys.retire_namespace(wire, key, name, now_us, tell, is_forced=is_forced))


class _Progress:
    """Says from time to time how much is done."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def __call__(self, what: str, count: int) -> None:
        if time.monotonic() - self._last_s >= PROGRESS_S:
            self._last_s = time.monotonic()
            print(f"- {count} {what}", file=sys.stderr, flush=True)


_ORDERS: dict[str, Callable[[Any, Mapping[str, str]], dict[str, Any]]] = {
    "wrap": wrap, "list": list_all, "rotate": rotate, "retire": retire, "change": change, "end": end,
}  # fmt: skip


def _described(wire: Wire, key: bytes, namespace: str = "") -> dict[str, Any]:
    found = rootkeys.list_keys(wire, key)
    users = [
        {
            "owner_id": user.owner_id, "key_id": user.key_id, "start_time": user.start.isoformat(),
            "root": user.root_generation, "stop_time": user.stop.isoformat() if user.stop else None,
            "unarchived_threads": user.unarchived,
        } for user in found.users
    ]  # fmt: skip
    described = {
        "archive_id": found.archive_id, "keys": list(found.key_ids), "roots": _dated(found.generations),
        "sidecars": users,
    }  # fmt: skip
    if namespace:
        described["namespace_keys"] = _dated(rootkeys.times_of(innerkeys.list_namespace(wire, key, namespace)))
    return described


def _dated(times: Mapping[int, datetime | None]) -> list[dict[str, Any]]:
    return [{"generation": each, "add_time": at.isoformat() if at else None} for each, at in times.items()]


def _rotate_directory(directory: Path, key: bytes, other: bytes) -> dict[str, Any]:
    with _keys_in(directory, key) as store:
        store.rewrap(key, other)
    key_id = fingerprint(other)
    return {"is_new": True, "key_id": key_id, "keys": [key_id], "archive_id": "", "sidecars": []}


@contextmanager
def _keys_in(directory: Path, key: bytes) -> Iterator[KeyStore]:
    """The key store of data without an archive, where no daemon runs. Raises StartError."""
    path = directory / KEYS_FILE
    if not path.exists():
        raise StartError(f"--data-dir: there are no keys in {directory}")
    engine = Engine(directory, MAP_BYTES)  # no daemon runs there meanwhile
    try:
        with engine.read() as txn:
            if txn.get(layout.ARCHIVE_KEY) is not None:
                raise StartError(
                    "--data-dir: these data have an archive, whose other sidecars need the new key, too; give --archive"
                )
        store = KeyStore(path, key)
        try:
            yield store
        finally:
            store.close()
    finally:
        engine.close()


def _open(source: str) -> Key:
    return open_key(parse_source(source), patience_s=PATIENCE_S)


@contextmanager
def _wire(url: str, environment: Mapping[str, str]) -> Iterator[Wire]:
    bucket = open_bucket(url, environment, Clock(), Patience(deadline_s=PATIENCE_S), must_exist=True)
    wire = Wire(bucket, Clock())
    try:
        yield wire
    finally:
        wire.close()


if __name__ == "__main__":
    main()
