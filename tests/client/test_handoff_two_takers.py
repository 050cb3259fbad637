"""The danger: work that is handed over is done by two agents, or by none."""

import threading

import pytest

from stateward import Durability, Effect, HandoffTaken, NoHandoff, NotArchivedYet, Status, ThreadNotFound
from stateward.errors import LeaseHeld, NoArchive, NotOwner
from stateward.migrations import Migrations

TAKERS = 20


@pytest.fixture
def target(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon.target


@pytest.fixture
def start(target, open_client, name):
    """A client of an agent, in the namespace of the test."""
    return lambda holder=None: open_client(target, namespace=name, holder=holder)


@pytest.fixture
def thread(start):
    """The thread of the agent that hands over."""
    return start("writer").thread("report")


def test_handed_over(thread, start):
    """All that the next agent must know travels with the state, and the state goes on from there."""
    state = thread.hydrate()
    state.slots["draft"] = "two pages"
    made = thread.hand_over(
        "editor",
        "written",
        pending_steps=["check", "print"],
        dependencies=["paper"],
        data={"n": 1},
        state=state,
        step=4,
    )
    info = thread.info()
    assert (info.status, info.wait_id, info.step, made.sender) == (Status.WAITING, made.id, 4, "writer")
    editor = start("editor-1")
    assert list(editor.handoffs("editor")) == list(editor.handoffs()) == [made]
    assert list(editor.handoffs("printer")) == []
    mine = editor.take_handoff("report")
    taken = mine.handoff
    assert (taken.summary, taken.pending_steps, taken.dependencies, taken.data) == (
        "written", ("check", "print"), ("paper",), {"n": 1},
    )  # fmt: skip
    assert (taken.id, taken.thread, taken.taken_by, taken.time) == (made.id, "report", "editor-1", made.time)
    assert taken.taken_time >= taken.time
    after = mine.hydrate()
    assert (after.slots["draft"], after.checkpoint.status, after.checkpoint.step) == ("two pages", Status.RUNNING, 4)
    assert list(editor.handoffs()) == []


def test_handed_over_without_the_state(thread, start):
    """An agent that holds no state hands over what is there; one that holds an old state is refused."""
    old = thread.hydrate()
    thread.append("l", 1)
    with pytest.raises(Exception, match="saved in between"):
        thread.hand_over("editor", "old", state=old)
    assert list(start().handoffs()) == []
    made = thread.hand_over("editor", "as it is")
    assert start().take_handoff("report").handoff.id == made.id
    assert list(thread.hydrate().logs["l"]) == [1]


@pytest.mark.parametrize("what", [{"thread": "report"}, {"to": "editor"}])
def test_one_of_many(thread, real_daemon, name, what):
    """Of many takers at the same moment exactly one gets it, by whatever name they look for it."""
    made = thread.hand_over("editor", "for one of you")
    ready, won, lost = threading.Barrier(TAKERS), [], []

    def take(number):
        with real_daemon.client(namespace=name) as client:
            ready.wait()
            try:
                taken = client.take_handoff(**what)
                won.append(taken and taken.handoff)
            except HandoffTaken as error:
                lost.append(error.taken_by)

    takers = [threading.Thread(target=take, args=(number,)) for number in range(TAKERS)]
    for each in takers:
        each.start()
    for each in takers:
        each.join()
    winners = [each for each in won if each is not None]
    assert [each.id for each in winners] == [made.id]
    assert len(won) + len(lost) == TAKERS
    assert set(lost) <= {winners[0].taken_by}
    assert thread.info().version == 2


def test_taken_again_by_the_same(thread, start):
    """Who took it and died before it did anything gets it again under its name; nobody else does."""
    thread.hand_over("editor", "for you")
    first = start("editor-1").take_handoff(to="editor").handoff
    for take in ({"thread": "report"}, {"to": "editor"}):
        assert start("editor-1").take_handoff(**take).handoff == first
    assert start().take_handoff("report", taker="editor-1").handoff == first
    for holder in ("editor-2", None):
        with pytest.raises(HandoffTaken) as caught:
            start(holder).take_handoff("report")
        assert caught.value.taken_by == "editor-1"
        assert start(holder).take_handoff(to="editor") is None
    thread.save(thread.hydrate())
    assert start("editor-1").take_handoff("report").handoff == first
    assert start("editor-1").take_handoff(to="editor") is None


def test_the_oldest_first(start):
    """Work for one kind of agent is taken in the order in which it was handed over, and by that kind only."""
    client = start()
    for each in "abc":
        client.thread(each).hand_over("editor", each)
    client.thread("d").hand_over("printer:2", "d")
    assert {each.thread for each in client.handoffs("editor")} == {"a", "b", "c"}
    assert [client.take_handoff(to="editor").name for _ in range(3)] == ["a", "b", "c"]
    assert client.take_handoff(to="editor") is None
    assert client.take_handoff(to="printer:2").name == "d"


def test_not_handed_over(thread, start):
    """A thread that nobody handed over, or whose agent went on with it, is not taken."""
    taker = start()
    with pytest.raises(ThreadNotFound):
        taker.take_handoff("report")
    thread.save(thread.hydrate(), status="waiting", wait_id="something else")
    with pytest.raises(NoHandoff):
        taker.take_handoff("report")
    thread.hand_over("editor", "or not")
    thread.save(thread.hydrate())
    with pytest.raises(NoHandoff, match="has continued it"):
        taker.take_handoff("report")
    assert taker.take_handoff(to="editor") is None
    thread.update(lambda state: state.slots.__setitem__("handoff", "a slot of somebody's own"))
    with pytest.raises(NoHandoff):
        taker.take_handoff("report")


def test_added_to_meanwhile(thread, start):
    """What somebody else appends says nothing about the work: it is still to be taken, and travels along."""
    made = thread.hand_over("editor", "with notes", step=3)
    start("colleague").thread("report").append("notes", "mind the date")
    assert [each.id for each in start().handoffs("editor")] == [made.id]
    assert start("editor-1").take_handoff(to="editor").handoff.id == made.id
    assert list(thread.hydrate().logs["notes"]) == ["mind the date"]


def test_handed_on(thread, start):
    """Who took it may hand it on, and so it goes through many hands."""
    for number in range(3):
        thread.hand_over(f"agent-{number}", f"round {number}")
        assert start(f"agent-{number}").take_handoff(to=f"agent-{number}").handoff.summary == f"round {number}"
    assert thread.info().version == 6


def test_the_lease_is_given_back(thread, start):
    """Who hands over under a lease gives it back with the work, and not only when its term ends."""
    with thread.lease(term=3600):
        thread.hand_over("editor", "under a lease")
        assert start().take_handoff("report", wait=0).handoff.summary == "under a lease"


def test_a_lease_in_the_way(thread, start, real_daemon, name):
    """While somebody else holds the lease of the thread the taker waits for its end, and in the end says so."""
    thread.hand_over("editor", "later")
    taker = start()
    with real_daemon.client(namespace=name) as client, client.thread("report").lease() as lease:
        with pytest.raises(LeaseHeld):
            taker.take_handoff("report", wait=0)
        threading.Timer(0.1, lease.release).start()
        assert taker.take_handoff("report").handoff.summary == "later"


def test_who_did_not_wait_is_told_how_to(thread, start):
    """The error of a lease or a writer that is held names `wait`, unless it was given."""
    with thread.lease():
        for take in (start().thread("report").lease, start().thread("report").writer):
            with pytest.raises(LeaseHeld, match="wait= says"), take():
                pass
            with pytest.raises(LeaseHeld) as caught, take(wait=0.1):
                pass
            assert "wait=" not in str(caught.value)


def test_one_that_is_held_does_not_block_others(thread, start, real_daemon, name):
    """A thread whose lease somebody died with is passed over; alone it is waited for, and in the end said."""
    thread.hand_over("editor", "stuck")
    taker = start("editor-1")
    with real_daemon.client(namespace=name) as client, client.thread("report").lease() as lease:
        start().thread("other").hand_over("editor", "free")
        assert taker.take_handoff(to="editor", wait=0).handoff.summary == "free"
        assert taker.take_handoff(to="editor").handoff.summary == "free"  # it was not begun
        taker.thread("other").update(lambda state: None)
        with pytest.raises(LeaseHeld):
            taker.take_handoff(to="editor", wait=0.1)
        threading.Timer(0.1, lease.release).start()
        assert taker.take_handoff(to="editor").handoff.summary == "stuck"


# -- on two machines ---------------------------------------------------------------------------------------------------


def test_a_taken_thread_of_an_older_schema(thread, target, open_client, name):
    """The thread that a client takes has the client's migrations, as every other thread of it."""
    migrations = Migrations(current=2)
    migrations.step(1, 2)(lambda state: state.slots.update(new=True))
    thread.save(thread.hydrate(), schema_version=1)
    thread.hand_over("booker", "it is yours")
    taken = open_client(target, namespace=name, holder="booker", migrations=migrations).take_handoff("report")
    state = taken.hydrate()
    assert (state.slots["new"], state.schema_version) == (True, 2)


@pytest.fixture
def machines(pair, open_client, name):
    """Clients on the two machines, in the namespace of the test."""
    return [open_client(each.target, namespace=name) for each in (pair.first, pair.second)]


def test_taken_for_all_machines(pair, machines):
    """Where there is an archive the other machine knows of it before the taker does, unless that is not wanted."""
    first, second = machines
    first.thread("report").hand_over("editor", "here", durability="archived")
    assert second.take_handoff("report", taker="bob").handoff.summary == "here"
    state = first.thread("report").hydrate()
    assert state.slots["handoff"]["taken_by"] == "bob"
    with pytest.raises(HandoffTaken):
        first.take_handoff("report", taker="carol")
    second.thread("quick").hand_over("editor", "here", durability="archived")
    second.thread("quick").archive.attach()  # a thread that waits is nobody's
    with pair.slow():  # else it may be archived before the test looks
        taken = second.take_handoff("quick", taker="bob", durability="committed").handoff
        assert second.thread("quick").checkpoints.get().durability is Durability.COMMITTED
    assert second.take_handoff("quick", taker="bob").handoff == taken  # by who cannot know that it was archived
    assert second.thread("quick").checkpoints.get().durability is Durability.ARCHIVED


def test_given_back_where_it_cannot_be_archived(pair, open_client, name):
    """A taker that cannot make it known in time has not got it: somebody else may, and it may itself later."""
    client = open_client(pair.first.target, namespace=name)
    made = client.thread("report").hand_over("editor", "here")
    client.thread("report").archive.wait(client.thread("report").checkpoints.get(), timeout=60)
    client.thread("report").archive.attach()
    client = open_client(pair.first.target, namespace=name, call_timeout=4)
    with pair.slow(), pytest.raises(NotArchivedYet) as caught:
        client.take_handoff("report")
    assert "taken again" in caught.value.__notes__[0]
    assert [each.id for each in client.handoffs("editor")] == [made.id]
    assert client.take_handoff(to="editor", taker="bob", durability="committed").handoff.id == made.id


def test_handed_over_under_a_lease_to_another_machine(machines):
    """When the handoff returns the other machine can take it: also the lease that was given back is archived."""
    first, second = machines
    thread = first.thread("report")
    with thread.lease():
        state = thread.hydrate()
        thread.hand_over("editor", "here", state=state, durability="archived")
        assert second.take_handoff("report", wait=0).handoff.summary == "here"


@pytest.mark.parametrize("kind", ["lease", "writer"])
def test_handed_over_at_the_end_of_a_lease(machines, kind):
    """What was given back with the handoff is not taken again to be given back, nor to be asked for."""
    first, second = machines
    thread = first.thread("report")
    with getattr(thread, kind)() as held:
        thread.hand_over("editor", "here", durability="archived")
        if kind == "lease":
            with pytest.raises(LeaseHeld):
                held.check()
    assert second.take_handoff("report", wait=0).handoff.summary == "here"


def test_still_on_the_other_machine(machines):
    """A thread that its sender's machine has not given up yet is waited for."""
    first, second = machines
    for number in range(20):  # until somebody asks in time: the machine gives it up soon
        thread = first.thread(f"report-{number}")
        state = thread.hydrate()
        thread.save(state, durability="archived")
        thread.hand_over("editor", "here", state=state, durability="archived")
        thread.effects.put([Effect("held", 1)])  # holds it again, until that is archived
        try:
            second.take_handoff(thread.name, wait=0)
        except NotOwner:
            break
    else:
        raise AssertionError("nobody was told that it is held")
    assert second.take_handoff(thread.name).handoff.summary == "here"


def test_without_an_archive(thread, start):
    """Who wants it archived where nothing is archived is told so, and has not taken it."""
    made = thread.hand_over("editor", "here")
    with pytest.raises(NoArchive):
        start().take_handoff("report", durability="archived")
    assert [each.id for each in start().handoffs()] == [made.id]


def test_misuse(thread, start):
    """What a handoff says itself cannot be given, and a branch that no list shows is not handed over."""
    with pytest.raises(TypeError, match="status"):
        thread.hand_over("editor", "x", status="running")
    with pytest.raises(ValueError, match="main"):
        thread.branch("other").hand_over("editor", "x")
    for what in ("pending_steps", "dependencies"):
        with pytest.raises(TypeError, match=what):
            thread.hand_over("editor", "x", **{what: "abc"})
    for wrong in ({}, {"thread": "x", "to": "y"}):
        with pytest.raises(TypeError, match="to="):
            start().take_handoff(**wrong)
