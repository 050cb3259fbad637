"""The danger: a session key, or what a held thread has, lies readable in a file, in the bucket, in a log or in /proc,
or the key file, the disk and the bucket are enough to read it."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.daemon.process import eventually
from tests.daemon.store import opened

from stateward import Client, Durability
from stateward.errors import Locked, StatewardError
from stateward.options import ThreadOptions
from stateward.storage.v1.archive_pb2 import ArchiveHead, ArchiveRow, ThreadImage
from stateward.testing import run_daemon
from stateward_sidecar.archive.objects.fetch import Fetched, Seen
from stateward_sidecar.archive.objects.keys import ThreadKey, open_thread
from stateward_sidecar.codec.seal import KEY_BYTES, length_prefixed
from stateward_sidecar.errors import Locked as StoreLocked
from stateward_sidecar.service.admission.held import HeldCall, HeldGate
from stateward_sidecar.storage import keystore as stored
from stateward_sidecar.storage.heldkeys import locked, wrapping_key
from stateward_sidecar.storage.keyslots import HEAD, SLOT_BYTES
from stateward_sidecar.store.thread.context import Claim
from stateward_sidecar.store.travel.install import Incoming

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
    copy = held.fork(f"{CANARY}-copy", all_versions=True)
    copy.append(CANARY, CANARY)
    for call in (
        lambda: held.fork(f"{CANARY}-copy"), lambda: held.hydrate(at=f"{CANARY}-none"),
        lambda: client.thread(f"{CANARY}-plain", session_key=KEY).info(),
    ):
        with pytest.raises(StatewardError):
            call()
    told = repr([client, held, client._session.settings, held._session.settings])
    assert "session-key-" not in told
    assert KEY.hex() not in told


@pytest.mark.parametrize("is_archived", [False, True], ids=["alone", "archived"])
def test_nothing_is_told(tmp_path: Path, is_archived: bool) -> None:
    """In the data directory, in the bucket, in the log at debug and in what /proc tells, open and locked."""
    bucket = tmp_path / "bucket"
    flags = {"archive": f"file://{bucket}", "archive_interval": "0.1"} if is_archived else {}
    flags |= {"held_for": "0.2s", "log_level": "debug", "sweep_interval": "0.1"}
    with run_daemon(tmp_path / "data", **flags) as daemon:
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
            eventually(lambda: "a held thread was locked" in daemon.stderr)
        assert not leaks(daemon.stderr.encode())
        daemon.stop()
        assert not leaks(daemon.stderr.encode())
    assert is_archived == bool(list(bucket.rglob("HEAD")))
    for path in [*(tmp_path / "data").rglob("*"), *bucket.rglob("*")]:
        assert not leaks(path.name.encode() + (path.read_bytes() if path.is_file() else b"")), path


def test_no_byte_of_a_deleted_key_is_left(tmp_path: Path) -> None:
    """The wrapped key of a locked thread lies in the key store and in the bucket, and nowhere after its deletion, which
    needs no session key, and a compaction."""
    data, bucket = tmp_path / "data", tmp_path / "bucket"
    flags = {"archive": f"file://{bucket}", "archive_interval": "0.1", "held_for": "0.2s"}
    with run_daemon(data, **flags) as daemon, Client(daemon.target) as client:
        for name in ("kept", "gone"):
            client.thread(name, session_key=KEY).append("m", CANARY, durability=Durability.ARCHIVED)
        uid = bytes.fromhex(client.thread("gone", session_key=KEY).info().uid)
        keys = (data / "keys").read_bytes()
        slots = (keys[at : at + SLOT_BYTES] for at in range(0, len(keys), SLOT_BYTES))
        (slot,) = (slot for slot in slots if slot[0] == stored.HELD and HEAD.unpack_from(slot)[2] == uid)
        wrapped = slot[HEAD.size : HEAD.size + 60]
        assert [path.parent.name for path in holding(wrapped, data)] == ["data"]
        assert len(holding(wrapped, bucket / "v1" / "_keys" / "t")) == len(holding(wrapped, bucket)) == 1
        eventually(lambda: daemon.stderr.count("a held thread was locked") >= 2)
        assert client.thread("gone").delete()
        eventually(lambda: not holding(wrapped, data, bucket))
        client.compact()
        assert not holding(wrapped, data, bucket)
        found = [each.finding for each in client.verify() if each.finding]
        assert found == []
        assert list(client.thread("kept", session_key=KEY).hydrate().logs["m"]) == [CANARY]


def holding(found: bytes, *directories: Path) -> list[Path]:
    """The files that have some bytes."""
    files = (path for directory in directories for path in directory.rglob("*") if path.is_file())
    return [path for path in files if found in path.read_bytes()]


def test_what_has_a_key_does_not_show_it(tmp_path: Path) -> None:
    """In its repr, which a traceback or a log line may have."""
    with opened(tmp_path / "data") as store:
        keys = store.context.keystore
        name, uid, data_key = ("default", "h"), os.urandom(16), b"data-key-" + os.urandom(KEY_BYTES - 9)
        namespace = keys.create_namespace("default")
        slot = keys.wrap_thread(uid, namespace, data_key, KEY)
        keys.held.offer(name, KEY)
        keys.held.begin(uid, name, data_key, KEY)
        call = HeldCall(HeldGate(store), KEY)
        key = ThreadKey(uid, data_key, slot)
        row = ArchiveRow()
        shown = repr(
            [
                keys.held, keys.held._open, keys.held._offers, call, vars(HeldGate(store)), key,
                Seen(ArchiveHead(), "", key),
                Claim(uid, data_key, row, slot), Incoming(namespace, uid, data_key, ThreadImage(), row, held=slot),
                Fetched(ThreadImage(), [], key, 0), namespace,
            ]
        )  # fmt: skip
        for error in (locked(uid), locked(uid, is_wrong=True)):
            shown += repr(error) + repr(vars(error))
        for secret in (KEY, data_key, slot[HEAD.size :], namespace.wrapping_key):
            for form in (repr(secret)[2:-1], secret.hex()):
                assert form not in shown


def test_key_file_disk_and_bucket_are_not_enough(tmp_path: Path) -> None:
    """Whoever has them opens neither the slot of the key nor a row; with the session key it is one step."""
    archive = f"file://{tmp_path / 'bucket'}"
    with run_daemon(tmp_path / "data", archive=archive) as daemon, Client(daemon.target) as client:
        held = client.thread("h", session_key=KEY)
        held.append("m", CANARY, durability=Durability.ARCHIVED)
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
        sealed = keys._read(slot)
        head, nonce, wrapped = sealed[: HEAD.size], sealed[HEAD.size : HEAD.size + 12], sealed[HEAD.size + 12 :][:48]
        right = wrapping_key(namespace.wrapping_key, KEY)
        assert len(AESGCM(right).decrypt(nonce, wrapped, length_prefixed(head))) == KEY_BYTES
        for known in (root, *keys._roots.values(), namespace.wrapping_key):
            for key in (known[:32], known[32:64] or known):
                with pytest.raises(InvalidTag):
                    AESGCM(key).decrypt(nonce, wrapped, length_prefixed(head))
        assert keys.unwrap_held(uid, namespace, os.urandom(32)) is None
        (place,) = (tmp_path / "bucket" / "v1" / "_keys" / "t").rglob("*.1")
        for key in (b"", os.urandom(32)):
            with pytest.raises(StoreLocked):
                open_thread(place.read_bytes(), namespace, key)
        assert open_thread(place.read_bytes(), namespace, KEY).uid == uid
        found = keys.unwrap_held(uid, namespace, KEY)
        assert found is not None
        assert len(found) == KEY_BYTES
