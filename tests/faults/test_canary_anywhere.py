"""The danger: a name, a value or a token lies readable where no key protects it: in a file, in a log, in /proc."""

from __future__ import annotations

import gc
import os
import re
import socket
import subprocess
import tempfile
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.daemon.framed import FramedConnection
from tests.daemon.store import opened
from tests.faults.talkative_daemon import FAIL, WAYS, TalkativeDaemon
from tests.faults.test_encryption_canary import forms
from tests.tracing.collector import collecting

from stateward import AsyncClient, Client
from stateward.errors import StatewardError, Unauthenticated
from stateward.options import ThreadOptions
from stateward.testing import Daemon
from stateward_sidecar import tracebacks
from stateward_sidecar.errors import ArchiveUnavailable, Corrupt, ThreadNotFound

CANARY = "canary-Quetzalcoatl"
TOKEN = f"{CANARY}-token-{'t' * 40}"
WIRES = ("frames", "grpc")
# In /proc: memory, which its user cannot read (tests/start/test_process_readable.py), and what is not of this process.
SKIPPED = {"mem", "pagemap", "clear_refs", "syscall", "stack", "task", "map_files", "net", "cwd", "root"}


def leaks(text: bytes) -> bool:
    """Whether the canary is there, as it is or coded."""
    return any(form in text for form in forms(CANARY))


def search(*places: Path) -> list[str]:
    """Files below some directories that hold the canary, or whose names do."""
    found = []
    for place in places:
        for path in [place, *place.rglob("*")]:
            content = path.read_bytes() if path.is_file() else b""
            if leaks(content + b"\n" + str(path.relative_to(place)).encode()):
                found.append(str(path))
    return found


def search_process(pid: int) -> list[str]:
    """What /proc tells of a process that holds the canary."""
    found = []
    for path in Path(f"/proc/{pid}").iterdir():
        told = [path]
        if path.name in ("fd", "fdinfo", "ns", "attr"):
            with suppress(OSError):
                told += list(path.iterdir())
        for each in told if path.name not in SKIPPED else ():
            with suppress(OSError):
                if leaks(os.fsencode(each.readlink()) if each.is_symlink() else each.read_bytes()):
                    found.append(str(each))
    return found


def use(client: Client, wire: str) -> None:
    """Puts the canary everywhere where a user can put a text."""
    name = f"{CANARY}-{wire}"
    thread = client.thread(name)
    create = ThreadOptions(labels={CANARY: CANARY}, parent_thread=CANARY, agent=CANARY)
    state = thread.hydrate()
    state.slots[CANARY] = {CANARY: CANARY * 1000}
    state.logs[CANARY].append({"role": CANARY, "content": CANARY})
    first = thread.save(
        state, create=create, labels={CANARY: CANARY}, attributes={CANARY: CANARY}, metadata={CANARY: CANARY},
        checkpoint_id=name, request_id=name, status_detail=CANARY, metrics={CANARY: 1.0},
    )  # fmt: skip
    thread.append(CANARY, CANARY)
    thread.tags.set(CANARY, at=first)
    branch = thread.branch(CANARY, at=first)
    branch.save(branch.hydrate())
    thread.branch(CANARY).append(CANARY, CANARY)
    thread.fork(f"{name}-copy", at=first)
    thread.effects.run(CANARY, lambda: CANARY)
    thread.effects.cached(CANARY, {CANARY: CANARY}, lambda **given: CANARY)
    with suppress(RuntimeError):
        thread.effects.run(f"{CANARY}-failed", fail_as_tool)
    thread.records.put(CANARY, {CANARY: CANARY})
    thread.blobs.write((CANARY * 10_000).encode(), media_type=f"text/{CANARY}")
    thread.signals.send(CANARY, CANARY)
    thread.ask(thread.hydrate(), f"{CANARY}?")
    thread.approve(CANARY)
    with thread.lease():
        pass
    with thread.writer() as writer:
        state = thread.hydrate()
        state.logs[CANARY].append(CANARY)
        writer.save(state)
        writer.flush()
    client.board(f"{name}-board", agent=CANARY).post(CANARY, CANARY)
    client.thread(f"{name}-gone").append(CANARY, CANARY)
    client.thread(f"{name}-gone").delete()


def fail_as_tool() -> None:
    raise RuntimeError(CANARY)


