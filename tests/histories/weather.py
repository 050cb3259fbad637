"""A proxy in front of an S3 server that has weather: requests are late, lost, sent twice, or done and not answered.

Dice decide, by how bad the weather is. One proxy stands before each machine, so that the bucket is away for one alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.archive_faults.gate import kind_of
from tests.bucket import proxy

LATE_S = (0.05, 0.8)
DELAY_S = (0.01, 0.25)
# Of each request in the worst weather; a fate that is not chosen is to pass.
FATES = {
    "delayed": 0.15, "lost": 0.05, "done and lost": 0.06, "done twice": 0.06, "done late": 0.03, "refused": 0.04,
    "done and refused": 0.03,
}  # fmt: skip


@dataclass
class Weather:
    """``badness`` is 0 to 1; ``is_cut`` lets nothing through; ``slow_head_s`` keeps writes of HEAD back that long.
    ``put_bytes_s``: how fast objects other than HEAD and keys arrive, ``get_bytes_s``: how fast answers do; 0 = at
    once. ``refuses_every``: 503 for each request whose number is a multiple, of any kind; 0 = for none."""

    dice: random.Random
    url: str = ""
    badness: float = 0.0
    is_cut: bool = False
    slow_head_s: float = 0.0
    put_bytes_s: float = 0.0
    get_bytes_s: float = 0.0
    refuses_every: int = 0
    requests: int = 0
    # When a request last met something bad, on the monotonic clock.
    last_evil: float = 0.0
    stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        """Fine weather."""
        self.badness, self.is_cut, self.refuses_every = 0.0, False, 0
        self.slow_head_s = self.put_bytes_s = self.get_bytes_s = 0.0

    def fate(self) -> str:
        """What becomes of the next request."""
        with self._lock:
            left = self.dice.random() / self.badness if self.badness else 1.0
            for name, share in FATES.items():
                left -= share
                if left < 0:
                    return name
            return ""

    def refuses(self) -> bool:
        """Whether the next request is one that is refused."""
        with self._lock:
            self.requests += 1
            return bool(self.refuses_every) and not self.requests % self.refuses_every

    def between(self, low: float, high: float) -> float:
        with self._lock:
            return self.dice.uniform(low, high)


class _Handler(proxy._Handler):
    """One request, one connection."""

    weather: Weather

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.close_connection = True
        weather, kind = self.weather, kind_of(self.command, self.path, self.headers)
        if weather.slow_head_s and kind == "replace HEAD":
            weather.stopped.wait(weather.slow_head_s)
            weather.last_evil = time.monotonic()
        if weather.put_bytes_s and kind.startswith("put "):
            weather.stopped.wait(len(body) / weather.put_bytes_s)
            weather.last_evil = time.monotonic() if weather.get_bytes_s else weather.last_evil
        if weather.refuses():
            weather.last_evil = time.monotonic()
            self.answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        if weather.is_cut:
            weather.last_evil = time.monotonic()
            self.spoil("reset", 0, {}, b"")
            return
        with suppress(OSError):
            self.meet(weather.fate(), body)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = do  # noqa: N815  (the base class looks for these names)

    def meet(self, fate: str, body: bytes) -> None:
        weather = self.weather
        if fate:
            weather.last_evil = time.monotonic()
        if fate == "lost":
            self.spoil("reset", 0, {}, b"")
        elif fate == "refused":
            self.answer(500, {}, b"<Error><Code>InternalError</Code></Error>")
        elif fate == "done late":
            self.spoil("reset", 0, {}, b"")
            weather.stopped.wait(weather.between(*LATE_S))
            self.forward(body)
        else:
            if fate == "delayed":
                weather.stopped.wait(weather.between(*DELAY_S))
            answer = self.forward(body)
            if fate == "done and lost":
                self.spoil("reset", 0, {}, b"")
            elif fate == "done and refused":
                self.answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")
            else:
                again = self.forward(body) if fate == "done twice" else answer
                status, headers, data = again if weather.between(0, 1) < 0.5 else answer
                if weather.get_bytes_s:
                    weather.stopped.wait(len(data) / weather.get_bytes_s)
                    weather.last_evil = time.monotonic()
                self.answer(status, headers, data)


@contextmanager
def running_weather(upstream: str, dice: random.Random) -> Iterator[Weather]:
    """Runs a proxy in front of this URL until the block is left."""
    weather = Weather(dice)
    facts = {"weather": weather, "proxy": weather, "upstream": urlsplit(upstream).netloc}
    handler = type("Handler", (_Handler,), facts)
    with proxy._Server(("127.0.0.1", 0), handler) as server:
        weather.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield weather
        finally:
            weather.stopped.set()
            server.shutdown()
            thread.join()
