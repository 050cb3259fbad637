"""The danger: a deletion that failed half-way is answered as done, and key and objects stay in the bucket for ever."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.daemon.driven import NAME, NAMESPACE, Driven, append
from tests.daemon.town import Twins, twins

from stateward._operations.threads import NO_UID
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, DeleteThreadResponse
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.bucket.base import BucketUnavailable
from stateward_sidecar.errors import ArchiveUnavailable, ThreadNotFound


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Twins]:
    """``a`` owns a thread whose history is in several objects."""
    with twins(tmp_path) as made:
        for number in range(16):
            made.a.put(f"{number} {secrets.token_hex(1500)}")
            made.a.archive_all()
            made.a.tidy()
        assert objects(made)
        yield made


def keys(pair: Twins) -> list[str]:
    """The keys of threads in the bucket."""
    return [key for key in pair.bucket.objects if "/_keys/t/" in key]


def objects(pair: Twins) -> list[str]:
    """What the bucket has of threads beside HEADs."""
    return [key for key in pair.bucket.objects if key.startswith("v1/t/") and not key.endswith("/HEAD")]


@contextmanager
def throttled(pair: Twins) -> Iterator[None]:
    """Meanwhile the bucket deletes nothing."""

    def refuse(method: str, key: str) -> None:
        if method == "delete":
            raise BucketUnavailable(f"{key}: slow down")

    pair.bucket.before = refuse
    try:
        yield
    finally:
        pair.mend()


def delete(twin: Driven, *, uid: str = "", missing_ok: bool = True) -> DeleteThreadResponse:
    """Deletes the thread everywhere."""
    request = DeleteThreadRequest(
        namespace=NAMESPACE, thread=NAME, options=WriteOptions(expected_uid=uid), allow_missing=missing_ok
    )
    return twin.delete(request)


def fail(pair: Twins, twin: Driven | None = None) -> str:
    """Deletes the thread, and the bucket takes the tombstone and nothing more. Returns the thread's uid."""
    twin = twin or pair.a
    thread = twin.find(NAME)
    assert thread is not None
    with throttled(pair), pytest.raises(ArchiveUnavailable):
        delete(twin)
    assert keys(pair)
    assert objects(pair)
    return thread.identity.uid_text


@pytest.mark.parametrize("who", ["the same", "the same after a restart", "one with a copy", "one without"])
def test_the_retry_finishes_it(pair: Twins, who: str) -> None:
    """Whoever is asked next destroys the key and deletes the objects before it answers, and says what it deleted."""
    if who == "one with a copy":
        pair.b.archive.know(NAMESPACE, NAME)
    uid = fail(pair)
    if who == "the same after a restart":
        pair.a.restart()
    answer = delete(pair.a if who.startswith("the same") else pair.b)
    assert (answer.receipt.uid, answer.everywhere, keys(pair), objects(pair)) == (uid, True, [], [])
    for twin in (pair.a, pair.b):
        assert not delete(twin).receipt.uid
        with pytest.raises(ThreadNotFound):
            delete(twin, missing_ok=False)
        assert twin.find(NAME) is None


@pytest.mark.parametrize("who", ["the same", "another"])
def test_a_repeated_deletion_waits_for_the_objects(pair: Twins, who: str) -> None:
    """The first deletion is answered, and its objects wait for the background: the answer that there is nothing any
    more comes when they are gone, also a list of more than one page. What was put off then harms nobody."""
    (place,) = {key.rpartition("/")[0] for key in objects(pair)}
    for number in range(2500):
        pair.bucket.objects[f"{place}/{number:032x}.blob"] = b"left by a broken collection"
    uid = delete(pair.a).receipt.uid
    assert (bool(uid), keys(pair), len(objects(pair)) > 2500) == (True, [], True)
    again = pair.a if who == "the same" else pair.b
    assert not delete(again, uid=NO_UID).receipt.uid
    assert objects(pair) == []
    pair.b.put("anew")
    pair.b.archive_all()
    pair.a.tidy()
    pair.b.tidy()
    assert pair.machine("c").words() == ["anew"]


def test_a_repeated_deletion_fails_while_objects_are_left(pair: Twins) -> None:
    """Each attempt says that the archive is away, until one has deleted the objects."""
    assert delete(pair.a).receipt.uid
    for twin in (pair.a, pair.b, pair.a):
        with throttled(pair), pytest.raises(ArchiveUnavailable):
            delete(twin, uid=NO_UID)
        assert objects(pair)
    assert not delete(pair.b, uid=NO_UID).receipt.uid
    assert objects(pair) == []


def test_it_fails_as_often_as_the_bucket_does(pair: Twins) -> None:
    """No attempt is answered before the key is destroyed."""
    uid = fail(pair)
    for _ in range(2):
        with throttled(pair), pytest.raises(ArchiveUnavailable):
            delete(pair.a)
        assert keys(pair)
    assert delete(pair.a, missing_ok=False).receipt.uid == uid
    assert keys(pair) + objects(pair) == []


def test_the_retry_of_another_creation_says_nothing_was_there(pair: Twins) -> None:
    """The call names a uid that is not the deleted one's; what was left is deleted all the same."""
    fail(pair)
    with pytest.raises(ThreadNotFound):
        delete(pair.b, uid="0" * 32, missing_ok=False)
    assert keys(pair) + objects(pair) == []


