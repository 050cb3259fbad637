"""What happened at a version besides its slots and logs: a question, an answer, effects, a new status, labels, tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateward.cli.show.describe import compact, decoded, pairs, plain, question_as_json, status_word, summarize
from stateward.cli.show.layouts import is_write
from stateward.cli.show.output import clean, shorten
from stateward.cli.show.told import read_told
from stateward.effects import EffectState
from stateward.errors import ArchiveUnavailable, Corrupt, KeyUnavailable, VersionNotFound, VersionPruned
from stateward.fromproto import read_member
from stateward.models import Status
from stateward.salvage import list_effects
from stateward.signals import Question, Signal

if TYPE_CHECKING:
    from stateward import Checkpoint, Thread, ThreadInfo
    from stateward.effects import RecordedEffect
    from stateward.events import Event

PROMPT_WIDTH, PAYLOAD_WIDTH = 1000, 200
ENDED = (EffectState.DONE, EffectState.FAILED)


@dataclass(frozen=True)
class Happening:
    """One line of a timeline."""

    what: str
    """asked, answered, failed, signal, effect, status, labels or tags."""
    text: str
    """The rest of the line, for people."""
    facts: Mapping[str, Any]
    """The same for scripts."""
    is_internal: bool = False
    """It says nothing that its user would look for."""


class Timeline:
    """What happened at each version of a thread, in the order of the journal."""

    def __init__(self, thread: Thread, info: ThreadInfo, since: int | None = None) -> None:
        """`since`: the sequence of the oldest version that is shown; None = the first that is asked for."""
        self._thread, self._head, self._since = thread, info.version, since
        self._has_signals = info.pending_signals > 0
        self._told_of: dict[int, list[Event]] | None = None
        self._tags: dict[int, list[str]] = {}
        for tag in info.tags:
            self._tags.setdefault(tag.version, []).append(tag.name)
        self.effects = list_effects(thread, values=False)
        """All that can be read, and what is known of the others."""
        self._effects = sorted(self.effects.items, key=lambda each: each.sequence)

    def at(self, checkpoint: Checkpoint, before: Checkpoint | None) -> list[Happening]:
        """What happened with a version, and since the version `before`, which is shown before it. None = none is: since
        its parent, if that is still there."""
        return list(self._at(checkpoint, before))

    def _at(self, checkpoint: Checkpoint, before: Checkpoint | None) -> Iterator[Happening]:
        if before is None and checkpoint.parent_version:
            before, is_shown = self._parent(checkpoint), False
            first = before.sequence if before is not None else checkpoint.sequence  # nobody knows since when
        else:
            first, is_shown = (before.sequence, True) if before is not None else (0, False)
        yield from map(effect_line, (each for each in self._effects if first < each.sequence <= checkpoint.sequence))
        if checkpoint.acknowledged_signals:
            used = self._thread.signals.list(acknowledged_by=checkpoint)
            shown = self._answered(before, checkpoint) if is_shown else set()
            yield from (signal_line(each) for each in used if each.id not in shown)
        told = self._told(checkpoint)
        # The head shows what was told of it last, and nobody knows what it was saved with.
        is_told = checkpoint.version == self._head and any(each.told is not None for each in told)
        last = None if before is None else self._last_status(before)
        said = _status(checkpoint)
        if not is_told:
            if last is not None and said != last:
                yield Happening("status", f"{last} → {said}", {"from": last, "to": said})
            if checkpoint.question is not None and checkpoint.status == Status.WAITING:
                yield asked_line(checkpoint.question, checkpoint.wait_id)
            last = said
        yield from told_lines(told, last or status_word(Status.RUNNING), None if is_told else checkpoint.question)
        if checkpoint.labels:
            yield Happening("labels", pairs(checkpoint.labels), {"labels": dict(checkpoint.labels)})
        if tags := self._tags.get(checkpoint.version):
            yield Happening("tags", " ".join(tags), {"tags": tags})

    def told_of(self, checkpoint: Checkpoint) -> list[Happening]:
        """What was asked after a version was saved, who answered, and where it failed; without what the version itself
        says now."""
        found = told_lines(self._told(checkpoint), "", None)
        return [each for each in found if each.what != "status" and not _says(checkpoint, each)]

    def _told(self, checkpoint: Checkpoint) -> list[Event]:
        if self._told_of is None:
            since = checkpoint.sequence if self._since is None else min(self._since, checkpoint.sequence)
            try:
                self._told_of = read_told(self._thread, self._effects, since)
            except (ArchiveUnavailable, Corrupt, KeyUnavailable) as error:
                self._told_of = {}
                self.effects.damaged.append(f"what was asked after a version was saved: {error.message}")
        return self._told_of.get(checkpoint.version, [])

    def _answered(self, before: Checkpoint | None, checkpoint: Checkpoint) -> set[str]:
        """The ids of the answers that stand beside their questions, with the version before."""
        if before is None or before.version != checkpoint.parent_version:
            return set()
        return {each.what.id for each in self._told(before) if isinstance(each.what, Signal)}

    def _last_status(self, checkpoint: Checkpoint) -> str:
        told = [each.told for each in self._told(checkpoint) if each.told is not None]
        return status_word(read_member(Status, told[-1].status)) if told else _status(checkpoint)

    def _parent(self, checkpoint: Checkpoint) -> Checkpoint | None:
        try:
            return self._thread.checkpoints.get(checkpoint.parent_version)
        except (Corrupt, VersionPruned, VersionNotFound):
            return None

    def later(self, checkpoint: Checkpoint) -> list[Happening]:
        """What came since the newest version: effects, and answers and other signals that no save has used yet."""
        found = [effect_line(each) for each in self._effects if each.sequence > checkpoint.sequence]
        if self._has_signals and checkpoint.version == self._head:
            found += [signal_line(each, " (not used yet)") for each in self._thread.signals.list()]
        return found


def _says(checkpoint: Checkpoint, happening: Happening) -> bool:
    """Whether a version itself says it, as the newest one does."""
    if happening.what == "asked":
        return checkpoint.status == Status.WAITING and happening.facts["wait_id"] == checkpoint.wait_id
    is_failed = happening.what == "failed" and checkpoint.status == Status.FAILED
    return is_failed and happening.facts["detail"] == checkpoint.status_detail


def _status(checkpoint: Checkpoint) -> str:
    return status_word(checkpoint.status)


def told_lines(events: Iterable[Event], status: str, question: Question | None) -> Iterator[Happening]:
    """What was told of a version, in the order of the journal, after it was saved with this status and question."""
    for event in events:
        if isinstance(event.what, Signal):
            yield signal_line(event.what)
        if event.told is None:
            continue
        told, asked = event.told, Question.from_proto(event.told.question) if event.told.HasField("question") else None
        now = read_member(Status, told.status)
        said = status_word(now)
        if said != status:
            yield Happening("status", f"{status} → {said}", {"from": status, "to": said})
        if now == Status.WAITING and asked is not None and asked != question:
            yield asked_line(asked, told.wait_id)
        if now == Status.FAILED:
            yield Happening("failed", shorten(told.status_detail, PAYLOAD_WIDTH), {"detail": told.status_detail})
        status, question = said, asked


def asked_line(question: Question, wait_id: str) -> Happening:
    """A question."""
    by = f" by {question.asked_by}" if question.asked_by else ""
    form = "" if question.schema is None else f", answer: {compact(question.schema, PAYLOAD_WIDTH)}"
    return Happening(
        "asked", f'"{shorten(" ".join(question.prompt.split()), PROMPT_WIDTH)}"{by} (wait id {wait_id}{form})',
        {**(question_as_json(question) or {}), "wait_id": wait_id},
    )


def signal_line(signal: Signal, more: str = "") -> Happening:
    """An answer, or another signal. `more` is said after it."""
    what = "answered" if signal.wait_id else "signal"
    facts = {
        "name": signal.name, "sender": signal.sender, "wait_id": signal.wait_id, "time": signal.time.isoformat(),
        "payload": None if signal.payload_value is None else plain(_payload(signal)),
    }  # fmt: skip
    return Happening(what, said(signal) + more, facts)


def said(signal: Signal) -> str:
    """What a signal says, and who sent it."""
    payload = "" if signal.payload_value is None else f": {summarize(_payload(signal), PAYLOAD_WIDTH)}"
    return f"{signal.name} by {signal.sender or 'somebody'}{payload}"


def effect_line(effect: RecordedEffect) -> Happening:
    """A tool call."""
    state = status_word(effect.state).replace("_", " ")
    name = "" if effect.name in ("", effect.key) else f" ({effect.name})"
    detail = f": {shorten(effect.detail, PAYLOAD_WIDTH)}" if effect.detail else ""
    return Happening(
        "effect", f"{effect.key}{name}  {state}{detail}",
        {
            "key": effect.key, "anchor": effect.anchor, "name": effect.name, "state": state, "detail": effect.detail,
        },
        is_write(effect),
    )  # fmt: skip


def open_effects(effects: Iterable[RecordedEffect]) -> list[RecordedEffect]:
    """Those without a known end."""
    return [each for each in effects if each.state not in ENDED]


def for_scripts(happenings: Sequence[Happening]) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [{"what": each.what, **each.facts} for each in happenings]


def shown(happenings: Iterable[Happening], *, internal: bool) -> list[Happening]:
    """Those that people see: all, or those that are not the framework's own."""
    return [each for each in happenings if internal or not each.is_internal]


def lines(happenings: Sequence[Happening]) -> list[str]:
    """The lines to print."""
    return [f"  {each.what:<8}  {clean(each.text)}" for each in happenings]


def _payload(signal: Signal) -> Any:
    return decoded(lambda: signal.payload, signal.payload_value)
