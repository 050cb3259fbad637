"""The danger: a bucket keeps old versions of deleted keys, and nobody says so."""

from __future__ import annotations

from pathlib import Path

import boto3
from tests.bucket.weed import make_s3_bucket, s3_environment

from stateward_sidecar.bucket.directory import DirectoryBucket
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket


def test_a_bucket_that_keeps_versions_is_known(moto_url: str) -> None:
    """The answer about one object tells whether it has versions."""
    make_s3_bucket(moto_url, "versions")
    bucket = ObjectStoreBucket("s3://versions/x", s3_environment(moto_url))
    bucket.create("before", b"1")
    assert not bucket.keeps_versions("before")
    given = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    s3 = boto3.client("s3", endpoint_url=moto_url, **given)
    s3.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    bucket.create("after", b"1")
    assert bucket.keeps_versions("after")


def test_a_directory_keeps_none(tmp_path: Path) -> None:
    """What a file system keeps below it, nobody can see from here."""
    bucket = DirectoryBucket(tmp_path / "bucket")
    bucket.create("k", b"1")
    assert not bucket.keeps_versions("k")
