"""Operations on records."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.empty_pb2 import Empty

from stateward._operations import threads
from stateward._operations.steps import Call, Operation, ThreadRef, new_request_id
from stateward.arguments import INT32_MAX, several, text, whole_number
from stateward.models import Durability, choice_number
from stateward.options import ThreadOptions, options_to_proto
from stateward.records import Record, RecordPrefix, RecordsWritten, RecordWrite, Where, to_protos, write_filters
from stateward.v1 import record_pb2
from stateward.v1 import record_service_pb2 as service


def write(
    ref: ThreadRef,
    writes: Iterable[RecordWrite],
    durability: Durability | str | None,
    create: ThreadOptions | None,
    expected_uid: str = "",
) -> Operation[RecordsWritten]:
    """Writes and deletes records, all or none."""
    return (yield from write_encoded(ref, to_protos(writes), durability, create, expected_uid))


def write_encoded(
    ref: ThreadRef,
    writes: Iterable[record_pb2.RecordWrite],
    durability: Durability | str | None,
    create: ThreadOptions | None,
    expected_uid: str = "",
) -> Operation[RecordsWritten]:
    """As `write`, for writes that are messages already."""
    request = ref.to_write(
        service.PutRecordsRequest,
        expected_uid=expected_uid or ref.held.uid,
        writes=writes,
        request_id=new_request_id(),
        lease_token=ref.held.for_call(),
        durability=choice_number(Durability, durability),
        create=options_to_proto(create),
    )
    response: service.PutRecordsResponse = yield Call("PutRecords", request)
    if response.receipt.uid and response.receipt.durability < request.options.durability:
        yield from threads.await_archived(ref, threads.entry_of(ref, response.receipt))
    return RecordsWritten.from_proto(response)


def get(ref: ThreadRef, keys: Iterable[str], refresh: bool, with_values: bool) -> Operation[dict[str, Record]]:
    """Returns the records with these keys that exist, however many answers they take."""
    found = dict[str, Record]()
    left = list(dict.fromkeys(text(key, "key") for key in several(keys, "keys", "keys")))
    while left:
        request = ref.about(
            service.GetRecordsRequest,
            keys=left[:1000],
            refresh_ttl=refresh,
            without_values=not with_values,
        )
        response: service.GetRecordsResponse = yield Call("GetRecords", request)
        found |= {record.key: Record.from_proto(record) for record in response.records}
        left = [*response.rest, *left[1000:]]
    return found


def list_records(
    ref: ThreadRef,
    prefix: str,
    where: Where | None,
    newest_first: bool,
    skip: int,
    page_size: int,
    refresh: bool,
    with_values: bool,
) -> service.ListRecordsRequest:
    """Returns the request for the first page."""
    return ref.about(
        service.ListRecordsRequest,
        prefix=text(prefix, "prefix"),
        filters=write_filters(where),
        order=service.RECORD_ORDER_NEWEST if newest_first else service.RECORD_ORDER_KEY,
        skip=whole_number(skip, "skip", most=INT32_MAX),
        page_size=whole_number(page_size, "page_size", most=INT32_MAX),
        refresh_ttl=refresh,
        without_values=not with_values,
    )


def read_records(request: service.ListRecordsRequest) -> Operation[list[Record]]:
    """Returns a page, and sets the request's page token for the next one; an empty token = there is none."""
    page: service.ListRecordsResponse = yield Call("ListRecords", request)
    request.page_token = page.next_page_token
    return list(map(Record.from_proto, page.records))


def list_prefixes(
    ref: ThreadRef, delimiter: str, prefix: str, max_depth: int
) -> service.ListRecordPrefixesRequest:
    """Returns the request for the first page."""
    return ref.about(
        service.ListRecordPrefixesRequest,
        prefix=text(prefix, "prefix"),
        delimiter=text(delimiter, "delimiter"),
        max_depth=whole_number(max_depth, "max_depth", most=INT32_MAX),
        page_size=1000,
    )


def read_prefixes(request: service.ListRecordPrefixesRequest) -> Operation[list[RecordPrefix]]:
    """Returns a page, and sets the request's page token for the next one; an empty token = there is none."""
    page: service.ListRecordPrefixesResponse = yield Call("ListRecordPrefixes", request)
    request.page_token = page.next_page_token
    return list(map(RecordPrefix.from_proto, page.prefixes))


def delete_prefix(
    ref: ThreadRef,
    prefix: str,
    durability: Durability | str | None,
    max_revision: int | None = None,
    expected_uid: str = "",
) -> Operation[int]:
    """Deletes records, a thousand with each call, of one creation of the thread. Returns how many there were."""
    deleted, has_more, uid = 0, True, expected_uid or ref.held.uid
    most = 0 if max_revision is None else whole_number(max_revision, "max_revision")
    if max_revision == 0:
        return 0  # no record is that old, and 0 stands for any in the request
    while has_more:
        request = ref.to_write(
            service.DeleteRecordsRequest,
            expected_uid=uid,
            **({"prefix": text(prefix, "prefix")} if prefix else {"all": Empty()}),
            max_revision=most,
            request_id=new_request_id(),
            lease_token=ref.held.for_call(),
            durability=choice_number(Durability, durability),
        )
        response: service.DeleteRecordsResponse = yield Call("DeleteRecords", request)
        if response.receipt.durability < request.options.durability:
            yield from threads.await_archived(ref, threads.entry_of(ref, response.receipt))
        deleted, has_more, uid = deleted + response.deleted, response.has_more, response.receipt.uid
    return deleted
