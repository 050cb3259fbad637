"""The danger: an error without a row in the table reaches clients as a bare INTERNAL, which says neither to retry nor
what is wrong."""

from __future__ import annotations

import base64
import inspect
import itertools
import re
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from tests.daemon.wire import Wire, refused

from stateward import errors as client_errors
from stateward._operations import failures
from stateward._operations.reasons import BY_REASON
from stateward.v1.error_reason_pb2 import ErrorReason
from stateward.v1.thread_service_pb2 import GetThreadRequest
from stateward.v1.thread_service_pb2_grpc import ThreadServiceStub
from stateward_sidecar import errors as daemon_errors
from stateward_sidecar.service.calls.status import (
    CODES,
    DETAILS_KEY,
    DOMAIN,
    NO_RETRY,
    PUSHBACK_KEY,
    to_status,
    trailers,
)

PREFIX = "ERROR_REASON_"
REASONS = [name.removeprefix(PREFIX) for name, _ in ErrorReason.items() if name != f"{PREFIX}UNSPECIFIED"]


def subclasses(base: type) -> list[type]:
    return [cls for sub in base.__subclasses__() for cls in (sub, *subclasses(sub))]


def make(reason: str) -> daemon_errors.StatewardError:
    """An error of a reason with the facts its class asks for."""
    kinds = {kind.reason: kind for kind in subclasses(daemon_errors.StatewardError)}
    kind = kinds.get(reason, daemon_errors.StatewardError)
    given = {"field": "f", "edit_index": 1, "size_bytes": 2, "limit_bytes": 1, "message": "what is wrong"}
    wanted = inspect.signature(kind).parameters.values()
    error = kind(*(given[each.name] for each in wanted if each.name in given and each.default is each.empty))
    error.reason = reason
    return error


def test_every_reason_has_one_code_and_one_exception() -> None:
    """The contract's reasons, the daemon's table and the client's table name the same things."""
    assert sorted(CODES) == sorted(REASONS)
    assert sorted(BY_REASON) == sorted(REASONS)
    assert [name for name, count in Counter(BY_REASON.values()).items() if count > 1] == []


def test_every_error_of_the_daemon_is_in_the_contract() -> None:
    """Each class the daemon raises has a reason of the contract, of its own."""
    # What a call never sees, or sees as the error it is a kind of.
    own = (daemon_errors.StartError, daemon_errors.HistoryElsewhere, daemon_errors.Unclaimed)
    found = subclasses(daemon_errors.StatewardError)
    kinds = [kind for kind in found if kind not in own and kind.__module__ == daemon_errors.__name__]
    reasons = [kind.reason for kind in kinds]
    assert set(reasons) <= set(REASONS)
    assert [reason for reason, count in Counter(reasons).items() if count > 1] == []


def test_every_exception_of_the_client_is_reachable() -> None:
    """Each class of the client without subclasses comes from a reason, or is made by the client itself."""
    own = {"ForkedProcess", "NotArchivedYet", "ThreadsUnreadable", "OtherSettings", "WrongTarget"}
    own |= {"SetBack", "SaveLost"}  # of what the client has seen (STATEWARD_LAST_SEEN)
    own |= {"RateExceeded"}  # of QUOTA_EXCEEDED with RetryInfo
    own |= {"RestoreBlocked", "RestoreUnfinished", "WorkspaceRefused", "WorkspaceUnsupported"}  # of directories
    own |= {"EffectFailed", "EffectUncertain", "EffectInProgress", "HandoffTaken", "NoHandoff", "UnreadAnswer"}
    found = [kind for kind in subclasses(client_errors.StatewardError) if kind.__module__ == client_errors.__name__]
    leaves = {kind.__name__ for kind in found if not kind.__subclasses__()}
    assert leaves - own <= {kind.__name__ for kind in BY_REASON.values()}
    for name in leaves:
        assert name in (client_errors.__doc__ or ""), f"{name} is missing in the tree that users read"


def test_what_was_deleted_is_not_what_is_missing() -> None:
    """A program makes a thread that is missing. It must not bring back one that somebody deleted."""
    assert not issubclass(client_errors.UidMismatch, client_errors.NotFound)
    assert not issubclass(daemon_errors.UidMismatch, daemon_errors.ThreadNotFound)
    error = client_errors.UidMismatch("gone", metadata={"thread": "t", "expected_uid": "ab"})
    assert (error.thread, error.uid, error.expected_uid) == ("t", "", "ab")
    missing = client_errors.BlobNotFound("no blob", metadata={"thread": "t", "sha256": "ab" * 32})
    assert (missing.thread, missing.sha256) == ("t", b"\xab" * 32)


