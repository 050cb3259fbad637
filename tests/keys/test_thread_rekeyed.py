"""The danger: a change of a thread's data key that loses something of it, leaves the old key, or stops an agent."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import run
from tests.daemon.driven import NAME, NAMESPACE, append
from tests.daemon.town import Twins, twins
from tests.keys.test_keys_changed_inside import slots, until
from tests.keys.test_keys_rotated import FAST, key_file
from tests.trees.yard import TreeWire, grown, make, naming

from stateward import Blob, Client
from stateward.errors import OwnershipLost, StatewardError, UidMismatch
from stateward.testing import Daemon, run_daemon
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.bucket.base import BucketUnavailable
from stateward_sidecar.errors import OutcomeUnknown
from stateward_sidecar.errors import StatewardError as StatewardFault
from stateward_sidecar.storage.keywraps import ERASED, THREAD
from stateward_sidecar.storage.queue import Write


@pytest.fixture(params=["alone", "archive"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon without an archive, and one with one."""
    flags: dict[str, Any] = {"key_file": key_file(tmp_path, "key"), "log_level": "info"}
    if request.param == "archive":
        flags |= {**FAST, "archive": f"file://{tmp_path}/bucket"}
    with run_daemon(tmp_path / "a", **flags) as found:
        yield found


def fill(client: Client) -> Blob:
    """A thread with something of each kind. Returns its blob."""
    thread = client.thread("t")
    for number in range(40):
        state = thread.hydrate()
        state.slots["n"] = number
        state.logs["log"].append({"text": "word " * 40, "number": number})
        thread.save(state, checkpoint_id=f"c{number}", labels={"kind": "odd" if number % 2 else "even"})
    thread.append("log", "x" * 3_000_000)
    thread.tags.set("good", at=25)
    side = thread.branch("side", at=30)
    other = side.hydrate()
    other.logs["log"].append("other")
    side.save(other)
    thread.branches.move("main", 35)
    thread.append("log", "after the move")
    for number in range(60):
        thread.records.put(f"users/{number}", {"n": number, "text": "r" * 100})
    thread.records.delete("users/7")
    thread.effects.run("pay:1", lambda: "paid")
    thread.signals.send("hurry", {"by": 5})
    blob = thread.blobs.write(b"b" * 5_000_000)
    thread.set_slot("blob", blob)
    thread.prune(keep_latest_per_branch=20)
    return blob


def told(client: Client) -> dict[str, Any]:
    """What the thread shows, without digests and uid."""
    thread = client.thread("t")
    found = thread.hydrate()
    info = thread.info()
    return {
        "version": found.version, "slots": dict(found.slots), "log": list(found.logs["log"]),
        "good": thread.hydrate(at="good").slots["n"] if "good" in [tag.name for tag in thread.tags.list()] else None,
        "side": list(thread.branch("side").hydrate().logs["log"])[-1],
        "versions": [(each.version, each.checkpoint_id, each.labels) for each in thread.checkpoints.list()],
        "branches": sorted((each.name, each.version) for each in thread.branches.list()),
        "records": [(each.key, each.value, each.revision) for each in thread.records.list()],
        "effects": [(each.key, each.value) for each in thread.effects.list()],
        "signals": [(each.name, each.payload) for each in thread.signals.list()],
        "created": info.create_time, "updated": info.update_time, "sequence": info.sequence,
    }  # fmt: skip


def findings(client: Client) -> list[object]:
    """What is wrong here, and in the archive if there is one."""
    found = [each.finding for each in client.verify() if each.finding is not None]
    try:
        return found + [each.finding for each in client.archive.verify(data_percent=100) if each.finding is not None]
    except StatewardError:
        return found


