"""The danger: a writer that cannot know which versions its frames become, because another branch took the numbers."""

from __future__ import annotations

import grpc
from tests.daemon.wire import Wire, appends
from tests.messages import facts_of, reason_of
from tests.service.agents import Agent, new_id

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.write_pb2 import WriteOptions


def fill(wire: Wire, namespace: str) -> None:
    """Main at version 1, and another branch at 4."""
    place = {"namespace": namespace, "thread": "t"}
    wire.save(SaveRequest(**place, options=WriteOptions(expected_version=0), diff=appends("1")))
    for version in (0, 2, 3):
        save = SaveRequest(**place, options=WriteOptions(expected_version=version), branch="side", diff=appends("side"))
        save.parent.CopyFrom(VersionRef(version=version or 1))
        wire.save(save)


def test_frames_name_versions_before_they_are_answered(wire: Wire) -> None:
    """`last_version` counts the thread's versions: each frame after it is the next one, and may name the one before."""
    fill(wire, f"counted {wire.name}")
    for branch, version in (("", 1), ("side", 4), ("new", 0)):
        stream = Agent(wire, f"counted {wire.name}", "agent", "t").open(branch=branch)
        last = stream.opened.last_version
        assert stream.opened.version == version
        for number in range(3):
            stream.send(expected_version=last + number if number else version)
        saved = [stream.next().saved.save.version for _ in range(3)]
        assert saved == [last + 1, last + 2, last + 3]
        stream.send(expected_version=999)
        assert stream.next().WhichOneof("frame") == "refused"
        stream.reset()
        reset = stream.next().reset
        assert (reset.version, reset.last_version) == (last + 3, last + 3)
        stream.call.cancel()


def test_a_new_thread_counts_from_nothing(wire: Wire) -> None:
    """A thread that the stream made has no version, and says so."""
    opened = Agent(wire, f"counted {wire.name}", "agent", new_id()).open().opened
    assert (opened.version, opened.last_version) == (0, 0)


def test_a_refusal_names_its_reason_as_every_error_does(wire: Wire) -> None:
    """A refused frame has the reason and the code that the same error has as the answer to a call."""
    fill(wire, f"refused {wire.name}")
    stream = Agent(wire, f"refused {wire.name}", "agent", "t").open()
    stream.send(expected_version=3)
    stream.send()
    first, second = stream.next().refused, stream.next().refused
    assert (reason_of(first.status), first.status.code) == ("VERSION_MISMATCH", grpc.StatusCode.ABORTED.value[0])
    assert facts_of(first.status)["current_version"] == "1"
    assert (reason_of(second.status), second.status.code) == ("WRITER_ABORTED", grpc.StatusCode.ABORTED.value[0])
