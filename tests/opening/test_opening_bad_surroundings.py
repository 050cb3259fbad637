"""The danger: a program that hangs, or is lied to, because the machine is not as `open` expects. One line each."""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import stateward
from stateward._version import VERSION
from stateward.opening import launch, places, settings
from stateward.opening.files import FileLock
from stateward.opening.places import Place, find_place, find_sockets
from stateward.opening.record import find_live

OTHER_USER = 12345


@pytest.fixture(autouse=True)
def fresh_homes() -> Iterator[None]:
    """These tests change the directories of the user, which the process looks up once."""
    places._bases.cache_clear()
    yield
    places._bases.cache_clear()


def no_home(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Where HOME is a file, as where it cannot be written, no data directory can be made."""
    (home / "file").touch()
    patch.setenv("HOME", str(home / "file"))


def nobodys_home(home: Path, patch: pytest.MonkeyPatch) -> None:
    """HOME is not set, and the user is in no list, as in a container that runs as any user."""

    def find(_user: int) -> None:
        raise KeyError

    patch.delenv("HOME")
    patch.setattr("pwd.getpwuid", find)


def no_locks(home: Path, patch: pytest.MonkeyPatch) -> None:
    """A network file system that keeps no locks."""

    def lock(_file: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    patch.setattr("fcntl.flock", lock)


def read_only(home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("HOME", "/proc/sys")


def anothers_data(home: Path, patch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    data = home / ".local/share/stateward"
    data.mkdir(parents=True)
    os.chown(data, OTHER_USER, -1)


def fifo(name: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def make(home: Path, patch: pytest.MonkeyPatch) -> None:
        path = home / ".local/share/stateward" / name
        path.parent.mkdir(parents=True)
        (path.parent.parent if name.startswith("run/") else path.parent).joinpath("data.mdb").touch()
        os.mkfifo(path)

    return make


def linked(name: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def make(home: Path, patch: pytest.MonkeyPatch) -> None:
        path = home / ".local/share/stateward" / name
        path.parent.mkdir(parents=True)
        path.symlink_to(home / "elsewhere")

    return make


def linked_run(home: Path, patch: pytest.MonkeyPatch) -> None:
    linked("run")(home, patch)
    (home / "elsewhere").mkdir()


def anothers_run(home: Path, patch: pytest.MonkeyPatch) -> None:
    """The short directory in /tmp is there, and everybody may write it."""
    patch.setattr(places, "_SHORT", home)
    patch.setenv("STATEWARD_DATA_DIR", str(home / ("d" * 110)))
    (home / f"stateward-{os.geteuid()}").mkdir()
    (home / f"stateward-{os.geteuid()}").chmod(0o777)


def no_extra(home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(launch, "NEEDED", ("stateward_sidecar", "no_such_package"))


def frozen(home: Path, patch: pytest.MonkeyPatch) -> None:
    """A program of PyInstaller: what it calls its interpreter is the program itself."""
    patch.setattr(sys, "frozen", True, raising=False)


def being_started(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Another process has begun to start the daemon, and was stopped."""
    data = home / ".local/share/stateward"
    data.mkdir(parents=True)
    lock = FileLock(data / "start.lock")
    assert lock.take()
    lock.note("4711\n")
    patch.setattr(places, "_KEPT_BY_TEST", lock, raising=False)


def ending(home: Path, patch: pytest.MonkeyPatch) -> None:
    """A daemon that is idle has the lock of its users, and was stopped before it ended."""
    data = home / ".local/share/stateward"
    data.mkdir(parents=True)
    lock = FileLock(data / "users.lock")
    assert lock.take()
    patch.setattr(places, "_KEPT_BY_TEST", lock, raising=False)


def wrong_file(home: Path, patch: pytest.MonkeyPatch) -> None:
    data = home / ".local/share/stateward"
    data.mkdir(parents=True)
    (data / "data.mdb").touch()
    (data / "daemon.toml").write_text("archive = [")


SURROUNDINGS: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], None], str]] = {
    "a home that is a file": (no_home, "cannot make the data directory"),
    "a home that cannot be written": (read_only, "cannot make the data directory"),
    "no home": (nobodys_home, "has no home directory"),
    "a file system without locks": (no_locks, "cannot be locked: No locks available"),
    "data of another user": (anothers_data, f"belongs to user {OTHER_USER}"),
    "a FIFO for the users": (fifo("users.lock"), "is not a regular file"),
    "a FIFO for the starters": (fifo("start.lock"), "is not a regular file"),
    "a FIFO that says where": (fifo("daemon.json"), "is not a regular file"),
    "a FIFO with settings": (fifo("daemon.toml"), "is not a regular file"),
    "a FIFO for a directory": (fifo("run"), "is not a directory"),
    "a link that says where": (linked("daemon.json"), "is a symbolic link"),
    "a link for the lock": (linked("users.lock"), "is a symbolic link"),
    "a link for the directory of the socket": (linked_run, "is not a directory"),
    "a short directory that all may write": (anothers_run, "mode 0777"),
    "no extra": (no_extra, "pip install '.[sidecar]'"),
    "a frozen program": (frozen, "has no Python interpreter"),
    "a starter that stands still": (being_started, "process 4711 starts the daemon"),
    "a daemon that stands still at its end": (ending, "is ending"),
    "settings that are none": (wrong_file, "is not TOML"),
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_each_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """`open` raises CannotStart with one line that names what is wrong, after no more than its patience."""
    make, said = SURROUNDINGS[name]
    make(home, monkeypatch)
    with pytest.raises(stateward.CannotStart) as caught:
        stateward.open(connect_timeout=0.2)
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert not list(home.rglob("LOCK"))  # no daemon was started


def limited(kind: int, limit: int) -> subprocess.CompletedProcess[str]:
    code = (
        "import stateward, stateward._sync.client, stateward.opening.clients, resource, sys\n"
        f"resource.setrlimit({kind}, ({limit}, {limit}))\n"
        "try:\n"
        "    with stateward.open(connect_timeout=100) as client:\n"
        "        client.thread('t').append('lines', 'a')\n"
        "except stateward.CannotStart as error:\n"
        "    sys.exit(f'one line: {error}')\n"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_a_full_disk_is_one_line(home: Path) -> None:
    """Nothing can be written: the error says which file, and nobody waits."""
    done = limited(resource.RLIMIT_FSIZE, 0)
    assert done.returncode == 1
    assert "daemon.toml: File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_few_descriptors_are_enough_or_one_line(home: Path) -> None:
    """With 32 descriptors, `open` works or says why not, and the program ends."""
    done = limited(resource.RLIMIT_NOFILE, 32)
    assert done.returncode == 0 or "one line: " in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def write_record(place: Place, **facts: object) -> None:
    here = place.data_dir.stat()
    told = {
        "pid": os.getpid(), "start_time": "2026-01-01T00:00:00+00:00", "target": f"unix://{place.data_dir}/s",
        "version": VERSION, "idle_exit_s": 900.0, "archive": "", "directory": f"{here.st_dev}:{here.st_ino}",
    }  # fmt: skip
    # By a rename, as the daemon does it: a client that looks for its daemon must not meet half a file.
    written = place.daemon_file.with_suffix(".new")
    written.write_text(json.dumps({**told, **facts}))
    written.replace(place.daemon_file)


def test_only_the_daemon_of_the_data_is_believed(short: Path) -> None:
    """Not believed are: nobody who listens, a stranger at the old socket, the old pid of a stranger, the record of the
    directory that this one is a copy of, and what is no record."""
    place = replace(find_place(short / "data"), data_dir=short)
    write_record(place)
    assert find_live(place) is None  # nobody listens, though the pid lives
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short / "s"))
        listener.listen()
        found = find_live(place)
        assert found is not None
        assert found.pid == os.getpid()
        write_record(place, directory="1:1")
        assert find_live(place) is None
        if sys.platform == "linux":
            write_record(place, pid=os.getppid())
            assert find_live(place) is None
        for content in ("", "{}", "[", '{"pid": "x"}'):
            place.daemon_file.write_text(content)
            assert find_live(place) is None


