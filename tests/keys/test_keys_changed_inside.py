"""The danger: a change of the root, or of a namespace's key, that stops an agent, or leaves data that no key opens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import run
from tests.daemon.store import KEY
from tests.daemon.town import twins
from tests.keys.test_keys_rotated import FAST, KILLED, formats, key_file, keys, saving

from stateward.errors import Corrupt
from stateward.storage.v1.archive_pb2 import KeyObject
from stateward.testing import run_daemon
from stateward_sidecar.archive.objects.keys import key_object
from stateward_sidecar.archive.requests.places import ROOT_KEY
from stateward_sidecar.bucket.base import BucketUnavailable
from stateward_sidecar.errors import KeyUnavailable
from stateward_sidecar.storage import keystore
from stateward_sidecar.storage.keyslots import SLOT_BYTES, generation_of, root_of
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.keywraps import HELD, NAMESPACE, ROOT, THREAD, wrap_root

PLACES = 14


def slots(path: Path) -> list[bytes]:
    """All slots of a key store, or of the key objects below a folder of a bucket."""
    if path.is_dir():
        files = [each for each in sorted(path.rglob("*")) if each.is_file() and each.suffix != ".lock"]
        found = [KeyObject.FromString(each.read_bytes()) for each in files if each.parent.name != "s"]
        return [bytes(wrap.wrapped) for each in found for wrap in each.wraps]
    data = path.read_bytes()
    return [data[at : at + SLOT_BYTES] for at in range(0, len(data), SLOT_BYTES)]


def roots_in(path: Path) -> set[int]:
    """The generations of roots, and of those that wrap namespaces, in a key store or in the key objects of a bucket."""
    found = {generation_of(slot) for slot in slots(path) if slot[:1] == bytes((ROOT,))}
    return found | {root_of(slot) for slot in slots(path) if slot[:1] == bytes((NAMESPACE,))}


def generations_in(path: Path) -> set[int]:
    """The generations of namespaces' keys, and of those that wrap threads' keys."""
    kinds = (NAMESPACE, THREAD, HELD)
    return {generation_of(slot) for slot in slots(path) if slot[0] in kinds and slot[1] == 1}


def until(is_so: Callable[[], bool]) -> None:
    """Waits for what the daemon does in the background."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_new_root_under_load(tmp_path: Path) -> None:
    """Two sidecars save while the root changes: no call fails. Each takes the new root when it meets it, or at its next
    start, and then nothing on its disk or in the bucket is wrapped by the old one."""
    file, bucket = key_file(tmp_path, "key"), tmp_path / "bucket"
    place = ("--archive", f"file://{bucket}", "--key-file", file)
    flags = {**FAST, "archive": f"file://{bucket}", "key_file": file}
    with (
        run_daemon(tmp_path / "a", owner_id="a", **flags) as first,
        run_daemon(tmp_path / "b", owner_id="b", **flags) as second,
        saving(first) as saver,
    ):
        with second.client() as client:
            client.thread("mine").append("log", 1)
        changed = keys("rotate", "--root", *place)
        assert (changed["generation"], changed["is_new"], changed["namespaces"]) == (1, True, 1)
        assert formats(bucket) == (2, 2)
        saver.more()
        again = keys("rotate", "--root", *place)
        assert (again["generation"], again["is_new"], again["namespaces"]) == (1, False, 0)
        assert roots_in(bucket / "v1/_keys/n") == {1}
        assert roots_in(bucket / "v1/_keys") == {0, 1}
        with first.client(namespace="new") as client, second.client(namespace="new") as other:
            client.thread("t").append("log", 2)
            client.thread("t").archive.detach()
            other.thread("t").append("log", 3)
        refused = run("keys", "retire", "--root", *place)
        assert refused.code == 1
        assert "minutes old" in refused.err
        assert keys("retire", "--root", *place, "--force")["generation"] == 1
        assert "has one root key" in run("keys", "retire", "--root", *place).err
        assert roots_in(bucket / "v1/_keys") == {1}
        saver.more()
        for daemon in (first, second):
            daemon.kill()
            daemon.start()
        saver.more()
        assert [roots_in(tmp_path / name / "keys") for name in "ab"] == [{1}, {1}]
        listed = keys("list", *place)
        assert [each["generation"] for each in listed["roots"]] == [1]
        assert [each["root"] for each in listed["sidecars"]] == [1, 1]
        with run_daemon(tmp_path / "c", **flags) as third, third.client() as client:
            second.stop()
            assert list(client.thread("mine").hydrate().logs["log"]) == [1]
            assert not [found for found in client.verify() if found.finding is not None]
            assert not [found for found in client.archive.verify() if found.finding is not None]


