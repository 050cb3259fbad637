"""One scenario while it is played: which call comes next, and what was wrong with the last one."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from google.protobuf.message import Message

from stateward.conformance import objects
from stateward.conformance.compare import FRAME_HINTS, difference
from stateward.conformance.objects import Objects, WrongCall
from stateward.conformance.scenarios import THREAD
from stateward.conformance.v1.scenario_pb2 import Scenario, Turn, WriterFrame
from stateward.v1.blob_service_pb2 import ReadBlobRequest
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.state_pb2 import BlobRef
from stateward.v1.writer_service_pb2 import OpenWriter, WriteRequest

REQUEST_ID_BYTES_MAX = 256
# Writes that need no request id: what they name cannot happen twice.
_NEED_NO_ID = frozenset({"CompleteEffectRequest", "ReleaseLeaseRequest"})
# A client's clock may run a little faster than ours.
PAUSE_SHARE = 0.9
_DIGEST = re.compile("[0-9a-f]{64}")
_STREAMS = frozenset({"Watch", "Write", "WriteBlob", "ReadBlob", "WriteObjects", "ReadObjects", "DiffTrees"})


class ScenarioFailed(Exception):
    """The client did something else than the scenario asks for."""


class Play:
    """The progress of a scenario. Handlers of several calls may use it at the same time."""

    def __init__(self, name: str, scenario: Scenario, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.failure = ""
        """What the client did wrong first; "" = nothing yet."""
        self.is_touched = False
        """Whether the client made a call."""
        self.objects = Objects()
        """What the thread has of trees."""
        self._turns = list(scenario.turns)
        self._next = 0
        self._is_repeating = False  # the next turn takes any number of calls, and has taken one
        self._open_streams = 0
        self._earliest = 0.0
        self._called = 0.0
        self._request_ids: set[str] = set()
        self._last: dict[str, Message] = {}
        self._frames: dict[bytes, SaveRequest] = {}
        self._clock = clock
        self._changed = threading.Condition()

    @property
    def is_done(self) -> bool:
        """Whether the client has made every call that must come."""
        rest = self._turns[self._next + self._is_repeating :]
        return not self.failure and not self._open_streams and all(turn.optional for turn in rest)

    def wait(self, timeout_s: float) -> bool:
        """Waits until the scenario is done or has failed. Returns False if neither happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_done or bool(self.failure), timeout_s)

    def missing(self) -> str:
        """Returns the call that is expected next, for people."""
        left = self._turns[self._next + self._is_repeating :]
        turn = next((turn for turn in left if not turn.optional), None)
        if turn is None:
            return "the end of a stream" if self._open_streams else "nothing more"
        return f"{_method_of(turn)} (call {self._turns.index(turn) + 1} of {len(self._turns)})"

    def fail(self, problem: str) -> ScenarioFailed:
        """Notes what the client did wrong, if it is the first fault. Returns the error to raise."""
        with self._changed:
            self.failure = self.failure or problem
            self._changed.notify_all()
        return ScenarioFailed(self.failure)

    def take(self, method: str, request: Message) -> Turn:
        """Takes the next call. Returns how it is answered. Raises ScenarioFailed if it is not the expected one."""
        with self._changed:
            self.is_touched = True
            if self.failure:
                raise ScenarioFailed(self.failure)
            at, problem = self._next, f"a further call came: {method}"
            while at < len(self._turns):
                turn = self._turns[at]
                problem = self._check(turn, method, request)
                if not problem:
                    self._begin(at, turn, method, request)
                    return turn
                if not turn.optional and not (self._is_repeating and at == self._next):
                    problem = f"call {at + 1}, {_method_of(turn)}: {problem}"
                    break
                at += 1
            raise self.fail(problem)

    def _begin(self, at: int, turn: Turn, method: str, request: Message) -> None:
        is_first = not (self._is_repeating and at == self._next)
        self._is_repeating = turn.HasField("objects")
        if self._is_repeating and is_first:
            self.objects.begin(turn.objects)
        self._next = at + (not self._is_repeating)
        self._last[method] = request
        self._called = self._clock()
        if request_id := _request_id_of(request):
            self._request_ids.add(request_id)
        if method in _STREAMS:
            self._open_streams += 1
        delay = turn.failure.retry_delay.ToTimedelta().total_seconds() if turn.HasField("failure") else 0.0
        self._earliest = self._clock() + delay * PAUSE_SHARE if delay else 0.0
        self._changed.notify_all()

    def end_stream(self) -> None:
        """Notes that a stream was played to its end."""
        with self._changed:
            self._open_streams -= 1
            self._changed.notify_all()

    def _check(self, turn: Turn, method: str, request: Message) -> str:
        """Returns what is wrong with a call; "" = nothing."""
        kind = turn.WhichOneof("call") or ""
        if method not in (objects.METHODS if kind == "objects" else (_method_of(turn),)):
            return f"the client called {method}"
        if turn.again and self._earliest > self._clock():
            return "the client called again earlier than RetryInfo asks for"
        within_s = turn.within.ToTimedelta().total_seconds()
        if within_s and self._clock() > self._called + within_s:
            return f"the call came more than {within_s:g} s after the one before"
        before = self._last.get(method)
        if isinstance(request, OpenWriter):
            return difference(turn.write.open, request) or self._check_open(turn, request, before)
        if kind in ("write_blob", "objects"):
            return ""  # their messages are checked as they come
        expected = getattr(turn, kind)
        problem = difference(*_named(expected.request, request) if kind == "read_blob" else (expected, request))
        if problem:
            return (_explain(expected, request) if isinstance(request, SaveRequest) else "") or problem
        if isinstance(request, SaveRequest):
            try:
                self.objects.check_save(request)
            except WrongCall as wrong:
                return str(wrong)
        if turn.again:
            return "" if request == before else "the request is not the same as the one before"
        if getattr(expected, "page_token", "") and before is not None and _paged(before) != _paged(request):
            return "the other fields are not those of the page before"
        return self._check_identity(request)

    def _check_identity(self, request: Message) -> str:
        """Returns what is wrong with the request id and the holder, if the request has them."""
        fields = request.DESCRIPTOR.fields_by_name
        if "holder" in fields and not (request.holder.name and request.holder.incarnation):  # type: ignore[attr-defined]
            return "holder.name and holder.incarnation are required"
        request_id = _request_id_of(request)
        if not request_id and ("options" not in fields or request.DESCRIPTOR.name in _NEED_NO_ID):
            return ""
        return self._check_request_id(request_id)

    def _check_request_id(self, request_id: str) -> str:
        if not request_id:
            return "request_id is empty"
        if len(request_id.encode()) > REQUEST_ID_BYTES_MAX:
            return f"request_id has more than {REQUEST_ID_BYTES_MAX} bytes"
        return "another request had the same request_id" if request_id in self._request_ids else ""

    def _check_open(self, turn: Turn, request: OpenWriter, before: Message | None) -> str:
        if not request.options.request_id or not request.holder.name or not request.holder.incarnation:
            return "request_id, holder.name and holder.incarnation are required"
        if turn.again and isinstance(before, OpenWriter):
            is_same = before.options.request_id == request.options.request_id and before.holder == request.holder
            return "" if is_same else "request_id and holder are not those of the stream before"
        return self._check_request_id(request.options.request_id)

    def take_frame(self, frame: WriterFrame, message: WriteRequest, last_number: int) -> None:
        """Checks a frame of a writer. Raises ScenarioFailed."""
        with self._changed:
            if problem := self._check_frame(frame, message, last_number):
                raise self.fail(problem)

    def _check_frame(self, frame: WriterFrame, message: WriteRequest, last_number: int) -> str:
        expected, seen = frame.request, message
        kinds = expected.WhichOneof("frame"), seen.WhichOneof("frame")
        if kinds[0] != kinds[1]:
            return f"the client sent the frame {kinds[1]}, not {kinds[0]}"
        if kinds[0] == "reset":
            return ""
        save = SaveRequest()
        save.CopyFrom(seen.save.save)
        if save.thread == THREAD + self.name:  # a frame may repeat what the stream says
            save.ClearField("thread")
        if problem := difference(expected.save.save, save, FRAME_HINTS):
            return f"frame {seen.save.frame}: {problem}"
        if seen.save.frame <= last_number:
            return f"frame {seen.save.frame} follows frame {last_number}; numbers ascend and are positive"
        edits = expected.save.save.diff.SerializeToString(deterministic=True)
        before = self._frames.get(edits)
        if frame.again and before is not None:
            return "" if before == save else f"frame {seen.save.frame} is not the same as the one that was not answered"
        self._frames[edits] = save
        problem = self._check_request_id(save.options.request_id) if before is None else ""
        self._request_ids.add(save.options.request_id)
        return f"frame {seen.save.frame}: {problem}" if problem else ""


