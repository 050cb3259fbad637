"""The danger: a bucket that lost one object is taken for a new archive, and every thread in it begins a second time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.daemon.driven import KEY, LEASE_S, NAMESPACE, Driven, append
from tests.daemon.process import fleet
from tests.daemon.town import Town

from stateward.v1.archive_service_pb2 import VerifyArchiveRequest
from stateward_sidecar.archive.fleet.inspect import Inspector
from stateward_sidecar.archive.objects.start import expect_archive, fetch_root, join
from stateward_sidecar.archive.requests.places import FORMAT_KEY, NAMESPACE_KEYS, ROOT_KEY
from stateward_sidecar.errors import KeyUnavailable, StartError
from stateward_sidecar.storage.keystore import KeyStore

LOST = [(FORMAT_KEY,), (ROOT_KEY,), (FORMAT_KEY, ROOT_KEY)]


@pytest.fixture
def first(driven: Town) -> Driven:
    """A machine with an archived thread."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    return machine


def contents(driven: Town) -> list[str]:
    return [key for key, _ in driven.bucket.list("v1/")]


@pytest.mark.parametrize("lost", LOST)
def test_a_new_machine_does_not_start(driven: Town, first: Driven, lost: tuple[str, ...]) -> None:
    """It is told which object is missing, makes nothing, and starts once the object is back."""
    kept = {key: driven.bucket.get(key).data for key in lost}
    for key in lost:
        driven.bucket.delete(key)
    before = contents(driven)
    with pytest.raises(StartError) as refused:
        driven.machine("second")
    assert all(key in refused.value.message for key in lost)
    with pytest.raises(StartError):
        expect_archive(first.wire, "memory:")
    assert contents(driven) == before
    for key, data in kept.items():
        driven.bucket.create(key, data)
    assert driven.machine("second").state().checkpoint.version == 1


@pytest.mark.parametrize("lost", LOST)
def test_a_machine_that_has_joined_makes_no_second_root(driven: Town, first: Driven, lost: tuple[str, ...]) -> None:
    """Not even where nothing else is there; a person may have it put back what was lost, and all goes on."""
    form = driven.bucket.get(FORMAT_KEY).data
    for key in lost:
        driven.bucket.delete(key)
    findings = [answer.finding for answer in Inspector(first.archive.state).verify(VerifyArchiveRequest())]
    assert [key for key in lost for finding in findings if finding.message.startswith(key)] == list(lost)
    before = contents(driven)
    with pytest.raises(StartError, match=lost[0]):
        join(first.store, first.wire, first.bucket, KEY)
    assert contents(driven) == before
    assert join(first.store, first.wire, first.bucket, KEY, puts_back=True)
    assert driven.bucket.get(FORMAT_KEY).data == form
    assert driven.machine("second").state().checkpoint.version == 1


def test_an_archive_in_the_making_is_new(driven: Town) -> None:
    """A machine that died between the two objects, or is about to make the second one, stops nobody."""
    first = driven.machine("first")
    driven.bucket.delete(FORMAT_KEY)
    with pytest.raises(StartError):
        expect_archive(first.wire, "memory:")
    assert fetch_root(first.wire) == first.store.context.keystore.root_slot()
    driven.machine("second")


def test_a_lost_namespace_is_not_new(driven: Town, first: Driven) -> None:
    """Without its key neither a read nor a save of one of its threads says that there is none."""
    for key in [key for key in contents(driven) if key.startswith(NAMESPACE_KEYS)]:
        driven.bucket.delete(key)
    second = driven.machine("second")
    before = contents(driven)
    with pytest.raises(KeyUnavailable, match=NAMESPACE_KEYS):
        second.state()
    with pytest.raises(KeyUnavailable, match=NAMESPACE_KEYS):
        second.put(append(after=0))
    assert contents(driven) == before
    assert second.archive.state.keys.find_namespace(NAMESPACE + "-unused") is None


def test_two_machines_that_find_nothing_at_the_same_moment(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one whose root comes second joins under the other's; once it holds something, it keeps its own."""
    monkeypatch.setattr("tests.daemon.driven.fetch_root", lambda _: b"")
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append(after=0))
    first.ship_now()
    assert second.state().checkpoint.version == 1
    second.archive.own("default", "job", take_over=True)
    second.put(append(after=1))
    second.ship_now()
    second.restart()
    assert second.put(append(after=2)).version == 3
    driven.time.sleep(LEASE_S)
    assert first.state().checkpoint.version == 2
    keys, slot = first.store.context.keystore, driven.machine("third").store.context.keystore.root_slot()
    other = KeyStore(driven.home / "other", KEY)
    assert not keys.adopt_root(other.root_slot(), KEY)
    other.close()
    assert keys.is_root(slot, KEY)


def test_a_root_under_another_key_is_not_taken(tmp_path: Path) -> None:
    """Nothing is changed in the store that refuses it."""
    own, other = KeyStore(tmp_path / "own", KEY), KeyStore(tmp_path / "other", b"o" * 32)
    before = own.root_slot()
    assert not own.adopt_root(other.root_slot(), KEY)
    assert own.root_slot() == before
    own.close()
    other.close()


def test_a_new_archive_is_said(tmp_path: Path) -> None:
    """Once, by the sidecar that made it: the URL may be wrong, and the archive that was meant elsewhere."""
    with fleet(tmp_path) as machines:
        first = machines.machine("first", log_level="info")
        second = machines.machine("second", log_level="info")
        said = ["a new one was made" in each.stderr for each in (first, second)]
    assert said == [True, False]
