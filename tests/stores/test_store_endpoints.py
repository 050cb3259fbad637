"""The danger: an endpoint with a password stands in a log, plain http is allowed for a server that nobody asks, or a
home directory that may not be read ends the daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.stores.servers import serving

from stateward_sidecar.bucket import google
from stateward_sidecar.bucket.access import Access, s3_access
from stateward_sidecar.bucket.answers import said
from stateward_sidecar.bucket.azure import azure_access
from stateward_sidecar.bucket.base import BucketMisconfigured, BucketUnavailable
from stateward_sidecar.bucket.google import google_access
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket


@pytest.mark.parametrize(
    ("access", "name", "others"),
    [
        (s3_access, "AWS_ENDPOINT_URL", {}),
        (google_access, "GOOGLE_BASE_URL", {"GOOGLE_BEARER_TOKEN": "x"}),
        (azure_access, "AZURE_STORAGE_ENDPOINT", {"AZURE_STORAGE_ACCOUNT_NAME": "a"}),
    ],
)
@pytest.mark.parametrize("user", ["user:secret@", "secret@"])
def test_an_endpoint_with_a_password(
    access: Callable[[Mapping[str, str]], Access], name: str, others: dict[str, str], user: str
) -> None:
    """It is refused. The variable is named, and the password is not repeated."""
    with pytest.raises(BucketMisconfigured, match=name) as caught:
        access({name: f"https://{user}host", **others})
    assert "secret" not in caught.value.message


def test_what_is_said_of_a_url() -> None:
    """Neither user and password nor the query, which may hold a signature. A question stays what it is."""
    text = said(Exception("GET https://user:secret@host/a?sig=secret failed: is it there? Ask others"))
    assert text == "GET https://…@host/a?… failed: is it there? Ask others"
    assert said(Exception("path /a?sig=secret ended")) == "path /a?… ended"
    assert said(Exception("a token sv=1 of ?sv=1&sig=secret")) == "a token sv=1 of ?…"


@pytest.mark.parametrize(
    ("counts", "other", "is_allowed"), [("https://a", "http://b", False), ("http://a", "https://b", True)]
)
def test_plain_http_by_the_endpoint_that_counts(counts: str, other: str, is_allowed: bool) -> None:
    """The variable that counts less says nothing of plain http, and is checked all the same."""
    assert s3_access({"AWS_ENDPOINT_URL_S3": counts, "AWS_ENDPOINT_URL": other}).allows_http == is_allowed
    token = {"GOOGLE_BEARER_TOKEN": "x"}
    found = google_access({"GOOGLE_BASE_URL": counts, "STORAGE_EMULATOR_HOST": other, **token})
    assert found.allows_http == is_allowed
    with pytest.raises(BucketMisconfigured, match="AWS_ENDPOINT "):
        s3_access({"AWS_ENDPOINT_URL_S3": counts, "AWS_ENDPOINT": "host"})


def test_a_home_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file of gcloud counts as absent, as in an image whose user is another one than HOME's."""

    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(google.Path, "is_file", refuse)
    assert "service account of this machine" in google_access({"HOME": str(tmp_path)}).credentials


def test_an_error_of_the_settings_is_no_answer_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OSError while the variables are read is not taken for a bucket that is away."""

    def fail(environment: Mapping[str, str]) -> Access:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("stateward_sidecar.bucket.objectstore._ACCESS", {"gs": fail})
    with pytest.raises(BucketMisconfigured, match="Permission denied"):
        ObjectStoreBucket("gs://b/p", {}).get("k")


S3_KEYS = {"AWS_REGION": "r", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
AZURE_KEYS = {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "YQ=="}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("url", "name", "others"),
    [
        ("s3://b/p", "AWS_ENDPOINT_URL", S3_KEYS), ("gs://b/p", "GOOGLE_BASE_URL", {"GOOGLE_BEARER_TOKEN": "x"}),
        ("az://c/p", "AZURE_STORAGE_ENDPOINT", AZURE_KEYS),
    ],
)  # fmt: skip
def test_a_server_that_is_not_reached(url: str, name: str, others: dict[str, str]) -> None:
    """The message says at which step it ended, and which variable names the server."""
    with serving(lambda request: (200, {}, b"")) as plain:
        for endpoint, why in (
            ("http://127.0.0.1:1", "the connection was refused"), ("http://no-such-host.invalid", "no such host"),
            (plain.replace("http:", "https:"), "TLS"),
        ):  # fmt: skip
            with pytest.raises(BucketUnavailable, match=f"{why}.*check {name}") as caught:
                ObjectStoreBucket(url, {name: endpoint, **others}).create("k", b"x")
            assert not caught.value.is_unclear


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("url", "name", "value", "others"),
    [
        ("s3://b/p", "AWS_CONDITIONAL_PUT", "disabled", S3_KEYS | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}),
        ("s3://b/p", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "maybe", S3_KEYS),
        ("az://c/p", "AZURE_STORAGE_USE_EMULATOR", "maybe", AZURE_KEYS),
    ],
)
def test_a_value_that_obstore_refuses(
    url: str, name: str, value: str, others: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is named, also one that only obstore reads."""
    monkeypatch.setenv(name, value)
    with pytest.raises(BucketMisconfigured, match=name):
        ObjectStoreBucket(url, {name: value, **others}).create("k", b"x")
