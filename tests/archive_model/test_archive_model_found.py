"""The danger: a fault of the archive that random histories once found comes back, because random histories rarely
repeat it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.archive_model.faults import APPLIED, AWAY, CUT, GATHERS, HELD, HELD_AFTER, LOST_AWAY, Fault
from tests.archive_model.giving import HEAD
from tests.archive_model.test_archive_model import Rules
from tests.daemon import small

from stateward.v1.thread_pb2 import THREAD_ACCESS_OWNED
from stateward_sidecar.archive.objects.fetch import Fetcher

NONE: tuple[Fault, ...] = ()


def save(
    history: Rules, who: int, *, archived: bool = True, rests: bool = False, plan: tuple[Fault, ...] = NONE
) -> None:
    history.save_one(who, "a", "main", 10, conditional=False, archived=archived, rests=rests, plan=plan)


def test_a_copy_does_not_bring_back_what_was_deleted(history: Rules) -> None:
    """The thread was given up here and deleted elsewhere: attaching it again finds nothing."""
    history.detach(0, "a", NONE)
    history.delete(1, "a", NONE, now=True)
    history.attach(0, "a", NONE)
    assert history.sidecars[0].find("a") is None


def test_a_copied_disk_makes_the_very_same_version() -> None:
    """Both go on from one state, and are asked for the same save at the same instant: neither was answered before."""
    history = Rules()
    try:
        history.first_steps(size=10, archived=False)
        history.copy(0)
        history.restore(1, 0, now=True)
        save(history, 0, archived=False)
        history.retry(1, 1, archived=False, plan=NONE)
        history.teardown()
    finally:
        small.restore()


@pytest.mark.parametrize("fault", [AWAY, LOST_AWAY, CUT])
def test_a_thread_that_could_not_be_given_up_is_ours(history: Rules, fault: str) -> None:
    """A HEAD that was to say so did not land, or nobody knows: the thread is shipped later, also after a crash."""
    at = Fault(fault, 0, at_head=True)
    unclear = (Fault(LOST_AWAY, 0, at_head=True), Fault(CUT, 1, at_head=False))
    save(history, 0, rests=True, plan=unclear if fault == CUT else (at,))
    thread = history.sidecars[0].find("a")
    assert thread is not None
    assert thread.access == THREAD_ACCESS_OWNED
    assert thread.archived_sequence == 2
    history.crash(0)


def test_a_version_that_stands_alone_is_read_elsewhere(history: Rules) -> None:
    """Its snapshot is older than main's newest one, and HEAD names it through an index only."""
    history.tag(name="a", plan=NONE, tag="x", who=0)
    history.work(archived=False, count=6, name="a", size=10, who=0)
    history.prune(keep=2, name="a", plan=NONE, who=0)
    history.background(plan=NONE, who=0)


def test_a_disk_that_crashed_twice_is_nobody_else(history: Rules) -> None:
    """The process in between shipped, and died before it wrote that down: its HEAD is no stranger's."""
    history.crash(0)
    save(history, 0)
    save(history, 0, archived=False)
    history.crash(0)
    history.ship(0, NONE)
    assert not history.orphans


def test_what_stays_of_a_pruned_chain_can_be_read_elsewhere(history: Rules) -> None:
    """The versions that stay have snapshots of their own, which a machine fetches that was never there before."""
    history.work(0, "a", count=2, size=10, archived=False)
    history.prune(0, "a", keep=2, plan=NONE)
    history.ship(0, NONE)


def test_a_clone_is_not_told_that_history_is_lost(history: Rules) -> None:
    """A disk was copied, and its original shipped on: what both have is history, and no orphan."""
    history.save_one(0, "a", "main", 10, conditional=False, archived=False, rests=False, plan=NONE)
    history.copy(0)
    history.crash(0)
    save(history, 0)
    history.restore(1, 1, now=True)
    save(history, 1, archived=False)
    assert not history.orphans


