"""The danger: a checker that finds nothing. Histories made by hand, sound ones and spoilt ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.histories.checker import check_history
from tests.histories.story import Story, digest


def one() -> Story:
    """One daemon that answered three appends, one after the other."""
    return Story().append(1, 0).append(2, 2).append(3, 4)


def several(**setup: Any) -> Story:
    """A wrote two archived versions, and a third one that is only committed."""
    story = Story("archived", **setup).append(1, 0, durability="archived").append(2, 2, durability="archived")
    return story.append(3, 4)


def everywhere(story: Story, version: int) -> Story:
    """All machines end at one version."""
    return story.final(version).final(version, "B").final(version, "fresh", fresh=True)


def taken() -> Story:
    """B took the thread over: its version 3 is in the thread, and A's is not."""
    story = Story("archived").append(1, 0, durability="archived").append(2, 2, durability="archived")
    story.append(3, 4, "a3", line="b").append(3, 6, machine="B", durability="archived")
    return everywhere(story, 3)


def set_back() -> Story:
    """The bucket was set back to version 1 after 4 seconds."""
    story = Story("set back").append(1, 0, durability="archived").append(2, 2, durability="archived")
    return story.tell("set back", time=4_000_000_000).final(1, "fresh", fresh=True)


ASIDE = ["1", "2", "a3"]
MISFIT = {"expected_version": 1, "outcome": "mismatch"}

SOUND = {
    "one after the other": one().read(3, 6).final(3),
    "a read while a save is answered": one().read(2, 4.5).read(3, 4.6, took=2).final(3),
    "compare and swap": (
        Story().save(1, 0).save(2, 2).operation("save", 4, token="x", version=2, digest=digest(2), **MISFIT).final(2)
    ),
    "a save without an answer that happened": (
        Story().append(1, 0, outcome="unknown").operation("read", 2, outcome="absent").read(1, 4).final(1)
    ),
    "a save without an answer that did not happen": Story().append(1, 0).append(2, 2, outcome="unknown").final(1),
    "a retry": Story().append(1, 0, outcome="unknown").again(2, outcome="ok").final(1),
    "what is committed elsewhere is not seen": everywhere(several().read(2, 6, machine="B", owner="A"), 3),
    "a replaced owner is a little behind": (
        everywhere(several().append(4, 6, machine="B", durability="archived").read(3, 8), 4)
    ),
    "what was set aside": taken().orphan(ASIDE),
    "a lost disk": taken().tell("loss", machine="A", thread="", time=5_500_000_000),
    "a version that was lost with the bucket": (
        set_back().retried(5, durability="committed").read(2, 7, archived_sequence=1)
    ),
}