def test_the_contract_says_the_code_of_every_reason(repository: Path) -> None:
    """The comment before each reason begins with the code that the daemon really answers."""
    source = (repository / "proto/stateward/v1/error_reason.proto").read_text()
    found = re.findall(r"\n  // ([A-Z_]+)\.(?:[^\n]*\n  //)*[^\n]*\n  ERROR_REASON_([A-Z_]+) = ", source)
    said = {reason: code for code, reason in found}
    assert sorted(said) == sorted(REASONS)
    for reason, code in said.items():
        assert CODES[reason].name == code, reason


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_travels_whole(reason: str) -> None:
    """Status, code and exactly one ErrorInfo go out; the client makes its exception of them, with all facts."""
    error = make(reason)
    error.metadata["fact"] = "known"
    code, message, details = to_status(error)
    status = status_pb2.Status.FromString(details)
    infos = [detail for detail in status.details if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    assert len(infos) == 1
    info = error_details_pb2.ErrorInfo.FromString(infos[0].value)
    assert (info.reason, info.domain, status.code) == (reason, DOMAIN, code.value[0])
    made = failures.error_from_rpc(code.name, message, [(DETAILS_KEY, details)])
    assert type(made) is BY_REASON[reason]
    assert (made.reason, made.message, made.metadata["fact"]) == (reason, message, "known")


@pytest.mark.parametrize("reason", REASONS)
def test_both_pauses_are_the_same(reason: str) -> None:
    """The retries of gRPC find the pause of RetryInfo in their own trailer, and stop at a limit that lasts."""
    error = make(reason)
    code, message, details = to_status(error)
    sent = trailers(error, details)
    pause = failures.error_from_rpc(code.name, message, sent).retry_delay
    pushback = dict(sent).get(PUSHBACK_KEY)
    if pause is not None:
        assert pushback == str(int(pause.total_seconds() * 1000))
    else:
        assert pushback == (NO_RETRY if code is grpc.StatusCode.RESOURCE_EXHAUSTED else None)


def test_errors_without_details_are_never_taken_for_a_missing_thread() -> None:
    """NOT_FOUND from something in between must not let an agent start from nothing."""
    for code in grpc.StatusCode:
        made = failures.error_from_rpc(code.name, "from a proxy", [])
        assert not isinstance(made, client_errors.NotFound)


def test_facts_too_long_for_a_header_are_cut() -> None:
    """Names of the greatest length, of any characters, leave an error that a client of gRPC receives."""
    for character, facts in itertools.product("a%é語\U0001f600", (1, 3, 8, 40)):
        name = character * (1024 // len(character.encode()))
        for reason in REASONS:
            error = make(reason)
            error.message = f"no thread {name!r}, tag {name!r}"
            error.metadata |= {f"fact {at}": name for at in range(facts)} | {"thread": name}
            code, message, details = to_status(error)
            assert wire_bytes(message, trailers(error, details)) < (8 << 10) - 256  # of gRPC's own headers
            made = failures.error_from_rpc(code.name, message, [(DETAILS_KEY, details)])
            assert (made.reason, made.message) == (reason, message)
            assert error.message.startswith(message)
            assert name.startswith(made.metadata["thread"])
            assert len(message) == len(error.message) or len(message.encode()) > 600
            assert len(made.metadata["thread"].encode()) > 100 or facts > 8


def wire_bytes(message: str, trailing: tuple[tuple[str, str | bytes], ...]) -> int:
    """Bytes of the trailers as HTTP/2 counts them: names, values as written, and 32 for each."""
    written = {"grpc-message": len(quote(message, safe="".join(map(chr, range(32, 127))).replace("%", "")))}
    for key, value in trailing:
        written[key] = len(base64.b64encode(value)) if isinstance(value, bytes) else len(value)
    return sum(len(key) + size + 32 for key, size in written.items())


def test_a_client_with_the_usual_limit_receives_errors_about_long_names(wire: Wire) -> None:
    """Code and reason of an error about a thread whose name has 341 characters of three bytes, at every call."""
    options = [("grpc.max_metadata_size", 8 << 10), ("grpc.absolute_max_metadata_size", 8 << 10)]
    name = "語" * 341
    with grpc.insecure_channel(wire.target, options=options) as channel:
        get = ThreadServiceStub(channel).GetThread
        for _ in range(20):
            refusal = refused(get, GetThreadRequest(namespace=name, thread=name))
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "THREAD_NOT_FOUND")
