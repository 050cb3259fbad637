"""The danger: a thread changes while it is exported. The backup has versions of two histories, or half a blob."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.archive.test_blobs_collected_elsewhere import BLOB_KEPT_S, drop, files, name, prune, read, write
from tests.daemon.driven import NAME, NAMESPACE, Driven
from tests.daemon.town import Town, twins

from stateward.v1.backup_service_pb2 import ExportThreadRequest, ThreadPart
from stateward_sidecar.codec.blob import SEGMENT_BYTES
from stateward_sidecar.errors import Fenced
from stateward_sidecar.store.copies import exporting


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


def collect(town: Town, machine: Driven) -> None:
    """A sweep removes the blob that no version names."""
    town.time.sleep(BLOB_KEPT_S + 1)
    machine.sweep()
    assert files(machine) == []


@pytest.mark.parametrize("at", range(4))
def test_a_blob_that_is_collected_is_exported_whole_or_not_at_all(
    driven: Town, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A sweep comes before the first part of the blob, or after any of them."""
    monkeypatch.setattr(exporting, "MESSAGE_BYTES", 1)
    machine, content = driven.machine("first"), random.Random(at).randbytes(2 * SEGMENT_BYTES + 100)
    write(machine, content)
    name(machine, content)
    drop(machine)
    machine.ship_now()
    prune(machine, 1)
    machine.ship_now()
    parts, exported = list[ThreadPart](), machine.store.exporter.open(
        ExportThreadRequest(namespace=NAMESPACE, thread="job")
    )
    for number, message in enumerate(exported):
        parts += message.parts
        if number == at:
            collect(driven, machine)
    data = b"".join(part.blob_data for part in parts)
    assert data in (b"", content)
    assert (parts[-1].end.blobs, sum(part.HasField("blob") for part in parts)) == (int(bool(data)),) * 2


def test_a_fetched_blob_stays_while_its_copy_is_exported(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read a day ago. The sweep, which removes such files, comes between the list of blobs and the read."""
    monkeypatch.setattr(exporting, "MESSAGE_BYTES", 1)
    first, second, content = driven.machine("first"), driven.machine("second"), b"a picture, " * 50
    write(first, content)
    name(first, content)
    first.ship_now()
    assert read(second, content) == content
    driven.time.sleep(24 * 3600 + 1)
    exported = second.store.exporter.open(ExportThreadRequest(namespace=NAMESPACE, thread="job"))
    next(exported)
    second.sweep()
    assert b"".join(part.blob_data for message in exported for part in message.parts) == content
