"""An agent and its writer's stream, as the wire sees them."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable
from typing import Any

import grpc
from tests.daemon.wire import THREAD, Refusal, Wire, appends, refusal_of, refused
from tests.messages import reason_of, to_write

from stateward.v1 import lease_service_pb2 as l
from stateward.v1 import writer_service_pb2 as w
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.write_pb2 import WriteOptions

TERM_S = 30


def new_id() -> str:
    return uuid.uuid4().hex


class Agent:
    """One process of an agent."""

    def __init__(self, wire: Wire, namespace: str, name: str, thread: str = THREAD) -> None:
        self.wire = wire
        self.place: dict[str, Any] = {"namespace": namespace, "thread": thread}
        self.holder = Holder(name=name, incarnation=new_id())

    def ask(self, **fields: Any) -> l.AcquireLeaseRequest:
        given = {"holder": self.holder, "request_id": new_id(), **fields}
        return to_write(l.AcquireLeaseRequest, **self.place, term={"seconds": given.pop("term", TERM_S)}, **given)

    def take(self, **fields: Any) -> int:
        """The token."""
        return int(self.wire.leases.AcquireLease(self.ask(**fields), timeout=20, wait_for_ready=True).lease.token)

    def refused(self, **fields: Any) -> Refusal:
        return refused(self.wire.leases.AcquireLease, self.ask(**fields))

    def release(self, token: int) -> bool:
        request = l.ReleaseLeaseRequest(**self.place, options=WriteOptions(lease_token=token))
        return bool(self.wire.leases.ReleaseLease(request, timeout=20).released)

    def save(self, token: int = 0) -> SaveRequest:
        return SaveRequest(
            **self.place, diff=appends("more"), options=WriteOptions(request_id=new_id(), lease_token=token)
        )

    def open(self, **fields: Any) -> Stream:
        return Stream(self, **fields)


class Stream:
    """A writer's stream, frame by frame."""

    awaited: Callable[[int], bool] = staticmethod(lambda number: False)
    """Which frames say that nothing follows before their answer; it is only a hint, so they may say it wrongly."""

    def __init__(self, agent: Agent, **fields: Any) -> None:
        self.agent, self.number, self.sent = agent, 0, []
        self._queue: queue.SimpleQueue[w.WriteRequest | None] = queue.SimpleQueue()
        self.call = agent.wire.writers.Write(iter(self._queue.get, None), timeout=30, wait_for_ready=True)
        self.request_id = fields.setdefault("request_id", new_id())
        given = {**agent.place, "holder": agent.holder, "term": {"seconds": TERM_S}, **fields}
        self._queue.put(w.WriteRequest(open=to_write(w.OpenWriter, **given)))
        self.opened = self.next().opened
        self.token = self.opened.lease.token

    def send(self, **fields: Any) -> SaveRequest:
        """A frame; on top of whatever is the head unless it says otherwise."""
        self.number += 1
        given = {"lease_token": self.token, "request_id": new_id(), "diff": appends(str(self.number)), **fields}
        save = to_write(SaveRequest, **given)
        self.sent.append(save)
        self._put(save)
        return save

    def resend(self, save: SaveRequest) -> None:
        self.number += 1
        self._put(save)

    def _put(self, save: SaveRequest) -> None:
        item = w.WriterSave(frame=self.number, save=save, awaited=self.awaited(self.number))
        self._queue.put(w.WriteRequest(save=item))

    def reset(self) -> None:
        self._queue.put(w.WriteRequest(reset=w.ResetWriter()))

    def next(self) -> w.WriteResponse:
        return next(self.call)

    def answers(self, count: int) -> list[Any]:
        """For each frame its version, or why it was refused."""
        found = [self.next() for _ in range(count)]
        return [read(each) for each in found]

    def read_to_the_end(self, found: list[Any]) -> Refusal:
        """Adds all answers that still come; returns what ended the stream."""
        try:
            found.extend(map(read, self.call))
        except grpc.RpcError as error:
            return refusal_of(error)
        raise AssertionError("the stream ended well")

    def end(self) -> None:
        """Gives the lease back."""
        self._queue.put(None)
        assert list(self.call) == []

    def cut(self) -> None:
        """As a process that dies."""
        self.call.cancel()
        self._queue.put(None)


def read(answer: w.WriteResponse) -> Any:
    if answer.HasField("saved"):
        return answer.saved.save.version
    if answer.HasField("refused"):
        return reason_of(answer.refused.status)
    return answer.WhichOneof("frame")


def messages(wire: Wire, agent: Agent) -> list[str]:
    state = wire.hydrate(HydrateRequest(**agent.place))
    return [entry.data.decode() for entry in state.logs["messages"].entries]
