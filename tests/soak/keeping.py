"""What an agent keeps beside its versions: records, which it writes, compares and swaps, and deletes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from tests.soak.desk import Desk
from tests.soak.ledger import HAS_ARCHIVE, Known

from stateward import Delete, Put
from stateward.errors import NotArchivedYet

ARCHIVED_S = 5.0
KEYS = ("book/a", "book/b", "plan", "é")
REPEATS = (1, 1, 10, 3000)  # the longest ones let the journal of records grow until it is cleaned


def keep(desk: Desk, known: Known) -> None:
    """Writes some records and deletes some, all or none; every second time only at the revisions that are known."""
    dice, number, writes = desk.dice, desk.book.used, dict[str, str | None]()
    for place, key in enumerate(dice.sample(KEYS, dice.randint(1, 3))):
        is_gone = place and key in known.records and dice.random() < 0.4
        writes[key] = None if is_gone else f"{known.name} {key} {number} " * dice.choice(REPEATS)
    revisions = {key: known.records[key][1] if key in known.records else 0 for key in writes} if number % 2 else {}
    waits = HAS_ARCHIVE in os.environ and dice.random() < 0.5

    def send(_: str) -> dict[str, Any]:
        changes = [
            Delete(key, revisions.get(key)) if value is None else Put(key, value, expected=revisions.get(key))
            for key, value in writes.items()
        ]
        thread, is_archived = desk.client.thread(known.name), False
        written = desk.do(thread.records.write(changes))
        if waits:
            with suppress(NotArchivedYet):
                desk.do(thread.archive.wait(written.sequence, timeout=ARCHIVED_S))
                is_archived = True
        return {"revision": written.revision, "archived": is_archived}

    desk.ask("put", send, thread=known.name, writes=writes)
