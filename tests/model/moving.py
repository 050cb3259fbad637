"""The rules of the machine that move heads, delete branches, prune heads and follow logs over all of it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.model.plain import PlainReader, PlainThread
from tests.model.saving import Saving
from tests.model.strategies import BRANCHES, DATA, LOGS, PICK, value

from stateward._operations.threads import numbers_of, spans_of
from stateward.errors import InvalidField, StatewardError, UidMismatch, VersionMismatch, VersionNotFound
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import diff_pb2
from stateward.v1 import thread_service_pb2 as threads
from stateward.v1.write_pb2 import WriteOptions


class Moving(Saving):
    """Heads that move other than by a save."""

    @precondition(lambda self: self.model)
    @rule(pick=PICK, which=PICK, version=PICK, off=st.sampled_from((None, 0, 0, 1)))
    def move_branch(self, pick: int, which: int, version: int, off: int | None) -> None:
        """To any version of any branch; the versions after it stay."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        branch = self.pick([*thread.heads, *BRANCHES], which)
        head = thread.heads.get(branch, 0)
        request = threads.MoveBranchRequest(
            namespace=self.namespace, thread=name, branch=branch,
            options=WriteOptions(request_id=str(uuid.uuid4()), expected_version=None if off is None else head + off),
        )  # fmt: skip
        if off == 0 and head:
            request.options.expected_digest = thread.versions[head].digest
        mine = [each for each in thread.retained if thread.belongs(each, branch)]
        request.version.version = to = self.pick([*mine, *mine, thread.last + 1, version % thread.last + 1], version)
        error = thread.refuses_move(branch, to) if head else VersionNotFound
        if head and off:
            error = VersionMismatch
        if error is not None:
            self.refuse("MoveBranch", request, error)
            return
        answer = self.call("MoveBranch", request)
        thread.sequence += 1
        thread.heads[branch] = to
        found = (answer.version, answer.version_digest, answer.previous_version, answer.receipt.sequence)
        assert found == (to, thread.versions[to].digest, head, thread.sequence)
        self.keep(thread, request, answer)

    @precondition(lambda self: self.model)
    @rule(pick=PICK, which=PICK, off=st.sampled_from((None, 0, 0, 1)))
    def delete_branch(self, pick: int, which: int, off: int | None) -> None:
        """The branch is in no list any more; its versions stay; the next branch of this name is a new one."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        branch = self.pick([*thread.heads, *BRANCHES], which)
        head = thread.heads.get(branch, 0)
        request = threads.DeleteBranchRequest(
            namespace=self.namespace, thread=name, branch=branch,
            options=WriteOptions(request_id=str(uuid.uuid4()), expected_version=None if off is None else head + off),
        )  # fmt: skip
        if off == 0 and head:
            request.options.expected_digest = thread.versions[head].digest
        if branch == "main" or not head or off:
            wrong = InvalidField if branch == "main" else VersionMismatch if head else VersionNotFound
            self.refuse("DeleteBranch", request, wrong)
            return
        answer = self.call("DeleteBranch", request)
        thread.sequence += 1
        thread.forget(branch)
        found = (answer.version, answer.version_digest, answer.receipt.sequence)
        assert found == (head, thread.versions[head].digest, thread.sequence)
        self.keep(thread, request, answer)

    @precondition(lambda self: self.model)
    @rule(pick=PICK, which=st.lists(PICK, min_size=1, max_size=4), heads=st.booleans(), dry=st.booleans())
    def prune_heads(self, pick: int, which: list[int], heads: bool, dry: bool) -> None:
        """Any versions, heads too: their branches fall back or disappear."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        choices = sorted(thread.heads.values()) if heads and thread.heads else range(1, thread.last + 1)
        versions = sorted({self.pick(choices, number) for number in which})
        request = threads.PruneThreadRequest(
            namespace=self.namespace, thread=name, versions=spans_of(versions), move_heads=True, dry_run=dry,
            options=WriteOptions(request_id=str(uuid.uuid4())),
        )  # fmt: skip
        falls = thread.falls(set(versions))
        if set(versions) & set(thread.tags.values()) or falls.get("main", 1) == 0:
            self.refuse("PruneThread", request, InvalidField)
            return
        doomed = [version for version in versions if version not in thread.pruned]
        answer = self.call("PruneThread", request)
        assert list(numbers_of(answer.pruned)) == doomed
        assert answer.retained_versions == len(thread.retained) - len(doomed)
        if doomed and dry:
            self.show(name, request, answer.plan, doomed)
            moved = {each.branch: each.version for each in answer.plan.moved_heads}
            assert moved == falls
        if doomed and not dry:
            self.take_away(thread, request, answer, doomed, falls)

    @precondition(lambda self: self.full)
    @rule(pick=PICK, count=st.integers(1, 3), busy=st.integers(0, 3))
    def ask_about_a_prune(self, pick: int, count: int, busy: int) -> None:
        """Somebody is shown what a rule would remove; the answer comes whenever it comes. If the agent is busy, it
        saves before the look and after it, and the answer comes at once."""
        name = self.pick(self.full, pick)
        self.work_on(name, busy)
        self.ask_about(name, count)
        if busy:
            self.work_on(name, busy)
            if self.shown is not None:
                self.prune_what_was_shown()

    def work_on(self, name: str, saves: int) -> None:
        for _ in range(saves):
            request = self.request("main", "", None, "")
            request.diff.edits.add().append.CopyFrom(diff_pb2.Append(log="work", entries=[value(b"more")]))
            self.save(name, request)

    def ask_about(self, name: str, count: int) -> None:
        doomed = self.model[name].doomed_by_keeping(count)
        request = threads.PruneThreadRequest(
            namespace=self.namespace, thread=name, keep_latest_per_branch=count, dry_run=True
        )
        answer = self.call("PruneThread", request)
        assert list(numbers_of(answer.pruned)) == doomed
        if doomed:
            self.show(name, request, answer.plan, doomed)

    def show(self, name: str, request: Any, plan: threads.PrunePlan, doomed: list[int]) -> None:
        thread = self.model[name]
        assert list(numbers_of(plan.versions)) == doomed
        assert (plan.uid, plan.newest_digest) == (thread.uid, thread.versions[doomed[-1]].digest)
        asked = threads.PruneThreadRequest()
        asked.CopyFrom(request)
        asked.dry_run, asked.options.request_id = False, str(uuid.uuid4())
        asked.plan.CopyFrom(plan)
        self.shown = name, thread.uid, asked

    @precondition(lambda self: self.shown)
    @rule()
    def prune_what_was_shown(self) -> None:
        """Of what was shown goes what the rule still names, and nothing else; or nothing, if it is there no more."""
        assert self.shown is not None
        (name, uid, request), self.shown = self.shown, None
        thread = self.thread(name)
        if name not in self.model or thread.uid != uid:
            self.refuse("PruneThread", request, UidMismatch)
            return
        shown = set(numbers_of(request.plan.versions))
        if max(shown) in thread.pruned:
            self.refuse("PruneThread", request, VersionMismatch)
            return
        named, falls = list(numbers_of(request.versions)), dict[str, int]()
        if named:
            falls = thread.falls(set(named))
            if set(named) & set(thread.tags.values()) or falls.get("main", 1) == 0:
                self.refuse("PruneThread", request, InvalidField)
                return
            if {each.branch: each.version for each in request.plan.moved_heads} != falls or any(
                thread.heads[each.branch] != each.previous_version for each in request.plan.moved_heads
            ):
                self.refuse("PruneThread", request, VersionMismatch)
                return
        now = thread.doomed_by_keeping(request.keep_latest_per_branch) if not named else set(named) - thread.pruned
        doomed = sorted(shown & set(now))
        answer = self.call("PruneThread", request)
        assert list(numbers_of(answer.pruned)) == doomed
        if doomed:
            self.take_away(thread, request, answer, doomed, falls)

    def take_away(
        self, thread: PlainThread, request: Any, answer: Any, doomed: list[int], falls: dict[str, int]
    ) -> None:
        thread.prune(doomed)
        thread.sequence += 2 if falls else 1
        for branch, version in falls.items():
            thread.heads[branch] = version
            if not version:
                thread.forget(branch)
        assert answer.receipt.sequence == thread.sequence
        self.keep(thread, request, answer)

    @precondition(lambda self: self.model)
    @rule(pick=PICK, which=PICK, log=st.sampled_from(LOGS), page_size=st.sampled_from((0, 0, 1, 2)))
    def follow_log(self, pick: int, which: int, log: str, page_size: int) -> None:
        """A reader that folds entries has what the log has, whatever became of the branch since it last looked."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        self.follow(name, self.pick([*thread.heads, "main"], which), log, page_size)

    @precondition(lambda self: self.full)
    @rule(pick=PICK, parent=PICK, log=st.sampled_from(LOGS), entries=st.lists(DATA, min_size=1, max_size=4))
    def begin_again(self, pick: int, parent: int, log: str, entries: list[bytes]) -> None:
        """Somebody follows a branch that is deleted and made again from elsewhere, perhaps with as many entries."""
        name = self.pick(self.full, pick)
        thread = self.model[name]
        for texts in ([b"old"] * len(entries), entries):
            request = self.request("side", "", None, "")
            request.parent.version = self.pick(thread.retained, parent)
            request.diff.edits.add().append.CopyFrom(diff_pb2.Append(log=log, entries=map(value, texts)))
            self.save(name, request)
            self.follow(name, "side", log)
            if texts is not entries:
                self.drop(name, "side")

    def drop(self, name: str, branch: str) -> None:
        """Deletes a branch."""
        self.call("DeleteBranch", threads.DeleteBranchRequest(namespace=self.namespace, thread=name, branch=branch))
        self.model[name].sequence += 1
        self.model[name].forget(branch)

    def follow(self, name: str, branch: str, log: str, page_size: int = 0) -> None:
        """The next reads of a client that follows a log."""
        thread = self.model[name]
        reader = thread.readers.setdefault((branch, log), PlainReader())
        request = checkpoints.ReadLogRequest(
            namespace=self.namespace, thread=name, branch=branch, log=log, from_index=reader.index,
            page_size=page_size,
        )  # fmt: skip
        if branch not in thread.heads:
            self.refuse("ReadLog", request, VersionNotFound)
            return
        while True:
            page = self.call("ReadLog", request)
            if not page.rewritten_version <= reader.version <= page.version:  # start again
                reader.index, reader.entries, request.from_index = 0, [], 0
                reader.version = page.version
                continue
            assert page.version == thread.heads[branch]
            request.from_index = reader.index = page.next_index
            reader.entries += [entry.data for entry in page.entries]
            reader.version = page.version
            if page.next_index >= page.end_index:
                break
        plain = thread.state_at(page.version).logs.get(log)
        wanted = plain.entries if plain is not None else []
        assert reader.entries[len(reader.entries) - len(wanted) :] == wanted
        assert reader.index == page.end_index

    def all_pages(self, request: checkpoints.ListCheckpointsRequest) -> list[tuple[str, int]]:
        """Thread and version of all that a list has."""
        found = list[tuple[str, int]]()
        request.page_token = ""
        while True:
            page = self.call("ListCheckpoints", request)
            found += [(each.thread, each.version) for each in page.checkpoints]
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    @rule(branch=st.sampled_from(BRANCHES))
    def list_of_all_threads(self, branch: str) -> None:
        """Versions of a branch in all threads: those of a branch that was deleted are not among them."""
        request = checkpoints.ListCheckpointsRequest(
            namespace=self.namespace, thread="-", branch=branch, labels={"label": "p"}
        )
        for labels in ({"label": "p"}, {}):
            request.labels.clear()
            request.labels.update(labels)
            found = self.all_pages(request)
            assert sorted(found) == sorted(
                (name, version)
                for name, thread in self.model.items()
                for version in thread.retained
                if branch in thread.heads and thread.belongs(version, branch)
                and (not labels or thread.versions[version].label == "p")
            )  # fmt: skip

    def refuse(self, method: str, request: Any, error: type[StatewardError]) -> None:
        with pytest.raises(error):
            self.call(method, request)

    def keep(self, thread: PlainThread, request: Any, answer: Any) -> None:
        """Remembers a request, whose retry gets the same answer at any time; half of them are repeated at once."""
        thread.requests.append((request, answer))
        if thread.sequence % 2:
            self.check_retry(request, answer)
