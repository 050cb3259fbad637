"""Checks requests that read logs, and watches that choose slots and logs."""

from __future__ import annotations

from stateward.v1.checkpoint_service_pb2 import ReadLogRequest
from stateward.v1.thread_service_pb2 import WatchRequest
from stateward_sidecar.codec.edits import check_name
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.service.checks import check
from stateward_sidecar.service.checks.checkfacts import check_uid

ENTRIES_MAX = 10_000
WAIT_S_MAX = 60.0
WATCHED_NAMES_MAX = 1000


def check_read_log(request: ReadLogRequest) -> None:
    """Checks a read of a log. Lowers ``page_size`` to the limit, as for page sizes."""
    check.check_place(request)
    if request.HasField("version"):
        check.check_ref(request.version, "version")
    check_name(request.log, "log")
    if request.from_index < 0:
        raise InvalidField("from_index", f"{request.from_index} is negative")
    if request.page_size < 0:
        raise InvalidField("page_size", f"{request.page_size} is negative")
    request.page_size = min(request.page_size, ENTRIES_MAX)
    check.check_max_bytes(request.max_bytes)
    check_uid(request.expected_uid, "expected_uid")
    if request.known_version or request.known_digest:
        check.check_known(request.known_version, request.known_digest)
    if request.HasField("wait"):
        check.check_duration(request.wait, "wait")
        if request.wait.ToMicroseconds() > WAIT_S_MAX * 1e6:
            raise InvalidField("wait", f"is longer than {WAIT_S_MAX:g} s; read again to wait longer")
        if request.HasField("version"):
            raise InvalidField("version", "is not allowed with wait: a version never changes")


def check_watched(request: WatchRequest) -> None:
    """Checks the slots and logs that a watch chooses."""
    if len(request.slots) + len(request.logs) > WATCHED_NAMES_MAX:
        raise InvalidField("slots", f"has, together with logs, more than {WATCHED_NAMES_MAX:,} names")
    for field in ("slots", "logs"):
        for index, name in enumerate(getattr(request, field)):
            check_name(name, f"{field}[{index}]")
