"""What was told of versions after they were saved: questions, failures, and the answers to these questions.

A framework may ask after its newest version was saved. The status then stands in the thread's head until the next
version, and later only in the journal, with the effects that told it. So the journal is read, and only if the thread
has such effects.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stateward.errors import VersionPruned
from stateward.signals import Signal

if TYPE_CHECKING:
    from stateward import Thread
    from stateward.effects import RecordedEffect
    from stateward.events import Event

# How long the events may take to arrive.
EVENTS_TIMEOUT_S = 10.0


def read_told(thread: Thread, effects: Iterable[RecordedEffect], since: int = 0) -> dict[int, list[Event]]:
    """Returns what effects told of each version since a sequence, and the answers to it that the agent has used.

    `effects`: those of the thread that may have told something; the newest of them is the last entry that is read.
    """
    # A claim tells nothing, and a status is told of the version that is the anchor.
    until = max((each.sequence for each in effects if each.anchor and not each.attempts), default=0)
    if until <= since:
        return {}
    try:
        events = _read(thread, since, until)
    except VersionPruned:
        events = _read(thread, 0, until) if since else []  # from the beginning, a watch passes what was removed
    found: dict[int, list[Event]] = {}
    versions: dict[str, int] = {}
    for event in events:
        if event.told is not None:
            found.setdefault(event.told.version, []).append(event)
            if event.told.wait_id:
                versions[event.told.wait_id] = event.told.version
        elif isinstance(event.what, Signal) and event.what.wait_id in versions:
            found[versions[event.what.wait_id]].append(event)
    return found


def _read(thread: Thread, since: int, until: int) -> list[Event]:
    waiting = {each.id for each in thread.signals.list()}
    found: list[Event] = []
    with thread.watch(after_sequence=since) as events:
        # An entry may be gone by now. A watch would wait for the next one.
        ending = threading.Timer(EVENTS_TIMEOUT_S, events.close)
        ending.daemon = True
        ending.start()
        try:
            for event in events:
                is_used = isinstance(event.what, Signal) and event.what.wait_id and event.what.id not in waiting
                if event.told is not None or is_used:
                    found.append(event)
                if event.sequence >= until:
                    break
        finally:
            ending.cancel()
    return found
