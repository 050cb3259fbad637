"""The danger: a reader of a log goes on in another line of its thread, where a version has the same number."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.archive.test_records_travel import put, value
from tests.daemon import small
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town

from stateward.v1.checkpoint_service_pb2 import ReadLogRequest, ReadLogResponse
from stateward.v1.thread_service_pb2 import PruneThreadRequest


def read(machine: Driven, known: ReadLogResponse | None = None, **fields: Any) -> ReadLogResponse:
    """A page of the log from the beginning, as it is now."""
    request = ReadLogRequest(namespace="default", thread="job", log="m", **fields)
    if known is not None:
        request.expected_uid = known.uid
        request.known_version, request.known_digest = known.version, known.version_digest
    page = machine.store.read(machine.store.log_reader.read, request)
    return ReadLogResponse.FromString(page.wire())


@pytest.mark.parametrize("saves", [1, 2, 3])
def test_a_lost_version_is_missing(driven: Town, saves: int) -> None:
    """Another machine went on from an earlier version: whoever knows the lost one starts again, whatever number is
    shown; whoever knows the version before it does not."""
    here, other = driven.machine("here"), driven.machine("other")
    here.put(append(b"a", after=0))
    here.ship_now()
    shared = read(here)
    here.put(append(b"b"))
    here.put(append(b"lost"))
    lost = read(here, shared)
    assert not lost.known_missing
    other.archive.own("default", "job", take_over=True)
    for number in range(saves):
        other.put(append(b"%d" % number))
    page = read(other, lost)
    assert (page.version, page.known_missing, page.uid) == (1 + saves, True, lost.uid)
    assert page.rewritten_version <= lost.version, "nothing else says so"
    assert not read(other, shared).known_missing
    assert not read(other, page).known_missing


def test_a_pruned_version_is_not_missing(driven: Town) -> None:
    """Its entry still says which version it was; once nothing is left of it, the reader goes on."""
    here = driven.machine("here")
    for number in range(6):
        here.put(append(b"%d" % number))
    here.ship_now()
    known = read(here)
    for number in range(3):
        here.put(append(b"%d" % number))
    here.ship_now()
    here.prune(PruneThreadRequest(namespace="default", thread="job", keep_latest_per_branch=1))
    assert not read(here, known).known_missing
    known.version_digest = b"\1" * 16
    assert read(here, known).known_missing


def test_a_machine_that_has_the_newest_part_looks_at_the_rest(driven: Town) -> None:
    """A known version below that part is compared after its history was fetched."""
    owner, reader = driven.machine("owner"), driven.machine("reader")
    known = None
    for number in range(60):
        owner.put(append(bytes([number]) * 2000 + number.to_bytes(4, "big") * 500))
        if number == 3:
            known = read(owner)
        if number % 10 == 9:
            owner.ship_now()
    reader.state()
    assert reader.thread().floor_version > 4
    assert known is not None
    reader.archive.complete("default", "job")
    assert not read(reader, known, from_index=59).known_missing
    known.version_digest = b"\1" * 16
    assert read(reader, known, from_index=59).known_missing


def test_a_version_of_which_a_copy_never_had_anything_is_not_missing(driven: Town) -> None:
    """It was pruned before the copy was made, and nothing is left that says where it was."""
    small.shrink(window=2)
    try:
        here, other = driven.machine("here"), driven.machine("other")
        put(here, value("k", "v"))  # the first entry of a thread stays, and this one has no version
        here.put(append(b"first"))
        here.ship_now()
        known = read(here)
        for _ in range(12):
            here.put(append(os.urandom(300)))
            here.ship_now()
        here.prune(PruneThreadRequest(namespace="default", thread="job", keep_latest_per_branch=2))
        here.sweep()
        here.put(append(b"next"))
        here.ship_now()
        other.archive.own("default", "job", take_over=True)
        other.archive.complete("default", "job")
        assert not other.thread().floor_sequence
        page = read(other, known)
        assert (page.version, page.known_missing) == (14, False)
        other.put(append(b"goes on"))
        other.ship_now()
    finally:
        small.restore()
