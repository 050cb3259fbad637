"""The danger: an upgrade beside the old program that migrates twice, starves, or is in the way of who only adds."""

import threading

import pytest

from stateward import MigrationFailed, Migrations, NoMigrationPath
from stateward.errors import LeaseHeld, SchemaMismatch


@pytest.fixture(scope="module")
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def client(daemon, open_client, name):
    return open_client(daemon.target, namespace=name)


@pytest.fixture
def agent(daemon, name):
    """A blocking client of the same namespace: steps are plain functions."""
    with daemon.client(namespace=name) as opened:
        yield opened


def cents(before=lambda state: None):
    """The new program: prices in cents. `before` is called at each attempt."""
    migrations = Migrations(current=2)

    @migrations.step(1, 2)
    def multiply(state):
        before(state)
        state.slots["price"] *= 100

    return migrations


def save_price(client, name):
    thread = client.thread(name)
    state = thread.hydrate()
    state.slots["price"] = 5
    thread.save(state, schema_version=1)
    return thread


# -- once --------------------------------------------------------------------------------------------------------------


def test_old_processes_append_meanwhile(client, agent):
    """While old processes append the thread is migrated once, and they then hear both versions."""
    save_price(agent, "t")
    appended, refused = [], []

    def append_until_refused():
        old = agent.thread("t", migrations=Migrations(current=1))
        try:
            while len(appended) < 10_000:  # far more than it comes to
                appended.append(old.append("log", "x").version)
        except NoMigrationPath as error:
            refused.append(error)

    workers = [threading.Thread(target=append_until_refused) for _ in range(2)]
    for worker in workers:
        worker.start()
    new = client.thread("t", migrations=cents())
    new.migrate()
    for worker in workers:
        worker.join(20)
    assert [(each.found, each.wanted) for each in refused] == [(2, 1)] * 2
    state = new.hydrate()
    assert (state.slots["price"], state.checkpoint.schema_version) == (500, 2)
    assert len(state.logs["log"]) == len(appended)
    assert new.append("log", "y").schema_version == 2
    assert new.hydrate().slots["price"] == 500


def test_an_append_of_the_old_shape_never_lands_on_the_new_one(client, agent):
    """An old process that looked at the thread just before it was migrated is refused, and so is one that only says
    its schema; both errors name both versions."""
    save_price(agent, "t")

    class Late(Migrations):
        def _prepare_append(self, ref):
            prepared = yield from super()._prepare_append(ref)
            agent.thread("t", migrations=cents()).migrate()
            return prepared

    with pytest.raises(NoMigrationPath, match=r"has schema 2, .* from 2 to 1"):
        client.thread("t", migrations=Late(current=1)).append("log", "x")
    with pytest.raises(SchemaMismatch, match="has schema 2, but the save has schema 1") as caught:
        client.thread("t").append("log", "x", schema_version=1)
    assert caught.value.schema == 2
    found = agent.thread("t").hydrate()
    assert (found.slots["price"], "log" in found.logs, found.version) == (500, False, 2)


def test_an_append_of_the_new_shape_is_prepared_again(client, agent):
    """Where an old process makes the thread just before the new one's first append, that one migrates it first."""

    class Early(Migrations):
        def _prepare_append(self, ref):
            prepared = yield from super()._prepare_append(ref)
            if agent.thread("t").hydrate().version == 0:
                save_price(agent, "t")
            return prepared

    migrations = Early(current=2)
    migrations.step(1, 2)(lambda state: state.slots.update(price=state.slots["price"] * 100))
    assert client.thread("t", migrations=migrations).append("log", "x").version == 3
    found = agent.thread("t").hydrate()
    assert (found.slots["price"], list(found.logs["log"])) == (500, ["x"])


