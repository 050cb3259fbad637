"""The danger: what a program writes to a thread that was deleted meanwhile brings it back, or reaches the next one."""

from __future__ import annotations

from contextlib import nullcontext
from hashlib import sha256

import pytest

from stateward import Client, State
from stateward._io.aio import connection as aio
from stateward._io.blocking import connection as blocking
from stateward.changes import SetSlot, SpliceSlot
from stateward.effects import Effect
from stateward.errors import LeaseHeld, NotFound, ServerUnavailable, ThreadNotFound, UidMismatch, VersionMismatch
from stateward.migrations import Migrations
from stateward.records import Put


@pytest.fixture
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def handle(daemon, open_client, name):
    """A handle that has read the thread."""
    client = open_client(daemon.target, namespace=name)
    client.thread("t").append("log", "hello")
    handle = client.thread("t")
    handle.hydrate()
    return handle


@pytest.fixture
def admin(daemon, name):
    """Another process, which deletes threads."""
    with Client(daemon.target, namespace=name) as client:
        yield client


def remake(admin, remade):
    admin.thread("t").delete()
    if remade:
        admin.thread("t").append("log", "next")


def kept(admin):
    """Everything that the daemon keeps: the log of each thread, and the numbers of effects, records and signals."""
    found = {}
    for info in admin.threads():
        thread = admin.thread(info.name)
        kinds = len(list(thread.effects.list())), len(list(admin.records(info.name).list())), info.pending_signals
        found[info.name] = list(thread.hydrate().logs["log"]), kinds, list(info.labels)
    return found


WRITES = {
    "append": lambda handle, state: handle.append("log", "late"),
    "increment": lambda handle, state: handle.increment("n"),
    "set_slot": lambda handle, state: handle.set_slot("n", 1),
    "save": lambda handle, state: handle.save(state),
    "overwrite": lambda handle, state: handle.save(state, overwrite=True),
    "save with a blob": lambda handle, state: (
        state.logs["log"].append("x" * 3_000_000), handle.save(state),
    ),
    "apply": lambda handle, state: handle.apply([SetSlot("n", 1)], parent=state.checkpoint),
    "apply to any head": lambda handle, state: handle.apply([SetSlot("n", 1)]),
    "effects": lambda handle, state: handle.effects.put([Effect("late", "late")]),
    "effect": lambda handle, state: handle.effects.run("late", lambda: "late"),
    "records": lambda handle, state: handle.records.put("late", "late"),
    "delete records": lambda handle, state: handle.records.delete_prefix("late"),
    "blob": lambda handle, state: handle.blobs.write(b"late"),
    "signal": lambda handle, state: handle.signals.send("late"),
    "lease": lambda handle, state: handle.lease().__enter__(),
    "writer": lambda handle, state: handle.writer().__enter__(),
    "tag": lambda handle, state: handle.tags.set("late"),
    "settings": lambda handle, state: handle.update_options(labels={"late": "1"}),
    "finish": lambda handle, state: handle.finish(state, ttl=60),
    "branch": lambda handle, state: handle.branch("late", at=state.checkpoint).save(state),
}  # fmt: skip


