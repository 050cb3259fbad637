"""The danger: a window trims log entries that no version has, or that the summary left out, so they are lost for
ever."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from stateward import Window


def finish(thread: Any, result: Any) -> Any:
    """What a window of either client answers: windows know the client's own thread and not the one of the tests."""
    return thread._finish(result) if inspect.iscoroutine(result) else result


def summarise(old: Any, entries: list[Any]) -> Any:
    return [*(old or []), *entries]


def test_what_slid_out_is_summarised_and_stays_readable(thread: Any) -> None:
    """Summary and trim are one version, every entry is in the summary once, and all that was trimmed is read back."""
    state = thread.hydrate()
    window = Window("messages", keep_last=5, slack=1.0, summarise=summarise)
    with thread.autosave(state, windows=[window]) as auto:
        for number in range(37):
            state.logs["messages"].append(number)
            auto.step(step=number)
    kept = list(thread.hydrate().logs["messages"])
    assert 5 <= len(kept) <= 11
    for each in thread.checkpoints.list():
        seen = thread.hydrate(each.version)
        assert [*seen.slots.get("summary", []), *seen.logs["messages"]] == list(range(each.step + 1))
    assert [*finish(thread, thread.log("messages").trimmed()), *kept] == list(range(37))


def test_nothing_is_trimmed_before_a_version_has_it(blocking: Any) -> None:
    """Many entries in one save stay whole in it: what no version has could not be read back."""
    state = blocking.hydrate()
    window = Window("messages", keep_last=2)
    state.logs["messages"].extend(range(10))
    blocking.save(state, windows=[window])
    assert len(blocking.hydrate().logs["messages"]) == 10
    state.logs["messages"].append(10)
    blocking.save(state, windows=[window])
    assert blocking.hydrate().logs["messages"] == [9, 10]
    assert blocking.log("messages").trimmed() == list(range(9))


def test_a_summariser_that_fails_costs_no_checkpoint(blocking: Any) -> None:
    """The state is saved untrimmed, then the error is raised; the next save makes up for it."""
    state = blocking.hydrate()
    state.logs["messages"].extend(list("abcdef"))
    blocking.save(state)
    calls: list[int] = []

    def flaky(old: Any, entries: list[Any]) -> Any:
        calls.append(len(entries))
        if len(calls) == 1:
            raise ConnectionError("the model is away")
        return "".join(entries)

    window = Window("messages", keep_last=2, summarise=flaky)
    state.slots["n"] = 1
    with pytest.raises(ConnectionError):
        blocking.save(state, windows=[window])
    assert (blocking.checkpoints.get().version, len(blocking.hydrate().logs["messages"])) == (2, 6)
    blocking.save(state, windows=[window])
    after = blocking.hydrate()
    assert (after.slots["summary"], after.logs["messages"]) == ("abcd", ["e", "f"])


def test_a_window_by_tokens(blocking: Any) -> None:
    """The newest entries that fit stay, by the given count or by a quarter of their characters."""
    state = blocking.hydrate()
    state.logs["messages"].extend(["x" * 400, "y" * 40, "z" * 40])
    blocking.save(state)
    blocking.save(state, windows=[Window("messages", keep_tokens=25)])
    assert blocking.hydrate().logs["messages"] == ["y" * 40, "z" * 40]
    blocking.save(state, windows=[Window("messages", keep_tokens=1, tokens=lambda entry: 1)])
    assert blocking.hydrate().logs["messages"] == ["z" * 40]


def test_a_branch_reads_what_was_trimmed_before_it_began(thread: Any) -> None:
    """Over all branches that it goes on from, and without what those trimmed afterwards."""

    def trimmed(of: Any) -> list[Any]:
        return finish(of, of.log("m").trimmed())

    def go_on(on: Any, entries: list[Any]) -> int:
        state = on.hydrate()
        for entry in entries:
            state.logs["m"].append(entry)
            finish(on, on.save(state, windows=[Window("m", keep_last=3)]))
        return state.version

    go_on(thread, [*range(8)])
    cheap = thread.branch("cheap", at=6)
    assert trimmed(cheap) == [0, 1, 2]
    deeper = thread.branch("deeper", at=go_on(cheap, ["a", "b"]))
    go_on(deeper, ["c"])
    assert (trimmed(thread), trimmed(cheap), trimmed(deeper)) == ([*range(5)], [*range(5)], [*range(6)])