def test_all_of_it_travels(daemon: Daemon, tmp_path: Path) -> None:
    """Everything that the thread shows is as before, also after a start and on another machine; the old key is gone."""
    with daemon.client() as client:
        blob = fill(client)
        before, old_uid = told(client), client.thread("t").info().uid
        answer = run("--target", daemon.target, "keys", "rekey", "t", "--json")
        assert answer.code == 0, answer.err
        assert answer.json["old_uid"] == old_uid
        uid = answer.json["uid"]
        assert uid != old_uid
        assert told(client) == before
        assert client.thread("t").info().uid == uid
        assert client.thread("t").blobs.read(blob) == b"b" * 5_000_000
        assert findings(client) == []
        client.thread("t").append("log", "more")
        assert client.thread("t").hydrate().version == before["version"] + 1
        until(lambda: all(
            slot[4:20].hex() != old_uid or slot[0] == ERASED for slot in slots(tmp_path / "a/keys") if slot[0]
        ))  # fmt: skip
        assert not any(path.name == old_uid for path in (tmp_path / "a/blobs").iterdir())
        daemon.kill()
        daemon.start()
        assert client.thread("t").hydrate().version == before["version"] + 1
        assert told(client)["records"] == before["records"]
        assert findings(client) == []
        if (tmp_path / "bucket").exists():
            client.thread("t").archive.detach()
            keys_of = [slot[4:20].hex() for slot in slots(tmp_path / "bucket/v1/_keys/t")]
            assert keys_of == [uid]
            with (
                run_daemon(
                    tmp_path / "b", key_file=tmp_path / "key", archive=f"file://{tmp_path}/bucket", **FAST
                ) as second,
                second.client() as other,
            ):
                assert told(other)["records"] == before["records"]
                assert list(other.thread("t").hydrate().logs["log"]) == [*before["log"], "more"]
                assert other.thread("t").blobs.read(blob) == b"b" * 5_000_000
                assert findings(other) == []
        assert '"method": "RekeyThread"' in daemon.stderr
    assert sum(slot[0] == THREAD for slot in slots(tmp_path / "a/keys")) == 1


def test_leases_and_claims_stay(daemon: Daemon) -> None:
    """The holder of a lease keeps it, and others are kept out; a claim is completed by its token."""
    with daemon.client() as client, daemon.client() as other:
        client.thread("t").append("log", 0)
        with client.thread("t").lease() as lease:
            token = lease.token
            client.rekey("t")
            with pytest.raises(StatewardError, match="lease"):
                other.thread("t").append("log", 1)
            held = client.thread("t").info().lease
            assert held is not None
            assert held.token == token
        assert findings(client) == []

        def rekeyed() -> str:
            other.rekey("t")
            return "done"

        with pytest.raises(UidMismatch):
            client.thread("t").effects.run("call", rekeyed)
        (effect,) = client.thread("t").effects.list()
        assert effect.key == "call"
        assert findings(client) == []


def test_agents_go_on(daemon: Daemon) -> None:
    """No call of agents that append while the key changes, again and again, fails, and nothing is lost."""
    errors, counts, is_over = list[Exception](), [0, 0], threading.Event()

    def work(number: int) -> None:
        try:
            with daemon.client(retry_timeout=60) as client:
                while not is_over.is_set():
                    client.thread("t").append(f"log{number}", counts[number])
                    counts[number] += 1
        except Exception as error:  # noqa: BLE001  the test tells it
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    with daemon.client() as client:
        client.thread("t").append("log", 0)
        for worker in workers:
            worker.start()
        for _ in range(5):
            time.sleep(0.1)
            client.rekey("t")
        is_over.set()
        for worker in workers:
            worker.join()
        assert errors == []
        found = client.thread("t").hydrate()
        assert [len(found.logs[f"log{number}"]) for number in range(2)] == counts
        assert findings(client) == []


def test_what_is_refused(daemon: Daemon) -> None:
    """A thread that is not there, and one that is held."""
    with daemon.client() as client:
        client.thread("held", session_key=b"s" * 32).append("log", 1)
        for name, said in (("none", "no thread"), ("held", "held thread")):
            with pytest.raises(StatewardError, match=said):
                client.rekey(name)


