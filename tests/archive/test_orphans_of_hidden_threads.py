"""The danger: whoever knows the uid of a thread that it may not read learns from an orphan of it what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from tests.daemon.process import Fleet, eventually, write_steps
from tests.start.contract import METHODS, answers_of, digest_of, open_channel, principal_of, reason_in, reason_of

from stateward.models import Access
from stateward.v1.thread_service_pb2 import GetThreadRequest, WaitDurableRequest

TOKENS = {"app": "a" * 40, "all": "o" * 40}
GRANTS = {"app": ["read,write default/open-*"], "all": ["read,write,signal,delete */*", "admin */*"]}


def test_an_orphan_is_not_found_under_the_name_of_another_thread(machines: Fleet, tmp_path: Path) -> None:
    """Neither that it is there, nor whose it is, nor up to where its history is the thread's: the answer is the same as
    for a uid that no thread ever had."""
    access = tmp_path / "access.toml"
    access.write_text(
        "".join(
            principal_of(who, digest_of(TOKENS[who]), grants)
            for who, grants in GRANTS.items()
        )
    )
    first = machines.machine("first", archive_check="600", access=str(access))
    old = machines.client(first, token=TOKENS["all"], retry_timeout=0)
    write_steps(old, "shut", 2, archived=True)
    write_steps(old, "open-1", 1, archived=True)
    new = machines.client(machines.machine("second"))
    new.thread("shut").archive.attach(take_over=True)
    write_steps(new, "shut", 1, archived=True)
    digest = write_steps(old, "shut", 1)
    uid = old.thread("shut").info().uid

    def set_aside() -> bool:
        return any(each.access is Access.ORPHAN for each in old.threads())

    eventually(set_aside)
    with open_channel(first.target, "grpc") as channel:
        told = [
            [found(channel, thread, asked, each, "app") for each in ((1, b""), (2, b""), (3, digest), (4, b""))]
            for thread in ("open-1", "open-none", "shut")
            for asked in (uid, "0" * 32)
        ]
        assert told[0] == told[1]
        assert told[2] == told[3]
        assert told[4] == told[5] == [("PERMISSION_DENIED", "")] * 4
        # Who may read the thread is told of its orphan.
        assert found(channel, "shut", uid, (3, digest), "all")[0] == "FENCED"
        read = GetThreadRequest(thread="shut@@1")
        assert reason_of(channel, METHODS["GetThread"], read, TOKENS["app"]) == "PERMISSION_DENIED"


def found(channel: Any, thread: str, uid: str, entry: tuple[int, bytes], who: str) -> tuple[str, str]:
    request = WaitDurableRequest(thread=thread)
    request.receipt.uid, (request.receipt.sequence, request.receipt.digest) = uid, entry
    try:
        return "", str(answers_of(channel, METHODS["WaitDurable"], request, TOKENS[who])[0])
    except grpc.RpcError as error:
        text = str(error.details()).replace(uid, "uid")  # type: ignore[attr-defined]
        return reason_in(error), text if thread != "shut" else ""
