"""Random damage to what is stored, with hypothesis: the envelope of a record, journal entries and blocks by themselves;
HEAD, packs and all other objects of a bucket through a machine that reads them.

    python -m tests.soak.stored --minutes 60

Bytes are flipped, cut off, added and copied, and objects change places. Every answer is as before, or an error of the
contract. The tests run a short form of it (tests/archive/test_objects_damaged_at_random.py).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.archive.test_objects_bits_flipped import fill, is_error, kind_of, look
from tests.daemon.town import Town, town

from stateward.storage.v1.journal_pb2 import EntryHeader, EntryMetadata
from stateward_sidecar.codec import entry
from stateward_sidecar.codec.seal import Cipher, open_record, seal_record
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.thread.blocks import pack_row, unpack_row

CIPHER, OTHER = Cipher(bytes(range(32))), Cipher(bytes(32))
UID = b"u" * 16
MAGICS = (b"SR", b"SS", b"SH", b"ST")
Damage = list[tuple[str, int, int, bytes]]

DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "add", "insert", "remove", "copy", "set"]),
        st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.binary(min_size=1, max_size=40),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def damaged(data: bytes, damage: Damage) -> bytes:
    """Returns bytes after some damage."""
    for what, first, second, given_bytes in damage:
        size = len(data)
        at, to = first % (size + 1), second % (size + 1)
        if what == "flip" and at < size:
            data = data[:at] + bytes([data[at] ^ 1 << second % 8]) + data[at + 1 :]
        elif what == "cut":
            data = data[:at]
        elif what == "add":
            data += given_bytes
        elif what == "insert":
            data = data[:at] + given_bytes + data[at:]
        elif what == "remove":
            data = data[: min(at, to)] + data[max(at, to) :]
        elif what == "copy":
            data = data[:at] + data[to : to + len(given_bytes)] + data[at + len(given_bytes) :]
        elif what == "set":
            data = data[:at] + given_bytes + data[at + len(given_bytes) :]
    return data


def refuses(open_it: Callable[[], Any]) -> bool:
    """Whether it raises Corrupt, and nothing else."""
    try:
        open_it()
    except Corrupt:
        return True
    return False


# -- by themselves -----------------------------------------------------------------------------------------------------


def check_record(plain: bytes, place: list[bytes], magic: bytes, damage: Damage) -> None:
    """A record opens where it was sealed, and nowhere else; and not after any change."""
    sealed = seal_record(CIPHER, magic, plain, *place)
    assert open_record(CIPHER, magic, sealed, *place) == plain
    changed = damaged(sealed, damage)
    if changed != sealed:
        assert refuses(lambda: open_record(CIPHER, magic, changed, *place))
    assert refuses(lambda: open_record(CIPHER, magic, sealed, *place, b"x"))
    assert refuses(lambda: open_record(CIPHER, magic, sealed, *[b"x" + each for each in place], b""))
    assert refuses(lambda: open_record(OTHER, magic, sealed, *place))
    assert refuses(lambda: open_record(CIPHER, b"SX", sealed, *place))


def made_entry(sequence: int, edits: bytes) -> bytes:
    header = EntryHeader(
        kind=1, epoch=1, sequence=sequence, version=sequence, parent_version=sequence - 1, create_time_us=1
    )
    return entry.pack(CIPHER, UID, header, entry.draft(EntryMetadata(), edits))


def read_entry(record: bytes, sequence: int, uid: bytes = UID) -> tuple[bytes, bytes]:
    found = entry.unpack(record, sequence)
    return found.open_metadata_bytes(CIPHER, uid), found.open_edits(CIPHER, uid)


def check_entry(sequence: int, edits: bytes, damage: Damage) -> None:
    """An entry opens as what it is, and not after any change, under another sequence, or in another thread."""
    record = made_entry(sequence, edits)
    sound = read_entry(record, sequence)
    assert sound[1] == edits
    changed = damaged(record, damage)
    if changed != record:
        assert refuses(lambda: read_entry(changed, sequence))
    assert refuses(lambda: read_entry(record, sequence + 1))
    assert refuses(lambda: read_entry(record, sequence, b"v" * 16))


def check_block(first: int, count: int, damage: Damage) -> None:
    """A block is read as it was packed; after a change it is Corrupt, or its entries open only if they are whole."""
    records = [(first + at, made_entry(first + at, b"e" * at)) for at in range(count)]
    row = pack_row(first, records)
    assert list(unpack_row(first, memoryview(row))) == records
    sound = {sequence: read_entry(record, sequence) for sequence, record in records}
    try:
        found = list(unpack_row(first, memoryview(damaged(row, damage))))
    except Corrupt:
        return
    for sequence, record in found:
        try:
            read = read_entry(record, sequence)
        except Corrupt:
            continue
        assert read == sound.get(sequence)


# -- through a machine -------------------------------------------------------------------------------------------------


class Objects:
    """A bucket with objects of all kinds, and what a machine reads there."""

    def __init__(self, made: Town) -> None:
        self.made = made
        self.sound = fill(made)
        self.keys = sorted(made._backup)
        self.done = Counter[str]()

    def check(self, numbers: list[int], swaps: bool, damage: Damage) -> None:
        """Damages some objects, and compares every answer."""
        made = self.made
        made.set_back()
        chosen = [self.keys[number % len(self.keys)] for number in numbers]
        if swaps and len(chosen) > 1:
            objects = [made.bucket.objects[key] for key in chosen]
            for key, data in zip(chosen, [*objects[1:], objects[0]], strict=True):
                made.bucket.objects[key] = data
        else:
            for key in chosen:
                made.bucket.objects[key] = damaged(made.bucket.objects[key], damage)
        if made.bucket.objects == made._backup:
            return
        found = look(made)
        made.set_back()
        if is_error(found.get("state 0")):
            found = {what: each for what, each in found.items() if what not in ("threads", "count")}
        for what, answer in found.items():
            self.done["error" if is_error(answer) else "as before"] += 1
            assert is_error(answer) or answer == self.sound[what], (what, chosen, [kind_of(key) for key in chosen])


def limits(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def run(objects: Objects, examples: int) -> None:
    """Tries so many examples of each check; a tenth of them through a machine."""

    def check_objects(numbers: list[int], swaps: bool, damage: Damage) -> None:
        objects.check(numbers, swaps, damage)

    numbers = st.integers(1, 1 << 40)
    places = st.lists(st.binary(max_size=20), max_size=3)
    chosen = st.lists(st.integers(0, 1 << 10), min_size=1, max_size=3, unique=True)
    for check, drawn, share in (
        (check_record, (st.binary(max_size=200), places, st.sampled_from(MAGICS), DAMAGE), 1),
        (check_entry, (numbers, st.binary(min_size=1, max_size=2000), DAMAGE), 1),
        (check_block, (numbers, st.integers(1, 8), DAMAGE), 1),
        (check_objects, (chosen, st.booleans(), DAMAGE), 10),
    ):
        limits(max(examples // share, 1))(given(*drawn)(check))()


def main() -> int:
    """Tries for so many minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long it tries")
    end, rounds = time.monotonic() + 60 * parser.parse_args().minutes, 0
    with tempfile.TemporaryDirectory(prefix="sw-") as place, town(Path(place)) as made:
        objects = Objects(made)
        while time.monotonic() < end:
            run(objects, 1000)
            rounds += 1
            print(f"round {rounds}: {dict(objects.done)} through a machine", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
