"""What every contender can do: fill a thread, make one more step of it durable, read it back.

Making a call ready and making it are two things, and only the second is timed. Stores that know bytes only get the
state as bytes, ready to be written: their rows leave out the encoding that an agent has to pay. Rows of a library that
takes Python values (LangGraph's savers, Stateward's client) include it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

Call = Callable[[], object]


class Contender(ABC):
    """One way to keep the state of an agent, which is a list of messages."""

    name: str

    @abstractmethod
    def fill(self, thread: str, messages: list[bytes]) -> None:
        """Makes a new thread hold these messages."""

    @abstractmethod
    def step(self, thread: str, message: bytes) -> Call:
        """The call that appends a message. It returns when the new state is synced to the disk."""

    @abstractmethod
    def read(self, thread: str) -> Call:
        """The call that reads the newest state back."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of connections."""


class WholeState(Contender):
    """A contender that writes the whole state in each step. Every state is kept, as Stateward keeps every version."""

    def __init__(self) -> None:
        self.messages: dict[str, list[bytes]] = {}
        self.version: dict[str, int] = {}

    def fill(self, thread: str, messages: list[bytes]) -> None:
        self.messages[thread], self.version[thread] = list(messages), 0
        if messages:
            self.put(thread, 0, join(messages))

    def step(self, thread: str, message: bytes) -> Call:
        self.messages[thread].append(message)
        self.version[thread] += 1
        return partial(self.put, thread, self.version[thread], join(self.messages[thread]))

    @abstractmethod
    def put(self, thread: str, version: int, state: bytes) -> None:
        """Writes one state."""


def join(messages: list[bytes]) -> bytes:
    """The state as JSON."""
    return b"[" + b",".join(messages) + b"]"
