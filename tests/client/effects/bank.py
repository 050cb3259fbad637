"""A bank whose payments are counted."""

from stateward import (
    NOT_HAPPENED,
)


class Killed(BaseException):
    """Takes the place of SIGKILL: nothing that happens afterwards reaches the daemon. Real ones: examples/01."""


class Bank:
    """Counts what is really paid, by idempotency key."""

    def __init__(self):
        self.keys = []

    def pay(self, idempotency_key):
        self.keys.append(idempotency_key)
        return {"receipt": len(self.keys)}

    def pay_and_die(self, idempotency_key):
        self.pay(idempotency_key)
        raise Killed

    def die(self, idempotency_key):
        raise Killed

    def find(self, key):
        return {"receipt": self.keys.index(key) + 1} if key in self.keys else NOT_HAPPENED


def only(thread):
    """The one effect of a thread."""
    (found,) = thread.effects.list()
    return found
