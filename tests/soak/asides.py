"""What an agent does between the steps of its run."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from tests.soak.desk import Desk, Wrong, made_of
from tests.soak.keeping import keep
from tests.soak.ledger import HAS_ARCHIVE, Known, hash_of
from tests.soak.working import record

from stateward import Durability
from stateward.errors import Exhausted

REPEATS = (1, 10, 100, 3000)  # the longest note becomes a blob


class Asides:
    """Appends without reading, travels in time, tags, forks, branches, prunes."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def do_something(self, name: str) -> None:
        known = self.desk.book.threads.get(name)
        if known is None:
            return
        kept = sorted(known.versions.keys() - known.covered)
        version = self.desk.dice.choice(kept)
        verbs = (
            self.append,
            self.travel,
            self.travel,
            self.tag,
            self.fork,
            self.branch,
            self.prune,
            self.put,
            self.put,
            self.record,
            self.record,
            self.move,
        )
        self.desk.dice.choice(verbs)(known, version)

    def append(self, known: Known, version: int) -> None:
        """Without reading; the hash is that of the head with one more note. Every second one is sent twice."""
        state = self.desk.do(self.desk.client.thread(known.name).hydrate())
        entry = f"note {self.desk.book.used} " * self.desk.dice.choice(REPEATS)
        state.logs["notes"].append(entry)
        waits = HAS_ARCHIVE in os.environ and self.desk.dice.random() < 0.5
        level = {"durability": Durability.ARCHIVED} if waits else {}

        anchor = f"c-{self.desk.number}-{self.desk.book.used}"

        def send(key: str) -> dict[str, Any]:
            thread = self.desk.client.thread(known.name)
            checkpoint = self.desk.do(thread.append("notes", entry, request_id=key, checkpoint_id=anchor, **level))
            made = made_of(checkpoint)
            if self.desk.book.used % 2:
                with suppress(Exhausted):  # there is no room to announce the note's blob again; the append is answered
                    again = self.desk.do(thread.append("notes", entry, request_id=key, checkpoint_id=anchor))
                    if (made_of(again), again.replayed) != (made, True):
                        raise Wrong(f"{key} was answered as {made} and then as {again}")
            return {"made": [made], "archived": checkpoint.durability is Durability.ARCHIVED}

        self.desk.ask("save", send, parts=[self.desk.part(known.name, hash_of(state))], entry=entry, anchor=anchor)

    def travel(self, known: Known, version: int) -> None:
        self.desk.check(known, self.desk.do(self.desk.client.thread(known.name).hydrate(at=version)), version)

    def tag(self, known: Known, version: int) -> None:
        name = f"tag-{self.desk.book.used % 3}"

        def send(key: str) -> dict[str, Any]:
            self.desk.do(self.desk.client.thread(known.name).tags.set(name, at=version))
            return {}

        self.desk.ask("tag", send, thread=known.name, tag=name, version=version)

    def fork(self, known: Known, version: int) -> None:
        """One version, or all of a short thread."""
        new, is_whole = (
            f"fork-{self.desk.number}-{self.desk.book.used}",
            len(known.versions) < 15 and self.desk.dice.random() < 0.3,
        )
        kept = {at: (saved.hash, saved.branch) for at, saved in known.versions.items() if at not in known.covered}
        facts: dict[str, Any] = {"versions": {1: (known.versions[version].hash, "main")}, "tags": {}, "covered": []}
        facts |= {"records": {}, "moves": {}}
        anchors = {anchor: 1 for anchor, at in known.anchors.items() if at == version}
        if is_whole:
            facts = {"versions": kept, "tags": known.tags, "covered": sorted(known.covered)}
            facts |= {"records": dict(known.records), "moves": known.moves}
            anchors = {anchor: at for anchor, at in known.anchors.items() if at in kept}
        facts["effects"] = {name: each for name, each in known.effects.items() if name.partition(" ")[0] in anchors}
        facts["anchors"] = anchors

        def send(key: str) -> dict[str, Any]:
            thread = self.desk.client.thread(known.name)
            copy = thread.fork(new, all_versions=True) if is_whole else thread.fork(new, at=version)
            self.desk.do(copy)
            return {"uid": self.desk.do(self.desk.client.thread(new).hydrate(must_exist=True)).checkpoint.uid}

        self.desk.ask("fork", send, thread=known.name, new=new, **facts)

    def put(self, known: Known, version: int) -> None:
        """Records belong to no version."""
        del version
        keep(self.desk, known)

    def record(self, known: Known, version: int) -> None:
        """Results of tools, of this version or another one, or of none."""
        del version
        record(self.desk, known)

    def move(self, known: Known, version: int) -> None:
        """The head of main goes back, or forth again."""
        if known.versions[version].branch != "main":
            return

        def send(key: str) -> dict[str, Any]:
            self.desk.do(self.desk.client.thread(known.name).branches.move("main", version))
            return {}

        self.desk.ask("move", send, thread=known.name, version=version)

    def branch(self, known: Known, version: int) -> None:
        """A side branch of one version, made from any version there is."""
        state = self.desk.do(self.desk.client.thread(known.name).hydrate(at=version))
        state.logs["notes"].append(f"aside {self.desk.book.used}")
        name = f"side-{self.desk.book.used}"

        def send(key: str) -> dict[str, Any]:
            side = self.desk.client.thread(known.name).branch(name, at=version)
            return {"made": [made_of(self.desk.do(side.save(state, request_id=key)))]}

        self.desk.ask("save", send, parts=[self.desk.part(known.name, hash_of(state), name)])

    def prune(self, known: Known, version: int) -> None:
        """Some of the older versions that nothing holds."""
        held = {known.head(saved.branch) for saved in known.versions.values()} | set(known.tags.values())
        free = sorted(known.versions.keys() - known.covered - held)
        versions = sorted(self.desk.dice.sample(free, len(free) // 3))
        if not versions:
            return

        def send(key: str) -> dict[str, Any]:
            found = self.desk.do(self.desk.client.thread(known.name).prune(versions=versions)).pruned_versions
            return {"versions": list(found)}

        self.desk.ask("prune", send, thread=known.name, versions=versions)
