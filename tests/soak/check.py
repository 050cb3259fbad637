"""Compares the store with the ledgers: nothing that was answered is missing, nothing is there that nobody asked for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import grpc
from tests.end_to_end.recorded import verify_everything
from tests.soak.desk import NAMESPACE
from tests.soak.ledger import Book, Known, Records, hash_of

from stateward import Client
from stateward.errors import StatewardError, ThreadNotFound, UidMismatch, VersionPruned
from stateward.testing import Daemon

PAGE = 1000
COPIES = "fork-of-traveller-"  # what a traveller makes for a moment; a full disk may keep it from removing it
ALL = 1 << 30


@dataclass
class Result:
    """What was compared, and what is wrong."""

    versions: int = 0
    states: int = 0
    records: int = 0
    effects: int = 0
    findings: list[str] = field(default_factory=list)


def check_all(daemon: Daemon, books: Iterable[Book], dice: random.Random, *, states_each: int = ALL) -> Result:
    """Everything, by what can be asked over gRPC; of each thread so many states are hydrated and compared."""
    books = list(books)
    with daemon.client(namespace=NAMESPACE, retry_timeout=5.0) as client:
        try:
            checker = Checker(client, dice, states_each)
        except StatewardError as error:
            return Result(findings=[f"the threads cannot be listed: {type(error).__name__}: {error}"])
        for book in books:
            checker.check_book(book)
        checker.check_names_of_threads(books)
    try:
        findings = verify_everything(daemon)[1]
        checker.result.findings += [f"Verify: {finding}".replace("\n", " ") for finding in findings]
    except grpc.RpcError as error:
        checker.say(f"Verify ended with {error.code().name}: {error.details()}")
    return checker.result


class Checker:
    """Collects what is wrong; goes on after each."""

    def __init__(self, client: Client, dice: random.Random, states_each: int) -> None:
        self.client, self.dice, self.states_each = client, dice, states_each
        self.result = Result()
        self.there = {info.name: info.uid for info in client.threads()}

    def say(self, text: str) -> None:
        self.result.findings.append(text)

    def check_book(self, book: Book) -> None:
        """All threads of one agent."""
        for known in book.threads.values():
            try:
                self._check_thread(book, known)
            except (ThreadNotFound, UidMismatch) as error:
                if not self._is_deleted_meanwhile(book, known):
                    self.say(f"{known.name}: {type(error).__name__}: {error}")
            except StatewardError as error:
                self.say(f"{known.name}: {type(error).__name__}: {error}")
        for uid in book.gone & set(self.there.values()):
            self.say(f"the deleted thread with uid {uid} is there again")
        for line in book.pending.values():
            if line["op"] == "save":
                try:
                    self._check_batch(line["id"], line["parts"])
                except StatewardError as error:
                    self.say(f"{line['id']}: {type(error).__name__}: {error}")

    def check_names_of_threads(self, books: list[Book]) -> None:
        """No thread is there that nobody asked for."""
        for name in self.there.keys() - {name for book in books for name in book.threads}:
            is_pending = any(book.pending_of("save", name) or book.pending_of("fork", name) for book in books)
            if not is_pending and not name.startswith(COPIES):
                self.say(f"thread {name} is there, and nobody asked for it or it was deleted")

    def _check_batch(self, key: str, parts: list[dict[str, str]]) -> None:
        """A save that was not answered is there whole or not at all, in all of its threads or in none."""
        found = set()
        for part in parts:
            state = self.client.thread(part["thread"], branch=part["branch"]).hydrate()
            found.add(state.version != part["head"])
            if state.version != part["head"] and hash_of(state) != part["hash"]:
                self.say(f"{part['thread']} version {state.version} was not answered and is there in part")
        if len(found) > 1:
            self.say(f"{key}: a part of a batch is there and another is not")

    def _is_deleted_meanwhile(self, book: Book, known: Known) -> bool:
        """A deletion that was not answered is finished some time after the start, also while this looks."""
        there = {info.uid for info in self.client.threads()}
        return known.uid not in there and bool(book.pending_of("delete", known.name))

    def _check_thread(self, book: Book, known: Known) -> None:
        if self.there.get(known.name) != known.uid:
            if known.name in self.there or not book.pending_of("delete", known.name):
                self.say(f"thread {known.name} is gone: {len(known.versions)} answered saves are lost")
            return
        thread = self.client.thread(known.name)
        stored = {each.version: each.digest.hex() for each in thread.checkpoints.list(page_size=PAGE)}
        self.result.versions += len(known.versions)
        for version, saved in known.versions.items():
            if version not in stored and version not in known.covered:
                self.say(f"{known.name} version {version} was answered and is lost")
            elif version in stored and saved.digest not in (None, stored[version]):
                self.say(f"{known.name} version {version} has another digest")
        unknown = sorted(stored.keys() - known.versions.keys() - known.covered)
        if unknown and (unknown != [known.last + 1] or not book.pending_of("save", known.name)):
            self.say(f"{known.name} has versions {unknown} after {known.last}, and nobody asked for them")
        here = sorted(stored.keys() & known.versions.keys())
        for version in sorted({*self.dice.sample(here, min(self.states_each, len(here))), *here[-1:]}):
            self.result.states += 1
            if hash_of(thread.hydrate(at=version)) != known.versions[version].hash:
                self.say(f"{known.name} version {version} has another content")
        self._check_pruned(known)
        self._check_refs(book, known)
        self._check_records(book, known)
        self._check_effects(book, known)

    def _check_pruned(self, known: Known) -> None:
        for version in sorted(known.pruned)[-2:]:
            try:
                self.client.thread(known.name).hydrate(at=version)
            except VersionPruned:
                continue
            self.say(f"{known.name} version {version} was pruned and is there again")

    def _check_records(self, book: Book, known: Known) -> None:
        """All records, with their revisions, and no other ones."""
        found = {each.key: (each.value, each.revision) for each in self.client.thread(known.name).records.list()}
        self.result.records += len(known.records)
        if not any(is_same(found, records) for records in book.possible_records(known)):
            differing = sorted(
                key for key in found.keys() | known.records.keys() if found.get(key) != known.records.get(key)
            )
            self.say(f"{known.name}: records {differing} are not as they were answered")

    def _check_effects(self, book: Book, known: Known) -> None:
        """All results of tools. What is pending may be there, or may be gone, but a put only as a whole."""
        found = {f"{each.anchor} {each.key}": each.value for each in self.client.thread(known.name).effects.list()}
        self.result.effects += len(known.effects)
        pending = book.pending_of("effects", known.name)
        prunes = (line["versions"] for line in book.pending_of("prune", known.name))
        loose = known.anchors_of(itertools.chain.from_iterable(prunes))
        loose |= {line["anchor"] for line in pending if line["values"] is None}
        lost = [
            name
            for name, value in known.effects.items()
            if found.get(name) != value and (name in found or name.partition(" ")[0] not in loose)
        ]
        if lost:
            self.say(f"{known.name}: results {sorted(lost)} are not as they were answered")
        more = found.keys() - known.effects.keys()
        for line in pending:
            mine = more & (line["values"] or {}).keys()
            if mine and mine != line["values"].keys() and line["anchor"] not in loose:
                self.say(f"{known.name}: a part of the results {sorted(line['values'])} is there")
            more -= mine
        if more:
            self.say(f"{known.name}: results {sorted(more)} are there, and nobody put them or they were deleted")

    def _check_refs(self, book: Book, known: Known) -> None:
        """Heads of branches and tags."""
        info = self.client.thread(known.name).info()
        heads = {branch.name: branch.version for branch in info.branches}
        is_saving = bool(book.pending_of("save", known.name))
        for branch in {saved.branch for saved in known.versions.values()}:
            expected, found = known.head(branch), heads.get(branch, 0)
            moved = {line["version"] for line in book.pending_of("move", known.name)} if branch == "main" else set()
            if found not in (expected, *moved) and not (is_saving and found == known.last + 1):
                self.say(f"{known.name} branch {branch} is at {found}, not {expected}")
        tags = {tag.name: tag.version for tag in info.tags}
        for tag, version in known.tags.items():
            if tags.get(tag) != version and not book.pending_of("tag", known.name):
                self.say(f"{known.name} tag {tag} names {tags.get(tag)}, not {version}")


def is_same(found: Records, records: Records) -> bool:
    """Whether these are the records; revision 0 stands for any."""
    if found.keys() != records.keys():
        return False
    return all(found[key][0] == value and revision in (0, found[key][1]) for key, (value, revision) in records.items())


def check_goes_on(daemon: Daemon, books: Iterable[Book]) -> list[str]:
    """Old threads and new ones can be saved to; returns what is wrong."""
    findings = []
    with daemon.client(namespace=NAMESPACE, retry_timeout=5.0) as client:
        there = {info.name for info in client.threads()}
        names = [name for book in books for name in book.threads if name in there]
        for name in [*names[-2:], "made after the loss"]:
            thread = client.thread(name)
            try:
                head = thread.hydrate().version
                made = thread.append("notes", "after the loss")
                if made.version <= head or thread.hydrate().logs["notes"][-1] != "after the loss":
                    findings.append(f"{name}: the save after it made version {made.version} on {head}")
            except StatewardError as error:
                findings.append(f"{name} cannot be saved to: {type(error).__name__}: {error}")
    return findings


def check_archived(daemon: Daemon, books: Iterable[Book]) -> list[str]:
    """On a machine that never had the threads: every version that was answered ARCHIVED; returns what is wrong."""
    findings = []
    with daemon.client(namespace=NAMESPACE, retry_timeout=5.0) as client:
        for book in books:
            for known in book.threads.values():
                findings += _records_not_in_the_archive(client, book, known)
                version = known.archived
                if not version or version in known.covered or book.pending_of("delete", known.name):
                    continue
                try:
                    state = client.thread(known.name).hydrate(at=version)
                except StatewardError as error:
                    findings.append(f"{known.name} version {version} is not in the archive: {error}")
                    continue
                saved = known.versions[version]
                if (state.digest.hex(), hash_of(state)) != (saved.digest, saved.hash):
                    findings.append(f"{known.name} version {version} is another in the archive")
    return findings


def _records_not_in_the_archive(client: Client, book: Book, known: Known) -> list[str]:
    """Records that nobody has written since, of puts up to the newest one that was answered ARCHIVED."""
    pending = {key for line in book.pending_of("put", known.name) for key in line["writes"]}
    kept = {key: each for key, each in known.records.items() if 0 < each[1] <= known.archived_revision}
    if not kept or book.pending_of("delete", known.name):
        return []
    try:
        found = client.thread(known.name).records.get_many(kept)
    except StatewardError as error:
        return [f"the records of {known.name} are not in the archive: {error}"]
    there = {key: (each.value, each.revision) for key, each in found.items()}
    lost = sorted(key for key in kept.keys() - pending if there.get(key) != kept[key])
    return [f"{known.name}: records {lost} are not as they were archived"] if lost else []