def test_a_change_that_is_killed(daemon: Daemon, tmp_path: Path) -> None:
    """Wherever the daemon is killed, the thread is there as a whole, under the old key or the new one; and the next
    change leaves nothing of the keys before it."""
    with daemon.client(retry_timeout=60) as client:
        blob = fill(client)
        before, uids = told(client), {client.thread("t").info().uid}
        began = time.monotonic()
        uids.add(client.rekey("t").uid)
        length = time.monotonic() - began
        for number in range(30):
            if number >= 8 and len(uids) > 2:  # one of the changes came to its end before the kill
                break
            changing = threading.Thread(target=lambda: rekey_quietly(daemon))
            changing.start()
            time.sleep(length * (number + 0.5) / 7)
            daemon.kill()
            changing.join()
            daemon.start()
            assert told(client) == before
            assert client.thread("t").blobs.read(blob) == b"b" * 5_000_000
            uids.add(client.thread("t").info().uid)
            assert findings(client) == []
        assert len(uids) > 2
        uid = client.rekey("t").uid
        assert told(client) == before
        until(lambda: [slot[4:20].hex() for slot in slots(tmp_path / "a/keys") if slot[0] == THREAD] == [uid])
        if (tmp_path / "bucket").exists():
            assert [slot[4:20].hex() for slot in slots(tmp_path / "bucket/v1/_keys/t")] == [uid]


def rekey_quietly(daemon: Daemon) -> None:
    """Changes the key at a daemon that is about to be killed."""
    with suppress(StatewardError), daemon.client(retry_timeout=0.1, connect_timeout=1) as client:
        client.rekey("t")


def test_another_machine_has_a_copy(tmp_path: Path) -> None:
    """A sidecar that had the thread before deletes its copy with the old key, and goes on with the new one."""
    flags = {**FAST, "key_file": key_file(tmp_path, "key"), "archive": f"file://{tmp_path}/bucket"}
    with (
        run_daemon(tmp_path / "a", **flags) as first, run_daemon(tmp_path / "b", **flags) as second,
        first.client() as client, second.client() as other,
    ):  # fmt: skip
        client.thread("t").append("log", 1)
        client.thread("t").archive.detach()
        other.thread("t").append("log", 2)
        other.thread("t").archive.detach()
        done = client.rekey("t")
        other.thread("t").append("log", 3)
        other.thread("t").archive.detach()
        assert list(client.thread("t").hydrate().logs["log"]) == [1, 2, 3]
        for name in "ab":
            path = tmp_path / name / "keys"
            until(lambda path=path: [slot[4:20].hex() for slot in slots(path) if slot[0] == THREAD] == [done.uid])
        assert findings(client) == findings(other) == []


def test_an_owner_elsewhere(tmp_path: Path) -> None:
    """A thread that another sidecar owns keeps its key: only its owner may change it."""
    flags = {"key_file": key_file(tmp_path, "key"), "archive": f"file://{tmp_path}/bucket", "archive_lease": "600"}
    with (
        run_daemon(tmp_path / "a", **flags) as first, run_daemon(tmp_path / "b", **flags) as second,
        first.client() as client, second.client(retry_timeout=1) as other,
    ):  # fmt: skip
        client.thread("t").append("log", 1, durability="archived")
        uid = client.thread("t").info().uid
        with pytest.raises(OwnershipLost):
            other.rekey("t")
        assert client.thread("t").info().uid == uid


def test_moved_heads_name_their_versions(daemon: Daemon) -> None:
    """The journal names the versions to which a head was moved by the digests that they have under the new key."""
    with daemon.client() as client:
        thread = client.thread("t")
        for number in range(4):
            thread.append("log", number)
        thread.branches.move("main", 2)
        thread.append("log", "more")
        client.rekey("t")
        digests = {each.version: each.digest for each in client.thread("t").checkpoints.list()}
        for event in client.thread("t").watch(after_sequence=0):
            if event.kind == "heads_moved":
                (move,) = event.what.heads
                assert (move.version, move.version_digest) == (2, digests[2])
                break
        assert findings(client) == []