def test_a_thread_that_was_pruned_is_shipped_by_who_takes_it(history: Rules) -> None:
    """Entries that came whole from the archive may need a dictionary that was pruned: nobody reads them any more."""
    history.work(0, "a", count=6, size=1500, archived=True)  # makes snapshots, which become dictionaries
    history.work(0, "a", count=5, size=10, archived=True)
    history.prune(0, "a", keep=1, plan=NONE)
    history.ship(0, NONE)
    history.take(1, "a", NONE)
    save(history, 1)


def test_what_was_set_aside_of_a_deleted_thread_goes_with_it(history: Rules) -> None:
    """It was sealed under the same key: nothing stays on a disk that cannot be read."""
    save(history, 0, archived=False)
    history.take(1, "a", NONE)
    history.ship(0, NONE)
    history.read(0, "a", "main", NONE)
    history.delete(1, "a", NONE, now=True)
    save(history, 0)
    history.crash(0)
    assert [thread.name for thread in history.sidecars[0].threads()] == ["a"]


def test_an_orphan_of_a_copy_is_read_from_its_beginning(history: Rules) -> None:
    """What it shares with the thread it comes from was never on its disk: the archive has it."""
    history.copy(0)
    history.restore(1, 0, now=True)
    history.take(1, "a", NONE)
    history.work(0, "a", count=2, size=10, archived=False)
    history.work(0, "a", count=4, size=10, archived=False)
    history.flush(0, (), NONE, takes=False)
    history.save_one(0, "a", "side", 10, conditional=False, archived=False, rests=False, plan=NONE)
    history.work(0, "a", count=2, size=10, archived=True)
    history.work(1, "a", count=2, size=10, archived=True)
    history.flush(0, (), NONE, takes=False)
    save(history, 1, archived=False)
    assert history.orphans


