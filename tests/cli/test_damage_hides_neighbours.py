"""The danger: one damaged version, record or effect hides all others of its thread, or is left out without a word."""

import json
import os
import re

import lmdb
import pytest
from tests.cli.conftest import run

from stateward import RawValue, salvage
from stateward.cli.commands.threads import collected
from stateward.errors import Corrupt, ThreadsUnreadable
from stateward.testing import missing_daemon, run_daemon

# Threads in the order in which they are made, with the kind of row that is damaged, and how.
DAMAGE = {
    "values": (b"J", "flip"), "rows": (b"K", "flip"), "row gone": (b"K", "lose"),
    "results": (b"J", "flip"), "calls": (b"E", "flip"), "call gone": (b"E", "lose"), "versions": (b"J", "flip"),
    "branches": (b"J", "flip"), "versions with calls": (b"E", "flip"), "whole": None,
}  # fmt: skip
KEYS = [f"k{number}" for number in range(6)]


def fill(client, name):
    """Writes six of each, with bytes that cannot be packed, so that damage in the middle hits one of them."""
    thread = client.thread(name)
    for key in KEYS:
        noise = RawValue("a/b", os.urandom(300))
        if name in ("values", "rows", "row gone", "whole"):
            thread.records.put(f"a/{key}", noise)
        if name in ("results", "calls", "call gone", "versions with calls", "whole"):
            thread.effects.run(key, lambda noise=noise: noise, anchor="a")
        if name in ("versions", "branches", "versions with calls", "whole"):
            writer = thread.branch("b", at=1) if (name, key) == ("branches", "k1") else thread
            writer.save(writer.hydrate(), metadata={"noise": os.urandom(300).hex()})


def harm(daemon):
    """Damages a row of each thread of a daemon that is stopped."""
    directory = next(daemon.data_dir.rglob("data.mdb")).parent
    with lmdb.open(str(directory), map_size=1 << 30, max_dbs=0) as store, store.begin(write=True) as writing:
        for number, each in enumerate(DAMAGE.values(), 1):
            kind, how = each or (b"J", "")
            begin = b"T" + number.to_bytes(4, "big") + kind
            key = next(bytes(key) for key, _ in writing.cursor() if bytes(key).startswith(begin))
            row = bytearray(writing.get(key))
            row[len(bytes(row).rstrip(b"\0")) // 2] ^= how == "flip"
            writing.delete(key) if how == "lose" else writing.put(key, bytes(row))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    if reason := missing_daemon():
        pytest.skip(reason)
    with run_daemon(tmp_path_factory.mktemp("neighbours") / "data") as daemon:
        with daemon.client() as client:
            for name in DAMAGE:
                fill(client, name)
        daemon.stop()
        harm(daemon)
        daemon.start()
        yield daemon


def shown(store, *command):
    """Runs a command that prints JSON; returns what it shows, and its complaints."""
    answer = run("--target", store.target, *command, "--json")
    lines = answer.err.splitlines()
    assert all(line.startswith("stateward: ") for line in lines)
    told = [line.removeprefix("stateward: ") for line in lines if "--" not in line]  # hints name options
    assert answer.code == bool(told), answer.err
    return json.loads(answer.out), told


LISTS = [
    ("records|list|{}", "values", "key", 5, r"'a/k\d': thread 'values': "),
    ("records|list|{}|--newest", "values", "key", 5, r"'a/k\d': thread 'values': "),
    ("records|list|{}|--limit|6", "values", "key", 5, r"'a/k\d': thread 'values': "),
    ("records|list|{}", "rows", "key", 5, "thread 'rows': a record cannot be opened"),
    ("records|list|{}|--by|/", "rows", "prefix", 1, "thread 'rows': a record cannot be opened"),
    ("records|list|{}", "row gone", "key", 5, "thread 'row gone': the row of a record is missing"),
    ("effects|{}", "results", "key", 5, r"'k\d' of anchor 'a': thread 'results': "),
    ("effects|{}|--anchor|a", "results", "key", 5, r"'k\d' of anchor 'a': thread 'results': "),
    ("effects|{}", "calls", "key", 5, "thread 'calls': an effect cannot be opened"),
    ("effects|{}|--anchor|a", "calls", "key", 5, "thread 'calls': an effect cannot be opened"),
    ("effects|{}|--anchor|other", "calls", "key", 0, "thread 'calls': "),
    ("effects|{}", "call gone", "key", 5, "thread 'call gone': the row of an effect is missing"),
    ("history|{}", "versions", "version", 5, r"version \d: thread 'versions': .*"),
    ("history|{}|--limit|2", "versions", "version", 2, None),
    ("history|{}|--all", "branches", "version", 5, r"version \d: thread 'branches': .*"),
    ("history|{}", "versions with calls", "version", 6, "thread 'versions with calls': an effect cannot be opened"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "name", "field", "count", "says"), LISTS, ids=lambda each: str(each)[:30])
def test_the_others_are_listed(store, command, name, field, count, says):
    """Each list shows what can be read, names what cannot, and exits 1."""
    found, told = shown(store, *command.format(name).split("|"))
    assert len({each[field] for each in found}) == len(found) == count
    if says is None:
        assert told == []
        return
    assert re.match(says, told[0]), told
    assert len(told) == 2
    assert told[1].startswith("the list lacks 1 ")
    if named := re.match(r"'(\S+)'|version (\d+)", told[0]):
        assert (named[1] or int(named[2])) not in {each[field] for each in found}


def test_what_is_whole_is_whole(store):
    """A thread beside them has no complaint."""
    for command, count in (("records|list", 6), ("effects", 6), ("history", 6)):
        found, told = shown(store, *command.split("|"), "whole")
        assert (len(found), told) == (count, [])


def test_replay_names_calls_that_it_lacks(store):
    """A replay without one tool call says so."""
    answer = run("--target", store.target, "replay", "versions with calls")
    assert answer.code == 1
    assert "the list lacks 1 effect of thread 'versions with calls'" in answer.err


def test_pages_name_each_once(store):
    """A list of several pages names each damaged element once, and shows each other once."""
    with store.client() as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(salvage, "PAGE_MAX", 2)
        found = salvage.list_records(client.records("values"), "", newest_first=False, most=100)
        assert (len(found.items), len(found.damaged)) == (5, 1)
        found = salvage.list_records(client.records("rows"), "", newest_first=False, most=100)
        assert (len(found.items), len(found.damaged)) == (5, 1)
        found = salvage.list_versions(client.thread("versions"), "main", None)
        assert (len(found.items), len(found.damaged)) == (5, 1)


def test_programs_do_not_get_a_part_for_the_whole(store):
    """Lists of the library fail, and so does a list over all threads after its last version."""
    with store.client() as client:
        for name in ("values", "rows", "row gone"):
            with pytest.raises(Corrupt):
                list(client.records(name).list())
        for name in ("results", "calls", "call gone"):
            with pytest.raises(Corrupt):
                list(client.thread(name).effects.list())
        with pytest.raises(Corrupt):
            list(client.thread("versions").checkpoints.list())
        found, problem = collected(client.checkpoints())
        assert isinstance(problem, ThreadsUnreadable)
        assert {each.name for each in problem.threads} == {"versions", "branches"}
        assert len(found) == 4 * 6 - 2
