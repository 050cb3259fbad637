"""A thread that is deleted and made again, and clients that go on with a creation that is gone.

Each write names the creation that it continues. The rules need no order, so they are checked here, at once and at the
end, and the checker is told what is broken.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.histories import calls
from tests.histories.calls import LOG, Attempt
from tests.histories.machines import Machine
from tests.histories.recorder import Recorder

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions

THREAD = "gone"
PAUSE_S = 0.03
NEVER = float("inf")
SHOWN = ("durability", "replayed", "version", "reason")  # what a history shows of the answer to a save


@dataclass
class Creation:
    """What clients know of one creation of the thread."""

    sent: set[str] = field(default_factory=set)  # words of saves that named it, or made it
    archived: set[str] = field(default_factory=set)  # of these, what was answered ARCHIVED
    asked: float = NEVER  # when its deletion was asked for first
    deleted: float = NEVER  # when a deletion was answered by a daemon that could know of the creation


class Ledger:
    """What was asked and answered about the thread. ``stale_s``: how long a replaced owner may go on."""

    def __init__(self, recorder: Recorder, stale_s: float) -> None:
        self._recorder, self._stale_s = recorder, stale_s
        self._lock = threading.Lock()
        self.creations: dict[str, Creation] = {}
        self.makers: set[str] = set()  # words of saves that may have made a creation and were not answered

    def find(self, machine: str, text: str) -> None:
        """Something is broken."""
        self._recorder.write("finding", machine=machine, thread="", text=f"thread {THREAD}: {text}")

    def uids(self) -> list[str]:
        with self._lock:
            return list(self.creations)

    def send(self, word: str, uid: str) -> None:
        """A save is on its way; without ``uid`` it may make the thread."""
        with self._lock:
            (self.creations[uid].sent if uid else self.makers).add(word)

    def saved(self, machine: str, word: str, uid: str, answer: Attempt, begun: float) -> None:
        """A save was answered."""
        with self._lock:
            if uid and answer["uid"] != uid:
                self.find(machine, f"a save to {uid} reached {answer['uid']}")
            made = self.creations.setdefault(answer["uid"], Creation())
            made.sent.add(word)
            is_archived = answer["durability"] == "archived"
            if is_archived:
                made.archived.add(word)
            late = 0.0 if is_archived and not answer["replayed"] else self._stale_s
            if uid and begun > made.deleted + late:
                self.find(machine, f"a save reached {uid} {begun - made.deleted:.1f} s after its deletion was answered")

    def asked(self, uid: str) -> bool:
        """A deletion is on its way. Returns whether every daemon can know of the creation."""
        with self._lock:
            made = self.creations[uid]
            made.asked = min(made.asked, time.monotonic())
            return bool(made.archived)  # else perhaps only the daemon that made it

    def deleted(self, uid: str) -> None:
        with self._lock:
            self.creations[uid].deleted = min(self.creations[uid].deleted, time.monotonic())

    def read(self, machine: str, uid: str, words: Sequence[str], begun: float, *, is_end: bool = False) -> None:
        """A state was read."""
        with self._lock:
            made = self.creations.setdefault(uid, Creation())
            if begun > made.deleted + self._stale_s or (is_end and made.deleted != NEVER):
                self.find(machine, f"{uid} is shown {begun - made.deleted:.1f} s after its deletion was answered")
            if strange := [word for word in words if word not in made.sent and word not in self.makers]:
                self.find(machine, f"{uid} has words of another creation: {strange}")
            if len(set(words)) < len(words):
                self.find(machine, f"{uid} has a word twice: {words}")
            if is_end and (lost := made.archived - set(words)):
                self.find(machine, f"{uid} lacks words that were answered ARCHIVED: {sorted(lost)}")

    def absent(self, machine: str) -> None:
        """At the end, there is no thread: each one was to be deleted."""
        with self._lock:
            for uid, made in self.creations.items():
                if made.asked == NEVER and made.archived:
                    self.find(machine, f"{uid} is gone, and nobody asked for its deletion")


class LateWriter(threading.Thread):
    """A client that appends to the creation that it knows, be it gone, and deletes it now and then."""

    def __init__(
        self, number: int, machines: Sequence[Machine], ledger: Ledger, recorder: Recorder, seed: object,
        is_over: threading.Event, operations: int,
    ) -> None:  # fmt: skip
        super().__init__(name=f"late writer {number}", daemon=True)
        self._number, self._machines, self._ledger, self._recorder = number, machines, ledger, recorder
        self._dice = random.Random(f"{seed} late writer {number}")
        self._is_over, self._operations = is_over, operations
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for operation in range(self._operations):
                if self._is_over.is_set():
                    return
                self.operate(f"{self._number}-{operation}")
                time.sleep(self._dice.expovariate(1 / PAUSE_S))
        except BaseException as error:  # noqa: BLE001  (the driver looks at it)
            self.error = error

    def operate(self, word: str) -> None:
        """One operation."""
        machine, uids = self._dice.choice(self._machines), self._ledger.uids()
        what = self._dice.choices(("make", "append", "late", "read", "delete"), (15, 35, 20, 20, 10))[0]
        if what == "make" or not uids:
            self.save(machine, word, "")
        elif what == "append":
            self.save(machine, word, uids[-1])
        elif what == "late":
            self.save(machine, word, self._dice.choice(uids[-4:]))
        elif what == "read":
            read(machine, self._ledger, self._timeout())
        else:
            self.delete(machine, self._dice.choice(uids[-2:]))

    def _timeout(self) -> float:
        return self._dice.choice((0.5, 1.0, 3.0))

    def save(self, machine: Machine, word: str, uid: str) -> None:
        """Appends a word; sends it again if it is not answered, there or elsewhere."""
        durability = DURABILITY_ARCHIVED if self._dice.random() < 0.5 else DURABILITY_COMMITTED
        request = SaveRequest(
            thread=THREAD,
            options=WriteOptions(request_id=secrets.token_hex(16), expected_uid=uid, durability=durability),
        )
        edit = request.diff.edits.add().append
        edit.log = LOG
        edit.entries.add(media_type="text/plain", data=word.encode())
        self._ledger.send(word, uid)
        for _ in range(2):
            begun = time.monotonic()
            answer = calls.save(machine, request, self._timeout())
            self._recorder.event(
                f"late save: {answer['outcome']}", machine=machine.name, uid=uid or answer.get("uid", ""), word=word,
                seconds=round(time.monotonic() - begun, 3), **{key: answer[key] for key in SHOWN if key in answer},
            )  # fmt: skip
            if answer["outcome"] == "ok":
                self._ledger.saved(machine.name, word, uid, answer, begun)
            elif answer["outcome"] == "broken":
                self._ledger.find(machine.name, f"a save was answered {answer['reason']}")
            if answer["outcome"] != "unknown":
                return
            if not uid:
                return  # sent again, it might make the next thread
            machine = self._dice.choice(self._machines)

    def delete(self, machine: Machine, uid: str) -> None:
        """Deletes a creation everywhere."""
        is_known = self._ledger.asked(uid)
        request = DeleteThreadRequest(thread=THREAD, options=WriteOptions(expected_uid=uid), allow_missing=True)

        def call() -> Attempt:
            machine.wire.threads.DeleteThread(request, timeout=self._timeout())
            return {"outcome": "ok"}

        answer = calls.attempt(machine, THREAD, call)
        self._recorder.event(f"late delete: {answer['outcome']}", machine=machine.name, uid=uid, is_known=is_known)
        if answer["outcome"] == "ok":
            if is_known:  # else the daemon may have found nothing to delete
                self._ledger.deleted(uid)
        elif answer["outcome"] == "broken":
            self._ledger.find(machine.name, f"a deletion was answered {answer['reason']}")


def read(machine: Machine, ledger: Ledger, timeout_s: float, *, is_end: bool = False) -> None:
    """Reads the thread, and tells the ledger."""
    seen: list[tuple[str, list[str]]] = []
    begun = time.monotonic()

    def call() -> Attempt:
        answer = machine.wire.checkpoints.Hydrate(
            HydrateRequest(thread=THREAD, max_bytes=calls.PAGE_BYTES), timeout=timeout_s, wait_for_ready=is_end
        )
        words = [entry.data.decode() for entry in answer.state.logs[LOG].entries] if answer.state.logs else []
        seen.append((answer.checkpoint.uid, words))
        return {"outcome": "ok"}

    answer = calls.attempt(machine, THREAD, call)
    for uid, words in seen:
        ledger.read(machine.name, uid, words, begun, is_end=is_end)
    if answer["outcome"] == "broken" or (is_end and answer["outcome"] not in ("ok", "absent")):
        ledger.find(machine.name, f"a read was answered {answer.get('reason', answer['outcome'])}")
    elif is_end and answer["outcome"] == "absent":
        ledger.absent(machine.name)


__all__ = ["THREAD", "LateWriter", "Ledger", "read"]
