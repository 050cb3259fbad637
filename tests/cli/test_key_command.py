"""The danger: a key that is overwritten, read by others or refused; damage that is not told."""

import os
import stat

import pytest
from tests.cli.conftest import run

from stateward.testing import missing_daemon, run_daemon


def test_new_key(tmp_path):
    """A new key file is readable by its owner only, whatever the umask, and never the same twice."""
    before = os.umask(0)
    try:
        answer = run("keys", "new", tmp_path / "a.key")
    finally:
        os.umask(before)
    assert (answer.code, answer.err) == (0, "")
    found = run("keys", "new", tmp_path / "b.key", "--json").json
    assert found["file"] == str(tmp_path / "b.key")
    for name in ("a.key", "b.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert (tmp_path / "a.key").read_text() != (tmp_path / "b.key").read_text()


def test_a_key_is_never_overwritten(tmp_path):
    """An existing file is left as it is, and a directory that is missing is named."""
    path = tmp_path / "a.key"
    path.write_text("precious")
    answer = run("keys", "new", path)
    assert answer.code == 1
    assert "exists already" in answer.error
    assert path.read_text() == "precious"
    answer = run("keys", "new", tmp_path / "missing" / "a.key")
    assert answer.code == 1
    assert "does not exist" in answer.error


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_daemon()), reason=missing_daemon() or "there is a daemon")
def test_the_daemon_takes_the_key(tmp_path):
    """The daemon starts with the key file, and names it by the fingerprint that was told."""
    key = run("keys", "new", tmp_path / "data.key", "--json").json
    with run_daemon(tmp_path / "data") as daemon:  # it looks for the key in data.key
        found = run("--target", daemon.target, "stats", "--json").json
        assert found["server"]["key_id"] == key["key_id"]
        assert found["stats"]["threads"] == 0
        out = run("--target", daemon.target, "stats").out
        assert key["key_id"] in out


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_daemon()), reason=missing_daemon() or "there is a daemon")
def test_damage_is_told(tmp_path):
    """Verify ends with 0 on a whole store, and with 1 and the findings on a damaged one."""
    lmdb = pytest.importorskip("lmdb")
    with run_daemon(tmp_path / "data") as daemon:
        with daemon.client() as client:
            for number in range(5):
                client.thread("t").append("l", number)
        assert run("--target", daemon.target, "verify").code == 0
        assert run("--target", daemon.target, "verify", "t", "--json").json["findings"] == []
        daemon.stop()
        with lmdb.open(str(data_file(tmp_path / "data").parent), map_size=1 << 30, max_dbs=0) as store:
            damage(store)
        daemon.start()
        answer = run("--target", daemon.target, "verify")
        assert answer.code == 1
        assert "CORRUPT" in answer.out
        assert "1 finding in" in answer.error or "findings in" in answer.error
        answer = run("--target", daemon.target, "verify", "--json")
        assert answer.code == 1
        assert '"reason": "CORRUPT"' in answer.out


def data_file(directory):
    return next(directory.rglob("data.mdb"))


def damage(store):
    """Flips a bit in the last journal entry, which ends before the zeros of its row."""
    with store.begin(write=True) as writing:
        entries = [(key, value) for key, value in writing.cursor() if value[:2] == b"SJ"]
        key, value = entries[-1]
        end = len(value.rstrip(b"\0")) - 1
        writing.put(bytes(key), value[:end] + bytes([value[end] ^ 1]) + value[end + 1 :])
