"""The danger: a session key, or what a held thread has, lies readable in a file, in a log or in /proc, or the key file
and the disk are enough to read it."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.store import opened

from stateward import Client
from stateward.errors import Locked, StatewardError
from stateward.options import ThreadOptions
from stateward.testing import run_daemon
from stateward_sidecar.codec.seal import KEY_BYTES
from stateward_sidecar.errors import Locked as StoreLocked
from stateward_sidecar.storage import keystore as stored

CANARY = "canary-Quetzalcoatl"
KEY = b"session-key-" + os.urandom(20)
SKIPPED = {"mem", "pagemap", "clear_refs", "syscall", "stack", "task", "map_files", "net", "cwd", "root"}


def forms() -> Iterator[bytes]:
    """The session key and the content, as they might be written down."""
    for data in (KEY, CANARY.encode()):
        yield data
        yield data.hex().encode()
        yield repr(data)[2:-1].encode()
        for shift in range(3):
            yield base64.b64encode(b"\\0" * shift + data)[4 if shift else 0 : -4]


def leaks(data: bytes) -> bool:
    return any(form in data for form in forms())


def use(client: Client, wrong: bytes) -> None:
    """All that a thread can have, and calls that fail."""
    held = client.thread(f"{CANARY}-thread", session_key=KEY)
    create = ThreadOptions(labels={CANARY: CANARY}, agent=CANARY)
    for number in range(30):
        held.append(CANARY, CANARY * 200, labels={CANARY: CANARY}, metadata={CANARY: CANARY}, create=create,
                    request_id=f"{CANARY}{number}")  # fmt: skip
    held.records.put(CANARY, CANARY)
    held.blobs.write((CANARY * 10_000).encode())
    held.effects.run(CANARY, lambda: CANARY)
    held.signals.send(CANARY, CANARY)
    held.tags.set(CANARY, at=1)
    with held.writer() as writer:
        state = held.hydrate()
        state.logs[CANARY].append(CANARY)
        writer.save(state)
        writer.flush()
    for key in (None, wrong):
        with pytest.raises(Locked) as refused:
            client.thread(f"{CANARY}-thread", session_key=key).hydrate()
        assert KEY.hex() not in repr(vars(refused.value))
    for call in (
        lambda: held.fork(f"{CANARY}-copy"), lambda: held.hydrate(at=f"{CANARY}-none"),
        lambda: client.thread(f"{CANARY}-plain", session_key=KEY).info(),
    ):
        with pytest.raises(StatewardError):
            call()
    told = repr([client, held, client._session.settings, held._session.settings])
    assert "session-key-" not in told
    assert KEY.hex() not in told


def test_nothing_is_told(tmp_path: Path) -> None:
    """In the data directory, in the log at debug and in what /proc tells, open and locked."""
    with run_daemon(tmp_path / "data", held_for="0.2s", log_level="debug", sweep_interval="0.1") as daemon:
        with Client(daemon.target) as client:
            use(client, wrong=os.urandom(32))
            process = daemon._process
            assert process is not None
            for path in Path(f"/proc/{process.pid}").iterdir():
                if path.name not in SKIPPED and path.is_file():
                    try:
                        assert not leaks(path.read_bytes()), path
                    except OSError:
                        continue
        assert not leaks(daemon.stderr.encode())
        daemon.stop()
        assert not leaks(daemon.stderr.encode())
    for path in (tmp_path / "data").rglob("*"):
        assert not leaks(path.name.encode() + (path.read_bytes() if path.is_file() else b"")), path


def test_key_file_and_disk_are_not_enough(tmp_path: Path) -> None:
    """Whoever has both opens neither the slot of the key nor a row; with the session key it is one step."""
    with run_daemon(tmp_path / "data") as daemon, Client(daemon.target) as client:
        held = client.thread("h", session_key=KEY)
        held.append("m", CANARY)
        uid = bytes.fromhex(held.info().uid)
        daemon.stop()
    root = bytes.fromhex(Path(f"{tmp_path / 'data'}.key").read_text().strip())
    with opened(tmp_path / "data", key=root) as store:
        keys = store.context.keystore
        namespace = keys.namespace("default")
        assert namespace is not None
        with store.context.engine.read() as txn, pytest.raises(StoreLocked):
            store.threads.find(txn, "default", "h")
        slot = keys._slots.find(stored.HELD, uid)
        assert slot is not None
        for known in (root, keys._root_key, namespace.wrapping_key):
            assert keys._unwrap(slot, stored.HELD, uid, known) is None
        assert keys.unwrap_held(uid, namespace, os.urandom(32)) is None
        found = keys.unwrap_held(uid, namespace, KEY)
        assert found is not None
        assert len(found) == KEY_BYTES
