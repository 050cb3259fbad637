"""The end of a history: everything is well again, and what every machine shows is written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from tests.daemon.segments import count_segments
from tests.histories import calls, gone
from tests.histories.calls import LOG, PAGE_BYTES
from tests.histories.contents import Objects, look
from tests.histories.copies import Copies
from tests.histories.machines import Machine
from tests.histories.nemesis import orphans_of
from tests.histories.recorder import Recorder, Words

from stateward.v1.admin_service_pb2 import GetStatsRequest, VerifyRequest
from stateward.v1.archive_service_pb2 import CollectGarbageRequest, VerifyArchiveRequest
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, ReadHistoryRequest
from stateward.v1.error_reason_pb2 import ErrorReason
from stateward.v1.thread_service_pb2 import DetachRequest, GetThreadRequest, PruneThreadRequest

CALL_S = 20.0
CALL: dict[str, Any] = {"timeout": CALL_S, "wait_for_ready": True}
QUIET_WITHIN_S = 30.0
POLL_S = 0.1


class Ending:
    """Reads what is there, and judges nothing. ``fresh``: a machine that was never there before; None = no archive."""

    def __init__(
        self, machines: Sequence[Machine], fresh: Machine | None, threads: Sequence[str], recorder: Recorder,
        words: Words, agree_within_s: float, copies: Copies,
    ) -> None:  # fmt: skip
        self._machines, self._fresh, self._threads = machines, fresh, threads
        self._all = [*machines, fresh] if fresh is not None else list(machines)
        self._recorder, self._words = recorder, words
        self._agree_within_s, self._copies = agree_within_s, copies

    def record(self, *, is_whole: bool, ledger: gone.Ledger | None = None) -> None:
        """Waits until everything is quiet, then writes down what is there. ``is_whole``: no bucket was set back;
        ``ledger``: of the thread that is deleted and made again, if there is one."""
        if self._fresh is not None and is_whole:
            self.become_quiet()
        if self._fresh is not None:
            self.begin(self._fresh)
        if is_whole:
            eventually(self.agree, self._agree_within_s)
        self.orphans("at first")
        for machine in self._all:
            for thread in self._threads:
                self.final(machine, thread)
            self._copies.look(machine, CALL_S)
            if ledger is not None:
                gone.read(machine, ledger, CALL_S, is_end=True)
        if is_whole:
            self.verify()
        for machine in self._all:
            machine.stop()
            if machine.has_segments:
                self._recorder.counts["segments"] += count_segments(machine.data_dir, machine.key)
            for complaint in machine.complaints:
                self._recorder.write("finding", machine=machine.name, thread="", text=complaint)

    def begin(self, fresh: Machine) -> None:
        """Starts the machine that was never there before."""
        if any(machine.is_newer for machine in self._machines):
            fresh.upgrade()
        if fresh.weather is not None:  # what it uploads in the background is there before the collection of garbage
            fresh.weather.clear()
        fresh.start()

    def look_at_bucket(self, objects: Callable[[], Objects]) -> None:
        """All machines gave their threads up. One that knows all keys prunes them, and collects what nobody needs."""
        assert self._fresh is not None
        # A sweep would take a thread back to collect its blobs, and delete their objects only when HEAD has landed.
        self._fresh.sweep_no_more()
        self._fresh.start()
        for thread in (*self._threads, *self._copies.asked):
            self.prune(self._fresh, thread)
        request = CollectGarbageRequest(grace=Duration())
        try:
            for answer in self._fresh.wire.archive.CollectGarbage(request, **CALL):
                if answer.problem:
                    self._recorder.write("finding", machine="fresh", thread="", text=f"collection: {answer.problem}")
        except grpc.RpcError as error:
            text = f"collection failed: {error.code().name}: {error.details()}"
            self._recorder.write("finding", machine="fresh", thread="", text=text)
        self._fresh.stop()
        for text in look(objects(), self._fresh.data_dir, self._fresh.key):
            self._recorder.write("finding", machine="fresh", thread="", text=text)

    def prune(self, machine: Machine, thread: str) -> None:
        """Prunes all but the newest. What is pruned is cleared when the call returns, and goes with the next ship."""
        problem = ""

        def is_pruned() -> bool:
            nonlocal problem
            try:
                machine.wire.threads.PruneThread(PruneThreadRequest(thread=thread, keep_latest_per_branch=1), **CALL)
                machine.wire.threads.Detach(DetachRequest(thread=thread), **CALL)
            except grpc.RpcError as error:
                problem = f"prune failed: {error.code().name}: {error.details()}"
                return error.code() is grpc.StatusCode.NOT_FOUND
            return True

        if not eventually(is_pruned, QUIET_WITHIN_S):  # a machine that had no time to give it up holds it for a lease
            self._recorder.write("finding", machine=machine.name, thread=thread, text=problem)

    # -- waiting --------------------------------------------------------------------------------------------------

    def become_quiet(self) -> None:
        """Until nobody has anything to archive."""
        for machine in self._machines:
            if not eventually(lambda machine=machine: self.is_quiet(machine), QUIET_WITHIN_S):  # type: ignore[misc]
                text = f"is not quiet {QUIET_WITHIN_S:g} s after the last save; {self.stats(machine)}"
                self._recorder.write("finding", machine=machine.name, thread="", text=text)

    def is_quiet(self, machine: Machine) -> bool:
        """Whether a machine has archived all that is its own. A read makes it compare its copy with the archive."""
        with suppress(grpc.RpcError):
            for thread in self._threads:
                with suppress(grpc.RpcError):
                    machine.wire.threads.GetThread(GetThreadRequest(thread=thread), **CALL)
            stats = self.stats(machine)
            return not stats.dirty_threads and not stats.away
        return False

    def stats(self, machine: Machine) -> Any:
        return machine.wire.admin.GetStats(GetStatsRequest(), **CALL).archive

    def agree(self) -> bool:
        """Whether all machines show the same heads."""
        for thread in self._threads:
            seen = set()
            for machine in self._all:
                answer = calls.read(machine, self._words, thread, 0, CALL_S, is_patient=True)
                seen.add((answer["outcome"], answer.get("version"), answer.get("digest")))
            if len(seen) > 1:
                return False
        return True

    # -- reading --------------------------------------------------------------------------------------------------

    def final(self, machine: Machine, thread: str) -> None:
        """A thread's head and all its versions."""
        facts: dict[str, Any] = {"error": ""}
        answer = calls.read(machine, self._words, thread, 0, CALL_S, is_patient=True)
        if answer["outcome"] == "absent":
            facts |= {"version": 0, "digest": "", "log": [], "versions": []}
        elif answer["outcome"] == "ok":
            facts |= {key: answer[key] for key in ("version", "digest", "log")}
            try:
                facts["versions"] = self.versions(machine, thread)
            except grpc.RpcError as error:
                facts["error"] = f"history: {error.details()}"
        else:
            facts["error"] = f"{answer['outcome']}: {answer['reason']}"
        self._recorder.write("final", machine=machine.name, fresh=machine is self._fresh, thread=thread, **facts)

    def versions(self, machine: Machine, name: str, after_sequence: int = 0) -> list[dict[str, Any]]:
        """Number, digest and token of each version, oldest first."""
        found, request = [], ReadHistoryRequest(thread=name)
        for item in machine.wire.checkpoints.ReadHistory(request, **CALL):
            if item.state.logs:
                entries = list(item.state.logs[LOG].entries)
            else:
                entries = [entry for edit in item.diff.edits for entry in edit.append.entries]
            token = " ".join(self._words.read(entry.data) for entry in entries)
            if item.checkpoint.sequence > after_sequence:
                checkpoint = item.checkpoint
                found.append({"version": checkpoint.version, "digest": checkpoint.digest.hex(), "token": token})
        return found

    def orphans(self, reading: str) -> None:
        """What was set aside: read, read again after its old history was read, and once more after a restart."""
        for machine in self._machines:
            names = [(thread, name) for thread in self._threads for name in orphans_of(machine, thread)]
            for thread, name in names:
                self.orphan(machine, thread, name, reading)
            if not names:
                continue
            for thread, name in names:
                calls.read(machine, self._words, name, 1, CALL_S, is_patient=True)
                self.orphan(machine, thread, name, "after its old history was read")
            machine.kill()
            machine.start()
            for thread, name in names:
                self.orphan(machine, thread, name, "after a restart")

    def orphan(self, machine: Machine, thread: str, name: str, reading: str) -> None:
        """The own versions of an orphan, each with its whole state."""
        facts: dict[str, Any] = {"machine": machine.name, "thread": thread, "name": name, "reading": reading}
        facts |= {"error": "", "versions": []}
        try:
            about = machine.wire.threads.GetThread(GetThreadRequest(thread=name), **CALL).thread
            for version in self.versions(machine, name, about.orphan.common_sequence):
                request = HydrateRequest(thread=name, max_bytes=PAGE_BYTES)
                request.version.version = version["version"]
                shown = calls.shown(machine.wire.checkpoints.Hydrate(request, **CALL), self._words)
                facts["versions"].append({**version, "digest": shown["digest"], "log": shown["log"]})
        except grpc.RpcError as error:
            facts["error"] = f"{error.code().name}: {error.details()}"
        self._recorder.write("orphan", **facts)

    def verify(self) -> None:
        """What the daemons themselves find wrong."""
        for machine in self._all:
            answers = [machine.wire.admin.Verify(VerifyRequest(), **CALL)]
            if machine is self._fresh:
                answers.append(machine.wire.archive.VerifyArchive(VerifyArchiveRequest(data_percent=100), **CALL))
            for kind, stream in zip(("verify", "archive verify"), answers, strict=False):
                try:
                    for item in stream:
                        if item.HasField("finding"):
                            text = f"{kind}: {ErrorReason.Name(item.finding.reason)}: {item.finding.message}"
                            self._recorder.write("finding", machine=machine.name, thread=item.finding.thread, text=text)
                except grpc.RpcError as error:
                    text = f"{kind} failed: {error.code().name}: {error.details()}"
                    self._recorder.write("finding", machine=machine.name, thread="", text=text)


def eventually(check: Callable[[], bool], timeout_s: float) -> bool:
    """Waits until a check holds; False = it never did."""
    end = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True
