"""What an agent does everything through: the client and the ledger. Nothing is sent that is not written down before."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.soak.ledger import Known, Ledger, hash_of, read_book, read_lines

from stateward import State
from stateward.errors import Exhausted

NAMESPACE = "soak"


class Wrong(Exception):
    """The daemon broke a promise."""


class Desk:
    """A client, a ledger and what follows from it. `do` waits for what a client's method returns."""

    def __init__(self, client: Any, do: Callable[[Any], Any], number: int, seed: str, path: Path) -> None:
        self.client, self.do, self.number = client, do, number
        self.book = read_book(read_lines(path))
        self._ledger = Ledger(path.open("a"))
        self.dice = random.Random(f"{seed} {number} {self.book.used}")

    def note(self, event: str, key: str, **facts: Any) -> None:
        self.book.take(self._ledger.write(event, key, **facts))

    def ask(self, op: str, send: Callable[[str], dict[str, Any]], **facts: Any) -> bool:
        """False: refused for want of room, so it did not happen."""
        key = f"{self.number}.{self.book.used}"
        self.note("asked", key, op=op, **facts)
        try:
            answer = send(key)
        except Exhausted as error:
            self.note("refused", key, reason=error.reason)
            time.sleep(self.dice.uniform(0.1, 0.4))
            return False
        self.note("answered", key, **answer)
        return True

    def part(self, name: str, digest: str, branch: str = "main") -> dict[str, Any]:
        known = self.book.threads.get(name)
        return {"thread": name, "branch": branch, "hash": digest, "head": known.head(branch) if known else 0}

    def check(self, known: Known, state: State, version: int) -> None:
        """A state that was read is the one that was saved."""
        saved, made = known.versions[version], made_of(state.checkpoint)
        expected = {"version": version, "uid": known.uid, "digest": saved.digest or made["digest"]}
        if made != expected or hash_of(state) != saved.hash:
            raise Wrong(f"{known.name} at {version}: {made} instead of {expected}, state {hash_of(state)}, {saved}")


def made_of(checkpoint: Any) -> dict[str, Any]:
    """What identifies a version."""
    return {"version": checkpoint.version, "digest": checkpoint.digest.hex(), "uid": checkpoint.uid}
