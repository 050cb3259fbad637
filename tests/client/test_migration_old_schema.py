"""The danger: a program that reads the state of an older one wrongly, migrates it twice, or loses it on the way."""

import pytest
from tests.client.test_migration_of_a_store import chain, run, save_first

from stateward import MigrationFailed, Migrations, NoMigrationPath, Question, State
from stateward._operations.migrating import LABEL


@pytest.fixture(scope="module")
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def client(daemon, open_client, name):
    return open_client(daemon.target, namespace=name)


def test_migrated_as_it_is_read(client):
    """An old state is in the new shape after a hydrate, in whatever way it is read; nothing is written by reading."""
    save_first(client, "t", parts=["a", "b"])
    new = client.thread("t", migrations=chain(3))
    for state in (
        new.hydrate(),
        new.hydrate(at=1),
        new.hydrate(slots=["customer"]),
        new.hydrate(logs={"parts": 1}),
        new.branch("side", at=1).hydrate(),
    ):
        assert dict(state.slots) == {"customer": {"name": "Ann"}}
        assert state.logs["parts"] == [{"text": "a"}, {"text": "b"}]
        assert (state.version, state.schema_version, state.checkpoint.schema_version) == (1, 3, 1)
    assert client.thread("t").info().version == 1


def test_the_next_save_carries_the_new_schema(client):
    """What is saved after a migration says the current schema, is read without one, and the old version stays."""
    save_first(client, "t")
    thread = client.thread("t", migrations=chain(3))
    state = thread.hydrate()
    state.slots["more"] = 1
    assert thread.save(state).schema_version == 3
    assert thread.hydrate().slots["customer"] == {"name": "Ann"}
    assert client.thread("t").hydrate(at=1).slots["customer"] == "Ann"
    assert thread.update(lambda found: found.slots.update({"more": 2})).schema_version == 3
    assert thread.hydrate().slots["more"] == 2


def test_a_new_thread_begins_with_the_current_schema(client):
    """First saves of every kind say it, with or without a hydrate before."""
    migrations = chain(3)
    state = client.thread("a", migrations=migrations).hydrate()
    assert client.thread("a", migrations=migrations).save(state).schema_version == 3
    assert client.thread("b", migrations=migrations).save(State()).schema_version == 3
    assert client.thread("c", migrations=migrations).append("parts", {"text": "a"}).schema_version == 3
    assert client.thread("d", migrations=migrations).save(State(), schema_version=2).schema_version == 2


def test_without_migrations_the_schema_stays(client):
    """A save by a client that knows nothing of schemas keeps the number, so that nobody migrates twice."""
    save_first(client, "t", schema=3)
    plain = client.thread("t")
    state = plain.hydrate()
    state.slots["x"] = 1
    assert plain.save(state).schema_version == 3
    assert plain.save(state, schema_version=7).schema_version == 7


def test_an_append_that_says_nothing_inherits(client):
    """Appends by a client without migrations are told the schema of the version they are made on, and not the first;
    what other branches say changes nothing."""
    save_first(client, "t", schema=3, parts=[{"text": "a"}])
    client.thread("t").append("parts", {"text": "b"})
    assert client.thread("t").append("parts", {"text": "c"}).schema_version == 3
    client.thread("t").branch("side", at=1).save(client.thread("t").hydrate(at=1), schema_version=2)
    state = client.thread("t", migrations=chain(3)).hydrate()
    assert state.slots["customer"] == "Ann", "it was migrated a second time"
    assert state.schema_version == 3


def test_an_append_of_the_new_shape_migrates_first(client):
    """An append through a handle with migrations never puts new entries on top of a state of the old shape."""
    save_first(client, "t", parts=["a"])
    thread = client.thread("t", migrations=chain(3))
    assert thread.append("parts", {"text": "b"}).version == 3
    assert thread.hydrate().logs["parts"] == [{"text": "a"}, {"text": "b"}]
    assert [each.schema_version for each in client.thread("t").checkpoints.list()] == [3, 3, 1]


