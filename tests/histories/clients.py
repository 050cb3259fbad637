"""The clients of a history: each does one operation after the other, and tries again as a program does."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.histories import calls, pictures
from tests.histories.calls import LOG, SLOT, Attempt
from tests.histories.machines import Machine
from tests.histories.pictures import CONTENTS, HUGE, reference
from tests.histories.pictures import SLOT as PICTURE
from tests.histories.recorder import Recorder, Words

from stateward.v1.checkpoint_pb2 import (
    DURABILITY_ARCHIVED,
    DURABILITY_COMMITTED,
    WORK_STATUS_RUNNING,
    WORK_STATUS_WAITING,
)
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import ATTACH_MODE_TAKE_OVER, AttachRequest, WaitDurableRequest
from stateward.v1.write_pb2 import Receipt, WriteOptions

PAUSE_S = 0.02
BINARY = "application/octet-stream"


@dataclass(frozen=True)
class Habits:
    """What clients do how often, 0 to 1. ``operations``: when a client is done."""

    operations: int = 120
    moves: float = 0.15  # goes to another machine than its own
    archived: float = 0.35  # asks for ARCHIVED
    waiting: float = 0.05  # saves as WAITING, which gives the thread up
    retries: float = 0.9  # sends a save again that was not answered
    needless: float = 0.06  # sends a save again that was answered
    late: float = 0.06  # instead of something new, sends a save again that is long past
    only_reads: float = 0.25  # of the threads of a client
    reads_first: float = 0.5  # reads before it tries again elsewhere
    pictures: float = 0.2  # writes a large value, and then perhaps names it
    huge: float = 0.0  # of these are huge
    takes_over: float = 0.05  # takes a thread that another machine holds


@dataclass
class Written:
    """A save of a client: what it sends, each time the same, and what that was answered."""

    do: str
    token: str
    request: SaveRequest
    picture: bytes = b""  # a large value that it names
    attempts: list[Attempt] = field(default_factory=list)

    def expected(self) -> dict[str, object]:
        """What it compares with, for the record."""
        if not self.request.options.HasField("expected_version"):
            return {}
        return {
            "expected_version": self.request.options.expected_version,
            "expected_digest": self.request.options.expected_digest.hex()
        }  # fmt: skip


class Client(threading.Thread):
    """One client. ``is_over`` ends it early."""

    def __init__(
        self, number: int, machines: Sequence[Machine], threads: Sequence[str], recorder: Recorder, words: Words,
        habits: Habits, seed: object, is_over: threading.Event, operations: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name=f"client {number}", daemon=True)
        self.number = number
        self._machines, self._threads = machines, threads
        self._recorder, self._words, self._habits = recorder, words, habits
        self._dice = random.Random(f"{seed} client {number}")
        self._is_over = is_over
        self._operations = operations or habits.operations
        self._known: dict[str, Attempt] = {}  # what it saw last of each thread
        self._only_reads = {thread for thread in threads if self.chance(habits.only_reads)}
        self._written: list[Written] = []  # recorded at the end, as each may be sent again
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self._operations):
                if self._is_over.is_set():
                    return
                self.operate()
                time.sleep(self._dice.expovariate(1 / PAUSE_S))
        except BaseException as error:  # noqa: BLE001  (the driver looks at it)
            self.error = error
        for each in self._written:
            self.record(each.request.thread, each.do, each.attempts, token=each.token, **each.expected())

    def operate(self) -> None:
        """One operation."""
        if self._written and self.chance(self._habits.late):
            self.send(self._dice.choice(self._written))
            return
        thread = self._dice.choice(self._threads)
        what = self._dice.choices(("append", "save", "read", "look"), (35, 35, 25, 5))[0]
        if thread in self._only_reads and what in ("append", "save"):
            what = "read"
        known = self._known.get(thread)
        if known is not None and known["version"] and self.chance(self._habits.pictures):  # and never names it
            pictures.write(self.machine(), thread, self.picture(), self.timeout())
        if what == "save" and (known is None or self.chance(0.3)):
            self.read(self.machine(), thread)
        if what == "read":
            self.read(self.machine(), thread)
        elif what == "look":
            if known is not None and known["version"]:
                self.read(self.machine(), thread, self._dice.randint(1, known["version"]))
        elif what == "append" or thread in self._known:
            self.write(thread, what)

    def machine(self) -> Machine:
        """Its own, mostly. Waits a moment for one that does not run, and calls it all the same."""
        machine = self._machines[self.number % len(self._machines)]
        if self.chance(self._habits.moves):
            machine = self._dice.choice(self._machines)
        for _ in range(20):
            if machine.is_running:
                break
            time.sleep(0.05)
        return machine

    def picture(self) -> bytes:
        """A large value."""
        huge = self._habits.huge
        return self._dice.choice(HUGE if huge and self.chance(huge) else CONTENTS)

    def chance(self, share: float) -> bool:
        return self._dice.random() < share

    def timeout(self) -> float:
        return self._dice.choice((0.3, 1.0, 3.0))

    def record(self, thread: str, do: str, attempts: list[Attempt], **facts: object) -> None:
        self._recorder.operation(
            id=self._recorder.number(), client=self.number, thread=thread, do=do, attempts=attempts, **facts
        )

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, machine: Machine, thread: str, version: int = 0) -> None:
        """Reads the head, or an older version."""
        answer = calls.read(machine, self._words, thread, version, self.timeout())
        self.record(thread, "look" if version else "read", [answer])
        if not version and answer["outcome"] == "ok":
            self._known[thread] = answer
        elif not version and answer["outcome"] == "absent":
            self._known[thread] = {"version": 0, "digest": "", "log": []}

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, thread: str, do: str) -> None:
        """Appends, or compares and swaps."""
        token = f"{self.number}.{self._recorder.number()}"
        self._words.make(token, self._dice)
        known = self._known.get(thread) if do == "save" else None
        written = Written(do, token, self.request(thread, token, known))
        if self._known.get(thread, {}).get("version") and self.chance(self._habits.pictures):
            written.picture = self.picture()
            if written.request.HasField("state"):
                written.request.state.slots[PICTURE].blob.CopyFrom(reference(written.picture))
            else:
                slot = written.request.diff.edits.add().set_slot
                slot.slot = PICTURE
                slot.value.blob.CopyFrom(reference(written.picture))
        self._written.append(written)
        self.learn(token, known, thread, self.send(written))

    def send(self, written: Written) -> Attempt:
        """Sends a save, always the same request, until it is answered or the client gives up."""
        machine, thread = self.machine(), written.request.thread
        for _ in range(4):
            if written.picture:
                pictures.write(machine, thread, written.picture, self.timeout())
            answer = calls.save(machine, written.request, self.timeout())
            written.attempts.append(answer)
            if answer["outcome"] == "ok" and self.is_to_wait(answer):
                written.attempts.append(self.wait(machine, thread, answer))
            if not self.tries_again(machine, thread, answer):
                break
            if self.chance(self._habits.moves * 2):
                machine = self._dice.choice(self._machines)
            if self.chance(self._habits.reads_first):
                self.read(machine, thread)
            time.sleep(self._dice.uniform(0, 0.2))
        return answer

    def request(self, thread: str, token: str, known: Attempt | None) -> SaveRequest:
        """A save that adds one token, to whatever is there or to what this client knows."""
        request = SaveRequest(
            thread=thread, options=WriteOptions(request_id=secrets.token_hex(16), durability=DURABILITY_COMMITTED),
            status=WORK_STATUS_RUNNING
        )
        if self.chance(self._habits.archived):
            request.options.durability = DURABILITY_ARCHIVED
        if known is not None:
            request.options.expected_version = known["version"]
            if known["version"] and self.chance(0.8):
                request.options.expected_digest = bytes.fromhex(known["digest"])
            if self.chance(self._habits.waiting):
                request.status = WORK_STATUS_WAITING
        is_sure = known is not None and bool(request.options.expected_digest)
        if is_sure and self._words.knows(known["log"]) and self.chance(0.3):
            log = request.state.logs[LOG]
            for each in (*known["log"], token):
                log.entries.add(media_type=BINARY, data=self._words.entry(each))
            request.state.slots[SLOT].media_type, request.state.slots[SLOT].data = BINARY, token.encode()
            return request
        edit = request.diff.edits.add().append
        edit.log = LOG
        edit.entries.add(media_type=BINARY, data=self._words.entry(token))
        slot = request.diff.edits.add().set_slot
        slot.slot = SLOT
        slot.value.media_type, slot.value.data = BINARY, token.encode()
        return request

    def is_to_wait(self, answer: Attempt) -> bool:
        """Whether it waits for the archive after a save that asked for less."""
        return bool(self._habits.archived) and answer["durability"] == "committed" and self.chance(0.15)

    def wait(self, machine: Machine, thread: str, made: Attempt) -> Attempt:
        """Waits until a save is archived."""
        request = WaitDurableRequest(
            thread=thread, durability=DURABILITY_ARCHIVED,
            receipt=Receipt(uid=made["uid"], sequence=made["sequence"], digest=bytes.fromhex(made["digest"])),
        )  # fmt: skip
        return calls.wait_archived(machine, request, made, self.timeout())

    def tries_again(self, machine: Machine, thread: str, answer: Attempt) -> bool:
        """Whether the same save is sent once more."""
        outcome = answer["outcome"]
        if outcome == "ok":
            return self.chance(self._habits.needless)
        if outcome == "unknown":
            return self.chance(self._habits.retries)
        if answer.get("reason") == "NOT_OWNER" and self.chance(self._habits.takes_over):
            self.take_over(machine, thread)
            return True
        return outcome in ("fenced", "refused") and self.chance(0.3)

    def take_over(self, machine: Machine, thread: str) -> None:
        """Takes a thread from whoever holds it."""
        self._recorder.event("take over", machine=machine.name, thread=thread)
        request = AttachRequest(thread=thread, mode=ATTACH_MODE_TAKE_OVER)

        def attach() -> Attempt:
            machine.wire.threads.Attach(request, timeout=3)
            return {"outcome": "ok"}

        self.record(thread, "attach", [calls.attempt(machine, thread, attach)])

    def learn(self, token: str, known: Attempt | None, thread: str, last: Attempt) -> None:
        """What it knows of the thread from now on."""
        if last["outcome"] == "ok" and known is not None and last["version"] == known["version"] + 1:
            self._known[thread] = {**last, "log": [*known["log"], token]}
        elif last["outcome"] in ("mismatch", "fenced"):
            self._known.pop(thread, None)
