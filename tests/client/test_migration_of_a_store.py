"""The danger: a migration of a whole store that misses a thread, or loses what an agent saves meanwhile."""

import pytest

from stateward import Migrations, State, VersionMismatch
from stateward._operations.threads import read_threads
from stateward.errors import NotOwner, ServerUnavailable


def chain(current, **options):
    """1 → 2 → 3: the first changes the state, the second returns another one."""
    migrations = Migrations(current, **options)

    @migrations.step("1", "2")
    def name_the_parts(state):
        state.logs["parts"] = [{"text": part} for part in state.logs["parts"]]

    @migrations.step(2, 3)
    def make_the_customer_an_object(state):
        made = State()
        made.slots["customer"] = {"name": state.slots["customer"]}
        made.logs["parts"].extend(state.logs["parts"])
        return made

    return migrations


def save_first(client, name, schema=1, parts=()):
    thread = client.thread(name, migrations=False)
    state = thread.hydrate()
    state.slots["customer"] = "Ann"
    state.logs["parts"].extend(parts)
    thread.save(state, schema_version=schema)
    return thread


@pytest.fixture(scope="module")
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def client(daemon, open_client, name):
    return open_client(daemon.target, namespace=name)


def run(migrations, client, **options):
    return client.migrate(migrations, **options)


def test_counts_and_leaves_what_fails(client):
    """The report has the threads by schema before and after, those that were current, and each failure by name."""
    for number, schema in enumerate([1, 1, 2, 3, 0, 8]):
        save_first(client, f"t{number}", schema)
    bad = client.thread("bad").hydrate()
    client.thread("bad").save(bad, schema_version=2)
    side = client.thread("t3").branch("side", at=1)
    side.save(side.hydrate(), schema_version=2)
    expected = ({(1, 3): 3, (2, 3): 2}, 1, 7, {"bad", "t5"})
    migrations, told = chain(3), []
    dry = run(migrations, client, dry_run=True)
    assert (dry.migrated, dry.unchanged, dry.threads, {each.thread for each in dry.failures}) == expected
    assert {client.thread(f"t{each}").info().version for each in range(3)} == {1}
    report = run(migrations, client, on_progress=lambda name, seen: told.append((name, seen.threads)))
    assert (report.migrated, report.unchanged, report.threads, {each.thread for each in report.failures}) == expected
    assert not report.ok
    assert sorted(name for name, _ in told) == ["bad", *(f"t{each}" for each in range(6))]
    assert [count for _, count in told] == list(range(1, 8))
    assert {type(each.error).__name__ for each in report.failures} == {"NoMigrationPath", "MigrationFailed"}
    assert client.thread("bad").info().version == 1
    again = run(migrations, client)
    assert (again.migrated, again.unchanged) == ({}, 6), "a second run finds its work done"


def test_only_the_named_threads(client):
    """`threads` takes these; one that does not exist is a failure, as somebody named it."""
    for name in ("a", "b"):
        save_first(client, name)
    report = run(chain(3), client, threads=["a", "nobody"])
    assert (report.migrated, [each.thread for each in report.failures]) == ({(1, 3): 1}, ["nobody"])
    assert client.thread("b").info().version == 1


def test_what_is_no_state_of_the_agent_is_left_alone(client):
    """What `replay` keeps of a fold lies on a branch of the thread, and is neither migrated nor in the way."""
    thread = save_first(client, "t", parts=["a", "b"])
    assert thread.log("parts").replay(lambda count, _: count + 1, 0, projection="count") == 2
    kept = [each for each in thread.info().branches if each.name != "main"]
    report = run(chain(3), client)
    assert kept, "nothing is kept on a branch any more: this test shows nothing"
    assert (report.ok, report.migrated) == (True, {(1, 3): 1})
    assert [each for each in thread.info().branches if each.name != "main"] == kept