def test_a_daemon_that_stands_still_holds_nobody_for_ever(home: Path) -> None:
    """The daemon was stopped (SIGSTOP): `open` finds it, and the first call ends in time with an error of its own."""
    place = find_place(home / "data")
    place.data_dir.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.data_dir / "s"))
        listener.listen()
        write_record(place)
        begun = time.monotonic()
        with (
            stateward.open(data_dir=place.data_dir, connect_timeout=0.3, call_timeout=0.3) as client,
            pytest.raises((stateward.ServerUnavailable, stateward.errors.DeadlineExceeded)),
        ):
            client.thread("t").hydrate()
        assert time.monotonic() - begun < 30
        # A newer and an older daemon are used and named: nobody but their own clients' starters may stop them.
        for version, advice in (("999.0.0", "upgrade this client"), ("0.0.1", "stateward stop")):
            write_record(place, version=version, idle_exit_s=0.0)
            with pytest.warns(stateward.OtherVersion, match=advice) as told:
                stateward.open(data_dir=place.data_dir).close()
            assert version in str(told[0].message)
            assert told[0].filename == __file__
        write_record(place, archive="s3://one/two")
        with pytest.raises(stateward.OtherSettings, match=r"s3://other.*s3://one/two"):
            stateward.open(data_dir=place.data_dir, archive="s3://other")
        stateward.open(data_dir=place.data_dir, archive="s3://one/two/").close()


