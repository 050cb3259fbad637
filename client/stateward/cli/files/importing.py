"""Imports recorded runs as threads: one version for each step, with every message exactly as recorded.

    run = read_run(record, where="runs.jsonl:1", thread="runs/run-1", file="runs.jsonl", line=1)
    import_run(client, run)

A run is a JSON object with `messages` (each step appends one) or `states` ([{"step", "messages"}]: the whole list at
each step, in which older messages may be rewritten). The log "messages" gets its messages, the slot "run" its other
fields, and the slot "import" its file and line.

Version k of the thread is step k of the run. A repeated import therefore continues after the thread's head, once it has
checked that the thread is the beginning of the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stateward.values import JSON, RawValue, encode

if TYPE_CHECKING:
    from stateward import Checkpoint, Client, Log, State, Thread

MESSAGES_LOG = "messages"
RUN_SLOT = "run"
ORIGIN_SLOT = "import"
AGENT = "stateward import"
LABELS = ("source", "model")
LABEL_BYTES_MAX = 1024
EXAMPLE = '{"run_id": "…", "messages": [{…}, …]}'


class RunInvalid(ValueError):
    """Raised if a record is not a run, or holds a value that JSON cannot hold. The message names the place."""


class RunRefused(Exception):
    """Raised if the run's thread exists and is not the beginning of this run. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Step:
    """The changes of one step to the message list. Messages are compact JSON in UTF-8."""

    number: int
    kept: int
    """How many of the earlier messages stay; later ones are removed."""
    replaced: Mapping[int, bytes]
    """New messages at old positions, all below `kept`."""
    added: list[bytes]
    extra: Mapping[str, Any]
    """Other fields of the step."""


@dataclass(frozen=True)
class Run:
    """A recorded run, ready for import. All its values were checked and can be stored."""

    where: str
    """File and line, for messages."""
    thread: str
    facts: Mapping[str, Any]
    """All fields of the record except its messages."""
    origin: Mapping[str, Any]
    steps: list[Step]


@dataclass
class Totals:
    """Totals of an import. Sizes are of compact JSON."""

    runs: int = 0
    runs_done_before: int = 0
    """Runs that were already imported completely."""
    steps: int = 0
    """Steps saved now."""
    steps_done_before: int = 0
    message_bytes: int = 0
    """Bytes of new and rewritten messages of all steps, also of those imported earlier."""
    full_bytes: int = 0
    """Bytes needed to save the whole message list at every one of these steps."""
    stored_bytes: int = 0
    """Bytes of the threads on disk, compressed and sealed; 0 = not measured."""

    def add(self, other: Totals) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class _Messages:
    """The message list after a step, and its size."""

    entries: list[bytes] = field(default_factory=list)
    entry_bytes: int = 0

    def apply(self, step: Step) -> int:
        """Applies a step. Returns the bytes of its new and rewritten messages."""
        for position, entry in step.replaced.items():
            self.entry_bytes += len(entry) - len(self.entries[position])
            self.entries[position] = entry
        self.entry_bytes -= sum(map(len, self.entries[step.kept :]))
        del self.entries[step.kept :]
        self.entries += step.added
        added_bytes = sum(map(len, step.added))
        self.entry_bytes += added_bytes
        return added_bytes + sum(map(len, step.replaced.values()))

    @property
    def list_bytes(self) -> int:
        """Size of the whole list as JSON: its entries, the commas between them, and the brackets."""
        return self.entry_bytes + max(len(self.entries) - 1, 0) + 2


def read_run(record: Any, *, where: str, thread: str, file: str, line: int) -> Run:
    """Returns the run of a parsed line. Raises RunInvalid."""
    check_run(record, where)
    facts = {key: value for key, value in record.items() if key not in ("messages", "states")}
    origin = {"file": file, "line": line}
    try:
        encode(facts, "run")
        steps = list(_read_states(record["states"]) if "states" in record else _read_messages(record["messages"]))
    except (TypeError, ValueError) as error:
        raise RunInvalid(f"{where}: {error}") from None
    return Run(where, thread, facts, origin, steps)


def check_run(record: Any, where: str) -> None:
    """Raises RunInvalid if the record does not have the shape of a run."""
    if not isinstance(record, dict):
        raise RunInvalid(f"{where} is not a JSON object; each line must be a run such as {EXAMPLE}")
    given = [key for key in ("messages", "states") if key in record]
    if len(given) != 1:
        what = 'both "messages" and "states"' if given else 'neither "messages" nor "states"'
        raise RunInvalid(f"{where} has {what}; each line must be a run such as {EXAMPLE}")
    if not isinstance(record[given[0]], list):
        raise RunInvalid(f'{where}: "{given[0]}" is not a list')


def _read_messages(messages: list[Any]) -> Iterator[Step]:
    for index, message in enumerate(messages):
        yield Step(index + 1, index, {}, [encode(message, f"messages[{index}]").data], {})


