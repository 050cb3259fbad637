"""The danger: what was meant for one process only (a token, a page of a browser) lands on a disk or in a bucket."""

import pytest

from stateward import State

SECRET = "mark-of-a-secret-that-stays-here"


@pytest.fixture(scope="module")
def daemon(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


@pytest.fixture
def sent(monkeypatch):
    """The bytes of every message that is sent."""
    from stateward._io.aio.connection import Connection as AsyncConnection
    from stateward._io.blocking.connection import Connection

    found = []
    for connection in (Connection, AsyncConnection):
        call = connection.call

        def watched(self, method, request, *more, _call=call):
            found.append(request.SerializeToString())
            return _call(self, method, request, *more)

        monkeypatch.setattr(connection, "call", watched)
    return found


@pytest.fixture
def client(daemon, open_client, name):
    return open_client(daemon.target, namespace=name, ephemeral=("scratch/", "cache"))


def test_no_byte_of_it_is_sent(client, sent):
    """Ephemeral slots and scratch reach neither a request nor a hydrated state, however the state is saved."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["goal"] = "go"
    state.slots["scratch/page"] = state.slots["cache"] = {"token": SECRET}
    state.slots["scratch/socket"] = object()  # could not be stored at all
    state.scratch["token"] = SECRET
    thread.save(state)
    state.slots["cache"]["token"] += SECRET
    thread.save(state, overwrite=True)
    thread.update(lambda found: found.slots.update({"cache": SECRET, "n": 1}))
    client.save_all([client.thread("u").prepare(made_here())])
    assert len(sent) >= 4
    assert not [message for message in sent if SECRET.encode() in message]
    found = thread.hydrate()
    assert (dict(found.slots), found.scratch) == ({"goal": "go", "n": 1}, {})
    assert dict(client.thread("u").hydrate().slots) == {"fact": 1}


def test_writes_of_one_slot_are_refused(client, sent):
    """What is set or counted without a state has nowhere to stay but in the store: it is refused, and nothing sent."""
    thread, board = client.thread("t"), client.board("t")
    for attempt in (
        lambda: thread.set_slot("cache", SECRET),
        lambda: board.post("scratch/page", SECRET),
        lambda: board.increment("scratch/page"),
        lambda: thread.increment("cache"),
    ):
        with pytest.raises(ValueError, match=r"slot '(cache|scratch/page)' is ephemeral"):
            attempt()
    assert sent == []
    board.post("cached", 1)
    board.increment("scratch")
    assert board.read() == {"cached": 1, "scratch": 1}


def made_here():
    state = State()
    state.slots["fact"], state.slots["cache"] = 1, SECRET
    return state


def test_it_stays_in_hands(client):
    """A save does not take it away: only a hydrate begins without it."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["scratch/page"], state.scratch["n"] = "open", 1
    thread.save(state)
    assert (state.slots["scratch/page"], state.scratch) == ("open", {"n": 1})
    del state.slots["scratch/page"]
    assert "scratch/page" not in state.slots


def test_names_that_only_begin_alike_are_facts(client):
    """`scratch/` stands for what is below it, `cache` for itself."""
    thread = client.thread("t")
    state = thread.hydrate()
    state.slots["scratch"] = state.slots["cache/2"] = state.slots["cached"] = 1
    thread.save(state)
    assert sorted(thread.hydrate().slots) == ["cache/2", "cached", "scratch"]


def test_what_others_stored_there_is_not_seen_nor_touched(client, daemon, open_client, name):
    """A slot that another client stored under such a name stays as it is in the store."""
    plain = open_client(daemon.target, namespace=name).thread("t")
    state = plain.hydrate()
    state.slots["cache"] = "of another"
    plain.save(state)
    thread = client.thread("t")
    state = thread.hydrate()
    assert "cache" not in state.slots
    state.slots["cache"], state.slots["fact"] = "mine", 1
    thread.branch("main").save(state)
    assert dict(plain.hydrate().slots) == {"cache": "of another", "fact": 1}


def test_one_name_is_no_list(daemon, open_client):
    """A text in place of a list would declare its letters."""
    with pytest.raises(TypeError, match="list"):
        open_client(daemon.target, ephemeral="cache")