def test_a_state_without_schema_counts_as_the_first(client):
    """A schema that nobody ever said is the lowest that is registered, or what is given."""
    save_first(client, "t", schema=0)
    assert client.thread("t", migrations=chain(3)).hydrate().slots["customer"] == {"name": "Ann"}
    as_it_is = client.thread("t", migrations=chain(3, unsaid=3)).hydrate()
    assert as_it_is.slots["customer"] == "Ann"
    with pytest.raises(NoMigrationPath, match="from 0 to 3"):
        client.thread("t", migrations=chain(3, unsaid=0)).hydrate()


def test_no_path_names_both_versions(client):
    """Without a way to the current schema, or with a state that is newer than the program, the error has the facts."""
    save_first(client, "t")
    with pytest.raises(NoMigrationPath, match=r"'t' version 1 has schema 1, .* from 1 to 9") as caught:
        client.thread("t", migrations=chain(9)).hydrate()
    assert (caught.value.found, caught.value.wanted, caught.value.thread) == (1, 9, "t")
    save_first(client, "u", schema=4)
    with pytest.raises(NoMigrationPath, match="older than the state"):
        client.thread("u", migrations=chain(3)).hydrate()
    with pytest.raises(NoMigrationPath):
        client.thread("u", migrations=chain(3)).append("parts", "x")
    assert client.thread("u").info().version == 1


def test_migrate_saves_it_at_once(daemon, open_client, name):
    """A new version with status, step, metrics, metadata and question of the old one, which stays as it was."""
    client = open_client(daemon.target, namespace=name, migrations=chain(3))
    plain = client.thread("t", migrations=False)
    state = plain.hydrate()
    state.slots["customer"] = "Ann"
    plain.save(
        state,
        step=-4,
        status="waiting",
        status_detail="for Bob",
        wait_id="w",
        question=Question("How much?", {"type": "number"}),
        metrics={"tokens": 5},
        metadata={"m": 1},
        attributes={"n": 1, "done": False},
        schema_version=1,
    )
    before = plain.checkpoints.get()
    assert before.question.prompt == "How much?"
    made = client.thread("t").migrate()
    now = plain.checkpoints.get()
    kept = ("status", "status_detail", "step", "wait_id", "question", "metrics", "metadata", "attributes")
    assert [getattr(now, each) for each in kept] == [getattr(before, each) for each in kept]
    assert (made.version, now.schema_version, now.labels) == (2, 3, {"stateward/migrated-from": "1"})
    assert plain.checkpoints.get(1) == before
    assert plain.hydrate(at=1).slots["customer"] == "Ann"
    assert client.thread("t").migrate() is None
    with pytest.raises(ValueError, match="migrations"):
        plain.migrate()


def test_a_step_that_raises_leaves_everything(client):
    """The error names thread, version and step, has the cause, and neither hydrate nor migrate wrote anything."""
    migrations = chain(2)

    @migrations.step(2, "2000")
    def break_down(state):
        state.slots.clear()
        raise RuntimeError("no such customer")

    migrations.current = 2000
    save_first(client, "t")
    thread = client.thread("t", migrations=migrations)
    for attempt in (thread.hydrate, thread.migrate):
        with pytest.raises(MigrationFailed, match=r"'t' version 1: .* from 2 to 2000 failed: .*no such") as caught:
            attempt()
        assert (caught.value.thread, caught.value.version, caught.value.step) == ("t", 1, (2, 2000))
        assert isinstance(caught.value.__cause__, RuntimeError)
    assert client.thread("t").info().last_version == 1
    assert client.thread("t").hydrate().slots["customer"] == "Ann"


@pytest.mark.parametrize("made", [object(), "a state", {"slots": {}}])
def test_a_step_that_returns_something_else(client, made):
    """Neither None nor a State is an error of the step."""
    migrations = Migrations(2)
    migrations.step(1, 2)(lambda state: made)
    save_first(client, "t")
    with pytest.raises(MigrationFailed, match="None or a State"):
        client.thread("t", migrations=migrations).hydrate()


