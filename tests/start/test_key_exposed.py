"""The danger: a secret that everybody on the machine can read, or data that everybody can destroy, and a daemon that
starts all the same."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.start.launch import start, write_key

from stateward.testing import run_daemon
from stateward_sidecar.storage.exposure import ACCESS, DATA, KEY, TLS_KEY, TOKENS, Kind, find_exposure

MODES = {
    0o600: "", 0o400: "", 0o440: "", 0o640: "", 0o660: "its group can change it",
    0o644: "every user", 0o604: "every user", 0o602: "every user", 0o601: "every user",
}  # fmt: skip


@pytest.mark.parametrize("kind", [KEY, TOKENS, ACCESS, TLS_KEY], ids=lambda kind: kind.name)
def test_modes(tmp_path: Path, kind: Kind) -> None:
    """The last three bits of the mode are nobody's. A group may read it, as that of a secret of Kubernetes does."""
    path = tmp_path / "secret"
    path.touch()
    for mode, told in MODES.items():
        path.chmod(mode)
        found = find_exposure(path, kind)
        assert (found.said if found else "").find(told) >= 0
        assert bool(found) == bool(told)
        assert bool(found and found.is_to_all) == bool(mode & 0o007)


def test_modes_of_the_data_directory(tmp_path: Path) -> None:
    """Others may look at it, and the group of a volume may do what it likes. Nobody else may write."""
    path = tmp_path / "data"
    path.mkdir()
    for mode in (0o700, 0o750, 0o755, 0o770, 0o2770, 0o775):
        path.chmod(mode)
        assert find_exposure(path, DATA) is None
    for mode in (0o777, 0o1777, 0o702):
        path.chmod(mode)
        found = find_exposure(path, DATA)
        assert found is not None
        assert found.is_to_all
        assert found.advice == f"chmod o-w {path}"
    assert find_exposure(tmp_path / "gone", DATA) is None


def _key(place: Path) -> tuple[Path, dict[str, Any]]:
    return write_key(place / "data.key"), {}


def _tokens(place: Path) -> tuple[Path, dict[str, Any]]:
    path = place / "tokens"
    path.write_text("t" * 40)
    return path, {"token_file": path}


def _access(place: Path) -> tuple[Path, dict[str, Any]]:
    path = place / "access.toml"
    path.write_text('[[principal]]\nname = "me"\nuid = 7\ngrants = ["read */*"]\n')
    return path, {"access": path}


def _tls_key(place: Path) -> tuple[Path, dict[str, Any]]:
    authority = Authority(place)
    own = authority.sign("daemon")
    flags = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": authority.path}
    return own.key, {**flags, "listen": "127.0.0.1:0?tls"}


def _data(place: Path) -> tuple[Path, dict[str, Any]]:
    path = place / "data"
    path.mkdir()
    return path, {}


@pytest.mark.parametrize("make", [_key, _tokens, _access, _tls_key, _data], ids=lambda make: make.__name__[1:])
def test_a_start_stops(short: Path, make: Callable[[Path], tuple[Path, dict[str, Any]]]) -> None:
    """One line names the file, its mode and a command. Nothing is made before. The command ends it, and so does
    `--allow-exposed-secrets`, with a warning."""
    path, settings = make(short)
    path.chmod(mode := 0o777 if path.is_dir() else 0o644)
    settings.setdefault("key_file", write_key(short / "data.key"))
    flags = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    line = start(short, *flags).line
    assert f"{path} has mode {mode:04o}: every user of this machine can" in line
    assert "--allow-exposed-secrets" in line
    assert not (short / "data/keys").exists()
    with run_daemon(short / "data", allow_exposed_secrets=True, **settings) as daemon:
        assert daemon.stderr.count(f"has mode {mode:04o}") == 1
    command = line.partition("Run: ")[2].partition(";")[0]
    subprocess.run(command.split(), check=True)
    with run_daemon(short / "data", **settings) as daemon:
        assert "has mode" not in daemon.stderr


def test_the_group_is_told(tmp_path: Path) -> None:
    """A key that its group can change: the daemon warns at its start, and whoever asks for its state is told too."""
    path = write_key(tmp_path / "key")
    path.chmod(0o660)
    with run_daemon(key_file=path) as daemon, daemon.client() as client:
        (warning,) = client.server_info().warnings
        assert f"the key file {path} has mode 0660" in warning
        assert "chmod g-w" in warning
        assert daemon.stderr.count("has mode 0660") == 1