def test_a_reader_finishes_it(pair: Twins) -> None:
    """Who finds the tombstone has no thread, and deletes in the background what is left of it."""
    fail(pair)
    with throttled(pair):
        with pytest.raises(ThreadNotFound):
            pair.b.words()
        with pytest.raises(ArchiveUnavailable):
            pair.b.tidy()
        with pytest.raises(ThreadNotFound):
            pair.b.words()
        pair.b.tidy()  # not again so soon
    pair.time.sleep(61)
    with pytest.raises(ThreadNotFound):
        pair.b.words()
    pair.b.tidy()
    assert keys(pair) + objects(pair) == []


def test_the_next_thread_of_the_name_finishes_it(pair: Twins) -> None:
    """The old key is destroyed before the new HEAD is there, and of the new thread nothing is deleted."""
    fail(pair)
    with throttled(pair), pytest.raises(ArchiveUnavailable):
        pair.b.save(append("too early"))
    (old,) = keys(pair)

    def look(method: str, key: str) -> None:
        if method == "replace" and key.endswith("/HEAD"):
            assert old not in pair.bucket.objects

    pair.bucket.before = look
    pair.b.save(append("anew"))
    pair.b.archive_all()
    pair.b.tidy()
    (new,) = keys(pair)
    assert new != old
    assert pair.machine("c").words() == ["anew"]
    epochs = {int(key.rpartition("/")[2].partition("-")[0]) for key in objects(pair)}
    assert min(epochs, default=9) > 1


def test_what_a_dead_process_left_is_garbage(pair: Twins) -> None:
    """`stateward archive gc` deletes key and objects, whoever put the tombstone."""
    fail(pair)
    pair.b.collect(0)
    assert keys(pair) + objects(pair) == []


def test_a_tombstone_without_an_answer_leaves_no_objects(pair: Twins) -> None:
    """The tombstone landed, its answer was lost, and so was each one after it: the deletion is answered as done."""

    def lose(method: str, key: str) -> None:
        if method == "replace" and key.endswith("/HEAD"):
            pair.mend()
            raise BucketUnavailable(f"{key}: lost", is_unclear=True)

    pair.bucket.after = lose
    assert delete(pair.a, missing_ok=False).receipt.uid
    pair.a.tidy()
    assert keys(pair) + objects(pair) == []


def test_an_expiry_finishes_it(tmp_path: Path) -> None:
    """A sweep that failed half-way is continued by the next one, on whatever machine has a copy."""
    for sweeper in ("a", "b"):
        home = tmp_path / sweeper
        home.mkdir()
        with twins(home) as pair:
            request = append("x" * 3000)
            request.options.create.ttl.FromSeconds(100)
            pair.a.save(request)
            for number in range(16):
                pair.a.put(f"{number} {secrets.token_hex(1500)}")
                pair.a.archive_all()
            pair.a.stop_and_start()
            for twin in (pair.a, pair.b):
                twin.archive.know(NAMESPACE, NAME)
            pair.time.sleep(101)
            with throttled(pair):
                pair.a.sweep()
            assert keys(pair)
            pair.time.sleep(4000)
            (pair.a if sweeper == "a" else pair.b).sweep()
            pair.a.tidy()
            pair.b.tidy()
            assert keys(pair) + objects(pair) == [], sweeper


def test_an_orphan_goes_with_its_thread(pair: Twins) -> None:
    """A machine that has an orphan and no copy any more deletes the orphan, and its key, with the thread."""
    pair.a.put("only here")
    pair.b.take()
    pair.b.put("elsewhere")
    pair.b.archive_all()
    pair.wait_for_lease()
    pair.a.words()
    (orphan,) = pair.a.orphans()
    pair.a.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=NAME, local_only=True))
    assert pair.a.words(orphan)[-1] == "only here"
    uid = fail(pair, pair.b)
    assert delete(pair.a).receipt.uid == uid
    assert (pair.a.orphans(), keys(pair)) == ([], [])
    with pytest.raises(ThreadNotFound):
        pair.a.words(orphan)
    assert pair.a.store.context.keystore.namespace_of(bytes.fromhex(uid)) is None


def test_nothing_is_left_to_do_twice(pair: Twins) -> None:
    """The tombstone of a deletion says that it is done: who finds it asks for nothing, and deletes nothing."""
    delete(pair.a)
    assert keys(pair) == []
    pair.a.tidy()
    assert objects(pair) == []
    seen: list[str] = []
    pair.bucket.before = lambda method, key: seen.append(f"{method} {key.rpartition('/')[2]}")
    with pytest.raises(ThreadNotFound):
        pair.b.words()
    assert not delete(pair.b).receipt.uid
    pair.b.tidy()
    assert [each for each in seen if each.startswith(("delete", "list", "replace"))] == []
    pair.b.put("anew")
    assert [each for each in seen if each.startswith(("delete", "list"))] == []


def test_a_deletion_of_nothing_makes_nothing(tmp_path: Path) -> None:
    """A namespace that nobody has used gets no key because somebody deletes a thread there."""
    with twins(tmp_path) as pair:
        assert not delete(pair.a).receipt.uid
        with pytest.raises(ThreadNotFound):
            pair.a.archive.own(NAMESPACE, NAME, must_exist=True)
        assert [key for key in pair.bucket.objects if "/_keys/n/" in key] == []
