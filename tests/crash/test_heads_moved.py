"""The danger: the daemon dies while heads move, and a half-made move is seen, or a retry moves a head again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.crash.faulty_daemon import FaultyDaemon
from tests.crash.test_crash_fault_points import VERSIONS, check_clean, daemon, filled
from tests.daemon.wire import Wire

from stateward._operations.threads import numbers_of, spans_of
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.write_pb2 import WriteOptions

__all__ = ["daemon", "filled"]

WHERE = {
    "entry put": (">store.versions.moves:append", False),
    "rows put": (">store.versions.moves:commit_entry", False),
    "before the commit": ("<storage.writer:Writer._commit", False),
    "committed": ("<storage.writer:Writer._finish", True),
}
BACK, PRUNED = 30, [VERSIONS - 1, VERSIONS]


def move(wire: Wire) -> Any:
    """The head of main goes back to version 30."""
    return wire.threads.MoveBranch(
        t.MoveBranchRequest(
            thread="base", version={"version": BACK}, options=WriteOptions(request_id="move", expected_version=VERSIONS)
        )
    )


def delete(wire: Wire) -> Any:
    """Branch side is deleted."""
    return wire.threads.DeleteBranch(
        t.DeleteBranchRequest(thread="base", branch="side", options=WriteOptions(request_id="delete"))
    )


def prune(wire: Wire) -> Any:
    """The heads of main and of side are pruned: main falls back, side disappears."""
    versions = spans_of([*PRUNED, VERSIONS + 1])
    return wire.threads.PruneThread(
        t.PruneThreadRequest(
            thread="base", versions=versions, move_heads=True, options=WriteOptions(request_id="prune")
        )
    )


VERBS: dict[Callable[[Wire], Any], tuple[dict[str, int], int]] = {
    move: ({"main": BACK, "side": VERSIONS + 1}, 1),
    delete: ({"main": VERSIONS}, 1),
    prune: ({"main": VERSIONS - 2}, 2),
}


def heads(wire: Wire) -> tuple[dict[str, int], int]:
    """The heads, and the newest sequence."""
    found = wire.described("", "base")
    return {each.name: each.version for each in found.branches}, found.thread.sequence


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_heads_moved_or_did_not(daemon: FaultyDaemon, verb: Callable[[Wire], Any], where: str) -> None:
    """After the next start all of a move is there or nothing of it; a retry makes it once, and nothing is damaged."""
    daemon.start()
    with daemon.client() as client:
        side = client.thread("base").branch("side", at=7)
        side.save(side.hydrate(), step=8)
    wire = Wire(daemon.target)
    before, sequence = heads(wire)
    assert before == {"main": VERSIONS, "side": VERSIONS + 1}
    wire.close()
    daemon.stop()
    place, is_kept = WHERE[where]
    daemon.start_faulty(place, 1)
    wire = Wire(daemon.target)
    with pytest.raises(grpc.RpcError):
        verb(wire)
    wire.close()
    daemon.wait_until_dead()
    daemon.start()
    wire = Wire(daemon.target)
    after, entries = VERBS[verb]
    assert heads(wire) == ((after, sequence + entries) if is_kept else (before, sequence))
    first, again = verb(wire), verb(wire)
    assert (first.receipt.replayed, again.receipt.replayed) == (is_kept, True)
    first.receipt.replayed = True
    assert first == again
    assert heads(wire) == (after, sequence + entries)
    with daemon.client() as client:
        thread = client.thread("base")
        state = thread.hydrate()
        assert [each["n"] for each in state.logs["log"]] == list(range(1, after["main"] + 1))
        assert thread.append("log", {"n": 0}, request_id="next", step=1).version == VERSIONS + 2
    wire.close()
    check_clean(daemon)


@pytest.mark.parametrize("where", [">store.clean.prune:put_moves", "<store.clean.clear:Clearer.clear"])
def test_a_prune_that_dies_between_its_entries(daemon: FaultyDaemon, where: str) -> None:
    """The entry that moves heads is never there without the entry of the prune; the next start clears what is left."""
    is_kept = "clear" in where
    daemon.start_faulty(where, 1)
    wire = Wire(daemon.target)
    request = t.PruneThreadRequest(
        thread="base", versions=spans_of(PRUNED), move_heads=True, options=WriteOptions(request_id="p")
    )
    with pytest.raises(grpc.RpcError):
        wire.threads.PruneThread(request)
    wire.close()
    daemon.wait_until_dead()
    daemon.start()
    wire = Wire(daemon.target)
    assert heads(wire)[0] == {"main": VERSIONS - 2 if is_kept else VERSIONS}
    assert list(numbers_of(wire.threads.PruneThread(request).pruned)) == PRUNED
    assert heads(wire)[0] == {"main": VERSIONS - 2}
    wire.close()
    check_clean(daemon)