SPOILT = {
    "a lost write": (one().final(2), {"lost"}),
    "a doubled append": (one().final(4, log=["1", "2", "3", "2"]), {"final state", "doubled"}),
    "a stale read": (one().read(2, 6).final(3), {"order"}),
    "a read that goes back": (one().append(4, 6, took=9).read(4, 7).read(3, 9).final(4), {"order"}),
    "a read of what is not written yet": (one().read(3, 2.5, took=0.5).final(3), {"order"}),
    "two saves on one version": (
        Story().append(1, 0).save(2, 2).append(2, 2, "x", "b", expected_version=1).does("save").final(2), {"lost"},
    ),
    "a save on another version than it expected": (
        one().append(4, 6, expected_version=2).does("save").final(4), {"order"},
    ),
    "a save on another digest than it expected": (
        one().append(4, 6, expected_version=3, expected_digest=digest(3, "b")).does("save").final(4), {"order"},
    ),
    "a misfit that fits": (
        one().operation("save", 0, token="x", version=1, digest=digest(1), **MISFIT).final(3), {"order"},
    ),
    "a phantom": (one().final(4), {"phantom"}),
    "a refused save that happened": (one().append(4, 6, outcome="refused").final(4), {"phantom"}),
    "a misfit that happened": (
        one().append(4, 6, outcome="unknown").again(8, outcome="mismatch").final(4), {"retry"},
    ),
    "a retry that is answered from an older version": (
        everywhere(several().save(4, 6, durability="archived"), 4)
        .retried(8, machine="B", outcome="mismatch", version=2, digest=digest(2)), {"retry"},
    ),
    "a fenced save that happened": (everywhere(several().append(4, 6, outcome="fenced", digest=""), 4), {"phantom"}),
    "a wait for what is said to be set aside": (
        everywhere(several().again(6, outcome="fenced"), 3), {"fork"},
    ),
    "a fork that somebody read": (one().read(3, 5, line="b").final(3), {"fork"}),
    "other content under one digest": (
        one().append(4, 6, "9").read(3, 8, log=["1", "9", "3"]).final(4, log=["1", "2", "3", "9"]),
        {"content", "order"},
    ),
    "a thread that is gone": (one().operation("read", 6, outcome="absent").final(3), {"order"}),
    "an error that is never right": (
        one().operation("read", 6, outcome="broken", reason="INTERNAL").final(3), {"broken answer"},
    ),
    "an owner that names itself as another one": (
        everywhere(several().read(3, 6, owner="A"), 3), {"broken answer"},
    ),
    "what Verify finds": (one().final(3).tell("finding", machine="A", thread="t", text="CORRUPT"), {"verify"}),
    "an archived save that a takeover lost": (
        everywhere(several().append(4, 6, durability="archived"), 3), {"lost"},
    ),
    "a committed save that is nowhere": (taken(), {"lost"}),
    "a committed save that is set aside twice": (taken().orphan(ASIDE).orphan(ASIDE, "t@2"), {"lost"}),
    "a committed save on another machine's disk": (taken().orphan(ASIDE, machine="B"), {"lost"}),
    "an orphan with content of the other line": (
        taken().orphan(ASIDE).orphan(["1", "2", "3"], reading="after a restart"), {"content"},
    ),
    "an orphan that cannot be read": (taken().orphan(ASIDE).orphan(ASIDE, error="CORRUPT"), {"orphan"}),
    "a stale read through the archive": (
        everywhere(several().read(1, 6, machine="B", owner="A"), 3), {"order"},
    ),
    "an owner that is behind for too long": (everywhere(several().read(1, 8, machine="B"), 3), {"order"}),
    "a machine that forgets what it answered": (everywhere(several().read(2, 6), 3), {"order"}),
    "a line that the archive had and has not": (everywhere(several().read(3, 6, line="b"), 3), {"fork"}),
    "machines that end in different states": (
        several().final(3).final(2, "B").final(3, "fresh", fresh=True), {"final state"},
    ),
    "a machine that cannot read at the end": (
        everywhere(several(), 3).final(3, "C", error="DATA_LOSS"), {"final state"},
    ),
    "a takeover that nobody had a reason for": (
        everywhere(several(calm=True).append(4, 6, outcome="fenced"), 3), {"fork"},
    ),
    "a copy of a line that the bucket lost": (set_back().read(2, 6, machine="B", owner="A"), {"fork"}),
    "a retry that calls archived what the bucket lost": (set_back().retried(6), {"lost"}),
    "an owner that calls archived what the bucket lost": (set_back().read(2, 6), {"fork"}),
    "a save that is lost after the bucket was set back": (
        set_back().append(2, 6, line="b", durability="archived"), {"lost"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_sound_histories_pass(name: str, checker: Path, tmp_path: Path) -> None:
    """What the daemons promise allows is not reported."""
    assert check_history(checker, SOUND[name].write(tmp_path / "history.jsonl")) == []


@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_histories_are_reported(name: str, checker: Path, tmp_path: Path) -> None:
    """Each kind of broken promise is reported under its rule; a wrong order is drawn."""
    story, rules = SPOILT[name]
    found = check_history(checker, story.write(tmp_path / "history.jsonl"))
    assert {violation.rule for violation in found} == rules, found
    assert all(Path(violation.picture).is_file() for violation in found if violation.rule == "order")