def test_forks_and_what_pruning_left_are_migrated_once(client):
    """A head that was appended to without a schema has that of what it was made from, also where that is in another
    thread, or gone."""
    for name in ("a", "b"):
        save_price(client, name)
        assert client.thread(name, migrations=cents()).migrate().schema_version == 2
    client.thread("a").append("log", "x")
    client.thread("a").fork("a2")
    assert client.thread("a2", migrations=cents()).hydrate().slots["price"] == 500
    for _ in range(5):
        client.board("b").increment("hits")
    client.thread("b").prune(keep_latest_per_branch=2)
    assert client.thread("b", migrations=cents()).hydrate().slots["price"] == 500
    assert {each.schema_version for each in client.thread("b").checkpoints.list()} == {2}


# -- on a busy board ---------------------------------------------------------------------------------------------------


def test_after_three_lost_races_it_takes_the_lease(client, agent):
    """A thread that is appended to at every attempt is migrated at the fourth one, under a lease that is gone then."""
    plain = save_price(agent, "t")
    holders = []

    def append_if_possible(state):
        lease = plain.info().lease
        holders.append(lease.holder if lease else "")
        if not lease:
            plain.append("log", len(holders))

    assert client.thread("t", migrations=cents(append_if_possible)).migrate().schema_version == 2
    assert holders[:3] == ["", "", ""]
    assert len(holders) == 4
    assert holders[3].startswith("stateward-migration")
    assert plain.info().lease is None
    found = plain.hydrate()
    assert (found.slots["price"], list(found.logs["log"])) == (500, [1, 2, 3])


def test_a_step_that_raises_gives_the_lease_back(client, agent):
    """A migration that fails under the lease does not keep it."""
    plain, attempts = save_price(agent, "t"), []

    def lose_and_break_down(state):
        attempts.append(state.version)
        if len(attempts) == 4:
            raise RuntimeError("broken")
        plain.append("log", "x")

    with pytest.raises(MigrationFailed, match="broken"):
        client.thread("t", migrations=cents(lose_and_break_down)).migrate()
    assert plain.info().lease is None


@pytest.mark.parametrize("what", ["append", "increment", "post", "set_slot", "update", "migrate"])
def test_who_only_adds_waits_for_a_migration(client, agent, what):
    """Appends, counts and posts, and another migration, are not refused while a migration holds the thread's lease."""
    save_price(agent, "t")
    held, go_on = threading.Event(), threading.Event()

    def lose_then_wait(state):
        if agent.thread("t").info().lease is None:
            agent.thread("t").append("log", "x")
        else:
            held.set()
            go_on.wait(10)

    worker = threading.Thread(target=agent.thread("t", migrations=cents(lose_then_wait)).migrate)
    worker.start()
    assert held.wait(10)
    with pytest.raises(LeaseHeld):
        client.thread("t").save(client.thread("t").hydrate())
    timer = threading.Timer(0.1, go_on.set)
    timer.start()
    match what:
        case "append":
            client.board("t").append("log", "waited")
        case "increment":
            client.board("t").increment("hits")
        case "post":
            client.board("t").post("plan", 1)
        case "set_slot":
            client.thread("t").set_slot("plan", 1)
        case "update":
            client.thread("t").update(lambda state: state.slots.__setitem__("plan", 1))
        case "migrate":
            assert client.thread("t", migrations=cents()).migrate() is None
    assert go_on.is_set()
    worker.join()
    timer.join()
    found = client.thread("t").hydrate()
    assert (found.slots["price"], found.checkpoint.schema_version) == (500, 2)


def test_nobody_waits_for_another_lease(client, agent, monkeypatch):
    """Where an agent holds the lease, migrations and additions of others are refused at once; the agent's own is not.
    And for a migration nobody waits for ever."""
    with save_price(agent, "t").lease():
        for attempt in (client.thread("t", migrations=cents()).migrate, lambda: client.board("t").increment("hits")):
            with pytest.raises(LeaseHeld) as caught:
                attempt()
            assert not caught.value.metadata["holder"].startswith("stateward-migration")
    own = agent.thread("t", migrations=cents())
    with own.lease():
        assert own.migrate().schema_version == 2
    monkeypatch.setattr("stateward._operations.migration_lease.PATIENCE_S", 0.05)
    with agent.lock("x", holder="stateward-migration-that-hangs"), pytest.raises(LeaseHeld):
        client.board("locks/x").increment("hits")
