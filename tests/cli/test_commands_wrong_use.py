"""The danger: a stack trace, silence or a wrong exit code where somebody made an ordinary mistake."""

import contextlib
import gzip
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warmcommand
from tests.cli.conftest import COMMAND, environment, make_run, run
from tests.cli.test_confirmations_unseen_changes import all_commands

from stateward.cli.options.catalog import SECTIONS

ARCHIVE_COMMANDS = ("status", "list", "verify", "gc", "index", "restore", "repair")
# Runs a command line in a process where some packages cannot be imported.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = ["stateward", *{arguments!r}]
from stateward.cli import main
main()
"""


def test_no_daemon(tmp_path, monkeypatch):
    """Without a daemon the error says where it was looked for and how to start one."""
    monkeypatch.setattr("stateward.cli.options.connect.READY_TIMEOUT_S", 0.2)
    socket = tmp_path / "s.sock"
    answer = run("--target", socket, "threads")
    assert answer.code == 1
    assert str(socket) in answer.error
    assert "stateward-sidecar" in answer.error


def test_no_daemon_at_the_default_place(tmp_path, monkeypatch):
    """The target comes from the environment where no flag gives one."""
    monkeypatch.setattr("stateward.cli.options.connect.READY_TIMEOUT_S", 0.2)
    answer = run("show", "x", STATEWARD_TARGET=str(tmp_path / "e.sock"))
    assert answer.code == 1
    assert "e.sock" in answer.error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["shwo"], "shwo"),
        (["show"], "THREAD"),
        (["threads", "--bad"], "--bad"),
        (["threads", "--status", "asleep"], "waiting"),
        (["threads", "--label", "model"], "KEY=VALUE"),
        (["threads", "--limit", "-1"], "--limit"),
        (["show", "x", "--last", "many"], "--last"),
        (["import"], "FILE"),
        (["import", "f", "--concurrency", "0"], "--concurrency"),
        (["demo", "--steps", "1"], "--steps"),
        (["threads", "--updated-since", "yesterday"], "2026-01-31T12:00"),
        (["threads", "--updated-before", "5x"], "--updated-before"),
        (["history"], "THREAD"),
        (["history", "x", "--limit", "-1"], "--limit"),
        (["show", "x", "--raw"], "--slot"),
        (["diff", "x"], "FROM"),
        (["fork", "x"], "NEW"),
        (["fork", "x", "y", "--whole", "--at", "1"], "--whole"),
        (["tag", "x", "--delete"], "NAME"),
        (["tag", "x", "y", "--delete", "--at", "1"], "--delete"),
        (["rm"], "--prefix"),
        (["rm", "x", "--prefix", "y"], "--prefix"),
        (["rm", "--prefix", "", "--yes"], "every thread"),
        (["prune", "x"], "--keep-latest"),
        (["prune", "x", "--keep-latest", "0"], "--keep-latest"),
        (["prune", "x", "--keep-latest", "1", "--older-than", "1d"], "give one"),
        (["prune", "x", "--older-than", "soon"], "12h"),
        (["prune", "x", "--older-than", "0d"], "--older-than"),
        (["prune", "x", "--versions", "3-1"], "3-17"),
        (["prune", "x", "--versions", "1-999999999"], "100,000"),
        (["watch", "--from-start"], "THREAD"),
        (["watch", "x", "--label", "a=b"], "--label"),
        (["watch", "--until", "0"], "--until"),
        (["export"], "--all"),
        (["export", "x", "-o", ""], "--output"),
        (["export", "--trajectories", "--max-metric", "cost=nan"], "NAME=NUMBER"),
        (["export", "--trajectories", "--min-metric", "cost=1", "--min-metric", "cost=2"], "'cost' is given twice"),
        (["threads", "--label", "a=1", "--label", "a=2"], "'a' is given twice"),
        (["branch", "x", "b", "--set", "x=1", "--unset", "x"], "slot 'x' is in --set, too"),
        (["branch", "x", "b", "--set", "x=1", "--set", "x=2"], "slot 'x' is given twice"),
        (["branch", "x", "b", "--unset", "x", "--unset", "x"], "slot 'x' is given twice"),
        (["branch", "x", "6"], "the number of a version"),
        (["branch", "x", "branch:b"], "as a branch"),
        (["branch", "x", "a..b"], "as two versions"),
        (["tag", "x", "5"], "the number of a version"),
        (["tag", "x", "--", "-5"], "the number of a version"),
        (["tag", "x", "step:1"], "as a step"),
        (["tag", "x", "id:x", "--at", "3"], "as a checkpoint id"),
        (["tag", "x", "tag:x", "--yes"], "as a tag"),
        (["tag", "x", "a..b", "--expected", "0"], "as two versions"),
        (["tag", "x", ""], "it is empty"),
        (["approve", "x", "--as", "ana\nbob"], "'ana\\nbob' has characters that cannot be shown"),
        (["signal", "x", "note", "--as", "\x1b[2J"], "--as"),
        (["export", "x", "--all"], "--all"),
        (["export", "x", "--versions", "--messages-only"], "--versions"),
        (["keys", "new"], "FILE"),
        (["keys", "old"], "old"),
        (["completion", "tcsh"], "fish"),
        (["stats", "x"], "x"),
        (["verify", "--quick"], "--quick"),
        (["verify", "--read-data", "5%"], "--archive"),
        (["archive", "verify", "--read-data", "all"], "100"),
        (["archive", "verify", "--read-data", "101"], "--read-data"),
        (["archive", "gc", "--older-than", "soon"], "--older-than"),
        (["archive", "repair"], "THREAD"),
        (["archive", "reset"], "reset"),
        (["attach"], "THREAD"),
        (["attach", "x", "--take-over", "--wait", "1m"], "only one"),
        (["attach", "x", "--wait", "long"], "--wait"),
        (["detach", "x", "y"], "y"),
        (["threads", "--no-start"], "before the command: stateward --no-start threads"),
        (["show", "t", "--session-key-file", "k"], "the command: stateward --session-key-file FILE show"),
    ],
)
def test_wrong_usage(arguments, told):
    """Wrong usage is exit code 2 and one line that names the mistake and the page with help."""
    answer = run(*arguments)
    assert answer.code == 2
    assert told in answer.error
    assert "--help" in answer.error


EVERYWHERE = [
    (option, words)
    for words, command in all_commands().items()
    for option in ("--namespace", "--target")
    if any(option in each.opts for each in command.params)
]


def test_every_command_takes_a_namespace():
    """The next test would be empty if the commands were not found."""
    assert len(EVERYWHERE) > 50


@pytest.mark.parametrize(("option", "words"), EVERYWHERE)
def test_an_empty_namespace(option, words):
    """An empty value is a variable that is not set. It does not mean the default one, of no command."""
    for arguments in ([*words.split(), option, ""], [option, "", *words.split()]):
        answer = run(*arguments)
        assert answer.code == 2
        assert option in answer.error
        assert "it is empty" in answer.error


def test_an_empty_variable(daemon):
    """An empty variable of the environment is one that is not set."""
    with daemon.client() as client:
        client.thread("empty-variable").append("l", 1)
    shown = run("--target", daemon.target, "show", "empty-variable", STATEWARD_NAMESPACE="")
    assert shown.code == 0, shown.err


def test_too_long_a_socket_path():
    """A socket path that the system cannot take is said to be too long."""
    answer = run("--target", "unix:///" + "x" * 200, "threads")
    assert answer.code == 1
    assert "--target" in answer.error


@pytest.mark.parametrize("name", ["nope", "a\nb", "x" * 2000])
def test_unknown_thread(stateward, name):
    """A thread that is not there, or cannot be, is one line."""
    answer = stateward("show", name)
    assert answer.code == 1
    assert answer.error


def test_names_that_lead_elsewhere(stateward, client):
    """A tag is not named as a branch, and a branch not as a tag; nothing is made. A tag that a program has named so can
    be moved by programs, and deleted."""
    thread = client.thread("t")
    thread.append("messages", 1)
    thread.append("messages", 2)
    assert stateward("branch", "t", "cheap", "--at", "1").code == 0
    thread.tags.set("good", 1)
    before = thread.info()
    for arguments, told in (
        (["tag", "t", "main"], "'main' is a branch"),
        (["tag", "t", "cheap", "--yes"], "'cheap' is a branch"),
        (["branch", "t", "good"], "'good' is a tag"),
        (["tag", "t", "5"], "the number of a version"),
    ):
        answer = stateward(*arguments)
        assert (answer.code, told in answer.error) == (2, True), answer
    assert thread.info().sequence == before.sequence
    for name in ("5", "step:1", "id:x", "a..b", "cheap"):
        thread.tags.set(name, 1)
        assert stateward("tag", "t", name, "--delete", "--yes").code == 0, name
    assert [each.name for each in thread.info().tags] == ["good"]
    odd = thread.branch("6", at=1)
    odd.save(odd.hydrate())
    assert stateward("branch", "t", "6", "--delete", "--yes").code == 0


def test_one_key_twice(stateward, client):
    """An object with the same key twice would lose a value, wherever it is."""
    client.thread("t").append("messages", 1)
    twice = '[{"a": {"k": 1, "k": 2}}]'
    for arguments in (
        ["records", "put", "t", "r", twice],
        ["branch", "t", "b", "--set", f"x={twice}"],
        ["signal", "t", "note", "--json", twice],
        ["answer", "t", "--json", twice],
    ):
        answer = stateward(*arguments)
        assert answer.code == 1
        assert "the key 'k' is in an object twice" in answer.error
    assert stateward("records", "put", "t", "r", '{"k": {"k": 1}}').code == 0


def test_the_branch_that_every_thread_has(stateward, client):
    """It cannot be deleted, and the error says so rather than that a name is wrong."""
    client.thread("t").append("messages", 1)
    for more in ([], ["--yes"], ["--expected", "1"]):
        answer = stateward("branch", "t", "main", "--delete", *more)
        assert answer.code == 1
        assert "'main' cannot be deleted" in answer.error


def test_a_thread_of_records(stateward, client):
    """It has no version, and the error names the command that lists what it has."""
    client.records("kept").put("k", 1)
    for command in ("show", "history", "replay"):
        answer = stateward(command, "kept")
        assert answer.code == 1
        assert "`stateward records list kept` lists" in answer.error
        assert "effects" not in answer.error
    client.thread("kept").effects.run("e", lambda: 1)
    assert "`stateward effects`" in stateward("show", "kept").error


def test_a_database_is_no_recording(stateward, tmp_path):
    """A file of SQLite leads to the command that reads LangGraph's."""
    path = tmp_path / "checkpoints.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as made:
        made.execute("create table t (n)")
        made.commit()
    answer = stateward("import", path)
    assert answer.code == 1
    assert f"stateward import langgraph {path}" in answer.error


