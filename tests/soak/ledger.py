"""What an agent asked for and what it was answered, a line each; and what must therefore be in the store.

Each operation has an id and a line "asked" before it is sent. Then comes one of: "answered", with what the daemon said;
"refused", a typed error, so it did not happen; "void", when an agent that was killed in between has looked and it had
not happened. An operation without one of them may have happened or not.

Operations: `save` (of one thread, or of several in one batch), `put` (of records), `effects` (results of tools), `move`
(of a head), `fork`, `tag`, `prune`, `delete`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.soak.recording import MARKS, Mark, current_mark

from stateward import State

Line = dict[str, Any]
NOW: Mark = (1 << 62, 0)
HAS_ARCHIVE = "STATEWARD_SOAK_ARCHIVE"  # set where the daemon has one
# Value and revision of each record; revision 0 = nobody was told.
Records = dict[str, tuple[str, int]]


def hash_state(slots: dict[str, Any], logs: dict[str, list[Any]]) -> str:
    """Names a content."""
    text = json.dumps([slots, logs], sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def hash_of(state: State) -> str:
    """The same for a state that was read."""
    return hash_state(dict(state.slots), {name: list(log) for name, log in state.logs.items()})


class Ledger:
    """An agent's own file. It is read again by the agent's next process, which goes on in it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        logs = os.environ.get(MARKS)
        self._logs = Path(logs) if logs else None
        self._is_new = True

    def write(self, event: str, key: str, **facts: Any) -> Line:
        """One line, at once: this process may be killed as well."""
        mark = {"mark": current_mark(self._logs)} if self._logs else {}
        line = {"event": event, "id": key, **facts, **mark}
        self._file.write("\n" * self._is_new + json.dumps(line) + "\n")  # ends a line that was cut off
        self._is_new = False
        self._file.flush()
        return line


def read_lines(path: Path, after: int = 0) -> Iterator[Line]:
    """The lines of a ledger after so many bytes; "at" says where each ends. One that a kill cut off is not one."""
    if not path.exists():
        return
    with path.open("rb") as file:
        at = file.seek(after)
        for text in file:
            if not text.endswith(b"\n"):
                return
            at += len(text)
            with suppress(ValueError):  # cut off by a kill, or empty: what the next process began with
                yield {**json.loads(text), "at": at}


@dataclass(frozen=True)
class Saved:
    """A version that is known. digest None: of a copy, not said by any answer."""

    hash: str
    digest: str | None
    branch: str = "main"


@dataclass
class Known:
    """What must be true of one thread."""

    name: str
    uid: str
    versions: dict[int, Saved] = field(default_factory=dict)
    covered: set[int] = field(default_factory=set)  # versions that somebody asked to prune
    pruned: set[int] = field(default_factory=set)  # and was answered
    tags: dict[str, int] = field(default_factory=dict)
    archived: int = 0  # the newest version that was answered ARCHIVED
    records: Records = field(default_factory=dict)
    archived_revision: int = 0  # of the newest put that was answered ARCHIVED
    # By branch: where its head was moved to, and the newest version of the thread at that time.
    moves: dict[str, tuple[int, int]] = field(default_factory=dict)
    effects: dict[str, str] = field(default_factory=dict)  # results by "anchor key"
    anchors: dict[str, int] = field(default_factory=dict)  # by id of a checkpoint its version

    def anchors_of(self, versions: Iterable[int]) -> set[str]:
        """The checkpoint ids of some versions: their effects go with them."""
        gone = set(versions)
        return {anchor for anchor, version in self.anchors.items() if version in gone}

    @property
    def last(self) -> int:
        return max(self.versions, default=0)

    def head(self, branch: str = "main") -> int:
        target, after = self.moves.get(branch, (0, 0))
        newer = (at for at, saved in self.versions.items() if saved.branch == branch and at > after)
        return max(newer, default=target)


