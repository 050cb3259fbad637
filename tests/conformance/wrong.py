"""How a wrong client is made and played: it is the right one with one mistake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.conformance.raw_client import RawClient, page_code
from tests.conformance.raw_writer import Writer

from stateward.conformance.play import Play
from stateward.conformance.server import ScriptedDaemon

TIMEOUT_S = 10.0
# On a busy machine a client may be late, and fail by that before it comes to its mistake. Then it gets more time for
# each call, so many times as much.
PATIENCES = (1, 4, 16)
# What is said of a client that was late. A right one may be, on a busy machine; one with a mistake always is.
LATE = "s after the one before"
CODE = page_code()
WRONG: list[tuple[str, tuple[str, ...], type[RawClient]]] = []  # scenario, what is said of the client, client


def plays(scenario: str, kind: type[RawClient]) -> Iterator[Play]:
    """Runs a client on a scenario again and again, with more time each time."""
    for times in PATIENCES:
        limits = {name: getattr(kind, name) * times for name in ("deadline_s", "patience_s", "stream_s")}
        yield play(scenario, type(kind.__name__, (kind,), limits), TIMEOUT_S * times)[0]


def play(scenario: str, kind: type[RawClient], timeout_s: float = TIMEOUT_S) -> tuple[Play, BaseException | None]:
    """Runs a client on a scenario. Returns the play, and the error that ended the client."""
    ended: list[BaseException | None] = [None]

    def run(target: str) -> None:
        try:
            kind(target).run(scenario)
        except BaseException as error:  # noqa: BLE001  a wrong client may fail in any way
            ended[0] = error

    with ScriptedDaemon("127.0.0.1:0", [scenario]) as daemon:
        client = threading.Thread(target=run, args=(daemon.target,), daemon=True)
        client.start()
        played = daemon.plays[scenario]
        client.join(timeout_s)
        assert not client.is_alive(), "the client did not end"
        played.wait(0.2)
    return played, ended[0]


def wrong(scenario: str, *told: str, **replaced: Any) -> Callable[[type], type]:
    """Registers a wrong client. `told`: part of what is said of it, or more than one if that depends on the moment.
    `replaced`: definitions of the page's code."""

    def register(kind: type) -> type:
        hasty = {"deadline_s": 0.5, "patience_s": 1.0, "stream_s": 1.5, "replaced": replaced}
        WRONG.append((scenario, told, type(kind.__name__, (kind, RawClient), hasty)))
        return kind

    return register


class Renaming(RawClient):
    """Makes a new request id for each attempt."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        right = self.code.call

        def renamed(method: Any, request: Any) -> Any:
            def attempt(request: Any, timeout: float) -> Any:
                if hasattr(request, "options") and request.options.request_id:
                    request.options.request_id = self.request_id()
                return method(request, timeout=timeout)

            return right(attempt, request)

        self.code.call = renamed


class OneId(RawClient):
    """Uses one request id for all that it saves."""

    def request_id(self) -> str:
        return "always-the-same"


class WithWriter(RawClient):
    kind: type[Writer]

    def writer(self) -> None:
        self.kind(self).write()
