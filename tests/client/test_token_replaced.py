"""The danger: a token ends, as in Kubernetes, and the agent ends with it, though the next token is in its file."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.start.issuer import BOTH, access_text, token

from stateward import AsyncClient, Client
from stateward._operations.retry import Retry
from stateward._operations.steps import Call, Operation, Pause, with_retries
from stateward.errors import ServerUnavailable, Unauthenticated
from stateward.testing import Daemon, run_daemon
from stateward.v1.thread_service_pb2 import GetThreadRequest

FOR_S = 4.0


class Volume:
    """A projected volume: the file is a link into a folder, and another folder takes its place."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory, self._count = directory, 0
        self.path = directory / "token"

    def put(self, content: str) -> None:
        self._count += 1
        folder = self._directory / f"..{self._count}"
        folder.mkdir()
        (folder / "token").write_text(content)
        link = self._directory / "..data_tmp"
        link.symlink_to(folder.name)
        link.replace(self._directory / "..data")
        if not self.path.is_symlink():
            self.path.symlink_to("..data/token")


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Volume:
    made = Volume(tmp_path / "volume")
    monkeypatch.setenv("STATEWARD_TOKEN_FILE", str(made.path))
    return made


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "jwks.json").write_bytes(BOTH)
    access = tmp_path / "access.toml"
    access.write_text(access_text(tmp_path / "jwks.json"))
    with run_daemon(tmp_path / "data", access=access) as running:
        yield running


def until(ends_s: float) -> None:
    """Waits until a token has ended, and the daemon has looked."""
    time.sleep(max(ends_s + 2.5 - time.time(), 0))


@pytest.mark.parametrize("wire", ["grpc", "frames"])
def test_watch_and_writer_outlive_their_token(
    daemon: Daemon, volume: Volume, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """Twice: both are open when their token ends, and go on with the next one. No event is missing, no version is
    written twice, and the writer keeps its lease."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    ends_s = time.time() + FOR_S
    volume.put(token(exp=ends_s))
    with Client(daemon.target, namespace="team") as client:
        thread = client.thread("agent-1")
        thread.append("m", 0)
        with thread.watch(after_sequence=0) as events, thread.writer() as writer:
            assert next(events).sequence == 1
            state, held = thread.hydrate(), writer.token
            for number in (1, 2):
                state.logs["m"].append(number)
                writer.save(state)
                last_s, ends_s = ends_s, ends_s + 2.5 + (FOR_S if number == 1 else 60)
                volume.put(token(exp=ends_s))
                until(last_s)
                state.logs["m"].append(number + 10)
                assert writer.save(state).version == 2 * number + 1
                assert writer.token == held
            versions = list[int]()
            while not versions or versions[-1] < 5:
                event = next(events)
                if event.checkpoint is not None:
                    versions.append(event.checkpoint.version)
            assert versions == [2, 3, 4, 5]


@pytest.mark.parametrize("wire", ["grpc", "frames"])
async def test_watch_and_many_calls_of_asyncio_outlive_their_token(
    daemon: Daemon, volume: Volume, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """Also calls that travel over one stream."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    ends_s = time.time() + FOR_S
    volume.put(token(exp=ends_s))
    async with AsyncClient(daemon.target, namespace="team") as client:

        async def append(count: int) -> None:
            await asyncio.gather(*(client.thread(f"agent-{number}").append("m", 1) for number in range(count)))

        await append(20)
        async with client.thread("agent-1").watch() as events, client.thread("agent-w").writer() as writer:
            state = await client.thread("agent-w").hydrate()
            volume.put(token(jti="next"))
            while time.time() < ends_s + 2.5:
                await append(20)
                await asyncio.sleep(0.1)
            state.logs["m"].append(2)
            assert await writer.save(state)
            assert await anext(events)


def test_a_replaced_token_is_sent_at_once(tmp_path: Path, volume: Volume) -> None:
    """Though the client has read its file a moment ago, and the old token is revoked in that moment."""
    access = tmp_path / "access.toml"

    def admit(*given: str) -> None:
        digests = ", ".join(f'"{hashlib.sha256(each.encode()).hexdigest()}"' for each in given)
        access.write_text(f'[[principal]]\nname = "p"\ntoken_sha256 = [{digests}]\ngrants = ["read,write */*"]\n')

    old, new = "o" * 32, "n" * 32
    admit(old)
    volume.put(old)
    with run_daemon(tmp_path / "other", access=access) as daemon, Client(daemon.target) as client:
        client.thread("t").append("m", 1)
        held = client._session.settings.token
        assert held is not None
        held._read_s = time.monotonic() + 1000  # it does not look at the file by itself
        admit(new)
        volume.put(new)
        end = time.monotonic() + 30
        while time.monotonic() < end and held._token == old:
            client.thread("t").append("m", 2)
        assert held._token == new
        volume.put("w" * 32)
        held._read_s = 0.0
        with pytest.raises(Unauthenticated):
            client.thread("t").append("m", 3)


def tried(errors: list[Exception], renew: Callable[[], bool]) -> list[str]:
    """What is done about the errors of a call: each attempt and each pause."""

    def operation() -> Operation[Any]:
        return (yield Call("GetThread", GetThreadRequest()))

    done, steps = list[str](), with_retries(operation(), lambda: 60.0, renew=renew)
    step = next(steps)
    try:
        while True:
            if isinstance(step, Pause):
                done.append("at once" if not step.seconds else "pause")
                step = steps.send(None)
            elif errors:
                done.append("call")
                step = steps.throw(errors.pop(0))
            else:
                done.append("call")
                step = steps.send("fine")
    except StopIteration:
        done.append("fine")
    except Unauthenticated:
        done.append("refused")
    return done


def test_it_is_read_again_once() -> None:
    """And not at all if the program gave the token itself."""
    wrong, away = Unauthenticated("no"), ServerUnavailable("away")
    assert tried([wrong], lambda: True) == ["call", "at once", "call", "fine"]
    assert tried([wrong, wrong], lambda: True) == ["call", "at once", "call", "refused"]
    found = tried([away, wrong, away], lambda: True)
    assert found == ["call", "pause", "call", "at once", "call", "pause", "call", "fine"]
    assert tried([wrong, away, wrong], lambda: True)[-1] == "refused"
    assert tried([wrong], lambda: False) == ["call", "refused"]
    retry = Retry(lambda: 60.0, lambda: True)
    assert [retry.delay_after(wrong), retry.delay_after(wrong)] == [0.0, None]
    retry.reset()
    assert retry.delay_after(wrong) == 0.0
