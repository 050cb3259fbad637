"""The danger: a scenario that every client passes, and so proves nothing.

Each wrong client is the right one with one mistake. The scenario that is about this mistake fails it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.conformance.raw_client import RawClient, Writer, page_code

from stateward.conformance.play import Play
from stateward.conformance.running import FAILED, judge
from stateward.conformance.scenarios import names
from stateward.conformance.server import ScriptedDaemon
from stateward.v1 import checkpoint_pb2, state_pb2

TIMEOUT_S = 10.0
CODE = page_code()
WRONG: list[tuple[str, tuple[str, ...], type[RawClient]]] = []  # scenario, what is said of the client, client


def play(scenario: str, kind: type[RawClient]) -> tuple[Play, BaseException | None]:
    """Runs a client on a scenario. Returns the play, and the error that ended the client."""
    ended: list[BaseException | None] = [None]

    def run(target: str) -> None:
        try:
            kind(target).run(scenario)
        except BaseException as error:  # noqa: BLE001  a wrong client may fail in any way
            ended[0] = error

    with ScriptedDaemon("127.0.0.1:0", [scenario]) as daemon:
        client = threading.Thread(target=run, args=(daemon.target,), daemon=True)
        client.start()
        played = daemon.plays[scenario]
        client.join(TIMEOUT_S)
        assert not client.is_alive(), "the client did not end"
        played.wait(0.2)
    return played, ended[0]


def wrong(scenario: str, *told: str, **replaced: Any) -> Callable[[type], type]:
    """Registers a wrong client. `told`: part of what is said of it, or more than one if that depends on the moment.
    `replaced`: definitions of the page's code."""

    def register(kind: type) -> type:
        hasty = {"deadline_s": 0.5, "patience_s": 1.0, "stream_s": 1.5, "replaced": replaced}
        WRONG.append((scenario, told, type(kind.__name__, (kind, RawClient), hasty)))
        return kind

    return register


@pytest.mark.parametrize("scenario", names())
def test_the_page_makes_a_right_client(scenario: str) -> None:
    """The code of docs/protocol.md passes every scenario."""
    hasty = type("Hasty", (RawClient,), {"deadline_s": 0.5})
    played, error = play(scenario, hasty)
    assert (played.failure, error) == ("", None)
    assert played.is_done, played.missing()


def test_every_scenario_has_a_wrong_client() -> None:
    """Each scenario can fail: a client with the mistake that it is about is among these."""
    assert {scenario for scenario, _, _ in WRONG} == set(names())


# -- pages ------------------------------------------------------------------------------------------------------------


