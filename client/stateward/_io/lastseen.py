"""What a client has seen of each thread, in a file (`STATEWARD_LAST_SEEN`): so a store that was set back is found.

The daemon cannot notice that its whole directory, or its bucket, was replaced by an older copy. Whoever keeps the
digest of the last journal entry elsewhere can. At the first call about a thread, a client asks whether the thread still
has the entry that the file names. It notes the entry of each answer. A stream is such a call, too, each time that it is
opened again; and so is a call that found the daemon away, before its answer counts.

    {"namespace":"default","thread":"job","uid":"…","sequence":7,"digest":"…","archived":[6,"…"],"epoch":2}

The file is a log: the newest line about a thread counts, and several processes append to it. A line without `uid` says
that nothing is known. A line that is not whole is passed over. A file that has grown is written anew.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stateward._operations.steps import Call, Operation, Step, T, through
from stateward.errors import (
    Fenced,
    PermissionDenied,
    SaveLost,
    SetBack,
    StatewardError,
    ThreadNotFound,
    UidMismatch,
    VersionNotFound,
    VersionPruned,
)
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.thread_pb2 import THREAD_ACCESS_REMOTE, ThreadInfo
from stateward.v1.thread_service_pb2 import GetThreadRequest, WaitDurableRequest, WatchResponse
from stateward.v1.write_pb2 import Receipt
from stateward.v1.writer_service_pb2 import WriteResponse

VARIABLE = "STATEWARD_LAST_SEEN"
FILE_BYTES_MAX, LINES_MIN = 256 << 10, 1000
"""A larger file is written anew if most of its lines no longer count."""
PENDING_MAX = 256
"""So many entries that may not be archived yet are remembered."""
ORPHAN_MARK = "@@"
"""In the names of orphans, which have entries that their thread has not."""
_NEW_THREADS = ("ForkThread", "ImportThread", "DeleteThread")
"""Whose answers are about another thread than the request names, or about none."""
_STREAMS = ("Watch", "ReadHistory", "ReadBlob", "ExportThread", "Write")
"""Those whose readers go on from what they read. Those that examine a store are to find more than this."""
Name = tuple[str, str]
Place = tuple[int, bytes]
"""A sequence, and the digest of its entry."""


@dataclass(slots=True)
class Seen:
    """The newest entry of a thread that was seen."""

    uid: str
    sequence: int
    digest: bytes
    archived: Place | None = None
    """The newest one that was known to be archived."""
    epoch: int = 0
    """The owner epoch; 0 = unknown."""
    pending: deque[Place] = field(default_factory=lambda: deque(maxlen=PENDING_MAX))

    def line(self, name: Name) -> bytes:
        """Returns the line of the file."""
        told: dict[str, Any] = {
            "namespace": name[0], "thread": name[1], "uid": self.uid, "sequence": self.sequence,
            "digest": self.digest.hex(),
        }  # fmt: skip
        if self.archived is not None:
            told["archived"] = [self.archived[0], self.archived[1].hex()]
        if self.epoch:
            told["epoch"] = self.epoch
        return json.dumps(told, separators=(",", ":")).encode() + b"\n"


class LastSeen:
    """The file, and what this process has checked. Used by all threads of a client, and by all its event loops."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be opened, or the system has no locks of files (Windows)."""
        try:
            import fcntl
        except ImportError:
            raise OSError(errno.ENOTSUP, f"{VARIABLE} needs locks of files, which this system has not") from None
        self._path = path
        self._take_lock, self._give_lock = fcntl.LOCK_EX, fcntl.LOCK_UN
        self._flock = fcntl.flock
        self._lock = threading.Lock()
        self._checked, self._asked = set[Name](), set[Name]()
        self._seen = dict[Name, Seen]()
        self._has_warned = False
        self._fd = self._open()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        """Closes the file with the last client that uses it."""
        if getattr(self, "_fd", -1) >= 0:
            close(self._fd)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> LastSeen | None:
        """Returns the file that the environment names; None = it names none. Raises OSError."""
        path = environment.get(VARIABLE)
        return cls(Path(path)) if path else None

    def watching(self, operation: Operation[T]) -> Operation[T]:
        """Returns the same operation, which checks threads at their first call, and notes what answers say."""
        return through(operation, self._perform)

    def _perform(self, step: Step) -> Operation[object]:
        names = _names(step)
        yield from self._check_all(names)
        answer = yield step
        if isinstance(step, Call) and step.method != "DeleteThread":
            yield from self._check_all(names)  # again only if the daemon was away before it answered
        if isinstance(step, Call) and names:
            for name, each in zip(names, _answers(step, answer), strict=False):
                if step.method == "DeleteThread":
                    self._forget(name)
                else:
                    self._note(name, each, with_receipt=step.method not in _NEW_THREADS)
                    yield from self._ask_epoch(name)
        return answer

    def doubt(self) -> None:
        """Notes that the daemon is away: it may come back with another store, so each thread is checked again."""
        self._checked.clear()

    def _check_all(self, names: list[Name]) -> Operation[None]:
        for name in names:
            if name not in self._checked:
                yield from self._check(name)

    def _ask_epoch(self, name: Name, *, is_new: bool = False) -> Operation[None]:
        """Asks once for the owner epoch of a thread that was seen: it tells a takeover from worse. ``is_new``: also of
        one that was not seen yet."""
        seen = self._seen.get(name)
        if name in self._asked or (not is_new if seen is None else seen.epoch):
            return
        self._asked.add(name)
        try:
            self._note(
                name, (yield Call("GetThread", GetThreadRequest(namespace=name[0], thread=name[1]))), with_receipt=False
            )
        except ThreadNotFound:
            self._asked.discard(name)
        except StatewardError:
            return  # the caller has its answer

    # Streams.

    def opening(self, method: str, namespace: str, thread: str, *, again: bool) -> Operation[None]:
        """Checks the thread of a stream before it is opened, and what is known of it. ``again``: the stream was open
        and broke, and the daemon that comes back may have another store."""
        name = namespace or "default", thread
        if method not in _STREAMS or not _is_known_by_name(thread):
            return
        if again or name not in self._checked:
            yield from self._check(name)
        yield from self._ask_epoch(name, is_new=True)

    def hear(self, namespace: str, thread: str, message: Any) -> None:
        """Notes what a message of a stream says of its thread. Nobody is asked: whoever waits for the message may give
        up at any moment, and must not lose it."""
        name = namespace or "default", thread
        if name not in self._asked and not getattr(self._seen.get(name), "epoch", 0):
            return  # without its epoch, a save that a takeover loses would look like a store that was set back
        if isinstance(message, WatchResponse):
            for event in message.events:
                self._note(name, event, with_receipt=False)
        elif isinstance(message, WriteResponse):
            self._note(name, message.saved.save if message.HasField("saved") else message.opened, with_receipt=True)

    # The check.

    def _check(self, name: Name) -> Operation[None]:
        seen = self._look(name)
        if seen is None:
            self._checked.add(name)
            return
        try:
            info = (yield Call("GetThread", GetThreadRequest(namespace=name[0], thread=name[1]))).thread
        except PermissionDenied:
            self._checked.add(name)  # it may write only: what it writes on is compared anyway
            return
        except (ThreadNotFound, UidMismatch):
            info = ThreadInfo()
        if info.uid != seen.uid:
            self._forget(name)  # it is told once
            raise UidMismatch(
                f"thread {name[1]!r} was deleted since this client saw it, or its store was replaced"
                + (": the name has another thread now" if info.uid else ""),
                reason="UID_MISMATCH", metadata={"thread": name[1], "uid": info.uid, "expected_uid": seen.uid},
            )  # fmt: skip
        place = seen.sequence, seen.digest
        if place != (info.sequence, info.sequence_digest):
            yield from self._find(name, seen, info)
        if info.owner_epoch != seen.epoch:
            seen.epoch = info.owner_epoch
            self._append(seen.line(name))
        self._checked.add(name)

    def _find(self, name: Name, seen: Seen, info: ThreadInfo) -> Operation[None]:
        """Raises SetBack or SaveLost if the thread lacks the entry."""
        try:
            if (yield from self._has(name, seen.uid, (seen.sequence, seen.digest))):
                return
            orphan = ""
        except Fenced as fenced:
            orphan = fenced.orphan
        is_archived = seen.archived is not None and seen.archived[0] >= seen.sequence
        if not is_archived and info.access == THREAD_ACCESS_REMOTE:
            return  # its owner may have it, and not have archived it yet
        facts = {"thread": name[1], "sequence": str(seen.sequence), "newest_sequence": str(info.sequence)}
        what = f"thread {name[1]!r} lacks entry {seen.sequence} of its journal, which this client has seen"
        try:
            keeps = seen.archived is None or (yield from self._has(name, seen.uid, seen.archived))
        except Fenced:
            keeps = False
        if orphan or (keeps and not is_archived and 0 < seen.epoch < info.owner_epoch):
            self._forget(name)  # it is told once
            kept = f"; thread {orphan!r} keeps it" if orphan else ""
            raise SaveLost(
                f"{what}: it was not archived, and went when another sidecar took the thread{kept}. Read the thread "
                "anew",
                reason="SAVE_LOST", metadata={**facts, "orphan": orphan},
            )  # fmt: skip
        raise SetBack(
            f"{what}: its store or its archive was set back. Do not go on from it; if that is meant, remove "
            f"the thread from {self._path}",
            reason="SET_BACK", metadata=facts,
        )  # fmt: skip

    @staticmethod
    def _has(name: Name, uid: str, place: Place) -> Operation[bool]:
        """Whether the thread has an entry. Raises Fenced if an orphan has it."""
        receipt = Receipt(uid=uid, sequence=place[0], digest=place[1])
        request = WaitDurableRequest(
            namespace=name[0], thread=name[1], receipt=receipt, durability=DURABILITY_COMMITTED
        )
        try:
            yield Call("WaitDurable", request)
        except VersionNotFound:
            return False
        except VersionPruned:
            return True  # nobody can tell any more
        return True

    # What answers say.

    def _note(self, name: Name, answer: Any, *, with_receipt: bool) -> None:
        found = _found(name, answer, with_receipt=with_receipt)
        if found is None:
            return
        uid, place, archived_sequence, epoch = found
        with self._lock:
            seen = self._seen.get(name)
            if seen is None or seen.uid != uid:
                seen = self._seen[name] = Seen(uid, 0, b"")
            before = seen.sequence, seen.archived, seen.epoch
            if place[0] > seen.sequence:
                seen.sequence, seen.digest = place
            if place[0] > (seen.archived[0] if seen.archived else 0):
                seen.pending.append(place)
            archived = [each for each in seen.pending if each[0] <= archived_sequence]
            if archived and (seen.archived is None or max(archived)[0] > seen.archived[0]):
                seen.archived = max(archived)
            seen.epoch = max(epoch, seen.epoch)
            if before == (seen.sequence, seen.archived, seen.epoch):
                return
            line = seen.line(name)
        self._append(line)

    def _forget(self, name: Name) -> None:
        if self._look(name) is not None:
            self._append(json.dumps({"namespace": name[0], "thread": name[1]}).encode() + b"\n")
        with self._lock:
            self._seen.pop(name, None)

    # The file.

    def _look(self, name: Name) -> Seen | None:
        """Returns what the file says of a thread now: another process may have written it."""
        with self._lock, self._locked():
            found = _fold(self._read()).get(name)
            if found is not None:
                self._seen[name] = found
            return found

    def _append(self, line: bytes) -> None:
        """Adds a line. If the file cannot be written, warns once: what was saved is saved."""
        try:
            with self._lock, self._locked():
                size_bytes = os.fstat(self._fd).st_size
                is_torn = size_bytes and os.pread(self._fd, 1, size_bytes - 1) != b"\n"
                os.write(self._fd, b"\n" + line if is_torn else line)
                if size_bytes > FILE_BYTES_MAX:
                    self._shrink()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(f"{self._path} cannot be written: {error.strerror}", RuntimeWarning, stacklevel=2)

    def _shrink(self) -> None:
        """Writes the file anew if most of its lines no longer count. Called under its lock."""
        data = self._read()
        kept = _fold(data)
        if data.count(b"\n") < max(LINES_MIN, 2 * len(kept)):
            return
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as written:
            written.write(b"".join(seen.line(name) for name, seen in kept.items()))
            written.flush()
            os.fsync(descriptor)
        part.replace(self._path)

    def _read(self) -> bytes:
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Locks the file that has the name now: another process may have written it anew."""
        while True:
            self._flock(self._fd, self._take_lock)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(self._path.stat(), os.fstat(self._fd)):
                    break
            former, self._fd = self._fd, self._open()
            os.close(former)
        try:
            yield
        finally:
            self._flock(self._fd, self._give_lock)

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _names(step: Step) -> list[Name]:
    """Returns the threads that a step is about."""
    if not isinstance(step, Call) or step.method in ("Attach", "Detach"):
        return []
    request: Any = step.request
    several = request.saves if step.method == "BatchSave" else [request]
    named = [each for each in several if "thread" in each.DESCRIPTOR.fields_by_name]
    return [(each.namespace or "default", each.thread) for each in named if _is_known_by_name(each.thread)]


def _is_known_by_name(thread: str) -> bool:
    """Whether a field names one thread, which is no orphan."""
    return thread not in ("", "-") and ORPHAN_MARK not in thread


def _answers(step: Call, answer: Any) -> list[Any]:
    return list(answer.saves) if step.method == "BatchSave" else [answer]


def _found(name: Name, answer: Any, *, with_receipt: bool) -> tuple[str, Place, int, int] | None:
    """Returns what an answer says of a thread: its uid, an entry, the newest archived sequence, and the epoch."""
    fields = getattr(getattr(answer, "DESCRIPTOR", None), "fields_by_name", {})

    def has(field_name: str) -> bool:
        return field_name in fields and fields[field_name].message_type is not None and answer.HasField(field_name)

    if with_receipt and has("receipt") and isinstance(answer.receipt, Receipt):
        told = answer.receipt
        if told.uid and told.sequence and told.digest:
            archived = told.sequence if told.durability == DURABILITY_ARCHIVED else 0
            return told.uid, (told.sequence, told.digest), max(told.archived_sequence, archived), 0
    if has("checkpoint") and (told := answer.checkpoint).uid and told.sequence and told.thread in ("", name[1]):
        archived = told.sequence if told.durability == DURABILITY_ARCHIVED else 0
        return told.uid, (told.sequence, told.digest), archived, 0
    if has("thread") and isinstance(answer.thread, ThreadInfo) and answer.thread.thread == name[1]:
        info = answer.thread
        if info.uid and info.sequence_digest:
            return info.uid, (info.sequence, info.sequence_digest), info.archived_sequence, info.owner_epoch
    return None


def _fold(data: bytes) -> dict[Name, Seen]:
    """Returns what the lines say: of one creation of a thread the newest entry, else the last line."""
    found: dict[Name, Seen] = {}
    for line in data.splitlines():
        try:
            told = json.loads(line)
            name = str(told["namespace"]), str(told["thread"])
            if "uid" not in told:
                found.pop(name, None)
                continue
            archived = told.get("archived")
            each = Seen(
                str(told["uid"]), int(told["sequence"]), bytes.fromhex(told["digest"]),
                (int(archived[0]), bytes.fromhex(archived[1])) if archived else None, int(told.get("epoch", 0)),
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, IndexError):
            continue  # it is not whole
        before = found.get(name)
        if before is not None and before.uid == each.uid:
            each.epoch = max(each.epoch, before.epoch)
            each.archived = max(filter(None, (each.archived, before.archived)), default=None)
            if before.sequence > each.sequence:
                each.sequence, each.digest = before.sequence, before.digest
        found[name] = each
    return found
