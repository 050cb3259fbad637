"""Asks calls for the session key of each held thread that they name.

The contract says for each method which fields of a request name threads (`access.proto`), as for grants. This is asked
after them: who may not call learns nothing of a thread's key. DeleteThread needs no key, because whoever has lost it
may still delete.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from functools import partial
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from stateward.v1.access_pb2 import VERB_ANY
from stateward_sidecar.errors import Corrupt, InvalidField
from stateward_sidecar.service.admission.grants import DEFAULT_NAMESPACE, Need
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.heldkeys import SESSION_KEY_MAX, SESSION_KEY_MIN
from stateward_sidecar.store.read.listing import ALL_THREADS
from stateward_sidecar.store.store import Store

KEY = "stateward-session-key-bin"
UNASKED = ("DeleteThread",)


def read_session_key(context: grpc.aio.ServicerContext) -> bytes:
    """Returns the session key that came with a call; empty = none. Raises InvalidField if it is no key, or if somebody
    else may have read it on its way."""
    for name, value in context.invocation_metadata() or ():
        if name == KEY:
            key = value if isinstance(value, bytes) else _decode(value)
            if not SESSION_KEY_MIN <= len(key) <= SESSION_KEY_MAX:
                raise InvalidField(KEY, f"has {len(key)} bytes instead of {SESSION_KEY_MIN} to {SESSION_KEY_MAX}")
            if not _is_private(context):
                raise InvalidField(KEY, "came in plain text over TCP; use TLS or a socket, and another key")
            return key
    return b""


def _decode(text: str) -> bytes:
    """Frames have text only."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise InvalidField(KEY, "is no base64") from None


def _is_private(context: Any) -> bool:
    if not hasattr(context, "auth_context"):
        return True  # frames come over a socket
    return str(context.peer()).startswith("unix:") or b"ssl" in context.auth_context().get(
        "transport_security_type", ()
    )


class HeldGate:
    """Knows the held threads of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keystore = store.context.keystore

    @property
    def has_threads(self) -> bool:
        """Whether there is a held thread."""
        return bool(self._keystore.held_uids)

    def begin(self, context: grpc.aio.ServicerContext) -> HeldCall:
        """A call begins. Raises InvalidField."""
        return HeldCall(self, read_session_key(context))

    def find(self, namespace: str, name: str) -> tuple[bool, bytes]:
        """Returns whether a thread exists, and its uid if it is held."""
        held = self._keystore.held_uids
        thread = self._store.threads.cached(namespace, name)
        if thread is not None:
            uid = thread.identity.uid
            return True, uid if uid in held else b""
        keys = self._keystore.namespace(namespace)
        if keys is None:
            return False, b""
        with self._store.context.engine.read() as txn:
            row = txn.get(layout.name_key(keys.names.thread(name)))
        try:
            uid = layout.unpack_name(row)[1] if row is not None else b""
        except Corrupt:  # the verb says it
            return True, b""
        return row is not None, uid if uid in held else b""

    def enter(self, namespace: str, uid: bytes, session_key: bytes) -> None:
        """Raises Locked."""
        keys = self._keystore.namespace(namespace)
        assert keys is not None
        unwrap = partial(self._keystore.unwrap_held, uid, keys, session_key)
        self._keystore.held.enter(uid, session_key, unwrap)


class HeldCall:
    """The held threads of one call, or of a stream, which are open until its end."""

    def __init__(self, gate: HeldGate, session_key: bytes) -> None:
        self._gate = gate
        self._key = session_key
        self._entered: set[bytes] = set()
        self._offered: set[tuple[str, str]] = set()
        self.is_settled = False
        """Whether each thread that the last request names is held, and the call has its key."""

    def admit(self, needs: Iterable[Need], request: Message) -> None:
        """Raises Locked unless the call has the key of each held thread that a request names. A call is asked before
        its verb runs, and again when its answer is made: its thread may have been made meanwhile."""
        if not self._key and not self._gate.has_threads:
            return
        self.is_settled = True
        for need in needs:
            path = need.thread
            if not path or need.verb == VERB_ANY or (need.when and not getattr(request, need.when)):
                continue
            if len(path) == 1:  # nearly always
                name, namespace = getattr(request, path[0]), request.namespace  # type: ignore[attr-defined]
                if name and name != ALL_THREADS:
                    self._ask((namespace or DEFAULT_NAMESPACE, name))
                continue
            for place in need.places(request):
                if place[1] and place[1] != ALL_THREADS:
                    self._ask(place)

    def _ask(self, place: tuple[str, str]) -> None:
        exists, uid = self._gate.find(*place)
        if uid:
            if uid not in self._entered:
                self._gate.enter(place[0], uid, self._key)
                self._entered.add(uid)
            return
        self.is_settled = False
        if exists and self._key and not uid:
            raise InvalidField(KEY, f"thread {place[1]!r} is not held: it has no session key")
        if not exists and self._key and place not in self._offered:
            self._gate._keystore.held.offer(place, self._key)
            self._offered.add(place)

    def close(self) -> None:
        """The call has ended."""
        held = self._gate._keystore.held
        for uid in self._entered:
            held.leave(uid)
        for place in self._offered:
            held.withdraw(place)
        self._entered.clear()
        self._offered.clear()
