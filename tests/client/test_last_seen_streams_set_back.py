"""The danger: the store is replaced by an older copy, and a stream goes on from there, because only single calls are
compared with what was seen; or a stream says so of what is allowed."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.client.test_last_seen_set_back import append, seen, set_back
from tests.daemon.process import eventually, run_pair

from stateward import AsyncClient, Client, errors
from stateward.testing import Daemon, run_daemon
from stateward.transfer import read_parts


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path / "seen"
        patch.setenv("STATEWARD_LAST_SEEN", str(path))
        yield path


@pytest.fixture(params=["frames", "grpc"])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way of the same host. Over gRPC an asyncio client's single calls share a stream (RunCalls)."""
    monkeypatch.setenv("STATEWARD_WIRE", request.param)
    return str(request.param)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with run_daemon(tmp_path / "data") as running:
        yield running


def write(thread: Any) -> None:
    with thread.writer() as writer:
        writer.save(thread.hydrate())


def watch(thread: Any) -> None:
    with thread.watch(after_sequence=0) as events:
        next(iter(events))


STREAMS: dict[str, Callable[[Any], Any]] = {
    "watch": watch,
    "history": lambda thread: next(iter(thread.history())),
    "history newest first": lambda thread: next(iter(thread.history(newest_first=True))),
    "writer": write,
}


async def write_async(thread: Any) -> None:
    async with thread.writer():
        pass


async def watch_async(thread: Any) -> None:
    async with thread.watch(after_sequence=0) as events:
        await anext(events)


async def first(stream: Any) -> None:
    await anext(aiter(stream))


ASYNC: dict[str, Callable[[Any], Any]] = {
    "watch": watch_async,
    "history": lambda thread: first(thread.history()),
    "writer": write_async,
    "append": lambda thread: thread.append("m", "late"),
}


def blob_of(daemon: Daemon) -> Any:
    with daemon.client() as client:
        return client.thread("job").blobs.write(b"b" * 100)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_store_that_was_set_back_is_found_by_each_stream(
    file: Path, wire: str, daemon: Daemon, stream: str
) -> None:
    """Before it reads or writes anything: nobody has the lease afterwards."""
    append(daemon, 2)
    set_back(daemon, lambda: append(daemon, 3))
    for _ in range(2):
        with daemon.client() as client, pytest.raises(errors.SetBack, match="lacks entry 5 of its journal"):
            STREAMS[stream](client.thread("job"))
    file.unlink()
    with daemon.client() as client:
        info = client.thread("job").info()
        assert (info.sequence, info.lease) == (2, None)


@pytest.mark.parametrize("stream", ASYNC)
def test_the_asyncio_client_finds_it_too(file: Path, wire: str, daemon: Daemon, stream: str) -> None:
    """Also with calls that share a stream."""
    append(daemon, 2)
    set_back(daemon, lambda: append(daemon, 3))

    async def attempt() -> None:
        async with AsyncClient(daemon.target) as client:
            await ASYNC[stream](client.thread("job"))

    with pytest.raises(errors.SetBack, match="lacks entry 5 of its journal"):
        asyncio.run(attempt())


def test_a_blob_and_an_export_are_streams(file: Path, daemon: Daemon, tmp_path: Path) -> None:
    """Whoever reads a blob goes on from the thread, and whoever exports it keeps it. Verify still looks."""
    blob = blob_of(daemon)
    append(daemon, 2)
    set_back(daemon, lambda: append(daemon, 3))
    with daemon.client() as client, pytest.raises(errors.SetBack):
        client.thread("job").blobs.read(blob)
    with daemon.client() as client, pytest.raises(errors.SetBack):
        list(read_parts(client, "job"))
    with daemon.client() as client:
        assert [each.finding for each in client.verify("job") if each.finding is not None] == []


