"""What a thread is, said in plain dicts and lists: the daemon's promises without any of its machinery."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from stateward.errors import InvalidField, StatewardError, VersionNotFound, VersionPruned
from stateward.v1 import diff_pb2, state_pb2

MEDIA_TYPE = "text/plain"


INT64 = range(-(1 << 63), 1 << 63)


class Conflict(Exception):
    """An edit does not fit."""


def content_of(value: state_pb2.Value) -> bytes | int:
    """What a value holds: bytes, or a number."""
    return value.number if value.WhichOneof("content") == "number" else value.data


def digest_of(content: bytes | int) -> bytes:
    """SHA-256 of bytes, or of a number's digits."""
    return sha256(content if isinstance(content, bytes) else str(content).encode()).digest()


@dataclass
class PlainLog:
    """A log: index of the first entry, entries, last version that changed old ones."""

    first: int = 0
    entries: list[bytes] = field(default_factory=list)
    rewritten: int = 0

    @property
    def next(self) -> int:
        return self.first + len(self.entries)


@dataclass
class PlainState:
    """Slots, logs, and where the indexes of deleted logs go on."""

    slots: dict[str, bytes | int] = field(default_factory=dict)
    logs: dict[str, PlainLog] = field(default_factory=dict)
    retired: dict[str, int] = field(default_factory=dict)

    def visible(self) -> dict[str, Any]:
        """What a hydrate shows, in comparable form."""
        logs = {name: (log.first, log.entries, log.rewritten) for name, log in self.logs.items()}
        return {"slots": self.slots, "logs": logs}

    def entries(self) -> dict[str, list[bytes]]:
        """What the logs hold."""
        return {name: log.entries for name, log in self.logs.items()}

    def apply(self, diff: diff_pb2.Diff, version: int) -> PlainState:
        """The state after the edits. Raises Conflict."""
        state = copy.deepcopy(self)
        for edit in diff.edits:
            kind = edit.WhichOneof("edit")
            getattr(state, f"_{kind}")(getattr(edit, kind), version)
        return state

    def fit(self, edits: list[diff_pb2.Edit]) -> list[diff_pb2.Edit]:
        """The same edits with indexes that exist, without those whose slot or log does not."""
        state, fitting = self, []
        for edit in edits:
            state._move(edit)
            try:
                state = state.apply(diff_pb2.Diff(edits=[edit]), 0)
            except Conflict:
                continue
            fitting.append(edit)
        return fitting

    def _move(self, edit: diff_pb2.Edit) -> None:
        kind = str(edit.WhichOneof("edit"))
        change = getattr(edit, kind)
        log = self.logs.get(getattr(change, "log", "")) or PlainLog(self.retired.get(getattr(change, "log", ""), 0))
        if kind == "append" and change.HasField("at_index"):
            change.at_index = log.next
        elif kind == "replace_entry" and log.entries:
            change.index = log.first + change.index % len(log.entries)
        elif kind == "trim_log" and change.WhichOneof("trim") != "keep_last":
            trim = change.WhichOneof("trim")
            setattr(change, trim, log.first + getattr(change, trim) % (len(log.entries) + 1))
        elif kind == "splice_slot":
            old = self.slots.get(change.slot, b"")
            change.base_sha256 = digest_of(old)
            if isinstance(old, int):
                return
            splice = change.splices[0]
            splice.offset %= len(old) + 1
            splice.delete = min(splice.delete, len(old) - splice.offset)
        elif kind == "set_slot" and change.HasField("expected_sha256"):
            change.expected_sha256 = digest_of(self.slots[change.slot]) if change.slot in self.slots else b""

    def replaced_by(self, given: state_pb2.State, version: int) -> PlainState:
        """The state after a full state was saved on top of this one."""
        state = PlainState({name: content_of(value) for name, value in given.slots.items()}, {}, dict(self.retired))
        for name, old in self.logs.items():
            if name not in given.logs:
                state.retired[name] = old.next
        for name, log in given.logs.items():
            entries, old_log = [entry.data for entry in log.entries], self.logs.get(name)
            if old_log is None:
                is_heir = name in state.retired
                state.logs[name] = PlainLog(state.retired.pop(name, 0), entries, version if is_heir else 0)
            else:
                only_grew = entries[: len(old_log.entries)] == old_log.entries
                state.logs[name] = PlainLog(old_log.first, entries, old_log.rewritten if only_grew else version)
        return state

    def _log(self, name: str) -> PlainLog:
        if name not in self.logs:
            raise Conflict
        return self.logs[name]

    def _set_slot(self, edit: diff_pb2.SetSlot, version: int) -> None:
        if edit.HasField("expected_sha256"):
            held = self.slots.get(edit.slot)
            if edit.expected_sha256 != (b"" if held is None else digest_of(held)):
                raise Conflict
        self.slots[edit.slot] = content_of(edit.value)

    def _add_number(self, edit: diff_pb2.AddNumber, version: int) -> None:
        held = self.slots.get(edit.slot, 0)
        if not isinstance(held, int) or held + edit.delta not in INT64:
            raise Conflict
        self.slots[edit.slot] = held + edit.delta

    def _delete_slot(self, edit: diff_pb2.DeleteSlot, version: int) -> None:
        if edit.slot not in self.slots:
            raise Conflict
        del self.slots[edit.slot]

    def _splice_slot(self, edit: diff_pb2.SpliceSlot, version: int) -> None:
        old = self.slots.get(edit.slot)
        if not isinstance(old, bytes) or (edit.base_sha256 and digest_of(old) != edit.base_sha256):
            raise Conflict
        new, end = b"", 0
        for splice in edit.splices:
            if splice.offset + splice.delete > len(old):
                raise Conflict
            new += old[end : splice.offset] + splice.insert
            end = splice.offset + splice.delete
        self.slots[edit.slot] = new + old[end:]

    def _append(self, edit: diff_pb2.Append, version: int) -> None:
        log = self.logs.get(edit.log)
        end = self.retired.get(edit.log, 0) if log is None else log.next
        if edit.HasField("at_index") and edit.at_index != end:
            raise Conflict
        if log is None:
            log = self.logs[edit.log] = PlainLog(end, [], version if edit.log in self.retired else 0)
            self.retired.pop(edit.log, None)
        log.entries += [entry.data for entry in edit.entries]

    def _replace_entry(self, edit: diff_pb2.ReplaceEntry, version: int) -> None:
        log = self._log(edit.log)
        if not log.first <= edit.index < log.next:
            raise Conflict
        log.entries[edit.index - log.first], log.rewritten = edit.value.data, version

    def _trim_log(self, edit: diff_pb2.TrimLog, version: int) -> None:
        log, before = self._log(edit.log), len(self._log(edit.log).entries)
        kind = edit.WhichOneof("trim")
        if kind != "keep_last" and getattr(edit, str(kind)) > log.next:
            raise Conflict
        if kind == "from_index":
            del log.entries[max(edit.from_index - log.first, 0) :]
        else:
            keep = edit.keep_last if kind == "keep_last" else log.next - max(edit.before_index, log.first)
            dropped = max(before - keep, 0)
            del log.entries[:dropped]
            log.first += dropped
        if len(log.entries) < before:
            log.rewritten = version

    def _delete_log(self, edit: diff_pb2.DeleteLog, version: int) -> None:
        self.retired[edit.log] = self._log(edit.log).next
        del self.logs[edit.log]


