"""The danger: records that are moved while a ship runs cost the next owner an entry, or make history count as lost."""

from __future__ import annotations

from tests.archive_model.faults import DIES_BEFORE, HELD, HELD_AFTER, Fault
from tests.archive_model.test_archive_model import Rules
from tests.daemon import small

NONE: tuple[Fault, ...] = ()


def test_packs_without_versions_are_not_older_than_all_versions(history: Rules) -> None:
    """A thread has a snapshot, and then only records, until HEAD is folded: a new machine finds the newest entries."""
    history.work(0, "a", count=4, size=300, archived=True)
    history.replace_records(0, "a", count=8, size=1500, takes=False, plan=NONE)


def test_a_disk_knows_its_own_head_when_the_entry_at_its_tip_was_removed() -> None:
    """Records were moved, and nothing newer was archived; then the process died before it wrote down what was."""
    history = Rules()
    try:
        history.first_steps(size=10, archived=True, window=2)
        history.replace_records(0, "a", count=4, size=10, takes=False, plan=NONE)
        for _ in range(3):
            history.put_records(
                0, "a", {"a"}, set(), 10, conditional=False, archived=True, ttl_s=0,
                plan=(Fault(DIES_BEFORE, 0, at_head=True),),
            )  # fmt: skip
        assert not history.orphans
        history.teardown()
    finally:
        small.restore()


def test_a_ship_drops_no_pack_that_its_moment_needs() -> None:
    """Records are moved, and the entries before them removed, while a ship of the moment before them is under way. Its
    HEAD is the last one of the owner, and the next owner has all records."""
    history = Rules()
    try:
        history.first_steps(size=1500, archived=True, window=2)
        history.put_records(0, "a", {"b"}, set(), 10, conditional=False, archived=True, ttl_s=0, plan=NONE)
        history.replace_records(1, "a", count=6, size=10, takes=True, plan=NONE)
        history.replace_records(0, "a", count=6, size=10, takes=True, plan=(Fault(HELD_AFTER, 2, at_commit=True),))
        plan = (Fault(HELD, 1), Fault(DIES_BEFORE, 4))
        history.replace_records(0, "a", count=5, size=1500, takes=True, plan=plan)
        history.replace_records(1, "a", count=3, size=10, takes=True, plan=NONE)
        history.show_records(1, "a", set(), "list", NONE)
        history.teardown()
    finally:
        small.restore()


def test_a_deletion_by_prefix_takes_no_part_of_a_put(history: Rules) -> None:
    """A put replaces one record and makes another one, after the deletion has read which ones there are."""
    history.put_records(0, "a", {"a"}, set(), 10, conditional=False, archived=True, ttl_s=0, plan=NONE)
    history.delete_records(0, "a", "a", archived=True, plan=(Fault(HELD, 0, at_commit=True),))
    history.put_records(0, "a", {"a", "a/b"}, set(), 10, conditional=False, archived=True, ttl_s=0, plan=NONE)
    history.resume(0)
    thread = history.sidecars[0].find("a")
    assert thread is not None
    assert thread.head.records == 2


def test_what_a_bucket_lost_is_not_asked_for_for_ever() -> None:
    """A bucket is set back to before a thread began. Its owner, which never had the older history, says CORRUPT."""
    history = Rules()
    try:
        history.first_steps(size=10, archived=True, window=2)
        history.back_up_bucket()
        history.put_records(1, "fork", {"b"}, set(), 10, conditional=False, archived=True, ttl_s=0, plan=NONE)
        history.work(1, "fork", count=5, size=300, archived=True)
        history.put_records(1, "fork", {"b"}, set(), 10, conditional=False, archived=True, ttl_s=0, plan=NONE)
        history.take_over(0, "fork")
        history.set_back_bucket(now=True)
        before = len(history.steps)
        history.delete_records(archived=False, name="fork", plan=NONE, prefix="b", who=0)
        assert any("Corrupt" in step for step in history.steps[before:])
        history.teardown()
    finally:
        small.restore()
