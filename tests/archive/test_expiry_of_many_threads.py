"""The danger: each of many deletions reads what all others left, so that a sweep of thousands of threads never ends."""

from __future__ import annotations

from collections.abc import Iterator

import lmdb
import pytest
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.store.thread import blocks

TTL_S = 100
FEW, MANY = 8, 24


def save(name: str, ttl_s: int = 0) -> SaveRequest:
    request = append()
    request.thread = name
    if ttl_s:
        request.options.create.ttl.FromSeconds(ttl_s)
    return request


def ship(machine: Driven, name: str) -> None:
    found = machine.find(name)
    assert found is not None
    machine.ship(found.number)
    machine.wire.background()


def set_aside(driven: Town, machine: Driven, count: int) -> list[str]:
    """Makes orphans, each of a thread of its own. Returns their names."""
    other = driven.machine("other")
    for number in range(count):
        name = f"taken-{number}-{count}"
        machine.save(save(name))
        ship(machine, name)
        other.archive.own(NAMESPACE, name, take_over=True)
        machine.save(save(name))
        ship(machine, name)
    return [found.name for found in machine.threads() if "@@" in found.name]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the rows that lists of rows read, by whatever part of the store."""
    count, rows_from = [0], blocks.rows_from

    def counted(txn: lmdb.Transaction, first: bytes, prefix: bytes) -> Iterator[tuple[bytes, memoryview]]:
        for row in rows_from(txn, first, prefix):
            count[0] += 1
            yield row

    monkeypatch.setattr(blocks, "rows_from", counted)
    return count


def test_a_sweep_reads_as_many_rows_for_each_thread(driven: Town, read: list[int]) -> None:
    """Three times as many threads expire beside three times as many orphans and other threads."""
    costs = []
    for count in (FEW, MANY):
        machine = driven.machine(f"m{count}")
        assert len(set_aside(driven, machine, count)) == count
        for number in range(count):
            machine.save(save(f"stays-{number}-{count}"))
            machine.save(save(f"goes-{number}-{count}", TTL_S))
            ship(machine, f"goes-{number}-{count}")
        driven.time.sleep(TTL_S + 1)
        read[0] = 0
        machine.sweep()
        costs.append(read[0] / count)
        assert not [found.name for found in machine.threads() if found.name.startswith("goes")]
    assert costs[1] < 1.3 * costs[0]


def test_deletions_of_orphans_read_few_rows(driven: Town, read: list[int]) -> None:
    """Whether another line needs the key is found without a look at all names."""
    costs = []
    for count in (FEW, MANY):
        machine = driven.machine(f"m{count}")
        orphans = set_aside(driven, machine, count)
        read[0] = 0
        for name in orphans:
            machine.write(machine.store.deleter.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=name)))
        costs.append(read[0] / count)
        assert not [found.name for found in machine.threads() if "@@" in found.name]
    assert costs[1] < 1.3 * costs[0]
