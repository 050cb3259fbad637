"""Lists the threads in the archive, and with ``index`` keeps the listed threads on this disk.

With ``index``, a thread that this disk lacks is installed from its image alone. ListThreads then shows it, and a
hydrate fetches the rest. Copies without entries are installed again from the new image, and copies with entries are
brought up to HEAD. Threads that are no copies are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from stateward.v1.archive_service_pb2 import ListArchiveRequest, ListArchiveResponse
from stateward.v1.thread_pb2 import THREAD_ACCESS_REMOTE
from stateward_sidecar.archive.fleet.fleet import Fleet, Found, Survey, in_chunks, object_refs
from stateward_sidecar.archive.objects.desk import Desk, row_of
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.errors import Corrupt, DiskFull, ShuttingDown, StatewardError
from stateward_sidecar.store.travel.install import Incoming, entries_here


class ArchiveLister:
    """Lists threads. Runs on the archive's threads."""

    def __init__(self, desk: Desk, attacher: Attacher) -> None:
        self._desk = desk
        self._attacher = attacher

    def list(self, request: ListArchiveRequest) -> Iterator[ListArchiveResponse | None]:
        """Yields an answer for each thread, also if it cannot be read. Yields None while there is no answer yet, so
        that the caller can cancel.

        Raises ArchiveUnavailable, and with ``index`` DiskFull, ShuttingDown.
        """
        fleet, survey = Fleet(self._desk), Survey()
        yield from fleet.survey(request.namespace, survey)
        if not request.elsewhere:
            yield from fleet.add_lost(request.namespace, survey)
        for places in in_chunks(survey.heads):
            yield None
            if request.elsewhere:
                places = [place for place in places if fleet.name_here(place) is None]
            for found in fleet.read(places):
                if found.error is not None:
                    yield ListArchiveResponse(problem=fleet.explain(found))
                elif found.is_live:
                    yield self._answer(fleet, found, keep=request.index)
        for place in () if request.elsewhere else survey.headless:
            lost = Found(place, error=Corrupt("HEAD is missing in the archive"))
            yield ListArchiveResponse(problem=fleet.explain(lost))

    def _answer(self, fleet: Fleet, found: Found, *, keep: bool) -> ListArchiveResponse:
        assert found.seen is not None
        head = found.seen.head
        answer = ListArchiveResponse(
            thread=fleet.view(found), detached=head.detached,
            object_bytes=found.head_bytes + sum(ref.size_bytes for ref in object_refs(head)),
        )  # fmt: skip
        answer.archive_time.FromMicroseconds(head.update_time_us)
        if keep:
            try:
                self._keep(fleet, found)
            except (DiskFull, ShuttingDown):
                raise
            except StatewardError as error:
                answer.problem = error.message
        return answer

    def _keep(self, fleet: Fleet, found: Found) -> None:
        image, seen = found.image, found.seen
        assert image is not None
        assert seen is not None
        assert seen.key is not None
        assert found.namespace is not None
        name = image.head.namespace, image.head.thread
        with self._desk.locks.of(name):
            here = fleet.thread_here(name)
            if here is not None:
                if here.access != THREAD_ACCESS_REMOTE:
                    return
                if entries_here(here) or here.identity.uid != seen.key.uid:
                    self._attacher.know(name)
                    return
                if here.head.tip_sequence > image.head.tip_sequence:
                    return  # renewed since HEAD was read
            row = row_of(seen.head, THREAD_ACCESS_REMOTE)
            self._desk.installer.install(
                Incoming(found.namespace, seen.key.uid, seen.key.data_key, image, row, is_first=here is None)
            )
