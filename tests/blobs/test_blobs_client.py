"""The danger: the client loses a large value, fetches megabytes that nobody looked at, or keeps a reference that cannot
be read later."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from grpc.aio._call import StreamUnaryCall
from tests.client.conftest import fake as fake  # noqa: PLC0414  a fixture
from tests.client.conftest import make_opener
from tests.client.fake_server import FakeServer
from tests.crash.faulty_daemon import FaultyDaemon

from stateward import Blob, Text
from stateward.cli.files.backups import read_records
from stateward.errors import BlobNotFound, Corrupt
from stateward.testing import Daemon, run_daemon

THRESHOLD = 10_000
LARGE = {"rows": [{"n": number, "text": "some words " * 5} for number in range(1000)]}
DATA = os.urandom(3_000_000)


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with run_daemon() as running:
        yield running


@pytest.fixture(params=["blocking", "asyncio"])
def open_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    yield from make_opener(request.param)


@pytest.fixture
def client(shared: Daemon, open_client: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    name = f"ns{abs(hash(request.node.nodeid)) % 10**9}"
    return open_client(shared.target, namespace=name, blob_threshold=THRESHOLD)


def is_blocking(client: Any) -> bool:
    return type(client).__name__ == "Client"


def kept_apart(state: Any) -> set[str]:
    """Names of the slots whose stored value is a blob."""
    return {name for name, value in state.slots._stored.items() if value.WhichOneof("content") == "blob"}


def test_large_values_come_back_as_they_were(client: Any) -> None:
    """JSON, text, bytes, slots and entries: large ones are kept apart, and read like any other."""
    thread = client.thread("t")
    state = thread.hydrate()
    values = {"json": LARGE, "text": Text("ä" * THRESHOLD), "bytes": DATA[: THRESHOLD * 2], "small": {"n": 1}}
    for name, value in values.items():
        state.slots[name] = value
    state.logs["l"].extend([LARGE, "small", DATA])
    checkpoint = thread.save(state)
    assert checkpoint.version == 1
    assert checkpoint.edit_bytes < 5 * THRESHOLD
    for again in (state, thread.hydrate(), thread.hydrate(at=1)):
        assert kept_apart(again) == {"json", "text", "bytes"}
        assert {name: again.slots[name] for name in again.slots} == values
        assert type(again.slots["text"]) is Text
        assert list(again.logs["l"]) == [LARGE, "small", DATA]
        assert again.slots.raw("json").data == again.slots.raw("json").data
        assert again.slots.raw("bytes").data == values["bytes"]


def test_edits_in_place_are_found(client: Any) -> None:
    """A large value that was read and edited is saved; one that was only read is not sent again."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["json"] = LARGE
    state.logs["l"].append(LARGE)
    thread.save(state)
    state = thread.hydrate()
    assert state.slots["json"]["rows"][3]["n"] == 3
    assert state.logs["l"][0] == LARGE
    assert thread.save(state).edit_bytes == 0
    state.slots["json"]["rows"][3]["n"] = 7  # as many bytes as before
    state.logs["l"][0]["rows"].append("more")
    thread.save(state)
    again = thread.hydrate()
    assert again.slots["json"]["rows"][3]["n"] == 7
    assert again.logs["l"][0]["rows"][-1] == "more"
    assert thread.hydrate(at=1).slots["json"] == LARGE
    again.slots["json"] = "small now"
    thread.save(again)
    assert thread.hydrate().slots["json"] == "small now"


def test_large_values_are_fetched_when_they_are_looked_at(shared: Daemon) -> None:
    """The blocking client reads a state with a large value without that value."""
    with shared.client(namespace="lazy", blob_threshold=THRESHOLD) as client:
        thread = client.thread("t")
        state = thread.hydrate()
        state.slots["large"], state.slots["small"] = LARGE, 1
        thread.save(state)
        state = thread.hydrate()
        opened: list[str] = []
        connection = client._session.connected()
        open_ = connection.open
        connection.open = lambda method, request: opened.append(method) or open_(method, request)  # type: ignore[method-assign, func-returns-value]
        assert state.slots["small"] == 1
        assert opened == []
        assert state.slots["large"] == LARGE
        assert opened == ["ReadBlob"]


def test_blobs_are_written_and_read(client: Any, tmp_path: Path) -> None:
    """From bytes, a path, a file and an iterator; whole and in ranges, by reference and by digest."""
    thread = client.thread("t")
    path = tmp_path / "file"
    path.write_bytes(DATA)

    def pieces() -> Iterator[bytes]:
        for at in range(0, len(DATA), 700_001):
            yield DATA[at : at + 700_001]

    sources: list[Any] = [DATA, path, str(path), io.BytesIO(DATA), pieces(), memoryview(DATA)]
    if not is_blocking(client):

        async def slowly() -> AsyncIterator[bytes]:
            for piece in pieces():
                yield piece

        sources.append(slowly())
    blobs = [thread.blobs.write(source, media_type="application/pdf") for source in sources]
    assert len(set(blobs)) == 1
    blob = blobs[0]
    assert (blob.size, blob.size_bytes, blob.media_type, blob.preview) == (
        len(DATA), len(DATA), "application/pdf", DATA[:1024],
    )  # fmt: skip
    assert thread.blobs.read(blob) == thread.blobs.read(blob.sha256) == DATA
    assert thread.blobs.read(blob, 1_000_000, 1_500_000) == DATA[1_000_000:2_500_000]
    assert thread.blobs.read(blob, len(DATA) - 5) == DATA[-5:]
    assert thread.blobs.read(thread.blobs.write(b"")) == b""