@pytest.mark.parametrize("remade", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("form", WRITES)
def test_a_late_write_reaches_nothing(handle, admin, form, remade):
    """Whatever its form: UidMismatch, and the daemon keeps what it kept."""
    state = handle.hydrate()
    state.logs["log"].append("late")
    remake(admin, remade)
    before = kept(admin)
    with pytest.raises(UidMismatch):
        WRITES[form](handle, state)
    assert kept(admin) == before


@pytest.mark.parametrize("remade", [False, True], ids=["gone", "made again"])
def test_a_blob_goes_where_its_edits_go(handle, admin, remade):
    """A handle that knows only the name gets a version of the deleted thread: nothing is written, not even a blob."""
    state, data = handle.hydrate(), b"late" * 1_000_000
    remake(admin, remade)
    before = kept(admin)
    with pytest.raises(UidMismatch):
        admin.thread("t").apply([SetSlot("late", data)], parent=state.checkpoint)
    with pytest.raises((ThreadNotFound, VersionMismatch)):
        admin.thread("t").apply([SetSlot("later", data[1:])], parent=7)
    assert kept(admin) == before
    with pytest.raises(NotFound):
        admin.thread("t").blobs.read(sha256(data).digest())


def test_a_blob_begins_the_next_thread(handle, admin):
    """Edits of the empty state continue nothing, and neither does the blob of one of their values."""
    admin.thread("t").delete()
    handle.apply([SetSlot("first", "x" * 3_000_000)], parent=0)
    assert admin.thread("t").hydrate().slots["first"] == "x" * 3_000_000


INNER_READS = {
    "the next index of a log": lambda handle, state: (
        state.logs["new"].append("late"), handle.save(state),
    ),
    "what a splice changes": lambda handle, state: handle.apply(
        [SpliceSlot("text", ((1, 1, b"L"),))], parent=state.checkpoint,
    ),
    "the state of an older schema": lambda handle, state: handle.append("log", "late"),
}  # fmt: skip


@pytest.mark.parametrize("remade", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("form", INNER_READS)
def test_what_a_write_reads_turns_the_handle_to_no_other_thread(admin, daemon, name, form, remade):
    """A write that reads first is refused, and so is the next one, as nobody has looked at what is there now."""
    schemas = Migrations(2)
    schemas.step(1, 2)(lambda state: None)
    with Client(daemon.target, namespace=name) as client:
        handle = client.thread("t", migrations=schemas if "schema" in form else None)
        admin.thread("t").apply([SetSlot("text", "begin")])
        state = handle.hydrate()
        remake(admin, remade)
        with pytest.raises((UidMismatch, VersionMismatch) if remade else UidMismatch):
            INNER_READS[form](handle, state)
        with pytest.raises(UidMismatch):
            handle.append("log", "late")
    assert [entry for log, *_ in kept(admin).values() for entry in log] == ["next"] * remade


def test_the_next_read_finds_out(handle, admin):
    """The handle works on the thread that is there now; one that knows the name only never stopped."""
    remake(admin, remade=True)
    with pytest.raises(UidMismatch):
        handle.append("log", "late")
    assert list(handle.hydrate().logs["log"]) == ["next"]
    handle.append("log", "after")
    admin.thread("t").append("log", "by name")
    assert list(admin.thread("t").hydrate().logs["log"]) == ["next", "after", "by name"]
    admin.thread("t").delete()
    assert handle.hydrate().version == 0
    handle.append("log", "first")
    assert list(admin.thread("t").hydrate().logs["log"]) == ["first"]


def test_a_read_of_a_thread_without_versions(handle, admin):
    """An effect made the next thread of the name: the handle works on that one after it has looked."""
    admin.thread("t").delete()
    admin.thread("t").effects.put([Effect("next", "next")])
    with pytest.raises(UidMismatch):
        handle.append("log", "late")
    assert handle.hydrate().version == 0
    assert handle.effects.run("own", lambda: "paid") == "paid"
    handle.append("log", "first")
    assert list(admin.thread("t").hydrate().logs["log"]) == ["first"]


def test_its_own_deletion_leaves_a_handle_free(handle, admin):
    """Who deletes a thread may make the next one."""
    assert handle.delete()
    handle.append("log", "anew")
    assert list(admin.thread("t").hydrate().logs["log"]) == ["anew"]


def test_a_claim_ends_with_its_thread(handle, admin):
    """The tool was called, and its result is recorded nowhere."""

    def tool():
        remake(admin, remade=False)
        with admin.thread("t").lease():
            pass
        return "late"

    with pytest.raises(UidMismatch):
        handle.effects.run("pay", tool)
    assert list(admin.thread("t").effects.list()) == []


def test_a_lease_ends_with_its_thread(handle, admin):
    """The next thread gives out the same token, and the late holder neither renews nor returns it, nor saves."""
    admin.thread("t").delete()
    handle.hydrate()
    with handle.lease() as lease:
        admin.thread("t").delete()
        with admin.thread("t").lease() as next_lease:
            assert (lease.token, lease.uid != next_lease.uid) == (next_lease.token, True)
            with pytest.raises(LeaseHeld):
                lease.check()
            with pytest.raises(UidMismatch):
                handle.append("log", "late")
            with pytest.raises(UidMismatch):
                handle.save(State())
            with pytest.raises(UidMismatch):
                admin.thread("board").append("log", "late", guard=lease)
            assert not lease.release()
            next_lease.check()


def test_a_writer_ends_with_its_thread(handle, admin):
    """Its frames reach nothing, and it opens no other thread when its stream broke."""
    with handle.writer() as writer:
        state = handle.hydrate()
        state.logs["log"].append("in time")
        writer.save(state)
        remake(admin, remade=True)
        state.logs["log"].append("late")
        with pytest.raises(UidMismatch):
            writer.save(state)
        assert kept(admin) == {"t": (["next"], (0, 0, 0), [])}


def test_a_projection_is_kept_in_the_thread_that_it_is_of(handle, admin):
    """Deleted while it is folded: nothing is kept, neither in no thread nor in the next one."""

    def count(total, entry):
        remake(admin, remade=True)
        return total + 1

    assert handle.log("log").replay(count, 0, projection="count") == 1
    assert admin.thread("t").info().branches[0].name == "main"
    assert len(admin.thread("t").info().branches) == 1


# -- deletions that are repeated ---------------------------------------------------------------------------------------


@pytest.fixture
def lossy(monkeypatch, admin):
    """The first deletion is done, and its answer is lost; meanwhile others save."""
    lost = []

    def lose(method):
        if method == "DeleteThread" and not lost:
            lost.append(method)
            admin.thread("t").append("log", "next")
            raise ServerUnavailable("the connection broke", code="UNAVAILABLE")

    call, acall = blocking.Connection.call, aio.Connection.call

    def lossy_call(self, method, request, deadline_s):
        answer = call(self, method, request, deadline_s)
        lose(method)
        return answer

    async def lossy_acall(self, method, request, deadline_s):
        answer = await acall(self, method, request, deadline_s)
        lose(method)
        return answer

    monkeypatch.setattr(blocking.Connection, "call", lossy_call)
    monkeypatch.setattr(aio.Connection, "call", lossy_acall)
    return lost


@pytest.mark.parametrize("options", [{"missing_ok": True}, {}, {"local_only": True}])
def test_a_repeated_deletion_leaves_the_next_thread(handle, admin, lossy, options):
    """It names the creation that was there when the call began."""
    assert handle.delete(**options)
    assert lossy
    assert list(admin.thread("t").hydrate().logs["log"]) == ["next"]


def test_a_thread_that_is_missing(handle, admin):
    """False with missing_ok, else ThreadNotFound, or UidMismatch for another creation than the checkpoint's."""
    checkpoint = handle.checkpoints.get()
    remake(admin, remade=True)
    assert handle.delete(missing_ok=True, expected_version=checkpoint) is False
    with pytest.raises(UidMismatch):
        handle.delete(expected_version=checkpoint)
    assert handle.delete()
    assert handle.delete(missing_ok=True) is False
    with pytest.raises(ThreadNotFound):
        handle.delete()


@pytest.mark.parametrize("missing_ok", [True, False])
def test_a_thread_that_is_missing_is_deleted_all_the_same(handle, admin, monkeypatch, missing_ok):
    """An earlier deletion may have failed half-way: the daemon is asked to finish it, and to delete no other thread."""
    uid, asked = handle.info().uid, []
    admin.thread("t").delete()
    call, acall = blocking.Connection.call, aio.Connection.call

    def note(method, request):
        if method == "DeleteThread":
            asked.append((request.options.expected_uid, request.allow_missing))

    def noting_call(self, method, request, deadline_s):
        note(method, request)
        return call(self, method, request, deadline_s)

    async def noting_acall(self, method, request, deadline_s):
        note(method, request)
        return await acall(self, method, request, deadline_s)

    monkeypatch.setattr(blocking.Connection, "call", noting_call)
    monkeypatch.setattr(aio.Connection, "call", noting_acall)
    for known in ("", uid):
        with nullcontext() if missing_ok else pytest.raises(UidMismatch if known else ThreadNotFound):
            assert handle.delete(missing_ok, expected_uid=known) is False
            assert missing_ok
    assert asked[-1] == (uid, True)
    assert len(asked) == 2
    assert handle.delete(missing_ok=True, local_only=True) is False
    assert len(asked) == 2


def test_a_deletion_of_the_thread_that_was_looked_at(handle, admin):
    """With its uid the call leaves the next thread of the name, whatever else it is told."""
    uid = handle.info().uid
    remake(admin, remade=True)
    with pytest.raises(UidMismatch):
        handle.delete(expected_uid=uid)
    assert handle.delete(missing_ok=True, expected_uid=uid) is False
    assert handle.delete(missing_ok=True, expected_uid=uid, expected_version=1) is False
    assert list(admin.thread("t").hydrate().logs["log"]) == ["next"]
    assert handle.delete(expected_uid=handle.info().uid)
    assert list(admin.threads()) == []


# -- digests -----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_history(daemon, open_client, name):
    """The number is the same and the digest is not: every method that takes a checkpoint refuses it."""
    client = open_client(daemon.target, namespace=name)
    client.thread("t").append("log", "one")
    old = client.thread("t").append("log", "two")
    client.thread("t").delete()
    client.thread("t").append("log", "one")
    client.thread("t").append("log", "other")
    calls = (
        lambda thread: thread.hydrate(old), lambda thread: thread.checkpoints.get(old),
        lambda thread: thread.diff(0, old), lambda thread: thread.diff(old), lambda thread: thread.fork("copy", old),
        lambda thread: thread.tags.set("best", old),
        lambda thread: thread.branch("b", at=old).hydrate(), lambda thread: list(thread.history(at=old)),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(VersionMismatch):
            call(client.thread("t"))
    writes = (
        lambda thread: thread.apply([SetSlot("n", 1)], parent=old),
        lambda thread: thread.branches.move("main", old, expected_version=old),
        lambda thread: thread.prune(keep_latest_per_branch=1, expected_version=old),
        lambda thread: thread.delete(expected_version=old),
    )
    for call in writes:
        with pytest.raises(UidMismatch):  # a checkpoint names its creation, too
            call(client.thread("t"))
    assert list(client.thread("t").hydrate().logs["log"]) == ["one", "other"]


def test_a_follower_does_not_go_on_in_the_next_thread(handle, admin):
    """Its index means nothing there."""
    follower = iter(handle.log("log").follow())
    assert next(follower).value == "hello"
    remake(admin, remade=True)
    admin.thread("t").append("log", "more")
    with pytest.raises(UidMismatch):
        next(follower)


def test_entries_of_two_threads_are_never_folded_together(handle, admin):
    """The thread is deleted and made again between two pages: for a moment there was none."""
    admin.thread("t").append("log", *range(1500))

    def fold(values, value):
        if value == 7:
            remake(admin, remade=True)
            admin.thread("t").append("log", *["x"] * 3000)
        return [*values, value]

    assert handle.log("log").replay(fold, []) == []


def test_pages_of_two_threads_are_never_one_list(handle, admin):
    """The second page is of the thread of the first, or there is none."""
    admin.thread("t").append("log", *range(1500))
    pages = iter(handle.log("log").read())
    assert next(pages).value == "hello"
    admin.thread("t").delete()
    for _ in range(3):
        admin.thread("t").append("log", *["x"] * 1000)
    with pytest.raises(UidMismatch):
        list(pages)


def test_a_deletion_of_many_records_ends_with_their_thread(handle, admin, monkeypatch):
    """A thousand go with each call. The next thread of the name keeps its records, whichever call comes late."""
    records = admin.records("many")
    for begin in (0, 1000):
        records.write([Put(f"a/{number}", number) for number in range(begin, begin + 1000)])
    call = blocking.Connection.call

    def deleting(connection, method, *arguments):
        answer = call(connection, method, *arguments)
        if method == "DeleteRecords":
            monkeypatch.setattr(blocking.Connection, "call", call)
            admin.thread("many").delete()
            records.put("a/next", 1)
        return answer

    monkeypatch.setattr(blocking.Connection, "call", deleting)
    with pytest.raises(UidMismatch):
        admin.records("many").delete_prefix("a/")
    assert [record.key for record in records.list()] == ["a/next"]
