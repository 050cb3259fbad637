"""The danger: a call without a valid token is served, or a caller with one is locked out."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests import warm
from tests.daemon.framed import FramedChannel
from tests.daemon.process import eventually

from stateward import AsyncClient, Client
from stateward._io.stubs import bind_methods
from stateward._io.token import resolve_token
from stateward.errors import Unauthenticated
from stateward.testing import Daemon, run_daemon
from stateward.v1 import admin_service_pb2
from stateward_sidecar.app import warnings_of
from stateward_sidecar.settings import load_settings

OLD, NEW = "old-" + "0" * 20, "new-" + "1" * 20


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(f"{OLD}\n")
    return path


@pytest.fixture(scope="module")
def daemon(tokens: Path) -> Iterator[Daemon]:
    with run_daemon(token_file=tokens) as running:
        yield running


@pytest.mark.parametrize("connect", [grpc.insecure_channel, FramedChannel], ids=["grpc", "frames"])
def test_no_method_is_served_without_a_token(daemon: Daemon, connect: Callable[[str], Any]) -> None:
    """Every method of every service is refused, whatever its message says; probes are answered."""
    refused = {}
    with connect(daemon.target) as channel:
        for name, method in bind_methods(channel).items():
            wrong = (("authorization", f"Bearer {NEW}"),) if len(refused) % 2 else None
            streams = grpc.StreamUnaryMultiCallable | grpc.StreamStreamMultiCallable
            is_upload = getattr(method, "takes_stream", isinstance(method, streams))
            request = iter(()) if is_upload else admin_service_pb2.GetStatsRequest()
            try:
                next(iter(method(request, metadata=wrong, timeout=10)))
            except grpc.RpcError as error:
                refused[name] = error.code()
            else:
                refused[name] = None
        status = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="readiness"))
    assert set(refused.values()) == {grpc.StatusCode.UNAUTHENTICATED}, refused
    assert len(refused) > 50
    assert status.status == health_pb2.HealthCheckResponse.SERVING


def test_clients_send_their_token(daemon: Daemon, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls, streams, uploads and writers of both clients carry it; a client without one gets a typed error."""

    def use(client: Client) -> None:
        thread = client.thread("t")
        thread.append("log", 1)
        with thread.writer() as writer:
            state = thread.hydrate()
            state.slots["blob"] = b"x" * (3 << 20)
            writer.save(state)
        assert thread.hydrate().slots["blob"] is not None

    async def use_many(client: AsyncClient) -> None:
        async with client:
            await asyncio.gather(*(client.thread(f"many-{n}").append("log", n) for n in range(20)))

    with Client(daemon.target, token=OLD) as client:
        use(client)
    asyncio.run(use_many(AsyncClient(daemon.target, token=OLD)))
    monkeypatch.setenv("STATEWARD_TOKEN_FILE", str(tokens))
    with Client(daemon.target) as client:
        use(client)
    with Client(daemon.target, token=NEW) as client, pytest.raises(Unauthenticated, match="not valid"):
        client.thread("t").hydrate()
    monkeypatch.delenv("STATEWARD_TOKEN_FILE")
    with Client(daemon.target) as client, pytest.raises(Unauthenticated, match="STATEWARD_TOKEN_FILE"):
        client.thread("t").append("log", 2)
    shown = repr(Client(daemon.target, token=OLD)._session.settings)
    assert OLD not in shown


