"""The danger: another machine has a branch that was deleted, or a head that went back is where it was."""

from __future__ import annotations

import os

from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run

from stateward.v1.checkpoint_service_pb2 import ListCheckpointsRequest
from stateward.v1.thread_service_pb2 import DeleteBranchRequest, MoveBranchRequest
from stateward.v1.write_pb2 import WriteOptions


def fill(machine: Driven) -> None:
    """Versions 1 to 8 on main, with x in between."""
    for number in range(10):
        request = append(os.urandom(400))
        if number in (3, 4):
            request.branch = "x"
            request.parent.version = number
        machine.put(request)
    machine.ship_now()


def let_go(machine: Driven) -> None:
    """Deletes x, moves main to version 7."""
    run(machine.threads_.delete_branch(DeleteBranchRequest(namespace=NAMESPACE, thread="job", branch="x"), CALLER))
    asked = MoveBranchRequest(
        namespace=NAMESPACE, thread="job", version={"version": 7}, options=WriteOptions(expected_version=10)
    )
    run(machine.threads_.move_branch(asked, CALLER))


def heads(machine: Driven) -> dict[str, tuple[int, int]]:
    return {name: (head.version, head.newest_version) for name, head in machine.thread().branches.items()}


def test_another_machine_has_the_same_heads(driven: Town) -> None:
    """On an empty disk, on a copy that was there before, and with the owner lost; it goes on from the moved head."""
    first, reader = driven.machine("first"), driven.machine("reader")
    fill(first)
    reader.state()
    assert heads(reader) == {"main": (10, 0), "x": (5, 0)}
    let_go(first)
    first.ship_now()
    expected = first.state().state
    driven.end(first)
    for machine in (reader, driven.machine("empty")):
        assert machine.state().state == expected
        assert heads(machine) == {"main": (7, 10)}
        assert machine.findings() == []
    reader.archive.own(NAMESPACE, "job", take_over=True)
    assert reader.put(append(after=7)).version == 11
    reader.ship_now()
    assert reader.thread().branches["main"].moved_version == 11
    listed = reader.list(ListCheckpointsRequest(namespace=NAMESPACE, thread="job", branch="main"))
    assert [each.version for each in listed.checkpoints] == [11, 10, 9, 8, 7, 6, 3, 2, 1]
    assert reader.findings() == []
    reader.restart()
    assert heads(reader) == {"main": (11, 0)}
    assert reader.findings() == []


def test_moves_that_were_not_archived_are_set_aside(driven: Town) -> None:
    """A machine that was replaced keeps its moves in the orphan; the thread has the heads that were archived."""
    first, second = driven.machine("first"), driven.machine("second")
    fill(first)
    let_go(first)
    second.archive.own(NAMESPACE, "job", take_over=True)
    second.put(append(after=10))
    second.ship_now()
    first.ship_now()
    assert heads(first) == heads(second) == {"main": (11, 0), "x": (5, 0)}
    orphan = next(thread for thread in first.threads() if thread.name != "job")
    assert {name: head.version for name, head in orphan.branches.items()} == {"main": 7}
    assert first.findings() == second.findings() == []
