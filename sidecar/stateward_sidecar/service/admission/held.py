"""Asks calls for the session key of each held thread that they name.

The contract says for each method which fields of a request name threads (`access.proto`), as for grants. This is asked
after them: who may not call learns nothing of a thread's key. DeleteThread needs no key, because whoever has lost it
may still delete.

With an archive, a thread that is not on this disk may be held, too, and what is on this disk may be older than what the
archive has. So a call is asked again when its thread has come to this disk (`ask`), before the verb runs on it.
"""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from stateward.v1.access_pb2 import VERB_ANY
from stateward_sidecar.errors import Corrupt, InvalidField, Locked, StatewardError
from stateward_sidecar.service.admission.grants import DEFAULT_NAMESPACE, Need
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.heldkeys import SESSION_KEY_MAX, SESSION_KEY_MIN
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.read.listing import ALL_THREADS
from stateward_sidecar.store.store import Store

if TYPE_CHECKING:  # a daemon without an archive does not load it
    from stateward_sidecar.archive.archive import Archive

T = TypeVar("T")
KEY = "stateward-session-key-bin"
ROUNDS = 4
UNASKED = ("DeleteThread",)

held_call: ContextVar[HeldCall | None] = ContextVar("held_call", default=None)
"""The held threads of the call that the current task works on; None = it has sent no session key."""


def read_session_key(context: grpc.aio.ServicerContext) -> bytes:
    """Returns the session key that came with a call; empty = none. Raises InvalidField if it is no key, or if somebody
    else may have read it on its way."""
    for name, value in context.invocation_metadata() or ():
        if name == KEY:
            is_frame = isinstance(value, str)  # gRPC gives bytes
            key = _decode(value) if is_frame else value
            if not SESSION_KEY_MIN <= len(key) <= SESSION_KEY_MAX:
                raise InvalidField(KEY, f"has {len(key)} bytes instead of {SESSION_KEY_MIN} to {SESSION_KEY_MAX}")
            if not is_frame and not _is_private(context):
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
    return str(context.peer()).startswith("unix:") or b"ssl" in context.auth_context().get(
        "transport_security_type", ()
    )


class HeldGate:
    """Knows the held threads of a store."""

    def __init__(self, store: Store, archive: Archive | None = None) -> None:
        self._store = store
        self.keys = store.context.keystore.held
        self._keystore = store.context.keystore
        self._archive = archive
        self.peek = store.threads.peek

    @property
    def has_threads(self) -> bool:
        """Whether there is a held thread."""
        return bool(self._keystore.held_uids)

    @property
    def has_archive(self) -> bool:
        """Whether threads may be elsewhere."""
        return self._archive is not None

    def is_settled(self, namespace: str, name: str) -> bool:
        """Whether what this disk says about a thread is true."""
        return self._archive is None or self._archive.is_fresh(namespace, name)

    async def may_be_gone(self, error: Locked) -> bool:
        """Asks the archive about a thread that a call cannot open here. Returns whether its copy was one of a thread
        that others have deleted, and is deleted now."""
        name = error.metadata.get("namespace", ""), error.metadata.get("thread", "")
        if self._archive is None or not name[1]:
            return False
        asking = self._archive.lanes.call(name, self._archive.settle_locked, *name, error)
        try:
            return await asyncio.wrap_future(asking)
        except StatewardError:  # the bucket is away: LOCKED is the answer that this disk has
            return False

    def begin(self, context: grpc.aio.ServicerContext) -> HeldCall | None:
        """A call begins. Returns None if it has no session key, and there is no held thread. Raises InvalidField."""
        key = read_session_key(context)
        if not key:
            return HeldCall(self, b"") if self._keystore.held_uids else None
        call = HeldCall(self, key)
        if self._archive is not None:  # else nobody asks again
            held_call.set(call)
        return call

    def begin_stream(self, context: grpc.aio.ServicerContext) -> HeldCall:
        """A stream begins. Held threads may be made while it is open. Raises InvalidField."""
        return self.begin(context) or HeldCall(self, b"")

    def ask(self, namespace: str, name: str) -> None:
        """The thread of a call has come to this disk, or may have. Raises Locked, InvalidField."""
        call = held_call.get()
        if call is not None:
            call.ask((namespace, name), is_known=True)
        elif self._keystore.held_uids:
            HeldCall(self, b"").ask((namespace, name))

    def find(self, namespace: str, name: str) -> tuple[bool, bytes]:
        """Returns whether a thread that is not in memory exists, and its uid if it is held."""
        held = self._keystore.held_uids
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

    def enter(
        self, name: tuple[str, str], uid: bytes, session_key: bytes, known: NamespaceKeys | None = None
    ) -> None:
        """Raises Locked. ``known``: the keys of the namespace, if they are at hand."""
        keys, archive = known or self._keystore.namespace(name[0]), self._archive
        assert keys is not None
        if not self.keys.enter_open(uid, session_key):
            self.keys.enter(uid, session_key, partial(self._keystore.unwrap_held, uid, keys, session_key))
        if keys.has_several and self._keystore.is_outdated(uid, keys):
            share = partial(archive.renew_held, name, uid) if archive is not None else None
            self._store.rewrapper.admit_held(uid, keys, session_key, share)


