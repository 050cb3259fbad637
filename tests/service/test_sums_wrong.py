"""The danger: an answer that tells another number than the one that the save made."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.daemon.wire import sets, state
from tests.messages import to_write
from tests.service.agents import Agent
from tests.service.conftest import THREAD, Place

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, SaveRequest
from stateward.v1.diff_pb2 import AddNumber, DeleteSlot, Diff, Edit


def adds(**deltas: int) -> Diff:
    return Diff(edits=[Edit(add_number=AddNumber(slot=slot, delta=delta)) for slot, delta in deltas.items()])


@pytest.fixture
def request_(place: Place) -> Any:
    def make(**fields: Any) -> SaveRequest:
        at = {"namespace": place.namespace, "thread": THREAD, "request_id": os.urandom(8).hex()}
        return to_write(SaveRequest, **{**at, **fields})

    return make


def test_numbers_of_an_answer(place: Place, request_: Any) -> None:
    """Those that the diff added to, as the new version has them: not other numbers, and no slot that holds none."""
    assert dict(place.wire.save(request_(diff=adds(a=5, b=-7))).numbers) == {"a": 5, "b": -7}
    assert dict(place.wire.save(request_(diff=adds(a=1))).numbers) == {"a": 6}
    twice = Diff(edits=[*adds(a=1).edits, *adds(a=10).edits, *adds(b=0).edits])
    assert dict(place.wire.save(request_(diff=twice)).numbers) == {"a": 17, "b": -7}
    gone = Diff(edits=[*adds(a=1, b=1).edits, Edit(delete_slot=DeleteSlot(slot="a")), *sets("b", "text").edits])
    assert dict(place.wire.save(request_(diff=gone)).numbers) == {}
    assert dict(place.wire.save(request_(diff=sets("c", "text"))).numbers) == {}
    side = request_(diff=adds(a=2), branch="side", parent=VersionRef(version=4))
    assert dict(place.wire.save(side).numbers) == {"a": 8}


def test_many_numbers_in_one_save(place: Place, request_: Any) -> None:
    """What an entry keeps for retries has a bound: of 100 slots the first 64 are told, again and again."""
    request = request_(diff=adds(**{f"n{number:03}": number for number in range(100)}))
    first, again = place.wire.save(request), place.wire.save(request)
    assert again.receipt.replayed
    assert dict(first.numbers) == dict(again.numbers) == {f"n{number:03}": number for number in range(64)}


def test_numbers_of_whole_states_and_batches(place: Place, request_: Any) -> None:
    """A whole state adds to nothing; each save of a batch has its own."""
    assert not place.wire.save(request_(state=state(a="x"), overwrite=True)).numbers
    batch = BatchSaveRequest(saves=[request_(diff=adds(n=1)), request_(diff=adds(n=2), thread="other")])
    saves = place.wire.checkpoints.BatchSave(batch, timeout=20).saves
    assert [dict(each.numbers) for each in saves] == [{"n": 1}, {"n": 2}]


def test_numbers_of_a_writers_stream(place: Place) -> None:
    """Each frame is answered with its own sum, and so is a frame that a new stream sends again."""
    agent = Agent(place.wire, place.namespace, "agent")
    stream = agent.open()
    sent = [stream.send(diff=adds(n=delta)) for delta in (3, 4, 5)]
    assert [dict(stream.next().saved.save.numbers) for _ in sent] == [{"n": 3}, {"n": 7}, {"n": 12}]
    stream.call.cancel()
    again = agent.open(request_id=stream.request_id)
    assert again.token == stream.token
    again.resend(sent[1])
    again.send(diff=adds(n=1))
    answers = [again.next().saved.save for _ in range(2)]
    assert [(each.receipt.replayed, dict(each.numbers)) for each in answers] == [(True, {"n": 7}), (False, {"n": 13})]
    again.call.cancel()