@pytest.mark.parametrize("is_key_changed", [False, True])
def test_a_sidecar_that_was_off_while_the_root_changed(tmp_path: Path, is_key_changed: bool) -> None:
    """It takes the new root at its start; also if the key that it was started with was retired meanwhile: then it takes
    the keys of its namespaces from the archive. An old copy of its data does the same."""
    file, new, archive = key_file(tmp_path, "key"), key_file(tmp_path, "new"), f"file://{tmp_path}/bucket"
    place = ("--archive", archive)
    with run_daemon(tmp_path / "a", key_file=file, archive=archive, **FAST) as daemon:
        for namespace in ("one", "two"):
            with daemon.client(namespace=namespace) as client:
                client.thread("t").append("log", namespace)
        daemon.stop()
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        for _ in range(2):
            keys("rotate", "--root", *place, "--key-file", file)
            keys("retire", "--root", *place, "--key-file", file, "--force")
        if is_key_changed:
            old_id = keys("rotate", *place, "--key-file", file, "--to", f"file:{new}")["keys"][0]
            keys("retire", old_id, *place, "--key-file", new)
            daemon.key_file = new
        daemon.start()
        for namespace in ("one", "two", "three"):
            with daemon.client(namespace=namespace) as client:
                assert list(client.thread("t").hydrate().logs["log"]) == ([namespace] if namespace != "three" else [])
                client.thread("t").append("log", 2, durability="archived")
        assert roots_in(tmp_path / "a/keys") == {2}
        daemon.stop()
        with run_daemon(tmp_path / "copy", key_file=daemon.key_file, archive=archive, **FAST) as copy:
            for namespace in ("one", "two"):
                with copy.client(namespace=namespace) as client:
                    assert list(client.thread("t").hydrate().logs["log"]) == [namespace, 2]