class HeldCall:
    """The held threads of one call, or of a stream, which are open until its end."""

    __slots__ = ("_entered", "_gate", "_offered", "is_settled", "key")

    def __init__(self, gate: HeldGate, session_key: bytes) -> None:
        self._gate = gate
        self.key = session_key
        self._entered: set[bytes] | None = None
        self._offered: set[tuple[str, str]] | None = None
        self.is_settled = False
        """Whether each thread that the last request names is held, and the call has its key."""

    def inner(self) -> HeldCall | None:
        """Begins a call that came in this stream, with its session key. It is the current one from now on. Returns None
        if it has no session key, and there is no held thread."""
        if not self.key and not self._gate.has_threads:
            return None
        call = HeldCall(self._gate, self.key)
        if self.key and self._gate.has_archive:
            held_call.set(call)
        return call

    def __repr__(self) -> str:
        return "HeldCall()"

    async def run(self, needs: Iterable[Need], request: Message, verb: Callable[[], Awaitable[T]]) -> T:
        """Runs a verb that this call has a session key for. If the thread was deleted since the call was asked, the
        verb would make another one, with a key that nobody has offered; so the call is asked again."""
        try:
            return await verb()
        except Locked:
            await self.pass_in(needs, request)
            return await verb()

    async def pass_in(self, needs: Iterable[Need], request: Message) -> None:
        """Does what ``admit`` does. With an archive, a thread that is locked here may have been deleted elsewhere."""
        refused, rounds = self.refuse(needs, request), 0
        while refused is not None:
            rounds += 1
            if rounds > ROUNDS or not await self._gate.may_be_gone(refused):
                raise refused
            refused = self.refuse(needs, request)

    def refuse(self, needs: Iterable[Need], request: Message) -> Locked | None:
        """Does what ``admit`` does, and returns the error: then ``pass_in`` may still let the call pass."""
        try:
            self.admit(needs, request)
        except Locked as error:
            return error
        return None

    def admit(self, needs: Iterable[Need], request: Message) -> None:
        """Raises Locked unless the call has the key of each held thread that a request names. A call is asked before
        its verb runs, and again when its answer is made: its thread may have been made meanwhile."""
        if not self.key and not self._gate.has_threads:
            return
        self.is_settled = True
        for need in needs:
            path = need.thread
            if not path or need.verb == VERB_ANY or (need.when and not getattr(request, need.when)):
                continue
            if len(path) == 1:  # nearly always
                name, namespace = getattr(request, path[0]), request.namespace  # type: ignore[attr-defined]
                if name and name != ALL_THREADS:
                    self.ask((namespace or DEFAULT_NAMESPACE, name))
                continue
            for place in need.places(request):
                if place[1] and place[1] != ALL_THREADS:
                    self.ask(place)

    def ask(self, place: tuple[str, str], *, is_known: bool = False) -> None:
        """Asks about one thread. Raises Locked, InvalidField. ``is_known``: what this disk says of it is true."""
        keys, thread = None, self._gate.peek(place)
        if thread is not None:  # nearly always
            identity = thread.identity
            exists, uid, keys = True, identity.uid if identity.is_held else b"", identity.namespace_keys
        else:
            exists, uid = self._gate.find(*place)
        if uid:
            if self._entered is None:
                self._entered = set()
            if uid not in self._entered or not self._gate.keys.is_open(uid):
                try:
                    self._gate.enter(place, uid, self.key, keys)
                except Locked as error:
                    error.metadata |= {"namespace": place[0], "thread": place[1]}
                    raise
                self._entered.add(uid)
            return
        self.is_settled = False
        if not self.key:
            return
        if exists and (is_known or self._gate.is_settled(*place)):
            raise InvalidField(KEY, f"thread {place[1]!r} is not held: it has no session key")
        if self._offered is None:
            self._offered = set()
        if not exists and place not in self._offered:
            self._gate.keys.offer(place, self.key, is_only=not self._gate.has_archive)
            self._offered.add(place)

    def close(self) -> None:
        """The call has ended."""
        held = self._gate.keys
        for uid in self._entered or ():
            held.leave(uid)
        for place in self._offered or ():
            held.withdraw(place, self.key)
        self._entered = self._offered = None
