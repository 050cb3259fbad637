"""A log as a stream of events: the current value is a fold over the events, and each event is folded once.

    python examples/05_event_sourcing.py

An account consists of its events. Its balance is a fold over them. The client stores the result in the thread, so that
the next fold takes only the new events, also after a crash and in another process. A follower gets each event when it
is appended. The past stays readable: the balance at an old version is the same fold over the log at that version.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from stateward import Client
from stateward.testing import run_daemon


class Balance:
    """The reducer. It counts its calls."""

    def __init__(self) -> None:
        self.folded = 0

    def __call__(self, balance: int, event: dict[str, Any]) -> int:
        self.folded += 1
        amount: int = event["amount"]
        return balance + amount if event["kind"] == "paid in" else balance - amount


def follow(target: str, seen: list[int]) -> None:
    """Another reader: gets each event once, in order, until the account is closed."""
    with Client(target) as client:
        for entry in client.thread("account-7").log("events").follow():
            seen.append(entry.index)
            if entry.value["kind"] == "closed":
                return


def main() -> int:
    """Runs the example. Returns 0 if everything is as expected."""
    seen: list[int] = []
    with run_daemon() as daemon, Client(daemon.target) as client:
        account = client.thread("account-7")
        account.append("events", *({"kind": "paid in", "amount": 10} for _ in range(1000)))
        follower = threading.Thread(target=follow, args=(daemon.target, seen))
        follower.start()

        first = Balance()
        balance = account.log("events").replay(first, 0, projection="balance")
        print(f"balance {balance}, folded from {first.folded:,} events")

        daemon.kill()  # the stored fold is as durable as the events
        daemon.start()

        then = account.append("events", {"kind": "paid out", "amount": 30}, {"kind": "paid in", "amount": 5})
        second = Balance()
        balance = account.log("events").replay(second, 0, projection="balance")
        print(f"balance {balance} after a crash of the daemon, folded from {second.folded} new events")

        state = account.hydrate()
        account.log("events").replay(lambda count, _: count + 1, 0, projection="count")
        state.slots["owner"] = "Ada"
        account.save(state)  # no VersionMismatch: the fold is on a branch of its own

        account.append("events", {"kind": "paid out", "amount": 5000}, {"kind": "closed", "amount": 0})
        past = Balance()
        before = 0
        for entry in account.log("events").read(version=then.version):
            before = past(before, entry.value)
        print(f"balance {before} at version {then.version}; now {account.log('events').replay(Balance(), 0)}")

        follower.join(timeout=20)
        print(f"the follower saw {len(seen):,} events, each once: {seen == list(range(1004))}")
        held = (first.folded, second.folded, balance, before) == (1000, 2, 9975, 9975)
    return 0 if held and seen == list(range(1004)) else 1


if __name__ == "__main__":
    sys.exit(main())
