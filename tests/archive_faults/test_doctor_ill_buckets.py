"""The danger: a bucket or a clock that is wrong, and a doctor that finds them well."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.archive_faults.gate import Gate
from tests.daemon.process import Fleet

from stateward.admin import Diagnosis, Verdict


def found_of(diagnoses: tuple[Diagnosis, ...], check: str) -> list[Diagnosis]:
    return [each for each in diagnoses if each.check == check]


def test_a_bucket_that_refuses(fleet_on_s3: Fleet, gate: Gate) -> None:
    """The probe passes on a real S3 server, and fails with advice once writes are denied."""
    client = fleet_on_s3.client(fleet_on_s3.machine_on("first", gate.url))
    found = client.diagnose().diagnoses
    assert [each.verdict for each in found_of(found, "bucket")] == [Verdict.OK]
    assert [each.verdict for each in found_of(found, "clock")] == [Verdict.OK]
    gate.refuse(403, "AccessDenied")
    (denied,) = found_of(client.diagnose().diagnoses, "bucket")
    assert denied.verdict == Verdict.FAILED
    assert "credentials" in denied.advice


def test_a_clock_that_is_off(
    fleet_on_s3: Fleet, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The bucket's clock shows that the daemon's is wrong: a warning from a minute on, a failure from ten."""
    monkeypatch.setenv("TESTS_START_COLD", "1")  # the clock is put into a new interpreter
    offset = tmp_path / "offset"
    offset.write_text("0")
    client = fleet_on_s3.client(fleet_on_s3.machine_on("first", gate.url, clock=offset))
    for seconds, verdict in (("30", Verdict.OK), ("-300", Verdict.WARNING), ("3600", Verdict.FAILED)):
        offset.write_text(seconds)
        (clock,) = found_of(client.diagnose().diagnoses, "clock")
        assert clock.verdict == verdict, clock
        if verdict != Verdict.OK:
            assert "NTP" in clock.advice