def test_a_store_is_set_back_while_a_stream_is_open(file: Path, wire: str, daemon: Daemon) -> None:
    """The daemon comes back with an older copy: the stream that opens again says so, and writes nothing there."""
    append(daemon, 2)
    found: list[BaseException] = []
    with Client(daemon.target, retry_timeout=60) as client, suppress(errors.SetBack):
        thread = client.thread("job")
        with thread.watch() as events, thread.writer() as writer:
            state = thread.hydrate()

            def read() -> None:
                try:
                    for _ in events:
                        pass
                except errors.SetBack as error:
                    found.append(error)

            reading = threading.Thread(target=read)
            reading.start()

            def meanwhile() -> None:
                state.logs["m"].append("seen")
                writer.save(state)

            set_back(daemon, meanwhile)
            state.logs["m"].append("late")
            with pytest.raises(errors.SetBack, match="journal"):
                writer.save(state)
            reading.join(60)
    assert len(found) == 1
    file.unlink()
    with daemon.client() as other:
        assert list(other.thread("job").hydrate().logs["m"]) == [0, 1]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_store_is_set_back_while_a_client_calls(file: Path, wire: str, daemon: Daemon, is_async: bool) -> None:
    """A call that finds the daemon away is tried until it is back, and its answer is not taken from an older copy."""
    append(daemon, 2)
    copy = daemon.data_dir.with_name("copy")

    def replace() -> None:
        daemon.stop()
        shutil.rmtree(daemon.data_dir)
        copy.rename(daemon.data_dir)

    def back_later() -> threading.Thread:
        late = threading.Timer(1, daemon.start)
        late.start()
        return late

    daemon.stop()
    shutil.copytree(daemon.data_dir, copy)
    daemon.start()

    async def call() -> None:
        async with AsyncClient(daemon.target, retry_timeout=60) as client:
            await client.thread("job").append("m", 3)
            replace()
            late = back_later()
            try:
                with pytest.raises(errors.SetBack, match="lacks entry 3 of its journal"):
                    await client.thread("job").hydrate()
            finally:
                late.join()

    if is_async:
        asyncio.run(call())
        return
    with Client(daemon.target, retry_timeout=60) as client:
        client.thread("job").append("m", 3)
        replace()
        late = back_later()
        try:
            with pytest.raises(errors.SetBack, match="lacks entry 3 of its journal"):
                client.thread("job").hydrate()
        finally:
            late.join()


def test_what_streams_say_is_noted(file: Path, wire: str, daemon: Daemon) -> None:
    """A writer notes its saves, and a watch the saves of others. A watch over all threads notes none."""
    with daemon.client() as client:
        thread = client.thread("job")
        state = thread.hydrate()
        with thread.writer() as writer:
            for number in range(3):
                state.logs["m"].append(number)
                saved = writer.save(state)
        assert (seen(file)["job"].sequence, seen(file)["job"].digest) == (saved.sequence, saved.digest)
        kept = file.read_bytes()
    file.unlink()
    with daemon.client() as client, client.thread("job").watch() as events, client.watch() as all_events:
        before = file.read_bytes()
        file.unlink()
        append(daemon, 2)
        append(daemon, 1, "other")
        file.write_bytes(before)
        last = [next(iter(events)) for _ in range(2)][-1]
        for _ in range(3):
            next(iter(all_events))
        assert seen(file)["job"].sequence == last.sequence > saved.sequence
        assert "other" not in seen(file)
    assert kept


def test_what_is_allowed_is_no_alarm(file: Path, daemon: Daemon) -> None:
    """Restarts while streams are open, and streams of threads that are new or that others write."""
    with Client(daemon.target, retry_timeout=60) as client:
        thread = client.thread("new")
        with thread.writer() as writer, thread.watch() as events:
            state = thread.hydrate()
            for number in range(3):
                state.logs["m"].append(number)
                writer.save(state)
                daemon.kill()
                daemon.start()
            assert [next(iter(events)).sequence for _ in range(3)][-1] >= 3
        assert len(list(thread.history())) == 3
        append(daemon, 1, "new")
        assert len(list(thread.history())) == 4
    with daemon.client() as client:
        with pytest.raises(errors.ThreadNotFound):
            list(client.thread("none").history())
        client.thread("none").append("m", 1)
        assert len(list(client.thread("none").history())) == 1


def test_a_save_of_a_writer_that_a_takeover_lost(file: Path, tmp_path: Path) -> None:
    """It was not archived, so it is SaveLost, and no store that was set back, also if only a writer saw the thread."""
    with run_pair(tmp_path) as pair:
        with pair.first.client() as client:
            client.thread("job").append("m", 0, durability="archived")
        file.unlink()
        with pair.first.client() as client, client.thread("job").writer() as writer:
            state = client.thread("job").hydrate()
            pair.go_away()
            state.logs["m"].append(1)
            writer.save(state)
            newest = writer.version
        pair.first.kill()
        pair.come_back()
        assert seen(file)["job"].epoch > 0
        with pair.second.client() as client:
            client.thread("job").archive.attach(take_over=True)
            with pytest.raises(errors.SaveLost), client.thread("job").writer():
                pytest.fail("the stream opened")
            with client.thread("job").writer() as writer:
                state = client.thread("job").hydrate()
                state.logs["m"].append(2)
                assert writer.save(state).version == newest
        eventually(lambda: seen(file)["job"].sequence > 0)
