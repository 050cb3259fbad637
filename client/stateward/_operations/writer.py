"""A writer's stream, without I/O: the frames, their answers, and the recovery of a broken stream.

A frame is one save. The writer sends it at once and keeps it until it is answered. Each frame names the version before
it, which may not be committed yet: the state continues from the expected version, with a digest that no version has,
until the answer brings the real digest. So a state that was part of a refused frame fits no version, and cannot be
saved by mistake.

The writer opens a broken stream again with the request id of the first one. It gets the same lease with the same token
unless another client has taken the lease, and sends the unanswered frames again. If another client has taken the lease,
the writer sends each of these frames once more as a single Save: the daemon answers it if the frame was written before,
and otherwise refuses it with LeaseHeld.

`Writing` yields steps, as operations do; `Writer` and `AsyncWriter` carry them out. Only a wait for answers opens a
broken stream again, so `send` waits only while too many frames are unanswered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from stateward._operations import saving
from stateward._operations.frames import END, Dial, Frame, Put, Run, Steps, Take, error_of, message_of
from stateward._operations.holding import hold
from stateward._operations.leases import Claim, advised, owner_polls, release
from stateward._operations.numbering import Numbering, Resetting
from stateward._operations.ownership import attach
from stateward._operations.reading import hydrate
from stateward._operations.retry import Retry, never
from stateward._operations.saving import PreparedSave, SaveOptions
from stateward._operations.steps import Call, Operation, Pause, ThreadRef, new_request_id, thread_error
from stateward._operations.tracing import trace_parent
from stateward.errors import InvalidField, LeaseHeld, NotArchivedYet, NotOwner, ServerUnavailable, StatewardError
from stateward.models import Checkpoint
from stateward.options import options_to_proto
from stateward.state import State
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import writer_service_pb2 as writers
from stateward.v1.write_pb2 import Receipt

FRAMES_MAX = 128
"""The most unanswered frames; `send` waits beyond that. The daemon accepts twice as many."""
BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of all unanswered frames but the newest."""
NO_DIGEST = b"\0" * 16
"""Digest of a version that is not answered yet."""
ANSWER_S = 45.0
"""The least time for an answer: the daemon takes up to 30 s for one that waits for the archive."""


