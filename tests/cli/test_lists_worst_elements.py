"""The danger: one thread that cannot be read ends a list, a count or a backup of everybody's threads."""

import json

import pytest
from tests.cli.conftest import run
from tests.cli.test_lists_silent_gaps import flip

from stateward import RawValue
from stateward.cli.commands import export
from stateward.cli.show import one_by_one
from stateward.errors import Corrupt
from stateward.testing import run_daemon

TEN = [f"t{number}" for number in range(10)]
BAD = "t3"
BIG = 300_000


def make(client, names=TEN, **options):
    for name in names:
        client.thread(name).append("messages", {"role": "user", "content": name}, **options)


def threads_of(path):
    return {found["thread"] for found in map(json.loads, path.read_text().splitlines()) if "thread" in found}


def imported(path, tmp_path):
    """What a daemon of its own has after an import that must have no complaint."""
    with run_daemon(tmp_path / "restored") as other:
        answer = run("--target", other.target, "import", path)
        assert (answer.code, answer.err) == (0, "")
        with other.client() as client:
            return {info.name: info.version for info in client.threads()}


def interrupt(monkeypatch, happens, name=BAD, *, asks_again=False):
    """Lets something happen after the first line of a thread, at each attempt. `asks_again`: the rest then comes from a
    new stream, so that it does not depend on how much the daemon had sent."""
    lines = export._backup_lines

    def interrupted(client, each):
        for count, line in enumerate(lines(client, each)):
            yield line
            if each == name and not count:
                happens()
                if asks_again:
                    yield from lines(client, each)
                    return

    monkeypatch.setattr(export, "_backup_lines", interrupted)


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_thread_is_removed_while_it_is_read(own_daemon, monkeypatch, tmp_path, suffix):
    """The others are exported, nothing of it is in the file, and the import has no complaint."""
    path = tmp_path / f"all.{suffix}"
    with own_daemon.client() as client:
        make(client)
        interrupt(monkeypatch, lambda: client.thread(BAD).delete(missing_ok=True), asks_again=True)
        answer = run("--target", own_daemon.target, "export", "--all", "--versions", "-o", path)
    assert answer.code == 0
    assert f"{BAD!r} was removed meanwhile" in answer.err
    assert set(imported(path, tmp_path)) == set(TEN) - {BAD}


def test_a_pipe_learns_which_lines_do_not_count(own_daemon, monkeypatch, tmp_path):
    """The lines of a thread that fails are counted on stderr, the last line counts whole threads, and import drops what
    has no end."""
    path = tmp_path / "piped.jsonl"
    with own_daemon.client() as client:
        make(client)
        interrupt(monkeypatch, lambda: client.thread(BAD).delete(missing_ok=True), asks_again=True)
        answer = run("--target", own_daemon.target, "export", "--all", "--versions")
    assert answer.code == 0
    assert f"1 line of thread {BAD!r} left already, without its end record: readers must drop them" in answer.err
    lines = list(map(json.loads, answer.out.splitlines()))
    ends = {each["thread"] for each in lines if each["kind"] == "end"}
    assert (lines[-1]["kind"], lines[-1]["threads"], ends) == ("file_end", 9, set(TEN) - {BAD})
    path.write_text(answer.out)
    with run_daemon(tmp_path / "restored") as other:
        answer = run("--target", other.target, "import", path)
        with other.client() as client:
            assert {info.name for info in client.threads()} == ends
    assert BAD in answer.err


def test_the_daemon_is_restarted_in_the_middle(own_daemon, monkeypatch, tmp_path):
    """The export waits for the daemon, reads the thread anew, and is whole."""
    path, restarts = tmp_path / "all.jsonl", []

    def restart():
        if not restarts:
            restarts.append(own_daemon.kill())
            own_daemon.start()

    with own_daemon.client() as client:
        make(client)
        for number in range(24):
            client.thread(BAD).append("messages", RawValue("text/plain", bytes([65 + number]) * BIG))
    interrupt(monkeypatch, restart)
    answer = run("--target", own_daemon.target, "export", "--all", "--versions", "-o", path)
    assert (answer.code, len(restarts)) == (0, 1), answer.err
    assert imported(path, tmp_path) == dict.fromkeys(TEN, 1) | {BAD: 25}


def test_a_thread_that_ends_the_daemon(own_daemon, monkeypatch, tmp_path):
    """After a few attempts it is named, and the others are exported."""
    path = tmp_path / "all.jsonl"
    monkeypatch.setattr(one_by_one, "ATTEMPTS", 1)

    def end():
        own_daemon.kill()
        own_daemon.start()

    with own_daemon.client() as client:
        make(client)
        for number in range(24):
            client.thread(BAD).append("messages", RawValue("text/plain", bytes([65 + number]) * BIG))
    interrupt(monkeypatch, end)
    answer = run("--target", own_daemon.target, "export", "--all", "--versions", "-o", path)
    assert answer.code == 1
    assert f"the daemon ended 1 times while {BAD!r} was read" in answer.err
    assert threads_of(path) == set(TEN) - {BAD}