def _read_states(states: list[Any]) -> Iterator[Step]:
    before: list[bytes] = []
    for index, state in enumerate(states):
        if not isinstance(state, dict) or not isinstance(state.get("messages"), list):
            raise ValueError(f'states[{index}] is not an object with a list "messages"')
        now = [encode(each, f"states[{index}].messages[{at}]").data for at, each in enumerate(state["messages"])]
        kept = min(len(before), len(now))
        replaced = {at: now[at] for at in range(kept) if now[at] != before[at]}
        # An invalid step number stays with the other fields, and the position in the list replaces it.
        is_number = type(state.get("step")) is int and abs(state["step"]) < 1 << 63
        extra = {key: value for key, value in state.items() if key != "messages" and (key != "step" or not is_number)}
        encode(extra, f"states[{index}]")
        yield Step(state["step"] if is_number else index, kept, replaced, now[kept:], extra)
        # Equal messages share their bytes: all states of a run together can be a thousand times its last one.
        for at in range(kept):
            if at not in replaced:
                now[at] = before[at]
        before = now


def import_run(
    client: Client,
    run: Run,
    *,
    resume: bool = True,
    should_stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[int], None] = lambda _: None,
) -> Totals:
    """Saves a version for each step that the thread does not have yet. The last one gets the status COMPLETED.

    Calls `on_step` with the message bytes of every step, also of steps that were saved before. Calls `should_stop`
    before each save. Raises RunRefused if the thread holds something else, or if it exists and `resume` is False.
    """
    thread = client.thread(run.thread)
    state = thread.hydrate()
    done = state.version
    if done and not resume:
        raise RunRefused(
            f"{run.where}: thread {run.thread!r} already exists; "
            "omit --no-resume to continue it, or give another --thread-prefix"
        )
    if done > len(run.steps):
        raise _refusal(run, f"has {done} versions, but the run has only {len(run.steps)} steps")
    totals = Totals(runs=1, runs_done_before=int(0 < done == len(run.steps)), steps_done_before=done)
    messages = _Messages()
    for version, step in enumerate(run.steps, 1):
        step_bytes = messages.apply(step)
        if version == done:
            _check_beginning(run, state, messages.entries)
        elif version > done:
            if should_stop():
                return totals
            _save(thread, state, run, step, is_first=version == 1, is_last=version == len(run.steps))
            totals.steps += 1
        totals.message_bytes += step_bytes
        totals.full_bytes += messages.list_bytes
        on_step(step_bytes)
    return totals


def _save(thread: Thread, state: State, run: Run, step: Step, *, is_first: bool, is_last: bool) -> Checkpoint:
    from stateward import Status, ThreadOptions  # noqa: PLC0415  reading runs needs no protobuf

    if is_first:
        state.slots[RUN_SLOT], state.slots[ORIGIN_SLOT] = dict(run.facts), dict(run.origin)
    log = state.logs[MESSAGES_LOG]
    for position, entry in step.replaced.items():
        log[position] = RawValue(JSON, entry)
    if step.kept < len(log):
        log.trim(from_index=log.first_index + step.kept)
    log.extend(RawValue(JSON, entry) for entry in step.added)
    return thread.save(
        state,
        step=step.number,
        status=Status.COMPLETED if is_last else Status.RUNNING,
        metadata=dict(step.extra) or None,
        create=ThreadOptions(labels=_labels(run), agent=AGENT) if is_first else None,
    )


def _check_beginning(run: Run, state: State, entries: list[bytes]) -> None:
    """Raises RunRefused unless `state` equals the result of the run's steps so far."""
    if RUN_SLOT not in state.slots or ORIGIN_SLOT not in state.slots:
        raise _refusal(run, "was not made by an import")
    if _encoded(state.slots[RUN_SLOT]) != _encoded(dict(run.facts)):
        raise _refusal(run, f"holds another run, from {_origin(state)}")
    log = state.logs[MESSAGES_LOG]
    if len(log) != len(entries) or not all(_is_same(log, at, entry) for at, entry in enumerate(entries)):
        raise _refusal(run, f"holds other messages than this run at version {state.version}")


def _is_same(log: Log, position: int, entry: bytes) -> bool:
    return log.raw(position).data == entry or _encoded(log[position]) == entry


def _encoded(value: Any) -> bytes:
    return encode(value, "").data


def _origin(state: State) -> str:
    origin = state.slots[ORIGIN_SLOT]
    return f"{origin.get('file')} line {origin.get('line')}" if isinstance(origin, dict) else "an unknown file"


def _refusal(run: Run, what: str) -> RunRefused:
    return RunRefused(
        f"{run.where}: thread {run.thread!r} {what}; nothing was written to it; give another --thread-prefix"
    )


def _labels(run: Run) -> dict[str, str]:
    """Returns labels to find the thread by: the facts in LABELS whose text is a valid label."""
    found = {name: run.facts.get(name) for name in LABELS}
    return {name: value for name, value in found.items() if isinstance(value, str) and _fits(value)}


def _fits(value: str) -> bool:
    return value.isprintable() and 0 < len(value.encode()) <= LABEL_BYTES_MAX