def test_a_dry_run_counts_apart_what_another_sidecar_wrote(pair, open_client, name):
    """Whether a thread that another sidecar wrote last can be migrated nobody knows before the run, which is refused
    where that one still holds it. One that is current there is nothing to worry about."""
    first, second = (open_client(each.target, namespace=name) for each in (pair.first, pair.second))
    for thread, schema in (("theirs", 1), ("current", 3)):
        save_first(first, thread, schema)
        first.thread(thread).append("parts", {"text": "a"}, durability="archived")
        second.thread(thread).hydrate()
    save_first(second, "ours")
    dry = run(chain(3), second, dry_run=True, threads=["theirs", "current", "ours"])
    assert (dry.migrated, dry.remote, dry.unchanged, dry.failures, dry.ok) == ({(1, 3): 1}, 1, 1, [], False)
    first.thread("theirs").append("parts", {"text": "b"}, durability="archived")  # it is alive
    report = run(chain(3), second, threads=["theirs", "current", "ours"])
    assert (report.migrated, report.remote, report.unchanged) == ({(1, 3): 1}, 0, 1)
    assert [(each.thread, type(each.error)) for each in report.failures] == [("theirs", NotOwner)]


@pytest.fixture
def agent(daemon, name):
    """A blocking client of the same namespace: steps are plain functions."""
    with daemon.client(namespace=name) as opened:
        yield opened


def test_a_thread_that_is_saved_meanwhile_is_tried_again(client, agent):
    """An agent that saves between the read and the save of a migration loses nothing, and is migrated too."""
    thread = save_first(agent, "t", parts=["a"])
    migrations, saves = Migrations(2), []

    @migrations.step(1, 2)
    def slow(state):
        if len(saves) < 3:  # another process, saving in the old shape
            saves.append(thread.append("parts", f"late {len(saves)}", schema_version=1))
        state.slots["seen"] = len(state.logs["parts"])

    report = run(migrations, client)
    state = thread.hydrate()
    assert report.migrated == {(1, 2): 1}
    assert list(state.logs["parts"]) == ["a", "late 0", "late 1", "late 2"]
    assert (state.slots["seen"], state.checkpoint.schema_version) == (4, 2)


def test_one_that_never_rests_is_a_failure(client, agent, monkeypatch):
    """A thread that changes at every attempt is given up, and said."""
    monkeypatch.setattr("stateward._operations.migrating.ATTEMPTS", 2)
    thread = save_first(agent, "t")
    migrations = Migrations(2)
    migrations.step(1, 2)(lambda state: thread.append("parts", "x", schema_version=1) and None)
    [failure] = run(migrations, client).failures
    assert isinstance(failure.error, VersionMismatch)
    assert thread.checkpoints.get().schema_version == 1


def test_threads_that_move_in_the_list_are_found(client, agent, monkeypatch):
    """A thread that is saved while the list is read jumps to a page that was read before; it is migrated all the same,
    and so is one that is made meanwhile."""
    for number in range(4):
        save_first(agent, f"t{number}")
    lists = []

    def moving(request, into):
        """The daemon leaves a thread out of later pages that changed in another second than the first was made in."""
        first = not request.page_token
        page = yield from read_threads(request, into)
        if first:
            lists.append(request.updated_after)
        if len(lists) == 1:
            page = [info for info in page if info.name != "t0"]
            if first:
                agent.thread("t0").append("parts", "late", schema_version=1)
                save_first(agent, "new")
        return page

    monkeypatch.setattr("stateward._operations.migration_run.PAGE_SIZE", 2)
    monkeypatch.setattr("stateward._operations.listing.read_threads", moving)
    report = run(chain(3), client)
    assert report.ok
    assert len(lists) <= 6, "the reading ends soon after nothing moves any more"
    found = {each.name: agent.thread(each.name).checkpoints.get().schema_version for each in agent.threads()}
    assert found == dict.fromkeys(("new", "t0", "t1", "t2", "t3"), 3)


def test_no_daemon_ends_the_run(daemon, open_client, name, monkeypatch):
    """What would fail for every thread is raised, and not counted a thousand times."""
    client = open_client(daemon.target, namespace=name)
    for thread in ("a", "b"):
        save_first(client, thread)

    def gone(self, *_):
        raise ServerUnavailable("gone")

    monkeypatch.setattr("stateward._operations.migration_run.get_thread", gone)
    with pytest.raises(ServerUnavailable):
        run(chain(3), client)