def hydrate_by(change: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """Reads pages as the page says, and changes each page that is joined: `change(state so far, page)` runs before."""

    def hydrate(checkpoints: Any, request: Any) -> Any:
        state = state_pb2.State()

        class Changed:
            @staticmethod
            def Hydrate(request: Any, timeout: float) -> Any:  # noqa: N802  gRPC's name
                page = checkpoints.Hydrate(request, timeout=timeout)
                change(state, page)
                return page

        return CODE.hydrate(Changed, request)

    return hydrate


def forget_piece(_: Any, page: Any) -> None:
    page.ClearField("chunk")


def forget_media_type(_: Any, page: Any) -> None:
    if page.HasField("chunk"):
        page.chunk.media_type = ""


def put_piece_first(_: Any, page: Any) -> None:
    """Takes every piece for a value of its own."""
    if page.HasField("chunk"):
        page.chunk.size_bytes = len(page.chunk.data)


@wrong("advance/split-values", "not the right one", hydrate=hydrate_by(forget_piece))
class ForgetsPieces:
    pass


@wrong("advance/split-values", "not the right one", hydrate=hydrate_by(forget_media_type))
class ForgetsMediaType:
    pass


@wrong("advance/split-values", "not the right one", hydrate=hydrate_by(put_piece_first))
class TakesPiecesForValues:
    pass


def hydrate_with_last_log(checkpoints: Any, request: Any) -> Any:
    """Replaces what it has of a log by what the next page has."""
    state = state_pb2.State()
    while True:
        page = CODE.call(checkpoints.Hydrate, request)
        for name, log in page.state.logs.items():
            state.logs[name].CopyFrom(log)
        if not page.next_page_token:
            page.state.CopyFrom(state)
            return page, [], []
        request.page_token = page.next_page_token


def hydrate_until_empty(checkpoints: Any, request: Any) -> Any:
    """Takes an empty page for the last one."""

    def stop(_: Any, page: Any) -> None:
        if not page.state.slots and not page.state.logs:
            page.next_page_token = ""

    return hydrate_by(stop)(checkpoints, request)


def move_log(_: Any, page: Any) -> None:
    for log in page.state.logs.values():
        log.first_index = 0


@wrong("advance/split-logs", "not the right one", hydrate=hydrate_with_last_log)
class ReplacesLogs:
    pass


@wrong("advance/split-logs", "Hydrate: the client called Save", hydrate=hydrate_until_empty)
class StopsAtAnEmptyPage:
    pass


@wrong("advance/split-logs", "not the right one", hydrate=hydrate_by(move_log))
class CountsFromZero:
    pass


def hydrate_again_from_the_start(checkpoints: Any, request: Any) -> Any:
    """Begins anew after a failed page."""

    class Restarting:
        @staticmethod
        def Hydrate(request: Any, timeout: float) -> Any:  # noqa: N802  gRPC's name
            try:
                return checkpoints.Hydrate(request, timeout=timeout)
            except grpc.RpcError:
                request.page_token = ""
                return checkpoints.Hydrate(request, timeout=timeout)

    return CODE.hydrate(Restarting, request)


@wrong("advance/failed-page", "page_token is ''", hydrate=hydrate_again_from_the_start)
class BeginsPagesAnew:
    pass


@wrong("advance/large-numbers", "expected_version is 9007199254740996")
class RoundsVersions(RawClient):
    def read(self) -> Any:
        state, version, digest = super().read()
        return state, int(float(version)), digest


@wrong("advance/large-numbers", "not the right one")
class RoundsNumbers(RawClient):
    def digest(self, state: state_pb2.State) -> str:
        state.slots["balance"].number = int(float(state.slots["balance"].number))
        return super().digest(state)


@wrong("advance/newer-daemon", "next: Save")
class RefusesUnknownValues(RawClient):
    def digest(self, state: state_pb2.State) -> str:
        checkpoint_pb2.Status.Name(99)  # ValueError, as in a client that maps the status to its own type
        return super().digest(state)


@wrong("advance/new-thread", "expected_version is missing, not 0")
class ExpectsNothing(RawClient):
    def save_request(self, edit: Any, **fields: Any) -> Any:
        fields = {name: value for name, value in fields.items() if value}
        return super().save_request(edit, **fields)


@wrong("advance/foreign-not-found", "expected_version is 0, not missing")
class TakesAnyNotFoundForNew(RawClient):
    def is_new(self, error: grpc.RpcError) -> bool:
        return bool(error.code() == grpc.StatusCode.NOT_FOUND)


# -- retries ----------------------------------------------------------------------------------------------------------


class Renaming(RawClient):
    """Makes a new request id for each attempt."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        right = self.code.call

        def renamed(method: Any, request: Any) -> Any:
            def attempt(request: Any, timeout: float) -> Any:
                if hasattr(request, "request_id"):
                    request.request_id = self.request_id()
                return method(request, timeout=timeout)

            return right(attempt, request)

        self.code.call = renamed


@wrong("advance/lost-answer", "not the same as the one before")
class RenamesLostSaves(Renaming):
    pass


@wrong("advance/no-answer", "not the same as the one before")
class RenamesUnansweredSaves(Renaming):
    pass


@wrong("advance/lost-answer", "expected_version is missing", pause_after=lambda error, attempt: None)
class NeverRepeats:
    pass


@wrong("advance/lost-answer", "request_id is empty")
class HasNoRequestIds(RawClient):
    def request_id(self) -> str:
        return ""


@wrong("advance/no-answer", "no deadline")
class HasNoDeadline(RawClient):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.code.call = lambda method, request: method(request)


def hasty_pause(error: grpc.RpcError, attempt: int) -> float | None:
    return None if CODE.pause_after(error, attempt) is None else 0.01


@wrong("advance/outcome-unknown", "earlier than RetryInfo", pause_after=hasty_pause)
class DoesNotWait:
    pass


@wrong("advance/busy", "earlier than RetryInfo", pause_after=hasty_pause)
class DoesNotWaitForAQueue:
    pass


def pause_by_code(error: grpc.RpcError, attempt: int) -> float | None:
    return 0.01 if error.code() == grpc.StatusCode.UNAVAILABLE else None


@wrong("advance/busy", "earlier than RetryInfo", pause_after=pause_by_code)
class ReadsNoReason:
    pass


@wrong("advance/other-owner", "expected_version is missing", pause_after=pause_by_code)
class GivesUpOnOwners:
    pass


@wrong("advance/refused", "expected_version is 3, not missing", pause_after=lambda error, attempt: 0.05)
class RepeatsEverything:
    pass


@wrong("advance/refused", "INVALID_ARGUMENT", read_error=lambda error: ("", {}, 0.0))
class NamesNoReason:
    pass


def pause_on_exhausted(error: grpc.RpcError, attempt: int) -> float | None:
    return 0.05 if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED else CODE.pause_after(error, attempt)


@wrong("advance/unknown-reason", "expected_version is 3, not missing", pause_after=pause_on_exhausted)
class RepeatsRefusals:
    pass


def known_only(error: grpc.RpcError) -> tuple[str, dict[str, str], float]:
    found = CODE.read_error(error)
    if found[0].startswith("LATER"):
        raise ValueError(found[0])
    return found


@wrong("advance/unknown-reason", "next: Save", read_error=known_only)
class KnowsAllReasons:
    pass


@wrong("advance/unknown-trouble", "next: Save", read_error=known_only)
class KnowsAllTroubles:
    pass


def pause_on_bare_errors(error: grpc.RpcError, attempt: int) -> float | None:
    has_details = any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())
    return None if has_details else CODE.pause_after(error, attempt)


@wrong("advance/foreign-reason", "expected_version is missing", pause_after=pause_on_bare_errors)
class BelievesForeignDetails:
    pass


# -- conflicts --------------------------------------------------------------------------------------------------------


@wrong("advance/conflict", "Hydrate: the client called Save")
class SavesBlindly(RawClient):
    """Saves again on top of the version that the error names."""

    def try_save(self, edit: Any, version: int, digest: bytes) -> bool:
        return super().try_save(edit, version, digest) or super().try_save(edit, version + 2, b"digest-version-5")


@wrong("advance/conflict", "next: Hydrate")
class GivesUpOnConflicts(RawClient):
    def step(self) -> bool:
        super().step()
        return True


class OneId(RawClient):
    """Uses one request id for all that it saves."""

    def request_id(self) -> str:
        return "always-the-same"


@wrong("advance/conflict-after-loss", "same request_id")
class KeepsIdsOfRefusedSaves(OneId):
    pass


# -- changes since a version ------------------------------------------------------------------------------------------


def forget_removals(known: Any, page: Any, removed_slots: Any, removed_logs: Any) -> Any:
    return CODE.apply_changes(known, page, [], [])


@wrong("since/changes", "not the right one", apply_changes=forget_removals)
class ForgetsRemovals:
    pass


@wrong(
    "since/changes",
    "not the right one",
    apply_changes=lambda known, page, slots, logs: CODE.apply_changes(known, page, slots, []),
)
class KeepsRewrittenLogs:
    pass


@wrong("since/unchanged", "not the right one", apply_changes=lambda known, page, slots, logs: page.state)
class TakesChangesForTheWhole:
    pass


def always_merge(known: Any, page: Any, removed_slots: Any, removed_logs: Any) -> Any:
    page.base_version = page.base_version or 1
    return CODE.apply_changes(known, page, removed_slots, removed_logs)


@wrong("since/whole", "not the right one", apply_changes=always_merge)
class MergesTheWhole:
    pass


# -- edits, watches, blobs, writers -----------------------------------------------------------------------------------


@wrong("splice/middle", "offset is 10, not 11")
class CountsCharacters(RawClient):
    def offset(self, data: bytes) -> int:
        return data.decode().index("Paris")


@wrong("splice/middle", "base_sha256")
class NamesNoBase(RawClient):
    def sha256(self, data: bytes) -> bytes:
        return b""


@wrong("count/large-sum", "18014398509481988")
class RoundsSums(RawClient):
    def digits(self, number: int) -> str:
        return str(int(float(number)))


@wrong("count/large-sum", "not the same as the one before")
class CountsTwice(Renaming):
    pass


@wrong("watch/resumed", "after_cursor is ''")
class ReadsNoEmptyMessages(RawClient):
    def note_cursor(self, request: Any, message: Any) -> None:
        if message.events:
            request.after_cursor = message.cursor


@wrong("watch/resumed", "after_cursor is 'cursor-4'")
class TakesCursorsOfEvents(RawClient):
    def note_cursor(self, request: Any, message: Any) -> None:
        request.after_cursor = message.events[-1].cursor if message.events else message.cursor


@wrong("watch/resumed", "after_cursor is ''")
class BeginsWatchesAnew(RawClient):
    def note_cursor(self, request: Any, message: Any) -> None:
        pass


@wrong("write-blob/broken", "blob.preview")
class MakesItsOwnReference(RawClient):
    def upload(self, data: bytes) -> Any:
        found = super().upload(data)
        return state_pb2.BlobRef(sha256=found.sha256, size_bytes=found.size_bytes)


@wrong("write-blob/broken", "1451424 bytes")
class WritesTheRestOnly(RawClient):
    def upload(self, data: bytes) -> Any:
        answers = iter((data, data[1 << 20 :]))
        right = super().upload

        class Half:
            def __len__(self) -> int:
                return len(data)

            def __getitem__(self, part: slice) -> bytes:
                if part.start == 0:
                    self.now = next(answers)
                return self.now[part]

        return right(Half())  # type: ignore[arg-type]

    def sha256(self, data: Any) -> bytes:
        return b"" if not isinstance(data, bytes) else super().sha256(data)


@wrong("read-blob/broken", "not the right one")
class ReadsTwice(RawClient):
    def next_byte(self, data: bytes) -> int:
        return 0


@wrong("read-blob/broken", "next: ReadBlob")
class ReadsTheBeginning(RawClient):
    def download(self, blob: Any) -> bytes:
        self.code.pause_after = lambda error, attempt: None
        return super().download(blob)


class WithWriter(RawClient):
    kind: type[Writer]

    def writer(self) -> None:
        self.kind(self).write()


@wrong("writer/broken", "not those of the stream before")
class OpensAnotherLease(WithWriter):
    class kind(Writer):  # noqa: N801
        def opening(self) -> Any:
            self.open_id = self.client.request_id()
            return super().opening()


@wrong("writer/broken", "frame 2 is not the same")
class RenamesFrames(WithWriter):
    class kind(Writer):  # noqa: N801
        def repeated(self, frame: Any) -> Any:
            frame.save.request_id = self.client.request_id()
            return frame


@wrong("writer/broken", "a further call came: Write", "before its frame save")
class ForgetsUnansweredFrames(WithWriter):
    class kind(Writer):  # noqa: N801
        def opening(self) -> Any:
            self.unanswered.clear()
            return super().opening()


@wrong("writer/refused", "before its frame reset")
class NeverResets(WithWriter):
    class kind(Writer):  # noqa: N801
        def reset(self, out: Any) -> None:
            out.put(None)


@wrong("writer/refused", "end of a stream", "instead of ending it", "the client called Write", "a further call came")
class CancelsInTheEnd(WithWriter):
    class kind(Writer):  # noqa: N801
        def end(self, out: Any, answers: Any) -> None:
            answers.cancel()


@pytest.mark.parametrize(
    ("scenario", "told", "kind"), [pytest.param(*each, id=f"{each[0]}-{each[2].__name__}") for each in WRONG]
)
def test_a_wrong_client_fails(scenario: str, told: tuple[str, ...], kind: type[RawClient]) -> None:
    """The scenario is not passed by a client with the mistake that it is about, and the problem names the mistake."""
    played, _ = play(scenario, kind)
    result = judge(played, 1)
    assert result.outcome == FAILED
    assert any(each in result.problem for each in told), result.problem
