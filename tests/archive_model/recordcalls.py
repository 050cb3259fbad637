"""Calls that write and read records, compared with the truth."""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection

from google.protobuf.empty_pb2 import Empty
from tests.archive_model.faults import MEANWHILE
from tests.archive_model.reading import Reading
from tests.archive_model.recordbook import Request, Shown
from tests.archive_model.sidecar import Sidecar
from tests.daemon.driven import CALLER, NAMESPACE
from tests.daemon.unthreaded import run

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_UNSPECIFIED
from stateward.v1.record_pb2 import StoredRecord
from stateward.v1.record_service_pb2 import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    GetRecordsRequest,
    ListRecordsRequest,
    PutRecordsRequest,
    PutRecordsResponse,
)
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import RecordConflict

Answer = PutRecordsResponse | DeleteRecordsResponse


class RecordCalls(Reading):
    """What clients do with records."""

    # -- writing --------------------------------------------------------------------------------------------------

    def put_request(
        self, name: str, keys: Collection[str], *, size: int, conditional: bool = False, ttl_s: int = 0,
        deletes: Collection[str] = (),
    ) -> PutRecordsRequest:  # fmt: skip
        """A put of a client, on the revisions that it believes in if it is conditional."""
        request = PutRecordsRequest(namespace=NAMESPACE, thread=name)
        for key in sorted(keys):
            data = self.mark(size).encode()
            write = request.writes.add(key=key, value=Value(media_type="text/plain", data=data))
            if conditional:
                write.expected_revision = self.revisions.get((name, key), 0)
            if ttl_s:
                write.ttl.FromSeconds(ttl_s)
        for key in sorted({*deletes} - {*keys}):
            request.writes.add(key=key, delete=Empty())
        request.options.request_id = str(uuid.UUID(int=next(self.numbers)))
        self.records.ask(request)
        return request

    def delete_request(self, name: str, prefix: str) -> DeleteRecordsRequest:
        """A deletion of some records."""
        request = DeleteRecordsRequest(
            namespace=NAMESPACE, thread=name, prefix=prefix,
            options=WriteOptions(request_id=str(uuid.UUID(int=next(self.numbers))))
        )
        self.records.ask(request)
        return request

    def put(self, sidecar: Sidecar, request: Request, *, archived: bool = False) -> None:
        """Sends a put or a deletion, and compares the answer with the truth."""
        sent = type(request)()
        sent.CopyFrom(request)
        sent.options.durability = DURABILITY_ARCHIVED if archived else DURABILITY_UNSPECIFIED
        name, before, stops = request.thread, self.tip_here(sidecar, request.thread), self.turns.stops
        deleted, era = len(sidecar.disk.deleted), self.era
        answer: Answer
        try:
            if isinstance(sent, PutRecordsRequest):
                answer = run(sidecar.records.put_records(sent, CALLER))
            else:
                answer = run(sidecar.records.delete_records(sent, CALLER))
        except RecordConflict as error:
            if stops == self.turns.stops and before == self.tip_here(sidecar, name):
                self.check_conflict(before, error)
            raise
        self.look()
        assert request.options.expected_uid in ("", answer.receipt.uid), "a late put reached another thread"
        digest, answered_uid = bytes(answer.receipt.digest), bytes.fromhex(answer.receipt.uid)
        if digest not in self.records.pages:
            gone = answered_uid in sidecar.disk.deleted[deleted:] or answered_uid in self.truth.deleted
            assert gone or not digest, "a put was answered that is on no disk"
            return
        self.check_put(request, answer, answered_uid)
        call = self.turns.current
        is_quiet = stops == self.turns.stops and (call is None or not call.op.struck)
        if is_quiet and isinstance(request, DeleteRecordsRequest) and isinstance(answer, DeleteRecordsResponse):
            left = [key for key in self.records.pages[digest].records if key.startswith(request.prefix)]
            assert not left or answer.has_more or not answer.deleted, f"records {left} outlive their deletion"
        if era == self.era and answered_uid not in sidecar.disk.deleted[deleted:]:
            sidecar.disk.promised.append((answered_uid, answer.receipt.sequence, digest))
        if archived and answer.receipt.durability == DURABILITY_ARCHIVED:
            self.truth.promise_archived(answered_uid, answer.receipt.sequence, digest)

    def tip_here(self, sidecar: Sidecar, name: str) -> bytes:
        """The digest of a thread's newest entry on a disk."""
        thread = sidecar.find(name)
        return bytes(thread.head.tip_digest) if thread is not None else b""

    def check_conflict(self, tip: bytes, error: RecordConflict) -> None:
        """Nothing else happened meanwhile: the record has another revision than the client expected."""
        kept = self.records.pages[tip].records.get(error.metadata["key"])
        if kept is None or not kept.expire_us:
            current = kept.revision if kept is not None else 0
            assert error.metadata["expected_revision"] != str(current), (
                "a put was refused as conflict on the revision that is there"
            )

    def check_put(self, request: Request, answer: Answer, answered_uid: bytes) -> None:
        """The answer names an entry that this request made. A retry is answered as before where the first answer is
        history of what was answered now; else the put happens anew."""
        digest, name = bytes(answer.receipt.digest), request.thread
        if not answer.deleted and not (isinstance(answer, PutRecordsResponse) and answer.written):
            return  # nothing was changed, and is noted nowhere
        assert self.records.made.get(digest) == request.options.request_id, (
            "a put was answered that this request did not make"
        )
        line = self.truth.line(digest)
        known = next(
            (answers for old, answers in self.puts if old.options.request_id == request.options.request_id), None
        )
        if known is None:
            known = {}
            self.puts.append((request, known))
        earlier = [old for old in known.get(answered_uid, ()) if line.get(old.receipt.sequence) == old.receipt.digest]
        near = [old for old in earlier if old.receipt.sequence >= answer.receipt.sequence - self.window]
        assert not near or any(old.receipt.digest == digest for old in near), (
            "a put that was answered before was applied again"
        )
        known.setdefault(answered_uid, []).append(answer)
        if isinstance(request, PutRecordsRequest) and isinstance(answer, PutRecordsResponse):
            kept = self.records.pages[digest].records
            for write in request.writes:
                if write.HasField("value"):
                    assert kept[write.key].revision == answer.revision, "a put was answered with another revision"
                self.revisions[name, write.key] = answer.revision if write.HasField("value") else 0

    # -- reading --------------------------------------------------------------------------------------------------

    def read_records(
        self, sidecar: Sidecar, name: str, keys: Collection[str] = (), *, refreshes: bool = False
    ) -> None:  # fmt: skip
        """Reads all records of a thread, or those with some keys: they are those after one entry, and of history unless
        the thread is held."""
        check, stops, since_us = self.begin_read(sidecar, name), self.turns.stops, sidecar.clock.now_us()
        found = self.ask_records(sidecar, name, keys, refreshes=refreshes)
        self.look()
        call, was_quiet = self.turns.current, stops == self.turns.stops
        was_quiet &= call is None or all(fault.kind != MEANWHILE for fault in call.op.struck)
        shown = Shown(
            {each.key: (each.value.data, each.revision, each.expire_time.ToMicroseconds()) for each in found},
            frozenset(keys) if keys else None, since_us if was_quiet else -math.inf,
            sidecar.clock.now_us() if was_quiet else math.inf, refreshes,
        )  # fmt: skip
        pages = self.records.pages
        if was_quiet:
            assert shown.is_of(pages[self.tip_here(sidecar, name)]), "records were shown that are not those of the tip"
        else:
            assert any(map(shown.is_of, pages.values())), "records were shown together that never were"
        if not found and sidecar.find(name) is None:  # without a thread there are no records
            check(None)
        elif was_quiet or not refreshes:  # a refresh may wait long after the read; if it fails, nothing is read again
            check(lambda line: shown.is_of(pages[line[max(line)] if line else b""]))
        known = keys or {key for of, key in self.revisions if of == name}
        self.revisions.update({(name, key): 0 for key in known} | {(name, each.key): each.revision for each in found})

    def ask_records(
        self, sidecar: Sidecar, name: str, keys: Collection[str] = (), *, refreshes: bool = False
    ) -> list[StoredRecord]:
        """What a sidecar shows."""
        if keys:
            get = GetRecordsRequest(namespace=NAMESPACE, thread=name, keys=sorted(keys), refresh_ttl=refreshes)
            return list(run(sidecar.records.get_records(get, CALLER)).records)
        request = ListRecordsRequest(namespace=NAMESPACE, thread=name, page_size=1000, refresh_ttl=refreshes)
        return list(run(sidecar.records.list_records(request, CALLER)).records)
