"""A daemon whose calls and tasks fail with errors that quote all they were given.

    python -m tests.faults.talkative_daemon ARGUMENTS OF THE DAEMON

`ListSignals` fails in each way in which something fails unforeseen: as a call, in a callback, a thread, a finalizer, a
background task, and a library that logs it. A save with the label FAIL fails, too, also in a writer's stream.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from stateward.testing import Daemon

FAIL = "FAIL"
WAYS = ("call", "callback", "thread", "finalizer", "task", "library", "save")


class Quoted(ValueError):
    """An error that quotes a request in its message, its notes and its arguments."""


def fail(way: str, given: Any) -> NoReturn:
    """Raises an error with others that led to it, all of which quote the request."""
    try:
        try:
            raise KeyError(f"{way} {given}", given)
        except KeyError as error:
            raise ExceptionGroup(f"{given}", [OSError(5, "failed", f"/{given}"), Quoted(given)]) from error
    except ExceptionGroup as group:
        group.add_note(f"{given}")
        raise Quoted(f"the {way} of {given!r}") from group


class Finalized:
    """Fails when it goes."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def __del__(self) -> None:
        fail("finalizer", self.given)


async def list_signals(service: Any, request: Any, context: Any) -> NoReturn:
    """Takes the place of the verb."""
    from stateward_sidecar.telemetry import guarded

    threading.Thread(target=fail, args=("thread", request)).start()
    asyncio.get_running_loop().call_soon(fail, "callback", request)
    Finalized(request)
    await asyncio.to_thread(guarded, "a task", fail, "task", request)
    try:
        fail("library", request)
    except Quoted:
        logging.getLogger("grpc._cython.cygrpc").exception("failed: %s", request)
        logging.getLogger("concurrent.futures").error(f"failed: {request}")  # noqa: G004  (as a library might)
    fail("call", request)


def install() -> None:
    """Puts the faults in."""
    from stateward_sidecar.service.api.signals import SignalService
    from stateward_sidecar.store.versions.save import SaveWrite

    SignalService.list_signals = list_signals  # type: ignore[method-assign, assignment]
    begun = SaveWrite.__init__

    def begin(write: Any, context: Any, threads: Any, request: Any, *more: Any, **named: Any) -> None:
        if FAIL in request.labels.values():
            fail("save", request)
        begun(write, context, threads, request, *more, **named)

    SaveWrite.__init__ = begin  # type: ignore[method-assign]


class TalkativeDaemon(Daemon):
    """`run_daemon`'s daemon with these faults."""

    def start(self) -> None:
        """As the daemon's."""
        popen = type(self)._popen
        command = [sys.executable, "-m", "tests.faults.talkative_daemon"]
        self._popen = lambda usual, **options: popen([*command, *usual[3:]], **options)  # type: ignore[method-assign]
        try:
            super().start()
        finally:
            del self._popen


def main() -> None:
    """Installs the faults and becomes the daemon."""
    from stateward_sidecar.__main__ import main as run

    install()
    sys.exit(run())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
