"""The danger: an adapter does not find the daemon that `stateward.open()` has started, or finds another one."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.opening.conftest import daemon_of

import stateward
from stateward._connected import Connected
from stateward.opening.places import find_place

langgraph = pytest.importorskip("stateward.langgraph", reason="the extra langgraph is not installed")

CONFIG: Any = {"configurable": {"thread_id": "trip", "checkpoint_ns": ""}}
PLACES = {"no runtime directory": "", "a runtime directory": "run", "a named data directory": "data"}


def connected(client: Any = None, target: Any = None) -> Connected:
    """What the other adapters make of their arguments."""
    return Connected(client, target, "default", {})


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_without_a_target(home: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Saver, store and sessions look where the commands look, wherever that is."""
    if place == "run":
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    if place == "data":
        monkeypatch.setenv("STATEWARD_DATA_DIR", str(home / "elsewhere"))
    with stateward.open() as client:
        with langgraph.StatewardSaver() as saver, langgraph.StatewardStore() as store:
            assert saver.get_tuple(CONFIG) is None
            store.put(("a",), "k", {"v": 1})
            assert (saver.thread("trip")._session.settings.target, store._aio.target) == (client.target, client.target)
        assert [each.name for each in client.threads()] == ["langgraph-store"]
        assert connected()._client.target == client.target
        monkeypatch.setenv("STATEWARD_TARGET", "unix:///tmp/other.sock")
        assert connected()._client.target == "unix:///tmp/other.sock"


def test_a_client_in_place_of_a_target(home: Path) -> None:
    """Saver and store take it, with its namespace, start its daemon again when it was killed, and leave it open."""
    with stateward.open(namespace="mine", retry_timeout=20) as client:
        with langgraph.StatewardStore(client) as store:
            store.put(("a",), "k", {"v": 1})
            pid = daemon_of(find_place(None).data_dir / "LOCK")
            assert pid
            os.kill(pid, signal.SIGKILL)
            assert store.get(("a",), "k").value == {"v": 1}
        assert [each.name for each in client.threads()] == ["langgraph-store"]
        assert "langgraph-store" not in [each.name for each in stateward.Client(client.target).threads()]
        with langgraph.StatewardSaver(client) as saver:
            assert saver.get_tuple(CONFIG) is None
            assert asyncio.run(saver.aget_tuple(CONFIG)) is None
        with pytest.raises(TypeError, match="either a client, or a target, a namespace"):
            langgraph.StatewardSaver(client, namespace="other")


def test_a_client_that_does_not_fit() -> None:
    """The error says what to give."""
    client: Any = stateward.Client("unix:///tmp/none.sock")
    with pytest.raises(TypeError, match=r"open_async.*target=client\.target"):
        connected(client=client)
    with pytest.raises(TypeError, match=r"client\.target, not Client\("):
        connected(target=client)
    with pytest.raises(TypeError, match=r"client\.target, not PosixPath"):
        langgraph.StatewardSaver(Path("/tmp/none.sock"))
