"""What happened at a version besides its slots and logs: a question, an answer, effects, a new status, labels, tags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateward.cli.describe import compact, decoded, pairs, plain, question_as_json, status_word, summarize
from stateward.cli.output import clean, shorten
from stateward.effects import EffectState
from stateward.errors import Corrupt, VersionNotFound, VersionPruned
from stateward.models import Status
from stateward.salvage import list_effects

if TYPE_CHECKING:
    from stateward import Checkpoint, Signal, Thread, ThreadInfo
    from stateward.effects import RecordedEffect
    from stateward.signals import Question

PROMPT_WIDTH, PAYLOAD_WIDTH = 1000, 200
ENDED = (EffectState.DONE, EffectState.FAILED)


@dataclass(frozen=True)
class Happening:
    """One line of a timeline."""

    what: str
    """asked, answered, signal, effect, status, labels or tags."""
    text: str
    """The rest of the line, for people."""
    facts: Mapping[str, Any]
    """The same for scripts."""


class Timeline:
    """What happened at each version of a thread, in the order of the journal."""

    def __init__(self, thread: Thread, info: ThreadInfo) -> None:
        self._thread = thread
        self._head, self._has_signals = info.version, info.pending_signals > 0
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
            before = self._parent(checkpoint)
            first = before.sequence if before is not None else checkpoint.sequence  # nobody knows since when
        else:
            first = before.sequence if before is not None else 0
        yield from map(effect_line, (each for each in self._effects if first < each.sequence <= checkpoint.sequence))
        if checkpoint.acknowledged_signals:
            yield from map(signal_line, self._thread.signals(acknowledged_by=checkpoint))
        if before is not None and (said := _status(checkpoint)) != _status(before):
            yield Happening("status", f"{_status(before)} → {said}", {"from": _status(before), "to": said})
        if checkpoint.question is not None and checkpoint.status == Status.WAITING:
            yield asked_line(checkpoint.question, checkpoint.wait_id)
        if checkpoint.labels:
            yield Happening("labels", pairs(checkpoint.labels), {"labels": dict(checkpoint.labels)})
        if tags := self._tags.get(checkpoint.version):
            yield Happening("tags", " ".join(tags), {"tags": tags})

    def _parent(self, checkpoint: Checkpoint) -> Checkpoint | None:
        try:
            return self._thread.checkpoint(checkpoint.parent_version)
        except (Corrupt, VersionPruned, VersionNotFound):
            return None

    def later(self, checkpoint: Checkpoint) -> list[Happening]:
        """What came since the newest version: effects, and answers and other signals that no save has used yet."""
        found = [effect_line(each) for each in self._effects if each.sequence > checkpoint.sequence]
        if self._has_signals and checkpoint.version == self._head:
            found += [signal_line(each, " (not used yet)") for each in self._thread.signals()]
        return found


def _status(checkpoint: Checkpoint) -> str:
    return status_word(checkpoint.status)


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
    )  # fmt: skip


def open_effects(effects: Iterable[RecordedEffect]) -> list[RecordedEffect]:
    """Those without a known end."""
    return [each for each in effects if each.state not in ENDED]


def for_scripts(happenings: Sequence[Happening]) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [{"what": each.what, **each.facts} for each in happenings]


def lines(happenings: Sequence[Happening]) -> list[str]:
    """The lines to print."""
    return [f"  {each.what:<8}  {clean(each.text)}" for each in happenings]


def _payload(signal: Signal) -> Any:
    return decoded(lambda: signal.payload, signal.payload_value)