def cut_short(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """From the ``count``th write of the key store on, nothing arrives on the disk."""
    left, write = [count], os.pwrite

    def pwrite(fd: int, data: bytes, at: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return write(fd, data, at)

    monkeypatch.setattr(keystore.os, "pwrite", pwrite)


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_store_that_is_killed_while_it_takes_a_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_followed: bool
) -> None:
    """Wherever it ends, the next start has all keys, and completes it; with the root of its own, or with that of an
    archive whose key was changed, too."""
    key, other = os.urandom(32), os.urandom(32)
    store = KeyStore(tmp_path / "keys", key)
    spaces = [store.create_namespace(f"n{number}") for number in range(5)]
    uids = [os.urandom(16) for _ in spaces]
    for uid, space in zip(uids, spaces, strict=True):
        store.add_thread(uid, space, uid * 2)
        store.mark_leaving(uid, is_leaving=False)
    pair, theirs = os.urandom(32) + store._name_key, b""
    found = [wrap_root(pair, key, 1)]
    if is_followed:
        theirs = wrap_root(store._roots[0] + store._name_key, other) + wrap_root(pair, other, 1)
    store.close()
    before, ends = (tmp_path / "keys").read_bytes(), 0
    for count in range(20):
        (tmp_path / "keys").write_bytes(before)
        with monkeypatch.context() as patch:
            cut_short(patch, count)
            try:
                if is_followed:
                    KeyStore(tmp_path / "keys", other, theirs).close()
                else:
                    store = KeyStore(tmp_path / "keys", key)
                    store.learn_roots([store.root_slot(), *found])
                    store.close()
            except KeyboardInterrupt:
                ends += 1
        store = KeyStore(tmp_path / "keys", other, theirs) if is_followed else KeyStore(tmp_path / "keys", key)
        for number, uid in enumerate(uids):
            space = store.namespace(f"n{number}")
            assert space is not None
            assert store.thread_key(uid, space) == uid * 2
        assert len(roots_in(tmp_path / "keys")) == 1
        store.close()
    assert 6 <= ends < 20


def test_a_root_of_another_store(tmp_path: Path) -> None:
    """It is not taken, whatever its generation."""
    key = os.urandom(32)
    store = KeyStore(tmp_path / "keys", key)
    store.create_namespace("n")
    with pytest.raises(KeyUnavailable):
        store.learn_roots([wrap_root(os.urandom(64), key, 1)])
    assert store.root_generation == 0
    store.close()


def test_another_root_of_the_same_generation(tmp_path: Path) -> None:
    """It is refused before anything changes: what the known one wraps still opens."""
    key, uid = os.urandom(32), os.urandom(16)
    store = KeyStore(tmp_path / "keys", key)
    store.add_thread(uid, store.create_namespace("n"), uid * 2)
    before = (tmp_path / "keys").read_bytes()
    others = [wrap_root(os.urandom(32) + store._name_key, key, generation) for generation in (0, 1)]
    with pytest.raises(KeyUnavailable, match="one generation"):
        store.learn_roots(others)
    assert store.root_generation == 0
    assert (tmp_path / "keys").read_bytes() == before
    store.create_namespace("later")
    store.close()
    store = KeyStore(tmp_path / "keys", key)
    assert store.namespace("later") is not None
    store.close()


def test_a_namespace_after_a_start_without_the_archive(tmp_path: Path) -> None:
    """A root that was made while nobody could be asked wraps it, because those that know only the new one read it."""
    with twins(tmp_path) as towns:
        a, b = towns.a, towns.b
        b.put("one")
        a.crash()

        def refuse(method: str, key: str) -> None:
            raise BucketUnavailable(f"{method} {key}")

        towns.bucket.before = refuse
        a.open()
        towns.mend()
        ours = a.store.context.keystore
        theirs = wrap_root(os.urandom(32) + ours._name_key, KEY, 1)
        towns.bucket.objects[ROOT_KEY] = key_object(ours.root_slot(), theirs)
        a.archive.state.keys.namespace("another")
        assert ours.root_generation == 1


def run_killed(order: dict[str, Any], at: int, when: str) -> bool:
    """Runs an order, and kills it before or after one of its requests. Returns whether it came so far."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(at), when], input=json.dumps(order), text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("what", ["root", "namespace"])
def test_a_change_that_is_killed(tmp_path: Path, what: str) -> None:
    """Wherever a change and its end are killed, sidecars with and without data read everything, and the same command
    completes it."""
    file, archive = key_file(tmp_path, "key"), f"file://{tmp_path}/bucket"
    place = ("--archive", archive, "--key-file", file)
    which = ("--root",) if what == "root" else ("--namespace", "default")
    order = {
        "key": f"file:{file}", "archive": archive, "data_dir": "", "what": what, "namespace": "default", "now": True,
        "force": True,
    }  # fmt: skip
    with run_daemon(tmp_path / "a", key_file=file, archive=archive, **FAST) as daemon, daemon.client() as client:
        kills, seen = 0, 0

        def check() -> None:
            nonlocal seen
            client.thread("t").append("log", seen, durability="archived")
            client.thread("t").archive.detach()
            seen += 1
            assert list(client.thread("t").hydrate().logs["log"]) == list(range(seen))

        check()
        for at in range(1, PLACES):
            for when in ("before", "after"):
                for do in ("change", "end"):
                    kills += run_killed({"do": do, **order}, at, when)
                    check()
                    keys("rotate", *which, *place)
                if run("keys", "retire", *which, *place, "--force").code:
                    keys("list", *place)
        assert kills >= 20
        keys("rotate", *which, *place)
        keys("retire", *which, *place, "--force")
        check()
    with run_daemon(tmp_path / "b", key_file=file, archive=archive, **FAST) as daemon, daemon.client() as client:
        assert list(client.thread("t").hydrate().logs["log"]) == list(range(seen))
        assert not [found for found in client.archive.verify() if found.finding is not None]


def test_a_new_key_of_a_namespace_under_load(tmp_path: Path) -> None:
    """Two sidecars save, take threads over, fork, expire and delete while the key changes: no call fails. Nothing needs
    the old key in the end, here or in the bucket, and only then it is gone from both."""
    file, bucket = key_file(tmp_path, "key"), tmp_path / "bucket"
    place = ("--namespace", "default", "--archive", f"file://{bucket}", "--key-file", file)
    flags = {**FAST, "archive": f"file://{bucket}", "key_file": file, "log_level": "info"}
    with (
        run_daemon(tmp_path / "a", **flags) as first, run_daemon(tmp_path / "b", **flags) as second,
        saving(first) as saver, first.client() as client, second.client() as other,
    ):  # fmt: skip
        for name in ("moved", "gone", "forked", "kept"):
            client.thread(name).append("log", 1, durability="archived")
        client.thread("buried").append("log", 1, durability="archived")
        client.thread("buried").delete()
        changed = keys("rotate", *place, "--now")
        assert (changed["generation"], changed["is_new"], changed["keys"] >= 7) == (1, True, True)
        assert changed["heads"] >= 5
        saver.more()
        assert generations_in(bucket / "v1/_keys/t") == {1}
        assert [each["generation"] for each in keys("list", *place)["namespace_keys"]] == [0, 1]
        client.thread("moved").archive.detach()
        other.thread("moved").append("log", 2)
        client.thread("gone").archive.detach()
        other.thread("gone").delete()
        client.thread("forked").fork("a copy")
        refused = run("keys", "retire", *place)
        assert refused.code == 1
        assert "minutes old" in refused.err
        assert keys("retire", *place, "--force")["generation"] == 1
        saver.more()
        for daemon in (first, second):
            daemon.kill()
            daemon.start()
        saver.more()
        other.thread("moved").archive.detach()
        assert list(client.thread("moved").hydrate().logs["log"]) == [1, 2]
        assert list(client.thread("kept").hydrate().logs["log"]) == [1]
        until(lambda: generations_in(tmp_path / "a/keys") == {1})
        for each in (client, other):
            assert not [found for found in each.verify() if found.finding is not None]
            assert not [found for found in each.archive.verify() if found.finding is not None]
        assert '"security": "changed"' in first.stderr


def test_a_head_that_is_put_back_after_its_key_is_gone(tmp_path: Path) -> None:
    """It is damage, and not another thread; until then it opens. Its owner repairs it."""
    file, bucket = key_file(tmp_path, "key"), tmp_path / "bucket"
    place = ("--namespace", "default", "--archive", f"file://{bucket}", "--key-file", file)
    flags = {**FAST, "archive": f"file://{bucket}", "key_file": file}
    with run_daemon(tmp_path / "a", **flags) as daemon, daemon.client() as client:
        client.thread("t").append("log", 1, durability="archived")
        client.thread("t").archive.detach()
        (head,) = (bucket / "v1/t").rglob("HEAD")
        old = head.read_bytes()
        keys("rotate", *place, "--now")
        head.write_bytes(old)
        with run_daemon(tmp_path / "b", **flags) as second, second.client() as other:
            assert list(other.thread("t").hydrate().logs["log"]) == [1]
        head.write_bytes(old)
        keys("retire", *place, "--force")
        assert head.read_bytes() != old
        new = head.read_bytes()
        head.write_bytes(old)
        with run_daemon(tmp_path / "c", **flags) as third, third.client() as other:
            with pytest.raises(Corrupt):
                other.thread("t").hydrate()
            head.write_bytes(new)
            assert list(other.thread("t").hydrate().logs["log"]) == [1]


def test_a_key_object_that_is_put_back(tmp_path: Path) -> None:
    """A sidecar that has a newer key of the namespace, or a newer root, adds it again: its own threads stay, and other
    sidecars read them."""
    file, bucket = key_file(tmp_path, "key"), tmp_path / "bucket"
    place = ("--namespace", "default", "--archive", f"file://{bucket}", "--key-file", file)
    flags = {**FAST, "archive": f"file://{bucket}", "key_file": file}
    with run_daemon(tmp_path / "a", **flags) as daemon, daemon.client() as client:
        client.thread("t").append("log", 1, durability="archived")
        (found,) = (bucket / "v1/_keys/n").glob("*[0-9a-f]")
        old = found.read_bytes()
        keys("rotate", *place, "--now")
        client.thread("t").append("log", 2, durability="archived")
        until(lambda: 1 in generations_in(tmp_path / "a/keys"))
        daemon.stop()
        found.write_bytes(old)
        daemon.start()
        client.thread("new").append("log", 3)
        client.thread("t").append("log", 3, durability="archived")
        assert generations_in(bucket / "v1/_keys/n") == {0, 1}
        root = (bucket / "v1/_keys/root").read_bytes()
        keys("rotate", "--root", *place[2:])
        with daemon.client(namespace="other") as other:
            other.thread("t").append("log", 1)
        daemon.kill()
        daemon.start()
        assert roots_in(tmp_path / "a/keys") == {1}
        daemon.stop()
        (bucket / "v1/_keys/root").write_bytes(root)
        daemon.start()
        assert roots_in(bucket / "v1/_keys") == {0, 1}
        client.thread("t").archive.detach()
        with run_daemon(tmp_path / "b", **flags) as second, second.client() as other:
            assert list(other.thread("t").hydrate().logs["log"]) == [1, 2, 3]


def test_data_without_an_archive(tmp_path: Path) -> None:
    """They take a new root and a new key of a namespace while no daemon runs there. The next start wraps the threads
    and seals the deletions anew, and destroys the old key. A held thread follows with the first call that has its
    session key; until then the old key stays."""
    file, data = key_file(tmp_path, "key"), tmp_path / "data"
    change = ("keys", "rotate", "--data-dir", data, "--key-file", file)
    with run_daemon(data, key_file=file, held_for="1") as daemon:
        with daemon.client() as client:
            client.thread("t").append("log", 1)
            client.thread("held", session_key=b"s" * 32).append("log", 1)
            client.thread("gone").append("log", 1)
            client.thread("gone").delete()
        assert "in use" in run(*change, "--root").err
        daemon.stop()
        for _ in range(2):
            assert run(*change, "--root").code == 0
        assert run(*change, "--namespace", "default").code == 0
        assert "no namespace" in run(*change, "--namespace", "none").err
        assert roots_in(data / "keys") == {2}
        daemon.start()
        with daemon.client() as client:
            assert list(client.thread("t").hydrate().logs["log"]) == [1]
            threads = {slot[4:20]: generation_of(slot) for slot in slots(data / "keys") if slot[0] == HELD}
            assert list(threads.values()) == [0]
            until(lambda: {generation_of(slot) for slot in slots(data / "keys") if slot[0] == THREAD} == {1})
            assert {generation_of(slot) for slot in slots(data / "keys") if slot[0] == NAMESPACE} == {0, 1}
            assert list(client.thread("held", session_key=b"s" * 32).hydrate().logs["log"]) == [1]
            until(lambda: generations_in(data / "keys") == {1})
            assert not [found for found in client.verify() if found.finding is not None]
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            assert list(client.thread("held", session_key=b"s" * 32).hydrate().logs["log"]) == [1]


def test_wrong_words(tmp_path: Path) -> None:
    """Each says what is missing, and changes nothing."""
    file, archive = key_file(tmp_path, "key"), f"file://{tmp_path}/bucket"
    place = ("--archive", archive, "--key-file", file)
    with run_daemon(tmp_path / "a", key_file=file, archive=archive, **FAST) as daemon, daemon.client() as client:
        client.thread("t").append("log", 1)
        before = {path: path.read_bytes() for path in (tmp_path / "bucket/v1/_keys").rglob("*") if path.is_file()}
        for words, said in (
            (("rotate", *place), "say which key"), (("rotate", "--root", "--namespace", "x", *place), "say which key"),
            (("rotate", "--root", "--now", *place), "--now is for"), (("retire", *place), "say which key"),
            (("retire", "--root", *place), "has one root key"),
            (("retire", "--namespace", "default", *place), "has one key"),
            (("rotate", "--namespace", "none", *place), "no namespace"),
        ):  # fmt: skip
            answer = run("keys", *words)
            assert answer.code == 1, words
            assert said in answer.err
        after = {path: path.read_bytes() for path in (tmp_path / "bucket/v1/_keys").rglob("*") if path.is_file()}
        assert after == before


def test_a_held_thread_in_an_archive(tmp_path: Path) -> None:
    """The old key of its namespace stays, here and in the bucket, until a call has brought the session key."""
    file, bucket = key_file(tmp_path, "key"), tmp_path / "bucket"
    place = ("--namespace", "default", "--archive", f"file://{bucket}", "--key-file", file)
    flags = {**FAST, "archive": f"file://{bucket}", "key_file": file}
    with run_daemon(tmp_path / "a", **flags) as daemon, daemon.client() as client:
        client.thread("t").append("log", 1, durability="archived")
        held = client.thread("held", session_key=b"s" * 32)
        held.append("log", 1, durability="archived")
        assert keys("rotate", *place, "--now")["held"] == 1
        refused = run("keys", "retire", *place, "--force")
        assert refused.code == 1
        assert "that only their users can open (1)" in refused.err
        daemon.kill()
        daemon.start()
        client.thread("t").append("log", 2, durability="archived")
        assert list(held.hydrate().logs["log"]) == [1]
        until(lambda: generations_in(bucket / "v1/_keys/t") == {1})
        keys("retire", *place, "--force")
        assert generations_in(bucket / "v1/_keys/n") == {1}
        held.archive.detach()
        daemon.kill()
        with run_daemon(tmp_path / "b", **flags) as second, second.client() as other:
            assert list(other.thread("held", session_key=b"s" * 32).hydrate().logs["log"]) == [1]
        daemon.start()
        held.append("log", 2, durability="archived")
        until(lambda: generations_in(tmp_path / "a/keys") == {1})


def test_a_store_that_is_killed_while_it_wraps_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it ends, each thread's key opens by one of the two keys of its namespace, and the next start goes on."""
    key = os.urandom(32)
    store = KeyStore(tmp_path / "keys", key)
    space, uids = store.create_namespace("n"), [os.urandom(16) for _ in range(9)]
    for uid in uids:
        store.add_thread(uid, space, uid * 2)
        store.mark_leaving(uid, is_leaving=False)
    store.close()
    before, ends = (tmp_path / "keys").read_bytes(), 0
    for count in range(15):
        (tmp_path / "keys").write_bytes(before)
        with monkeypatch.context() as patch:
            cut_short(patch, count)
            try:
                change(KeyStore(tmp_path / "keys", key))
            except KeyboardInterrupt:
                ends += 1
        store = KeyStore(tmp_path / "keys", key)
        space = store.namespace("n") or space
        assert [store.thread_key(uid, space) for uid in uids] == [uid * 2 for uid in uids]
        if store.changed_namespaces():
            change(store, is_new=False)
            assert [store.thread_key(uid, space) for uid in uids] == [uid * 2 for uid in uids]
        assert len(generations_in(tmp_path / "keys")) == 1
        store.close()
    assert 10 <= ends < 15


def change(store: KeyStore, *, is_new: bool = True) -> None:
    """Gives the namespace another key, as a daemon does, or goes on with that."""
    if is_new:
        store.change_namespace("n")
    space = store.namespace("n")
    assert space is not None
    at: int | None = 2
    while at is not None:
        at = store.rewrap_threads(space, at, 4)
        store.sync()
    store.forget_generations(space.id, frozenset())
    store.sync()


def test_kills_while_sidecars_follow(tmp_path: Path) -> None:
    """Two sidecars that save are killed again and again while root and namespace change: each has all threads after
    each start, and in the end nothing needs an old key."""
    file, bucket = key_file(tmp_path, "key"), tmp_path / "bucket"
    place = ("--archive", f"file://{bucket}", "--key-file", file)
    flags = {**FAST, "archive": f"file://{bucket}", "key_file": file}
    with (
        run_daemon(tmp_path / "a", **flags) as first, run_daemon(tmp_path / "b", **flags) as second,
        saving(first) as saver, second.client(retry_timeout=60) as client,
    ):  # fmt: skip
        for number in range(40):
            client.thread(f"b{number}").append("log", number)
        for round_ in range(5):
            for which, now in ((("--root",), ()), (("--namespace", "default"), ("--now",))):
                keys("rotate", *which, *now, *place)
                victim = (first, second)[round_ % 2]
                time.sleep(0.03 * round_)  # while it follows, or before
                victim.kill()
                victim.start()
                saver.more()
                client.thread(f"b{round_}").append("log", round_)
                client.thread("new").append("log", round_, durability="archived")
                keys("retire", *which, *place, "--force")
        for number in range(40):
            assert next(iter(client.thread(f"b{number}").hydrate().logs["log"])) == number
        for daemon in (first, second):
            daemon.kill()
            daemon.start()
        client.thread("new").append("log", 5, durability="archived")
        saver.more()
        for name in "ab":
            until(lambda path=tmp_path / name / "keys": generations_in(path) == {5} and roots_in(path) == {5})
        assert not [found for found in client.verify() if found.finding is not None]
        assert not [found for found in client.archive.verify() if found.finding is not None]
