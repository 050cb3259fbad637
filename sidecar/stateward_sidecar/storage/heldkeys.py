"""The data keys of held threads that are open: a client has sent the session key, and the daemon may work on them.

A data key of a held thread is wrapped by a key that is made from the namespace's key and a session key. The session key
is not kept: what is kept of it is a digest, to compare it with that of the next call. Nothing here is ever on a disk.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stateward_sidecar.codec.seal import KEY_BYTES
from stateward_sidecar.errors import Locked, QueueFull

SESSION_KEY_MIN, SESSION_KEY_MAX = 16, 64
WAITS = 2
"""A thread that is not shipped yet is locked after so many times ``held_for_s``."""
_LABEL = b"stateward v1 held"
_LONG_AGO_S = float("-inf")


def wrapping_key(namespace_key: bytes, session_key: bytes) -> bytes:
    """Returns the key that wraps the data key of a held thread."""
    return HKDF(SHA256(), KEY_BYTES, None, _LABEL).derive(namespace_key + session_key)


@dataclass(slots=True)
class _Open:
    """An open thread."""

    data_key: bytes = field(repr=False)
    check: bytes = field(repr=False)
    used_s: float
    calls: int = 0
    is_given_up: bool = False
    """This daemon gave the thread up, and no call has come since."""


@dataclass(slots=True)
class _Offer:
    """Calls that may make a thread."""

    keys: Counter[bytes] = field(default_factory=Counter, repr=False)
    uid: bytes = b""
    """Of the thread, once it is made."""


class HeldKeys:
    """Knows which held threads are open. Any thread may use it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[bytes, _Open] = {}
        self._offers: dict[tuple[str, str], _Offer] = {}
        self._ending: set[bytes] = set()

    def data_key(self, uid: bytes) -> bytes:
        """Returns the data key of an open thread. Raises Locked."""
        found = self._open.get(uid)
        if found is None:
            raise locked(uid)
        return found.data_key

    def is_open(self, uid: bytes) -> bool:
        """Whether the daemon has the data key of a held thread."""
        return uid in self._open

    def enter(self, uid: bytes, session_key: bytes, unwrap: Callable[[], bytes | None]) -> None:
        """A call begins, which keeps the thread open until ``leave``. ``unwrap`` opens the slot with the session key,
        or returns None. Raises Locked if the key is missing or wrong, and QueueFull while the thread is being
        deleted."""
        if self.enter_open(uid, session_key):
            return
        data_key = unwrap()
        if data_key is None:
            raise locked(uid, is_wrong=True)
        with self._lock:
            if uid in self._ending:
                raise QueueFull("the thread is being deleted; try again", uid=uid.hex())
            opened = _Open(data_key, _check(uid, session_key), self._now())
            self._open.setdefault(uid, opened).calls += 1

    def enter_open(self, uid: bytes, session_key: bytes) -> bool:
        """Does what ``enter`` does if the thread is open. Returns False if it is not. Raises Locked."""
        if not session_key:
            raise locked(uid)
        check = sha256(uid + session_key).digest()
        with self._lock:
            found = self._open.get(uid)
            if found is None:
                return False
            if not compare_digest(found.check, check):
                raise locked(uid, is_wrong=True)
            found.calls += 1
            found.is_given_up = False
            return True

    def leave(self, uid: bytes) -> None:
        """A call ends."""
        now_s = self._now()
        with self._lock:
            found = self._open.get(uid)
            if found is not None:
                found.calls -= 1
                found.used_s = _LONG_AGO_S if found.is_given_up else now_s

    @contextmanager
    def kept(self, uid: bytes, session_key: bytes, data_key: bytes) -> Iterator[None]:
        """Keeps a thread open during a block, for a call that has its key: it is being brought to this disk."""
        self.enter(uid, session_key, lambda: data_key)
        try:
            yield
        finally:
            self.leave(uid)

    @contextmanager
    def pinned(self, uid: bytes) -> Iterator[None]:
        """Keeps an open thread open during a block that needs no key of its caller. Raises Locked."""
        with self._lock:
            found = self._open.get(uid)
            if found is None:
                raise locked(uid)
            found.calls += 1
        try:
            yield
        finally:
            with self._lock:
                found.calls -= 1

    def give_up(self, uid: bytes) -> None:
        """This daemon has given the thread up: it is locked as soon as no call is under way."""
        with self._lock:
            found = self._open.get(uid)
            if found is not None:
                found.is_given_up = True
                found.used_s = _LONG_AGO_S

    # -- the end -----------------------------------------------------------------------------------------------------

    def idle(self, held_for_s: float) -> set[bytes]:
        """Returns the threads without a call for so long."""
        with self._lock:
            return set(self._idle(held_for_s))

    def expired(self, held_for_s: float, dirty: Container[bytes] = ()) -> list[bytes]:
        """Locks the threads without a call for so long, and returns their uids. The caller drops what else it has.
        ``dirty``: threads that wait longer, because the archive lacks something of them."""
        with self._lock:
            waits_s = WAITS * max(held_for_s, 0.0)
            gone = [
                uid for uid in self._idle(held_for_s)
                if uid not in dirty or self._open[uid].used_s <= self._now() - waits_s
            ]  # fmt: skip
            for uid in gone:
                del self._open[uid]
        return gone

    def _idle(self, held_for_s: float) -> list[bytes]:
        latest, made = self._now() - held_for_s, {offer.uid for offer in self._offers.values()}
        return [
            uid for uid, each in self._open.items()
            if not each.calls and each.used_s <= latest and uid not in made
        ]  # fmt: skip

    @contextmanager
    def ending(self, uid: bytes) -> Iterator[bool]:
        """Lets nobody open a locked thread during a block that deletes it. Yields False, and changes nothing, if it is
        open, or if it is being deleted already."""
        with self._lock:
            is_ours = uid not in self._open and uid not in self._ending
            if is_ours:
                self._ending.add(uid)
        try:
            yield is_ours
        finally:
            if is_ours:
                with self._lock:
                    self._ending.discard(uid)

    def drop(self, uid: bytes) -> None:
        """The thread was deleted, or must be opened again."""
        with self._lock:
            self._open.pop(uid, None)

    # -- threads that are about to be made ---------------------------------------------------------------------------

    def offer(self, name: tuple[str, str], session_key: bytes, *, is_only: bool = True) -> None:
        """A call may make the thread of a name, until ``withdraw``. Raises Locked if another call may make it at the
        same time with another key: nobody could say whose it became. Without ``is_only`` the archive may have the
        thread, and only a call that would make it is refused."""
        with self._lock:
            offer = self._offers.setdefault(name, _Offer())
            if is_only and any(not compare_digest(key, session_key) for key in offer.keys):
                raise _contended(name[1])
            offer.keys[session_key] += 1

    def withdraw(self, name: tuple[str, str], session_key: bytes) -> None:
        """The call has ended."""
        with self._lock:
            offer = self._offers[name]
            offer.keys[session_key] -= 1
            offer.keys += Counter()  # drops what is zero
            if not offer.keys:
                del self._offers[name]
            if (found := self._open.get(offer.uid)) is not None and not found.is_given_up:
                found.used_s = self._now()

    def offered(self, name: tuple[str, str]) -> bytes:
        """Returns the session key with which the thread of a name is made; empty if no call has sent one. Raises Locked
        if calls have sent several."""
        with self._lock:
            offer = self._offers.get(name)
            if offer is not None and len(offer.keys) > 1:
                raise _contended(name[1])
            return next(iter(offer.keys)) if offer is not None else b""

    def begin(self, uid: bytes, name: tuple[str, str], data_key: bytes, session_key: bytes) -> None:
        """A thread was made. The calls that offered its key keep it open until their end."""
        with self._lock:
            if (offer := self._offers.get(name)) is not None:  # else the caller has left
                offer.uid = uid
            self._open[uid] = _Open(data_key, _check(uid, session_key), self._now())


def locked(uid: bytes, *, is_wrong: bool = False) -> Locked:
    """Returns the error of a call without the key of a thread, or with a wrong one."""
    what = "the session key is not the one that the thread was made with" if is_wrong else "the thread is locked"
    return Locked(f"{what}: send its session key with the call", uid=uid.hex())


def _contended(thread: str) -> Locked:
    return Locked("another client is making this thread with another session key", thread=thread)


def _check(uid: bytes, session_key: bytes) -> bytes:
    return sha256(uid + session_key).digest()
