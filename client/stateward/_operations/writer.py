"""A writer's stream, without I/O: what is sent, what the answers mean, and how it goes on when the stream breaks.

Frames leave at once and are kept until they are answered. Each names the version before it, which may not be committed
yet: a state is moved onto the version that it will become, under a digest that is no version's, until the answer
brings the real one. So a state that was part of a refused frame fits no version any more, and cannot be saved by
mistake.

A stream that broke is opened again with the request id of the first one: that gives the same lease under the same token
as long as nobody else has taken it, and what was not answered is sent again as it was. Where somebody has taken it,
each of those frames is asked for once more by itself: it is answered if it was written before, and LeaseHeld if not.

Writing yields steps, as operations do; `Writer` and `AsyncWriter` carry them out. Only a wait for answers mends the
stream, so sending never waits for more than room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from stateward._operations.frames import END, Dial, Frame, Put, Run, Steps, Take, error_of, message_of
from stateward._operations.leases import Claim, owner_polls, release
from stateward._operations.numbering import Numbering, Resetting, last_version
from stateward._operations.ownership import attach
from stateward._operations.reading import hydrate
from stateward._operations.retry import Retry
from stateward._operations.saving import (
    PreparedSave,
    SaveOptions,
    _creation,
    _learn_numbers,
    _read_checkpoint,
    _save_request,
    go_on,
)
from stateward._operations.steps import Call, Operation, Pause, ThreadRef, new_request_id
from stateward._operations.uploads import learn_support, write_blobs
from stateward.errors import LeaseHeld, NotArchivedYet, NotOwner, ServerUnavailable, StatewardError
from stateward.models import Checkpoint
from stateward.state import State
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import writer_service_pb2 as writers

FRAMES_MAX = 128
"""Frames that were sent and not answered; `send` waits beyond that. The daemon takes twice as many."""
BYTES_MAX = 16 * 1024 * 1024
"""What those frames may take together, but for the newest."""
NO_DIGEST = b"\0" * 16
"""Digest of a version that is not answered yet."""
ANSWER_S = 45.0
"""How long an answer may take at least: one that waits for the archive takes the daemon up to 30 s."""


@dataclass(eq=False)
class Writing:
    """What a writer knows and does. `patience_s`: for how long to try while the daemon is away; `deadline_s`: how long
    an answer may take."""

    ref: ThreadRef
    claim: Claim
    patience_s: Callable[[], float]
    deadline_s: float
    takes_over: bool = False
    """Whether the thread is taken from the sidecar that holds it."""
    token: int = 0
    """That of the lease; 0 = it was never held."""
    head: tuple[int, bytes] = (0, b"")
    """Newest version that was answered, and its digest."""
    is_open: bool = False
    failed: StatewardError | None = None
    """What refused the newest frames, until a reset."""
    lost: StatewardError | None = None
    """Why the lease is gone for good."""
    late: NotArchivedYet | None = None
    _was_away: bool = False
    """Whether a save that stood alone was given up because the daemon was away: the next frame begins anew first."""
    _request_id: str = field(default_factory=new_request_id)
    _unanswered: deque[Frame] = field(default_factory=deque)
    _unanswered_bytes: int = 0
    _reset: Resetting | None = None
    _number: int = 0
    _numbering: Numbering = field(default_factory=Numbering)
    _tip: Checkpoint | None = None
    """What the newest frame becomes, where its state was moved on already."""
    _was_told: bool = False

    def __post_init__(self) -> None:
        self._retry, self.deadline_s = Retry(self.patience_s), max(self.deadline_s, ANSWER_S)

    # -- opening ----------------------------------------------------------------------------------------------------

    def open(self) -> Steps:
        """Takes the lease. Raises LeaseHeld, or what else is in the way."""
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
                    raise
                yield Pause(delay_s)
            else:
                self._retry.reset()
                self.ref.held.take(self.token)  # other calls through the handle are made under the lease too
                return

    def _dial(self, claim: Claim) -> Steps:
        self.is_open = False
        request = self.ref.on_branch(
            writers.OpenWriter,
            holder=claim.holder.to_proto(),
            term=timedelta(seconds=claim.term_s),
            wait=timedelta(seconds=claim.wait_s) if claim.wait_s else None,
            take_over=claim.take_over,
            request_id=self._request_id,
            create=claim.create.to_proto() if claim.create else None,
        )
        yield Dial()
        yield Put(writers.WriteRequest(open=request))
        opened = self._not_ended((yield Take(self.deadline_s + claim.wait_s))).opened
        if self.token and opened.lease.token != self.token:
            yield Put(None)
            raise LeaseHeld(
                f"somebody else had the lease of thread {self.ref.thread!r} meanwhile; open a new writer",
                reason="LEASE_HELD", metadata={"thread": self.ref.thread, "token": str(opened.lease.token)},
            )  # fmt: skip
        if not self.token:
            self.token, self.head = opened.lease.token, (opened.version, opened.digest)
            self._numbering.start(last_version(opened))
        self.is_open = True
        return opened

    @staticmethod
    def _not_ended(message: Any) -> Any:
        if message is END:
            raise ServerUnavailable("the daemon ended the writer's stream", code="UNAVAILABLE")
        return message

    # -- sending ----------------------------------------------------------------------------------------------------

    def save(self, state: State, options: SaveOptions) -> Steps:
        """One version, answered. A refusal leaves the state as it was."""
        is_alone = not self._unanswered
        frame = yield from self._send(state, options, is_early=False)
        yield from self._until(lambda: frame.is_done)
        if frame.error is not None and self.lost is None and is_alone:  # nothing else depends on it
            if frame.error.retryable:
                self.failed, self._was_away = None, True
            else:
                yield from self._begin_anew()
        elif frame.error is not None:
            self._was_told = True
        return self._result(frame)

    def send(self, state: State, options: SaveOptions) -> Steps:
        """Sends a version and returns its frame; the state goes on from it at once."""
        return (yield from self._send(state, options, is_early=True))

    def _send(self, state: State, options: SaveOptions, *, is_early: bool) -> Steps:
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
            most = FRAMES_MAX // 2  # reading many answers in a row takes less than one before each frame
            yield from self._until(lambda: len(self._unanswered) <= most and self._unanswered_bytes <= BYTES_MAX // 2)
            self.check()
        request, unsaved = yield from self._prepare(PreparedSave(self.ref, state, {**options, "lease": self}))
        self._number += 1
        frame = Frame(self._number, request, state, request.ByteSize())
        if is_early:
            answer = checkpoints.SaveResponse(
                version=self._next_version(state), parent_version=state.version, digest=NO_DIGEST
            )
            frame.expected = _read_checkpoint(request, answer)
            go_on(self.ref, state, request, unsaved, frame.expected)
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
        if unnumbered := state.logs_without_numbers():
            yield from self.flush()  # the version that is asked about must be there
            yield Run(_learn_numbers(self.ref, state, unnumbered))
        request, unsaved = _save_request(prepared)
        if unsaved.blobs and not (yield Run(learn_support(self.ref))):
            request, unsaved = _save_request(prepared)
        if unsaved.blobs:
            yield Run(write_blobs(self.ref, unsaved.blobs, _creation(prepared)))
        if state.checkpoint is not None and state.checkpoint is self._tip and state.digest == NO_DIGEST:
            request.ClearField("expected_digest")  # not answered yet: the stream sees to it that nothing comes between
        return request, unsaved

    def check(self) -> None:
        """Raises what stands in the way of more frames."""
        error = self.lost or self.failed
        if error is not None:
            self._was_told = True
            raise error

    # -- waiting ----------------------------------------------------------------------------------------------------

    def flush(self) -> Steps:
        """Waits until all frames are answered. Raises what refused one of them, or NotArchivedYet."""
        yield from self._until(lambda: not self._unanswered)
        self.check()
        if self.late is not None:
            late, self.late = self.late, None
            raise late

    def wait(self, frame: Frame) -> Steps:
        """Waits until a frame is answered, and returns what was written."""
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
        """Opens the stream again and sends what was not answered."""
        opened = yield from self._dial(replace(self.claim, wait_s=0.0, take_over=False))
        if self._reset is not None:  # nothing was refused on this one
            self._reset.end(opened)
            self._reset = None
        for frame in list(self._unanswered):
            yield Put(message_of(frame))

    def _give_up(self, error: StatewardError) -> Steps:
        """After an error that does not pass: every frame learns what became of it."""
        if isinstance(error, LeaseHeld):
            self.lost = error
            for frame in list(self._unanswered):
                if not frame.is_done:
                    yield from self._settle_alone(frame)
        for frame in self._unanswered:
            self._refuse(frame, error)
        self._unanswered.clear()
        self._unanswered_bytes = 0
        self.failed = self.failed or error
        self._reset = None
        self._retry.reset()

    def _settle_alone(self, frame: Frame) -> Steps:
        """Asks for a frame whose lease is gone: it may have been written before that, and is answered then."""
        try:
            self._accept(frame, (yield Run(_save_once(frame.request))))
        except StatewardError as error:
            self._refuse(frame, error)

    # -- answers ----------------------------------------------------------------------------------------------------

    def _take_in(self, message: writers.WriteResponse) -> None:
        kind = message.WhichOneof("frame")
        if kind == "reset":
            if self._reset is not None:
                self._reset.end(message.reset)
                self._reset = None
            return
        frame = self._unanswered[0]
        answer = message.saved if kind == "saved" else message.refused
        if answer.frame != frame.number:
            raise StatewardError(f"the daemon answered frame {answer.frame} where {frame.number} was next")
        error = None
        if kind == "refused":
            error = error_of(message.refused)
            if error.retryable:  # it passes: the frame is sent again, with those after it
                raise error
        self._unanswered.popleft()
        self._unanswered_bytes -= frame.size_bytes
        if error is None:
            self._retry.reset()
            self._accept(frame, message.saved.save)
        else:
            self._refuse(frame, error)

    def _accept(self, frame: Frame, response: checkpoints.SaveResponse) -> None:
        checkpoint = _read_checkpoint(frame.request, response)
        frame.checkpoint, frame.is_done = checkpoint, True
        if frame.unsaved is not None:
            frame.state.saving = False
            go_on(self.ref, frame.state, frame.request, frame.unsaved, checkpoint)
        elif frame.state.checkpoint is frame.expected:
            frame.state.checkpoint = checkpoint
        self.head = checkpoint.version, checkpoint.digest
        self._numbering.saw(checkpoint.version)
        if response.durability < frame.request.durability:
            frame.late = NotArchivedYet(checkpoint.thread, checkpoint.sequence, checkpoint, [checkpoint])
            self.late = self.late or frame.late

    def _refuse(self, frame: Frame, error: StatewardError) -> None:
        if frame.is_done:
            return
        frame.error, frame.is_done = error, True
        if frame.unsaved is not None:
            frame.state.saving = False
        if isinstance(error, LeaseHeld):
            self.lost = error
        if self.failed is None:
            self.failed, self._was_told = error, False
        self._numbering.is_known = False

    # -- going on, and ending ---------------------------------------------------------------------------------------

    def reset(self) -> Steps:
        """After a refusal: takes frames again, and returns the state at the head."""
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
                self.failed = None  # away still
            raise error
        self._was_told, self._tip, self._was_away = False, None, False
        self._numbering.start(reset.last_version)

    def close(self, *, is_quiet: bool = False) -> Steps:
        """Waits for what was sent, gives the lease back and ends the stream. Raises what nobody was told yet."""
        try:
            yield from self._until(lambda: not self._unanswered)
            if self.lost is None and not (self.is_open and (yield from self._hang_up())):
                yield Run(release(self.ref, self.token))
        finally:
            self.is_open = False
            self.ref.held.give_back(self.token)
        error = None if self._was_told else self.lost or self.failed
        if not is_quiet and (error or self.late):
            raise error or self.late  # type: ignore[misc]

    def _hang_up(self) -> Steps:
        """Whether the daemon saw the end of the stream, and so took the lease back."""
        try:
            yield Put(None)
            while (yield Take(self.deadline_s)) is not END:
                pass
        except StatewardError:
            return False
        return True


def _save_once(request: checkpoints.SaveRequest) -> Operation[checkpoints.SaveResponse]:
    response: checkpoints.SaveResponse = yield Call("Save", request)
    return response
