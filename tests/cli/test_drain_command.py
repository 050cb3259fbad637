"""The danger: an orchestrator is told that a machine may go, and it may not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.cli.conftest import Answer, Pair, run
from tests.daemon.process import run_pair

from stateward.errors import ShuttingDown
from stateward.testing import Daemon


@pytest.fixture(scope="module")
def own_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with run_pair(tmp_path_factory.mktemp("drained")) as made:
        yield made


@pytest.fixture
def first(own_pair: Pair) -> Iterator[Callable[..., Answer]]:
    yield lambda *arguments: run("--target", own_pair.first.target, *arguments)
    run("--target", own_pair.first.target, "drain", "--undo")


def test_the_exit_code_is_for_the_orchestrator(own_pair: Pair, first: Callable[..., Answer]) -> None:
    """0 with everything in the archive and given up; the other machine writes at once, this one refuses."""
    with own_pair.first.client(retry_timeout=0.0) as here, own_pair.second.client() as there:
        here.thread("t").append("l", 1)
        answer = first("drain", "--grace", "20s")
        assert (answer.code, answer.out) == (0, "drained: 1 thread given up, nothing is on this machine alone\n")
        assert there.thread("t").append("l", 2).version == 2
        with pytest.raises(ShuttingDown, match="draining"):
            here.thread("new").append("l", 1)
        found = first("drain", "--json").json
        assert found == {"detached_threads": 0, "dirty_threads": 0, "ready": False, "archive": True}
        assert first("drain", "--undo").out == "the daemon takes work again\n"
        here.thread("new").append("l", 1)


def test_what_is_left_behind_is_no_success(own_pair: Pair, first: Callable[..., Answer]) -> None:
    """With the bucket away the exit code is 1, and the line says what to do."""
    with own_pair.first.client() as here:
        here.thread("t2").append("l", 1, durability="archived")
        own_pair.go_away()
        try:
            here.thread("t2").append("l", 2)
            answer = first("drain", "--grace", "0.3s")
        finally:
            own_pair.come_back()
    assert answer.code == 1
    assert "1 thread with something that is not archived yet" in answer.error
    assert "--grace" in answer.error
    assert first("drain", "--grace", "20s").code == 0


def test_without_an_archive_the_disk_must_stay(own_daemon: Daemon) -> None:
    """Exit code 1 and how many threads are on this disk only; --undo is a success."""
    with own_daemon.client() as client:
        client.thread("a").append("l", 1)
        client.thread("b").append("l", 1)
    answer = run("--target", own_daemon.target, "drain")
    assert answer.code == 1
    assert "2 threads on this disk only" in answer.error
    undone = run("--target", own_daemon.target, "drain", "--undo")
    assert (undone.code, undone.out) == (0, "the daemon takes work again\n")


@pytest.mark.parametrize("wrong", [["--grace", "soon"], ["--grace", "2h"], ["--undo", "--grace", "5s"]])
def test_wrong_use_is_said(first: Callable[..., Answer], wrong: list[str]) -> None:
    """Exit code 2, and the daemon takes work as before."""
    answer = first("drain", *wrong)
    assert answer.code == 2
    assert "--grace" in answer.error
