"""The danger: the model's checks pass whatever the daemon does, so a broken promise of the archive is not noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from tests.archive_model.choices import ASIDE
from tests.archive_model.faults import AWAY, HELD, Fault
from tests.archive_model.giving import RELEASE
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.test_archive_model import Rules
from tests.daemon import small
from tests.daemon.small import BLOB_KEPT_S

from stateward.v1.thread_service_pb2 import DeleteThreadRequest, DeleteThreadResponse
from stateward_sidecar.archive.objects import judge
from stateward_sidecar.archive.own.pulse import Pulse
from stateward_sidecar.archive.own.reconcile import Reconciler
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.archive.ship import delete as archive_delete
from stateward_sidecar.archive.ship.delete import Remover
from stateward_sidecar.archive.ship.ship import Shipper
from stateward_sidecar.bucket.memory import MemoryBucket, etag_of
from stateward_sidecar.service.calls.ownership import Ownership
from stateward_sidecar.storage import layout
from stateward_sidecar.store.blobs import blobs as store_blobs
from stateward_sidecar.store.blobs import blobsweep
from stateward_sidecar.store.clean import delete, recordcleaning, sweep
from stateward_sidecar.store.clean.sweep import Sweeper
from stateward_sidecar.store.items import effects, recordputs, recordviews
from stateward_sidecar.store.journal import admitting, opening
from stateward_sidecar.store.kinds import record
from stateward_sidecar.store.thread.thread import ThreadDraft, rows
from stateward_sidecar.store.travel import orphans
from stateward_sidecar.store.travel.orphans import Orphans
from stateward_sidecar.store.versions import save as store_save

NONE: tuple[Fault, ...] = ()


def save(
    history: Rules, who: int, *, archived: bool = True, rests: bool = False, plan: tuple[Fault, ...] = NONE
) -> None:
    history.save_one(who, "a", "main", 10, conditional=False, archived=archived, rests=rests, plan=plan)


def two_owners(history: Rules) -> None:
    """The second sidecar takes the thread over and writes; the first one does not know."""
    history.take(1, "a", NONE)
    save(history, 1)
    save(history, 0)


@pytest.fixture
def broken() -> Iterator[Rules]:
    """The same as `history`, for what must be found."""
    made = Rules()
    made.first_steps(size=10, archived=True)
    made.is_broken = True
    yield made
    made.teardown()
    small.restore()


def test_a_bucket_without_conditions_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a stale owner can write HEAD, it names two histories."""

    def replace(bucket: MemoryBucket, key: str, data: bytes, etag: str) -> str:
        bucket.objects[key] = data
        return etag_of(data)

    monkeypatch.setattr(MemoryBucket, "replace", replace)
    with pytest.raises(AssertionError, match="an epoch went back"):
        two_owners(broken)


def test_an_answer_before_its_time_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a ship that did not land is believed, an ARCHIVED answer is no history."""
    monkeypatch.setattr(Shipper, "_put", lambda *_: True)
    with pytest.raises(AssertionError, match="is no history"):
        save(broken, 0)


def test_a_thread_that_stays_given_up_without_its_head_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD was refused, and nobody takes the thread back."""
    monkeypatch.setattr(Reconciler, "take_back", lambda reconciler, hold: reconciler._state.holds.pop(hold.number))
    with pytest.raises(AssertionError, match="which is no history"):
        save(broken, 0, rests=True, plan=(Fault(AWAY, 0, at_head=True),))


def test_a_save_into_what_is_given_up_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is committed right before the release, which does not look."""
    release = Orphans.release
    monkeypatch.setattr(Orphans, "release", lambda it, thread, until, *more: release(it, thread, until + 9, *more))
    with pytest.raises(AssertionError, match="CORRUPT, and nothing was damaged"):
        broken.give_up_slowly(0, "a", "detach", (HELD, RELEASE), [], goes_on=True)


def test_a_thread_that_goes_before_its_time_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that does not wait."""

    def due(sweeper: Sweeper) -> list[tuple[int, int]]:
        with sweeper._context.engine.read() as txn:
            return [layout.unpack_expiry(key)[::-1] for key, _ in rows(txn, b"E")]

    monkeypatch.setattr(Sweeper, "_due", due)
    for module in (sweep, delete, archive_delete):
        monkeypatch.setattr(module, "has_expired", lambda _head, _now_us: True)
    broken.set_ttl(0, "a")
    with pytest.raises(AssertionError, match="before its time"):
        broken.sweep(0, (), [], hours=0)


