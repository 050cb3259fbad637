"""The danger: a specification that says something else than the daemon does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import grpc
import pytest
from google.protobuf import symbol_database, text_format
from tests.conformance.raw_client import page_code
from tests.service.test_error_table import make

from stateward._workspace.chunking import cut
from stateward.testing import Daemon, run_daemon
from stateward.v1 import (
    call_service_pb2_grpc,
    checkpoint_service_pb2_grpc,
    effect_service_pb2_grpc,
    error_reason_pb2,
    lease_service_pb2_grpc,
    record_service_pb2_grpc,
    signal_service_pb2_grpc,
    workspace_pb2,
    writer_service_pb2_grpc,
)
from stateward_sidecar.errors import QuotaExceeded
from stateward_sidecar.service.calls.status import CODES, to_status

PAGE = Path(__file__).resolve().parents[2] / "docs/protocol.md"
EXAMPLE = re.compile(r"```textproto\n# proto-message: (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with run_daemon() as running:
        yield running


def stubs(channel: grpc.Channel) -> dict[str, grpc.UnaryUnaryMultiCallable]:
    """The methods of a daemon by their names."""
    services = (
        call_service_pb2_grpc.CallServiceStub,
        checkpoint_service_pb2_grpc.CheckpointServiceStub, effect_service_pb2_grpc.EffectServiceStub,
        lease_service_pb2_grpc.LeaseServiceStub, record_service_pb2_grpc.RecordServiceStub,
        signal_service_pb2_grpc.SignalServiceStub, writer_service_pb2_grpc.WriterServiceStub,
    )  # fmt: skip
    return {name: method for service in services for name, method in vars(service(channel)).items()}


def test_its_requests_are_answered(daemon: Daemon) -> None:
    """Every example of the page parses, and a daemon answers all of them, in their order."""
    text = PAGE.read_text()
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```textproto") > 8
    with grpc.insecure_channel(daemon.target) as channel:
        methods = stubs(channel)
        for kind, example in examples:
            request = text_format.Parse(example, symbol_database.Default().GetSymbol(kind)())
            method = methods[kind.rpartition(".")[2].removesuffix("Request")]
            if kind.endswith(".WriteRequest"):
                assert next(iter(method(iter([request]), timeout=10))).HasField("opened")
            elif kind.endswith(".RunCallsRequest"):
                answers = [each for message in method(iter([request]), timeout=10) for each in message.answers]
                assert {each.WhichOneof("answer") for each in answers} == {"save", "put_effects"}
            else:
                method(request, timeout=10)


def test_its_table_has_every_reason() -> None:
    """Reasons and codes of the page are those of the contract and of the daemon."""
    rows = dict(re.findall(r"^\| ([A-Z_]+) \| ([A-Z_]+) \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {reason: code.name for reason, code in CODES.items()}
    assert {f"ERROR_REASON_{reason}" for reason in rows} == set(error_reason_pb2.ErrorReason.keys()[1:])


@pytest.mark.parametrize("page", ["docs/protocol.md", "proto/README.md"])
def test_its_details_are_those_that_are_sent(repository: Path, page: str) -> None:
    """For each kind of detail, both pages name the reasons with which the daemon sends it."""
    sent: dict[str, set[str]] = {}
    for error in [*map(make, CODES), QuotaExceeded("too many saves a second", retry_after_ms=50)]:
        status = symbol_database.Default().GetSymbol("google.rpc.Status").FromString(to_status(error)[2])
        for detail in status.details:
            sent.setdefault(detail.type_url.rpartition(".")[2], set()).add(error.reason)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| ", (repository / page).read_text(), re.MULTILINE))
    told = {kind: set(reasons.split(", ")) for kind, reasons in rows.items() if kind in sent}
    assert sent.pop("ErrorInfo") == set(CODES)
    told.pop("ErrorInfo")
    assert told == sent


def test_its_directory_object_is_one() -> None:
    """The bytes and the digest of the example are those that its words and its code make."""
    text, time_ns, run = PAGE.read_text(), 1_700_000_000_123_456_789, b"#!/bin/sh\n"
    entries = [
        workspace_pb2.TreeEntry(
            name=b"run.sh", kind=workspace_pb2.TREE_ENTRY_KIND_FILE, executable=True, size_bytes=len(run),
            mtime_ns=time_ns, digest=sha256(run).digest(),
        ),
        workspace_pb2.TreeEntry(name=b"B", kind=workspace_pb2.TREE_ENTRY_KIND_FILE, mtime_ns=time_ns),
        workspace_pb2.TreeEntry(
            name=b"link", kind=workspace_pb2.TREE_ENTRY_KIND_SYMLINK, target=b"../B", mtime_ns=time_ns
        ),
    ]  # fmt: skip
    digest, data = page_code().name_directory(entries)
    (shown,) = re.findall(r"```text\n([0-9a-f\n]+)```", text)
    assert data.hex() == shown.replace("\n", "")
    assert f"an object of these {len(data)} bytes" in text
    assert f"`{digest.hex()}`" in text


def test_its_cuts_are_those_of_its_code_and_of_the_client() -> None:
    """The chunks of the example are those that the code of the page finds, and the library of the client."""
    data = b"".join(sha256(b"%d" % number).digest() for number in range(93_750))
    sizes = [len(chunk) for chunk in page_code().cut(data)]
    (shown,) = re.findall(r"chunks of ([0-9, and]+) bytes\.", " ".join(PAGE.read_text().split()))
    assert list(map(int, re.findall(r"\d+", shown))) == sizes
    assert [len(chunk) for chunk in cut(BytesIO(data))] == sizes
