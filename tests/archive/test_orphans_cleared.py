"""The danger: what an orphan's thread cleared since is called damage of the orphan, or hides the rest of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.archive.test_effects_gone_travel import fill
from tests.archive.test_records_travel import put, value
from tests.daemon import small
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run
from tests.daemon.wire import text

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward.v1.effect_service_pb2 import DeleteEffectsRequest, ListEffectsRequest
from stateward.v1.record_service_pb2 import ListRecordsRequest
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import VersionPruned
from stateward_sidecar.store.clean import recordcleaning


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What counts for nothing goes at once, and a copy has the newest entries only."""
    monkeypatch.setattr(recordcleaning, "SLACK_BYTES", 2000)
    monkeypatch.setattr(recordcleaning, "STEP_BYTES", 2000)
    small.shrink(window=1)
    yield
    small.restore()


def with_records(machine: Driven) -> None:
    for number in range(12):
        put(machine, value(f"k{number % 4}", os.urandom(300).hex()))
        machine.put(append(os.urandom(400)))
        machine.ship_now()


def with_few_records(machine: Driven) -> None:
    """So few that none was replaced. Packs have nothing else."""
    machine.put(append())
    machine.ship_now()
    for number in range(6):
        put(machine, value(f"k{number}", os.urandom(150).hex()))
        machine.ship_now()
    for _ in range(12):
        machine.put(append(os.urandom(400)))
        machine.ship_now()


def with_effects(machine: Driven) -> None:
    fill(machine, 6)


def with_large_effects(machine: Driven) -> None:
    """Each value is in pieces."""
    for number in range(12):
        request = append(os.urandom(400))
        request.effects.add(anchor="free", key=f"{number}", value=text(os.urandom(1500).hex()))
        machine.put(request)
        machine.ship_now()


def prune(machine: Driven) -> None:
    """Only records and effects need the older packs from now on."""
    machine.prune(PruneThreadRequest(namespace=NAMESPACE, thread="job", keep_latest_per_branch=2))
    machine.sweep()
    machine.ship_now()


def delete_effects(machine: Driven) -> None:
    asked = DeleteEffectsRequest(
        namespace=NAMESPACE, thread="job", anchor="free", all=Empty(), options=WriteOptions(request_id="free")
    )
    machine.store.effect_deleter.delete(asked)


def read_records(machine: Driven, name: str) -> None:
    run(machine.records.list_records(ListRecordsRequest(namespace=NAMESPACE, thread=name, page_size=100), CALLER))


def read_effects(machine: Driven, name: str) -> None:
    machine.archive.complete(NAMESPACE, name)
    machine.store.effect_list.read(
        ListEffectsRequest(namespace=NAMESPACE, thread=name, page_size=1000)
    )


def set_aside(town: Town, make: Callable[[Driven], None], *, prunes: bool = True) -> tuple[Driven, Driven, str]:
    """Returns the owner, and a machine with an orphan, which has its newest entries only."""
    owner, other = town.machine("owner"), town.machine("other")
    make(owner)
    if prunes:
        prune(owner)
    other.archive.own(NAMESPACE, "job", take_over=True)
    other.put(append(b"shipped"))
    other.ship_now()
    other.put(append(b"mine"))
    owner.archive.own(NAMESPACE, "job", take_over=True)
    other.ship_now()
    orphan = other.find("job@@2")
    assert orphan is not None
    assert orphan.access == THREAD_ACCESS_ORPHAN
    assert orphan.floor_sequence > 0
    return owner, other, orphan.name


@pytest.mark.parametrize("window", [1, 1000], ids=["entries go", "entries stay for retries"])
@pytest.mark.parametrize(
    ("make", "clear_more", "read", "what"),
    [
        (with_records, with_records, read_records, "records"),
        (with_effects, delete_effects, read_effects, "effects"),
        (with_large_effects, delete_effects, read_effects, "effects"),
    ],
    ids=["records", "effects", "large effects"],
)
def test_they_are_gone_and_the_rest_is_there(
    driven: Town, make: Callable[[Driven], None], clear_more: Callable[[Driven], None],
    read: Callable[[Driven, str], None], what: str, window: int,
) -> None:  # fmt: skip
    """VERSION_PRUNED says what went, and with which thread. Versions can be read, and Verify finds no damage."""
    owner, other, orphan = set_aside(driven, make)
    small.shrink(window=window)
    clear_more(owner)
    owner.sweep()
    for _ in range(12):
        owner.put(append(os.urandom(400)))
        owner.ship_now()
    driven.time.sleep(3600)
    owner.ship_now()
    small.shrink(window=1)
    for is_restarted in (False, True):
        machine = other.restart() if is_restarted else other
        with pytest.raises(VersionPruned, match=f"the {what} of orphan '{orphan}' went with thread 'job'"):
            read(machine, orphan)
        request = HydrateRequest(namespace=NAMESPACE, thread=orphan, max_bytes=1 << 20)
        request.version.version = 12
        assert machine.hydrate(request).checkpoint.version == 12
        assert machine.findings() == []


@pytest.mark.parametrize(
    ("make", "read"),
    [(with_records, read_records), (with_effects, read_effects), (with_large_effects, read_effects)],
    ids=["records", "effects", "large effects"],
)
def test_what_was_not_cleared_is_read(
    driven: Town, make: Callable[[Driven], None], read: Callable[[Driven, str], None]
) -> None:
    """An orphan whose thread has all that both share."""
    _, other, orphan = set_aside(driven, make)
    read(other, orphan)
    assert other.findings() == []


def test_entries_that_are_gone_are_no_holes(driven: Town) -> None:
    """Nothing of the orphan was ever pruned, so only its thread knows what it has removed since."""
    owner, other, orphan = set_aside(driven, with_few_records, prunes=False)
    for number in range(6):
        put(owner, value(f"k{number}", os.urandom(150).hex()))
    with_records(owner)
    owner.sweep()
    for _ in range(12):
        owner.put(append(os.urandom(400)))
        owner.ship_now()
    driven.time.sleep(3600)
    owner.ship_now()
    other.archive.complete(NAMESPACE, orphan)
    found = other.find(orphan)
    assert found is not None
    assert found.pruned.is_empty
    assert not found.floor_sequence
    assert other.findings() == []