@pytest.mark.parametrize("which", [["a", "b"], ["--prefix", "a"]])
def test_records_of_an_unknown_thread(stateward, client, which):
    """Nothing to delete is fine; a thread that is not there is a mistake."""
    answer = stateward("records", "rm", "nowhere", *which, "--yes")
    assert answer.code == 1
    assert "there is no thread 'nowhere'" in answer.error
    client.thread("t").append("messages", 1)
    answer = stateward("records", "rm", "t", *which, "--yes")
    assert (answer.code, answer.out) == (0 if which[0] == "--prefix" else 1, "0 records deleted\n")
    assert "there is no thread 'nowhere'" in stateward("records", "get", "nowhere", "a").error
    assert "has no record 'a'" in stateward("records", "get", "t", "a").error


def test_nobody_as_the_sender(stateward, client):
    """An answer says who gave it."""
    client.thread("t").append("messages", 1)
    answer = stateward("signal", "t", "note", "--as", "")
    assert answer.code == 2
    assert "--as" in answer.error
    assert client.thread("t").hydrate().signals == ()


def test_unknown_version_log_and_tag(stateward, client):
    """What a thread does not have is named, with what it has."""
    client.thread("t").append("messages", 1)
    for at in ("2", "0", "-1", "good", "99999999999999999999"):
        answer = stateward("show", "t", f"--at={at}")
        assert answer.code == 1, at
        assert answer.error
    answer = stateward("show", "t", "--log", "other")
    assert answer.code == 1
    assert answer.error.endswith("it has: messages")
    answer = stateward("show", "t", "--slot", "other")
    assert answer.code == 1
    assert answer.error.endswith("it has: no slot")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["history", "nope"], "`stateward threads`"),
        (["history", "t", "--branch", "b"], "it has: main"),
        (["show", "t", "--at", "id:none"], "`stateward history THREAD --all`"),
        (["show", "t", "--at", "id:"], "id:CHECKPOINT_ID"),
        (["diff", "t", "7"], "version 7"),
        (["diff", "t", "x"], "'x'"),
        (["diff", "t", "1", "0"], "count from 1"),
        (["fork", "t", "t"], "another name"),
        (["fork", "nope", "t2"], "`stateward threads`"),
        (["tag", "t", "good", "--at", "9"], "version 9"),
        (["tag", "t", "good", "--delete"], "`stateward tag THREAD`"),
        (["tag", "t", "good", "--expected", "1"], "`stateward tag t`"),
        (["prune", "t", "--versions", "1", "--yes"], "version 1"),
        (["watch", "nope"], "`stateward threads`"),
        (["watch", "--after-cursor", "nonsense", "--for", "1"], "cursor"),
        (["export", "nope"], "`stateward threads`"),
        (["export", "--prefix", "nope"], "`stateward threads`"),
        (["verify", "nope"], "`stateward threads`"),
        (["rm", "--prefix", "nope", "--yes"], "`stateward threads`"),
    ],
)
def test_what_is_not_there(stateward, client, arguments, told):
    """What a command does not find is one line with the next step."""
    client.thread("t").append("messages", 1)
    answer = stateward(*arguments)
    assert answer.code == 1
    assert told in answer.error


