"""The danger: a replaced owner that does not know it answers a takeover with its old copy, so the caller goes on from a
past state."""

from __future__ import annotations

from tests.daemon.process import Fleet, write_steps


def test_a_takeover_asks_the_archive(machines: Fleet) -> None:
    """Also where the sidecar believes that it still holds the thread."""
    first, second = machines.client(machines.machine("first")), machines.client(machines.machine("second"))
    write_steps(first, "job", 2, archived=True)
    second.thread("job").archive.attach(take_over=True)
    write_steps(second, "job", 1, archived=True)
    assert first.thread("job").archive.attach(take_over=True).version == 3
    write_steps(first, "job", 1, archived=True)
