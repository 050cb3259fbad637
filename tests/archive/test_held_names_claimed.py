"""The danger: a session key that was lost with its client, before it made anything, keeps a name from all others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.driven import NAME, NAMESPACE, Driven, append
from tests.daemon.town import Twins, twins

from stateward_sidecar.archive.fleet.repair import Repairer
from stateward_sidecar.archive.objects.heads import open_head, was_unused
from stateward_sidecar.archive.objects.keys import key_object
from stateward_sidecar.errors import Locked, NotOwner, StatewardError
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.store.thread.thread import Thread

ONE, TWO = b"1" * 32, b"2" * 32


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Twins]:
    with twins(tmp_path) as made:
        yield made


def claim(machine: Driven, key: bytes) -> None:
    machine.archive.own(NAMESPACE, NAME, session_key=key)


def opens(machine: Driven, key: bytes) -> bool:
    """Whether the claim of a machine is for a thread with this key."""
    found = machine.archive.state.hooks.claims[NAMESPACE, NAME]
    namespace = machine.store.context.keystore.namespace(NAMESPACE)
    assert namespace is not None
    if not key or not found.held:
        return not key and not found.held
    try:
        return KeyStore.open_thread(found.held, namespace, key) == (found.uid, found.data_key)
    except Locked:
        return False


@pytest.mark.parametrize(("first", "second"), [(ONE, TWO), (ONE, b""), (b"", TWO), (ONE, ONE)])
def test_a_claim_of_another_key(pair: Twins, first: bytes, second: bytes) -> None:
    """Whoever claimed the name has made nothing. After the lease it is claimed with the key of the next call."""
    claim(pair.a, first)
    assert opens(pair.a, first)
    with pytest.raises(NotOwner):
        claim(pair.b, second)
    pair.wait_for_lease()
    claim(pair.b, second)
    assert opens(pair.b, second)
    assert len([key for key in pair.bucket.objects if "_keys/t/" in key]) == 1
    if not second:
        pair.b.put("one", after=0)
        pair.b.archive_all()
        assert pair.b.words() == ["one"]


@pytest.mark.parametrize(("first", "second"), [(ONE, TWO), (ONE, b""), (b"", TWO)])
def test_a_key_whose_head_was_never_written(pair: Twins, first: bytes, second: bytes) -> None:
    """A process ended between the two. The next thread has a key of its own, HEAD says that the epoch was not used, and
    the collection removes what is left."""
    claim(pair.a, first)
    (head,) = [key for key in pair.bucket.objects if key.endswith("/HEAD")]
    del pair.bucket.objects[head]
    pair.end(pair.a)
    claim(pair.b, second)
    assert opens(pair.b, second)
    state = pair.b.archive.state
    namespace = pair.b.store.context.keystore.namespace(NAMESPACE)
    assert namespace is not None
    place = state.place(namespace, NAME)
    written = open_head(namespace, place, pair.bucket.objects[head])
    assert (written.created_epoch, was_unused(written, 1)) == (2, True)
    assert len([key for key in pair.bucket.objects if "_keys/t/" in key]) == 2
    pair.b.collect(0)
    assert len([key for key in pair.bucket.objects if "_keys/t/" in key]) == 1


def test_the_same_key_takes_what_is_left(pair: Twins) -> None:
    """As a thread that is not held does."""
    claim(pair.a, ONE)
    (head,) = [key for key in pair.bucket.objects if key.endswith("/HEAD")]
    del pair.bucket.objects[head]
    uid = pair.a.archive.state.hooks.claims[NAMESPACE, NAME].uid
    pair.end(pair.a)
    claim(pair.b, ONE)
    assert pair.b.archive.state.hooks.claims[NAMESPACE, NAME].uid == uid


@pytest.mark.parametrize("second", [TWO, b""])
def test_what_was_saved_under_a_claim_that_is_over(pair: Twins, second: bytes) -> None:
    """A machine was cut off before the first ship, and others made another thread of the name. What it has was deleted
    by nobody, so a call without its key does not destroy it."""
    claim(pair.a, ONE)
    uid = pair.a.archive.state.hooks.claims[NAMESPACE, NAME].uid
    pair.a.store.context.keystore.held.offer((NAMESPACE, NAME), ONE, is_only=False)
    request = append("saved", after=0)
    request.options.create.held_key = True
    pair.a.save(request)
    pair.a.restart()
    with pytest.raises(NotOwner):
        claim(pair.b, second)
    pair.wait_for_lease()
    claim(pair.b, second)
    locked = Locked("it is locked", uid=uid.hex())
    locked = Locked("it is locked")
    locked.metadata["uid"] = uid.hex()
    assert not pair.a.archive.settle_locked(NAMESPACE, NAME, locked)
    assert pair.a.store.context.keystore.has_key(uid)


def make(machine: Driven) -> Thread:
    """A held thread that is archived, and open."""
    claim(machine, ONE)
    machine.store.context.keystore.held.offer((NAMESPACE, NAME), ONE, is_only=False)
    request = append("saved", after=0)
    request.options.create.held_key = True
    machine.save(request)
    machine.archive_all()
    return machine.thread()


@pytest.mark.parametrize(("is_held", "whose"), [(True, "its own"), (True, "another's"), (False, "another's")])
def test_a_repair_meets_a_key_that_is_locked(pair: Twins, is_held: bool, whose: str) -> None:
    """A key object that only a session key opens is not damage: another thread's stays, and so does a newer wrap of
    its own."""
    a = pair.a
    if not is_held:
        a.put("one")
        a.archive_all()
    thread = make(a) if is_held else a.thread()
    namespace = thread.identity.namespace_keys
    place = a.archive.state.place(namespace, NAME)
    assert thread.archive is not None
    key = place.key(thread.archive.head.created_epoch)
    uid = thread.identity.uid if whose == "its own" else b"u" * 16
    data = key_object(KeyStore.wrap_thread(uid, namespace, b"d" * 32, ONE))
    pair.bucket.objects[key] = data
    repairer = Repairer(a.archive.state)
    if whose == "its own":
        repairer._ensure_keys(thread, place)
    else:
        with pytest.raises(NotOwner, match="another thread"):
            repairer._ensure_keys(thread, place)
    assert pair.bucket.objects[key] == data


def test_a_new_wrap_of_a_thread_that_is_not_in_memory(pair: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to the archive before it comes to this disk; of a thread that is not here, nothing is answered."""
    a = pair.a
    thread = make(a)
    assert thread.archive is not None
    a.forget()
    told: list[tuple[bytes, object, int]] = []
    monkeypatch.setattr(a.archive.state.keys, "renew_held", lambda *found: told.append(found))
    a.archive.renew_held((NAMESPACE, NAME), thread.identity.uid, b"slot")
    place = a.archive.state.place(thread.identity.namespace_keys, NAME)
    assert told == [(b"slot", place, thread.archive.head.created_epoch)]
    for name, uid in ((NAME, b"u" * 16), ("none", thread.identity.uid)):
        with pytest.raises(StatewardError):
            a.archive.renew_held((NAMESPACE, name), uid, b"slot")
