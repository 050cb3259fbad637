"""The data keys of held threads that are open: a client has sent the session key, and the daemon may work on them.

A data key of a held thread is wrapped by a key that is made from the namespace's key and a session key. The session key
is not kept: what is kept of it is a digest, to compare it with that of the next call. Nothing here is ever on a disk.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stateward_sidecar.codec.seal import KEY_BYTES
from stateward_sidecar.errors import Locked

SESSION_KEY_MIN, SESSION_KEY_MAX = 16, 64
_LABEL = b"stateward v1 held"


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


@dataclass(slots=True)
class _Offer:
    """Calls that may make a thread."""

    session_key: bytes = field(repr=False)
    calls: int = 0
    uid: bytes = b""
    """Of the thread, once it is made."""


class HeldKeys:
    """Knows which held threads are open. Any thread may use it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[bytes, _Open] = {}
        self._offers: dict[tuple[str, str], _Offer] = {}

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
        or returns None. Raises Locked if the key is missing or wrong."""
        if not session_key:
            raise locked(uid)
        check = _check(uid, session_key)
        with self._lock:
            found = self._open.get(uid)
            if found is not None:
                if not hmac.compare_digest(found.check, check):
                    raise locked(uid, is_wrong=True)
                found.calls += 1
                return
        data_key = unwrap()
        if data_key is None:
            raise locked(uid, is_wrong=True)
        with self._lock:
            self._open.setdefault(uid, _Open(data_key, check, self._now())).calls += 1

    def leave(self, uid: bytes) -> None:
        """A call ends."""
        now_s = self._now()
        with self._lock:
            found = self._open.get(uid)
            if found is not None:
                found.calls -= 1
                found.used_s = now_s

    def expired(self, held_for_s: float) -> list[bytes]:
        """Locks the threads without a call for so long, and returns their uids. The caller drops what else it has."""
        with self._lock:
            latest, made = self._now() - held_for_s, {offer.uid for offer in self._offers.values()}
            gone = [
                uid for uid, each in self._open.items()
                if not each.calls and each.used_s <= latest and uid not in made
            ]  # fmt: skip
            for uid in gone:
                del self._open[uid]
        return gone

    def drop(self, uid: bytes) -> None:
        """The thread was deleted, or must be opened again."""
        with self._lock:
            self._open.pop(uid, None)

    # -- threads that are about to be made ---------------------------------------------------------------------------

    def offer(self, name: tuple[str, str], session_key: bytes) -> None:
        """A call may make the thread of a name, until ``withdraw``. Raises Locked if another call may make it at the
        same time with another key: nobody could say whose it became."""
        with self._lock:
            offer = self._offers.setdefault(name, _Offer(session_key))
            if not hmac.compare_digest(offer.session_key, session_key):
                raise Locked("another client is making this thread with another session key", thread=name[1])
            offer.calls += 1

    def withdraw(self, name: tuple[str, str]) -> None:
        """The call has ended."""
        with self._lock:
            offer = self._offers[name]
            offer.calls -= 1
            if not offer.calls:
                del self._offers[name]
            if (found := self._open.get(offer.uid)) is not None:
                found.used_s = self._now()

    def offered(self, name: tuple[str, str]) -> bytes:
        """Returns the session key with which the thread of a name is made; empty if no call has sent one."""
        offer = self._offers.get(name)
        return offer.session_key if offer is not None else b""

    def begin(self, uid: bytes, name: tuple[str, str], data_key: bytes) -> None:
        """A thread was made. The calls that offered its key keep it open until their end."""
        with self._lock:
            offer = self._offers[name]
            offer.uid = uid
            self._open[uid] = _Open(data_key, _check(uid, offer.session_key), self._now())


def locked(uid: bytes, *, is_wrong: bool = False) -> Locked:
    """Returns the error of a call without the key of a thread, or with a wrong one."""
    what = "the session key is not the one that the thread was made with" if is_wrong else "the thread is locked"
    return Locked(f"{what}: send its session key with the call", uid=uid.hex())


def _check(uid: bytes, session_key: bytes) -> bytes:
    return hashlib.sha256(uid + session_key).digest()