def test_a_head_that_was_away_for_a_moment_is_not_lost(history: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory was being mounted again when HEAD was asked for: the thread is shipped, and no alarm is given."""
    save(history, 0, archived=False)
    history.crash(0)
    real, asked = Fetcher.look, []

    def look(fetcher: Fetcher, *args: Any, **options: Any) -> Any:
        asked.append(args)
        return None if len(asked) == 1 else real(fetcher, *args, **options)

    monkeypatch.setattr(Fetcher, "look", look)
    history.ship(0, NONE)
    thread = history.sidecars[0].find("a")
    assert thread is not None
    assert thread.archive is not None
    assert not thread.archive.rolled_back
    assert thread.archived_sequence == thread.head.tip_sequence


def test_a_thread_that_is_made_again_under_its_uid_is_there() -> None:
    """It was deleted on this disk before anything of it was archived, so the archive's claim gives it the same uid."""
    history = Rules()
    try:
        history.first_steps(size=10, archived=False)
        history.delete_here(0, "a", NONE, now=True)
        history.work(0, "a", count=2, size=10, archived=False)
        history.forget(0)
        assert history.sidecars[0].find("a") is not None
        history.teardown()
    finally:
        small.restore()


def test_what_was_set_aside_outlives_the_copy_of_its_thread(history: Rules) -> None:
    """A deletion on this disk takes the live name only: the orphan needs the same key."""
    save(history, 0, archived=False)
    history.take(1, "a", NONE)
    save(history, 1)
    history.ship(0, NONE)
    history.read(0, "a", "main", NONE)
    history.delete_here(0, "a", NONE, now=True)
    history.crash(0)
    assert [thread.name for thread in history.sidecars[0].threads()] == ["a@@1"]


def test_a_deletion_does_not_wait_for_what_is_gone(history: Rules) -> None:
    """The thread is deleted on this disk while a deletion everywhere archives its last save."""
    save(history, 0, archived=False)
    history.delete(0, "a", (Fault(HELD_AFTER, 0, at_head=True),), now=True)
    history.delete_here(0, "a", NONE, now=True)
    history.resume(0)
    assert history.truth.deleted


def test_a_thread_that_is_deleted_here_while_it_is_read_is_not_new(history: Rules) -> None:
    """The copy that a reader has just fetched goes from this disk: the archive is asked again, and has the thread."""
    history.read(1, "a", "main", (Fault(HELD_AFTER, 1, at_commit=True),))
    history.delete_here(1, "a", NONE, now=True)
    history.resume(0)
    assert not history.turns.under_way
    assert history.sidecars[1].find("a") is not None


@pytest.mark.parametrize("reads", [False, True])
def test_a_thread_that_is_deleted_here_while_its_copy_is_renewed_comes_whole(history: Rules, *, reads: bool) -> None:
    """HEAD had nothing new but a snapshot, and the copy that has the entries goes from this disk meanwhile."""
    history.work(0, "a", count=6, size=1500, archived=True)
    history.background(0, NONE)
    history.read(1, "a", "main", NONE)
    if reads:
        history.crash(0)
        history.attach(0, "a", NONE)
        history.detach(0, "a", NONE)
        history.read(1, "a", "main", (Fault(HELD, 0, at_commit=True),))
    else:
        history.take(1, "a", (Fault(HELD, 0, at_head=True),))
    history.delete_here(1, "a", NONE, now=True)
    history.resume(0)
    thread = history.sidecars[1].find("a")
    assert thread is not None
    assert history.sidecars[1].holds("a") is not reads


def test_a_bucket_that_was_set_back_while_it_was_away_is_not_written_over(history: Rules) -> None:
    """HEAD was unclear, and is asked before the next ship: by then it is an older one."""
    history.back_up_bucket()
    save(history, 0)
    save(history, 0, rests=True, plan=(Fault(AWAY, 0, at_head=True),))
    history.wait(60.0)  # whoever waits for it gives up
    history.set_back_bucket(now=True)
    assert history.era
    history.ship(0, NONE)


def test_a_head_that_is_refused_deletes_nothing(history: Rules) -> None:
    """The bucket is set back to a HEAD whose image was to go with the next HEAD."""
    grow(history)
    history.back_up_bucket()
    grow(history)
    history.wait(700.0)
    history.set_back_bucket(now=True)
    assert history.era
    save(history, 0, archived=False)
    history.ship(0, NONE)
    history.background(0, NONE)


def grow(history: Rules) -> None:
    """Tags and saves until HEAD names an image object."""
    for _ in range(4):
        history.tag(0, "a", hashlib.sha512(str(len(history.steps)).encode()).hexdigest(), NONE)
        save(history, 0)


def test_what_a_replaced_owner_needs_for_its_head_is_gone_with_the_thread(history: Rules) -> None:
    """Another machine took the thread and deleted it: that is no damage, and the next ship finds out."""
    history.part(0, "a", own=1, count=1, size=10, plan=NONE, worked=12)
    history.be_idle(0, "a", count=1, seconds=1.0, aside=0, plan=NONE)
    history.take(0, "a", NONE)
    history.tag(0, "a", "x", NONE)
    history.take(1, "a", NONE)
    history.delete(1, "a", NONE, now=True)
    history.background(1, NONE)
    history.ship(0, NONE)
    assert history.sidecars[0].find("a") is None


@pytest.mark.parametrize("count", [0, 1])
def test_a_thread_that_is_taken_while_it_is_given_up_is_no_copy_yet(history: Rules, count: int) -> None:
    """It is given up in memory, HEAD is refused, and what sets it aside waits for a commit of another thread."""
    history.save_one(0, "b", "main", 10, conditional=False, archived=True, rests=False, plan=NONE)
    history.give_up_slowly(0, "a", "rests", (HELD, HEAD), [], goes_on=False)
    history.take_over(1, "a")
    history.work(1, "a", count=count, size=10, archived=True)
    applied = (Fault(APPLIED, 0, at_commit=True),)
    history.save_one(0, "b", "main", 10, conditional=False, archived=False, rests=False, plan=applied)
    history.resume(0)
    history.resume(0)
    assert history.orphans


def test_what_comes_while_a_commit_gathers_goes_with_it(history: Rules) -> None:
    """So do the machine's writers, as a daemon's does."""
    writer, gathers = history.sidecars[0].store.context.writer, (Fault(GATHERS, 0, at_commit=True),)
    commits = writer.commits
    save(history, 0, archived=False, plan=gathers)
    save(history, 0, archived=False)
    assert writer.commits == commits
    history.go_on(0)
    thread = history.sidecars[0].find("a")
    assert thread is not None
    assert (writer.commits - commits, thread.head.last_version) == (2, 4)  # one of both saves, one of a snapshot


def test_a_thread_goes_when_its_time_is_over_and_not_before(history: Rules) -> None:
    """Nobody asks for it."""
    history.set_ttl(0, "a")
    history.sweep(0, (), ["save"], hours=0)
    assert history.sidecars[0].find("a") is not None
    history.sweep(0, (), [], hours=1)
    history.background(0, NONE)
    assert history.sidecars[0].find("a") is None


def test_a_thread_made_while_its_name_is_deleted_is_whole_or_gone(history: Rules) -> None:
    """The archive has no thread of this name to delete; a save makes one before the deletion is committed."""
    history.delete(0, "b", (Fault(HELD, 0, at_commit=True),), now=True)
    history.save_one(0, "b", "main", 10, conditional=False, archived=False, rests=False, plan=NONE)
    history.resume(0)


@pytest.mark.parametrize("commit", range(4))
def test_a_thread_made_after_the_tombstone_is_not_deleted_with_the_old_one(history: Rules, commit: int) -> None:
    """The name is free once the tombstone is there: a save may take it before the old copy is gone from the disk."""
    history.delete(0, "a", (Fault(HELD, commit, at_commit=True),), now=True)
    save(history, 0, archived=False)
    history.resume(0)


def test_a_copied_disk_reads_what_was_not_archived_of_it(history: Rules) -> None:
    """HEAD is of the disk that was copied: the copy does not own the thread yet, and has what HEAD has, and more."""
    save(history, 0, archived=False)
    history.copy(0)
    history.restore(1, 0, now=True)
    history.read(1, "a", "main", NONE)


def test_a_thread_that_is_taken_while_it_is_read_is_read_as_held(history: Rules) -> None:
    """The taking was answered late, and another machine took the thread meanwhile: its owner learns that later."""
    history.detach(0, "a", NONE)
    history.attach(1, "a", (Fault(HELD_AFTER, 0, at_head=True),))
    history.read(1, "a", "main", NONE)
    save(history, 1, archived=False)
    history.take(0, "a", NONE)
    save(history, 0)
    history.resume(0)


def test_a_request_that_came_too_late_is_made_anew_once() -> None:
    """Outside of the window of retries a request makes another version; a retry is answered with the newer one."""
    history = Rules()
    try:
        history.first_steps(size=10, archived=True, window=2)
        for _ in range(4):
            save(history, 0)
        history.retry(0, 3, archived=True, plan=NONE)
        history.retry(0, 3, archived=True, plan=NONE)
        history.teardown()
    finally:
        small.restore()


def test_a_list_without_the_newest_version_is_whole() -> None:
    """The newest version was pruned with its head: a reader elsewhere is shown the ones that are left."""
    history = Rules()
    try:
        history.first_steps(size=10, archived=False, one_host=False, window=1024)
        history.lose_line(again=False, count=1, lost=1, name="a", now=True, size=10, touch=0, who=0)
        history.prune_heads(count=1, name="a", plan=NONE, who=0)
        history.prune(keep=1, name="a", plan=NONE, who=0)
        history.list_all(name="a", plan=NONE, who=1)
        history.teardown()
    finally:
        small.restore()


@pytest.mark.parametrize("goes", [True, False], ids=["its source goes", "its source stays"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_save_keeps_its_key_when_a_copy_of_its_name_fails(history: Rules, at: int, goes: bool) -> None:
    """The claim of the name fixed one key for both, and both were written in one transaction."""
    history.make_together(0, at, goes, now=True)
    assert history.sidecars[0].find("fork") is not None


def test_a_request_that_is_made_anew_is_found_when_the_first_entry_comes() -> None:
    """A new machine lacked the entry, which no retry had to find any more; then somebody reads all of the history."""
    history = Rules()
    try:
        history.first_steps(size=10, archived=True, window=2)
        for _ in range(2):
            history.work(0, "a", 6, 300, archived=True)
            history.background(0, NONE)
        history.lose(1, now=True)
        history.read(1, "a", "main", NONE)
        history.take(1, "a", NONE)
        history.retry(1, 12, archived=True, plan=NONE)
        history.read_old(1, "a", 1, NONE)
        history.retry(1, 12, archived=True, plan=NONE)
        thread = history.sidecars[1].find("a")
        assert thread is not None
        assert thread.head.last_version == 15
        ((*_, answered),) = history.requests[-12][1].values()
        assert answered.version == 15
        history.teardown()
    finally:
        small.restore()


@pytest.mark.parametrize("cold", [True, False])
def test_a_prune_clears_what_a_ship_reads(cold: bool) -> None:
    """A HEAD never says that an entry is whole which was cleared since the ship looked at the thread."""
    history = Rules()
    try:
        history.first_steps(size=10, archived=True, window=2)
        history.prune_while_shipping(0, "a", 3, 10, 1, cold=cold)
        history.lose(0, now=True)
        history.read(1, "a", "main", NONE)
        history.teardown()
    finally:
        small.restore()


@pytest.mark.parametrize("at", [4, 9, 12])
def test_a_backup_is_of_one_history(history: Rules, at: int) -> None:
    """Another sidecar takes the thread while it is exported, and goes on with versions of the same numbers."""
    history.export_and_part(0, "a", 4, 4, at)


def test_a_request_that_is_made_anew_and_removed_is_found_by_its_first_entry() -> None:
    """A new machine lacked the entry, which no retry had to find any more; the newer one was pruned, and removed."""
    history = Rules()
    try:
        history.first_steps(size=10, archived=False, window=2, keeps_records=True)
        history.retry_after_takeover(1, "a", 6, 10, 2, archived=False, is_new=False)
        history.prune_heads(1, "a", 1, NONE)
        history.teardown()
    finally:
        small.restore()


@pytest.mark.parametrize("remade", [False, True])
@pytest.mark.parametrize("other", [0, 1])
@pytest.mark.parametrize("form", ["save", "put", "begin"])
def test_a_late_write_reaches_nothing(history: Rules, form: str, other: int, remade: bool) -> None:
    """The thread was deleted, here or elsewhere, and perhaps made again: nothing is written, and no name claimed."""
    history.go_on_after_deletion(0, other, "a", form, remade=remade, plan=NONE, now=True)


@pytest.mark.parametrize("form", ["save", "put", "begin"])
def test_a_late_write_at_a_replaced_owner(history: Rules, form: str) -> None:
    """Another sidecar took the thread and deleted it, and this one does not know: what it commits goes with it."""
    uid = history.creations("a")[-1].hex()
    history.take(1, "a", NONE)
    history.act(1, "delete a", lambda it: history.delete_creation(it, "a", uid))
    history.act(0, "late to a", lambda it: history.write(it, form, "a", uid, archived=False))
    history.ship(0, NONE)
    history.read(0, "a", "main", NONE)
    assert history.sidecars[0].find("a") is None
