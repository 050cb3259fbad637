"""The danger: this disk loses entries that the archive has, and the archive drops them, too."""

from __future__ import annotations

import os

import lmdb
import pytest
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward._operations.threads import spans_of
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward_sidecar.archive.objects.packs import is_pack
from stateward_sidecar.archive.ship import compact
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.thread import blocks


def lose_block(machine: Driven) -> list[int]:
    """Removes the second block of the journal. Returns its entries."""
    keys, lost = machine.thread().identity.keys, list[int]()

    def run(txn: lmdb.Transaction, batch: object) -> None:
        first, row = list(blocks.rows(txn, keys, 1))[1]
        lost.extend(sequence for sequence, _ in blocks.unpack_row(first, row))
        txn.delete(keys.entry(first))

    machine.store.context.writer.submit(Write(run=run), wait=True).wait()
    return lost


def packed(machine: Driven) -> set[int]:
    """The entries in the packs that HEAD names."""
    head = machine.archive.state.holds[machine.thread().number].head
    refs = [ref for ref in head.objects if is_pack(ref)]
    return {sequence for ref in refs for sequence in range(ref.first_sequence, ref.last_sequence + 1)}


def test_a_prune_drops_no_pack_of_lost_entries(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version is pruned. The packs stay, so a machine with an empty disk reads every other version."""
    monkeypatch.setattr(compact, "OBJECTS_SOFT_MAX", 100)
    first = driven.machine("first")
    for _ in range(60):
        first.put(append(os.urandom(300)))
        first.ship_now()
    expected = first.state().state
    lost = lose_block(first)
    assert 1 not in lost
    assert packed(first).issuperset(lost)
    first.store.pruner.prune(PruneThreadRequest(namespace=NAMESPACE, thread="job", versions=spans_of([1])))
    first.put(append(b"next"))
    first.ship_now()
    assert packed(first).issuperset(lost)
    driven.end(first)
    state = driven.machine("empty").state().state
    assert list(state.logs["m"].entries)[:-1] == list(expected.logs["m"].entries)
