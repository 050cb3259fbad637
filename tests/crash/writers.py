"""A client process that saves as fast as it is answered while its daemon is killed under it, and keeps a diary.

    python -m tests.crash.writers KIND TARGET THREAD NAME DIARY

Before each save its token is written to the diary ("asked"), after its answer the version and digest ("answered"):
what the diary calls answered must be in the store, whatever was killed since. It runs until its stdin ends.

Kinds: `own` saves a state of its own thread by compare-and-swap, `append` appends to a shared thread without reading it
and sends every few requests twice, `update` reads, changes and saves a shared thread, again on conflict.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from stateward import Client, Thread
from stateward.errors import Unavailable, VersionMismatch

LOG = "tokens"
RETRY_S = 60.0
REPEAT_EVERY = 5  # every so many answered appends are sent again


def entry(token: str) -> dict[str, Any]:
    """What a token's log entry holds: a size of its own, and nothing that could be mistaken for another's."""
    size = random.Random(token).choice((20, 200, 2_000, 20_000))
    return {"token": token, "filling": "".join(random.Random(token).choices("abcdefghijklmnopqrstuvwxyz ", k=size))}


class Diary:
    """Lines of JSON, each written at once: this process may be killed as well."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, event: str, token: str, **facts: Any) -> None:
        """One line."""
        self._file.write(json.dumps({"event": event, "token": token, **facts}) + "\n")
        self._file.flush()


def save_own(thread: Thread, token: str, number: int) -> Any:
    """A slot that is replaced, one that is large and changes little, and a log."""
    state = thread.hydrate()
    if state.version != number:
        raise AssertionError(f"{token}: version {state.version} was read after {number} answered saves")
    state.slots["last"] = token
    state.slots["table"] = {**state.slots.get("table", {}), str(number % 400): token}
    state.logs[LOG].append(entry(token))
    return thread.save(state, step=number, request_id=token)


def save_update(thread: Thread, token: str, number: int) -> Any:
    """Every attempt of an update is a save of its own, with its own request id."""
    return thread.update(lambda state: state.logs[LOG].append(entry(token)), attempts=1000, step=number)


def save_append(thread: Thread, token: str, number: int) -> Any:
    """The same request twice now and then: the second answer must be the first one."""
    first = thread.append(LOG, entry(token), request_id=token, step=number)
    if number % REPEAT_EVERY == 0:
        again = thread.append(LOG, entry(token), request_id=token, step=number)
        if (again.version, again.digest, again.replayed) != (first.version, first.digest, True):
            raise AssertionError(f"{token}: answered as {first} and then as {again}")
    return first


def run(kind: str, thread: Thread, name: str, diary: Diary, stop: threading.Event) -> None:
    """Saves until told to stop."""
    save = {"own": save_own, "append": save_append, "update": save_update}[kind]
    number = 0
    while not stop.is_set():
        token = f"{name}.{number}"
        diary.write("asked", token)
        made = save(thread, token, number)
        diary.write("answered", token, version=made.version, digest=made.digest.hex(), replayed=made.replayed)
        number += 1


def main() -> None:
    """Runs until stdin ends; the exit code says whether something was wrong."""
    kind, target, thread, name, diary = sys.argv[1:]
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    with Path(diary).open("a") as file, Client(target, connect_timeout=RETRY_S, retry_timeout=RETRY_S) as client:
        try:
            run(kind, client.thread(thread), name, Diary(file), stop)
        except (Unavailable, VersionMismatch, AssertionError) as error:
            Diary(file).write("failed", name, error=repr(error), time=time.time())
            raise


if __name__ == "__main__":
    main()
