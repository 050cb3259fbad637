"""An adapter for `agmi-check` (PyPI: agent-memory-integrity), which edits a store behind its back and asks whether it
serves what it then has.

    agmi-check --adapter tests.faults.edited:Archived

The store is the data directory of a daemon, a record is an entry in the journal of a thread, and whoever edits has the
directory and not the key. The bucket is another machine's: it is not edited.
"""

from __future__ import annotations

import secrets
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lmdb
from agmi.adapters.base import MemoryAdapter, Record
from tests.daemon.process import FAST

from stateward import Client, Durability
from stateward.errors import StatewardError
from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward.testing import Daemon
from stateward_sidecar.storage import layout
from stateward_sidecar.store.thread.blocks import pack_row, unpack_row

MINE, OTHERS = "mine", "others"
_CLEAR = struct.Struct(">2sBBH")
_SEQUENCE = struct.Struct(">Q")
LOG = "messages"


class Local(MemoryAdapter):  # type: ignore[misc]  # agmi has no types
    """A daemon without an archive."""

    name = "stateward, a data directory"
    supports_replay = supports_metadata = True
    has_archive = False

    # -- the store ---------------------------------------------------------------------------------------------

    def setup(self) -> None:
        self._stack = ExitStack()
        self._place = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp")))
        flags = {**FAST, "archive": f"file://{self._place}/bucket", "owner_id": "one"} if self.has_archive else {}
        self._daemon = Daemon(self._place, self._place / "data", **flags)
        self._is_on = False
        self._told = 0

    def teardown(self) -> None:
        self._off()
        self._stack.close()

    def _off(self) -> None:
        if self._is_on:
            self._daemon.stop()
            self._is_on = False

    def reload(self) -> None:
        self._off()
        self._told = len(self.read_all_raw())
        self._on()

    def _on(self) -> None:
        if not self._is_on:
            self._daemon.start()
            self._is_on = True

    @contextmanager
    def _client(self) -> Iterator[Client]:
        self._on()
        with self._daemon.client() as client:
            yield client

    def _write(self, name: str, count: int) -> None:
        durability = Durability.ARCHIVED if self.has_archive else Durability.COMMITTED
        with self._client() as client:
            thread = client.thread(name)
            for _ in range(count):
                state = thread.hydrate()
                state.logs[LOG].append(f"{name}, by {secrets.token_hex(8)}")
                thread.save(state, durability=durability)

    def seed(self, n: int) -> None:
        self._write(MINE, n)
        self._told = n

    def seed_other(self, n: int) -> None:
        self._write(OTHERS, n)

    def append_genuine(self) -> None:
        self._write(MINE, 1)

    def verify(self) -> bool:
        """Whether what is read is whole, and is what lies on the disk."""
        self.verify_detail = None
        try:
            with self._client() as client:
                thread = client.thread(MINE)
                served = len(list(thread.hydrate().logs[LOG]))
                versions = [each.version for each in thread.checkpoints.list()]
                for version in versions:
                    thread.hydrate(at=version)
                changes = list(thread.history())
        except (StatewardError, RuntimeError) as error:
            self.verify_detail = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return False
        if not served == len(versions) == len(changes) == self._told:
            self.verify_detail = f"{served} entries are served, and the edited disk has {self._told}"
            return False
        return True

    # -- behind its back ---------------------------------------------------------------------------------------

    @contextmanager
    def _entries(self, name: str) -> Iterator[dict[int, bytes]]:
        """The entries of a thread by sequence. What the block makes of them is on the disk afterwards."""
        self._off()
        env = lmdb.open(str(self._place / "data"), map_size=1 << 30, lock=False)
        try:
            with env.begin(write=True) as txn:
                rows = [bytes(key) for key, _ in txn.cursor() if _is_entry(key)]
                prefixes = sorted({key[:-8] for key in rows})  # threads in the order in which they were made
                prefix = prefixes[(MINE, OTHERS).index(name)]
                keys = [key for key in rows if key.startswith(prefix)]
                found = dict(each for key in keys for each in unpack_row(layout.tail_number(key), txn.get(key)))
                before = dict(found)
                yield found
                if found != before:
                    for key in keys:
                        txn.delete(key)
                    txn.put(prefix + _SEQUENCE.pack(min(found)), pack_row(min(found), sorted(found.items())))
        finally:
            env.close()

    def _read(self, name: str) -> list[Record]:
        with self._entries(name) as found:
            return [
                Record(number, {"id": f"{name}/{sequence}", "owner": name, "value": found[sequence]})
                for number, sequence in enumerate(sorted(found))
            ]

    def read_all_raw(self) -> list[Record]:
        return self._read(MINE)

    def read_other_raw(self) -> list[Record]:
        return self._read(OTHERS)

    def write_raw(self, record: Record) -> None:
        with self._entries(MINE) as found:
            found[record.seq + 1] = record.fields["value"]

    def delete_raw(self, seq: int) -> None:
        with self._entries(MINE) as found:
            del found[seq + 1]

    def mutate_payload(self, record: Record) -> Record:
        value = bytearray(record.fields["value"])
        value[-20] ^= 1
        return Record(record.seq, {**record.fields, "value": bytes(value)})

    def replay_onto(self, victim_seq: int, donor: Record) -> None:
        self.write_raw(Record(victim_seq, donor.fields))

    def read_meta(self, seq: int) -> dict[str, Any]:
        """The clear header: number, kind, time."""
        return {"header": _split(self.read_all_raw()[seq].fields["value"])[0]}

    def write_meta(self, seq: int, meta: dict[str, Any]) -> None:
        record = self.read_all_raw()[seq]
        header = EntryHeader.FromString(meta["header"])
        header.create_time_us += 3_600_000_000
        head, (_, rest) = header.SerializeToString(), _split(record.fields["value"])
        magic, form, suite, _ = _CLEAR.unpack_from(record.fields["value"])
        value = _CLEAR.pack(magic, form, suite, len(head)) + head + rest
        self.write_raw(Record(seq, {**record.fields, "value": value}))

    def payload_of(self, record: Record) -> str:
        return _split(record.fields["value"])[1].hex()

    def identity_of(self, record: Record) -> str:
        return str(record.fields["id"])

    def owner_of(self, record: Record) -> str | None:
        return str(record.fields["owner"])


def _is_entry(key: bytes) -> bool:
    return len(key) == layout.ENTRY_KEY_BYTES and key[-9:-8] == b"J"


def _split(value: bytes) -> tuple[bytes, bytes]:
    """The clear header of an entry, and what is sealed."""
    *_, size = _CLEAR.unpack_from(value)
    end = _CLEAR.size + size
    return value[_CLEAR.size : end], value[end:]


class Archived(Local):
    """A daemon with an archive, so that an older copy of its whole disk can be told from the present."""

    name = "stateward, a data directory with an archive"
    supports_snapshot = has_archive = True

    def snapshot_store(self) -> object:
        self._off()
        copy = self._place / "copy"
        shutil.copytree(self._place / "data", copy)
        return copy

    def restore_store(self, token: object) -> None:
        self._off()
        shutil.rmtree(self._place / "data")
        shutil.copytree(str(token), self._place / "data")
