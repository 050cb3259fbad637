"""Power losses: the disk of a recorded daemon is made anew as losses at many moments leave it.

On each of these disks a real daemon is started: it must have everything that was answered before the loss.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.check import check_all, check_archived, check_goes_on
from tests.soak.device import PAGE_BYTES, SECTOR_BYTES, Chance, Device
from tests.soak.ledger import NOW, Book, read_lines
from tests.soak.life import Recorded, make_daemon, record, short_directory
from tests.soak.recording import Kind, build

from stateward_sidecar.storage import keystore

LOSSES_EACH = 20
WORK_S, LIVES = 6.0, 4
KEPT = (0.0, 0.05, 0.3, 0.7, 0.95)
# Where the losses fall, and how often.
KINDS = {"any": 3, "answer": 4, "keys": 2, "start": 1}


@dataclass(frozen=True)
class Cut:
    """A power loss before the operation with this index has reached the disk."""

    at: int
    kind: str
    seed: str


def choose_cuts(recorded: Recorded, count: int, seed: str) -> list[Cut]:
    """Any moment, just after an answer, in the first start, and where the key store is written."""
    dice, operations = random.Random(seed), recorded.operations
    marks = [
        tuple(line["mark"])
        for path in sorted(recorded.directory.glob("*.ledger"))
        for line in read_lines(path)
        if line["event"] == "answered"
    ]
    keys = {each.file for each in operations if each.path.endswith(("/keys", "/key"))}
    at_keys = [at for at, each in enumerate(operations) if each.file in keys]
    begun = next((at for at, each in enumerate(operations) if marks and each.end > min(marks)), len(operations))
    cuts = []
    for number in range(count):
        kind = dice.choices(list(KINDS), KINDS.values())[0]
        if kind == "answer" and marks:
            mark = dice.choice(marks)
            at = next((at for at, each in enumerate(operations) if each.end > mark), len(operations))
        elif kind == "keys" and at_keys:
            at = dice.choice(at_keys)
        elif kind == "start":
            at = dice.randint(1, max(begun, 1))
        else:
            at = dice.randint(1, len(operations))
        cuts.append(Cut(at, kind, f"{seed} {number}"))
    return sorted(cuts, key=lambda cut: cut.at)


@dataclass
class Losses:
    """What came of them."""

    done: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)  # starts that were refused before anything was promised

    @property
    def made(self) -> int:
        return sum(self.done[kind] for kind in KINDS)


def lose(recorded: Recorded, cuts: list[Cut], losses: Losses, *, ignores_syncs: bool = False) -> None:
    """Makes every loss, in the order of the recording, and judges what is left."""
    device, done = Device(recorded.root, ignores_syncs=ignores_syncs), 0
    for cut in cuts:
        for operation in recorded.operations[done : cut.at]:
            device.apply(operation)
        done = cut.at
        dice = random.Random(cut.seed)
        device.volatile = recorded.volatile if dice.random() < 0.5 else b""
        place = recorded.directory / "loss"
        shutil.rmtree(place, ignore_errors=True)
        chance = Chance(dice, dice.choice((SECTOR_BYTES, PAGE_BYTES)), dice.choice(KEPT))
        # The operation under way is in the cache; it stays pending in the model until it is applied for good.
        _write(device, recorded, cut, place, chance)
        before = len(losses.findings)
        _judge(recorded, cut, place, losses)
        losses.done[cut.kind] += 1
        if len(losses.findings) > before:
            kept = recorded.directory / f"finding-{cut.at}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.move(place, kept)  # as the daemon left it; the seed makes the disk anew
            losses.findings[before] = f"loss {cut} with {chance}, kept in {kept}: {losses.findings[before]}"


def _write(device: Device, recorded: Recorded, cut: Cut, place: Path, chance: Chance) -> None:
    if cut.at < len(recorded.operations) and chance.dice.random() < 0.7:
        flying = recorded.operations[cut.at]
        if flying.kind in (Kind.WRITE, Kind.TRUNCATE, Kind.ALLOCATE):
            with device.imagined(flying):
                device.write_after_loss(place, chance)
            return
    device.write_after_loss(place, chance)


def _judge(recorded: Recorded, cut: Cut, place: Path, losses: Losses) -> None:
    is_last = cut.at >= len(recorded.operations)
    number, size = NOW if is_last else recorded.operations[cut.at].end
    books = recorded.books((number, size - 1))
    losses.findings += _keys_that_are_back(place / "state" / "data" / "keys", books)
    with short_directory() as short:
        daemon = make_daemon(recorded.directory, place, short, has_archive=recorded.has_archive)
        try:
            daemon.start()
        except RuntimeError:
            reason = daemon.stderr.strip().splitlines()[-1:] or ["nothing was said"]
            if any(book.answered for book in books):
                losses.findings.append(f"the daemon does not start: {reason[0]}")
            elif not reason[0].startswith("stateward-sidecar: ") or "Traceback" in daemon.stderr:
                losses.findings.append(f"the first start was refused without a clear word: {daemon.stderr}")
            else:
                losses.refusals[reason[0].replace(str(place), "…")] += 1
            return
        try:
            result = check_all(daemon, books, random.Random(cut.seed))
            losses.findings += result.findings or check_goes_on(daemon, books)
            if recorded.has_archive:
                losses.findings += _not_in_the_archive(recorded, place, books)
            losses.done["versions"] += result.versions
            losses.done["states"] += result.states
            losses.done["records"] += result.records
            losses.done["results"] += result.effects
            if '"error"' in daemon.stderr or "Traceback" in daemon.stderr:
                losses.findings.append(f"the daemon complains: {daemon.stderr[-500:]}")
        finally:
            daemon.kill()


def _not_in_the_archive(recorded: Recorded, place: Path, books: list[Book]) -> list[str]:
    """What was answered ARCHIVED is there for a machine that has nothing but the key and the bucket."""
    with short_directory() as short:
        machine = make_daemon(recorded.directory, place, short, has_archive=True, data="other")
        machine.start()
        try:
            return check_archived(machine, books)
        finally:
            machine.kill()


def _keys_that_are_back(path: Path, books: list[Book]) -> list[str]:
    """A thread whose deletion was answered has no key any more, on this disk as on any later one."""
    slots, size = path.read_bytes() if path.exists() else b"", keystore.SLOT_BYTES
    kept = {slots[at + 4 : at + 20].hex() for at in range(0, len(slots), size) if slots[at] == keystore.THREAD}
    return [f"the key of deleted thread {uid} is on the disk" for book in books for uid in sorted(book.gone & kept)]


def run_losses(directory: Path, count: int, seed: int, say: Callable[[str], None]) -> Losses:
    """So many losses, of several recorded lives."""
    library, losses, number = build(directory), Losses(), 0
    while losses.made < count:
        name = f"{seed}.{number}"
        recorded = record(directory / f"life-{number}", library, name, WORK_S, LIVES, has_archive=number % 2 == 1)
        books = recorded.books(NOW)
        losses.findings += [f"{name}: {failure['error']}" for book in books for failure in book.failures]
        answered = sum(book.answered for book in books)
        say(f"life {name}: {len(recorded.operations)} operations of its disk, {answered} saves answered")
        left = min(LOSSES_EACH, count - losses.made)
        lose(recorded, choose_cuts(recorded, left, name), losses)
        say(f"{losses.made} power losses, {losses.done['states']} states compared, {len(losses.findings)} findings")
        if not losses.findings:
            shutil.rmtree(recorded.directory)
        number += 1
    return losses