@dataclass
class Book:
    """What must be true of everything one agent did."""

    threads: dict[str, Known] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # uids of deleted threads
    pending: dict[str, Line] = field(default_factory=dict)
    answered: int = 0  # saves
    refused: int = 0
    used: int = 0  # operations so far
    failures: list[Line] = field(default_factory=list)

    asked: dict[str, Line] = field(default_factory=dict, repr=False)

    def pending_of(self, op: str, thread: str) -> list[Line]:
        """Operations on a thread that may have happened."""
        return [line for line in self.pending.values() if line["op"] == op and thread in names_in(line)]

    def possible_records(self, known: Known) -> Iterator[Records]:
        """What the records of a thread may be: a put that was not answered is there whole or not at all."""
        pending = self.pending_of("put", known.name)
        for happened in itertools.product((False, True), repeat=len(pending)):
            records = dict(known.records)
            for line in itertools.compress(pending, happened):
                apply_put(records, line["writes"], 0)
            yield records

    def take(self, line: Line) -> None:
        """One more line."""
        match line["event"]:
            case "asked":
                self.asked[line["id"]] = self.pending[line["id"]] = line
                self.used += 1
                if line["op"] == "prune":
                    self.threads[line["thread"]].covered |= set(line["versions"])
            case "answered":
                self._accept(self.asked[line["id"]], line)
            case "refused":
                self.refused += 1
            case "failed":
                self.failures.append(line)
        if line["event"] in ("answered", "refused", "void"):
            self.pending.pop(line["id"], None)
            self.asked.pop(line["id"], None)

    def _accept(self, asked: Line, answer: Line) -> None:
        match asked["op"]:
            case "save":
                self.answered += 1
                self._accept_save(asked, answer)
            case "fork":
                self.threads[asked["new"]] = copy_of(asked, answer["uid"])
            case "put":
                known = self.threads[asked["thread"]]
                apply_put(known.records, asked["writes"], answer["revision"])
                if answer.get("archived"):
                    known.archived_revision = answer["revision"]
            case "move":
                known = self.threads[asked["thread"]]
                known.moves["main"] = asked["version"], known.last
            case "effects":
                apply_effects(self.threads[asked["thread"]].effects, asked)
            case "tag":
                self.threads[asked["thread"]].tags[asked["tag"]] = asked["version"]
            case "prune":
                known = self.threads[asked["thread"]]
                known.pruned |= set(answer["versions"])
                for anchor in known.anchors_of(answer["versions"]):
                    drop_effects(known.effects, anchor)
            case "delete":
                gone = self.threads.pop(asked["thread"], None)
                if gone is not None:
                    self.gone.add(gone.uid)

    def _accept_save(self, asked: Line, answer: Line) -> None:
        for part, made in zip(asked["parts"], answer["made"], strict=True):
            thread = self.threads.setdefault(part["thread"], Known(part["thread"], made["uid"]))
            saved = Saved(part["hash"], made["digest"], part["branch"])
            if thread.uid != made["uid"] or thread.versions.setdefault(made["version"], saved) != saved:
                self.failures.append({**answer, "error": f"{part} was answered as a version that is another"})
            if "anchor" in asked:
                thread.anchors[asked["anchor"]] = made["version"]
            if answer.get("archived"):
                thread.archived = max(thread.archived, made["version"])


def copy_of(asked: Line, uid: str) -> Known:
    """What must be true of a copy."""
    copy = Known(asked["new"], uid)
    copy.versions = {int(at): Saved(content, None, branch) for at, (content, branch) in asked["versions"].items()}
    copy.tags, copy.covered = dict(asked["tags"]), set(asked["covered"])
    copy.anchors, copy.effects = dict(asked["anchors"]), dict(asked["effects"])
    copy.moves = {branch: (to, after) for branch, (to, after) in asked["moves"].items()}
    copy.records = {key: (value, revision) for key, (value, revision) in asked["records"].items()}
    return copy


def apply_put(records: Records, writes: dict[str, str | None], revision: int) -> None:
    """A put: None deletes a record."""
    for key, value in writes.items():
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value, revision


def apply_effects(effects: dict[str, str], asked: Line) -> None:
    """Results that were put under an anchor; None = all results of the anchor were deleted."""
    if asked["values"] is not None:
        effects.update(asked["values"])
        return
    drop_effects(effects, asked["anchor"])


def drop_effects(effects: dict[str, str], anchor: str) -> None:
    """All results of an anchor go."""
    for name in [name for name in effects if name.startswith(anchor + " ")]:
        del effects[name]


def names_in(asked: Line) -> set[str]:
    """The threads that an operation changes."""
    if asked["op"] == "save":
        return {part["thread"] for part in asked["parts"]}
    return {asked["new"] if asked["op"] == "fork" else asked["thread"]}


def read_book(lines: Iterable[Line], until: Mark = NOW) -> Book:
    """Everything that was asked and answered up to a place in the order of a recording."""
    book = Book()
    for line in lines:
        if tuple(line.get("mark", (0, 0))) > until:
            break
        book.take(line)
    return book
