"""Rules in which a thread is exported, part by part, while its sidecar loses it."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import NAMES, WHO
from tests.archive_model.meetings import Meetings
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.stage import SIDECARS
from tests.daemon.driven import NAMESPACE

from stateward.v1.backup_service_pb2 import ExportThreadRequest
from stateward_sidecar.errors import HistoryElsewhere


class BackingUp(Meetings):
    """A backup has versions of one history."""

    @rule(who=WHO, name=NAMES, own=st.integers(1, 4), count=st.integers(1, 4), at=st.integers(0, 20))
    def export_and_part(self, who: int, name: str, own: int, count: int, at: int) -> None:
        """The other sidecar takes the thread, and this one notices, after so many parts."""
        other = (who + 1) % SIDECARS
        self.take_over(who, name)
        self.work(who, name, 1, 10, archived=True)
        self.work(who, name, own, 10, archived=False)

        def part() -> None:
            self.take_over(other, name)
            self.work(other, name, count, 10, archived=True)
            self.ship(who, ())
            self.read(who, name, "main", ())

        def export(it: Sidecar) -> None:
            found = list[bytes]()
            with suppress(HistoryElsewhere):  # the service fetches it, and begins again
                answers = it.store.exporter.open(ExportThreadRequest(namespace=NAMESPACE, thread=name))
                for number, answer in enumerate(answers):
                    if number == at:
                        part()
                    shown = (each.version.checkpoint for each in answer.parts if each.HasField("version"))
                    found += [bytes(checkpoint.digest) for checkpoint in shown]
            lines = [set(self.truth.line(digest).values()) for digest in found]
            assert any(line.issuperset(found) for line in lines) or not found, "a backup has versions of two histories"

        self.act(who, f"export {name}", export)
