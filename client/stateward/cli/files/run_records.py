"""Turns threads into recorded runs, which `importing` reads.

A run is {"run_id", …, "messages": […]}. It has "states" instead of "messages" if older messages were rewritten. Only a
thread that has the same shape as an imported one can be a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stateward.cli.files.importing import MESSAGES_LOG, ORIGIN_SLOT, RUN_SLOT
from stateward.cli.show.depth import is_deep
from stateward.values import JSON

if TYPE_CHECKING:
    from stateward import Client, State, Thread, ThreadInfo

RUN_DEPTH_MAX = 200
TOO_DEEP = f"it is nested more than {RUN_DEPTH_MAX} levels deep"
# Branches on which `thread.replay` stores projections. It can compute them again.
PROJECTIONS = "projections/"
# Step number, metadata, and the whole message list.
Step = tuple[int | None, dict[str, Any] | None, list[Any]]


class NoRun(ValueError):
    """Raised if a thread holds more than a recorded run can. The message names what."""


def read_run_record(client: Client, name: str) -> dict[str, Any]:
    """Returns a thread as a run. Importing the run makes the same thread again.

    Raises NoRun if the thread holds more than a run can, or if its first versions were pruned.
    """
    thread = client.thread(name)
    head = thread.hydrate(must_exist=True)
    facts = _facts(thread.info(), head)
    steps = list(_steps(thread, head))
    if _is_plain(steps):
        return _readable({**facts, "messages": steps[-1][2]})
    states = [{"step": number, **(metadata or {}), "messages": messages} for number, metadata, messages in steps]
    for state in states:
        if state["step"] is None:
            del state["step"]
    return _readable({**facts, "states": states})


def read_messages_record(client: Client, name: str) -> dict[str, Any]:
    """Returns the current messages of any thread as a run, and nothing else. Raises NoRun if they cannot be decoded."""
    log = client.thread(name).hydrate(logs=[MESSAGES_LOG], must_exist=True).logs[MESSAGES_LOG]
    try:
        return _readable({"run_id": name, "messages": list(log)})
    except NoRun:
        raise
    except ValueError as error:
        if isinstance(error.__cause__, RecursionError):
            raise NoRun(TOO_DEEP) from None
        raise NoRun(str(error)) from None


def _readable(run: dict[str, Any]) -> dict[str, Any]:
    """Returns the run. Raises NoRun if it is so deep that an import may not read it."""
    if is_deep(run, RUN_DEPTH_MAX):
        raise NoRun(TOO_DEEP)
    return run


def _facts(info: ThreadInfo, head: State) -> dict[str, Any]:
    """Returns the fields of the run other than its messages. Raises NoRun."""
    more = [f"slot {name}" for name in head.slots if name not in (RUN_SLOT, ORIGIN_SLOT)]
    more += [f"log {name}" for name in head.logs if name != MESSAGES_LOG]
    more += [f"branch {branch.name}" for branch in info.branches if not _is_dispensable(branch.name)]
    if more:
        raise NoRun(f"it also has {', '.join(more[:5])}{', …' if len(more) > 5 else ''}")
    if MESSAGES_LOG not in head.logs:
        raise NoRun(f"it has no log {MESSAGES_LOG!r}")
    log = head.logs[MESSAGES_LOG]
    if any(log.raw(at).media_type != JSON for at in range(len(log))):
        raise NoRun("not all of its messages are JSON")
    if RUN_SLOT not in head.slots:
        return {"run_id": info.name}
    try:
        facts = head.slots[RUN_SLOT]
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or facts.keys() & {"messages", "states"}:
        raise NoRun(f"its slot {RUN_SLOT} holds something that an import does not store there")
    return facts


def _is_dispensable(branch: str) -> bool:
    """Whether a run may leave out a branch."""
    return branch == "main" or branch.startswith(PROJECTIONS)


def _is_plain(steps: list[Step]) -> bool:
    """Whether every step appended one message and did nothing else."""
    before: list[Any] = []
    for at, (number, metadata, messages) in enumerate(steps, 1):
        if number != at or metadata or len(messages) != at:
            return False
        if not all(was is now for was, now in zip(before, messages, strict=False)):
            return False
        before = messages
    return True


def _steps(thread: Thread, head: State) -> Iterator[Step]:
    """Yields step number, metadata and all messages of every version, oldest first. Raises NoRun."""
    from stateward.changes import Append, ReplaceEntry, TrimLog  # noqa: PLC0415

    with thread.history(at=head.version, logs=[MESSAGES_LOG]) as line:
        messages: list[Any] = []
        for entry in line:
            checkpoint, state, changes = entry
            if entry.begins:
                if checkpoint.parent_version:
                    raise NoRun(f"its versions before {checkpoint.version} were pruned")
                log = (state or thread.hydrate(checkpoint.version)).logs[MESSAGES_LOG]
                messages = list(log)
                if log.first_index:
                    raise NoRun("its messages were trimmed at the start")
            for change in () if entry.begins else changes:
                match change:
                    case Append():
                        messages = [*messages, *change.entries]
                    case ReplaceEntry():
                        messages = [*messages[: change.index], change.value, *messages[change.index + 1 :]]
                    case TrimLog(from_index=int(index)):
                        messages = messages[:index]
                    case _:
                        raise NoRun("its messages were trimmed at the start, or removed")
            metadata = checkpoint.metadata
            if metadata is not None and (not isinstance(metadata, dict) or metadata.keys() & {"messages"}):
                raise NoRun(f"the metadata of version {checkpoint.version} does not fit into a run")
            yield checkpoint.step, metadata, messages
