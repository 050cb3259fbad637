"""Goes through the elements of a list. One that fails is named, the others are served, and the exit code is 1."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from stateward.cli.show.output import CommandError, counted, fail, note
from stateward.errors import (
    FeatureUnavailable,
    ForkedProcess,
    PermissionDenied,
    ServerUnavailable,
    ShuttingDown,
    StatewardError,
    ThreadNotFound,
    ThreadsUnreadable,
    UidMismatch,
    Unauthenticated,
)

if TYPE_CHECKING:
    from stateward import Client
    from stateward.salvage import Found

T = TypeVar("T")
AWAY = (ServerUnavailable, ShuttingDown)
OF_ALL = (*AWAY, FeatureUnavailable, ForkedProcess, PermissionDenied, Unauthenticated)
"""Errors that the next element would meet, too. Every other error is one of this element."""
OF_A_VALUE = (TypeError, ValueError, RecursionError)
"""Raised for a stored value that cannot be decoded, or not be written in another form."""
ATTEMPTS = 3
"""How often an element is read, if the daemon ends each time while it is read: it may be the reason."""
RESTART_TIMEOUT_S, RESTART_POLL_S = 300.0, 1.0
"""How long a command waits for a daemon that went away, and how often it asks after the client's own retries."""


class Failures:
    """The elements that failed, each of which was named on stderr."""

    def __init__(self, what: str = "thread") -> None:
        self._what = what
        self.count = 0
        self._unread = ""

    def add(self, name: str, problem: str) -> None:
        """Names an element that failed."""
        self.count += 1
        fail(problem if repr(name) in problem else f"{self._what} {name!r}: {problem}")

    @contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """Names the element instead of raising its error. Raises errors of all elements."""
        try:
            yield
        except OF_ALL:
            raise
        except StatewardError as error:
            self.add(name, error.message)
        except (CommandError, *OF_A_VALUE) as error:
            self.add(name, f"{error}" or type(error).__name__)

    @contextmanager
    def unless_removed(self, name: str, *, is_named: bool) -> Iterator[None]:
        """The same; notes an element that was removed since it was listed. That is no failure, because then the list is
        as whole as one that begins now, unless the user named the element."""
        with self.beside(name):
            try:
                yield
            except (ThreadNotFound, UidMismatch):
                if is_named:
                    raise
                note(f"{self._what} {name!r} was removed meanwhile, and is skipped")

    def listed(self, found: Iterator[T]) -> Iterator[T]:
        """Yields the elements of a list. Notes the error in which it ends because others cannot be opened."""
        try:
            yield from found
        except ThreadsUnreadable as problem:
            self.note(problem)

    def note(self, problem: ThreadsUnreadable | None) -> None:
        """Notes that a list ended with this error, if with any."""
        self._unread = "" if problem is None else problem.message

    def __bool__(self) -> bool:
        return bool(self.count or self._unread)

    def end(self, lacks: str, advice: str = "`stateward verify` says more") -> None:
        """Raises CommandError if an element failed. `lacks` begins the message: "the export lacks". `advice` ends it,
        if all elements could be opened."""
        told = [f"{counted(self.count, self._what)} named above"] if self.count else []
        told += [self._unread] if self._unread else []
        if told:
            advice = "`stateward verify` says more" if self._unread else advice
            raise CommandError(f"{lacks} {self._what}s: {'; '.join(told)}; {advice}")


def end_if_damaged(found: Found[Any], what: str) -> None:
    """Names the damaged elements of a list, and raises CommandError, if there are any. `what`: what each of them is."""
    for each in found.damaged:
        fail(each)
    if found.damaged:
        raise CommandError(
            f"the list lacks {counted(len(found.damaged), what)} of thread {found.thread!r}, named above; "
            "`stateward verify` says more"
        )


def read_again(client: Client, name: str, read: Callable[[], T]) -> T:
    """Returns what `read` returns. If the daemon goes away meanwhile, waits for it and reads again.

    Raises CommandError if the daemon ended at each attempt and came back: the element itself may be the reason.
    """
    for _ in range(ATTEMPTS):
        try:
            return read()
        except AWAY:
            await_daemon(client)
    raise CommandError(f"the daemon ended {ATTEMPTS} times while {name!r} was read; its log may say why")


def await_daemon(client: Client, clock: Callable[[], float] = time.monotonic) -> None:
    """Waits until the daemon answers. Raises the last error if it stays away."""
    end = clock() + RESTART_TIMEOUT_S
    while True:
        try:
            client.server_info()
        except AWAY as error:
            if not error.retryable or clock() >= end:
                raise
            time.sleep(RESTART_POLL_S)
        else:
            return
