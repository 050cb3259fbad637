"""The danger: a change of the key that stops an agent, leaves data that no key opens, or leaves the old key good."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import run
from tests.keys.test_keys_in_services import key_of

from stateward.admin import Verdict
from stateward.storage.v1.archive_pb2 import ArchiveFormat, KeyObject
from stateward.testing import Daemon, run_daemon
from stateward_sidecar.errors import StartError
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.secretfiles import fingerprint

FAST = {"archive_lease": "1", "archive_interval": "0.1"}


def key_file(place: Path, name: str) -> Path:
    """A new key file."""
    path = place / name
    path.write_text(secrets.token_hex(32))
    return path


def keys(*arguments: object) -> dict[str, Any]:
    """What `stateward keys` answers."""
    answer = run("keys", *arguments, "--json")
    assert answer.code == 0, answer.err
    found: dict[str, Any] = answer.json
    return found


def wraps(bucket: Path) -> int:
    """How many keys wrap the root."""
    return len(KeyObject.FromString((bucket / "v1/_keys/root").read_bytes()).wraps)


def formats(bucket: Path) -> tuple[int, int]:
    """The formats that readers and writers of an archive must know."""
    form = ArchiveFormat.FromString((bucket / "v1/_format").read_bytes())
    return form.min_reader, form.min_writer


@contextmanager
def saving(daemon: Daemon) -> Iterator[Saver]:
    """A program that saves; fails if one of its calls does."""
    saver = Saver(daemon)
    try:
        yield saver
    finally:
        saver.end()


class Saver:
    """A program that saves all the time, at a daemon that may be started again, and never fails."""

    def __init__(self, daemon: Daemon) -> None:
        self.count = 0
        self.error: Exception | None = None
        self._daemon, self._is_over = daemon, threading.Event()
        self._thread = threading.Thread(target=self._save)
        self._thread.start()

    def _save(self) -> None:
        try:
            with self._daemon.client(retry_timeout=60) as client:
                while not self._is_over.is_set():
                    client.thread(f"t{self.count % 3}").append("log", self.count)
                    self.count += 1
        except Exception as error:  # noqa: BLE001  the test tells it
            self.error = error

    def more(self) -> None:
        """Waits for some more saves."""
        wanted, deadline = self.count + 5, time.monotonic() + 60
        while self.count < wanted and self.error is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.error is None
        assert self.count >= wanted

    def end(self) -> None:
        """Ends it."""
        self._is_over.set()
        self._thread.join()
        assert self.error is None


def test_a_rotation_under_load(tmp_path: Path) -> None:
    """Two sidecars save while the key changes: no call fails. Each follows at its next start, after a crash and after a
    stop, and the old key is good until it is retired, which waits for both."""
    old, new, bucket = key_file(tmp_path, "old"), key_file(tmp_path, "new"), tmp_path / "bucket"
    place = ("--archive", f"file://{bucket}")
    flags = {**FAST, "archive": f"file://{bucket}"}
    with (
        run_daemon(tmp_path / "a", key_file=old, owner_id="a", **flags) as first,
        run_daemon(tmp_path / "b", key_file=old, owner_id="b", **flags) as second,
        saving(first) as saver,
    ):
        with second.client() as client:
            client.thread("mine").append("log", 1)
        assert formats(bucket) == (1, 1)
        old_id = key_of(first)
        new_id = keys("rotate", *place, "--key-file", old, "--to", f"file:{new}")["key_id"]
        assert (wraps(bucket), formats(bucket)) == (2, (2, 2))
        saver.more()
        again = keys("rotate", *place, "--key-file", old, "--to", f"file:{new}")
        assert (again["is_new"], again["keys"], wraps(bucket)) == (False, [old_id, new_id], 2)
        for left, daemon, end in (("ab", first, first.kill), ("b", second, second.stop)):
            refused = run("keys", "retire", old_id, *place, "--key-file", new)
            assert refused.code == 1
            assert [name for name in "ab" if f"{name} (since" in refused.err] == list(left)
            daemon.key_file = new
            end()
            daemon.start()
            assert key_of(daemon) == new_id
            saver.more()
        found = keys("retire", old_id, *place, "--key-file", new)
        assert found["keys"] == [new_id]
        assert sorted(each["owner_id"] for each in found["sidecars"]) == ["a", "b"]
        for daemon in (first, second):
            daemon.kill()
            daemon.start()
        saver.more()
        with second.client() as client:
            assert list(client.thread("mine").hydrate().logs["log"]) == [1]
        assert len(keys("list", *place, "--key-file", new)["sidecars"]) == 2
    for name in ("a", "b"):  # neither the disk nor the archive knows the old key any more
        with pytest.raises(StartError, match="does not open the data"):
            KeyStore(tmp_path / name / "keys", bytes.fromhex(old.read_text()))
    assert "does not open the archive" in run("keys", "list", *place, "--key-file", old).err


def test_a_readiness_that_follows(tmp_path: Path) -> None:
    """A key file that is replaced in place before the restart, as a Secret is, makes the daemon not ready only if its
    key does not open the archive."""
    file, new, other = key_file(tmp_path, "key"), key_file(tmp_path, "new"), key_file(tmp_path, "other")
    archive = f"file://{tmp_path}/bucket"
    with run_daemon(tmp_path / "a", key_file=file, archive=archive, **FAST) as daemon, daemon.client() as client:
        keys("rotate", "--archive", archive, "--key-file", file, "--to", f"file:{new}")
        file.write_text(new.read_text())
        time.sleep(2.5)  # some rounds of the check
        assert not client.server_info().not_ready
        (found,) = [each for each in client.diagnose().diagnoses if each.check == "key"]
        assert found.verdict == Verdict.WARNING
        assert "start the daemon with it" in found.advice
        file.write_text(other.read_text())
        deadline = time.monotonic() + 60
        while not client.server_info().not_ready:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        file.write_text(new.read_text())
        assert '"security": "changed"' not in daemon.stderr
        daemon.stop()
        daemon.start()
        assert '"security": "changed"' in daemon.stderr
        with pytest.raises(RuntimeError, match="KEY_UNAVAILABLE"), run_daemon(key_file=other, archive=archive):
            pass


def test_a_changed_format_stops_a_rotation(tmp_path: Path) -> None:
    """No command goes on with an archive whose `_format` somebody changed. The seal of the right one is good before,
    during and after a rotation."""
    old, new, bucket = key_file(tmp_path, "old"), key_file(tmp_path, "new"), tmp_path / "bucket"
    place, path = ("--archive", f"file://{bucket}"), bucket / "v1/_format"
    with run_daemon(tmp_path / "a", key_file=old, archive=f"file://{bucket}", **FAST) as daemon:
        old_id = key_of(daemon)
        daemon.stop()
    commands = {
        "list": (*place, "--key-file", old), "rotate": (*place, "--key-file", old, "--to", f"file:{new}"),
        "retire": (old_id, *place, "--key-file", new),
    }  # fmt: skip
    for name, arguments in commands.items():
        kept, before = path.read_bytes(), {each: each.read_bytes() for each in bucket.rglob("v1/_keys/root")}
        form = ArchiveFormat.FromString(kept)
        form.create_time_us += 1
        path.write_bytes(form.SerializeToString())
        assert "_format was changed without the archive's key" in run("keys", name, *arguments).err
        assert {each: each.read_bytes() for each in bucket.rglob("v1/_keys/root")} == before
        path.write_bytes(kept)
        keys(name, *arguments)
    for name in "ab":
        with run_daemon(tmp_path / name, key_file=new, archive=f"file://{bucket}") as daemon, daemon.client() as client:
            assert not [each for each in client.archive.verify() if each.finding is not None]


def test_data_without_an_archive(tmp_path: Path) -> None:
    """They take the new key alone, in one step, while no daemon runs. Data with an archive are not changed alone."""
    old, new, data = key_file(tmp_path, "old"), key_file(tmp_path, "new"), tmp_path / "data"
    change = ("keys", "rotate", "--data-dir", data, "--key-file", old, "--to", f"file:{new}")
    with run_daemon(data, key_file=old) as daemon:
        with daemon.client() as client:
            client.thread("t").append("log", 1)
        assert "in use" in run(*change).err
        daemon.stop()
        assert run(*change).code == 0
        assert "does not open" in run(*change).err
        daemon.key_file = new
        daemon.start()
        with daemon.client() as client:
            assert list(client.thread("t").hydrate().logs["log"]) == [1]
    archive = f"file://{tmp_path}/bucket"
    with run_daemon(tmp_path / "more", key_file=old, archive=archive) as daemon:
        daemon.stop()
        change = ("keys", "rotate", "--data-dir", tmp_path / "more", "--key-file", old, "--to", f"file:{new}")
        assert "give --archive" in run(*change).err
    assert "give --archive, or --data-dir" in run(*change, "--archive", archive).err


PLACES = 12
KILLED = """
import os, signal, sys
from stateward_sidecar import keytool
from stateward_sidecar.archive.requests.metered import Wire

