"""The danger: a frame is refused as another sidecar's, whose thread was given up between its check and its write."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.daemon.inside import WAIT_S, daemon_inside
from tests.service.agents import Agent

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED


def test_a_frame_whose_thread_was_given_up_just_now_takes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has it: it is ours again, and the frame is written."""
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket") as daemon:
        stream = Agent(daemon.wire, "default", "ada").open()
        stream.send(durability=DURABILITY_ARCHIVED)
        assert stream.answers(1) == [1]
        archive = daemon.parts.archive
        assert archive is not None
        may_write = archive.may_write

        def give_up() -> None:
            hold, *_ = archive.state.holds.values()
            archive._shipper.ship(hold, detach=True)

        def check(namespace: str, name: str) -> bool:
            monkeypatch.setattr(archive, "may_write", may_write)
            found = may_write(namespace, name)
            giving_up = threading.Thread(target=give_up)
            giving_up.start()
            giving_up.join(WAIT_S)
            assert not archive.state.holds
            return found

        monkeypatch.setattr(archive, "may_write", check)
        stream.send()
        assert stream.answers(1) == [2]
        stream.send()
        assert stream.answers(1) == [3]
        stream.end()
