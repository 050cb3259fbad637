"""The danger: a key management service that is away, refuses, or opens the key of another archive; and a key that lies
in clear where only its wrapped form should."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import run
from tests.keys.conftest import Service
from tests.opening.conftest import end
from tests.start.launch import Ended, start, write_key
from tests.start.launch import run as launch

import stateward
from stateward.admin import Verdict
from stateward.storage.v1.archive_pb2 import ArchiveFormat
from stateward.testing import Daemon, run_daemon
from stateward_sidecar import keytool
from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import KeySource
from stateward_sidecar.storage import kms
from stateward_sidecar.storage.keysource import open_key, unwrap
from stateward_sidecar.storage.wrappedkey import read_wrapped


def made(*arguments: object) -> dict[str, Any]:
    """What `stateward keys` made."""
    answer = run("keys", *arguments, "--json", **variables())
    assert answer.code == 0, answer.err
    found: dict[str, Any] = answer.json
    return found


def variables() -> dict[str, str]:
    """What the services take from the environment."""
    wanted = ("AWS_", "VAULT_", "STATEWARD_VAULT_")
    return {name: value for name, value in os.environ.items() if name.startswith(wanted)}


def key_of(daemon: Daemon) -> str:
    """The key id of a daemon."""
    with daemon.client() as client:
        return client.server_info().key_id


def test_a_daemon_with_a_wrapped_key(tmp_path: Path, service: Service) -> None:
    """The key opens data and archive; two sidecars share both. The archive gets the id that the key is bound to."""
    wrapped = tmp_path / "wrapped.key"
    found = made("new", wrapped, "--with", service.given)
    assert found["provider"] == service.provider
    flags = {"key": f"{service.provider}:{wrapped}", "archive": f"file://{tmp_path}/bucket", "archive_lease": "1"}
    with run_daemon(tmp_path / "one", **flags) as daemon, daemon.client() as client:
        client.thread("t").append("log", "kept")
        client.thread("t").archive.detach()
        daemon.kill()
        daemon.start()
        assert key_of(daemon) == found["key_id"]
        assert read_archive_id(tmp_path / "bucket") == found["archive_id"]
    flags |= {"key": f"file:{wrapped}"}  # the file says itself which service opens it
    with run_daemon(tmp_path / "two", **flags) as daemon, daemon.client() as client:
        assert list(client.thread("t").hydrate().logs["log"]) == ["kept"]
    key = open_key(KeySource(service.provider, str(wrapped))).data
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert key not in data
            assert key.hex().encode() not in data.lower()


def read_archive_id(bucket: Path) -> str:
    """The id of an archive, as its format object says."""
    return ArchiveFormat.FromString((bucket / "v1/_format").read_bytes()).archive_id.hex()


def test_a_key_that_data_have_already(short: Path, service: Service) -> None:
    """A key is wrapped for the archive that it opens; data and archive stay as they are. Another archive is refused,
    and so is a file that says that it is for another one."""
    data, plain, wrapped = short / "data", write_key(short / "plain"), short / "wrapped"
    archive = f"file://{short}/bucket"
    with run_daemon(data, key_file=plain, archive=archive) as daemon, daemon.client() as client:
        client.thread("t").append("log", "kept")
        key_id = key_of(daemon)
    found = made("wrap", plain, wrapped, "--with", service.given, "--archive", archive)
    assert (found["key_id"], found["archive_id"]) == (key_id, read_archive_id(short / "bucket"))
    kept = (short / "bucket/v1/_format").read_bytes()
    (short / "bucket/v1/_format").write_bytes(kept.replace(bytes.fromhex(found["archive_id"]), bytes(16)))
    refused = run("keys", "wrap", plain, short / "no", "--with", service.given, "--archive", archive, **variables())
    assert "_format was changed without" in refused.err
    (short / "bucket/v1/_format").write_bytes(kept)
    with run_daemon(key_file=plain, archive=f"file://{short}/other"):
        pass
    plain.unlink()
    with run_daemon(data, key_file=wrapped, archive=archive) as daemon, daemon.client() as client:
        assert list(client.thread("t").hydrate().logs["log"]) == ["kept"]
    flags = ["--key", f"{service.provider}:{wrapped}", "--key-file", str(wrapped)]
    assert "one setting" in start(short, *flags).line
    other = ["--archive", f"file://{short}/other", "--data-dir", str(short / "more"), *flags[:2]]
    assert "is for the archive" in start_with(short, *other).line
    content = json.loads(wrapped.read_text())
    wrapped.write_text(json.dumps(content | {"archive_id": "0" * 32}))
    assert start_with(short, *flags[:2], "--archive", archive, "--data-dir", str(data)).line
    with pytest.raises(kms.KeyRefused):
        unwrap(read_wrapped(wrapped), wrapped)


def start_with(directory: Path, *flags: str) -> Ended:
    """Starts a daemon that must end, without `--key-file`."""
    command = [sys.executable, "-m", "stateward_sidecar", "--listen", f"unix://{directory}/s.sock", *flags]
    if "--data-dir" not in flags:
        command += ["--data-dir", str(directory / "data")]
    return launch(command, directory, variables())


def test_from_one_service_to_another(
    tmp_path: Path, aws: Service, vault: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapped key moves to another service: the same key, for the same archive."""
    for name, value in {**aws.environment, **vault.environment}.items():
        monkeypatch.setenv(name, value)
    first = made("new", tmp_path / "first", "--with", aws.given)
    second = made("wrap", tmp_path / "first", tmp_path / "second", "--with", vault.given)
    assert first | {"provider": "vault", "key": vault.key, "file": str(tmp_path / "second")} == second
    opened = open_key(KeySource("file", str(tmp_path / "first")))
    assert opened == open_key(KeySource("vault", str(tmp_path / "second")))
    with pytest.raises(StartError, match="awskms has wrapped this key; write awskms:"):
        open_key(KeySource("vault", str(tmp_path / "first")), sleep=never)


