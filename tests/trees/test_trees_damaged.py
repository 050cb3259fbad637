"""The danger: a changed pack, entry or row of a tree is given to a client as a file, or Verify does not see it; or the
disk shows what the files are."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from tests.daemon.wire import TIMEOUT_S, refused
from tests.trees.yard import Made, TreeWire, grown, make, naming

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.workspace_service_pb2 import ReadObjectsRequest

TREE = grown(1, 40)
MARK = b"canary-of-a-file"


@pytest.fixture
def made(yard: TreeWire) -> Made:
    """A version whose tree is in two packs."""
    found = make(TREE)
    yard.keep(found)
    return found


def packs(yard: TreeWire) -> list[Path]:
    return sorted(path for path in (yard.daemon.data_dir / "blobs").rglob("*") if path.is_file())


def everything(made: Made) -> ReadObjectsRequest:
    return ReadObjectsRequest(thread="t", directories=list(made.directories), chunks=list(made.chunks))


def rows_of(yard: TreeWire, change: Callable[[lmdb.Transaction, list[bytes]], None]) -> None:
    """Changes the rows of objects while the daemon is down."""
    yard.daemon.kill()
    with lmdb.open(str(yard.daemon.data_dir), map_size=1 << 30) as env, env.begin(write=True) as txn:
        keys = [bytes(key) for key, _ in txn.cursor() if key[:1] == b"T" and key[5:6] == b"O"]
        assert keys
        change(txn, keys)
    yard.daemon.start()


def test_a_changed_byte_of_a_pack_is_found(yard: TreeWire, made: Made) -> None:
    """Wherever it is: by a read, and by Verify."""
    dice = random.Random(1)
    for path in packs(yard):
        whole = path.read_bytes()
        path.chmod(0o600)
        for at in [0, 5, len(whole) - 1, *(dice.randrange(len(whole)) for _ in range(6))]:
            path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
            assert refused(yard.workspaces.ReadObjects, everything(made)).reason == "CORRUPT"
            assert {finding.reason for finding in yard.findings("", "t")}
        path.write_bytes(whole[:-1])
        assert refused(yard.workspaces.ReadObjects, everything(made)).reason == "CORRUPT"
        path.unlink()
        assert refused(yard.workspaces.ReadObjects, everything(made)).reason == "CORRUPT"
        assert yard.findings("", "t")
        path.write_bytes(whole)
    assert yard.findings("", "t") == []
    assert yard.restored() == TREE


def test_packs_that_are_swapped(yard: TreeWire, made: Made) -> None:
    """One in the place of the other opens nothing."""
    one, other = packs(yard)[:2]
    first, second = one.read_bytes(), other.read_bytes()
    for path, data in ((one, second), (other, first)):
        path.chmod(0o600)
        path.write_bytes(data)
    assert refused(yard.workspaces.ReadObjects, everything(made)).reason == "CORRUPT"
    assert len(yard.findings("", "t")) >= 2


def test_rows_that_lead_elsewhere(yard: TreeWire, made: Made) -> None:
    """Two rows that were exchanged give nobody another file."""

    def exchange(txn: lmdb.Transaction, keys: list[bytes]) -> None:
        first, second = txn.get(keys[0]), txn.get(keys[1])
        txn.put(keys[0], second)
        txn.put(keys[1], first)

    rows_of(yard, exchange)
    assert refused(yard.workspaces.ReadObjects, everything(made)).reason == "CORRUPT"
    assert len([each for each in yard.findings("", "t") if "leads to another" in each.message]) >= 2


def test_a_row_that_is_gone(yard: TreeWire, made: Made) -> None:
    """The object counts as missing, Verify names the version, and the client mends it by sending it again."""

    def remove(txn: lmdb.Transaction, keys: list[bytes]) -> None:
        txn.delete(keys[len(keys) // 2])

    rows_of(yard, remove)
    assert [finding.version for finding in yard.findings("", "t")] == [1]
    missing = yard.missing(made)
    assert len(missing) == 1
    yard.send(missing)
    assert yard.findings("", "t") == []
    assert yard.restored() == TREE


def test_nothing_of_a_tree_is_readable(yard: TreeWire) -> None:
    """Neither names nor contents, in no file of the data directory; and no digest by which a known file is found."""
    content = MARK + os.urandom(500)
    tree = {MARK: {b"file of " + MARK: content, b"link": content * 3}}
    yard.keep(make(tree))
    more = make({**tree, b"more " + MARK: b"in the save " + MARK})
    yard.save(naming(more.ref, 1, objects=yard.missing(more)))
    wanted = [MARK, content[:40], *more.directories, *more.chunks]
    wanted += [each.hex().encode() for each in (*more.directories, *more.chunks)]
    found = "\n".join(str(path) for path in yard.daemon.data_dir.rglob("*") if holds(path, wanted))
    assert found == ""
    assert yard.restored(2) == {**tree, b"more " + MARK: b"in the save " + MARK}
    rest = yard.daemon.stderr.encode()
    assert not any(each in rest for each in wanted)


def holds(path: Path, wanted: list[bytes]) -> bool:
    if not path.is_file():
        return False
    data = path.read_bytes()
    return any(each in data or each in str(path).encode() for each in wanted)


def test_a_deleted_thread_leaves_nothing(yard: TreeWire, made: Made) -> None:
    """No pack, no row of an object, and no key: what a copy of the disk has of them opens no more."""
    yard.threads.DeleteThread(DeleteThreadRequest(thread="t"), timeout=TIMEOUT_S)
    assert refused(yard.workspaces.ReadObjects, everything(made)).reason == "THREAD_NOT_FOUND"
    yard.daemon.stop()
    assert packs(yard) == []
    with lmdb.open(str(yard.daemon.data_dir), map_size=1 << 30) as env, env.begin() as txn:
        left = [bytes(key) for key, _ in txn.cursor() if key[:1] in (b"T", b"B")]
    assert left == []
    yard.daemon.start()


def test_sizes_of_packs_say_little(yard: TreeWire) -> None:
    """Trees of nearly the same size have packs of the same size."""
    sizes = set()
    for number in range(6):
        thread = f"t{number}"
        yard.keep(make({b"f": os.urandom(20_000 + number * 37)}), thread=thread)
        uid = yard.thread("", thread).uid
        sizes |= {path.stat().st_size for path in (yard.daemon.data_dir / "blobs" / uid).iterdir()}
    assert len(sizes) <= 3  # one for directories, and at most two neighbours for chunks
