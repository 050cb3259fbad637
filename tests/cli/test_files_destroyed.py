"""The danger: a command that writes a file destroys what was there, or leaves what agents wrote where nobody looks."""

import gzip
import json
import os
import signal
import stat
import sys
import threading

import pytest
from tests import warmcommand
from tests.cli.conftest import COMMAND, TIMEOUT_S, environment

from stateward.cli.files import files

LONG_NAME = "x" * 246 + ".jsonl"
# Sends itself a signal, twice as a shell and the kernel do, in the middle of an export.
SIGNALLED = """
import os, pathlib, signal, sys
from stateward.cli import app
from stateward.cli.commands import export
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv.pop(1) == "ignored" else signal.SIG_DFL)
lines = export._lines
def interrupted(*given, **options):
    for line in lines(*given, **options):
        yield line
        os.kill(os.getpid(), signal.SIGHUP)
export._lines = interrupted
unlink = pathlib.Path.unlink
def unlink_late(self, **options):
    os.kill(os.getpid(), signal.SIGHUP)
    unlink(self, **options)
pathlib.Path.unlink = unlink_late
sys.exit(app.run(sys.argv[1:]))
"""


@pytest.fixture
def thread(client):
    client.thread("t").append("messages", {"a": 1}, status="completed")


FORMS = (["--versions"], ["--messages-only"], ["--trajectories"])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_a_link_is_followed(stateward, thread, tmp_path, form):
    """A link stays a link, also one that leads to nothing yet, and its target gets the lines."""
    for name in ("old", "new"):
        link, target = tmp_path / name, tmp_path / "elsewhere" / name
        target.parent.mkdir(exist_ok=True)
        link.symlink_to(target)
        if name == "old":
            target.write_text("before")
        assert stateward("export", "t", *form, "-o", link).code == 0
        assert link.is_symlink()
        assert json.loads(target.read_text().splitlines()[0])
        assert [each.name for each in target.parent.iterdir()].count(name) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere", "new", "old"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_a_fifo_is_written_to(stateward, thread, tmp_path, form):
    """A FIFO stays one, and its reader gets the lines."""
    fifo, read = tmp_path / "fifo", list[bytes]()
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    assert stateward("export", "t", *form, "-o", fifo).code == 0
    reader.join(TIMEOUT_S)
    assert json.loads(read[0].splitlines()[0])
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert list(tmp_path.iterdir()) == [fifo]


def test_a_fifo_without_a_reader_is_not_waited_for_for_ever(stateward, thread, tmp_path, monkeypatch):
    """The command ends with an error that says so."""
    monkeypatch.setattr(files, "READER_TIMEOUT_S", 0.0)
    os.mkfifo(tmp_path / "fifo")
    answer = stateward("export", "t", "--versions", "-o", tmp_path / "fifo")
    assert (answer.code, "no process reads this FIFO" in answer.error) == (1, True)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_a_device_stays_a_device(stateward, thread, tmp_path, form):
    """The null device takes the lines, and is there for everybody afterwards."""
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("only root can make a device, on a file system that has devices")
    assert stateward("export", "t", *form, "-o", device).code == 0
    assert stat.S_ISCHR(device.stat().st_mode)


def test_what_a_shell_appends_to_is_not_replaced(daemon, client, namespace, thread, tmp_path):
    """/dev/stdout is stdout, and what stood in its file before stays."""
    path = tmp_path / "log"
    path.write_text("before\n")
    with path.open("ab") as log:
        command = [*COMMAND, "--target", daemon.target, "-n", namespace, "export", "t", "--versions"]
        ended = warmcommand.run([*command, "-o", "/dev/stdout"], stdout=log, env=environment(), timeout=TIMEOUT_S)
    assert ended.returncode == 0
    assert path.read_text().startswith('before\n{"stateward_version"')


def test_a_long_name(stateward, thread, tmp_path):
    """A name of 252 bytes is as good as a short one."""
    assert len(LONG_NAME) == 252
    assert stateward("export", "t", "--versions", "-o", tmp_path / LONG_NAME).code == 0
    assert [each.name for each in tmp_path.iterdir()] == [LONG_NAME]


def test_a_packed_file_can_be_read(stateward, thread, tmp_path):
    """A name that ends in .gz packs, also through a link."""
    assert stateward("export", "t", "--versions", "-o", tmp_path / "x.gz").code == 0
    assert json.loads(gzip.decompress((tmp_path / "x.gz").read_bytes()).splitlines()[-1])["kind"] == "file_end"


@pytest.mark.parametrize(("how", "code"), [("heard", 128 + signal.SIGHUP), ("ignored", 0)])
def test_a_closed_terminal_leaves_nothing(daemon, client, namespace, thread, tmp_path, how, code):
    """SIGHUP, also again during the cleanup, leaves the file of before; under nohup the export goes on."""
    path = tmp_path / "x"
    path.write_text("before")
    command = [sys.executable, "-c", SIGNALLED, how, "--target", daemon.target, "-n", namespace]
    ended = warmcommand.run(
        [*command, "export", "--all", "--versions", "-o", str(path)],
        env=environment(), timeout=TIMEOUT_S, capture_output=True,
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    assert list(tmp_path.iterdir()) == [path]
    assert (path.read_text() == "before") == (code != 0)
