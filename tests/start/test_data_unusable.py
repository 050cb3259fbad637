"""The danger: a daemon that is started with a wrong key, or on data that it does not know, makes a new store over the
old one."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest
from tests.start.launch import Ended, start, write_key

from stateward.storage.v1.head_pb2 import StoreFormat
from stateward.testing import run_daemon
from stateward_sidecar.errors import DirectoryInUse, StartError
from stateward_sidecar.storage.engine import FORMAT
from stateward_sidecar.storage.files import DirectoryLock
from stateward_sidecar.storage.layout import FORMAT_KEY

pytestmark = pytest.mark.usefixtures("begun_warm")

MAP_BYTES = 1 << 30


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with data of a daemon that has stopped: data, key."""
    place = tmp_path_factory.mktemp("original")
    with run_daemon(place / "data") as daemon:
        with daemon.client() as client:
            thread = client.thread("t")
            state = thread.hydrate()
            state.slots["goal"] = "Paris"
            thread.save(state)
        assert daemon.stop() == 0
    (place / "data.key").rename(place / "key")
    return place


@pytest.fixture
def made(short: Path, original: Path) -> Path:
    """A copy of it for each test."""
    return shutil.copytree(original, short, dirs_exist_ok=True)


def fingerprint(directory: Path) -> dict[str, str]:
    names = ("data.mdb", "keys")
    return {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in names}


def change_format(directory: Path, change: Callable[[StoreFormat], None]) -> None:
    with lmdb.open(str(directory), map_size=MAP_BYTES) as env, env.begin(write=True) as txn:
        found = StoreFormat.FromString(txn.get(FORMAT_KEY))
        change(found)
        txn.put(FORMAT_KEY, found.SerializeToString())


def refused(directory: Path, *flags: str) -> Ended:
    """Starts on data, and checks that they are as before."""
    before = fingerprint(directory / "data")
    ended = start(directory, *flags)
    assert fingerprint(directory / "data") == before
    return ended


def test_a_directory_in_use_is_refused_and_its_owner_goes_on(short: Path) -> None:
    """A second daemon on the same data says which process holds them, and the first one does not notice."""
    with run_daemon(short / "data") as daemon, daemon.client() as client:
        shutil.copy(short / "data.key", short / "key")
        line = start(short).line
        assert "in use" in line
        assert str(daemon.pid) in line
        assert client.thread("t").hydrate().version == 0


def test_the_data_of_a_killed_daemon_are_free(made: Path) -> None:
    """After SIGKILL nothing has to be cleared away: lock and socket of the dead are taken over."""
    shutil.copy(made / "key", made / "data.key")
    with run_daemon(made / "data") as daemon:
        daemon.kill()
        assert daemon.socket.exists()
        daemon.start()
        with daemon.client() as client:
            assert client.thread("t").hydrate().version == 1


def test_a_wrong_key_is_refused(made: Path) -> None:
    """Another key is KEY_UNAVAILABLE at start, never an empty store."""
    write_key(made / "other")
    line = refused(made, "--key-file", str(made / "other")).line
    assert "KEY_UNAVAILABLE" in line
    assert "--key-file" in line


def test_an_archive_of_another_key_ties_no_directory_to_it(short: Path) -> None:
    """A new sidecar with the URL of somebody else's archive is told so, and starts once it has its own."""
    bucket = f"file://{short}/theirs"
    with run_daemon(short / "theirs-data", archive=bucket):
        pass
    line = start(short, "--archive", bucket).line
    assert "does not open the archive" in line
    assert not (short / "data" / "keys").exists()
    shutil.copy(short / "key", short / "data.key")
    with run_daemon(short / "data", archive=f"file://{short}/own") as daemon, daemon.client() as client:
        assert client.thread("t").hydrate().version == 0


def test_a_missing_key_is_refused_and_not_made_anew(made: Path) -> None:
    """Where there are data, a key file that is not there is an error; a fresh one would lock them for ever."""
    line = refused(made, "--key-file", str(made / "none")).line
    assert str(made / "none") in line
    assert not (made / "none").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"ab" * 31, b"ab" * 33, b"zz" * 32, bytes(range(32))])
def test_a_key_file_that_holds_no_key_is_refused(made: Path, content: bytes) -> None:
    """Anything but 64 hex digits is refused, and the line does not show what was in the file."""
    (made / "key").write_bytes(content)
    line = refused(made).line
    assert "64 hex digits" in line
    assert not content or content.decode(errors="replace") not in line


def test_a_key_file_that_cannot_be_read_is_refused(made: Path) -> None:
    """A key file without permission, or a directory in its place, is named with the system's reason."""
    (made / "key").unlink()
    (made / "key").mkdir()
    assert "cannot read the key file" in refused(made).line


def test_a_key_file_inside_the_data_is_refused(made: Path) -> None:
    """A copy of the data must not hold the key with it."""
    assert "data directory" in refused(made, "--key-file", str(made / "data" / "key")).line


NEWER = FORMAT + 1