def test_trees_of_files_travel(daemon: Daemon) -> None:
    """Trees of several versions are as they were, and the next save builds on their objects."""
    wire, trees = TreeWire(daemon), [grown(1, 20), {**grown(1, 20), b"more": b"m" * 3_000_000}]
    with daemon.client() as client:
        for version, tree in enumerate(trees):
            made = make(tree)
            wire.send(made.objects())  # a pack, and entries
            wire.save(naming(made.ref, version, "t"))
        client.rekey("t")
        for version, tree in enumerate(trees, 1):
            assert wire.restored(version) == tree
        wire.save(naming(make(trees[0]).ref, 2, "t"))
        assert wire.restored(3) == trees[0]
        assert findings(client) == []


@pytest.mark.parametrize("changes", [1, 2])
def test_what_an_owner_that_was_away_had_not_shipped(tmp_path: Path, changes: int) -> None:
    """An owner that lost the thread with saves that no HEAD has keeps them beside the thread that has another key."""
    with twins(tmp_path) as towns:
        a, b = towns.a, towns.b
        a.save(append("one"))
        a.archive_all()
        a.save(append("two"))
        towns.wait_for_lease()
        b.take()
        b.save(append("theirs", after=1))
        b.save(append("theirs again", after=2))
        for _ in range(changes):
            b.archive.rekey(NAMESPACE, NAME)
        with suppress(StatewardFault):
            a.archive_all()
        (orphan,) = a.orphans()
        assert a.words(orphan) == ["one", "two"]
        b.archive.detach(NAMESPACE, NAME)
        a.take()
        assert a.words() == ["one", "theirs", "theirs again"]
        assert a.findings() == b.findings() == []


def test_blobs_after_a_commit_that_nobody_knows_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk fails in the commit, the thread may have its new key: the files of its blobs stay."""
    with twins(tmp_path) as towns:
        a = towns.a
        a.put("one")
        writer = a.store.context.writer
        submit = writer.submit

        def fail(write: Write, **how: Any) -> Any:
            made = submit(write, **how)
            if write.is_alone:
                made.wait()
                folder = a.disk.path / "blobs" / a.thread().identity.uid_text
                folder.mkdir(parents=True)
                (folder / "blob").write_bytes(b"b")
                raise OutcomeUnknown("the disk failed")
            return made

        monkeypatch.setattr(a.store.context, "had_archive", False)
        monkeypatch.setattr(writer, "submit", fail)
        before = a.thread().identity.uid
        with pytest.raises(OutcomeUnknown):
            a.store.rekeyer.rekey(NAMESPACE, NAME)
        assert a.thread().identity.uid != before
        assert list((a.disk.path / "blobs" / a.thread().identity.uid_text).iterdir())


@pytest.mark.parametrize("who", ["the same", "the same after a restart", "another"])
def test_a_thread_deleted_after_a_change_that_failed(tmp_path: Path, who: str) -> None:
    """What the change had put is deleted with the thread: its key at once, and no later thread takes it."""
    with twins(tmp_path) as towns:
        a = towns.a
        a.put("secret")
        a.archive_all()

        def refuse(method: str, key: str) -> None:
            if method == "replace" and key.endswith("/HEAD") and len(keys_of(towns)) == 2:
                raise BucketUnavailable("slow down")

        towns.bucket.before = refuse
        with pytest.raises(StatewardFault):
            a.archive.rekey(NAMESPACE, NAME)
        towns.mend()
        kept = {bytes(towns.bucket.objects[key]) for key in keys_of(towns)}
        assert len(kept) == 2
        machine = towns.b if who == "another" else a
        if who == "the same after a restart":
            a.restart()
        machine.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=NAME))
        assert keys_of(towns) == []
        machine.tidy()
        machine.collect(0)
        assert [key for key in towns.bucket.objects if key.startswith("v1/t/") and not key.endswith("/HEAD")] == []
        machine.put("anew")
        machine.archive_all()
        (key,) = keys_of(towns)
        assert bytes(towns.bucket.objects[key]) not in kept


def keys_of(towns: Twins) -> list[str]:
    """The key objects of threads."""
    return [key for key in towns.bucket.objects if "/_keys/t/" in key]
