"""The danger: two machines that both write a thread, or none that can."""

import threading
import time
from datetime import timedelta

import pytest

from stateward import State
from stateward._operations.ownership import attach, with_take_over
from stateward._operations.steps import Call, Pause, ThreadRef, with_retries
from stateward.errors import ArchiveUnavailable, Fenced, NoArchive, NotOwner, ThreadNotFound, VersionMismatch
from stateward.models import Access, Durability
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import thread_service_pb2 as threads


@pytest.fixture
def both(pair, open_client, name):
    """The same thread through the first and the second sidecar; the first one has saved and archived version 1."""
    clients = (open_client(each.target, retry_timeout=0) for each in (pair.first, pair.second))
    first, second = (client.thread(name) for client in clients)
    first.append("l", "from first", durability="archived")
    return first, second


def entries(thread):
    return list(thread.hydrate().logs["l"])


def write_late(thread):
    """A write that is answered, since COMMITTED is a promise of this disk, and cannot be archived."""
    thread.archive.wait(thread.append("l", "too late"))


def test_held_by_another(both):
    """A thread that another sidecar writes can be read, and says so; a write is refused at once, and nothing is."""
    first, second = both
    state = second.hydrate()
    assert (list(state.logs["l"]), state.owner_id) == (["from first"], "first")
    state.logs["l"].append("from second")
    begun = time.monotonic()
    with pytest.raises(NotOwner) as caught:
        second.save(state)
    assert time.monotonic() - begun < 5
    assert (caught.value.owner_id, caught.value.epoch) == ("first", first.info().owner_epoch)
    assert caught.value.free_in is None or caught.value.free_in >= timedelta(0)
    assert (state.version, entries(first)) == (1, ["from first"])
    assert second.info().access is Access.REMOTE


def test_given_up(both):
    """What one sidecar gave up the other one writes without asking, and the first one reads that."""
    first, second = both
    first.append("l", "still first")
    given = first.archive.detach()
    assert (given.access, given.archived_sequence) == (Access.REMOTE, 2)
    state = second.hydrate()
    second.save(state)
    assert state.owner_id == ""
    second.append("l", "from second", durability="archived")
    assert second.info().access is Access.OWNED
    state = first.hydrate()
    assert (list(state.logs["l"]), state.owner_id) == (["from first", "still first", "from second"], "second")


def test_taken_over(both, pair, open_client):
    """A take-over fences the old owner, and what only its disk had is kept as an orphan that can be read and forked."""
    first, second = both
    assert second.archive.attach(take_over=True).access is Access.OWNED
    second.append("l", "from second", durability="archived")
    with pytest.raises(Fenced) as caught:
        write_late(first)
    error = caught.value
    assert (error.owner_id, error.common_sequence) == ("second", 1)
    orphan = open_client(pair.first.target).thread(error.orphan)
    assert entries(orphan) == ["from first", "too late"]
    info = orphan.info()
    assert (info.access, info.orphan.thread, info.orphan.common_sequence) == (Access.ORPHAN, first.name, 1)
    assert entries(orphan.fork(f"{first.name}-kept")) == ["from first", "too late"]
    assert entries(first) == entries(second) == ["from first", "from second"]


def test_supervisors_take_over(both, pair, open_client):
    """A client that may take over does so for each kind of write, and only there."""
    first, second = both
    supervisor = open_client(pair.second.target, take_over=True).thread(second.name)
    assert supervisor.info().access is Access.REMOTE  # reading takes nothing
    state = supervisor.hydrate()
    state.logs["l"].append("from second")
    assert supervisor.save(state).version == 2
    assert supervisor.info().access is Access.OWNED
    other = first.fork(f"{first.name}-other")
    other.append("l", "more", durability="archived")
    held = open_client(pair.second.target, take_over=True).thread(other.name)
    assert held.tags.set("good", 2).version == 2
    assert held.info().access is Access.OWNED
    with pytest.raises(Fenced):  # a sidecar that was fenced does not take back by itself: it would do so for ever
        open_client(pair.first.target, take_over=True).thread(first.name).append("l", 1, durability="archived")


def test_supervisors_take_over_batches(both, pair, open_client):
    """Of a batch only the threads that somebody else holds are taken over."""
    supervisor = open_client(pair.second.target, take_over=True)
    own, held = supervisor.thread(f"{both[1].name}-own"), supervisor.thread(both[1].name)
    own.append("l", 1, durability="archived")
    epoch = own.info().owner_epoch
    states = [each.hydrate() for each in (own, held)]
    for state in states:
        state.logs["l"].append("batch")
    supervisor.save_all([own.prepare(states[0]), held.prepare(states[1])])
    assert entries(own) == [1, "batch"]
    assert entries(held) == ["from first", "batch"]
    assert (own.info().owner_epoch, held.info().access) == (epoch, Access.OWNED)


