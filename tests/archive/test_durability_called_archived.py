"""The danger: ARCHIVED is answered for an entry that a takeover left out of history, since another has its number."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import grpc.aio
import pytest
from tests.daemon.driven import NAME, NAMESPACE, Driven, append
from tests.daemon.town import Twins, twins

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED
from stateward.v1.checkpoint_service_pb2 import SaveResponse
from stateward.v1.effect_service_pb2 import BeginEffectRequest
from stateward.v1.thread_service_pb2 import WaitDurableRequest, WaitDurableResponse
from stateward.v1.write_pb2 import Receipt, WriteOptions
from stateward_sidecar.errors import Fenced, InvalidField, UidMismatch, VersionNotFound
from stateward_sidecar.service.admission.memory import Budget
from stateward_sidecar.service.admission.order import Turns
from stateward_sidecar.service.api.threads import ThreadService
from stateward_sidecar.service.calls import ownership
from stateward_sidecar.service.calls.calls import Calls, Gather
from stateward_sidecar.service.calls.feed import Feed


class Patient:
    """A call without a deadline."""

    def time_remaining(self) -> None:
        """None = it has none."""


CONTEXT = cast("grpc.aio.ServicerContext", Patient())


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Twins]:
    """``a`` has archived a version; ``b`` has taken the thread, written two more, and ``a`` has not heard of it."""
    with twins(tmp_path) as made:
        made.a.put("one")
        made.a.archive_all()
        made.b.take()
        made.b.put("b two")
        made.b.put("b three")
        made.b.archive_all()
        yield made


def find_out(sidecar: Driven) -> None:
    """It is fenced, and has a copy of the other line afterwards, under the thread's name."""
    sidecar.archive_all()
    assert sidecar.orphans() == ["job@@1"]
    assert sidecar.words() == ["one", "b two", "b three"]


def wait(sidecar: Driven, saved: SaveResponse, **changes: object) -> WaitDurableResponse:
    """WaitDurable for ARCHIVED of a save."""
    request = WaitDurableRequest(
        namespace=NAMESPACE, thread=NAME, durability=DURABILITY_ARCHIVED,
        receipt=Receipt(uid=saved.receipt.uid, sequence=saved.receipt.sequence, digest=saved.receipt.digest),
    )  # fmt: skip
    for field, value in changes.items():
        setattr(request.receipt if field in ("uid", "sequence", "digest") else request, field, value)

    async def ask() -> WaitDurableResponse:
        loop = asyncio.get_running_loop()
        gather = Gather(sidecar.store.context.writer, loop)
        calls = Calls(sidecar.store, gather, sidecar.ownership, Budget(1 << 20), Turns(loop))
        return await ThreadService(calls, cast("Feed", None)).wait_durable(request, CONTEXT)

    return asyncio.run(ask())


def test_a_save_whose_thread_was_taken_right_after_its_commit(pair: Twins) -> None:
    """The line is found by the answer's digest: FENCED, which names the orphan, however long after the commit."""
    request = append("a two")
    saved = pair.a.save(request)
    find_out(pair.a)
    entry = ownership.written(request, saved.receipt)
    with pytest.raises(Fenced) as caught:
        asyncio.run(ownership.archived(pair.a.store, pair.a.archive, entry, CONTEXT))
    assert caught.value.metadata["orphan"] == "job@@1"
    assert caught.value.metadata["owner_id"] == "b"
    assert caught.value.metadata["epoch"] == "2"
    assert caught.value.metadata["common_sequence"] == "1"


def test_a_claim_whose_thread_was_taken_right_after_its_commit(pair: Twins) -> None:
    """Else a tool is called on a claim that is no history, and called again by whoever has the thread."""
    request = BeginEffectRequest(namespace=NAMESPACE, thread=NAME, key="pay", options=WriteOptions(request_id="r"))
    request.holder.name, request.holder.incarnation = "me", "1"
    begun = pair.a.begin(request)
    find_out(pair.a)
    entry = ownership.written(request, begun.receipt)
    assert entry.digest
    assert entry.sequence == begun.effect.sequence
    with pytest.raises(Fenced):
        asyncio.run(ownership.archived(pair.a.store, pair.a.archive, entry, CONTEXT))


def test_who_waits_for_an_orphan_that_is_not_in_memory(pair: Twins) -> None:
    """Its thread was forgotten, as any may be: FENCED at once all the same, and not COMMITTED after half a minute."""
    pair.a.put("a two")
    line = pair.a.find(NAME)
    assert line is not None
    find_out(pair.a)
    pair.a.store.threads.forget(line)
    with pytest.raises(Fenced):
        pair.a.archive.wait(line, 2)
    assert pair.a.archive.wait(line, 1) is None


def test_nobody_waits_for_a_caller_that_left(pair: Twins) -> None:
    """While the bucket is away, callers may come and leave for hours: nothing is kept of them."""
    pair.a.put("a two")
    line = pair.a.find(NAME)
    assert line is not None
    waiters = pair.a.archive.state.waiters

    async def leave() -> None:
        waiting = asyncio.create_task(ownership.await_archived(pair.a.archive, line, 2, CONTEXT))
        for _ in range(10):
            await asyncio.sleep(0)
        assert waiters.is_waiting(line.number)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(leave())
    assert not waiters.is_waiting(line.number)


def test_who_waits_while_a_thread_is_taken(pair: Twins) -> None:
    """Also where the ship finds the line set aside by somebody else."""
    pair.a.put("a two")
    line = pair.a.find(NAME)
    assert line is not None
    future = pair.a.archive.wait(line, 2)
    assert future is not None
    pair.a.archive.state.waiters.drop(line.number, future)  # as if it came between the two looks
    find_out(pair.a)
    late = pair.a.archive.state.waiters.add(line.number, 2)
    pair.a.ship(line.number)
    with pytest.raises(Fenced):
        late.result(0)


def test_wait_durable_tells_two_entries_of_one_number_apart(pair: Twins) -> None:
    """By digest; what both lines share is archived under either; where nothing names the entry, the place counts."""
    mine = pair.a.put("a two")
    find_out(pair.a)
    with pytest.raises(Fenced) as caught:
        wait(pair.a, mine)
    assert caught.value.metadata["orphan"] == "job@@1"
    with pytest.raises(Fenced):
        wait(pair.a, mine, durability=DURABILITY_COMMITTED)
    committed = wait(pair.a, mine, thread="job@@1", durability=DURABILITY_COMMITTED)
    assert committed.receipt.durability == DURABILITY_COMMITTED
    with pytest.raises(Fenced):
        wait(pair.a, mine, thread="job@@1")
    assert wait(pair.a, mine, digest=b"", uid="").receipt.durability == DURABILITY_ARCHIVED
    pair.a.restart()
    with pytest.raises(Fenced):
        wait(pair.a, mine)
    with pytest.raises(VersionNotFound, match="another journal entry 2"):
        wait(pair.b, mine)
    with pytest.raises(VersionNotFound, match="its newest is 3"):
        wait(pair.b, mine, sequence=9)


def test_wait_durable_tells_two_threads_of_one_name_apart(pair: Twins) -> None:
    """By uid; and what is none is refused by its field."""
    mine = pair.a.put("a two")
    with pytest.raises(UidMismatch, match="the entry is gone"):
        wait(pair.b, mine, uid="0" * 32)
    with pytest.raises(InvalidField, match="uid"):
        wait(pair.b, mine, uid="me")
    with pytest.raises(InvalidField, match="digest"):
        wait(pair.b, mine, digest=b"short")