def be_refused(client: Client, daemon: Daemon) -> None:
    """Makes calls that fail, each with the canary in what is wrong."""
    thread = client.thread(f"{CANARY}-frames")
    old = thread.hydrate(at=1)
    old.logs["x"].append(CANARY)
    calls: list[Callable[[], Any]] = [
        lambda: thread.save(old),
        lambda: thread.hydrate(at=f"{CANARY}-none"),
        lambda: client.thread(f"{CANARY}-none").hydrate(must_exist=True),
        lambda: thread.append(CANARY, CANARY, request_id=f"{CANARY}-frames"),
        lambda: thread.records.get("\0" + CANARY),
        lambda: thread.blobs.read(CANARY.encode().ljust(32, b"x")),
        lambda: client.thread(f"{CANARY}\0").append("x", 1),
        lambda: thread.append("x", 1, labels={CANARY * 50: ""}),
        lambda: thread.tags.set(f"\0{CANARY}"),
    ]
    refused = 0
    for call in calls:
        try:
            call()
        except (StatewardError, ValueError):
            refused += 1
    assert refused >= len(calls) - 2  # some of these names are allowed
    with pytest.raises(Unauthenticated):
        Client(daemon.target, token=f"{TOKEN}-wrong").thread(CANARY).hydrate()
    with grpc.insecure_channel(daemon.target.replace("unix://", "unix:")) as channel:
        service, metadata = "/stateward.v1.ThreadService", [("authorization", f"Bearer {CANARY}")]
        for method in (f"/{CANARY}/Get", f"{service}/{CANARY}", f"{service}/GetThread"):
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(method)(CANARY.encode() * 9, metadata=metadata, timeout=9)
    connection = FramedConnection(f"{daemon.socket}~")
    connection.send(99, 1, CANARY.encode())
    connection.socket.close()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"{daemon.socket}~")
        stranger.sendall(CANARY.encode() * 9)


def wait_for(daemon: Daemon, said: str) -> None:
    """Waits until the daemon's log says something."""
    deadline = time.monotonic() + 120
    while said not in daemon.stderr:
        assert time.monotonic() < deadline, daemon.stderr[-2000:]
        time.sleep(0.1)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def tokens(place: Path) -> Path:
    path = place / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["json", "text"])