def _explain(expected: SaveRequest, seen: SaveRequest) -> str:
    """Returns what it means that a digest in a save is another one; "" if that is not the difference."""
    found = [
        each.diff.edits[0].set_slot.value.data.decode(errors="replace") for each in (expected, seen) if each.diff.edits
    ]
    if len(found) < 2 or found[0] == found[1] or not all(_DIGEST.fullmatch(each) for each in found):
        return ""
    what = "tree that the client made" if expected.HasField("workspace") else "state that the client has"
    return f"the {what} is not the right one: its digest is {found[1]}, not {found[0]}"


def _request_id_of(request: Message) -> str:
    """Returns the request id of a write; "" = it has none, or the request is no write."""
    has_options = "options" in request.DESCRIPTOR.fields_by_name
    return request.options.request_id if has_options else ""  # type: ignore[attr-defined]


def _paged(request: Message) -> Message:
    """Returns a request without what pages differ in."""
    rest = type(request)()
    rest.CopyFrom(request)
    for field in ("page_token", "page_size"):
        if field in request.DESCRIPTOR.fields_by_name:
            rest.ClearField(field)
    return rest


def _named(*requests: Message) -> list[Message]:
    """Returns ReadBlobRequests that name their blob by nothing but its SHA-256: the daemon looks at nothing else."""
    return [
        ReadBlobRequest(namespace=each.namespace, thread=each.thread, blob=BlobRef(sha256=each.blob.sha256))  # type: ignore[attr-defined]
        for each in requests
    ]


def _method_of(turn: Turn) -> str:
    """Returns the name of a turn's method, such as WriteBlob."""
    if turn.HasField("objects"):
        return ", ".join(objects.METHODS)
    return "".join(word.title() for word in (turn.WhichOneof("call") or "").split("_"))
