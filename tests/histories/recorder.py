"""Writes down what happens, as JSON lines (checker/record.go says what they mean). Judges nothing."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PADDING_BYTES = (0, 20, 300, 3_000, 20_000)
PADDING_WEIGHTS = (5, 10, 6, 3, 1)


class Recorder:
    """One history, from several threads of this process, whose clock they share."""

    def __init__(self, path: Path, **setup: Any) -> None:
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._count = 0
        self.counts: Counter[str] = Counter()
        self.write("setup", **setup)

    def write(self, kind: str, **facts: Any) -> None:
        """A line."""
        line = json.dumps({"kind": kind, **facts})
        with self._lock:
            self._file.write(line + "\n")

    def event(self, what: str, **facts: Any) -> None:
        """Something that people want to see in a history; the checker passes over it."""
        self.counts[what] += 1
        self.write("event", what=what, time=time.monotonic_ns(), **facts)

    def operation(self, **facts: Any) -> None:
        """An operation with its attempts."""
        self.counts["operations"] += 1
        for attempt in facts["attempts"]:
            reason = "" if attempt["outcome"] in ("ok", "fenced") else str(attempt.get("reason", ""))
            self.counts[f"{facts['do']}: {attempt['outcome']} {reason.partition(':')[0]}".strip()] += 1
        self.write("op", **facts)

    def loss(self, machine: str, thread: str) -> None:
        """A machine lost its copy of a thread; empty: of all."""
        self.write("loss", machine=machine, thread=thread, time=time.monotonic_ns())

    def number(self) -> int:
        """A fresh number for an operation."""
        with self._lock:
            self._count += 1
            return self._count

    def close(self) -> None:
        self._file.close()


class Words:
    """What clients append: a token that nobody else uses, and padding that follows from it."""

    def __init__(self, seed: object) -> None:
        self._seed = seed
        self._made: dict[str, bytes] = {}

    def make(self, token: str, dice: random.Random) -> bytes:
        """The entry of a token."""
        (size,) = dice.choices(PADDING_BYTES, PADDING_WEIGHTS)
        entry = f"{token}:".encode() + random.Random(f"{self._seed} {token}").randbytes(size)
        self._made[token] = entry
        return entry

    def read(self, entry: bytes) -> str:
        """The token of an entry; marked if the entry is not what was made."""
        token = entry.partition(b":")[0].decode(errors="replace")
        return token if self._made.get(token) == entry else f"{token} damaged"

    def knows(self, tokens: Iterable[str]) -> bool:
        """Whether all of these were made here."""
        return all(token in self._made for token in tokens)

    def entry(self, token: str) -> bytes:
        """The entry that was made of a token."""
        return self._made[token]


__all__ = ["Recorder", "Words"]