def test_blobs_in_a_state_stay_blobs(shared: Daemon) -> None:
    """A Blob put into a slot or log of a new thread comes back as one, reads itself, and is not fetched before."""
    with shared.client(namespace="explicit", blob_threshold=THRESHOLD) as client:
        thread = client.thread("t")
        blob = thread.blobs.write(DATA, media_type="application/json")
        state = thread.hydrate()
        assert state.version == 0
        state.slots["b"] = blob
        state.logs["l"].append(blob)
        assert thread.save(state).version == 1
        state = thread.hydrate()
        for found in (state.slots["b"], state.logs["l"][0]):
            assert isinstance(found, Blob)
            assert found == blob
            assert found.read() == DATA
            assert found.read(10, 20) == DATA[10:30]
            assert b"".join(found.chunks(2_000_000)) == DATA[2_000_000:]
            with found.open() as file:
                file.seek(-100, io.SEEK_END)
                assert file.read() == DATA[-100:]
                file.seek(1_000_000)
                assert file.read(1_100_000) == DATA[1_000_000:2_100_000]
        assert thread.save(state).edit_bytes == 0


async def test_blobs_in_a_state_are_awaited(shared: Daemon) -> None:
    """With the asyncio client they are awaited; what the client made blobs of is there with the state."""
    async with shared.async_client(namespace="awaited", blob_threshold=THRESHOLD) as client:
        thread = client.thread("t")
        state = await thread.hydrate()
        state.slots["b"] = await thread.blobs.write(DATA)
        state.slots["large"] = LARGE
        await thread.save(state)
        assert state.slots["large"] == LARGE
        state = await thread.hydrate()
        assert state.slots["large"] == LARGE
        found = state.slots["b"]
        assert await found.read(5, 10) == DATA[5:15]
        assert b"".join([piece async for piece in found.chunks()]) == DATA
        with pytest.raises(TypeError, match="await"):
            found.open()


def test_a_failing_source_fails_the_write(client: Any) -> None:
    """The caller's own error comes back, and nothing is written."""

    def broken() -> Iterator[bytes]:
        yield DATA
        raise LookupError("my own")

    thread = client.thread("t")
    with pytest.raises(LookupError, match="my own"):
        thread.blobs.write(broken())
    with pytest.raises(FileNotFoundError):
        thread.blobs.write(Path("/nowhere/at/all"))
    with pytest.raises(TypeError):
        thread.blobs.write(42)


def test_lost_bytes_are_sent_again(shared: Daemon, client: Any) -> None:
    """Bytes that the daemon has lost since are taken again, by a write and by a save, as its error asks for."""
    thread = client.thread("t")
    blob = thread.blobs.write(DATA)
    files = shared.data_dir / "blobs" / thread.info().uid

    def lose() -> None:
        for path in files.iterdir():
            path.unlink()
        with pytest.raises(Corrupt):
            thread.blobs.read(blob)

    lose()
    assert thread.blobs.write(DATA) == blob
    assert thread.blobs.read(blob) == DATA
    lose()
    state = thread.hydrate()
    state.slots["s"] = DATA
    thread.save(state)
    assert thread.blobs.read(blob) == DATA


def test_saves_of_every_kind_take_large_values(client: Any) -> None:
    """Append, overwrite, batches, update and branches; also as the first write of a thread."""
    client.thread("appended").append("l", LARGE, "small")
    assert list(client.thread("appended").hydrate().logs["l"]) == [LARGE, "small"]
    state = client.thread("overwritten").hydrate()
    state.slots["s"] = LARGE
    client.thread("overwritten").save(state, overwrite=True)
    assert client.thread("overwritten").hydrate().slots["s"] == LARGE
    states = {name: client.thread(name).hydrate() for name in ("a", "b")}
    for each in states.values():
        each.slots["s"] = LARGE
    client.save_all([client.thread(name).prepare(each) for name, each in states.items()])
    assert client.thread("b").hydrate().slots["s"] == LARGE

    def change(found: Any) -> None:
        found.slots["more"] = {"again": LARGE}

    client.thread("b").update(change)
    assert client.thread("b").hydrate().slots["more"] == {"again": LARGE}
    side = client.thread("b").branch("side", at=1)
    state = side.hydrate()
    assert state.slots["s"] == LARGE
    state.slots["s"] = {"side": LARGE}
    side.save(state)
    assert side.hydrate().slots["s"] == {"side": LARGE}