@pytest.mark.usefixtures("begun_warm")
def test_the_command_sends_the_token(daemon: Daemon, tokens: Path) -> None:
    """With the variable it works; without it the error is one line that says what to do."""
    command = [sys.executable, "-m", "stateward.cli", "--target", daemon.target, "threads"]
    plain = {name: value for name, value in os.environ.items() if name != "STATEWARD_TOKEN_FILE"}
    plain["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = warm.run(command, env=plain)
    assert done.returncode != 0
    assert "STATEWARD_TOKEN_FILE" in done.stderr
    assert done.stderr.count("\n") == 1
    done = warm.run(command, env={**plain, "STATEWARD_TOKEN_FILE": str(tokens)})
    assert done.returncode == 0
    for path in ("/nowhere", os.devnull):
        done = warm.run(command, env={**plain, "STATEWARD_TOKEN_FILE": path})
        assert done.returncode == 1
        assert done.stderr.startswith("stateward: STATEWARD_TOKEN_FILE: ")
        assert done.stderr.count("\n") == 1


def test_tokens_change_while_it_runs(daemon: Daemon, tokens: Path) -> None:
    """Both tokens of the file are valid; then only the new one. A damaged file locks nobody out, and is logged; one
    that is empty or gone admits nobody, until it is back."""

    def works(token: str) -> bool:
        with Client(daemon.target, token=token) as client:
            try:
                client.thread("t").append("log", 3)
            except Unauthenticated:
                return False
            return True

    def turn(text: str | None, **expected: bool) -> None:
        if text is None:
            tokens.unlink()
        else:
            other = tokens.with_suffix(".new")
            other.write_text(text)
            other.rename(tokens)
        end = time.monotonic() + 60
        while {"old": works(OLD), "new": works(NEW)} != expected:
            assert time.monotonic() < end, text
            time.sleep(0.1)

    turn(f"{NEW}\n{OLD}\n", old=True, new=True)
    turn(f"{NEW}\n", old=False, new=True)
    turn("short\n", old=False, new=True)
    eventually(lambda: "cannot be used" in daemon.stderr)
    assert works(NEW)
    for text in ("", None):
        turn(text, old=False, new=False)
        turn(f"{NEW}\n", old=False, new=True)
    assert "admits nobody" in daemon.stderr
    turn(f"{OLD}\n", old=True, new=False)
    assert OLD not in daemon.stderr
    assert NEW not in daemon.stderr


@pytest.mark.usefixtures("begun_warm")
@pytest.mark.parametrize("text", ["", "\n\n", "short", "with a space in it", "näh" * 10, "x" * 16 + "\n" + "short"])
def test_a_wrong_token_file_is_one_line(tmp_path: Path, text: str) -> None:
    """The daemon does not start without tokens when it was told to ask for them."""
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(RuntimeError, match="token file"), run_daemon(token_file=path):
        pass
    data, key = tmp_path / "data", tmp_path / "key"
    command = [sys.executable, "-m", "stateward_sidecar", "--data-dir", str(data), "--key-file", str(key)]
    command += ["--listen", f"unix:{tmp_path}/s.sock", "--token-file", str(path)]
    checked = warm.run([*command, "--check"])
    assert checked.returncode == 1
    assert '"check": "tokens", "verdict": "VERDICT_FAILED"' in checked.stdout
    started = warm.run(command)
    assert started.returncode == 1
    assert started.stderr.count("\n") == 1
    assert not data.exists()  # nothing is made before it is clear that the daemon can start
    assert not key.exists()


def test_the_first_token_of_a_file_is_sent(tmp_path: Path) -> None:
    """A file that is read again keeps its token when it is gone; a client with no token in its file is refused."""
    path = tmp_path / "tokens"
    path.write_text(f"\n{NEW}\n{OLD}\n")
    token = resolve_token(None, {"STATEWARD_TOKEN_FILE": str(path)})
    assert token is not None
    assert token.value() == NEW
    path.unlink()
    token._read_s = 0.0
    assert token.value() == NEW
    assert resolve_token(None, {}) is None
    for wrong in ("", "two words", "ü"):
        with pytest.raises(ValueError, match="token"):
            resolve_token(wrong)
    for text in (None, b"", b"two words\n", b"\xff\xfe"):
        if text is not None:
            path.write_bytes(text)
        with pytest.raises(Unauthenticated, match=r"STATEWARD_TOKEN_FILE.*tokens"):
            resolve_token(None, {"STATEWARD_TOKEN_FILE": str(path)})


def test_a_port_with_tokens_is_not_open_to_every_user(tmp_path: Path, tokens: Path) -> None:
    """The warning about ports is for daemons that ask for no token."""
    arguments = ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--token-file", str(tokens)]
    settings, _ = load_settings(arguments, {"HOME": str(tmp_path)})
    tokens.chmod(0o600)
    assert not any("every user" in warning for warning in warnings_of(settings))
    tokens.chmod(0o644)
    assert any("token file" in warning and "0644" in warning for warning in warnings_of(settings))