at, after, count, call = int(sys.argv[1]), sys.argv[2] == "after", 0, Wire._call

def counting(self, operation, *arguments, **options):
    global count
    count += 1
    if count == at and not after:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        return call(self, operation, *arguments, **options)
    finally:
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

Wire._call = counting
keytool.main()
"""


def test_a_rotation_that_is_killed(tmp_path: Path) -> None:
    """Wherever a rotation and its end are killed, the archive has a key that opens it, older versions are kept out
    before there are two wraps, and the same command completes it."""
    file, bucket = key_file(tmp_path, "key"), tmp_path / "bucket"
    place = ("--archive", f"file://{bucket}")
    with run_daemon(tmp_path / "a", key_file=file, archive=f"file://{bucket}", owner_id="a", **FAST) as daemon:
        with daemon.client() as client:
            client.thread("t").append("log", 0)
        daemon.stop()
        kills, first_format = 0, (bucket / "v1/_format").read_bytes()
        for at in range(1, PLACES):
            for when in ("before", "after"):
                new, old_id = key_file(tmp_path, f"key-{at}-{when}"), fingerprint(bytes.fromhex(file.read_text()))
                orders = (
                    {"do": "rotate", "key": f"file:{file}", "to": f"file:{new}", "archive": place[1], "data_dir": ""},
                    {"do": "retire", "key": f"file:{new}", "archive": place[1], "key_id": old_id, "force": False},
                )
                (bucket / "v1/_format").write_bytes(first_format)  # as before the very first rotation
                for order in orders:
                    done = subprocess.run(
                        [sys.executable, "-c", KILLED, str(at), when], input=json.dumps(order), text=True,
                        capture_output=True, check=False,
                    )  # fmt: skip
                    kills += done.returncode == -signal.SIGKILL
                    assert done.returncode in (0, -signal.SIGKILL), done.stderr
                    assert wraps(bucket) == 1 or formats(bucket) == (2, 2)
                    opens = [run("keys", "list", *place, "--key-file", each).code == 0 for each in (file, new)]
                    assert sum(opens) == wraps(bucket)
                    if order["do"] == "rotate":
                        assert opens[0]
                        keys("rotate", *place, "--key-file", file, "--to", f"file:{new}")
                    elif opens[0]:
                        keys("retire", old_id, *place, "--key-file", new)
                file = daemon.key_file = new
        assert kills >= 20
        daemon.start()
        with daemon.client() as client:
            assert list(client.thread("t").hydrate().logs["log"]) == [0]


def test_a_start_that_is_killed_while_it_follows(tmp_path: Path) -> None:
    """A sidecar that is killed again and again in its first start with the new key has its data in the end; so has one
    that goes back to the old key before that is retired."""
    old, new, archive = key_file(tmp_path, "old"), key_file(tmp_path, "new"), f"file://{tmp_path}/bucket"
    with run_daemon(tmp_path / "a", key_file=old, archive=archive, **FAST) as daemon:
        with daemon.client() as client:
            client.thread("t").append("log", 1)
        daemon.kill()
        keys("rotate", "--archive", archive, "--key-file", old, "--to", f"file:{new}")
        for number in range(10):
            file = (new, old)[number % 2]
            command = [sys.executable, "-m", "stateward_sidecar", "--data-dir", str(tmp_path / "a")]
            command += ["--archive", archive, "--key-file", str(file), "--listen", f"unix://{tmp_path}/s"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.15 * (number + 1))
            process.kill()
            process.wait()
        for file in (old, new):
            daemon.key_file = file
            daemon.start()
            with daemon.client() as client:
                assert list(client.thread("t").hydrate().logs["log"]) == [1]
            daemon.stop()


def test_a_takeover_by_a_sidecar_with_the_other_key(tmp_path: Path) -> None:
    """While two keys open the archive, sidecars with either take threads over from each other, fork, delete and verify,
    and namespaces and threads made under one are read under the other."""
    old, new, archive = key_file(tmp_path, "old"), key_file(tmp_path, "new"), f"file://{tmp_path}/bucket"
    flags = {**FAST, "archive": archive}
    with run_daemon(tmp_path / "a", key_file=old, **flags) as first, first.client() as client:
        client.thread("t").append("log", 1)
        client.thread("gone").append("log", 1)
        keys("rotate", "--archive", archive, "--key-file", old, "--to", f"file:{new}")
        with (
            run_daemon(tmp_path / "b", key_file=new, **flags) as second, second.client() as other,
            second.client(namespace="new") as newer, first.client(namespace="new") as newest,
        ):  # fmt: skip
            newer.thread("made").append("log", 2)
            client.thread("t").archive.detach()
            other.thread("t").append("log", 2)
            other.thread("t").fork("copy")
            client.thread("gone").archive.detach()
            other.thread("gone").delete()
            for thread in (other.thread("t"), other.thread("copy"), newer.thread("made")):
                thread.archive.detach()
            assert list(client.thread("t").hydrate().logs["log"]) == [1, 2]
            assert list(client.thread("copy").hydrate().logs["log"]) == [1, 2]
            assert list(newest.thread("made").hydrate().logs["log"]) == [2]
            assert client.thread("gone").hydrate().version == 0
            for each in (client, other):
                assert not [found for found in each.verify() if found.finding is not None]
                assert not [found for found in each.archive.verify() if found.finding is not None]


def test_a_root_of_another_archive(tmp_path: Path) -> None:
    """A store takes the new wrap of its own root only: with key and URL of another archive it does not start, and is as
    it was."""
    mine, other = key_file(tmp_path, "mine"), key_file(tmp_path, "other")
    urls = [f"file://{tmp_path}/bucket-{number}" for number in range(2)]
    with run_daemon(tmp_path / "a", key_file=mine, archive=urls[0]) as daemon, daemon.client() as client:
        client.thread("t").append("log", 1)
    with run_daemon(tmp_path / "b", key_file=other, archive=urls[1]) as daemon, daemon.client() as client:
        client.thread("t").append("log", 2)
    before = (tmp_path / "a/keys").read_bytes()
    for url in urls:
        with (
            pytest.raises(RuntimeError, match=r"KEY_UNAVAILABLE: .* does not open"),
            run_daemon(tmp_path / "a", key_file=other, archive=url),
        ):
            pass
    assert (tmp_path / "a/keys").read_bytes() == before
    with run_daemon(tmp_path / "a", key_file=mine, archive=urls[0]) as daemon, daemon.client() as client:
        assert list(client.thread("t").hydrate().logs["log"]) == [1]


def test_a_sidecar_that_stopped_before_all_was_archived(tmp_path: Path) -> None:
    """One that stops with a save, or a line that was set aside, that no other disk has keeps the key in use that it was
    started with: `retire` names it, until it was started and everything is archived, or deleted."""
    old, new, bucket = key_file(tmp_path, "old"), key_file(tmp_path, "new"), tmp_path / "bucket"
    place, flags = ("--archive", f"file://{bucket}"), {"archive": f"file://{bucket}", "archive_lease": "1"}
    late = {**flags, "archive_interval": "60", "grace": "0"}

    def sidecars() -> dict[str, int]:
        found = keys("list", *place, "--key-file", new)["sidecars"]
        return {each["owner_id"]: each["unarchived_threads"] for each in found if each["stop_time"]}

    def save(daemon: Daemon, *values: int) -> None:
        with daemon.client() as client:
            for value in values:
                saved = client.thread("t").append("log", value)
                if value == 1:
                    client.thread("t").archive.wait(saved)

    with run_daemon(tmp_path / "a", key_file=old, owner_id="a", **late) as daemon:
        old_id = key_of(daemon)
        keys("rotate", *place, "--key-file", old, "--to", f"file:{new}")
        save(daemon, 1, 2)
        daemon.stop()
        assert sidecars() == {"a": 1}
        refused = run("keys", "retire", old_id, *place, "--key-file", new)
        assert refused.code == 1
        assert "a (stopped" in refused.err
        assert "with 1 thread of which its disk alone has something)" in refused.err
        assert "with 1 thread of which" in run("keys", "list", *place, "--key-file", new).out
    with run_daemon(tmp_path / "b", key_file=new, owner_id="b", **flags) as daemon, daemon.client() as client:
        client.thread("t").archive.attach(take_over=True)
        client.thread("t").archive.wait(client.thread("t").append("log", 3))
    with run_daemon(tmp_path / "a", key_file=old, owner_id="a", **flags) as daemon, daemon.client() as client:
        assert list(client.thread("t").hydrate().logs["log"]) == [1, 3]
        (orphan,) = [each.name for each in client.threads() if each.name != "t"]
        daemon.stop()
        assert sidecars() == {"a": 1}
        assert "a (stopped" in run("keys", "retire", old_id, *place, "--key-file", new).err
        daemon.start()
        client.thread(orphan).delete()
        daemon.stop()
        assert sidecars() == {}
        keys("retire", old_id, *place, "--key-file", new)
        assert [each["owner_id"] for each in keys("list", *place, "--key-file", new)["sidecars"]] == ["b"]  # killed
        daemon.key_file = new
        daemon.start()
        assert list(client.thread("t").hydrate().logs["log"]) == [1, 3]


def test_a_sidecar_that_started_while_the_bucket_was_away(tmp_path: Path) -> None:
    """It counts as soon as the bucket answers, and takes away what a process before it on its disk left there."""
    old, new, bucket = key_file(tmp_path, "old"), key_file(tmp_path, "new"), tmp_path / "bucket"
    place = ("--archive", f"file://{bucket}")
    with run_daemon(tmp_path / "a", key_file=old, owner_id="a", archive=f"file://{bucket}", **FAST) as daemon:
        with daemon.client() as client:
            client.thread("t").append("log", 1)
        (left,) = (bucket / "v1/_keys/s").glob("[0-9a-f]*")
        daemon.kill()
        for is_last in (False, True):
            (bucket / "v1").rename(tmp_path / "away")
            (bucket / "v1").write_bytes(b"")  # no directory
            daemon.start()
            (bucket / "v1").unlink()
            (tmp_path / "away").rename(bucket / "v1")
            if not is_last:  # before it could sign in
                daemon.kill()
                assert list((bucket / "v1/_keys/s").glob("[0-9a-f]*")) == [left]
        keys("rotate", *place, "--key-file", old, "--to", f"file:{new}")
        deadline = time.monotonic() + 60
        while left.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert len(list((bucket / "v1/_keys/s").glob("[0-9a-f]*"))) == 1
        assert "a (since" in run("keys", "retire", key_of(daemon), *place, "--key-file", new).err
