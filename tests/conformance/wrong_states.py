"""Wrong clients: pages, retries, conflicts, and changes since a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from tests.conformance.raw_client import RawClient
from tests.conformance.wrong import CODE, OneId, Renaming, wrong

from stateward.v1 import checkpoint_pb2, state_pb2

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
        checkpoint_pb2.WorkStatus.Name(99)  # ValueError, as in a client that maps the status to its own type
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


@wrong("advance/refused", "expected_digest is b''")
class SavesOnANumber(RawClient):
    """Another version may have the number by now."""

    def try_save(self, edit: Any, version: int, digest: bytes) -> bool:
        return super().try_save(edit, version, b"")


@wrong("advance/refused", "expected_uid is ''")
class SavesToAName(RawClient):
    """A save that comes late brings a deleted thread back."""

    def uid_of(self, checkpoint: Any) -> str:
        return ""


@wrong("advance/deleted", "Save: the client called Hydrate")
class TakesAbortedForAConflict(RawClient):
    """Puts the work of a deleted thread into the next thread of its name."""

    def try_save(self, edit: Any, version: int, digest: bytes) -> bool:
        try:
            return super().try_save(edit, version, digest)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.ABORTED:
                raise
            return False


# -- retries ----------------------------------------------------------------------------------------------------------


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


def pause_of_queues(error: grpc.RpcError, attempt: int) -> float | None:
    return CODE.pause_after(error, attempt) if CODE.read_error(error)[0] == "QUEUE_FULL" else None


@wrong("advance/too-fast", "earlier than RetryInfo", pause_after=hasty_pause)
class DoesNotWaitForItsPace:
    pass


@wrong("advance/too-fast", "earlier than RetryInfo", pause_after=pause_of_queues)
class TakesAPaceForAQuota:
    pass


@wrong("advance/used-up", "expected_version is 3, not missing", pause_after=lambda error, attempt: 0.05)
class RepeatsAtAQuota:
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
