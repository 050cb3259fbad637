"""What readers are shown: what was saved, of one line, and of the line that is history unless the thread is held."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tests.archive_model.blobbook import named
from tests.archive_model.looking import Looking, state_of
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.truth import Version
from tests.daemon.driven import LEASE_S, NAMESPACE

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, ListCheckpointsRequest
from stateward.v1.thread_pb2 import THREAD_ACCESS_OWNED
from stateward_sidecar.errors import BlobNotFound, ThreadNotFound, VersionPruned


class Reading(Looking):
    """Reads, compared with the truth."""

    def hydrate(self, sidecar: Sidecar, name: str, branch: str, version: int = 0) -> HydrateResponse:
        """Reads a state; it is what was saved under its digest."""
        request = HydrateRequest(namespace=NAMESPACE, thread=name, branch=branch)
        if version:
            request.version.CopyFrom(VersionRef(version=version))
        check = self.begin_read(sidecar, name)
        try:
            answer = sidecar.hydrate(request)
        except ThreadNotFound:
            check(None)
            raise
        self.look()
        digest, found = bytes(answer.checkpoint.digest), state_of(answer)
        known = self.truth.versions[digest]
        if known.state is None:
            known = self.truth.versions[digest] = Version(known.version, known.branch, found, known.parent)
        assert (known.version, known.state) == (answer.checkpoint.version, found), "a state is not what was saved"
        if not version:
            self.beliefs[name, branch] = answer.checkpoint.version, digest
        if version:
            check(lambda line: digest in line.values())
        else:
            check(lambda line: digest == self.truth.branch_head(line, branch))
        return answer

    def read_slot(self, sidecar: Sidecar, name: str) -> None:
        """Reads main's head, and the blob that its slot names."""
        quiet = self.quiet()
        digest = named(state_of(self.hydrate(sidecar, name, "main"))[1])
        if digest is None:
            return
        try:
            content = sidecar.read_blob(name, digest)
        except (BlobNotFound, VersionPruned):
            assert quiet != self.quiet(), "a state names a blob that the thread does not have"
            raise
        assert content == self.blobs.contents[digest], "a blob has other bytes"

    def list_versions(self, sidecar: Sidecar, name: str) -> None:
        """Reads the list of a thread's versions: they are those of one line, all of them that were not pruned."""
        check = self.begin_read(sidecar, name)
        try:
            answer = sidecar.list(ListCheckpointsRequest(namespace=NAMESPACE, thread=name, page_size=1000))
        except ThreadNotFound:
            check(None)
            raise
        self.look()
        shown = {each.version: bytes(each.digest) for each in answer.checkpoints}
        if not shown:
            return
        newest = shown[max(shown)]
        entry = self.truth.entries[newest]
        own = {each.version: digest for digest in self.truth.line(newest).values()
               if (each := self.truth.entries[digest]).version}  # fmt: skip
        lacks = own.keys() - shown.keys() - self.truth.pruned[entry.uid]
        assert shown.items() <= own.items(), "one list has versions of two lines"
        assert not lacks, f"a list lacks versions {sorted(lacks)}"
        gone = self.truth.pruned[entry.uid]

        def is_newest(line: dict[int, bytes]) -> bool:
            left = {self.truth.entries[digest].version for digest in line.values()} - gone
            return newest in line.values() and entry.version >= max(left, default=0)

        check(is_newest)

    def begin_read(self, sidecar: Sidecar, name: str) -> Callable[[Callable[[dict[int, bytes]], bool] | None], None]:
        """To be called before a read of a thread. What it returns is called afterwards, with what must hold of some
        line that was history meanwhile; None: the thread was not found.

        A sidecar that holds the thread may show what it has, unless it must know that it was replaced.
        """
        key, era, call = self.key_of(sidecar, name), self.era, self.turns.current
        held, must_know = sidecar.holds(name), self.must_know(sidecar, key)
        head, seen, stops = self.truth.head(key), len(self.truth.log[key]), self.turns.stops

        def check(is_of: Callable[[dict[int, bytes]], bool] | None) -> None:
            is_taken = stops != self.turns.stops and sidecar.holds(name)  # by another call, and perhaps lost again
            sent = {each.disk for each in self.truth.log[key][seen:]}
            was_held = (held and not must_know()) or (is_taken and (not held or sidecar.disk.number in sent))
            if is_of is None:
                is_quiet = seen == len(self.truth.log[key])
                assert head is None or not is_quiet or was_held, "a thread that is archived was not found"
                return
            if was_held or self.may_show_own(sidecar, name, key) or head is None or era != self.era:
                return
            # A bucket that has just been away is not asked for a moment. What was this disk's own is used until then.
            hold = sidecar.hold_of(name)
            if hold is not None and not hold.is_verified and call is not None and (call.op.was_away or call.op.struck):
                return
            tips = [sent.head for sent in self.truth.heads_since(self.key_of(sidecar, name), seen)]
            lines = [self.truth.line(bytes(tip.tip_digest)) for tip in tips if tip.tip_sequence and not tip.deleted]
            assert any(map(is_of, lines)), "a reader got something else than what is archived"

        return check

    def must_know(self, sidecar: Sidecar, key: str) -> Callable[[], bool]:
        """Whether the thread was taken so long ago that who held it must have asked. To be called after the read: it is
        excused if the bucket was away, or anything went wrong."""
        call = self.turns.current
        others = itertools.takewhile(lambda sent: sent.disk != sidecar.disk.number, reversed(self.truth.log[key]))
        first = min((sent.at_s for sent in others), default=self.time.now_s)
        is_long_ago = self.time.now_s - max(first, self.era_began_s) > LEASE_S
        return lambda: is_long_ago and call is not None and not call.op.struck and not call.op.was_away

    def may_show_own(self, sidecar: Sidecar, name: str, key: str) -> bool:
        """Whether a sidecar answers from its disk after it has asked: the newest HEAD is its own, or of the disk that
        its own was copied from, or was set back."""
        hold, sent = sidecar.hold_of(name), self.truth.heads.get(key)
        if hold is not None and (hold.is_rolled_back or (sent is not None and sent.disk == sidecar.disk.number)):
            return True
        origin = next((disk.origin for disk in self.disks if sent is not None and disk.number == sent.disk), None)
        thread = sidecar.find(name)
        return origin == sidecar.disk.origin and thread is not None and thread.access == THREAD_ACCESS_OWNED