@pytest.mark.parametrize(
    "arguments",
    [
        ["attach", "t"],
        ["detach", "t"],
        ["restore"],
        ["verify", "--archive"],
        *(["archive", name] for name in ARCHIVE_COMMANDS if name != "repair"),
        ["archive", "repair", "t"],
    ],
)
def test_no_archive(stateward, client, arguments):
    """Without an archive each command about it is one line that says how to start a daemon with one."""
    client.thread("t").append("messages", 1)
    answer = stateward(*arguments)
    assert answer.code == 1
    assert "stateward-sidecar --archive URL" in answer.error


def test_local_without_an_archive(stateward, client):
    """Where there is nothing but this disk, to remove only what is on it is refused."""
    client.thread("t").append("messages", 1)
    answer = stateward("rm", "t", "--local-only", "--yes")
    assert answer.code == 1
    assert "no archive" in answer.error
    assert client.thread("t").info().version == 1


def test_arguments_that_are_no_utf_8(stateward):
    """Bytes that no name can hold are one line too."""
    for arguments in (["show", "\udcff"], ["threads", "--prefix", "\udcff"], ["show", "t", "--at", "\udcff"],
                      ["records", "get", "t", "\udcff"]):  # fmt: skip
        answer = stateward(*arguments)
        assert answer.code == 1
        assert "not UTF-8" in answer.error


