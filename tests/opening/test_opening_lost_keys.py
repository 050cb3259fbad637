"""The danger: a new machine without the key makes another one in silence, and the right key then helps no more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.opening.conftest import end

import stateward
from stateward.testing import missing_daemon

pytestmark = pytest.mark.skipif(bool(missing_daemon()), reason=missing_daemon() or "")


@pytest.fixture
def archive(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive with a thread, whose machine is gone; its key file is `kept`."""
    monkeypatch.setenv("HOME", str(home / "old"))
    (home / "old").mkdir()
    with stateward.open(archive=home / "archive") as client:
        client.thread("t").append("lines", "a", durability="archived")
    end(home / "old/.local/share/stateward/LOCK")
    (home / "old/.config/stateward/key").rename(home / "kept")
    monkeypatch.setenv("HOME", str(home))
    return home / "archive"


def is_read(archive: Path) -> bool:
    with stateward.open(archive=archive) as client:
        return list(client.thread("t").hydrate().logs["lines"]) == ["a"]


def test_no_key_is_made_for_an_archive_that_has_one(home: Path, archive: Path) -> None:
    """The error names the file, and the right key in its place helps."""
    key = home / ".config/stateward/key"
    with pytest.raises(stateward.CannotStart, match="there is no key file") as caught:
        stateward.open(archive=archive)
    assert str(key) in str(caught.value)
    assert "STATEWARD_KEY_FILE" in str(caught.value)
    assert not key.exists()
    key.parent.mkdir(parents=True)
    shutil.copy(home / "kept", key)
    assert is_read(archive)


def test_a_start_that_failed_keeps_no_settings(
    home: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one with a key file that is missing, or with another key; each error names the file."""
    key, kept = home / ".config/stateward/key", home / "kept"
    monkeypatch.setenv("STATEWARD_KEY_FILE", str(home / "typo"))
    with pytest.raises(stateward.CannotStart, match=f"no key file {home}/typo"):
        stateward.open(archive=archive)
    assert not (home / "typo").exists()
    monkeypatch.delenv("STATEWARD_KEY_FILE")
    stateward.open(data_dir=home / "other").close()  # makes a key of its own
    other = key.read_text()
    with pytest.raises(stateward.CannotStart, match=f"the key file {key} does not open") as caught:
        stateward.open(archive=archive)
    assert "STATEWARD_KEY_FILE" in str(caught.value)
    assert key.read_text() == other
    assert not list((home / ".local/share/stateward").glob("daemon.toml"))
    monkeypatch.setenv("STATEWARD_KEY_FILE", str(kept))
    assert is_read(archive)


def test_a_first_start_that_failed_for_another_reason(home: Path) -> None:
    """A start that had made data already binds nobody either."""
    (home / "bucket").mkdir()
    (home / "bucket/file").touch()
    with pytest.raises(stateward.CannotStart):
        stateward.open(archive=home / "bucket/file/archive")
    with stateward.open(archive=home / "archive") as client:
        assert client.thread("t").hydrate().version == 0


def test_a_new_key_is_said_in_the_log(home: Path) -> None:
    """The log names the file, because the data is lost without it."""
    stateward.open().close()
    log = (home / ".local/state/stateward/daemon.log").read_text()
    assert "made a new key file; keep a copy" in log
    assert str(home / ".config/stateward/key") in log
