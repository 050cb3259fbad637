"""What a list meets and cannot show: threads that cannot be opened, and damaged parts of a thread.

They are named, so that no list lacks anything without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

import lmdb
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from stateward.v1.thread_pb2 import UnreadablePart, UnreadableThread
from stateward_sidecar.errors import Corrupt, KeyUnavailable, Locked, reason_number
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.heldkeys import locked
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, head_uid, load_outline
from stateward_sidecar.telemetry import log_damage

# How many parts whose names the damage hides are named one by one on a page.
NAMELESS_MAX = 100


class UnreadableParts:
    """The damaged versions, records or effects in the place of one page."""

    def __init__(self, into: RepeatedCompositeFieldContainer[UnreadablePart], *, are_skipped: bool) -> None:
        """``are_skipped``: False = the first one is raised."""
        self._into = into
        self._are_skipped = are_skipped

    @contextmanager
    def skipping(self, *, version: int = 0, key: str = "", anchor: str = "") -> Iterator[None]:
        """Names the part instead of raising Corrupt, if parts are skipped."""
        try:
            yield
        except Corrupt as error:
            if not self._are_skipped:
                raise
            log_damage("part of a thread left out of a list", error)
            self._into.add(version=version, key=key, anchor=anchor, message=error.message)

    def add_nameless(self, errors: Iterable[Corrupt]) -> None:
        """Names parts of which nothing but the damage is known."""
        found = list(errors)
        for error in islice(found, NAMELESS_MAX):
            log_damage("part of a thread left out of a list", error)
            self._into.add(message=error.message)
        if len(found) > NAMELESS_MAX:
            self._into.add(message=f"{len(found) - NAMELESS_MAX} more are damaged in the same way")


class Unreadable:
    """The threads of one page that could not be opened."""

    def __init__(self, context: Context, txn: lmdb.Transaction, namespace_id: bytes) -> None:
        self._context = context
        self._txn = txn
        self._namespace_id = namespace_id
        self._found: dict[int, UnreadableThread] = {}

    def open(
        self, read: Callable[[lmdb.Transaction, int], Thread | None], number: int, *, is_indexed: bool = False
    ) -> Thread | None:
        """Returns a thread; None if it was deleted, or cannot be opened and is noted.

        ``is_indexed``: the transaction shows an index row of the thread, so the thread was not deleted.
        """
        try:
            thread = read(self._txn, number)
        except (Corrupt, KeyUnavailable) as error:
            self._note(number, error)
            return None
        if thread is not None and thread.identity.is_held:  # also while it is open: the call has not named it
            self._note(number, locked(thread.identity.uid))
            return None
        if thread is None and is_indexed and self._txn.get(layout.ThreadKeys(number).head) is None:
            self._note(number, Corrupt("the head of a thread is missing"))
        return thread

    def note_part(self, thread: Thread, error: Corrupt) -> None:
        """Notes a thread of which one version cannot be read."""
        log_damage("version left out of a list", error, uid=thread.identity.uid.hex())
        self._found.setdefault(
            thread.number,
            UnreadableThread(uid=thread.identity.uid_text, thread=thread.identity.name, message=error.message,
                             reason=reason_number(error.reason)),
        )  # fmt: skip

    def _note(self, number: int, error: Corrupt | KeyUnavailable) -> None:
        row = self._txn.get(layout.ThreadKeys(number).head)
        uid = head_uid(row) if row is not None else b""
        if uid and self._is_elsewhere(uid):
            return
        if not isinstance(error, Locked):
            log_damage("thread left out of a list", error)
        found = self._found[number] = UnreadableThread(
            uid=uid.hex() or error.metadata.get("uid", ""), thread=error.metadata.get("thread", ""),
            message=error.message, reason=reason_number(error.reason),
        )  # fmt: skip
        if isinstance(error, Locked):
            found.thread = ""  # the call has not named it
            with suppress(Corrupt, KeyUnavailable):
                self._outline(found, number, uid)

    def _outline(self, found: UnreadableThread, number: int, uid: bytes) -> None:
        namespace = self._context.keystore.namespace_by_id(self._namespace_id)
        outline = load_outline(self._txn, namespace, number, uid) if namespace is not None else None
        if outline is not None:
            found.create_time.FromMicroseconds(outline.create_time_us)
            found.update_time.FromMicroseconds(outline.update_time_us)
            found.stored_bytes = outline.stored_bytes

    def _is_elsewhere(self, uid: bytes) -> bool:
        """Returns whether the thread is known to belong to another namespace."""
        keystore = self._context.keystore
        namespace_id = keystore.namespace_of(uid)
        if namespace_id in (None, self._namespace_id):
            return False
        try:
            return keystore.namespace_by_id(namespace_id) is not None
        except KeyUnavailable:  # the slot of the thread's key may be damaged, and name any namespace
            return False

    def listed(self) -> list[UnreadableThread]:
        """Returns what was noted."""
        return list(self._found.values())
