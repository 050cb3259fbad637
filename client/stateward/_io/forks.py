"""Processes that fork: gunicorn --preload, Celery's prefork pool, multiprocessing.

gRPC survives a fork only at a quiet moment: no other thread is inside a call, and its asyncio half is not in use. So a
fork waits a moment for the calls of other threads, and holds new ones back. If the moment was not quiet, clients of the
child raise ForkedProcess at once. Without that they would wait for threads that exist in the parent only, for ever.

gRPC's asyncio half has a thread that polls, from its first channel until its last one is deleted.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from typing import Any

from stateward.errors import ForkedProcess

QUIET_S = 2.0
"""The most time that a fork waits for calls of other threads."""
POLLER = "_poll_wrapper"
"""What the name of a thread that polls contains: gRPC's function."""
ADVICE = (
    "make the first call after the fork: in the child (gunicorn: in post_fork, or without --preload; Celery: in "
    "worker_process_init), or start the child with multiprocessing.get_context('spawn')"
)


class _Process:
    """The calls of this process."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        """Why no client of this process can be used; empty = they can."""
        self.uses_asyncio = False
        """Whether gRPC's asyncio half was used, and it cannot be seen that it ended."""
        self.pollers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """The threads of gRPC's asyncio half."""
        self.forks_beside_asyncio = False
        """Of the fork that is under way."""
        self.uses_threads = False
        self.calls = 0
        self.forks = 0
        self.set_aside: list[Any] = []
        self.loops: weakref.WeakSet[Any] = weakref.WeakSet()
        """The event loops on which its clients have connected."""
        self.inherited: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those of its parents, which it must not run: they share what they wait with."""
        self.moved = threading.Condition()


_here = _Process()


class Lock:
    """A lock that is free in a forked child, whichever thread of the parent held it. A reentrant one stays with the
    thread that forked."""

    def __init__(self, *, is_reentrant: bool = False) -> None:
        self._make: Any = threading.RLock if is_reentrant else threading.Lock
        self._lock: Any = self._make()
        locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Makes it free."""
        if self._make is threading.Lock or not self._lock._is_owned():
            self._lock = self._make()


locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Calling:
    """A call of the blocking client, as a context manager. It begins after a fork that is under way."""

    __slots__ = ("_process",)

    def __enter__(self) -> None:
        process = self._process = _here
        with process.moved:
            while process.forks:
                process.moved.wait()
            process.calls += 1

    def __exit__(self, *error: object) -> None:
        process = self._process
        if process is not _here:
            return  # the call was begun by the parent
        with process.moved:
            process.calls -= 1
            if process.forks:
                process.moved.notify_all()


def opening() -> None:
    """Notes that a channel is opened. Raises ForkedProcess if it could not be used."""
    check()
    _here.uses_threads = True


def opened_async() -> None:
    """Notes that a channel of gRPC's asyncio half was opened."""
    pollers = [each for each in threading.enumerate() if POLLER in each.name]
    _here.pollers.update(pollers)
    _here.uses_asyncio |= not pollers


def use_loop(loop: Any) -> None:
    """Notes that a client connects on an event loop. Raises ForkedProcess for one of a parent process."""
    if loop in _here.inherited:
        raise ForkedProcess(f"this event loop belongs to the parent of this process; run one of your own, or {ADVICE}")
    _here.loops.add(loop)


def check() -> None:
    """Raises ForkedProcess if no client of this process can be used."""
    if _here.trouble:
        raise ForkedProcess(f"{_here.trouble}, which gRPC does not survive; {ADVICE}")


def _uses_asyncio(process: _Process) -> bool:
    """Whether gRPC's asyncio half is in use. A closed channel may wait for the garbage collection."""
    if process.uses_asyncio or not any(each.is_alive() for each in process.pollers):
        return process.uses_asyncio
    gc.collect()
    return any(each.is_alive() for each in process.pollers)


def _before() -> None:
    process = _here
    process.forks_beside_asyncio = _uses_asyncio(process)
    with process.moved:
        process.forks += 1
        end = time.monotonic() + QUIET_S
        while process.calls and not process.forks_beside_asyncio and (left_s := end - time.monotonic()) > 0:
            process.moved.wait(left_s)
        if process.calls or process.forks_beside_asyncio:
            process.set_aside = _set_aside()


def _after_in_parent() -> None:
    with _here.moved:
        _here.forks -= 1
        channels, _here.set_aside = _here.set_aside, []
        _known_channels().update(channels)
        _here.moved.notify_all()


def _after_in_child() -> None:
    global _here
    parent, _here = _here, _Process(_here.trouble or _trouble(_here))
    _here.inherited = parent.inherited | parent.loops
    for lock in list(locks):
        lock.renew()


def _trouble(parent: _Process) -> str:
    if parent.forks_beside_asyncio:
        return "this process was forked while its parent had an asyncio client"
    if parent.calls:
        return "this process was forked while another thread of its parent was in a call to the daemon"
    if parent.uses_threads and not _survives():
        return "this process was forked after its parent had connected, and GRPC_ENABLE_FORK_SUPPORT=1 came too late"
    return ""


def _known_channels() -> Any:
    """Returns the channels that gRPC closes in a forked child."""
    cygrpc = sys.modules.get("grpc._cython.cygrpc")
    found = getattr(getattr(cygrpc, "_fork_state", None), "channels", None)
    return set[Any]() if found is None else found


def _set_aside() -> list[Any]:
    """Keeps gRPC from closing channels in the child: it would wait there for calls of threads that do not exist. The
    child uses none of them."""
    channels = _known_channels()
    found = list(channels)
    channels.clear()
    return found


def _survives() -> bool:
    """Whether gRPC was told to handle forks before it began: another package may have begun it before this one."""
    from grpc._cython import cygrpc  # noqa: PLC0415  is loaded

    asked: Any = getattr(cygrpc, "is_fork_support_enabled", None)
    return asked is None or bool(asked())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
