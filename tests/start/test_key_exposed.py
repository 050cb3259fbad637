"""The danger: a key that everybody on the machine can read, and nobody who says so."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from stateward.testing import run_daemon
from stateward_sidecar.storage.secretfiles import find_exposure


@pytest.mark.parametrize(
    ("mode", "told"),
    [(0o600, ""), (0o400, ""), (0o440, ""), (0o640, ""), (0o644, "every user"), (0o604, "every user"),
     (0o602, "every user"), (0o660, "its group can change it")],
)  # fmt: skip
def test_modes(tmp_path: Path, mode: int, told: str) -> None:
    """What others may do with the key is told; a group may read it, as that of a secret of Kubernetes does."""
    path = tmp_path / "key"
    path.touch()
    path.chmod(mode)
    found = find_exposure(path)
    assert bool(found) == bool(told)
    assert told in found


def test_daemon_says_it(tmp_path: Path) -> None:
    """The daemon warns at its start, and whoever asks for its state is told too."""
    path = tmp_path / "key"
    path.write_text(secrets.token_hex(32))
    path.chmod(0o644)
    with run_daemon(key_file=path) as daemon, daemon.client() as client:
        (warning,) = client.server_info().warnings
        assert f"the key file {path} has mode 0644" in warning
        assert "chmod 600" in warning
        assert daemon.stderr.count("has mode 0644") == 1