def test_a_key_that_stays_in_its_service(
    tmp_path: Path, aws: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapped key goes to another key of AWS KMS, which keeps it for itself. It is the same one, for one archive,
    and the service still authenticates that."""
    way = reached(aws, monkeypatch)
    first, second = tmp_path / "first", tmp_path / "second"
    new = made("new", first, "--with", aws.given)
    assert new["rewrapped"] is False
    to = another_key(aws)
    way.sent.clear()
    moved = made("wrap", first, second, "--with", f"awskms:{to}")
    assert moved == new | {"file": str(second), "key": to, "rewrapped": True}
    assert b"TrentService.ReEncrypt" in way.sent
    assert b"TrentService.Decrypt" not in way.sent
    way.lock()
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", aws.url)
    assert read_wrapped(first).ciphertext != read_wrapped(second).ciphertext
    assert open_key(KeySource("awskms", str(second))) == open_key(KeySource("file", str(first)))
    content = json.loads(second.read_text())
    second.write_text(json.dumps(content | {"archive_id": "0" * 32}))
    with pytest.raises(kms.KeyRefused):
        unwrap(read_wrapped(second), second)


def reached(service: Service, monkeypatch: pytest.MonkeyPatch) -> Way:
    """The way on which the service is reached from now on."""
    way = Way(service.url)
    url = f"http://127.0.0.1:{way.port}"
    for name, value in service.environment.items():
        monkeypatch.setenv(name, url if value == service.url else value)
    return way


def another_key(service: Service, region: str = "eu-central-1") -> str:
    """Another key of AWS KMS."""
    import boto3

    client = boto3.client("kms", endpoint_url=service.url, region_name=region)
    return str(client.create_key()["KeyMetadata"]["Arn"])


@pytest.mark.parametrize("why", ["another region", "another archive", "no right", "Vault"])
def test_a_key_that_must_leave_its_service(
    tmp_path: Path, why: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is opened and wrapped anew then, and the command does not say that it stayed."""
    service: Service = request.getfixturevalue("vault" if why == "Vault" else "aws")
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    first, second = tmp_path / "first", tmp_path / "second"
    new, more = made("new", first, "--with", service.given), []
    to = another_key(service, "us-east-1") if why == "another region" else service.key
    if why == "another archive":
        more = ["--archive", f"file://{tmp_path}/bucket"]
        with run_daemon(key_file=write_key(tmp_path / "plain"), archive=more[1]):
            new["archive_id"] = read_archive_id(tmp_path / "bucket")
    if why == "no right":
        monkeypatch.setattr(kms, "find_kms", without_rewrap(kms.find_kms))
        monkeypatch.setattr("stateward_sidecar.storage.keysource.find_kms", kms.find_kms)
        order = {"with": service.given, "file": str(second), "from": str(first), "archive": ""}
        moved = keytool.wrap(order, os.environ)
    else:
        moved = made("wrap", first, second, "--with", f"{service.provider}:{to}", *more)
    assert moved == new | {"file": str(second), "key": to}
    assert open_key(KeySource("file", str(second))).data == open_key(KeySource("file", str(first))).data


def without_rewrap(find_kms: Callable[[str], kms.Kms]) -> Callable[[str], kms.Kms]:
    """Services that refuse to rewrap."""

    def refuse(wrapped: object, key: str) -> None:
        raise kms.KeyRefused(f"AccessDenied for {key}")

    return lambda provider: replace(find_kms(provider), rewrap=refuse)


def never(seconds: float) -> None:
    """No pause is due."""
    raise AssertionError(seconds)


def test_refusals_do_not_wait(tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that the service does not know, or may not use, and credentials that are missing end the start at once."""
    wrapped = tmp_path / "wrapped"
    made("new", wrapped, "--with", service.given)
    source, content = KeySource(service.provider, str(wrapped)), json.loads(wrapped.read_text())
    strange = {"awskms": content["key"][:-1] + "0" * (content["key"][-1] != "0") + "1" * (content["key"][-1] == "0")}
    for change in (
        {"key": strange.get(service.provider, "transit/nobody")}, {"key_id": "0" * 16},
        {"ciphertext": content["ciphertext"][:-8] + "AAAAAAA="},
    ):  # fmt: skip
        wrapped.write_text(json.dumps(content | change))
        with pytest.raises(StartError):
            open_key(source, sleep=never)
    wrapped.write_text(json.dumps(content))
    for name in service.environment:
        if name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "VAULT_TOKEN"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StartError, match=r"credentials|token"):
        open_key(source, sleep=never)


def test_a_package_that_is_missing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what to install."""
    monkeypatch.setitem(sys.modules, {"awskms": "boto3", "vault": "hvac"}[service.provider], None)
    with pytest.raises(StartError, match=r"pip install .*\[(aws|vault)\]"):
        kms.find_kms(service.provider)


class Way:
    """The way to a service, which can be closed."""

    def __init__(self, url: str) -> None:
        self._to = int(url.rpartition(":")[2])
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.sent = bytearray()
        """What went to the service."""
        self.port = 0
        self.unlock()

    def unlock(self) -> None:
        """Lets connections through, at the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
        self.port, self.is_open = self._listener.getsockname()[1], True
        self._begin(self._serve, self._listener)

    def _begin(self, target: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def lock(self) -> None:
        """Refuses connections."""
        assert self._listener is not None
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._open):
            each.close()
        self._open, self._threads, self.is_open = [], [], False

    def _serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += near, far
                self._begin(partial(_pass_on, sent=self.sent), near, far)
                self._begin(_pass_on, far, near)


def _pass_on(source: socket.socket, sink: socket.socket, sent: bytearray | None = None) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if sent is not None:
                sent += data
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def way(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """The only way to the service."""
    found = Way(service.url)
    for name in ("AWS_ENDPOINT_URL_KMS", "VAULT_ADDR"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{found.port}")
    yield found
    if found.is_open:
        found.lock()


def test_an_outage(tmp_path: Path, service: Service, way: Way) -> None:
    """An outage stops no running daemon, which also stays ready. A start waits until the service answers."""
    wrapped = tmp_path / "wrapped"
    made("new", wrapped, "--with", service.given)
    with run_daemon(tmp_path / "data", key=f"{service.provider}:{wrapped}", log_format="json") as daemon:
        with daemon.client() as client:
            way.lock()
            client.thread("t").append("log", 1)
            assert not client.server_info().not_ready
            found = [each for each in client.diagnose().diagnoses if each.check == "key"]
            assert [each.verdict for each in found] == [Verdict.FAILED]
            client.thread("t").append("log", 2)
        daemon.kill()
        unlocking = threading.Thread(target=unlock_when, args=(way, daemon, "trying again"))
        unlocking.start()
        daemon.start()
        unlocking.join()
        with daemon.client() as client:
            assert list(client.thread("t").hydrate().logs["log"]) == [1, 2]


def unlock_when(way: Way, daemon: Daemon, word: str) -> None:
    """Opens the way once the log of a daemon has a word."""
    deadline = time.monotonic() + 60
    while word not in daemon.stderr and time.monotonic() < deadline:
        time.sleep(0.05)
    way.unlock()


def test_an_outage_that_does_not_end(tmp_path: Path, service: Service, way: Way) -> None:
    """The pauses become longer, up to a limit, and one line says that the service does not answer."""
    wrapped, pauses = tmp_path / "wrapped", list[float]()
    made("new", wrapped, "--with", service.given)
    way.lock()
    source = KeySource(service.provider, str(wrapped))
    with pytest.raises(StartError, match=r"KEY_UNAVAILABLE: .* does not answer"):
        open_key(source, patience_s=30.0, sleep=pauses.append, now=lambda: sum(pauses))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]


def test_a_role_of_vault(tmp_path: Path, vault: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token of Kubernetes, or another JSON Web Token, nobody has to hand out a token of Vault."""
    import hvac
    import jwt
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    client = hvac.Client(vault.url, token="root")
    client.sys.enable_auth_method("jwt")
    client.auth.jwt.configure(jwt_validation_pubkeys=[public])
    client.sys.create_or_update_policy("agents", 'path "transit/+/agents" { capabilities = ["update"] }')
    client.auth.jwt.create_role(
        "sidecar", role_type="jwt", allowed_redirect_uris=[], user_claim="sub", bound_audiences=["vault"],
        token_policies=["agents"],
    )  # fmt: skip
    file = tmp_path / "jwt"
    now = int(time.time())
    file.write_text(jwt.encode({"sub": "pod", "aud": "vault", "iat": now, "exp": now + 600}, key, "ES256"))
    monkeypatch.setenv("VAULT_ADDR", vault.url)
    monkeypatch.delenv("VAULT_TOKEN", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STATEWARD_VAULT_LOGIN", "jwt/sidecar")
    monkeypatch.setenv("STATEWARD_VAULT_JWT_FILE", str(file))
    made("new", tmp_path / "wrapped", "--with", vault.given)
    assert open_key(KeySource("vault", str(tmp_path / "wrapped")), sleep=never).data
    file.write_text(jwt.encode({"sub": "pod", "aud": "other", "iat": now, "exp": now + 600}, key, "ES256"))
    with pytest.raises(kms.KeyRefused):
        unwrap(read_wrapped(tmp_path / "wrapped"), tmp_path)


def test_open_keeps_the_source(short: Path, aws: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stateward.open()` starts the daemon with the source of STATEWARD_KEY, and gives it what the service asks for."""
    data, wrapped = short / "data", short / "wrapped"
    given = {**aws.environment, "STATEWARD_KEY": f"awskms:{wrapped}", "HOME": str(short), "XDG_RUNTIME_DIR": str(short)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = made("new", wrapped, "--with", aws.given)
    try:
        for again in range(2):
            with stateward.open(data_dir=data) as client:
                assert client.server_info().key_id == found["key_id"]
            end(data / "LOCK")
            if not again:
                monkeypatch.delenv("STATEWARD_KEY")
        assert not list(short.rglob("*/key"))
    finally:
        end(data / "LOCK")