def test_what_cannot_be_stored_is_found_before_the_save(client):
    """A step that leaves an object in a slot fails in `migrate` as a step that raises does."""
    migrations = Migrations(2)
    migrations.step(1, 2)(lambda state: state.slots.update({"x": object()}))
    save_first(client, "t")
    with pytest.raises(MigrationFailed, match=r"slots\.x"):
        client.thread("t", migrations=migrations).migrate()


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("x" * 1025, r"1 to 1,024 bytes, and 'x{40}…' has 1,025"),
        ("ü" * 513, "1,026"),
        ("", "'' has 0"),
        ("a\nb", "control"),
    ],
)
@pytest.mark.parametrize("kind", ["slot", "log"])
def test_names_that_the_daemon_refuses_are_found_before_the_save(client, kind, bad, told):
    """A step that makes a slot or log of such a name fails as one that raises does, in a dry run too."""
    migrations = Migrations(2)

    @migrations.step(1, 2)
    def name_badly(state):
        if kind == "slot":
            state.slots[bad] = 1
        else:
            state.logs[bad].append(1)

    save_first(client, "t")
    with pytest.raises(MigrationFailed, match=rf"from 1 to 2 failed: .*a {kind} .*{told}"):
        client.thread("t", migrations=migrations).migrate()
    report = run(migrations, client, dry_run=True)
    assert [type(each.error) for each in report.failures] == [MigrationFailed]


def test_more_edits_than_a_version_may_have(client, monkeypatch):
    """A step that changes more than fits into one version says so before it is sent."""
    monkeypatch.setattr("stateward._operations.migration_rules.EDITS_MAX", 10)
    migrations = Migrations(2)
    migrations.step(1, 2)(lambda state: state.slots.update({f"s{number}": 1 for number in range(11)}))
    save_first(client, "t")
    assert "11 edits" in str(run(migrations, client, dry_run=True).failures[0].error)


def test_labels_stay(client):
    """A migrated version has the labels of the one before, but for what says that a log was trimmed by it."""
    thread = save_first(client, "t")
    state = thread.hydrate()
    thread.save(state, schema_version=2, labels={"team": "a", "trimmed:parts": "1", LABEL: "1"})
    client.thread("t", migrations=chain(3)).migrate()
    assert thread.checkpoints.get().labels == {"team": "a", LABEL: "2"}
    full = {f"n{number:02}": "x" for number in range(64)}
    state = thread.hydrate()
    thread.save(state, schema_version=1, labels=full)
    migrations = Migrations(2)
    migrations.step(1, 2)(lambda state: None)
    client.thread("t", migrations=migrations).migrate()
    del full["n63"]
    assert thread.checkpoints.get().labels == {**full, LABEL: "1"}


def test_unclear_registrations_are_refused():
    """Doubled steps, circles and two ways of the same length are errors where they are made, and change nothing."""
    migrations = Migrations("4")

    def step(state):
        return None

    for edge in [("1", "2"), (2, 3), (3, 4)]:
        migrations.step(*edge)(step)
    for edge, told in [((1, 2), "already"), ((4, 1), "circle"), ((2, 2), "circle"), (("4", 3), "circle")]:
        with pytest.raises(ValueError, match=told):
            migrations.step(*edge)(step)
    migrations.step(1, 5)(step)
    with pytest.raises(ValueError, match="two ways of the same length lead from 1 to 3"):
        migrations.step(5, 3)(step)
    assert migrations._paths.find(1, 4) == [(1, 2), (2, 3), (3, 4)]
    migrations.step(2, 4)(step)
    assert migrations._paths.find(1, 4) == [(1, 2), (2, 4)], "the shortest way is taken"
    for wrong in ("1.0", "", "v2", -1, True, 1.5, None, "²"):
        with pytest.raises(ValueError, match="whole numbers"):
            migrations.step(wrong, 2)

    async def later(state):
        return None

    with pytest.raises(TypeError, match="plain function"):
        migrations.step(6, 7)(later)


def test_handles_pass_their_migrations_on(client):
    """A branch and a fork of a handle have its migrations, and `migrations=False` has none."""
    save_first(client, "t")
    thread = client.thread("t", migrations=chain(3))
    fork = thread.fork("f")
    assert fork.hydrate().slots["customer"] == {"name": "Ann"}
    assert thread.branch("main").hydrate().slots["customer"] == {"name": "Ann"}
    assert client.thread("f", migrations=False).hydrate().slots["customer"] == "Ann"
