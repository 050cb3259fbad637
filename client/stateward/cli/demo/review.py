"""Checks what the demo's agent stored: is it complete, what did it cost, and do old versions stay unchanged."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stateward.cli.demo.agent import MESSAGES, next_file, surveyed_files, take_step
from stateward.cli.demo.stage import THREAD
from stateward.cli.demo.survey import survey_all
from stateward.cli.show.output import say
from stateward.errors import StatewardError

if TYPE_CHECKING:
    from stateward import Client, State, Thread
    from stateward.testing import Daemon

FENCED_WITHIN_S = 15.0

Check = Callable[[str, bool], None]


@dataclass
class Measured:
    """Sizes and times of the run."""

    steps: int = 0
    edit_bytes: int = 0
    full_bytes: int = 0
    stored_bytes: int = 0
    used_bytes: int = 0
    hydrate_s: list[float] = field(default_factory=list)


def review_history(client: Client, thread: Thread, plan: list[str], check: Check) -> Measured:
    """Reads every version back, checks that each is exactly one step more than the one before, and measures."""
    measured = Measured(steps=len(plan))
    made = sorted(thread.checkpoints.list(), key=lambda each: each.version)
    check("the versions are consecutive", [each.version for each in made] == list(range(1, len(plan) + 2)))
    check("the steps are consecutive", [each.step for each in made] == list(range(len(plan) + 1)))
    measured.edit_bytes = sum(each.edit_bytes for each in made)
    is_each_prefix = True
    for checkpoint in made:
        started = time.perf_counter()
        state = thread.hydrate(checkpoint.version)
        measured.hydrate_s.append(time.perf_counter() - started)
        measured.full_bytes += state_bytes(state)
        is_each_prefix &= surveyed_files(state) == plan[: checkpoint.version - 1]
    check(f"each of the {len(made)} versions holds exactly the files surveyed up to it", is_each_prefix)
    check("the store verifies: every record opened, every state replayed", not findings(client))
    measured.stored_bytes = thread.info().stored_bytes
    measured.used_bytes = client.stats().used_bytes
    return measured


def review_result(thread: Thread, plan: list[str], check: Check) -> str:
    """Compares the result with an uninterrupted survey made here. Returns the agent's report."""
    state = thread.hydrate()
    files = surveyed_files(state)
    check("each file was surveyed exactly once, in the planned order", files == plan)
    totals, found = survey_all(plan)
    check(
        "the final facts equal those of an uninterrupted survey",
        state.slots["totals"] == totals and state.slots["findings"] == found,
    )
    return str(state.logs[MESSAGES][-1]["content"])


def review_fork(thread: Thread, version: int, check: Check) -> str:
    """Forks an old version and takes a different next step in the fork. Returns the file of that step."""
    head = thread.checkpoints.get()
    before, next_before = content(thread.hydrate()), content(thread.hydrate(version + 1))
    fork = thread.fork("survey-fork", at=version)
    state = fork.hydrate()
    check("the fork begins with the state it was taken from", content(state) == content(thread.hydrate(version)))
    original = next_file(state)
    other = state.slots["plan"]["files"][-1]
    take_step(state, other)
    saved = fork.save(state, step=state.slots["totals"]["files"])
    own = surveyed_files(fork.hydrate())
    check("the fork took its own step", saved.version == 2 and own[-1] == other != original and len(own) == version)
    after = thread.checkpoints.get()
    check(
        "the original is unchanged",
        (after.version, after.digest) == (head.version, head.digest)
        and content(thread.hydrate()) == before
        and content(thread.hydrate(version + 1)) == next_before,
    )
    return str(other)


def findings(client: Client) -> list[Any]:
    """Returns the findings of a verification of the daemon's store."""
    with client.verify() as stream:
        return [progress.finding for progress in stream if progress.finding is not None]


def content(state: State) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Returns slots and logs as plain objects."""
    return dict(state.slots), {name: list(log) for name, log in state.logs.items()}


def state_bytes(state: State) -> int:
    """Returns the size of the state: the bytes of all its values."""
    slots = sum(len(state.slots.raw(name).data) for name in state.slots)
    return slots + sum(len(log.raw(at).data) for log in state.logs.values() for at in range(len(log)))


def fence(old: Daemon, stale: State, done: State, check: Check) -> None:
    """Resumes a machine that was replaced, and checks that it damages nothing."""
    os.kill(old.pid, signal.SIGCONT)
    with old.client() as client:
        thread = client.thread(THREAD)
        stale.slots["note"] = "written by a machine that had been replaced"
        begin = f"  an agent on it saves on top of version {stale.version}, "
        try:
            thread.save(stale)
        except StatewardError as error:  # on a busy machine the daemon may have looked before the save came
            say(f"{begin}and its daemon knows already that it was replaced ({type(error).__name__})")
        else:
            say(f"{begin}and its daemon accepts the save")
            _set_aside(client, stale, check)
        live = thread.hydrate()
        check("under the thread's name it reads the second machine's state", live.digest == done.digest)
        try:
            thread.save(stale)
        except StatewardError as error:
            check(f"its next save is refused ({type(error).__name__})", True)
        else:
            check("its next save is refused", False)


def _set_aside(client: Client, stale: State, check: Check) -> None:
    """Checks what becomes of a save that was accepted before the daemon knew that it was replaced."""
    deadline = time.monotonic() + FENCED_WITHIN_S
    orphan = ""
    while not orphan and time.monotonic() < deadline:
        orphan = next((each.name for each in client.threads() if each.name != THREAD), "")
        time.sleep(0.05)
    check("the daemon learns from object storage that it was replaced", bool(orphan))
    if orphan:
        kept = client.thread(orphan).hydrate()
        check(f"its save is kept in a separate thread, {orphan}", kept.slots["note"] == stale.slots["note"])