def test_history_that_is_called_lost_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fencing does not look for what both histories share, an orphan says so of entries that are history."""
    monkeypatch.setattr(judge, "_common", lambda *_: 0)
    monkeypatch.setattr(Reconciler, "_newest_shared", lambda *_: (0, False))
    with pytest.raises(AssertionError, match="calls it lost"):
        two_owners(broken)


def test_an_orphan_that_hides_a_thread_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an orphan gets a name that a thread elsewhere has, its machine shows the orphan in the thread's place."""
    monkeypatch.setattr(orphans, "orphan_name", lambda thread, epoch, _: f"{thread}@{epoch}")
    broken.save_one(1, ASIDE, "main", 10, conditional=False, archived=True, rests=False, plan=NONE)
    two_owners(broken)
    with pytest.raises(AssertionError, match="something else than what is archived"):
        broken.read(0, ASIDE, "main", NONE)


def test_an_owner_that_seems_dead_while_it_uploads_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where HEAD is written only after its objects, a busy owner loses its thread."""
    monkeypatch.setattr(Pulse, "renew", lambda *_: None)
    broken.save_one(
        0, "a", "main", 4000, conditional=False, archived=True, rests=False, plan=(Fault(HELD, 0),)
    )  # fmt: skip
    save(broken, 1)
    broken.wait(11.0)
    with pytest.raises(AssertionError, match="an owner that uploads"):
        save(broken, 1)


def test_a_forgotten_claim_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a sidecar does not ask what was begun before, a tool is called twice."""
    broken.pay(0, "a", "fare", restarted=False, finishes=False, plan=NONE)
    broken.take(1, "a", NONE)
    monkeypatch.setattr(effects, "find_effect", lambda *_: None)
    with pytest.raises(AssertionError, match="called twice"):
        broken.pay(1, "a", "fare", restarted=False, finishes=False, plan=NONE)


def test_a_head_that_moves_twice_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a sidecar does not know the request ids of moves, a retry moves the head again."""
    broken.go_back(0, "a", "main", 2, conditional=False, plan=NONE)
    save(broken, 0)
    monkeypatch.setattr(opening, "find_request", lambda *_: None)
    with pytest.raises(AssertionError, match="moved twice"):
        broken.move_again(0, 1, NONE)


def test_a_copy_with_a_deleted_branch_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where HEAD still names a branch that was deleted, a new machine has it."""
    broken.save_one(0, "a", "side", 10, conditional=False, archived=True, rests=False, plan=NONE)
    monkeypatch.setattr(ThreadDraft, "publish", keep_branches(ThreadDraft.publish))
    broken.drop_branch(0, "a", again=False, plan=NONE)
    save(broken, 0)
    with pytest.raises(AssertionError, match="other branches"):
        broken.settle()


def put(
    history: Rules, who: int, key: str = "a", *, conditional: bool = False, archived: bool = True, ttl_s: int = 0
) -> None:  # fmt: skip
    history.put_records(
        who, "a", {key}, set(), 10, conditional=conditional, archived=archived, ttl_s=ttl_s, plan=NONE
    )  # fmt: skip


def test_a_record_that_is_replaced_at_any_revision_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a put does not compare, the second of two clients overwrites what the first one wrote."""
    put(broken, 0)
    broken.revisions["a", "a"] -= 1
    monkeypatch.setattr(recordputs, "_check_revision", lambda *_: None)
    with pytest.raises(AssertionError, match="another revision than expected"):
        put(broken, 0, conditional=True)


def test_a_revision_that_comes_back_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a takeover does not raise revisions, a lost write and the successor's have the same one."""
    put(broken, 0)
    put(broken, 0, archived=False)
    broken.take(1, "a", NONE)
    monkeypatch.setattr(recordputs, "next_token", lambda draft, count: (1 << 32) + draft.head.tip_sequence + count)
    with pytest.raises(AssertionError, match="stands for two writes"):
        put(broken, 1)


def test_a_deleted_record_that_comes_back_elsewhere_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a copy does not apply deletions, it shows what its owner deleted."""
    put(broken, 0)
    broken.show_records(1, "a", {"a"}, "list", NONE)
    broken.delete_records(0, "a", "a", archived=True, plan=NONE)
    put(broken, 0, "b")
    monkeypatch.setattr(record, "_newest", lambda *_: (1 << 62, None))
    monkeypatch.setattr(recordviews, "mark_checked", lambda *_: None)
    broken.wait(11.0)
    with pytest.raises(AssertionError, match="not those of the tip"):
        broken.show_records(1, "a", {"a"}, "list", NONE)


def test_a_record_that_goes_before_its_time_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a sweep does not wait, a record with a time to live is deleted at once."""
    put(broken, 0, ttl_s=5000)
    monkeypatch.setattr(recordcleaning, "is_expired", lambda *_: True)
    monkeypatch.setattr(recordcleaning, "SECOND_US", 0)
    cleaner = recordcleaning.RecordExpirer
    monkeypatch.setattr(cleaner, "sweep", lambda it: it._expire(it._threads.cached("default", "a")))
    with pytest.raises(AssertionError, match="went before its time"):
        broken.sweep(0, (), [], hours=0)