def test_copies_and_history_read_large_values(client: Any) -> None:
    """A fork reads its own copy after the source is gone; the history of a thread shows what its states held."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["s"] = LARGE
    thread.save(state)
    copy = thread.fork("copy")
    thread.delete()
    assert copy.hydrate().slots["s"] == LARGE
    with pytest.raises(BlobNotFound):
        copy.blobs.read(b"1" * 32)
    if is_blocking(client):
        with copy.history() as history:
            assert next(history).state.slots["s"] == LARGE


def test_an_export_stands_alone(shared: Daemon) -> None:
    """The records of a thread hold the bytes of its blobs: of large values, and of blobs in slots and logs."""
    with shared.client(namespace="export", blob_threshold=THRESHOLD) as client:
        thread = client.thread("t")
        state = thread.hydrate()
        state.slots["large"], state.slots["blob"] = LARGE, thread.blobs.write(DATA, media_type="x/y")
        thread.save(state)
        state.logs["l"].append(LARGE)
        thread.save(state)
        state.logs["l"][0] = {"replaced": LARGE}
        thread.save(state)
        records = list(read_records(client, "t"))
    blobs: dict[str, bytes] = {}
    for record in records:
        if record["kind"] == "blob":
            digest = record["sha256"]
            blobs[digest] = b""
        elif record["kind"] == "data":
            blobs[digest] += base64.b64decode(record["base64"])
    assert {sha256(data).hexdigest(): data for data in blobs.values()} == blobs
    edits = [edit for record in records for edit in record.get("edits", ())]
    told = {edit.get("set"): edit["value"] for edit in edits if "set" in edit}
    assert blobs[told["blob"]["blob"]] == DATA
    assert told["blob"]["type"] == "x/y"
    values = [told["large"], *(edit["values"][0] for edit in edits if "append" in edit)]
    assert [json.loads(blobs[value["blob"]]) for value in values] == [LARGE, LARGE]
    replaced = [edit["value"] for edit in edits if "replace" in edit]
    assert [json.loads(blobs[value["blob"]]) for value in replaced] == [{"replaced": LARGE}]


def test_without_the_feature_values_are_sent_as_they_are(fake: FakeServer, open_client: Callable[..., Any]) -> None:
    """A daemon that lists no blobs gets the values inline, and is asked once."""
    client = open_client(fake.target, blob_threshold=THRESHOLD)
    for name in ("t", "u"):
        thread = client.thread(name)
        state = thread.hydrate()
        state.slots["s"] = LARGE
        thread.save(state)
        assert thread.hydrate().slots["s"] == LARGE
        assert kept_apart(thread.hydrate()) == set()


def test_a_threshold_of_zero_makes_no_blobs(shared: Daemon, open_client: Callable[..., Any]) -> None:
    """0 = never; below 0 is refused."""
    client = open_client(shared.target, namespace="zero", blob_threshold=0)
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["s"] = DATA
    thread.save(state)
    assert kept_apart(thread.hydrate()) == set()
    with pytest.raises(ValueError, match="blob_threshold"):
        open_client(shared.target, blob_threshold=-1)


def test_a_write_goes_on_after_the_daemon_died(tmp_path: Path, open_client: Callable[..., Any]) -> None:
    """The daemon dies with a blob half written and comes back: the save is made, once."""
    directory = Path("/tmp", f"sw-{os.getpid()}-{abs(hash(tmp_path)) % 10**6}")
    directory.mkdir(mode=0o700)
    daemon = FaultyDaemon(directory, tmp_path / "data", sweep_interval=0)
    daemon.start_faulty(">storage.blobfiles:NewBlobFile.publish", 1)
    try:
        client = open_client(daemon.target, blob_threshold=THRESHOLD)
        thread = client.thread("t")
        state = thread.hydrate()
        state.slots["s"] = LARGE
        import threading

        def revive() -> None:
            daemon.wait_until_dead()
            daemon.start()

        reviver = threading.Thread(target=revive)
        reviver.start()
        assert thread.save(state).version == 1
        reviver.join()
        assert thread.hydrate().slots["s"] == LARGE
        assert client.thread("t").info().version == 1
    finally:
        daemon.kill()


async def test_a_stream_that_breaks_in_a_write_is_begun_anew(shared: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its asyncio client says INTERNAL, not UNAVAILABLE, if it finds the stream broken when it writes to it."""
    monkeypatch.setenv("STATEWARD_WIRE", "grpc")  # frames: tests/client/test_wires_broken.py
    writes, really_write = list[int](), StreamUnaryCall.write

    async def write(call: Any, message: Any) -> None:
        writes.append(1)
        if len(writes) == 2:
            call._cython_call.set_internal_error("Failed execute_batch")
            await call._raise_for_status()
        await really_write(call, message)

    monkeypatch.setattr(StreamUnaryCall, "write", write)
    async with shared.async_client(namespace="broken") as client:
        thread = client.thread("t")
        blob = await thread.blobs.write(DATA)
        assert await thread.blobs.read(blob) == DATA
    assert len(writes) > 3
