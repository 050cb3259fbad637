"""The first change of a thread that format 1 wrote: each verb finds main's head in the row where that format put it."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.golden.make import read_all

from stateward import Client
from stateward.testing import run_daemon

FORMAT_1 = Path(__file__).parent / "format_1.tar.gz"
NAMES = ("agent-1", "whole-copy", "copy-of-60", "large")
Verb = Callable[[Client, str], Any]


def main_of(client: Client, name: str) -> list[int]:
    """The versions of main, newest first."""
    return [each.version for each in client.thread(name).checkpoints() if each.branch == "main"]


def move_main(client: Client, name: str) -> None:
    before = main_of(client, name)[1]
    assert client.thread(name).move_head(before).version == before
    assert client.thread(name).hydrate().version == before


def prune_main(client: Client, name: str) -> None:
    head, before = main_of(client, name)[:2]
    client.thread(name).prune(versions=[head], move_heads=True)
    assert client.thread(name).hydrate().version == before


def copy_whole(client: Client, name: str) -> None:
    client.thread(name).fork("another", whole=True)
    assert read_all(client, "another").keys() == read_all(client, name).keys()


def make_again(client: Client, name: str) -> None:
    client.thread(name).delete()
    client.thread(name).append("messages", "new")
    assert client.thread(name).hydrate().version == 1


ROUNDS: list[dict[str, Verb]] = [
    {
        "agent-1": move_main,
        "whole-copy": prune_main,
        "copy-of-60": lambda client, name: client.thread(name).branch("side").append("messages", "on a branch"),
        "large": lambda client, name: client.thread(name).tag("here"),
    },
    {
        "agent-1": lambda client, name: client.thread(name).delete_branch("retry"),
        "whole-copy": copy_whole,
        "copy-of-60": make_again,
        "large": lambda client, name: client.thread(name).send("note"),
    },
]


@pytest.mark.parametrize("verbs", ROUNDS)
def test_the_first_change_of_an_old_thread(verbs: dict[str, Verb], tmp_path: Path) -> None:
    """Nothing is found before and after the next save, and a restart reads what was there."""
    with tarfile.open(FORMAT_1) as packed:
        packed.extractall(tmp_path, filter="data")
    with run_daemon(data_dir=tmp_path / "data") as daemon, daemon.client() as client:
        for name in NAMES:
            verbs[name](client, name)
        assert [step.finding for step in client.verify() if step.finding is not None] == []
        daemon.kill()
        daemon.start()
        for name in NAMES:
            state = client.thread(name).hydrate()
            state.slots["written"] = "by this version"
            client.thread(name).save(state)
        before = {name: read_all(client, name) for name in NAMES}
        daemon.kill()
        daemon.start()
        assert {name: read_all(client, name) for name in NAMES} == before
        assert [step.finding for step in client.verify() if step.finding is not None] == []
