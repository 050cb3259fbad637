"""A connection of the local wire: reads frames, runs their calls, sends the answers.

A connection is greeted first. Then it has either many unary calls, whose answers go out in any order, or one streaming
call, whose socket is its flow control. It is not read while it waits for the memory of a large message, has too many
calls, or takes no answers.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, cast

from google.protobuf.message import Message

from stateward_sidecar.errors import FeatureUnavailable, InvalidField, StateTooLarge, StatewardError
from stateward_sidecar.service.calls.localcall import LocalCall, Peer
from stateward_sidecar.service.local.eager import Eager
from stateward_sidecar.service.local.frame import (
    CANCEL,
    END,
    ERROR,
    HELLO,
    LAST,
    MESSAGE,
    METADATA,
    METADATA_BYTES_MAX,
    REQUEST,
    VERSIONS,
    Head,
    Metadata,
    split_metadata,
)
from stateward_sidecar.service.local.incoming import LARGE_BYTES, Incoming, Verdict
from stateward_sidecar.service.local.large import Large
from stateward_sidecar.service.local.outbox import Outbox
from stateward_sidecar.service.local.peers import has_gone, is_stopped
from stateward_sidecar.service.local.running import LocalMethod, Running, status_of
from stateward_sidecar.telemetry import log

if TYPE_CHECKING:
    from stateward_sidecar.service.local.listener import Listener

GREETING_S = 5.0
"""How long a client may take to say who it is."""
GREETING_BYTES_MAX = 4 << 10
CALLS_MAX = 256
"""The most unanswered calls of a connection that is still read."""
CALL_BYTES = 16 << 10
"""What a call takes until it is answered, beside its message. One that waits for a lease takes half of it."""
OWN_CALLS, OWN_BYTES = 2, 4 << 10
"""A connection that has fewer calls, and fewer bytes of messages and of answers, is read whatever others have."""
TAKEN_BYTES_MAX = 256 << 10
"""The most bytes of small messages whose calls are unanswered, of a connection that is still read."""
UNSENT_BYTES_MAX = 256 << 10
"""The most bytes of answers that wait for the peer, of a connection that is still read."""
STOPPED_S = 20.0
"""How often is looked whether the process at the other end of a writer's stream was stopped (SIGSTOP, a debugger). If
it still is the next time, its stream ends, and with it the renewal of its lease. gRPC's keepalive does the same."""
LINGER_S = 5.0
"""How long a peer whose stream is over may go on sending, when it has taken all answers."""
GONE_S = 1.0
"""How often is looked whether the peer of a connection that is not read is still there."""


