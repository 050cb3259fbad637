"""What people do to a whole archive. Each command counts for itself, so each call makes its own object."""

from __future__ import annotations

from collections.abc import Iterator

from stateward.v1.archive_service_pb2 import (
    CollectGarbageRequest,
    CollectGarbageResponse,
    ListArchiveRequest,
    ListArchiveResponse,
    RepairThreadRequest,
    RepairThreadResponse,
    RestoreArchiveRequest,
    RestoreArchiveResponse,
    VerifyArchiveRequest,
    VerifyArchiveResponse,
)
from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.archive.fleet.collect import Collector, Verbs
from stateward_sidecar.archive.fleet.fleet import ArchiveLister
from stateward_sidecar.archive.fleet.inspect import Inspector
from stateward_sidecar.archive.fleet.repair import Repairer
from stateward_sidecar.archive.fleet.restore import Restorer
from stateward_sidecar.archive.fleet.shredded import list_deleted_keys


class Commands:
    """The commands over an archive. The iterators yield None for a step without an answer."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        # One for all calls: it notices when the clock has jumped since the start.
        verbs = Verbs(
            lambda name: archive.own(*name, must_exist=True), archive.delete, archive.attacher.bury_claim,
            archive.remove_locked,
        )  # fmt: skip
        self._collector = Collector(archive.state, verbs)

    def list(self, request: ListArchiveRequest) -> Iterator[ListArchiveResponse | None]:
        """See ``ArchiveLister.list``."""
        return ArchiveLister(self._archive.state, self._archive.attacher).list(request)

    def verify(self, request: VerifyArchiveRequest) -> Iterator[VerifyArchiveResponse]:
        """See ``Inspector.verify`` and ``list_deleted_keys``."""
        if request.deleted_keys:
            return list_deleted_keys(self._archive.state, request)
        return Inspector(self._archive.state).verify(request)

    def restore(self, request: RestoreArchiveRequest) -> Iterator[RestoreArchiveResponse]:
        """See ``Restorer.restore``."""
        return Restorer(self._archive.state).restore(request)

    def collect(self, request: CollectGarbageRequest) -> Iterator[CollectGarbageResponse]:
        """See ``Collector.collect``."""
        return self._collector.collect(request)

    def repair(self, request: RepairThreadRequest) -> RepairThreadResponse:
        """See ``Repairer.repair``."""
        return Repairer(self._archive.state).repair(request)
