"""The rules of the machine that save."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.model.archived import Archived
from tests.model.strategies import (
    ANY_EDITS,
    BRANCHES,
    CHECKPOINT_IDS,
    DATA,
    FITS,
    FREE_EDITS,
    PICK,
    STATES,
    THREADS,
    value,
)

from stateward.v1 import checkpoint_service_pb2, diff_pb2, state_pb2


class Saving(Archived):
    """Saves of every kind."""

    @rule(
        name=st.sampled_from(THREADS), branch=st.sampled_from(BRANCHES), edits=ANY_EDITS,
        checkpoint_id=st.sampled_from(CHECKPOINT_IDS), step=st.one_of(st.none(), st.integers(-3, 99)),
        label=st.sampled_from(("", "p", "q")), fits=FITS,
    )  # fmt: skip
    def save_diff(
        self, name: str, branch: str, edits: list[Any], checkpoint_id: str, step: int | None, label: str, fits: bool
    ) -> None:
        """The usual save: compare-and-swap on version and digest."""
        thread = self.thread(name)
        request = self.request(branch, checkpoint_id, step, label)
        request.options.expected_version = head = thread.heads.get(branch, 0)
        if head:
            request.options.expected_digest = thread.versions[head].digest
        self.fill(request, thread.state_at(head), edits, fits)
        self.save(name, request)

    @rule(name=st.sampled_from(THREADS), branch=st.sampled_from(BRANCHES), edits=FREE_EDITS,
          checkpoint_id=st.sampled_from(CHECKPOINT_IDS), fits=FITS)  # fmt: skip
    def save_on_top(self, name: str, branch: str, edits: list[Any], checkpoint_id: str, fits: bool) -> None:
        """A save on top of whatever is there."""
        thread = self.thread(name)
        request = self.request(branch, checkpoint_id, None, "")
        self.fill(request, thread.state_at(thread.heads.get(branch, 0)), edits, fits)
        self.save(name, request)

    @rule(name=st.sampled_from(THREADS), steps=st.lists(st.lists(DATA, min_size=1, max_size=2), min_size=2, max_size=8))
    def work(self, name: str, steps: list[list[bytes]]) -> None:
        """What agents do most: a step and one more message, several times."""
        for number, entries in enumerate(steps):
            request = self.request("main", "", number, "p" if number == 1 else "")
            request.options.expected_version = self.thread(name).heads.get("main", 0)
            request.diff.edits.add().append.CopyFrom(diff_pb2.Append(log="l", entries=map(value, entries)))
            request.diff.edits.add().set_slot.CopyFrom(diff_pb2.SetSlot(slot="s", value=value(b"%d" % number)))
            self.save(name, request)

    @rule(name=st.sampled_from(THREADS), branch=st.sampled_from(BRANCHES), state=STATES, overwrite=st.booleans())
    def save_state(self, name: str, branch: str, state: state_pb2.State, overwrite: bool) -> None:
        """A naive client's save."""
        request = self.request(branch, "", 1, "")
        if overwrite:
            request.overwrite = True
        else:
            request.options.expected_version = self.thread(name).heads.get(branch, 0)
        request.state.CopyFrom(state)
        self.save(name, request)

    @rule(name=st.sampled_from(THREADS), branch=st.sampled_from(BRANCHES), off=st.integers(-2, 3), edits=FREE_EDITS,
          fork=st.sampled_from((None, "", "", "third")), checkpoint_id=st.sampled_from(CHECKPOINT_IDS))  # fmt: skip
    def save_with_wrong_expectation(
        self, name: str, branch: str, off: int, edits: list[Any], fork: str | None, checkpoint_id: str
    ) -> None:
        """Somebody saved in between, or expects what is not there yet; the save may ask for a branch of its own."""
        request = self.request(branch, checkpoint_id, None, "")
        request.options.expected_version = max(self.thread(name).heads.get(branch, 0) + off, 0)
        if fork is not None:
            request.on_mismatch = checkpoint_service_pb2.ON_MISMATCH_FORK
            request.fork_branch = fork if fork != branch else ""
        request.diff.edits.extend(edits)
        request.diff.SetInParent()
        self.save(name, request)

    @precondition(lambda self: self.model)
    @rule(pick=PICK, branch=st.sampled_from(BRANCHES))
    def save_with_another_history(self, pick: int, branch: str) -> None:
        """The right version with a foreign digest."""
        name = self.pick(self.model, pick)
        head = self.model[name].heads.get(branch)
        if head:
            request = self.request(branch, "", None, "")
            request.options.expected_version, request.options.expected_digest = head, b"\1" * 16
            request.diff.SetInParent()
            self.save(name, request)

    @precondition(lambda self: self.model)
    @rule(pick=PICK, branch=st.sampled_from(BRANCHES), parent=PICK, edits=ANY_EDITS, conditional=st.booleans(),
          fits=FITS)  # fmt: skip
    def save_from_another_version(
        self, pick: int, branch: str, parent: int, edits: list[Any], conditional: bool, fits: bool
    ) -> None:
        """A new branch, or a branch that goes on from elsewhere; the parent may be pruned, or not exist."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        request = self.request(branch, "", None, "")
        if conditional:
            request.options.expected_version = thread.heads.get(branch, 0)
        request.parent.version = parent % (thread.last + 2)
        known = request.parent.version if request.parent.version <= thread.last else 0
        self.fill(request, thread.state_at(known), edits, fits)
        self.save(name, request)