def test_sockets_lie_where_the_rules_say(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime directory if it is the user's own and the data are the default ones; else beside the data; else in a
    short directory of the user's own; and first of all where it was before."""
    runtime = home / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    place = find_place(None)
    place.data_dir.mkdir(parents=True)
    beside = place.data_dir / "run/stateward.sock"
    assert list(find_sockets(place, "")) == [runtime / "stateward/stateward.sock", beside]
    assert next(find_sockets(place, f"unix://{home}/kept.sock")) == home / "kept.sock"
    other = find_place(home / "other")
    other.data_dir.mkdir()
    assert list(find_sockets(other, "")) == [home / "other/run/stateward.sock"]
    runtime.chmod(0o770)
    assert list(find_sockets(find_place(None), "")) == [beside]
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert find_place(None).runtime_dir is None
    monkeypatch.setattr(places, "_SHORT", home)
    deep = find_place(home / ("d" * 200))
    deep.data_dir.mkdir()
    (path,) = find_sockets(deep, "")
    assert path.parent == home / f"stateward-{os.geteuid()}"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(os.fsencode(path)) <= 104


def test_the_home_of_the_user_does_without_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without HOME, as under cron or systemd, the data lie in the home directory of the user."""
    monkeypatch.setattr("pwd.getpwuid", lambda user: SimpleNamespace(pw_dir=f"/home/{user}"))
    assert find_place(None, {}).data_dir == Path(f"/home/{os.geteuid()}/.local/share/stateward")


def test_the_environment_is_clean() -> None:
    """Secrets of the agent stay with it; those of the archive go only to a daemon that has it."""
    given = {
        "OPENAI_API_KEY": "1", "ANTHROPIC_API_KEY": "1", "AWS_SECRET_ACCESS_KEY": "2", "GOOGLE_API_KEY": "3",
        "AZURE_STORAGE_KEY": "4", "HOME": "h", "XDG_DATA_HOME": "x", "STATEWARD_GRACE": "3", "https_proxy": "p",
        "SSL_CERT_FILE": "c", "PYTHONPATH": "lib:/abs", "LD_PRELOAD": "l", "HOMEBREW": "b",
    }  # fmt: skip
    common = {"HOME", "XDG_DATA_HOME", "STATEWARD_GRACE", "https_proxy", "SSL_CERT_FILE", "PYTHONPATH"}
    assert set(launch.clean_environment("", given)) == common
    assert set(launch.clean_environment("s3://b/p", given)) == {*common, "AWS_SECRET_ACCESS_KEY"}
    assert set(launch.clean_environment("az://b/p", given)) == {*common, "AZURE_STORAGE_KEY"}
    assert launch.clean_environment("", given)["PYTHONPATH"] == f"{Path.cwd()}/lib:/abs"


def test_settings_of_the_first_start_are_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later starts use them, and whoever asks for others is told both. A first start that made no data binds nobody."""
    place = find_place(home / "data")
    place.data_dir.mkdir()
    first = settings.read_asked("s3://one/two")
    settings.keep(place, first, "unix:///a")
    assert settings.read_kept(place) is None
    name = 'odd "name" \\ \N{PILE OF POO}\x7f'
    monkeypatch.setenv("STATEWARD_KEY_FILE", str(home / name))
    kept = settings.keep(place, settings.read_asked(home / "bucket"), "unix:///a")
    (place.data_dir / "data.mdb").touch()
    assert settings.read_kept(place) == kept
    assert kept == {"archive": (home / "bucket").as_uri(), "key_file": str(home / name), "listen": "unix:///a"}
    assert settings.keep(place, settings.Asked(), "unix:///b") == kept
    with pytest.raises(stateward.OtherSettings, match=r"s3://one/two.*/bucket"):
        settings.keep(place, first, "unix:///a")
    monkeypatch.setenv("STATEWARD_KEY_FILE", str(home / "other"))
    with pytest.raises(stateward.OtherSettings, match="key_file"):
        settings.check_kept(place, settings.read_asked(None))
