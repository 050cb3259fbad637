"""The danger: an outage of a token service is called a wrong credential, and a wrong credential an outage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bucket.azurite import ACCOUNT
from tests.stores.servers import Reply, Request, serving
from tests.stores.tokens import federated

from stateward_sidecar.bucket.access import s3_access
from stateward_sidecar.bucket.base import BucketDenied, BucketError, BucketUnavailable
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (503, b'{"error":{"code":503,"status":"UNAVAILABLE"}}', BucketUnavailable),
        (503, b"upstream connect error", BucketUnavailable),
        (500, b'{"error":"server_error"}', BucketUnavailable),
        (429, b'{"error":"temporarily_unavailable","error_description":"slow"}', BucketUnavailable),
        (400, b'{"error":"invalid_grant","error_description":"no such provider"}', BucketDenied),
        (400, b'{"error":"invalid_target"}', BucketDenied),
        (401, b'{"error":"invalid_client"}', BucketDenied),
        (403, b'{"error":"access_denied"}', BucketDenied),
        (403, b'{"error":{"code":403,"status":"PERMISSION_DENIED"}}', BucketDenied),
    ],
)
def test_google_federation(
    status: int, body: bytes, expected: type[BucketError], token: Path, tmp_path: Path
) -> None:
    """Only an answer that names a fault of the credentials is denied."""
    file = tmp_path / "external.json"
    with serving(lambda request: (status, {}, body)) as url:
        file.write_text(json.dumps(federated(url, token)))
        bucket = ObjectStoreBucket("gs://b/p", {"GOOGLE_APPLICATION_CREDENTIALS": str(file)})
        with pytest.raises(expected) as caught:
            bucket.create("k", b"x")
    assert type(caught.value) is expected
    assert not caught.value.is_unclear
    assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.message


def test_google_token_file_is_missing(token: Path, tmp_path: Path) -> None:
    """Waiting does not bring it: denied."""
    file = tmp_path / "external.json"
    file.write_text(json.dumps(federated("http://127.0.0.1:1", token)))
    token.unlink()
    with pytest.raises(BucketDenied, match="GOOGLE_APPLICATION_CREDENTIALS"):
        ObjectStoreBucket("gs://b/p", {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}).create("k", b"x")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (404, BucketUnavailable), (408, BucketUnavailable), (410, BucketUnavailable), (429, BucketUnavailable),
        (400, BucketDenied), (403, BucketDenied),
    ],
)  # fmt: skip
def test_azure_metadata_service(status: int, expected: type[BucketError], monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers 404 and 410 while it is updated, so these pass."""
    with serving(lambda request: (status, {}, b"")) as url:
        environment = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_MSI_ENDPOINT": f"{url}/metadata/identity/token"}
        for name, value in environment.items():  # obstore itself reads AZURE_MSI_ENDPOINT
            monkeypatch.setenv(name, value)
        with pytest.raises(expected) as caught:
            ObjectStoreBucket("az://c/p", environment).create("k", b"x")
    assert "managed identity" in caught.value.message
    if expected is BucketUnavailable:  # or a 429 would be taken for the store's
        assert caught.value.metadata.get("status", "0") == "0"


def test_the_agent_of_a_pod(weed_url: str, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EKS Pod Identity and ECS: keys come from the address that the variables name, with the token of the file."""
    shown: list[str] = []

    def answer(request: Request) -> Reply:
        shown.append(request.headers["Authorization"])
        keys = {"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "c", "Expiration": "2099-01-01T00:00:00Z"}
        return 200, {"Content-Type": "application/json"}, json.dumps(keys).encode()

    with serving(answer) as url:
        environment = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/v1", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
            "AWS_ENDPOINT_URL": weed_url, "AWS_REGION": "us-east-1",
        }  # fmt: skip
        for name, value in environment.items():  # obstore itself reads them
            monkeypatch.setenv(name, value)
        ObjectStoreBucket("s3://stateward/pod", environment).put("k", b"x")
    assert shown == ["first"]
    by_task = s3_access({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2"})
    assert "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI" in by_task.credentials


@pytest.mark.parametrize("method", ["create", "get"])
@pytest.mark.parametrize(
    ("status", "expected"),
    [(403, BucketDenied), (404, BucketDenied), (429, BucketUnavailable), (503, BucketUnavailable)],
)
def test_the_agent_of_a_pod_refuses(
    status: int, expected: type[BucketError], method: str, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is not the store's: no fault of the bucket, and no write whose outcome is unknown."""
    with serving(lambda request: (status, {}, b"")) as url:
        environment = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/v1?a=b", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
            "AWS_REGION": "us-east-1",
        }  # fmt: skip
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        bucket = ObjectStoreBucket("s3://b/p", environment)
        with pytest.raises(expected, match="AWS_CONTAINER_CREDENTIALS_FULL_URI") as caught:
            bucket.get("k") if method == "get" else bucket.create("k", b"x")
    assert not caught.value.is_unclear
