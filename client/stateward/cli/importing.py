"""Recorded runs become threads: one version for each step, message for message as it was recorded.

    run = read_run(record, where="runs.jsonl:1", thread="runs/run-1", file="runs.jsonl", line=1)
    import_run(client, run)

A run is a JSON object with `messages` (a step appends one) or `states` ([{"step", "messages"}]: the whole list at each
step, in which older messages may have been rewritten). Its messages go into the log "messages", everything else about
it into the slot "run", and where it came from into the slot "import".

Version k of such a thread is step k of the run, so an import that was cut off goes on after the thread's head, once
what is there has proved to be the beginning of the very run.
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
    """A record is no run, or holds what JSON cannot say. The message names its place."""


class RunRefused(Exception):
    """A thread of the run's name exists and is not the beginning of this run. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step does to the message list. Messages are compact JSON in UTF-8."""

    number: int
    kept: int
    """How many of the messages before it stay; those after them are cut."""
    replaced: Mapping[int, bytes]
    """New messages at old positions, all below `kept`."""
    added: list[bytes]
    extra: Mapping[str, Any]
    """What else was recorded with the step."""


@dataclass(frozen=True)
class Run:
    """A recorded run, ready to be imported. Everything in it has proved to be storable."""

    where: str
    """File and line, for messages."""
    thread: str
    facts: Mapping[str, Any]
    """Everything in the record but its messages."""
    origin: Mapping[str, Any]
    steps: list[Step]


@dataclass
class Totals:
    """What has been imported. Sizes are those of compact JSON."""

    runs: int = 0
    runs_done_before: int = 0
    """Runs that were there already, to their last step."""
    steps: int = 0
    """Steps saved now."""
    steps_done_before: int = 0
    message_bytes: int = 0
    """New and rewritten messages of all steps, those of earlier imports too."""
    full_bytes: int = 0
    """What saving the whole message list at every one of these steps would take."""
    stored_bytes: int = 0
    """What the threads take at rest, compressed and sealed; 0 = not asked."""

    def add(self, other: Totals) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class _Messages:
    """The message list after some step, and its size."""

    entries: list[bytes] = field(default_factory=list)
    entry_bytes: int = 0

    def apply(self, step: Step) -> int:
        """Takes a step; returns the bytes of messages it brought."""
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
    """The run that a parsed line says. Raises RunInvalid."""
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
    """Raises RunInvalid where the record has not the shape of a run."""
    if not isinstance(record, dict):
        raise RunInvalid(f"{where} is no JSON object; each line must be a run such as {EXAMPLE}")
    given = [key for key in ("messages", "states") if key in record]
    if len(given) != 1:
        what = 'both "messages" and "states"' if given else 'neither "messages" nor "states"'
        raise RunInvalid(f"{where} has {what}; each line must be a run such as {EXAMPLE}")
    if not isinstance(record[given[0]], list):
        raise RunInvalid(f'{where}: "{given[0]}" is no list')


def _read_messages(messages: list[Any]) -> Iterator[Step]:
    for index, message in enumerate(messages):
        yield Step(index + 1, index, {}, [encode(message, f"messages[{index}]").data], {})


def _read_states(states: list[Any]) -> Iterator[Step]:
    before: list[bytes] = []
    for index, state in enumerate(states):
        if not isinstance(state, dict) or not isinstance(state.get("messages"), list):
            raise ValueError(f'states[{index}] is no object with a list "messages"')
        now = [encode(each, f"states[{index}].messages[{at}]").data for at, each in enumerate(state["messages"])]
        kept = min(len(before), len(now))
        replaced = {at: now[at] for at in range(kept) if now[at] != before[at]}
        # A step number that is none is kept with the rest, and the place in the list stands in for it.
        is_number = type(state.get("step")) is int and abs(state["step"]) < 1 << 63
        extra = {key: value for key, value in state.items() if key != "messages" and (key != "step" or not is_number)}
        encode(extra, f"states[{index}]")
        yield Step(state["step"] if is_number else index, kept, replaced, now[kept:], extra)
        # The same bytes for the same message: a run's states together can be a thousand times its last one.
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
    """Saves a version for each step that the thread does not have yet, with its status COMPLETED at the last one.

    `on_step` hears the message bytes of every step, also of those that were there. RunRefused where the thread holds
    something else, or exists at all without `resume`. `should_stop` is asked before each save.
    """
    thread = client.thread(run.thread)
    state = thread.hydrate()
    done = state.version
    if done and not resume:
        raise RunRefused(
            f"{run.where}: thread {run.thread!r} exists already; "
            "leave --no-resume out to go on with it, or give another --thread-prefix"
        )
    if done > len(run.steps):
        raise _refusal(run, f"has {done} versions, and the run {len(run.steps)} steps")
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
    """Raises RunRefused unless `state` is what the run's steps so far make."""
    if RUN_SLOT not in state.slots or ORIGIN_SLOT not in state.slots:
        raise _refusal(run, "was not made by an import")
    if _encoded(state.slots[RUN_SLOT]) != _encoded(dict(run.facts)):
        raise _refusal(run, f"holds another run, of {_origin(state)}")
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
        f"{run.where}: thread {run.thread!r} {what}; nothing was written to it, give another --thread-prefix"
    )


def _labels(run: Run) -> dict[str, str]:
    """Labels to find the thread by: what of the facts is text and fits."""
    found = {name: run.facts.get(name) for name in LABELS}
    return {name: value for name, value in found.items() if isinstance(value, str) and _fits(value)}


def _fits(value: str) -> bool:
    return value.isprintable() and 0 < len(value.encode()) <= LABEL_BYTES_MAX
