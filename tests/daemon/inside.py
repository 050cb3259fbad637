"""A whole daemon inside the test's own process, on a thread of its own: for faults that no flag makes.

``parts`` are its components; ``bucket`` stands before the real one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.between import Between
from tests.daemon.wire import Wire

from stateward_sidecar import app
from stateward_sidecar.settings import Settings, load_settings

WAIT_S = 20.0


class Inside:
    """Starts with ``start``, and is closed in order with ``close``. Threads of it are the process's own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.fatal: list[BaseException] = []
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="daemon")

    def start(self) -> None:
        """Returns when it answers."""
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        if self._error is not None:
            raise self._error
        self.wire = Wire(self.settings.listen[0].replace("unix://", "unix:"))

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        try:
            self.parts = app._make_parts(self.settings, self.loop, self.fatal.append)
            if self.parts.archive is not None:
                wire = self.parts.archive.state.wire
                self.bucket = Between(wire._bucket)
                wire._bucket = self.bucket  # type: ignore[assignment]
            await app._start(self.parts, self.settings, self.loop)
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            self._error = error
        finally:
            self._ready.set()
        if self._error is None:
            await self._over.wait()
            await self._stop()

    async def _stop(self) -> None:
        parts = self.parts
        parts.feed.close()
        parts.writers.close()
        parts.streamed.close()
        await parts.server.stop(1)
        if parts.archive is not None:
            await asyncio.to_thread(parts.archive.close)
        await asyncio.to_thread(parts.store.close)

    def close(self) -> None:
        """Stops it. The bucket must let go of what it holds before."""
        if self._error is None:
            self.wire.close()
            self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@contextmanager
def daemon_inside(directory: Path, *, name: str = "A", **flags: str) -> Iterator[Inside]:
    """Runs one; ``flags`` as on the command line, with underscores. Those of one directory share key and archive."""
    given = {
        "data_dir": str(directory / name), "listen": f"unix://{directory}/{name}.sock",
        "key_file": str(directory / "key"), "owner_id": name, "sweep_interval": "0", **flags,
    }  # fmt: skip
    arguments = [part for flag, value in given.items() for part in (f"--{flag.replace('_', '-')}", value)]
    made = Inside(load_settings(arguments, {})[0])
    made.start()
    try:
        yield made
    finally:
        made.close()


@contextmanager
def held_back(daemon: Inside, is_held: Callable[[str, str], bool]) -> Iterator[None]:
    """Requests to the bucket of which ``is_held`` says so, by method and key, wait until the end."""
    over = threading.Event()

    def before(method: str, key: str) -> None:
        if is_held(method, key):
            over.wait(WAIT_S)

    daemon.bucket.before = before
    try:
        yield
    finally:
        daemon.bucket.before = lambda method, key: None
        over.set()
