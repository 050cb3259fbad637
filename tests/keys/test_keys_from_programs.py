"""The danger: a key that is shown where it came from, or a source that is mistaken for another one."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest
from tests.keys.test_keys_in_services import key_of, never, start_with
from tests.start.launch import write_key

from stateward.testing import run_daemon
from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import KeySource, load_settings
from stateward_sidecar.storage import keysource
from stateward_sidecar.storage.exposure import find_exposure, kind_of_key
from stateward_sidecar.storage.keysource import open_key
from stateward_sidecar.storage.secretfiles import fingerprint

KEY = secrets.token_hex(32)


def program(path: Path, text: str) -> str:
    """A program in Python, as a command."""
    path.write_text(text)
    return f"{sys.executable} {path}"


@pytest.mark.parametrize("kind", ["file", "env", "command"])
def test_sources(short: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same key from a file, a variable and a program opens the same data; the programs do not see the variable."""
    monkeypatch.setenv("MY_KEY", KEY)
    (short / "key").write_text(KEY)
    line = program(short / "print key.py".replace(" ", "-"), f"print('{KEY}')")
    source = {"file": f"file:{short}/key", "env": "env:MY_KEY", "command": f"command:{line}"}[kind]
    with run_daemon(short / "data", key_file=short / "key") as daemon, daemon.client() as client:
        client.thread("t").append("log", 1)
    with run_daemon(short / "data", key=source) as daemon, daemon.client() as client:
        assert key_of(daemon) == fingerprint(bytes.fromhex(KEY))
        assert list(client.thread("t").hydrate().logs["log"]) == [1]
        assert KEY not in daemon.stderr
        assert not client.server_info().not_ready
        (found,) = [each for each in client.diagnose().diagnoses if each.check == "key"]
        assert not found.advice, found


def test_a_variable_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that the daemon starts finds no key in its environment."""
    monkeypatch.setattr(keysource, "_taken", {})
    monkeypatch.setenv("MY_KEY", KEY)
    for _ in range(2):  # the doctor opens it again
        assert open_key(KeySource("env", "MY_KEY")).data == bytes.fromhex(KEY)
        assert "MY_KEY" not in os.environ


def test_programs_that_fail(tmp_path: Path) -> None:
    """One that fails is started again, and its last words are told; what it prints never is."""
    line = program(tmp_path / "p.py", "import sys; print('halfkey'); sys.exit('no route\\nto the vault')")
    pauses = list[float]()
    with pytest.raises(StartError) as failed:
        open_key(KeySource("command", line), patience_s=4.0, sleep=pauses.append, now=lambda: sum(pauses))
    assert pauses == [0.5, 1.0, 2.0]
    assert "to the vault" in failed.value.message
    assert "halfkey" not in failed.value.message
    for text in ("print('secret-words')", "pass", f"print('{KEY}' * 2)"):
        with pytest.raises(StartError, match="does not hold a key") as failed:
            open_key(KeySource("command", program(tmp_path / "p.py", text)), sleep=never)
        assert "secret-words" not in failed.value.message
        assert KEY not in failed.value.message
    for wrong in ("/no/such/program", "'"):
        with pytest.raises(StartError, match="command:"):
            open_key(KeySource("command", wrong), sleep=never)


def test_a_key_in_the_place_of_a_source(short: Path) -> None:
    """A key that somebody gives as the setting itself is refused and not repeated."""
    for value in (KEY, f"hex:{KEY}", "file:", "env: ", "awskms"):
        line = start_with(short, "--key", value).line
        assert "write file:PATH" in line
        assert KEY not in line


def test_the_nearest_source_counts(short: Path) -> None:
    """`--key` and `--key-file` are one setting: a flag wins over a variable, and that over the settings file."""
    file = short / "settings.toml"
    file.write_text(f'key_file = "{short}/a"\n')
    home = {"HOME": str(short)}

    def found(flags: list[str], **variables: str) -> tuple[str, str]:
        key = load_settings(["--config", str(file), *flags], {**home, **variables})[0].key
        return key.kind, key.value

    assert found([]) == ("file", f"{short}/a")
    assert found([], STATEWARD_KEY="env:NAME") == ("env", "NAME")
    assert found(["--key-file", f"{short}/b"], STATEWARD_KEY="env:NAME") == ("file", f"{short}/b")
    assert found(["--key", "vault:/w"], STATEWARD_KEY_FILE=f"{short}/b") == ("vault", "/w")
    with pytest.raises(StartError, match="one setting"):
        found([], STATEWARD_KEY_FILE=f"{short}/b", STATEWARD_KEY="env:NAME")


def test_a_wrapped_key_is_no_secret(tmp_path: Path) -> None:
    """Everybody may read a wrapped key file, and nobody else may change it. One that is cut or of another form is told
    by its field."""
    path = tmp_path / "wrapped"
    content = '{"stateward_wrapped_key": 1, "provider": "vault", "key": "k", "archive_id": "%s", "key_id": "%s"}'
    for text, field in (
        ("{", "not a wrapped"), ('{"stateward_wrapped_key": 2}', "format 2"), ("{}", "not a wrapped"),
        (content % ("0" * 32, "0" * 16), "ciphertext"),
        (content.replace("}", ', "ciphertext": "?"}') % ("x", "y"), "32"),
        (content.replace("vault", "other").replace("}", ', "ciphertext": "?"}') % ("x", "y"), "provider"),
        (content.replace("}", ', "ciphertext": "?"}') % ("0" * 32, "0" * 16), "base64"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(StartError, match=field):
            open_key(KeySource("file", str(path)), sleep=never)
    path.chmod(0o644)
    assert find_exposure(path, kind_of_key(path)) is None
    path.chmod(0o666)
    assert find_exposure(path, kind_of_key(path)).is_to_all
    assert find_exposure(write_key(tmp_path / "key"), kind_of_key(tmp_path / "key")) is None
