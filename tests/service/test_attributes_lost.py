"""The danger: a version loses attributes, or a list by attributes misses one, shows a wrong one, or ends early."""

from __future__ import annotations

from typing import Any

import pytest
from tests.daemon.wire import TIMEOUT_S, refused
from tests.service.conftest import THREAD, Place

from stateward._operations.threads import spans_of
from stateward.v1.checkpoint_pb2 import AttributeFilter, AttributeValue, Checkpoint
from stateward.v1.checkpoint_service_pb2 import GetCheckpointRequest, ListCheckpointsRequest
from stateward.v1.diff_pb2 import Diff
from stateward.v1.thread_service_pb2 import ForkThreadRequest, PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions

FACTS: dict[str, Any] = {
    "text": {"string_value": "é"}, "empty": {"string_value": ""}, "n": {"int_value": 1}, "x": {"double_value": 1.0},
    "yes": {"bool_value": True}, "no": {"bool_value": False},
}  # fmt: skip


def to_filters(attributes: dict[str, Any]) -> list[AttributeFilter]:
    return [AttributeFilter(key=key, value=value) for key, value in attributes.items()]


def listed(place: Place, thread: str = THREAD, **fields: Any) -> tuple[list[int], int]:
    """The versions of a list and the number of its pages."""
    wanted = to_filters(fields.pop("attributes", {}))
    request = ListCheckpointsRequest(namespace=place.namespace, thread=thread, filters=wanted, **fields)
    found, pages = list[int](), 0
    while True:
        answer = place.wire.checkpoints.ListCheckpoints(request)
        found, pages = found + [each.version for each in answer.checkpoints], pages + 1
        if not answer.next_page_token:
            return found, pages
        request.page_token = answer.next_page_token


def facts_of(place: Place, thread: str = THREAD) -> dict[str, AttributeValue]:
    request = GetCheckpointRequest(namespace=place.namespace, thread=thread)
    shown: Checkpoint = place.wire.checkpoints.GetCheckpoint(request).checkpoint
    return dict(shown.attributes)


def test_a_version_has_its_attributes(place: Place) -> None:
    """Also after a restart and in copies; the next version has none of them."""
    place.wire.save(place.request(attributes=FACTS))
    expected = {key: AttributeValue(**value) for key, value in FACTS.items()}
    place.daemon.kill()
    place.daemon.start()
    assert facts_of(place) == expected
    for whole, name in ((True, "whole"), (False, "one")):
        asked = ForkThreadRequest(
            namespace=place.namespace, thread=THREAD, options=WriteOptions(request_id=name), new_thread=name,
            all_versions=whole,
        )  # fmt: skip
        place.wire.threads.ForkThread(asked)
        assert facts_of(place, name) == expected
        assert listed(place, name, attributes=FACTS)[0] == [3 if whole else 1]
    place.wire.save(place.request(expected_version=3))
    assert facts_of(place) == {}
    assert place.findings() == []


@pytest.mark.parametrize(
    "asked",
    [
        {"n": {"double_value": 1.5}}, {"n": {"bool_value": True}}, {"n": {"int_value": 2}}, {"x": {"int_value": 2}},
        {"no": {"int_value": 0}}, {"no": {}}, {"none": {"string_value": ""}}, {"text": {"string_value": "e"}},
        {"text": {"string_value": "é"}, "n": {"int_value": 0}}, {"n": {"string_value": "1"}},
    ],
)  # fmt: skip
def test_only_equal_values_match(place: Place, asked: dict[str, Any]) -> None:
    """Type and content of all attributes of the filter must be those of the version. All numbers are of one type."""
    place.wire.save(place.request(attributes=FACTS))
    for key, value in [*FACTS.items(), ("n", {"double_value": 1.0}), ("x", {"int_value": 1})]:
        assert listed(place, attributes={key: value})[0] == [3]
    assert listed(place, "-", attributes=FACTS)[0] == [3]
    request = ListCheckpointsRequest(namespace=place.namespace, thread=THREAD, filters=to_filters(asked))
    if any(not value for value in asked.values()):
        assert refused(place.wire.checkpoints.ListCheckpoints, request).field == "filters[0].value"
    else:
        assert place.wire.checkpoints.ListCheckpoints(request).checkpoints == []


def test_versions_are_compared_as_records_are(place: Place) -> None:
    """Numbers as numbers, texts by their bytes; a version without the attribute is only not equal."""
    for version, value in enumerate(({"int_value": 1}, {"double_value": 1.5}, {"string_value": "é"}), start=2):
        place.wire.save(place.request(expected_version=version, attributes={"a": value}))

    def found(operator: str, **value: Any) -> list[int]:
        operator_number = AttributeFilter.Operator.Value(f"OPERATOR_{operator}")
        wanted = AttributeFilter(key="a", operator=operator_number, value=AttributeValue(**value))
        request = ListCheckpointsRequest(namespace=place.namespace, thread=THREAD, filters=[wanted])
        return [each.version for each in place.wire.checkpoints.ListCheckpoints(request).checkpoints]

    assert found("GT", int_value=1) == [4]
    assert found("GTE", double_value=1.0) == [4, 3]
    assert found("LT", double_value=1.5) == [3]
    assert found("LTE", string_value="é") == [5]
    assert found("NE", int_value=1) == [5, 4, 2, 1]
    assert found("NE", bool_value=True) == [5, 4, 3, 2, 1]


@pytest.mark.timeout(290)  # some two thousand saves, on a busy machine
def test_pages_go_on_while_nothing_matches(place: Place) -> None:
    """A list finds a match behind thousands of other versions, alone and together with other conditions."""
    place.wire.save(place.request(attributes=FACTS, labels={"k": "v"}, status=2))
    for first in range(3, 2200, 100):  # so many at once: one after the other, they would take longest of all here
        saves = [
            place.request(expected_version=None, request_id=f"n {n}", diff=Diff(), attributes={"n": {"int_value": n}})
            for n in range(first, min(first + 100, 2200))
        ]
        for call in [place.wire.checkpoints.Save.future(save, timeout=TIMEOUT_S) for save in saves]:
            call.result()
    place.wire.save(place.request(expected_version=2200, attributes=FACTS))
    found, pages = listed(place, attributes=FACTS, page_size=1)
    assert (found, pages) == ([2201, 3], 5)  # two of them show nothing
    assert listed(place, attributes=FACTS, labels={"k": "v"}, statuses=[2], branch="main")[0] == [3]
    assert listed(place, "-", attributes=FACTS)[0] == [2201, 3]
    place.wire.threads.PruneThread(
        PruneThreadRequest(namespace=place.namespace, thread=THREAD, versions=spans_of([3]))
    )  # fmt: skip
    assert listed(place, attributes=FACTS)[0] == [2201]


def test_a_retry_has_the_same_attributes(place: Place) -> None:
    """The same request id with other attributes is another request."""
    request = place.request(attributes=FACTS, request_id="once")
    first = place.wire.save(request)
    again = place.wire.save(request)
    assert (again.version, again.receipt.digest, again.receipt.replayed) == (first.version, first.receipt.digest, True)
    request.attributes["n"].double_value = 1.0
    assert refused(place.wire.checkpoints.Save, request).reason == "REQUEST_ID_REUSED"