def test_nobody_tells_what_users_write(place: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Calls, refusals, a bucket that fails, damage in it, a deletion and a restart: the canary is in no file of data
    and bucket, in no log, span or metric, and in nothing that /proc tells."""
    (place / "in").mkdir()
    bucket, until = place / "bucket", ExitStack()
    collector = until.enter_context(collecting())
    daemon = Daemon(
        place / "in", place / "data", place / "key", token_file=tokens, archive=f"file://{bucket}", log_level="debug",
        log_format=form, sweep_interval=1, metrics="127.0.0.1:0", traces=collector.url,
    )  # fmt: skip
    try:
        daemon.start()
        for wire in WIRES:
            monkeypatch.setenv("STATEWARD_WIRE", wire)
            with Client(daemon.target, token=TOKEN) as client:
                use(client, wire)
        monkeypatch.delenv("STATEWARD_WIRE")
        with Client(daemon.target, token=TOKEN, retry_timeout=1) as client:
            be_refused(client, daemon)
            thread = client.thread(f"{CANARY}-frames")
            thread.archive.wait(thread.append("x", 1), timeout=60)
            assert search(bucket, place / "data") == []
            bucket.rename(place / "away")
            thread.append("x", CANARY)
            wait_for(daemon, "could not be archived")
            for each in (place / "away").rglob("HEAD"):
                each.write_bytes(each.read_bytes()[:-1])
            (place / "away").rename(bucket)
            thread.append("x", CANARY)
            wait_for(daemon, "CORRUPT")
            list(client.verify())
            assert search_process(daemon.pid) == []
        (address,) = set(re.findall(r"http://127.0.0.1:\d+/metrics", daemon.stderr))
        with urllib.request.urlopen(address) as answer:
            assert not leaks(answer.read())
        collector.wait_for("ship")
        assert not leaks("".join(map(str, [*collector.spans, *collector.resources])).encode())
        daemon.kill()
        daemon.start()
        with Client(daemon.target, token=TOKEN) as client:
            assert client.thread(f"{CANARY}-grpc").hydrate().slots[CANARY] == {CANARY: CANARY * 1000}
        daemon.stop()
    finally:
        daemon.kill()
        until.close()
    assert "debug" in daemon.stderr
    tokens.unlink()
    assert search(place) == []


@pytest.mark.parametrize("form", ["json", "text"])
def test_unforeseen_failures_quote_nothing(place: Path, form: str) -> None:
    """Errors with values in them, of calls, tasks, threads, callbacks, finalizers and libraries: the log has their
    tracebacks, with the places, and without what they quote."""
    (place / "in").mkdir()
    daemon = TalkativeDaemon(place / "in", place / "data", place / "key", log_level="debug", log_format=form)
    try:
        daemon.start()
        with Client(daemon.target, retry_timeout=1) as client:
            thread = client.thread(CANARY)
            thread.append(CANARY, CANARY)
            with pytest.raises(StatewardError, match="see its log"):
                list(thread.signals.list())
            with pytest.raises(StatewardError, match="see its log"):
                thread.append(CANARY, CANARY, labels={CANARY: FAIL})
            state = thread.hydrate()
            state.logs[CANARY].append(CANARY)
            with suppress(StatewardError), thread.writer() as writer:
                writer.save(state, labels={CANARY: FAIL})
        daemon.stop()
    finally:
        daemon.kill()
    events = ("a background task failed", "a call failed", "a frame failed", "nobody caught", "event loop", "finalizer")
    assert [said for said in events if said not in daemon.stderr] == []
    assert "talkative_daemon.py" in daemon.stderr
    assert "OSError: [Errno 5] failed" in daemon.stderr
    assert daemon.stderr.count("Quoted") > len(WAYS)
    assert search(place) == []


def test_the_search_finds_a_canary(place: Path) -> None:
    """In a file, in a name, and in what /proc tells of a process that was given it."""
    (place / "file").write_text(f"x{CANARY}")
    (place / CANARY).touch()
    assert len(search(place)) == 2
    environment = {**os.environ, "GIVEN": CANARY}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        try:
            deadline = time.monotonic() + 30
            while not search_process(process.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert search_process(process.pid) == [f"/proc/{process.pid}/environ"]
        finally:
            process.kill()


def test_what_a_log_says_of_an_error() -> None:
    """The class, and the message of an operator's own things without what it quotes. Chains may be circles."""
    assert tracebacks.told(ValueError(CANARY)) == "ValueError"
    assert tracebacks.told(OSError(28, "No space left", CANARY)) == "OSError: [Errno 28] No space left"
    assert tracebacks.told(ArchiveUnavailable(f"others change thread {CANARY + chr(39)!r} all the time")) == (
        "others change thread … all the time"
    )
    assert tracebacks.told(Corrupt(f"{CANARY} is damaged", CANARY, version=3)) == "Corrupt CORRUPT version=3"
    assert CANARY not in tracebacks.told(ThreadNotFound(CANARY))
    first, second = ValueError(CANARY), KeyError(CANARY)
    first.__cause__, second.__cause__ = second, first
    assert tracebacks.trace(first).count("Traceback") == 2
    deep = ValueError()
    for _ in range(1000):
        (above := ValueError()).__cause__ = deep
        deep = above
    assert tracebacks.trace(deep).count("Traceback") == tracebacks.SHOWN_MAX


def is_ours(each: object) -> bool:
    module = getattr(type(each), "__module__", "")  # that of a class of Cython is no text
    return isinstance(module, str) and module.partition(".")[0] in ("stateward", "stateward_sidecar")


def shown(secret: bytes | str) -> list[str]:
    """The classes of our living objects that show a secret."""
    found = set()
    for each in [each for each in gc.get_objects() if is_ours(each)]:
        with suppress(Exception):
            text = repr(each) + str(each)
            if (repr(secret)[2:-1] if isinstance(secret, bytes) else secret) in text or (
                isinstance(secret, bytes) and secret.hex() in text
            ):
                found.add(type(each).__qualname__)
    return sorted(found)


async def test_no_object_of_the_client_shows_its_token(place: Path, tokens: Path) -> None:
    """Neither does an error that it raises, nor its traceback."""
    (place / "in").mkdir()
    daemon = Daemon(place / "in", place / "data", place / "key", token_file=tokens)
    try:
        daemon.start()
        with Client(daemon.target, token=TOKEN) as client:
            thread = client.thread("t")
            thread.append("m", 1)
            async with AsyncClient(daemon.target, token=TOKEN) as other:
                await other.thread("t").append("m", 2)
                assert shown(TOKEN) == []
            with pytest.raises(StatewardError) as caught:
                thread.hydrate(at="none")
            assert TOKEN not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(Unauthenticated) as refused:
            Client(daemon.target, token=TOKEN + "-wrong").thread("t").hydrate(must_exist=True)
        assert TOKEN not in "".join(traceback.format_exception(refused.value))
    finally:
        daemon.kill()


def test_no_object_of_the_daemon_shows_a_key(tmp_path: Path) -> None:
    """Neither the key of the file nor those that it protects."""
    key = os.urandom(32)
    with opened(tmp_path, key=key) as store:
        keys = store.context.keystore.create_namespace("n")
        assert shown(key) == []
        assert shown(keys.wrapping_key) == []
