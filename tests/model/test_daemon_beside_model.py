"""The danger: some order of calls and crashes, which nobody thought of, gives an answer or a state that plain dicts
would not give."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from tests.model.guarding import LOCK
from tests.model.plain import PlainThread, PlainVersion
from tests.model.remembering import Remembering
from tests.model.strategies import (
    BRANCHES,
    LOG_ENDS,
    PICK,
    SLOT_NAMES,
    TAGS,
    THREADS,
)

from stateward import CheckpointId
from stateward._operations.unfolding import unfold
from stateward.attributes import Attribute
from stateward.errors import (
    InvalidField,
    RequestIdReused,
    ThreadExists,
    ThreadNotFound,
    VersionMismatch,
    VersionNotFound,
    VersionPruned,
)
from stateward.testing import run_daemon
from stateward.v1 import checkpoint_pb2, state_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1.write_pb2 import WriteOptions

SAVES_BETWEEN_KILLS = 6  # a start takes half a second, in which a hundred other things can be tried


class DaemonMachine(Remembering):
    """The rules."""

    # -- retries ------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(thread.requests for thread in self.model.values()))
    @rule(pick=PICK, which=PICK)
    def retry(self, pick: int, which: int) -> None:
        """The same request again, however long ago: the first answer."""
        name = self.pick([name for name, thread in self.model.items() if thread.requests], pick)
        request, first = self.model[name].requests[which % len(self.model[name].requests)]
        self.check_retry(request, first)

    @precondition(lambda self: any(thread.requests for thread in self.model.values()))
    @rule(pick=PICK, which=PICK)
    def reuse_request_id(self, pick: int, which: int) -> None:
        """The same request id for something else."""
        name = self.pick([name for name, thread in self.model.items() if thread.requests], pick)
        request, _ = self.model[name].requests[which % len(self.model[name].requests)]
        other = checkpoints.SaveRequest(
            namespace=self.namespace, thread=name,
            options=WriteOptions(request_id=request.options.request_id, expected_version=1), diff={}
        )
        if isinstance(request, checkpoints.SaveRequest):
            other.CopyFrom(request)
        other.step = 1_000_000
        with pytest.raises(RequestIdReused):
            self.call("Save", other)

    @precondition(lambda self: self.age >= SAVES_BETWEEN_KILLS)
    @rule()
    def kill(self) -> None:
        """Everything that was answered is there after a crash."""
        self.restart()

    # -- threads ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model)
    @rule(pick=PICK, new=st.sampled_from(THREADS), which=PICK)
    def fork_one(self, pick: int, new: str, which: int) -> None:
        """A copy of one state: version 1 of the copy."""
        name = self.pick(self.model, pick)
        source = self.model[name]
        version = which % source.last + 1
        fork = self.client.thread(name).fork
        if new in self.model:
            with pytest.raises(ThreadExists):
                fork(new, version)
        elif version in source.pruned:
            with pytest.raises(VersionPruned):
                fork(new, version)
        else:
            info = fork(new, version).info()
            old = source.versions[version]
            made = PlainVersion(
                copy.deepcopy(old.state), 0, "main", info.digest, old.checkpoint_id, old.step, old.label
            )
            self.model[new] = PlainThread(
                info.uid, {1: made}, {"main": 1}, {"main": 0}, {}, set(), info.sequence, [], {"main": 1},
                labels=source.labels, effects=source.effects_of({old.checkpoint_id}),
            )  # fmt: skip
            assert (info.version, info.forked_from.thread, info.forked_from.version) == (1, name, version)

    @precondition(lambda self: self.model)
    @rule(pick=PICK, new=st.sampled_from(THREADS))
    def fork_whole(self, pick: int, new: str) -> None:
        """A copy of everything, with numbers, branches, checkpoint ids and tags."""
        name = self.pick(self.model, pick)
        if new in self.model:
            with pytest.raises(ThreadExists):
                self.client.thread(name).fork(new, all_versions=True)
            return
        if not self.model[name].retained and not self.model[name].records:
            with pytest.raises(VersionNotFound):
                self.client.thread(name).fork(new, all_versions=True)
            return
        info = self.client.thread(name).fork(new, all_versions=True).info()
        source = self.model[name]
        thread = self.model[new] = PlainThread(
            info.uid, {}, dict(source.heads), dict(source.bases), dict(source.tags), set(source.pruned), info.sequence,
            [], dict(source.firsts), labels=source.labels,
            effects=source.effects_of(source.versions[version].checkpoint_id for version in source.retained),
            records=dict(source.records),
        )  # fmt: skip
        digests = {each.version: each.digest for each in self.client.thread(new).checkpoints.list(page_size=1000)}
        for number, old in source.versions.items():
            thread.versions[number] = copy.deepcopy(old)
            thread.versions[number].digest = digests.get(number, b"")
            if number in source.pruned:
                thread.versions[number].checkpoint_id = ""  # what is not copied is not known
        assert info.uid != source.uid
        assert not set(digests.values()) & {old.digest for old in source.versions.values()}

    @precondition(lambda self: self.model)
    @rule(pick=PICK)
    def delete(self, pick: int) -> None:
        """The name is free at once; a later creation has nothing to do with this one."""
        name = self.pick(self.model, pick)
        self.remove(name)
        with pytest.raises(ThreadNotFound):
            self.client.thread(name).info()

    @precondition(lambda self: self.model)
    @rule(pick=PICK, which=PICK, tag=st.sampled_from(TAGS))
    def set_tag(self, pick: int, which: int, tag: str) -> None:
        name = self.pick(self.model, pick)
        thread = self.model[name]
        version = which % (thread.last + 1) + 1
        if version > thread.last or version in thread.pruned:
            with pytest.raises(VersionNotFound if version > thread.last else VersionPruned):
                self.client.thread(name).tags.set(tag, version)
        else:
            with pytest.raises(VersionMismatch):
                self.client.thread(name).tags.set(tag, version, expected=thread.tags.get(tag, 0) + 1)
            self.client.thread(name).tags.set(tag, version, expected=thread.tags.get(tag, 0))
            thread.tags[tag] = version
            thread.sequence += 1

    @precondition(lambda self: any(thread.tags for thread in self.model.values()))
    @rule(pick=PICK, which=PICK)
    def delete_tag(self, pick: int, which: int) -> None:
        name = self.pick([name for name, thread in self.model.items() if thread.tags], pick)
        thread = self.model[name]
        tag = self.pick(thread.tags, which)
        assert self.client.thread(name).tags.delete(tag).version == thread.tags.pop(tag)
        thread.sequence += 1

    @precondition(lambda self: self.model)
    @rule(pick=PICK, labels=st.dictionaries(st.sampled_from(("team", "env")), st.sampled_from(("p", "q"))))
    def relabel(self, pick: int, labels: dict[str, str]) -> None:
        """The labels of a thread, by which lists find it."""
        name = self.pick(self.model, pick)
        self.client.thread(name).update_options(labels=labels)
        self.model[name].labels = labels
        self.model[name].sequence += 1

    @precondition(lambda self: self.model)
    @rule(pick=PICK, count=st.integers(1, 4), dry=st.booleans())
    def prune_old(self, pick: int, count: int, dry: bool) -> None:
        name = self.pick(self.model, pick)
        thread = self.model[name]
        doomed = thread.doomed_by_keeping(count)
        result = self.client.thread(name).prune(keep_latest_per_branch=count, dry_run=dry)
        assert list(result.pruned_versions) == doomed
        assert result.retained_versions == len(thread.retained) - len(doomed)
        if doomed and not dry:
            thread.prune(doomed)
            thread.sequence += 1

    @precondition(lambda self: self.model)
    @rule(pick=PICK, which=st.lists(PICK, min_size=1, max_size=4))
    def prune_named(self, pick: int, which: list[int]) -> None:
        name = self.pick(self.model, pick)
        thread = self.model[name]
        versions = sorted({number % thread.last + 1 for number in which})
        if set(versions) & {*thread.heads.values(), *thread.tags.values()}:
            with pytest.raises(InvalidField):
                self.client.thread(name).prune(versions=versions)
            return
        doomed = [version for version in versions if version not in thread.pruned]
        assert list(self.client.thread(name).prune(versions=versions).pruned_versions) == doomed
        if doomed:
            thread.prune(doomed)
            thread.sequence += 1

    # -- reading ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model)
    @rule(pick=PICK, which=PICK, max_bytes=st.sampled_from((0, 1024, 5000)))
    def travel(self, pick: int, which: int, max_bytes: int) -> None:
        """Any version: retained, pruned, or not there yet."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        version = which % (thread.last + 1) + 1
        ref = checkpoint_pb2.VersionRef(version=version)
        if version > thread.last or version in thread.pruned:
            with pytest.raises(VersionNotFound if version > thread.last else VersionPruned):
                self.hydrate(name, version=ref)
            return
        checkpoint, state = self.hydrate(name, version=ref, max_bytes=max_bytes)
        expected = thread.versions[version]
        self.check_state(state, expected.state)
        assert (checkpoint.version, checkpoint.digest) == (version, expected.digest)
        assert (checkpoint.branch, checkpoint.checkpoint_id) == (expected.branch, expected.checkpoint_id)
        assert (checkpoint.parent_version, checkpoint.uid) == (expected.parent, thread.uid)
        assert (checkpoint.step if checkpoint.HasField("step") else None) == expected.step
        assert checkpoint.labels.get("label", "") == expected.label

    @precondition(lambda self: self.full)
    @rule(pick=PICK, which=PICK, slots=st.sets(SLOT_NAMES), logs=LOG_ENDS)
    def project(self, pick: int, which: int, slots: set[str], logs: dict[str, int | None]) -> None:
        """Part of a state: named slots, ends of logs."""
        name = self.pick(self.full, pick)
        thread = self.model[name]
        version = self.pick(thread.retained, which)
        state = self.client.thread(name).hydrate(at=version, slots=slots, logs=logs)
        expected = thread.versions[version].state
        assert state.partial
        assert {slot: state.slots.raw(slot).data for slot in state.slots} == {
            slot: content if isinstance(content, bytes) else str(content).encode()
            for slot, content in expected.slots.items()
            if slot in slots
        }
        for log, last in logs.items():
            plain = expected.logs.get(log)
            if plain is None:
                assert log not in state.logs
                continue
            keep = len(plain.entries) if last is None else min(last, len(plain.entries))
            found = state.logs[log]
            assert [found.raw(at).data for at in range(len(found))] == plain.entries[len(plain.entries) - keep :]
            assert found.next_index == plain.next

    @precondition(lambda self: self.model)
    @rule(pick=PICK, branch=st.sampled_from(("", *BRANCHES)), page_size=st.sampled_from((0, 2)))
    def list_states(self, pick: int, branch: str, page_size: int) -> None:
        """The states of all versions of a branch, or of all branches, each made of the one before it."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        request = checkpoints.ListCheckpointsRequest(
            namespace=self.namespace, thread=name, branch=branch, page_size=page_size, include_states=True
        )
        found = list[int]()
        while True:
            page = self.call("ListCheckpoints", request)
            for shown in unfold(page):
                found.append(shown.checkpoint.version)
                assert shown.state is not None
                made = state_pb2.State(slots=shown.state.slots)
                for log, it in shown.state.logs.items():
                    held = state_pb2.Log(
                        entries=it.entries, first_index=it.first_index, rewritten_version=it.rewritten_version
                    )
                    made.logs[log].CopyFrom(held)
                self.check_state(made, thread.versions[found[-1]].state)
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        if not branch:
            assert found == thread.retained[::-1]

    @precondition(lambda self: self.full)
    @rule(pick=PICK, old=PICK, new=PICK)
    def difference(self, pick: int, old: int, new: int) -> None:
        """The edits between any two versions lead from one to the other."""
        name = self.pick(self.full, pick)
        thread = self.model[name]
        start, end = self.pick([0, *thread.retained], old), self.pick(thread.retained, new)
        request = checkpoints.DiffCheckpointsRequest(namespace=self.namespace, thread=name)
        request.base.version = start
        request.target.version = end
        answer = self.call("DiffCheckpoints", request)
        assert not answer.next_page_token
        made, wanted = thread.state_at(start).apply(answer.diff, 0), thread.state_at(end)
        assert made.slots == wanted.slots
        assert {log: it.entries for log, it in made.logs.items()} == {
            log: it.entries for log, it in wanted.logs.items()
        }

    @precondition(lambda self: self.full)
    @rule(pick=PICK, which=PICK, newest_first=st.booleans())
    def history(self, pick: int, which: int, newest_first: bool) -> None:
        """A line of versions, as far back as it is retained without a hole."""
        name = self.pick(self.full, pick)
        thread = self.model[name]
        version = self.pick(thread.retained, which)
        line = []
        while version and version not in thread.pruned:
            line.append(version)
            version = thread.versions[version].parent
        with self.client.thread(name).history(at=line[0], newest_first=newest_first) as found:
            assert [entry.checkpoint.version for entry in found] == (line if newest_first else line[::-1])

    @precondition(lambda self: self.model)
    @rule(pick=PICK, branch=st.sampled_from(BRANCHES), checkpoint_id=st.sampled_from(("x", "y")))
    def named_version(self, pick: int, branch: str, checkpoint_id: str) -> None:
        """A checkpoint id leads to its version, in its branch only."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        version = thread.find(branch, checkpoint_id)
        handle = self.client.thread(name, branch=branch)
        if version and version not in thread.pruned:
            assert handle.hydrate(at=CheckpointId(checkpoint_id)).version == version
        else:
            with pytest.raises((VersionNotFound, VersionPruned)):
                handle.hydrate(at=CheckpointId(checkpoint_id))

    @rule()
    def compare_everything(self) -> None:
        """Threads, branches, tags, lists and labels, as the model has them."""
        assert {info.name for info in self.client.threads(page_size=2)} - {LOCK} == self.model.keys()
        for asked in ({"team": "p"}, {"team": "p", "env": "q"}):
            fit = {name for name, thread in self.model.items() if asked.items() <= thread.labels.items()}
            assert {info.name for info in self.client.threads(labels=asked, page_size=1)} == fit
        for name, thread in self.model.items():
            info = self.client.thread(name).info()
            assert (info.uid, info.last_version, info.sequence) == (thread.uid, thread.last, thread.sequence)
            assert info.version == thread.heads.get("main", 0)
            assert info.retained_versions == len(thread.retained)
            assert {branch.name: branch.version for branch in info.branches} == thread.heads
            assert {branch.name: branch.base_version for branch in info.branches} == thread.bases
            assert {tag.name: tag.version for tag in info.tags} == thread.tags
            assert info.step == (thread.versions[info.version].step if info.version else None)
            found = [each.version for each in self.client.thread(name).checkpoints.list(page_size=3)]
            assert found == thread.retained[::-1]
            for branch in thread.heads:
                mine = [each for each in thread.retained[::-1] if thread.belongs(each, branch)]
                found = [each.version for each in self.client.thread(name).checkpoints.list(branch=branch, page_size=3)]
                assert found == mine
            labelled = [each.version for each in self.client.thread(name).checkpoints.list(labels={"label": "p"})]
            assert labelled == [v for v in thread.retained[::-1] if thread.versions[v].label == "p"]
            for step in {version.step for version in thread.versions.values()} - {None}:
                asked: dict[str, Attribute] = {"label": "p", "step": step}
                found = [each.version for each in self.client.thread(name).checkpoints.list(where=asked)]
                assert found == [v for v in labelled if thread.versions[v].step == step]
            for tag, version in thread.tags.items():
                self.check_state(
                    self.hydrate(name, version=checkpoint_pb2.VersionRef(tag=tag))[1], thread.state_at(version)
                )


def run_machine(bucket: Path, examples: int, steps: int, *, has_fixed_dice: bool = False) -> None:
    with run_daemon(log_level="warning", archive=bucket.as_uri()) as daemon:
        DaemonMachine.daemon = daemon
        run_state_machine_as_test(
            DaemonMachine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                print_blob=True,
                derandomize=has_fixed_dice,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert not [line for line in daemon.stderr.splitlines() if "Traceback" in line]


@pytest.mark.slow
def test_the_daemon_agrees_with_plain_dicts(tmp_path: Path) -> None:
    """Whatever is done in whatever order, with crashes in between: answers, states and errors are the model's. With the
    same dice each time, so that a change is judged by what it changes; the long form throws others."""
    run_machine(tmp_path, examples=15, steps=30, has_fixed_dice=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_daemon_agrees_with_plain_dicts_for_long(tmp_path: Path) -> None:
    """The same with many and long runs."""
    run_machine(tmp_path, examples=300, steps=100)