@pytest.mark.parametrize(
    "change",
    [
        lambda found: setattr(found, "min_reader", NEWER),
        lambda found: setattr(found, "min_writer", NEWER),
        lambda found: setattr(found, "format", 0),
    ],
)
def test_an_unknown_format_is_refused(made: Path, change: Callable[[StoreFormat], None]) -> None:
    """Data that ask for a newer reader or writer, or say no format, are left alone."""
    change_format(made / "data", change)
    assert "format" in refused(made).line


def test_a_newer_format_that_old_writers_may_write_is_opened(made: Path) -> None:
    """Only min_reader and min_writer decide: a higher `format` alone is no reason to refuse."""
    change_format(made / "data", lambda found: setattr(found, "format", 7))
    shutil.copy(made / "key", made / "data.key")
    with run_daemon(made / "data") as daemon, daemon.client() as client:
        assert client.thread("t").hydrate().version == 1


@pytest.mark.parametrize("content", [b"\xff\xff", b""])
def test_a_damaged_format_record_is_refused(made: Path, content: bytes) -> None:
    """A format record that cannot be read is never taken for a new store."""
    with lmdb.open(str(made / "data"), map_size=MAP_BYTES) as env, env.begin(write=True) as txn:
        txn.put(FORMAT_KEY, content)
    assert "format" in refused(made).line


def test_a_counter_that_cannot_be_read_is_refused(made: Path) -> None:
    """A damaged counter of threads is one line, not a traceback."""
    with lmdb.open(str(made / "data"), map_size=MAP_BYTES) as env, env.begin(write=True) as txn:
        txn.put(b"Mthread", b"\x01")
    assert refused(made).line


def test_a_file_that_is_no_store_is_refused(made: Path) -> None:
    """Garbage, and another program's LMDB, are not touched."""
    (made / "data" / "data.mdb").write_bytes(b"garbage" * 9999)
    assert "data.mdb" in refused(made).line
    (made / "data" / "data.mdb").unlink()
    with lmdb.open(str(made / "data"), map_size=MAP_BYTES) as env, env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
    assert "not a Stateward store" in refused(made).line


@pytest.mark.parametrize("content", [b"", b"SWKEYS", b"SWKEYS\x01", b"garbage" * 99, b"SWKEYS\x02" + bytes(300)])
def test_a_key_store_that_cannot_be_read_is_refused(made: Path, content: bytes) -> None:
    """A key store that is empty, cut off, foreign or newer is one line."""
    (made / "data" / "keys").write_bytes(content)
    assert str(made / "data") in refused(made).line


def test_a_missing_key_store_is_refused(made: Path) -> None:
    """Data without their key store are KEY_UNAVAILABLE: a new one would make them unreadable and look empty."""
    (made / "data" / "keys").unlink()
    assert "KEY_UNAVAILABLE" in start(made).line
    assert not (made / "data" / "keys").exists()


def test_keys_without_their_data_are_refused(made: Path) -> None:
    """A lost data.mdb beside the keys of its threads is no new store: agents would begin from nothing."""
    (made / "data" / "data.mdb").unlink()
    keys = (made / "data" / "keys").read_bytes()
    assert "data.mdb was lost" in start(made).line
    assert "data.mdb was lost" in start(made).line
    assert (made / "data" / "keys").read_bytes() == keys


def test_a_directory_in_place_of_the_key_store_is_refused(made: Path) -> None:
    """An operating system error is told in one line as well."""
    (made / "data" / "keys").unlink()
    (made / "data" / "keys").mkdir()
    assert "keys" in start(made).line


def test_a_data_directory_that_is_a_file_is_refused(short: Path) -> None:
    """A file in the place of the directory, or above it, is named."""
    (short / "data").write_text("x")
    assert str(short / "data") in start(short).line
    assert "Not a directory" in start(short, "--data-dir", str(short / "data" / "deep")).line


@pytest.fixture
def read_only(made: Path) -> Iterator[Path]:
    """The data on a file system that takes no writes."""
    data = made / "data"
    if os.geteuid() != 0:
        data.chmod(0o500)
        yield made
        data.chmod(0o700)
        return
    for command in (["mount", "--bind", str(data), str(data)], ["mount", "-o", "remount,bind,ro", str(data)]):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            subprocess.run(["umount", str(data)], capture_output=True, check=False)
            pytest.skip("file systems cannot be mounted here")
    yield made
    subprocess.run(["umount", str(data)], check=True)


def test_a_data_directory_without_write_permission_is_refused(read_only: Path) -> None:
    """Where nothing can be written the daemon does not start."""
    assert str(read_only / "data") in refused(read_only).line


def test_a_file_system_without_locks_is_named(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system that keeps no locks is not taken for a data directory in use."""

    def lock(_file: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", lock)
    with pytest.raises(StartError, match=r"cannot lock .*LOCK: No locks available") as caught:
        DirectoryLock(short)
    assert not isinstance(caught.value, DirectoryInUse)