@pytest.mark.parametrize("arguments", [["--help"], ["threads", "--json"], ["export", "--all", "--versions"]])
def test_full_disk_behind_stdout(daemon, client, arguments):
    """What cannot be written to stdout is one line and exit code 1, and no trace of the program."""
    client.thread("t").append("l", "x" * 20_000)
    with Path("/dev/full").open("wb") as full:
        answer = warmcommand.run(
            [*COMMAND, "--target", daemon.target, "-n", client.namespace, *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (1, "stateward: cannot write to stdout: No space left on device\n")


def packed(*runs):
    return gzip.compress("".join(json.dumps(each) + "\n" for each in runs).encode())


GOOD = [make_run(f"r{number}", 50) for number in range(30)]
BAD_FILES = {
    "empty": (b"", "is empty"),
    "blank": (b"\n  \n", "is empty"),
    "prose": (b"# Notes\n", "line 1 is not JSON"),
    "pretty": (json.dumps(GOOD[0], indent=2).encode(), "line 1 is not JSON"),
    "list": (b"[1, 2]\n", "line 1 is not a JSON object"),
    "message": (b'{"role": "user", "content": "x"}\n', 'neither "messages" nor "states"'),
    "both": (b'{"messages": [], "states": []}\n', 'both "messages" and "states"'),
    "no list": (b'{"messages": {}}\n', '"messages" is not a list'),
    "latin": ('{"run_id": "é", "messages": []}\n'.encode("latin-1"), "is not UTF-8"),
    "deep": (b"[" * 100_000, "nested too deeply"),
    "long number": (b'{"messages": [' + b"9" * 5000 + b"]}", "more digits"),
    "cut gzip": (packed(*GOOD)[:300], "is damaged gzip"),
    "flipped gzip": (packed(*GOOD)[:100] + b"\xff\x00\xff" + packed(*GOOD)[103:], "is damaged gzip"),
    "no gzip": (b"\x1f\x8bxxxxxxxxxxxx", "is damaged gzip"),
    "zip": (b"PK\x03\x04\xff\xfe", "is not UTF-8"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_wrong_file(stateward, client, write, tmp_path, kind):
    """A file that cannot be imported is refused before anything is, and the error names it."""
    data, told = BAD_FILES[kind]
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(data)
    answer = stateward("import", write("good.jsonl", GOOD[0]), bad)
    assert answer.code == 1
    assert told in answer.error
    assert str(bad) in answer.error
    assert list(client.threads()) == []


def test_missing_file_and_directory(stateward, tmp_path):
    """What is no file is said to be none."""
    for path in (tmp_path, tmp_path / "missing.jsonl"):
        answer = stateward("import", path)
        assert answer.code == 1
        assert answer.error.startswith(f"cannot read {path}")


def test_one_wrong_line(stateward, client, tmp_path):
    """A run that cannot be imported is named with its line, and costs no other run its import."""
    wrong = [
        b"not json",
        b'{"run_id": "nan", "messages": [1, {"x": NaN}]}',
        b'{"run_id": "huge", "messages": [1e999]}',
        b'{"run_id": "none", "messages": []}',
        b'{"run_id": "state", "states": [{"messages": []}, 7]}',
    ]
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b"\n".join([json.dumps(GOOD[0]).encode(), *wrong, json.dumps(GOOD[1]).encode()]))
    answer = stateward("import", path)
    assert answer.code == 1
    for number in range(2, 7):
        assert f"{path} line {number}" in answer.err
    assert "messages[1].x" in answer.err
    assert "5 of 7 runs were not imported" in answer.err.splitlines()[-1]
    assert sorted(info.name for info in client.threads()) == ["runs/r0", "runs/r1"]


def test_two_files_of_one_name(stateward, client, write):
    """Files whose threads would be mixed up are refused together."""
    answer = stateward("import", write("a/runs.jsonl", GOOD[0]), write("b/runs.jsonl.gz", GOOD[1]))
    assert answer.code == 1
    assert "--thread-prefix" in answer.error
    assert list(client.threads()) == []


def test_too_large_a_message(own_daemon, write):
    """A state above the daemon's limit fails its run only. (One large value alone would be kept apart, as a blob.)"""
    large = {"run_id": "large", "states": [{"messages": ["x" * 900_000] * 80}]}
    answer = run("--target", own_daemon.target, "import", write("runs.jsonl", large, GOOD[0]))
    assert answer.code == 1
    assert len(answer.err.splitlines()) == 2, answer.err
    with own_daemon.client() as client:
        assert [info.name for info in client.threads()] == ["runs/r0"]


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_missing_extra(tmp_path, missing):
    """Without the extra the command says in one line what to install."""
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing={missing}, arguments=["threads"])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert answer.returncode == 1
    assert "pip install '.[cli]'" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_demo_without_the_daemon(tmp_path):
    """The demo without the daemon's dependencies says in one line what to install."""
    script = WITHOUT.format(missing=set(), arguments=["demo"])
    script = "import sys; sys.modules['lmdb'] = None\n" + script  # find_spec of such a module raises ValueError
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False
    )
    assert answer.returncode == 1
    assert "'.[sidecar,cli]'" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_help_needs_no_daemon():
    """Every command explains itself with examples; --version tells the version."""
    names = [name for entries in SECTIONS.values() for name in entries]
    for command in (
        [],
        *([name] for name in names),
        ["keys", "new"],
        *(["archive", name] for name in ARCHIVE_COMMANDS),
    ):
        answer = run(*command, "--help", COLUMNS="80")
        assert answer.code == 0
        assert "Examples:\n" in answer.out
        assert max(map(len, answer.out.splitlines())) <= 80
    assert run("--version").out.startswith("stateward ")


def test_help_lists_every_command_in_80_columns():
    """The help fits a narrow terminal, with every command in a section and no sentence cut off."""
    shown = run(COLUMNS="80").out
    assert max(map(len, shown.splitlines())) <= 80
    for title, entries in SECTIONS.items():
        assert f"\n{title}:\n" in shown
        for name, entry in entries.items():
            assert any(line.split() == [name, *entry.summary.split()] for line in shown.splitlines()), name


def test_help_loads_nothing_heavy():
    """`stateward --help` starts fast: neither gRPC, nor protobuf, nor the terminal library is imported for it."""
    script = (
        "import sys; from stateward.cli.app import run; run(['--help'])\n"
        "print([name for name in ('grpc', 'google.protobuf', 'rich.console') if name in sys.modules], file=sys.stderr)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=False
    )
    assert answer.stderr == "[]\n"


def test_reader_that_goes_away(stateward, client, daemon, namespace):
    """A pipe that is closed early ends the command without a word."""
    state = client.thread("t").hydrate()
    state.logs["messages"].extend({"role": "user", "content": "x" * 100} for _ in range(3000))
    client.thread("t").save(state)
    command = f"{sys.executable} -m stateward.cli --target {daemon.target} -n {namespace} show t --last 3000 | head -1"
    answer = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment(), timeout=60, check=False
    )
    assert (answer.stdout.count("\n"), answer.stderr) == (1, "")


def test_a_command_in_several_words(stateward):
    """`run` says that it is one text, and how to quote it."""
    said = stateward("run", "--on-signal", "python", "ask.py")
    assert said.code == 2
    assert "the command is one text, so quote it: 'python ask.py'" in said.error
    assert "words" not in stateward("run", "--help").out


def test_a_variable_that_is_wrong():
    """The error names it, and not the option that nobody gave."""
    assert run("threads", STATEWARD_TARGET="foo").error.startswith("STATEWARD_TARGET: foo has no port")
    assert run("--target", "foo", "threads").error.startswith("--target: foo has no port")
