"""Names the deleted threads that the archive remembers, and says whether a key of each is still in the bucket.

A tombstone says which thread was deleted. Its key object is looked for by name, because a list may lag behind. Nobody
can list the old versions that a bucket keeps through the calls that all stores have; whether it keeps any, it tells
with each object.
"""

from __future__ import annotations

from collections.abc import Iterator

from stateward.v1.admin_service_pb2 import DeletedKey, ScanProgress, VerifyFinding
from stateward.v1.archive_service_pb2 import VerifyArchiveRequest, VerifyArchiveResponse
from stateward_sidecar.archive.fleet.fleet import Fleet, Found, Survey, in_chunks
from stateward_sidecar.archive.objects.holds import ArchiveState
from stateward_sidecar.archive.requests.places import FORMAT_KEY
from stateward_sidecar.errors import reason_number


def list_deleted_keys(state: ArchiveState, request: VerifyArchiveRequest) -> Iterator[VerifyArchiveResponse]:
    """Yields the tombstones of the archive or of a namespace. Raises ArchiveUnavailable."""
    fleet, survey, progress = Fleet(state), Survey(), ScanProgress()
    for _ in fleet.survey(request.namespace, survey):
        yield VerifyArchiveResponse(progress=progress)
    may_have_versions = state.wire.keeps_versions(FORMAT_KEY)
    for places in in_chunks(survey.heads):
        for found in fleet.heads(places):
            progress.threads += 1
            answer = VerifyArchiveResponse(progress=progress)
            if found.error is not None:
                message = f"{found.place.head}: {found.error.message}"
                answer.finding.CopyFrom(VerifyFinding(reason=reason_number(found.error.reason), message=message))
                yield answer
            elif found.seen is not None and found.seen.head.deleted:
                answer.deleted_key.CopyFrom(_describe(state, found, may_have_versions=may_have_versions))
                yield answer
    yield VerifyArchiveResponse(progress=progress)


def _describe(state: ArchiveState, found: Found, *, may_have_versions: bool) -> DeletedKey:
    assert found.seen is not None
    head = found.seen.head
    described = DeletedKey(uid=head.uid.hex(), may_have_versions=may_have_versions)
    if head.update_time_us:
        described.delete_time.FromMicroseconds(head.update_time_us)
    described.exists = state.wire.find(found.place.key(head.created_epoch)) is not None
    return described
