"""The danger: an archive that is not where the operator meant it, or a start that fails and does not say why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.bucket.weed import s3_environment

from stateward_sidecar.bucket.open import open_bucket
from stateward_sidecar.bucket.probe import probe_bucket
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import StartError


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "write file:///"),
        ("/var/archive", "write file:///"),
        ("ftp://host/x", "write file:///"),
        ("memory://", "write file:///"),
        ("file://archive/x", "three slashes"),
        ("file:///", "three slashes"),
        ("file:archive", "three slashes"),
        ("s3://", "names no bucket; write s3://bucket/prefix"),
        ("gs:///prefix", "names no bucket; write gs://bucket/prefix"),
        ("az://", "names no bucket; write az://container/prefix"),
        ("s3://bucket/a//b", "no usable prefix"),
        ("s3://bucket/a b", "no usable prefix"),
        ("s3://bucket/a?region=x", "must not contain"),
        ("s3://[bucket/a", "cannot be read"),
    ],
)
def test_urls_that_name_no_bucket(url: str, hint: str) -> None:
    """Each says what to write instead."""
    with pytest.raises(StartError, match=hint):
        open_bucket(url, {}, Clock())


def test_passwords_are_not_repeated() -> None:
    """A URL with credentials is refused without showing them."""
    with pytest.raises(StartError) as caught:
        open_bucket("s3://user:secret@bucket/x", {}, Clock())
    assert "secret" not in caught.value.message


def test_a_directory(tmp_path: Path) -> None:
    """It is made where the URL says, spaces included."""
    probe_bucket(open_bucket(f"file://{tmp_path}/the%20archive", {}, Clock()))
    assert (tmp_path / "the archive").is_dir()


@pytest.mark.parametrize("path", ["", "/", "/deep/prefix", "/deep/prefix/"])
def test_an_s3_bucket(moto_url: str, path: str) -> None:
    """With and without a prefix, at the endpoint that the environment names."""
    bucket = open_bucket(f"s3://stateward{path}", s3_environment(moto_url), Clock())
    probe_bucket(bucket)
    bucket.put("opened/x", b"x")
    assert list(bucket.list("opened/")) == [("opened/x", 1)]
    bucket.delete("opened/x")


def test_prefixes_are_apart(moto_url: str) -> None:
    """Two prefixes of one bucket do not see each other."""
    one, two = (open_bucket(f"s3://stateward/{name}", s3_environment(moto_url), Clock()) for name in ("one", "two"))
    one.create("HEAD", b"1")
    two.create("HEAD", b"2")
    assert one.get("HEAD").data == b"1"
    assert list(one.list("")) == [("HEAD", 1)]


@pytest.mark.parametrize("url", ["gs://bucket/prefix", "az://container/prefix"])
def test_others_are_opened_at_the_first_call(url: str) -> None:
    """Nothing is asked of a remote bucket yet, so a start without network is possible."""
    open_bucket(url, {}, Clock()).close()


def test_a_start_without_remote_archive_loads_no_obstore() -> None:
    """It would take a tenth of the start."""
    program = "import sys, stateward_sidecar.bucket.open; print('obstore' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