def test_branches_of_one_batch_are_archived(both, pair, open_client):
    """Each save of a batch reaches its level, and another machine goes on from every branch."""
    first, second = (open_client(each.target, take_over=True) for each in (pair.first, pair.second))
    name, names = f"{both[1].name}-batched", ("main", "left", "right")
    branches = [first.thread(name).branch(each) for each in names]
    states = [State() for _ in names]
    for number, state in enumerate(states):
        state.logs["l"].append(number)
    saves = [each.prepare(state, durability="archived") for each, state in zip(branches, states, strict=True)]
    assert [each.durability for each in first.save_all(saves)] == [Durability.ARCHIVED] * 3
    theirs = [second.thread(name).branch(each) for each in names]
    for each in theirs:
        each.append("l", "second")
    assert [entries(each) for each in theirs] == [[0, "second"], [1, "second"], [2, "second"]]


def test_a_fork_from_history_of_another_machine(both, pair, open_client):
    """Who takes a thread over may fork from a version that only the archive has; so does every other machine."""
    name = f"{both[1].name}-forked"
    first, second = (open_client(each.target, take_over=True).thread(name) for each in (pair.first, pair.second))
    first.append("l", 1)
    old = first.hydrate()
    first.append("l", 2, durability="archived")
    old.logs["l"].append("ours")
    second.append("l", 3)
    made = second.save(old, on_mismatch="fork", durability="archived")
    assert (made.parent_version, made.branch) == (1, "main-fork-4")
    assert entries(second.branch(made.branch)) == [1, "ours"]
    first.archive.attach(take_over=True)
    assert entries(first.branch(made.branch)) == [1, "ours"]


def test_a_guard_that_another_machine_holds(both, pair, open_client):
    """A lease that was given out by another sidecar cannot be checked here: NotOwner, and nothing is saved."""
    holder, saver = (open_client(each.target, retry_timeout=0) for each in (pair.first, pair.second))
    lock = holder.thread(f"{both[1].name}-lock")
    lock.append("l", 1, durability="archived")
    thread = saver.thread(f"{both[1].name}-guarded")
    with lock.lease() as lease:
        state = State()
        state.logs["l"].append(1)
        with pytest.raises(NotOwner):
            thread.save(state, guard=lease)
        with pytest.raises(ThreadNotFound):
            thread.hydrate(must_exist=True)
        holder.thread(f"{both[1].name}-theirs").save(state, guard=lease)


def test_a_dead_machine(own_pair, open_client):
    """Who waits gets the thread of a dead machine when its lease time has passed, and not before."""
    first, second = (open_client(each.target).thread("t") for each in (own_pair.first, own_pair.second))
    first.append("l", 1, durability="archived")
    own_pair.first.kill()
    with pytest.raises(NotOwner):
        second.archive.attach()
    assert second.archive.attach(wait=30).access is Access.OWNED
    second.append("l", 2)
    assert entries(second) == [1, 2]


def test_read_only(both):
    """To attach for reading takes nothing from who writes."""
    first, second = both
    assert second.archive.attach(read_only=True).access is Access.REMOTE
    first.append("l", "still first", durability="archived")
    assert entries(second) == ["from first", "still first"]


def test_unknown_is_not_new(impatient_pair, open_client):
    """While the bucket does not answer no thread is called new; when it comes back the call goes on by itself."""
    open_client(impatient_pair.first.target).thread("t").append("l", 1, durability="archived")
    patient, hasty = (open_client(impatient_pair.second.target, retry_timeout=limit_s) for limit_s in (30, 0))
    impatient_pair.go_away()
    with pytest.raises(ArchiveUnavailable):
        hasty.thread("t").hydrate()
    timer = threading.Timer(1, impatient_pair.come_back)
    timer.start()
    assert entries(patient.thread("t")) == [1]
    timer.join()


def test_deleted_here_only(both):
    """What is deleted on one disk only comes back from the archive; what is deleted is gone on every machine."""
    first, second = both
    assert first.delete(local_only=True)
    assert entries(first) == ["from first"]
    first.delete()
    for thread in both:
        with pytest.raises(ThreadNotFound):
            thread.hydrate(must_exist=True)
    assert not second.delete(missing_ok=True)


def test_deleted_here_while_the_archive_is_away(impatient_pair, open_client):
    """To remove only what is here no archive needs to answer."""
    client = open_client(impatient_pair.first.target, connect_timeout=1, retry_timeout=0)
    client.thread("t").append("l", 1, durability="archived")
    impatient_pair.go_away()
    with pytest.raises(ArchiveUnavailable):
        client.thread("t").delete()
    assert client.thread("t").delete(local_only=True)
    assert list(client.threads()) == []