@dataclass(eq=False)
class Writing:
    """The state of a writer, and its steps. `patience_s` limits the retries while the daemon is away, and `deadline_s`
    the wait for one answer."""

    ref: ThreadRef
    claim: Claim
    patience_s: Callable[[], float]
    deadline_s: float
    renew: Callable[[], bool] = never
    """Reads the token again, and says whether it may be another one."""
    takes_over: bool = False
    """Whether `open` takes the thread over from the sidecar that holds it."""
    token: int = 0
    """The fencing token of the lease; 0 = it was never held."""
    uid: str = ""
    """The uid of the thread. All frames are meant for this creation. Empty = not known yet."""
    head: tuple[int, bytes] = (0, b"")
    """The newest answered version, and its digest."""
    is_open: bool = False
    failed: StatewardError | None = None
    """The error that refused the newest frames, until a reset."""
    lost: StatewardError | None = None
    """The error that ended the lease for good."""
    late: NotArchivedYet | None = None
    _was_away: bool = False
    """Whether a single `save` was given up because the daemon was away: the next frame resets the stream first."""
    _request_id: str = field(default_factory=new_request_id)
    _unanswered: deque[Frame] = field(default_factory=deque)
    _unanswered_bytes: int = 0
    _reset: Resetting | None = None
    _number: int = 0
    _numbering: Numbering = field(default_factory=Numbering)
    _tip: Checkpoint | None = None
    """The expected version of the newest frame, if its state continues from it already."""
    _was_told: bool = False
    """Whether a call has raised `failed` or `lost`; otherwise `close` does."""

    def __post_init__(self) -> None:
        self._retry, self.deadline_s = Retry(self.patience_s, self.renew), max(self.deadline_s, ANSWER_S)

    def open(self) -> Steps:
        """Takes the lease. Raises LeaseHeld if it is not free in time."""
        may_attach, polls = self.takes_over, owner_polls(self.claim)
        while True:
            left_s = polls.left_s()
            try:
                yield from self._dial(replace(self.claim, wait_s=left_s))
            except StatewardError as error:
                if isinstance(error, NotOwner) and may_attach:
                    may_attach = False
                    yield Run(attach(self.ref, take_over=True, read_only=False, wait_s=0.0))
                    continue
                is_elsewhere = isinstance(error, NotOwner) and left_s
                delay_s = polls.next_s() if is_elsewhere else self._retry.delay_after(error)
                if delay_s is None:
                    raise advised(error, self.claim) from None
                yield Pause(delay_s)
            else:
                self._retry.reset()
                self.ref.held.take(self.token, self.uid)  # other calls through the handle use the lease, too
                return

    def _dial(self, claim: Claim) -> Steps:
        self.is_open = False
        request = self.ref.on_branch(
            writers.OpenWriter,
            holder=claim.holder.to_proto(),
            term=timedelta(seconds=claim.term_s),
            wait=timedelta(seconds=claim.wait_s),
            take_over=claim.take_over,
            request_id=self._request_id,
            expected_uid=self.uid or self.ref.held.uid,
            create=options_to_proto(claim.create),
        )
        if self.ref.has_key:
            hold(request)
        yield Dial()
        yield Put(writers.WriteRequest(open=request))
        opened = self._not_ended((yield Take(self.deadline_s + claim.wait_s))).opened
        if self.token and opened.lease.token != self.token:
            yield Put(None)
            what = f"another client had the lease of thread {self.ref.thread!r} in the meantime; open a new writer"
            token = str(opened.lease.token)
            raise thread_error(LeaseHeld, self.ref.thread, what, reason="LEASE_HELD", token=token)
        if not self.token:
            self.token, self.uid = opened.lease.token, opened.receipt.uid
            self.head = opened.version, opened.version_digest
            self._numbering.start(opened.last_version)
        self.is_open = True
        return opened

    @staticmethod
    def _not_ended(message: Any) -> Any:
        if message is END:
            raise ServerUnavailable("the daemon ended the writer's stream", code="UNAVAILABLE")
        return message

    def save(self, state: State, options: SaveOptions) -> Steps:
        """Saves one version and waits for the answer. A refusal leaves the state as it was."""
        is_alone = not self._unanswered
        frame = yield from self._send(state, options, is_early=False)
        yield from self._until(lambda: frame.is_done)
        if frame.error is not None and self.lost is None and is_alone:  # no other frame depends on this one
            if frame.error.retryable:
                self.failed, self._was_away = None, True
            else:
                yield from self._begin_anew()
        elif frame.error is not None:
            self._was_told = True
        return self._result(frame)

    def send(self, state: State, options: SaveOptions) -> Steps:
        """Sends a version and returns its frame. The state continues from the expected version at once."""
        return (yield from self._send(state, options, is_early=True))

    def _send(self, state: State, options: SaveOptions, *, is_early: bool) -> Steps:
        if options.get("guard") or options.get("on_mismatch"):
            raise TypeError("a writer takes neither guard nor on_mismatch; use thread.save")
        prepared = PreparedSave(self.ref, state, {**options, "lease": self})
        if state.saving:
            raise RuntimeError("this state is being saved already; wait for that save")
        self.check()
        if self._was_away:
            yield from self._begin_anew()
        if not self._unanswered:
            self._numbering.look(self.ref.held.calls)
        elif not self._numbering.is_known:
            yield from self.flush()
        if len(self._unanswered) >= FRAMES_MAX or self._unanswered_bytes > BYTES_MAX:
            most = FRAMES_MAX // 2  # reading many answers in a row is cheaper than reading one before each frame
            yield from self._until(lambda: len(self._unanswered) <= most and self._unanswered_bytes <= BYTES_MAX // 2)
            self.check()
        request, unsaved = yield from self._prepare(prepared)
        self._number += 1
        frame = Frame(self._number, request, state, request.ByteSize(), traceparent=trace_parent(), options=options)
        if is_early:
            answer = checkpoints.SaveResponse(
                version=self._next_version(state), parent_version=state.version, receipt=Receipt(digest=NO_DIGEST)
            )
            frame.expected = saving.read_checkpoint(request, answer)
            saving.go_on(self.ref, state, request, unsaved, frame.expected)
        else:
            frame.unsaved, state.saving = unsaved, True
        self._tip = frame.expected
        self._unanswered.append(frame)
        self._unanswered_bytes += frame.size_bytes
        if self.is_open:
            yield Put(message_of(frame))
        return frame

    def _next_version(self, state: State) -> int:
        seen = self.head[0] if self._unanswered else max(self.head[0], state.version)
        return max(self._numbering.last, seen) + len(self._unanswered) + 1

    def _prepare(self, prepared: PreparedSave) -> Steps:
        state = prepared.state
        if unnumbered := state._logs_without_numbers():
            yield from self.flush()  # the daemon can only be asked about a saved version
            yield Run(saving.learn_numbers(self.ref, state, unnumbered))
        request, unsaved = saving.save_request(prepared)
        request.options.expected_uid = request.options.expected_uid or self.uid
        if unsaved.blobs:
            request, unsaved = yield Run(saving.store_blobs(prepared, request, unsaved))
        if state.checkpoint is not None and state.checkpoint is self._tip and state.digest == NO_DIGEST:
            # Not known yet; the stream ensures that no version comes between.
            request.options.ClearField("expected_digest")
        return request, unsaved

    def check(self) -> None:
        """Raises the error that keeps the writer from sending more frames."""
        if error := self.lost or self.failed:
            self._was_told = True
            raise error

    def flush(self) -> Steps:
        """Waits until all frames are answered. Raises the error that refused one of them, or NotArchivedYet."""
        yield from self._until(lambda: not self._unanswered)
        self.check()
        if self.late is not None:
            late, self.late = self.late, None
            raise late

    def wait(self, frame: Frame) -> Steps:
        """Waits until a frame is answered, and returns its version."""
        yield from self._until(lambda: frame.is_done)
        if frame.error is not None:
            self._was_told = True
        return self._result(frame)

    def _result(self, frame: Frame) -> Checkpoint:
        if self.late is not None and frame.checkpoint is self.late.checkpoint:
            self.late = None
        return frame.result()

    def _until(self, is_satisfied: Callable[[], bool]) -> Steps:
        while not is_satisfied():
            try:
                if not self.is_open:
                    yield from self._return()
                else:
                    self._take_in(self._not_ended((yield Take(self.deadline_s))))
            except StatewardError as error:
                self.is_open = False
                delay_s = self._retry.delay_after(error)
                if delay_s is None:
                    yield from self._give_up(error)
                else:
                    yield Pause(delay_s)

    def _return(self) -> Steps:
        """Opens the stream again and sends the unanswered frames."""
        opened = yield from self._dial(replace(self.claim, wait_s=0.0, take_over=False))
        self._end_reset(opened)  # the new stream has refused nothing
        for frame in list(self._unanswered):
            yield Put(message_of(frame))

    def _give_up(self, error: StatewardError) -> Steps:
        """Ends every frame after a permanent error."""
        if isinstance(error, LeaseHeld):
            self.lost = error
            for frame in list(self._unanswered):
                if not frame.is_done:  # it may have been written before the lease was lost: then it is answered
                    try:
                        self._accept(frame, (yield Run(_save_once(frame.request))))
                    except StatewardError as refused:
                        self._refuse(frame, refused)
        for frame in self._unanswered:
            self._refuse(frame, error)
        self._unanswered.clear()
        self._unanswered_bytes = 0
        self.failed = self.failed or error
        self._reset = None
        self._retry.reset()

    def _take_in(self, message: writers.WriteResponse) -> None:
        if message.HasField("reset"):
            self._end_reset(message.reset)
            return
        frame, is_saved = self._unanswered[0], message.HasField("saved")
        answer = message.saved if is_saved else message.refused
        if answer.frame != frame.number:
            raise StatewardError(f"the daemon answered frame {answer.frame}; expected an answer to {frame.number}")
        error = None if is_saved else error_of(message.refused)
        if error is not None and error.retryable:
            raise error  # the stream is opened again, and all unanswered frames are sent again
        self._unanswered.popleft()
        self._unanswered_bytes -= frame.size_bytes
        if error is None:
            self._retry.reset()
            self._accept(frame, message.saved.save)
        else:
            self._refuse(frame, error)

    def _end_reset(self, answer: writers.WriterOpened | writers.WriterReset) -> None:
        if self._reset is not None:
            self._reset.end(answer)
            self._reset = None

    def _accept(self, frame: Frame, response: checkpoints.SaveResponse) -> None:
        checkpoint = saving.read_checkpoint(frame.request, response)
        frame.checkpoint, frame.is_done = checkpoint, True
        if frame.unsaved is not None:
            frame.state.saving = False
            saving.go_on(self.ref, frame.state, frame.request, frame.unsaved, checkpoint)
        elif frame.state.checkpoint is frame.expected:
            frame.state.checkpoint = checkpoint
        self.head = checkpoint.version, checkpoint.digest
        self._numbering.saw(checkpoint.version)
        if response.receipt.durability < frame.request.options.durability:
            frame.late = NotArchivedYet(checkpoint.thread, checkpoint.sequence, checkpoint, [checkpoint])
            self.late = self.late or frame.late

    def _refuse(self, frame: Frame, error: StatewardError) -> None:
        if frame.is_done:
            return
        frame.error, frame.is_done = error, True
        if isinstance(error, InvalidField):
            saving.note_lost_objects(error, [frame.options])
        if frame.unsaved is not None:
            frame.state.saving = False
        if isinstance(error, LeaseHeld):
            self.lost = error
        if self.failed is None:
            self.failed, self._was_told = error, False
        self._numbering.is_known = False

    def reset(self) -> Steps:
        """Resets the writer after a refusal, and returns the state at the head."""
        if self.lost is not None:
            self.check()
        yield from self._until(lambda: not self._unanswered)
        if self.lost is not None:
            self.check()
        yield from self._begin_anew()
        return (yield Run(hydrate(self.ref)))

    def _begin_anew(self) -> Steps:
        reset = self._reset = Resetting()
        if self.is_open:
            yield Put(writers.WriteRequest(reset=writers.ResetWriter()))
        self.failed = None
        yield from self._until(lambda: reset.is_done or self.failed is not None)
        if self.failed is not None:
            error = self.failed
            if self._was_away and self.lost is None:
                self.failed = None  # still away
            raise error
        self._was_told, self._tip, self._was_away = False, None, False
        self._numbering.start(reset.last_version)

    def close(self, *, is_quiet: bool = False) -> Steps:
        """Waits for all answers, gives the lease back and ends the stream. Raises an error that no call has raised yet,
        unless `is_quiet`."""
        try:
            yield from self._until(lambda: not self._unanswered)
            if self.lost is None and not (self.is_open and (yield from self._hang_up())):
                yield Run(release(self.ref, self.token, self.uid))
        finally:
            self.is_open = False
            self.ref.held.give_back(self.token)
        error = None if self._was_told else self.lost or self.failed
        if not is_quiet and (error or self.late):
            raise error or self.late  # type: ignore[misc]

    def _hang_up(self) -> Steps:
        """Ends the stream. Returns whether the daemon saw its end, and so took the lease back."""
        try:
            yield Put(None)
            while (yield Take(self.deadline_s)) is not END:
                pass
        except StatewardError:
            return False
        return True


def _save_once(request: checkpoints.SaveRequest) -> Operation[Any]:
    return (yield Call("Save", request))
