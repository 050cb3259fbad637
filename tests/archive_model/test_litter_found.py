"""The danger: objects that no HEAD names stay in the bucket, and are paid for, after failed HEADs, deaths and names
that never became threads."""

from __future__ import annotations

import hashlib

from tests.archive_model.faults import AWAY, DIES_AFTER, DIES_BEFORE, DIES_LATE, Fault
from tests.archive_model.test_archive_model import Rules
from tests.daemon.driven import NAMESPACE

from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING

NONE: tuple[Fault, ...] = ()


def move_tags(history: Rules, who: int, count: int) -> None:
    """Each ship replaces a part of the image."""
    for number in range(count):
        tag = hashlib.sha256(str(number % 12).encode()).hexdigest()
        history.tag(who, "a", tag, NONE)
        history.save_one(who, "a", "main", 10, conditional=False, archived=True, rests=False, plan=NONE)


def test_more_is_dropped_than_a_head_has_room_for(history: Rules) -> None:
    """All within the grace time, in which readers may follow an older HEAD. Then the owner deletes them."""
    move_tags(history, 0, 90)
    history.wait(60.0)
    for _ in range(2):
        history.save_one(0, "a", "main", 10, conditional=False, archived=True, rests=False, plan=NONE)
        history.background(0, NONE)


def test_a_head_that_fails_leaves_nothing_behind(history: Rules) -> None:
    """What was put for it is named by the next one, or removed."""
    for size in (1500, 10, 1500, 10):
        plan = (Fault(AWAY, 0, at_head=True),)
        history.save_one(0, "a", "main", size, conditional=False, archived=True, rests=False, plan=plan)
        history.wait(60.0)
        history.background(0, NONE)
    move_tags(history, 0, 14)


def test_a_name_that_never_became_a_thread_leaves_nothing(history: Rules) -> None:
    """An agent is sure to go on, under a wrong name."""
    request = history.request("b", "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
    request.options.expected_version = 5
    history.act(0, "save b, which is not there", lambda it: it.save(request))
    key = history.key_of(history.sidecars[0], "b")
    assert history.sidecars[0].find("b") is None
    left = [name for name in history.net.bucket.objects if key.split("/")[3] in name]
    assert left == [], NAMESPACE


def test_a_process_that_dies_before_its_first_save_leaves_no_name(history: Rules) -> None:
    """At each request and commit of a save that makes a thread. The teardown looks at the bucket."""
    for number, kind in enumerate((DIES_BEFORE, DIES_AFTER, DIES_LATE)):
        for at in range(7):
            request = history.request(f"b{number}{at}", "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
            plan = (Fault(kind, at),) if at < 5 else (Fault(kind, at - 5, at_commit=True),)
            if kind != DIES_LATE or at < 5:
                history.act(number % 2, "save", lambda it, request=request: history.save(it, request), plan)