def test_without_an_archive(real_daemon, open_client):
    """Without an archive nobody else can hold a thread, and to attach says so."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    client = open_client(real_daemon.target)
    client.thread("alone").append("l", 1)
    alone = client.thread("alone").archive
    for attempt in (alone.attach, alone.detach, lambda: alone.wait(1), client.archive.status):
        with pytest.raises(NoArchive):
            attempt()
    info = client.thread("alone").info()
    assert (info.access, info.owner_id, info.orphan, info.unarchived_entries) == (None, "", None, 0)


SAVE = Call("Save", checkpoints.SaveRequest(namespace="n", thread="t"))
BATCH = Call("BatchSave", checkpoints.BatchSaveRequest(saves=[SAVE.request, {"namespace": "n", "thread": "u"}]))


def one(call):
    return (yield call)


def test_taken_over_once():
    """A thread that is taken and lost again belongs to somebody alive: the second refusal is the answer."""
    steps = with_take_over(one(SAVE))
    assert next(steps) is SAVE
    taking = steps.throw(NotOwner("held"))
    assert (taking.method, taking.request.thread) == ("Attach", "t")
    assert taking.request.mode == threads.ATTACH_MODE_TAKE_OVER
    assert steps.send(threads.AttachResponse()) is SAVE
    with pytest.raises(NotOwner, match="again"):
        steps.throw(NotOwner("held again"))


def test_every_thread_of_a_batch_is_taken_over_once():
    """The error of a batch names the item; each of its threads may be taken, none twice."""
    steps = with_take_over(one(BATCH))
    assert next(steps) is BATCH
    for item, thread in enumerate(["t", "u"]):
        assert steps.throw(NotOwner("held", metadata={"item": f"saves[{item}]"})).request.thread == thread
        assert steps.send(threads.AttachResponse()) is BATCH
    with pytest.raises(NotOwner):
        steps.throw(NotOwner("held", metadata={"item": "saves[0]"}))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (SAVE, Fenced("taken")),
        (SAVE, VersionMismatch("moved")),
        (BATCH, NotOwner("which one is not said")),
        (Call("Hydrate", checkpoints.HydrateRequest(thread="t")), NotOwner("held")),
        (Call("Attach", threads.AttachRequest(thread="t")), NotOwner("held")),
        (Call("DeleteThread", threads.DeleteThreadRequest(thread="t", local_only=True)), NotOwner("held")),
    ],
)
def test_nothing_else_takes_over(call, error):
    """Only a write that is refused because another sidecar holds its thread takes anything from anybody."""
    steps = with_take_over(one(call))
    next(steps)
    with pytest.raises(type(error)) as caught:
        steps.throw(error)
    assert caught.value is error


def test_what_is_tried_again():
    """A bucket that does not answer is asked again; a copy that nobody can say more of is not, nor a fenced write."""
    steps = with_retries(one(SAVE), lambda: 60.0)
    assert next(steps) is SAVE
    assert isinstance(steps.throw(ArchiveUnavailable("away")), Pause)
    assert steps.send(None) is SAVE
    for error in (NotOwner("held"), Fenced("taken")):
        steps = with_retries(one(SAVE), lambda: 60.0)
        next(steps)
        with pytest.raises(type(error)):
            steps.throw(error)


def test_a_wait_ends_in_time():
    """What may take only so long is not tried again for longer than that."""
    steps = with_retries(one(Call("WaitDurable", SAVE.request, deadline_s=0.0)), lambda: 60.0)
    next(steps)
    with pytest.raises(ArchiveUnavailable):
        steps.throw(ArchiveUnavailable("away"))


def test_one_way_to_attach():
    """Ways to attach that contradict each other are a mistake of the program."""
    with pytest.raises(TypeError, match="only one"):
        next(attach(ThreadRef("n", "t", "main"), take_over=True, read_only=False, wait_s=1))


def test_facts_that_are_missing():
    """An error without facts, or with strange ones, is still the error."""
    bare, strange = NotOwner("held"), NotOwner("held", metadata={"epoch": "x", "free_in_s": "soon"})
    assert (bare.owner_id, bare.epoch, bare.free_in) == ("", None, None)
    assert (strange.epoch, strange.free_in, NotOwner("", metadata={"free_in_s": "1.5"}).free_in) == (
        None,
        None,
        timedelta(seconds=1.5),
    )
    assert (Fenced("taken").orphan, Fenced("taken").common_sequence) == ("", None)