@dataclass
class PlainVersion:
    """What a version is."""

    state: PlainState
    parent: int
    branch: str
    digest: bytes
    checkpoint_id: str = ""
    step: int | None = None
    label: str = ""


@dataclass
class PlainReader:
    """What a client that follows a log holds: the version and index it has read to, and the entries."""

    version: int = 0
    index: int = 0
    entries: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class PlainEffect:
    """A result."""

    data: bytes
    stays: bool


@dataclass(frozen=True)
class PlainRecord:
    """A record."""

    data: bytes
    revision: int


@dataclass
class PlainThread:
    """One creation of a thread."""

    uid: str = ""
    versions: dict[int, PlainVersion] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    bases: dict[str, int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    pruned: set[int] = field(default_factory=set)
    sequence: int = 0
    requests: list[tuple[Any, Any]] = field(default_factory=list)  # (request, answer)
    firsts: dict[str, int] = field(default_factory=dict)  # by branch: its first version
    readers: dict[tuple[str, str], PlainReader] = field(default_factory=dict)  # by branch and log
    labels: dict[str, str] = field(default_factory=dict)
    effects: dict[tuple[str, str], PlainEffect] = field(default_factory=dict)  # by anchor and key
    records: dict[str, PlainRecord] = field(default_factory=dict)

    def prune(self, doomed: Iterable[int]) -> None:
        """Versions go, and the effects of ids that no version has any more."""
        ids = {self.versions[version].checkpoint_id for version in doomed}
        self.pruned |= set(doomed)
        gone = ids - {self.versions[version].checkpoint_id for version in self.retained}
        self.effects = {place: it for place, it in self.effects.items() if it.stays or place[0] not in gone}

    def effects_of(self, ids: Iterable[str]) -> dict[tuple[str, str], PlainEffect]:
        """The effects that a copy of versions with these ids gets."""
        return {place: it for place, it in self.effects.items() if place[0] in set(ids)}

    @property
    def last(self) -> int:
        return max(self.versions, default=0)

    @property
    def retained(self) -> list[int]:
        return sorted(self.versions.keys() - self.pruned)

    def state_at(self, version: int) -> PlainState:
        return self.versions[version].state if version else PlainState()

    def find(self, branch: str, checkpoint_id: str) -> int:
        """Version with a checkpoint id; 0 = none."""
        if not checkpoint_id:
            return 0
        found = (v for v, it in self.versions.items() if (it.branch, it.checkpoint_id) == (branch, checkpoint_id))
        return next(found, 0)

    def forks_of(self, branch: str) -> list[str]:
        """The branches that saves made which lost a race."""
        return [name for name in self.heads if name.startswith(f"{branch}-fork-")]

    def doomed_by_keeping(self, count: int) -> list[int]:
        """What goes if only the newest of each branch stay, besides heads, bases and tagged versions."""
        safe = {*self.heads.values(), *self.bases.values(), *self.tags.values()}
        for branch in self.heads:
            mine = [version for version in self.retained if self.belongs(version, branch)]
            safe |= set(mine[-count:])
        return [version for version in self.retained if version not in safe]

    def belongs(self, version: int, branch: str) -> bool:
        """Whether a version was saved to the branch, and not to one of the same name that was deleted."""
        return self.versions[version].branch == branch and version >= self.firsts.get(branch, 1)

    def refuses_move(self, branch: str, version: int) -> type[StatewardError] | None:
        """The error of a move of a branch's head to a version; None = it moves there."""
        if version > self.last:
            return VersionNotFound
        if version in self.pruned:
            return VersionPruned
        return None if self.belongs(version, branch) else InvalidField

    def forget(self, branch: str) -> None:
        """Deletes a branch."""
        del self.heads[branch], self.bases[branch]
        self.firsts.pop(branch, None)

    def falls(self, doomed: set[int]) -> dict[str, int]:
        """By branch whose head is pruned: its newest earlier version that is left; 0 = none."""
        left = [version for version in self.retained if version not in doomed]
        return {
            branch: max((version for version in left if version < head and self.belongs(version, branch)), default=0)
            for branch, head in self.heads.items()
            if head in doomed
        }
