"""The danger: a backup has versions of two histories, because another sidecar took the thread while it was exported."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.archive.twins import NAME, twins
from tests.archive_model.sidecar import NAMESPACE

from stateward.v1.backup_service_pb2 import ExportThreadRequest
from stateward_sidecar.errors import Fenced
from stateward_sidecar.store import exporting


def test_an_export_ends_where_its_line_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions were set aside meanwhile, and the name leads to others with the same numbers."""
    monkeypatch.setattr(exporting, "MESSAGE_BYTES", 1)  # a message for each part
    with twins(tmp_path) as pair:
        a, b = pair.a, pair.b
        a.put("common")
        a.archive_all()
        b.take()
        for word in ("b2", "b3"):
            b.put(word)
        b.archive_all()
        for word in ("a2", "a3"):
            a.put(word)
        words, parts = [], a.store.exporter.open(ExportThreadRequest(namespace=NAMESPACE, thread=NAME))
        while words != ["common", "a2"]:
            words += [edit.append.entries[0].data.decode() for part in next(parts).parts for edit in part.diff.edits]
        a.archive_all()
        assert a.words() == ["common", "b2", "b3"]
        with pytest.raises(Fenced, match="export the thread again"):
            list(parts)
