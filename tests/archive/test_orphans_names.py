"""The danger: what a machine set aside hides a thread of another machine, because both have one name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.daemon.process import Fleet, eventually, write_steps

from stateward import Client, Effect, errors
from stateward.models import Access
from stateward.testing import run_daemon
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.store.thread.threads import bare_name, check_new, is_orphans, orphan_name

USERS = ("team", "team@", "team@1", "team@1.2", "team@@", "team@@x", "team@@1.", "team@@1.x", "@@1", "team@@1 ")
ORPHANS = ("team@@1", "team@@0", "team@@1.2", "team@@@1", "team@1@@12", "a\u2028@@1")


def set_aside(machines: Fleet, name: str) -> tuple[Client, Client, str]:
    """One machine that has an orphan of a thread, another one that has the thread, and the orphan's name."""
    old = machines.client(machines.machine("first", archive_check="600"), retry_timeout=0)
    write_steps(old, name, 2, archived=True)
    new = machines.client(machines.machine("second"))
    new.thread(name).archive.attach(take_over=True)
    write_steps(new, name, 1, archived=True)
    state = old.thread(name).hydrate()
    state.slots["mine"] = True
    old.thread(name).save(state)

    def found() -> list[str]:
        return [each.name for each in old.threads() if each.access is Access.ORPHAN]

    eventually(found)
    (orphan,) = found()
    return old, new, orphan


def test_a_thread_of_the_old_form_is_nobody_elses(machines: Fleet) -> None:
    """A thread `team@1` of another machine is read and written where `team` was set aside."""
    elsewhere = machines.client(machines.machine("third"))
    write_steps(elsewhere, "team@1", 3, archived=True)
    elsewhere.thread("team@1").archive.detach()
    old, _, orphan = set_aside(machines, "team")
    assert orphan == "team@@1"
    assert old.thread(orphan).hydrate().slots["mine"] is True
    assert old.thread("team@1").hydrate().slots["count"] == 3
    write_steps(old, "team@1", 1, archived=True)
    elsewhere.thread("team@1").archive.attach(take_over=True)
    assert elsewhere.thread("team@1").hydrate().slots["count"] == 4


def test_an_orphan_of_a_long_name_is_read_copied_and_deleted(machines: Fleet) -> None:
    """The longest name of a thread leaves no room for an ending, and its orphan is as good as any."""
    name = "n" * 1024
    old, _, orphan = set_aside(machines, name)
    assert len(orphan) > 1024
    assert old.thread(orphan).hydrate().slots["mine"] is True
    assert old.thread(orphan).fork("kept").hydrate().slots["mine"] is True
    old.thread(orphan).delete()
    assert [each.name for each in old.threads() if each.access is Access.ORPHAN] == []
    assert old.thread(name).hydrate().slots["count"] == 3


def test_nothing_makes_a_thread_under_an_orphans_name(machines: Fleet) -> None:
    """Every way to make a thread is refused, with the field, and leaves nothing in the bucket; reads find nothing."""
    client = machines.client(machines.machine("first"))
    refuse_all(client)
    write_steps(client, "source", 1, archived=True)
    assert len([key for key in machines.objects() if key.startswith("v1/_keys/t/")]) == 1
    assert len([key for key in machines.objects() if key.endswith("/HEAD")]) == 2  # of these names, and of the deleted


def test_nor_does_a_daemon_without_an_archive(tmp_path: Path) -> None:
    """Else the thread could hide one of another machine once an archive is switched on."""
    with run_daemon(tmp_path / "data") as daemon, daemon.client() as client:
        refuse_all(client)


def refuse_all(client: Client) -> None:
    """Tries each verb that makes a thread."""
    write_steps(client, "source", 1)
    client.thread("team@1").records.put("k", 1)
    client.thread("team@1").delete()
    for name in ORPHANS:
        thread = client.thread(name)
        state = thread.hydrate()
        assert state.version == 0
        state.slots["x"] = 1
        tries = (
            lambda thread=thread, state=state: thread.save(state),
            lambda thread=thread: thread.append("m", 1),
            lambda thread=thread: thread.records.put("k", 1),
            lambda thread=thread: thread.blobs.write(b"x"),
            lambda thread=thread: thread.effects.put([Effect("k", 1)]),
            lambda thread=thread: thread.lease().__enter__(),
            lambda name=name: client.thread("source").fork(name),
            lambda name=name: client.thread("source").fork(name, all_versions=True),
        )
        for each in tries:
            with pytest.raises(errors.InvalidField) as caught:
                each()
            assert caught.value.metadata["field"] in ("thread", "new_thread"), caught.value
        with pytest.raises(errors.ThreadNotFound):
            thread.delete()
    assert [each.name for each in client.threads()] == ["source"]


def test_names_that_only_look_alike_are_free() -> None:
    """Only the whole form is an orphan's, and the form of every orphan is recognised."""
    assert [name for name in USERS if is_orphans(name)] == []
    assert [name for name in ORPHANS if not is_orphans(name)] == []
    for thread in (*USERS, "a\nb"):
        taken = {f"{thread}@@7", f"{thread}@@7.2"}
        name = orphan_name(thread, 7, taken.__contains__)
        assert (name, is_orphans(name), bare_name(name)) == (f"{thread}@@7.3", True, thread)
        with pytest.raises(InvalidField):
            check_new(name)