class Connection(asyncio.BufferedProtocol):
    """Used on the event loop only."""

    def __init__(self, listener: Listener, own: Path | None = None) -> None:
        """``own``: the socket of a principal, through which it has come."""
        self._listener, self._own = listener, own
        self._loop = listener.loop
        self._incoming = Incoming(self, listener.shared)
        self._running: dict[int, Running] = {}
        self._stream: Running | None = None
        self.peer = Peer()
        self._is_greeted = self._is_over = self._is_reading = self._is_taking = False
        # Whether the rest of a read is taken with the next turn of the loop.
        self._is_due = False
        requests = listener.room.requests
        self._large = Large(self._loop, requests, self._incoming, self._refuse_message, self.read_or_not)
        self._taken_bytes = 0
        # Ends the greeting, or the connection.
        self._timer: asyncio.TimerHandle | None = None
        # Looks for a stopped process.
        self._looking: asyncio.TimerHandle | None = None
        # Looks for a peer that has gone while nothing is read.
        self._missing: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether it has calls, or answers that its peer has not taken."""
        return bool(self._running or self._out.unsent_bytes) and not self._transport.is_closing()

    # The transport ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_reading = True
        self.peer = self._listener.enter(self, transport.get_extra_info("socket"), self._own)
        self._out = Outbox(self._transport, self._loop, self.peer.pid, self._listener.take)
        if (full := self._listener.why_full(self.peer)) is not None:
            self._end_with(full)
            return
        self._timer = self._loop.call_later(GREETING_S, self._end_with, InvalidField("hello", "did not come in time"))

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._listener.leave(self)
        self._cancel_timers()
        self._incoming.end()
        self._large.drop()
        for running in list(self._running.values()):
            running.leave()
        self._out.end()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming.buffer()

    def buffer_updated(self, count: int) -> None:
        """Takes what was read. 0 = the rest of an earlier read."""
        with self._listener.gather:  # writes that have come together are committed together
            self._is_taking = True
            if count:
                self._incoming.filled(count)
            else:
                self._incoming.go_on()
            self._is_taking = False
            self._out.flush()
        self.read_or_not()

    def pause_writing(self) -> None:
        self._out.watch()

    def resume_writing(self) -> None:
        self._out.settle()
        if self._is_over:
            self._abort_soon()
        else:
            self.read_or_not()

    def read_or_not(self) -> None:
        """Reads on, or stops. What is left of an earlier read comes first, behind the calls of others."""
        if self._is_over:
            return
        may_read = self.may_go_on()
        if may_read and self._incoming.has_rest:
            may_read = False
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._go_on)
        if may_read is not self._is_reading and not self._transport.is_closing():
            self._is_reading = may_read
            (self._transport.resume_reading if may_read else self._transport.pause_reading)()
            if not may_read and self._missing is None:
                self._missing = self._loop.call_later(GONE_S, self._miss_peer)

    def _miss_peer(self) -> None:
        """Ends the calls of a peer that has closed its socket: a read would say so, but nothing is read."""
        self._missing = None
        if self._is_reading or self._is_over:
            return
        if has_gone(self._transport.get_extra_info("socket")):
            self._transport.abort()
        else:
            self._missing = self._loop.call_later(GONE_S, self._miss_peer)

    def may_go_on(self) -> bool:
        """Whether the bounds of this connection, and of all, leave room for a further frame."""
        stream = self._stream
        return (
            not self._large.is_waiting
            and len(self._running) < CALLS_MAX
            and self._taken_bytes < TAKEN_BYTES_MAX
            and self._out.unsent_bytes < UNSENT_BYTES_MAX
            and (stream is None or stream.call.waiting_bytes < LARGE_BYTES)
            and (self._has_little() or self._listener.has_room(self))
        )

    def _has_little(self) -> bool:
        return (
            len(self._running) < OWN_CALLS and self._taken_bytes < OWN_BYTES and self._out.unsent_bytes < OWN_BYTES
        )

    def _go_on(self) -> None:
        self._is_due = False
        if not self._is_over and self.may_go_on():
            self.buffer_updated(0)

    # Frames -----------------------------------------------------------------------------------------------------------

    def judge(self, head: Head) -> Verdict:
        """Decides on a frame by its head."""
        if head.kind == REQUEST and self._is_greeted:
            return self._judge_request(head)
        stream = self._stream
        if head.kind == MESSAGE and stream is not None and head.call == stream.number:
            if stream.method.takes_stream and not stream.call.is_ended:
                return self._judge_message(head, stream.method, stream.method.bytes_max)
            return self._refuse_frame("the call takes no more messages")
        if head.kind == HELLO and not self._is_greeted and head.call == 0 and head.length <= GREETING_BYTES_MAX:
            return Verdict.TAKE
        if head.kind in {CANCEL, END} and self._is_greeted and not head.length:
            return Verdict.TAKE
        return self._refuse_frame(f"kind {head.kind} with {head.length} bytes is not expected here")

    def _judge_request(self, head: Head) -> Verdict:
        methods = self._listener.methods
        if head.method >= len(methods) or head.flags & ~(METADATA | LAST):
            return self._refuse_frame(f"method {head.method} with flags {head.flags} is not known")
        if not head.call or head.call in self._running:
            return self._refuse_frame(f"call {head.call} is 0, or not over yet")
        method = methods[head.method]
        if (method.is_stream and self._running) or self._stream is not None:
            return self._refuse_frame("a streaming call has a connection of its own")
        metadata_bytes = METADATA_BYTES_MAX if head.flags & METADATA else 0
        return self._judge_message(head, method, method.bytes_max + metadata_bytes)

    def _judge_message(self, head: Head, method: LocalMethod, bytes_max: int) -> Verdict:
        if head.length > bytes_max:
            what = f"the {method.request_name} has {head.length} bytes, more than the limit of {method.bytes_max}"
            self._refuse_message(head, StateTooLarge(head.length, method.bytes_max, what))
            return Verdict.SKIP
        if head.length <= LARGE_BYTES:
            return Verdict.TAKE
        self._large.expect(head, method)
        return Verdict.WAIT

    def take(self, head: Head, body: bytes | bytearray) -> bool:
        """Takes a whole frame. Returns False if nothing more is to be read."""
        if head.kind == HELLO:
            return self._greet(body)
        if head.kind == REQUEST:
            return self._take_request(head, body)
        stream = self._stream
        if head.kind == CANCEL:
            if (running := self._running.get(head.call)) is not None:
                running.leave()
        elif stream is not None and head.call == stream.number:
            if head.kind == MESSAGE:
                stream.call.put(body, self._large.arrived())
            else:
                stream.call.end()
        return not self._is_over

    def _greet(self, body: bytes | bytearray) -> bool:
        try:
            told = json.loads(body)
            versions = [each for each in told["versions"] if each in VERSIONS]
        except (ValueError, LookupError, TypeError, RecursionError):
            self._refuse_frame("the greeting cannot be read")
            return False
        if not versions:
            what = f"this daemon speaks version {VERSIONS[-1]} of the local wire; use gRPC"
            self._end_with(FeatureUnavailable(what))
            return False
        self._is_greeted = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._put(HELLO, 0, self._listener.greeting(max(versions)))
        return True

    # Calls ------------------------------------------------------------------------------------------------------------

    def _take_request(self, head: Head, body: bytes | bytearray) -> bool:
        method = self._listener.methods[head.method]
        timeout_ms = self._large.left_ms(head.timeout_ms)
        share = self._large.arrived()
        metadata: Metadata = ()
        try:
            if head.flags & METADATA:
                metadata, body = split_metadata(body)
            if method.takes_stream and (body or head.flags & LAST):
                raise ValueError("a call of many messages has them in frames of their own")
        except Exception as error:
            if share is not None:
                share.close()
            if not isinstance(error, ValueError):
                raise
            self._refuse_frame(str(error))
            return False
        timeout_s = timeout_ms / 1e3 if timeout_ms else None
        if method.is_stream:
            call = LocalCall(self.peer, timeout_s, metadata, self._write_message, self.read_or_not)
        else:
            call = LocalCall(self.peer, timeout_s, metadata)
        running = Running(head.call, method, call, 0 if share is not None else len(body))
        if not method.takes_stream:
            call.put(body, share)
            call.end()
        self._begin(running, timeout_s)
        return True

    def _begin(self, running: Running, timeout_s: float | None) -> None:
        is_counted = len(self._running) >= OWN_CALLS  # the first ones are bounded by the number of connections
        self._running[running.number] = running
        self._listener.begun_calls += 1
        if running.method.is_stream:
            self._stream = running
        running.counted_bytes = running.size_bytes + is_counted * CALL_BYTES
        self._taken_bytes += running.size_bytes
        self._listener.take(running.counted_bytes)
        if running.method.is_passed and running.size_bytes:
            running.drop = self._drop
            self._listener.passing.take(self, running)
        else:
            self.start(running)
        is_over = running.task is not None and running.task.is_done
        if running.method.takes_stream and not is_over:
            self._looking = self._loop.call_later(STOPPED_S, self._look_at_peer, False)
        if timeout_s is not None and not is_over:
            running.timer = self._loop.call_later(timeout_s, running.be_late)

    def start(self, running: Running) -> None:
        """Runs a call until it waits."""
        running.task = Eager(self._run(running), self._loop)

    def _drop(self, running: Running) -> None:
        """Ends a call that waits for its turn."""
        self._listener.passing.drop(self, running)
        self._finish(running, *running.ended())

    def _look_at_peer(self, was_stopped: bool) -> None:
        stopped = is_stopped(self.peer)
        if stopped and was_stopped:
            log.warning("a process with an open stream was stopped; its stream ends", pid=self.peer.pid)
            self._transport.abort()
        elif not self._is_over:
            self._looking = self._loop.call_later(STOPPED_S, self._look_at_peer, stopped)

    async def _run(self, running: Running) -> None:
        kind, body = CANCEL, b""
        try:
            kind, body = await running.run()
        finally:
            self._finish(running, kind, body)

    def _finish(self, running: Running, kind: int, body: bytes) -> None:
        """Ends a call and answers it, unless its caller has left (CANCEL)."""
        del self._running[running.number]
        if running.timer is not None:
            running.timer.cancel()
        self._taken_bytes -= running.size_bytes
        self._listener.take(-running.counted_bytes)
        running.call.drop()
        self._out.when_handed_out(running.call.handed_out)
        if kind != CANCEL and not self._transport.is_closing():
            self._put(kind, running.number, body)
        elif not self._out.unsent_bytes:
            self._out.settle()
        if running is self._stream:
            self._stream = None
            self._linger()
        elif not self._is_reading:
            self.read_or_not()

    def _refuse_message(self, head: Head, error: Exception) -> None:
        """Answers a message that is not taken. A stream ends with it."""
        running = self._running.get(head.call)
        if running is None:
            self._put(ERROR, head.call, status_of(error, ""))
        else:
            self._put(ERROR, head.call, status_of(error, running.method.name))
            running.leave()

    def _refuse_frame(self, what: str) -> Verdict:
        """Ends the connection of a peer that does not speak this wire."""
        self._end_with(InvalidField("frame", what))
        return Verdict.CLOSE

    def _end_with(self, error: StatewardError) -> None:
        log.debug("a connection of the local wire ends", pid=self.peer.pid, error=error.message)
        self._put(ERROR, 0, status_of(error, ""))
        self.close()

    def _linger(self) -> None:
        """Ends the connection of a stream that is over, when its client has had time to learn it. What still comes is
        thrown away: a client that is busy sending could not read its answer."""
        self._end()
        if not self._is_reading and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    def close(self) -> None:
        """Sends what there is to send, and ends the connection."""
        self._end()
        self._transport.close()

    def _end(self) -> None:
        """Takes nothing more. The peer has as long to take its answers as it takes some of them each minute."""
        self._out.flush()
        self._is_over = True
        self._incoming.end()
        self._large.drop()
        self._cancel_timers()
        self._out.expect_nothing()
        if not self._out.unsent_bytes:
            self._abort_soon()

    def _abort_soon(self) -> None:
        """The peer has taken everything. It has LINGER_S to close."""
        if self._timer is None:
            self._timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._looking, self._missing):
            if timer is not None:
                timer.cancel()
        self._timer = self._looking = self._missing = None

    # Answers ----------------------------------------------------------------------------------------------------------

    def _put(self, kind: int, call: int, body: bytes) -> None:
        """Sends a frame: at once if nobody else is served here, else with others of this turn of the loop."""
        self._out.put(kind, call, body)
        if self._is_taking:  # `buffer_updated` sends it
            return
        if self._running:
            self._out.flush_soon()
        else:
            self._out.flush()

    async def _write_message(self, answer: Message) -> None:
        """Sends an answer of a stream, and waits until the peer has room for more."""
        if self._transport.is_closing():
            raise asyncio.CancelledError
        assert self._stream is not None
        self._out.put(MESSAGE, self._stream.number, answer.SerializeToString())
        del answer
        await self._out.drain()
