"""The rules of the machine that write records, compare and swap them, and delete them."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.protobuf.empty_pb2 import Empty
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.model.acting import Acting
from tests.model.plain import PlainRecord
from tests.model.strategies import PICK, SHORT, value

from stateward.errors import RecordConflict, ThreadNotFound
from stateward.v1 import record_pb2
from stateward.v1 import record_service_pb2 as records
from stateward.v1.write_pb2 import WriteOptions

KEPT = "kept"  # never deleted: if no record is left, the daemon notes that in an entry of its own
# A move begins when replaced values have 256 KiB.
LARGE_BYTES, REWRITES = 40_000, 12
KEYS = st.sets(st.sampled_from(("a", "a/b", "a/c", "b", "é")), min_size=1)


class Keeping(Acting):
    """Records beside versions, which belong to no version."""

    has_rewritten = False  # once in each run, because it takes long

    @precondition(lambda self: self.model)
    @rule(pick=PICK, puts=KEYS, deletes=KEYS, data=SHORT, is_expected=st.booleans(), is_wrong=st.booleans())
    def put_records(
        self, pick: int, puts: set[str], deletes: set[str], data: bytes, is_expected: bool, is_wrong: bool
    ) -> None:
        """All of them or none: with the revisions that the model has, with wrong ones, or with any."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        request = records.PutRecordsRequest(
            namespace=self.namespace, thread=name, options=WriteOptions(request_id=str(uuid.uuid4()))
        )
        for key in sorted(puts | {KEPT}):
            write = request.writes.add(key=key, value=value(data))
            if is_expected:
                write.expected_revision = thread.records[key].revision if key in thread.records else 0
        if is_wrong:
            request.writes.add(key="none", check=Empty(), expected_revision=1)
        request.writes.extend(record_pb2.RecordWrite(key=key, delete=Empty()) for key in sorted(deletes - puts))
        if is_wrong:
            with pytest.raises(RecordConflict):
                self.call("PutRecords", request)
            self.compare_records(name)
            return
        gone = (deletes - puts) & thread.records.keys()
        newest = max((each.revision for each in thread.records.values()), default=0)
        answer = self.call("PutRecords", request)
        thread.sequence += 1
        for key in gone:
            del thread.records[key]
        thread.records.update(dict.fromkeys(puts | {KEPT}, PlainRecord(data, answer.revision)))
        assert answer.revision > newest
        assert (answer.written, answer.deleted) == (len(puts) + 1, len(gone))
        assert (answer.receipt.sequence, answer.receipt.uid) == (thread.sequence, thread.uid)
        again = self.call("PutRecords", self.restarted(request))
        assert (again.revision, again.written) == (answer.revision, answer.written)
        self.compare_receipts(again, answer)
        self.compare_records(name)

    @precondition(lambda self: self.model)
    @rule(pick=PICK)
    def delete_what_was_counted(self, pick: int) -> None:
        """Somebody counts the records, one is written, and those that were counted are deleted."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        for key in (KEPT, "a", "b"):
            request = records.PutRecordsRequest(
                namespace=self.namespace, thread=name, options=WriteOptions(request_id=str(uuid.uuid4()))
            )
            request.writes.add(key=key, value=value(b"counted"))
            answer = self.call("PutRecords", request)
            thread.sequence += 1
            thread.records[key] = PlainRecord(b"counted", answer.revision)
        most = thread.records["a"].revision
        gone = [key for key, it in thread.records.items() if key.startswith("a") and it.revision <= most]
        asked = records.DeleteRecordsRequest(
            namespace=self.namespace, thread=name, prefix="a", options=WriteOptions(request_id=str(uuid.uuid4())),
            max_revision=most
        )
        assert self.call("DeleteRecords", asked).deleted == len(gone)
        asked.prefix, asked.options.request_id = "b", str(uuid.uuid4())
        assert self.call("DeleteRecords", asked).deleted == 0
        thread.sequence += 1
        for key in gone:
            del thread.records[key]
        self.compare_records(name)

    @precondition(lambda self: self.model)
    @rule(pick=PICK, prefix=st.sampled_from(("a", "a/", "b", "x")), until=st.sampled_from((None, None, 0, 1)))
    def delete_records(self, pick: int, prefix: str, until: int | None) -> None:
        """Those whose key begins with a text; perhaps only those that are not newer than one of them."""
        name = self.pick(self.model, pick)
        thread = self.model[name]
        gone = [key for key in thread.records if key.startswith(prefix)]
        most = 0
        if until is not None and gone:
            revisions = sorted({thread.records[key].revision for key in gone})
            most = revisions[until % len(revisions)]
            gone = [key for key in gone if thread.records[key].revision <= most]
        request = records.DeleteRecordsRequest(
            namespace=self.namespace, thread=name, prefix=prefix, options=WriteOptions(request_id=str(uuid.uuid4())),
            max_revision=most
        )
        answer = self.call("DeleteRecords", request)
        thread.sequence += bool(gone)
        for key in gone:
            del thread.records[key]
        assert (answer.deleted, answer.has_more, answer.receipt.sequence) == (len(gone), False, thread.sequence)
        if gone:
            self.compare_receipts(self.call("DeleteRecords", self.restarted(request)), answer)
        self.compare_records(name)
        request.thread = "none"
        with pytest.raises(ThreadNotFound):
            self.call("DeleteRecords", request)

    @precondition(lambda self: self.model)
    @rule(pick=PICK)
    def list_records(self, pick: int) -> None:
        """Whatever became of versions, and wherever the thread was copied from."""
        self.compare_records(self.pick(self.model, pick))

    @precondition(lambda self: not self.has_rewritten)
    @rule(page_size=st.sampled_from((70, 1000)), rewritten=st.integers(1, 3))
    def list_while_rewritten(self, page_size: int, rewritten: int) -> None:
        """Every list has every key, whatever is written and moved meanwhile; large values are moved soon."""
        self.has_rewritten = True
        place = {"namespace": f"{self.namespace}-lists", "thread": "t"}
        keys = [f"k{number:03}" for number in range(200)]

        def put(some: list[str], size_bytes: int) -> None:
            request = records.PutRecordsRequest(**place, options=WriteOptions(request_id=str(uuid.uuid4())))
            for key in some:
                request.writes.add(key=key, value=value(os.urandom(size_bytes)))
            self.call("PutRecords", request)

        def rewrite() -> None:
            for number in range(REWRITES):
                put(keys[number % rewritten :: 60], LARGE_BYTES)

        put(keys, 10)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(rewrite)
            while not writing.done():
                request, found = records.ListRecordsRequest(**place, page_size=page_size), list[str]()
                while not found or request.page_token:
                    page = self.call("ListRecords", request)
                    found += [record.key for record in page.records]
                    request.page_token = page.next_page_token
                assert found == keys
                get = records.GetRecordsRequest(**place, keys=keys, without_values=True)
                assert [record.key for record in self.call("GetRecords", get).records] == keys
            writing.result()

    def compare_records(self, name: str) -> None:
        """The daemon lists the records of the model in their order, and the thread counts them."""
        expected = sorted(self.model[name].records.items())
        request = records.ListRecordsRequest(namespace=self.namespace, thread=name, page_size=1000)
        found = self.call("ListRecords", request).records
        assert [(each.key, PlainRecord(each.value.data, each.revision)) for each in found] == expected
        get = records.GetRecordsRequest(namespace=self.namespace, thread=name, keys=["none", KEPT])
        kept = [each.key for each in self.call("GetRecords", get).records]
        assert kept == [KEPT] * (KEPT in self.model[name].records)
