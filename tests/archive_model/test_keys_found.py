"""The danger: a name that is used and deleted by others meanwhile leaves a key in the bucket, so what was deleted could
still be read."""

from __future__ import annotations

import pytest
from tests.archive_model.faults import HELD, HELD_AFTER, LOST_AWAY, READ_HELD, Fault
from tests.archive_model.test_archive_model import Rules

from stateward_sidecar.archive.ship.delete import Remover

NONE: tuple[Fault, ...] = ()
HALF = (Fault(LOST_AWAY, 0, at_head=True),)
SLOW = (Fault(HELD, 1, at_commit=True),)  # its first commit is that of the namespace's key


def keys(history: Rules) -> list[str]:
    """Endings of the key objects of threads: the epochs in which they began."""
    return sorted(key.rpartition(".")[2] for key in history.net.bucket.objects if "/_keys/t/" in key)


def make_and_half_delete(history: Rules, who: int) -> None:
    """The deletion of a new thread lands, and its sidecar hears nothing more."""
    history.work(who, "a", 1, 10, archived=True)
    history.delete(who, "a", HALF, now=True)


def test_a_deletion_of_nothing_answers_for_what_it_saw(history: Rules) -> None:
    """The name was free when the archive was asked. What began and was half deleted elsewhere since then is left to
    the deletion that is repeated, or to whoever finds the tombstone."""
    history.delete(0, "a", NONE, now=True)
    history.background(0, NONE)
    history.act(1, "delete a", lambda it: history.delete_one(it, "a", is_again=True), SLOW)
    assert history.turns.held
    make_and_half_delete(history, 0)
    history.resume(0)
    assert keys(history) == ["3"]
    history.act(1, "delete a again", lambda it: history.delete_one(it, "a", is_again=True))
    assert not keys(history)


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after it waited for its turn"])
def test_a_deletion_of_nothing_that_leaves_a_key_is_found(
    history: Rules, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """Whoever answers that there is nothing has looked at the archive last of all, and has finished what was left."""
    monkeypatch.setattr(Remover, "_finish", lambda *_: b"")
    history.is_broken = True  # its end says nothing

    def delete() -> None:
        history.act(1, "delete a", lambda it: history.delete_one(it, "a", is_again=True))

    if waits:
        history.read(1, "a", "main", (Fault(READ_HELD, 0),))
        assert history.turns.held
        delete()
        assert history.turns.under_way[1:]
    make_and_half_delete(history, 0)
    with pytest.raises(AssertionError, match="a deletion was answered, and the key is in the bucket"):
        history.resume(0) if waits else delete()


def test_a_claim_that_comes_too_late_leaves_no_key(history: Rules) -> None:
    """While a sidecar makes way for a new thread, another one makes the thread, and deletes it with all that it had."""
    history.delete(0, "a", NONE, now=True)
    plan = tuple(Fault(HELD, at) for at in range(4))  # its first write: it destroys the old key, as others did before
    history.save_one(1, "a", "main", 10, conditional=False, archived=True, rests=False, plan=plan)
    assert history.turns.held
    history.work(0, "a", 1, 10, archived=True)
    history.delete(0, "a", NONE, now=True)
    history.background(0, NONE)
    history.resume(0)
    assert keys(history) == ["5"]


def test_a_collection_finds_the_key_of_a_claim_that_came_too_late(history: Rules) -> None:
    """Its process ended, and the tombstone has reached the epoch of the claim, because others finished the deletion."""
    history.delete(0, "a", NONE, now=True)
    made = (Fault(HELD_AFTER, 6),)
    history.save_one(1, "a", "main", 10, conditional=False, archived=True, rests=False, plan=made)
    assert keys(history) == ["3"]
    history.crash(0)
    history.act(0, "delete a again", lambda it: history.delete_one(it, "a", is_again=True))
    history.crash(1)
    assert keys(history) == ["3"]
    history.act(0, "collect", lambda it: it.collect(0))
    assert not keys(history)


@pytest.mark.parametrize("what", ["ship", "sweep"])
def test_what_comes_by_itself_after_a_restart_claims_no_name(history: Rules, what: str) -> None:
    """Another sidecar deleted the thread, which has a save here that was never archived, and versions to prune."""
    history.set_retention(0, "a", 1)
    history.save_one(0, "a", "main", 10, conditional=False, archived=False, rests=False, plan=NONE)
    history.take(1, "a", NONE)
    history.delete(1, "a", NONE, now=True)
    history.background(1, NONE)
    history.crash(0)
    if what == "ship":
        history.ship(0, NONE)
    else:
        history.wait(11.0)
        history.act(0, "sweep", lambda it: it.sweep(), sweeps=True)
    sidecar = history.sidecars[0]
    assert not sidecar.archive.state.hooks.claims
    assert not keys(history)
    assert sidecar.find("a") is None
