"""The danger: a shell that hangs, or is written into, when somebody presses Tab."""

import shutil
import subprocess
import sys
import time

import pytest
from tests.cli.conftest import environment, run
from tests.cli.test_lists_silent_gaps import flip

from stateward.cli.options.catalog import SECTIONS


@pytest.fixture
def press_tab(daemon, namespace):
    """What bash would offer after the words."""

    def press(*words, target=daemon.target):
        line = ["stateward", "--target", target, "-n", namespace, *words]
        answer = run(_STATEWARD_COMPLETE="complete_bash", COMP_WORDS="\n".join(line), COMP_CWORD=str(len(line) - 1))
        assert answer.err == ""
        return answer.out.split("\n")[:-1] if answer.out.strip() else []

    return press


def test_names_of_threads(press_tab, client):
    """Threads that begin so are offered, but for names that the shell would take apart."""
    for name in ("run/1", "run/2", "other", "run/a b", "run/$(x)"):
        client.thread(name).append("l", 1)
    assert press_tab("show", "run/") == ["run/1", "run/2"]
    assert press_tab("rm", "run/1", "o") == ["other"]
    assert press_tab("archive", "repair", "o") == ["other"]
    assert press_tab("diff", "x") == []


def test_a_thread_that_cannot_be_opened(press_tab, own_daemon):
    """It costs no other name."""
    with own_daemon.client(namespace="default") as client:
        for name in ("run/1", "run/2", "run/3"):
            client.thread(name).append("l", 1)
    own_daemon.stop()
    flip(own_daemon.data_dir, 60)
    own_daemon.start()
    assert len(press_tab("-n", "default", "show", "run/", target=own_daemon.target)) == 2


def test_commands_and_options(press_tab):
    """Commands and their options are offered without any daemon."""
    nowhere = "unix:///nowhere.sock"
    assert press_tab("th", target=nowhere) == ["threads"]
    assert press_tab("show", "--sl", target=nowhere) == ["--slot"]
    assert press_tab("archive", "re", target=nowhere) == ["restore", "repair"]
    assert press_tab("completion", "", target=nowhere) == ["bash", "zsh", "fish"]


def test_no_daemon_is_silence(press_tab, tmp_path):
    """Where no daemon answers, nothing is offered, soon and without a word; the same for nonsense."""
    started = time.monotonic()
    assert press_tab("show", "r", target=str(tmp_path / "s.sock")) == []
    assert time.monotonic() - started < 5
    assert press_tab("show", "r", target="x" * 300) == []
    assert press_tab("nope", "x") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script(shell, tmp_path):
    """Each script names the command and the variable, and the shell can read it."""
    answer = run("completion", shell)
    assert (answer.code, answer.err) == (0, "")
    assert "_STATEWARD_COMPLETE" in answer.out
    assert "stateward" in answer.out
    if (program := shutil.which(shell)) is not None:
        script = tmp_path / "script"
        script.write_text(answer.out)
        assert subprocess.run([program, "-n", str(script)], capture_output=True, check=False).stderr == b""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(daemon, client, namespace, tmp_path):
    """In a real bash the function of the script fills in what it offers."""
    client.thread("booking-42").append("l", 1)
    program = tmp_path / "stateward"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m stateward.cli "$@"\n')
    program.chmod(0o755)
    script = f"""
eval "$(stateward completion bash)"
COMP_WORDS=(stateward -n {namespace} show boo) COMP_CWORD=4
_stateward_completion stateward
echo "${{COMPREPLY[@]}}"
"""
    found = environment(STATEWARD_TARGET=daemon.target)
    answer = subprocess.run(
        ["bash", "-c", script],
        env={**found, "PATH": f"{tmp_path}:{found['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (answer.stdout, answer.stderr) == ("booking-42\n", "")


def test_every_command_is_in_the_catalog_once():
    """A name stands for one command, whatever section it is in."""
    names = [name for entries in SECTIONS.values() for name in entries]
    assert len(names) == len(set(names)) >= 26