def keep_branches(publish: Callable[[ThreadDraft], None]) -> Callable[[ThreadDraft], None]:
    """Deleted branches stay in memory."""

    def published(draft: ThreadDraft) -> None:
        draft.branches = {name: branch for name, branch in draft.branches.items() if branch is not None}
        publish(draft)

    return published


@pytest.mark.parametrize("form", ["save", "put", "begin", "signal", "blob"])
def test_a_late_write_to_the_next_thread_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """The thread was deleted and made again, and nobody compares uids."""
    for module in (admitting, store_blobs):
        monkeypatch.setattr(module, "check_uid", lambda *_: None)
    with pytest.raises(AssertionError, match="reached another thread"):
        broken.go_on_after_deletion(0, 1, "a", form, remade=True, plan=NONE, now=True)


@pytest.mark.parametrize("form", ["save", "put", "begin", "signal", "blob", "renew"])
def test_a_late_write_that_claims_a_name_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """The thread was deleted, and the archive is asked as for a new one before the write is refused. Nobody gives the
    name back."""
    own = Attacher.own

    def ask_for_any(attacher: Attacher, name: tuple[str, str], **_: bool) -> None:
        own(attacher, name)

    monkeypatch.setattr(Attacher, "own", ask_for_any)
    monkeypatch.setattr(Attacher, "unclaim", lambda *_: None)
    with pytest.raises(AssertionError, match="claimed the name"):
        broken.go_on_after_deletion(0, 1, "a", form, remade=False, plan=NONE, now=True)


def test_a_repeated_deletion_of_the_next_thread_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was lost, and nobody compares uids."""
    remove = Sidecar.delete

    def forget_the_uid(sidecar: Sidecar, request: DeleteThreadRequest) -> DeleteThreadResponse:
        request.options.expected_uid = ""
        return remove(sidecar, request)

    monkeypatch.setattr(Sidecar, "delete", forget_the_uid)
    with pytest.raises(AssertionError, match="a deletion reached another thread"):
        broken.go_on_after_deletion(0, 0, "a", "save", remade=True, plan=NONE, now=True)


def go_on_unknowing(history: Rules, has: str, elsewhere: str, what: str, seconds: float = 1.0) -> None:
    """An owner that was replaced while it was idle."""
    history.go_on_unknowing(0, "a", {has}, elsewhere, [what], seconds, NONE)


@pytest.mark.parametrize(
    ("module", "has"), [(sweep, "versions"), (recordcleaning, "records"), (blobsweep, "blob")],
    ids=["a rule", "records", "a blob"],
)  # fmt: skip
def test_a_sweep_of_what_others_have_is_found(
    broken: Rules, monkeypatch: pytest.MonkeyPatch, module: ModuleType, has: str
) -> None:
    """A sweep does not ask HEAD, and writes to a thread that another machine has."""
    monkeypatch.setattr(module, "is_still_ours", lambda *_: True)
    with pytest.raises(AssertionError, match="that another machine has"):
        go_on_unknowing(broken, has, "works", "sweep", BLOB_KEPT_S + 1.0)


def test_a_deletion_of_what_was_replaced_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion does not ask HEAD, and deletes the thread that was here instead of the one that there is."""
    monkeypatch.setattr(Remover, "_is_current", lambda *_: True)
    with pytest.raises(AssertionError, match="a deletion was answered, and the archive has the thread"):
        go_on_unknowing(broken, "versions", "makes anew and leaves", "delete")


def test_a_refusal_of_the_next_thread_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blob for the thread that there is is refused, because its last owner does not know it."""

    async def ask_nobody(*_: object, **__: object) -> None:
        return

    monkeypatch.setattr(Ownership, "hold_now", ask_nobody)
    with pytest.raises(AssertionError, match="the archive has its thread"):
        go_on_unknowing(broken, "versions", "makes anew and leaves", "blob new")


def test_a_signal_that_is_sent_twice_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a sidecar does not know the request ids of signals, a retry sends another one."""
    broken.signal(0, "a", archived=True, plan=NONE)
    broken.take(1, "a", NONE)
    monkeypatch.setattr(opening, "find_request", lambda *_: None)
    with pytest.raises(AssertionError, match="sent again"):
        broken.signal_again(1, 1, archived=False, plan=NONE)


def test_a_signal_that_comes_back_is_found(broken: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a save does not remove what it acknowledges, its agent reads the message again."""
    broken.signal(0, "a", archived=True, plan=NONE)
    monkeypatch.setattr(store_save, "drop_signals", lambda *_: {})
    broken.acknowledge(0, "a", 1, archived=True, plan=NONE)
    broken.forget(0)
    with pytest.raises(AssertionError, match="not those of the tip"):
        broken.acknowledge(0, "a", 1, archived=False, plan=NONE)