def break_thread(monkeypatch, module, name):
    """Lets the reads of one thread find damage, as those of a daemon with a damaged disk do."""
    read = getattr(module, name)

    def broken(*given, **options):
        if BAD in map(str, given) or any(getattr(each, "name", "") == BAD for each in given):
            raise Corrupt(f"entry 1 of thread {BAD!r} is damaged")
        return read(*given, **options)

    monkeypatch.setattr(module, name, broken)


FORMS = (["--versions"], [], ["--messages-only"], ["--trajectories"])


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("how", ["all", "named"])
def test_an_export_names_the_thread_that_fails(stateward, client, monkeypatch, tmp_path, form, how):
    """Nine threads are in the file, the tenth is named, and the exit code is 1."""
    make(client, status="completed")
    path = tmp_path / "all.jsonl"
    place, verb = (export, "_lines")
    if form == ["--trajectories"]:
        from stateward.cli.commands import export_trajectories

        place, verb = export_trajectories, "_line"
    break_thread(monkeypatch, place, verb)
    every = [] if form == ["--trajectories"] else ["--all"]
    answer = stateward("export", *(TEN if how == "named" else every), *form, "-o", path)
    assert answer.code == 1
    assert f"entry 1 of thread {BAD!r} is damaged" in answer.err
    assert "the export lacks threads: 1 thread named above" in answer.err
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert {each.get("thread") or each.get("run_id") for each in found} - {None} == set(TEN) - {BAD}


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_file_of_before_is_better_than_none(stateward, client, monkeypatch, tmp_path, form):
    """An export that could read no thread leaves the file of before."""
    make(client, [BAD], status="completed")
    path = tmp_path / "all.jsonl"
    path.write_text("before")
    from stateward.cli.commands import export_trajectories

    break_thread(monkeypatch, export, "_lines")
    break_thread(monkeypatch, export_trajectories, "_line")
    answer = stateward("export", *([] if form == ["--trajectories"] else ["--all"]), *form, "-o", path)
    assert (answer.code, path.read_text(), list(tmp_path.iterdir())) == (1, "before", [path])


@pytest.mark.parametrize(
    ("command", "verb"), [(["tools"], "_calls"), (["failures"], "_last_failure"), (["tools", *TEN], "_calls")], ids=str
)
def test_counts_name_the_thread_that_fails(stateward, client, monkeypatch, command, verb):
    """A table of tools or failures has the other nine, names the tenth, and exits 1."""
    from stateward.cli.files import transcripts

    for name in TEN:
        call = {"role": "assistant", "tool_calls": [{"id": "1", "name": f"tool-{name}"}]}
        client.thread(name).append("messages", call, status="failed")
    break_thread(monkeypatch, transcripts, verb)
    answer = stateward(*command, "--json")
    assert answer.code == 1
    assert f"entry 1 of thread {BAD!r} is damaged" in answer.err
    found = json.loads(answer.out)
    assert {each.get("last_thread") or each["thread"] for each in found} == set(TEN) - {BAD}


COMMANDS = (
    ["threads", "--limit", "0", "--json"], ["waiting", "--json"], ["tools", "--json"], ["export", "--all"],
    ["export", "--all", "--versions"], ["export", "--prefix", "t", "--messages-only"],
    ["export", "--trajectories", "--status", "waiting"],
)  # fmt: skip


def test_every_list_serves_what_can_be_opened(tmp_path):
    """With a damaged key, every command that lists or exports has the other nine, says so, and exits 1."""
    with run_daemon(tmp_path / "data") as daemon:
        with daemon.client() as client:
            for name in TEN:
                call = {"role": "assistant", "tool_calls": [{"id": "1", "name": f"tool-{name}"}]}
                client.thread(name).append("messages", call, status="waiting")
        daemon.stop()
        flip(daemon.data_dir, 60)
        daemon.start()
        for command in COMMANDS:
            answer = run("--target", daemon.target, *command)
            assert answer.code == 1, command
            assert "1 thread cannot be opened" in answer.err, command
            found = [json.loads(line) for line in answer.out.splitlines()]
            if len(found) == 1:
                found = found[0]
            names = {each.get("last_thread") or each.get("thread") or each.get("run_id") for each in found} - {None}
            assert len(names) == 9, command
