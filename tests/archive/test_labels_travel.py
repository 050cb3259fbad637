"""The danger: another machine lists a thread by labels that it no longer has, or loses what versions say."""

from __future__ import annotations

from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.v1.checkpoint_pb2 import AttributeFilter
from stateward.v1.checkpoint_service_pb2 import ListCheckpointsRequest
from stateward.v1.thread_service_pb2 import ListThreadsRequest, UpdateThreadRequest
from stateward.v1.write_pb2 import WriteOptions


def listed(machine: Driven, **labels: str) -> list[str]:
    """The names of the threads that a machine lists by labels."""
    answer = machine.store.lister.threads(ListThreadsRequest(namespace=NAMESPACE, labels=labels))
    return [each.thread for each in answer.threads]


def relabel(machine: Driven, **labels: str) -> None:
    request = UpdateThreadRequest(namespace=NAMESPACE, thread="job", options=WriteOptions(request_id=f"{labels}"))
    request.update.labels.update(labels)
    request.update_mask.paths.append("labels")
    machine.update(request)


def begin(machine: Driven) -> None:
    first = append(after=0)
    first.options.create.labels.update({"team": "red", "env": "test"})
    first.attributes["source"].string_value = "input"
    machine.put(first)
    for number in range(12):
        request = append()
        request.attributes["n"].int_value = number
        machine.put(request)
    machine.ship_now()


def test_a_copy_is_listed_by_the_labels_of_its_thread(driven: Town) -> None:
    """On an empty disk, on a copy that is renewed, and after a takeover. Attributes are there, too."""
    first, reader = driven.machine("first"), driven.machine("reader")
    begin(first)
    reader.state()
    assert listed(reader, team="red", env="test") == ["job"]
    relabel(first, team="blue", env="test")
    first.ship_now()
    driven.end(first)
    for machine in (reader, driven.machine("empty")):
        machine.state()
        assert (listed(machine, team="red"), listed(machine, env="test")) == ([], ["job"])
        assert listed(machine, team="blue", env="test") == ["job"]
        for key, value, version in (("source", {"string_value": "input"}, 1), ("n", {"int_value": 7}, 9)):
            filters = [AttributeFilter(key=key, value=value)]  # type: ignore[arg-type]
            asked = ListCheckpointsRequest(namespace=NAMESPACE, thread="job", filters=filters)
            assert [each.version for each in machine.list(asked).checkpoints] == [version]
        assert machine.findings() == []
    reader.archive.own(NAMESPACE, "job", take_over=True)
    relabel(reader, rare="yes")
    assert (listed(reader, rare="yes"), listed(reader, env="test")) == (["job"], [])
    reader.restart()
    assert (listed(reader, rare="yes"), reader.findings()) == (["job"], [])


def test_what_is_set_aside_keeps_its_labels(driven: Town) -> None:
    """The orphan has the labels that were not archived, and the thread those of the machine that took it."""
    first, second = driven.machine("first"), driven.machine("second")
    begin(first)
    relabel(first, team="blue")
    second.archive.own(NAMESPACE, "job", take_over=True)
    second.put(append(after=13))
    second.ship_now()
    first.ship_now()
    (orphan,) = listed(first, team="blue")
    assert orphan.startswith("job@")
    assert listed(first, team="red") == ["job"]
    assert first.findings() == []
