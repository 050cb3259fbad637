"""The danger: faults that nobody thought of together: wires, kills, pauses and takeovers at random, with a ledger.

``ARCHIVE_CAMPAIGN_S`` and ``ARCHIVE_CAMPAIGN_SEED`` set how long it takes and the dice; processes race all the same.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress

import pytest
from tests.archive_faults.gate import Gate, running_gate
from tests.archive_faults.test_bucket_single_requests import FAULTS, READS, WRITES
from tests.daemon.process import Fleet, eventually

from stateward import Client, Durability, errors
from stateward.testing import Daemon

DURATION_S = float(os.environ.get("ARCHIVE_CAMPAIGN_S", "60"))
SEED = int(os.environ.get("ARCHIVE_CAMPAIGN_SEED", str(random.SystemRandom().randrange(1 << 32))))
NAMES = tuple(f"job-{number}" for number in range(4))
OWNERS = ("one", "two")


class Side:
    """A sidecar with its wire, who writes through it, and what that was answered."""

    def __init__(self, fleet: Fleet, owner: str, gate: Gate) -> None:
        self.gate, self._fleet = gate, fleet
        self.daemon: Daemon = fleet.machine_on(owner, gate.url, patience_s=1.0)
        self.client: Client = fleet.client(self.daemon, call_timeout=3, retry_timeout=0)
        self.committed: dict[str, set[str]] = defaultdict(set)
        self.archived: dict[str, set[str]] = defaultdict(set)
        self.seen: Counter[str] = Counter()
        self.wrong: list[BaseException] = []

    def write(self, dice: random.Random, end: float) -> None:
        """Appends words to random threads; takes them where others have them."""
        count = 0
        while time.monotonic() < end and not self.wrong:
            name, count = dice.choice(NAMES), count + 1
            try:
                self._append(name, f"{self.daemon.data_dir.name} {count}", dice)
            except errors.StatewardError as error:
                self.seen[type(error).__name__] += 1
                if isinstance(error, errors.Corrupt | errors.NotFound | errors.KeyUnavailable | errors.Internal):
                    self.wrong.append(error)
                time.sleep(0.05)
            except BaseException as error:  # noqa: BLE001  (the test looks at it)
                self.wrong.append(error)

    def _append(self, name: str, word: str, dice: random.Random) -> None:
        thread, wanted = self.client.thread(name), dice.choice(list(Durability)[-2:])
        entry = {"word": word, "padding": "x" * dice.choice((10, 500, 20_000))}
        try:
            thread.append("words", entry, durability=wanted)
        except (errors.NotArchivedYet, errors.Fenced) as error:
            if isinstance(error, errors.NotArchivedYet):
                self.committed[name].add(word)
            raise
        except errors.NotOwner:
            if dice.random() < 0.2:
                thread.archive.attach(take_over=True)
            raise
        self.seen["saved"] += 1
        (self.archived if wanted is Durability.ARCHIVED else self.committed)[name].add(word)

    def harm(self, dice: random.Random, end: float) -> None:
        """One fault after the other, and everything well at the end."""
        while time.monotonic() < end:
            time.sleep(dice.uniform(0.05, 0.6))
            what = dice.choice(("wire", "wire", "wire", "wire", "close", "kill", "pause"))
            if what == "wire":
                self.gate.plan(dice.choice(WRITES + READS), *dice.sample(FAULTS, dice.randint(1, 2)))
            elif what == "close":
                self.gate.close()
                time.sleep(dice.uniform(0.2, 3))
                self.gate.open()
            elif what == "kill":
                self.daemon.kill()
                self._fleet.start(self.daemon)
            else:
                os.kill(self.daemon.pid, signal.SIGSTOP)
                time.sleep(dice.uniform(0.2, 3))
                os.kill(self.daemon.pid, signal.SIGCONT)
        for kind in WRITES + READS:
            self.gate.plan(kind)

    def is_settled(self) -> bool:
        """Whether all that it holds is archived."""
        with suppress(errors.Unavailable):
            return self.client.stats().archive.dirty_threads == 0
        return False

    def set_aside(self, name: str) -> set[str]:
        """The words in its orphans of a thread."""
        orphans = [found.name for found in self.client.threads() if found.name.startswith(f"{name}@")]
        return {word for orphan in orphans for word in words(self.client, orphan)}


def words(client: Client, name: str) -> list[str]:
    return [str(entry["word"]) for entry in client.thread(name).hydrate().logs["words"]]


@pytest.mark.soak
def test_faults_at_random(fleet_on_s3: Fleet, gate: Gate, weed_url: str) -> None:
    """Each word answered ARCHIVED is in the one history, each one COMMITTED there or in an orphan of its disk."""
    with ExitStack() as stack:
        sides = [Side(fleet_on_s3, owner, stack.enter_context(running_gate(weed_url))) for owner in OWNERS]
        end = time.monotonic() + DURATION_S
        jobs = [
            threading.Thread(target=job, args=(random.Random(f"{SEED} {number} {job.__name__}"), end))
            for number, side in enumerate(sides)
            for job in (side.write, side.harm)
        ]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        seen = [dict(side.seen) for side in sides]
        print(f"seed {SEED}: {seen}")
        assert [side.wrong for side in sides] == [[], []], SEED
        for side in sides:
            eventually(side.is_settled, 60)
            assert side.client.stats().archive.rolled_back == 0
        other = fleet_on_s3.client(fleet_on_s3.machine_on("other", gate.url))
        for name in NAMES:
            history = words(other, name)
            assert len(history) == len(set(history)), SEED
            for side in sides:
                assert side.archived[name] - set(history) == set(), (SEED, name)
                assert side.committed[name] - set(history) - side.set_aside(name) == set(), (SEED, name)
            versions = [item.checkpoint.version for item in other.thread(name).history()]
            assert versions == list(range(1, len(versions) + 1))
