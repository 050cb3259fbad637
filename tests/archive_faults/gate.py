"""A proxy in front of an S3 server that knows what the archive asks for, and does to it what networks do.

``plan`` lets the next requests of a kind meet a fault, ``close`` lets nothing through, ``refuse`` answers writes with
an error, ``hold`` keeps a request back until it is let go, ``gather`` answers none before all of its round trip are
there. Faults are those of ``tests.bucket.proxy``.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.bucket import proxy

HOLD_MAX_S = 20.0
_OBJECTS = (
    (re.compile(r"/HEAD$"), "HEAD"),
    (re.compile(r"/_keys/t/"), "key"),
    (re.compile(r"/_keys/n/"), "namespace"),
    (re.compile(r"/_keys/root$"), "root"),
    (re.compile(r"/_format$"), "format"),
    (re.compile(r"\.(pack|snap|index|image|blob)$"), ""),
)


def kind_of(method: str, path: str, headers: object) -> str:
    """What is asked for: "get HEAD", "create key", "replace HEAD", "put pack" …"""
    path = path.partition("?")[0]
    verb = method.lower()
    if method == "PUT":
        verb = "create" if headers.get("If-None-Match") else "replace" if headers.get("If-Match") else "put"  # type: ignore[attr-defined]
    for pattern, name in _OBJECTS:
        if found := pattern.search(path):
            return f"{verb} {name or found[1]}"
    return f"{verb} other"


@dataclass
class Request:
    """One that came by. Times on the monotonic clock."""

    kind: str
    begun: float
    ended: float = 0.0
    path: str = ""


@dataclass
class Held:
    """A request that is kept back: ``arrived`` once it is here, ``let_go`` lets it through.

    With ``has_landed`` it is the answer that is kept back, and lost when it is let go.
    """

    kind: str
    has_landed: bool = False
    arrived: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def let_go(self) -> None:
        """Sends it on."""
        self.released.set()


@dataclass
class Gate:
    """Where it listens, what came by, and what is planned."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    is_closed: bool = False
    close_after: str = ""
    delay_s: float = 0.0
    _faults: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    _refusal: tuple[int, str] | None = None
    _held: list[Held] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rounds: threading.Condition = field(default_factory=threading.Condition)
    _sizes: list[int] = field(default_factory=list)
    _came: int = 0
    _late: bool = False

    def plan(self, kind: str, *faults: tuple[str, str]) -> None:
        """Lets the next requests of a kind meet these: (fault, before or after)."""
        self._faults[kind] = list(faults)

    def planned(self) -> int:
        """How many faults nobody has met yet."""
        return sum(map(len, self._faults.values()))

    def close(self) -> None:
        """Resets everything from now on."""
        self.is_closed = True

    def open(self) -> None:
        """Lets everything through again."""
        self.is_closed, self.close_after, self._refusal = False, "", None

    def refuse(self, status: int, code: str) -> None:
        """Answers writes with an error; reads pass."""
        self._refusal = status, code

    def hold(self, kind: str, *, has_landed: bool = False) -> Held:
        """Keeps the next request of a kind back, or its answer."""
        held = Held(kind, has_landed)
        self._held.append(held)
        return held

    @contextmanager
    def gather(self, *sizes: int) -> Iterator[None]:
        """Meanwhile exactly so many requests must come in each round trip: none is answered before all of its round are
        there, so a request that waits for the answer of another one of its round never comes."""
        with self._rounds:
            self._sizes, self._came, self._late = list(sizes), 0, False
        try:
            yield
        finally:
            with self._rounds:
                self._sizes = []
        assert not self._late, f"a round trip of {sizes} was not complete: a request waited for an answer"
        assert self._came == sum(sizes), f"{self._came} requests came, and not {sum(sizes)}"

    def await_round(self) -> None:
        """Called by each request."""
        with self._rounds:
            if not self._sizes:
                return
            self._came += 1
            self._rounds.notify_all()
            ends = [sum(self._sizes[: count + 1]) for count in range(len(self._sizes))]
            needed = next((end for end in ends if end >= self._came), 0)
            if not self._rounds.wait_for(lambda: self._came >= needed or not self._sizes, HOLD_MAX_S / 2):
                self._late = True

    def count(self, *kinds: str) -> int:
        """How many requests of these kinds came by; of all without any."""
        return sum(not kinds or request.kind in kinds for request in list(self.requests))

    def take(self, kind: str) -> tuple[tuple[str, str], Held | None]:
        """What the request that just came shall meet."""
        with self._lock:
            waiting = self._faults.get(kind)
            held = next((each for each in self._held if each.kind == kind), None)
            if held is not None:
                self._held.remove(held)
            return (waiting.pop(0) if waiting else ("", "")), held

    def refusal(self, kind: str) -> tuple[int, str] | None:
        """The answer that writes get at present."""
        return self._refusal if not kind.startswith("get") else None


class _Handler(proxy._Handler):
    """One request, one connection."""

    gate: Gate

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = kind_of(self.command, self.path, self.headers)
        request = Request(kind, time.monotonic(), path=self.path)
        self.gate.requests.append(request)
        self.close_connection = True
        try:
            self.serve(kind, body)
        finally:
            request.ended = time.monotonic()

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = do  # noqa: N815  (the base class looks for these names)

    def serve(self, kind: str, body: bytes) -> None:
        gate = self.gate
        (fault, when), held = gate.take(kind)
        if held is not None and not held.has_landed:
            held.arrived.set()
            held.released.wait(HOLD_MAX_S)
        gate.await_round()
        if gate.delay_s:
            gate.stopped.wait(gate.delay_s)
        if gate.is_closed:
            self.spoil("reset", 0, {}, b"")
            return
        if refusal := gate.refusal(kind):
            self.answer(refusal[0], {}, f"<Error><Code>{refusal[1]}</Code></Error>".encode())
            return
        if when == "before":
            if fault == "flip":
                body = proxy.flip(body)
            elif fault == "slow":
                gate.stopped.wait(proxy.SLOW_PIECES * proxy.SLOW_PAUSE_S)
            else:
                self.spoil(fault, 503, {}, b"")
                return
        try:
            status, headers, data = self.forward(body)
        except OSError:  # the server is away
            self.spoil("reset", 0, {}, b"")
            return
        if held is not None and held.has_landed:
            held.arrived.set()
            held.released.wait(HOLD_MAX_S)
            self.spoil("reset", 0, {}, b"")
        elif gate.close_after == kind:
            gate.close()
            self.spoil("reset", 0, {}, b"")
        elif when == "after":
            self.spoil(fault, status, headers, data)
        else:
            self.answer(status, headers, data)


@contextmanager
def running_gate(upstream: str) -> Iterator[Gate]:
    """Runs a gate in front of this URL until the block is left."""
    gate = Gate()
    handler = type("Handler", (_Handler,), {"gate": gate, "proxy": gate, "upstream": urlsplit(upstream).netloc})
    with proxy._Server(("127.0.0.1", 0), handler) as server:
        gate.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield gate
        finally:
            gate.stopped.set()
            for held in gate._held:
                held.let_go()
            server.shutdown()
            thread.join()
