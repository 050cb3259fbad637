"""The danger: a workload's token changes, as it does each hour, and the daemon goes on with the old one until it is
refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bucket.azurite import ACCOUNT
from tests.bucket.gcs_front import Front
from tests.daemon.process import eventually
from tests.stores.servers import Certificate, serving
from tests.stores.tokens import Service, federated

from stateward_sidecar.bucket.base import Bucket
from stateward_sidecar.bucket.google import google_access
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("alone")]


def rotated(bucket: Bucket, service: Service, token: Path) -> None:
    """Writes, changes the token file, and writes until the service has been shown the new token."""
    bucket.put("before", b"1")
    assert service.shown[0] == "first"
    token.write_text("second")

    def is_shown() -> bool:
        bucket.put("after", b"2")
        return service.shown[-1] == "second"

    eventually(is_shown)
    assert bucket.get("after").data == b"2"


def test_azure_workload_identity(azurite_with_identity: str, trusted: Certificate, token: Path) -> None:
    """The variables that AKS adds, with the account: the token file is read again after it changed."""
    service = Service()
    with serving(service.entra, trusted) as authority:
        environment = {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ENDPOINT": f"{azurite_with_identity}/{ACCOUNT}",
            "AZURE_CLIENT_ID": "client", "AZURE_TENANT_ID": "tenant", "AZURE_FEDERATED_TOKEN_FILE": str(token),
            "AZURE_AUTHORITY_HOST": f"{authority}/",
        }  # fmt: skip
        rotated(ObjectStoreBucket("az://stateward/identity", environment), service, token)


def test_google_workload_identity_federation(gcs_front: Front, token: Path, tmp_path: Path) -> None:
    """A file of the type external_account: its token file is read again after it changed, and the store sees it."""
    service, file = Service(), tmp_path / "external.json"
    with serving(service.google) as url:
        file.write_text(json.dumps(federated(url, token)))
        environment = {"GOOGLE_BASE_URL": gcs_front.url, "GOOGLE_APPLICATION_CREDENTIALS": str(file)}
        rotated(ObjectStoreBucket("gs://stateward/identity", environment), service, token)
    assert {"google-first", "google-second"} <= gcs_front.tokens


def test_google_impersonation(gcs_front: Front, token: Path, tmp_path: Path) -> None:
    """The same with a service account that the workload may be: the store sees the account's token."""
    service, file = Service(), tmp_path / "external.json"
    with serving(service.google) as url:
        content = federated(url, token)
        account = "/v1/projects/-/serviceAccounts/a@p.iam.gserviceaccount.com:generateAccessToken"
        file.write_text(json.dumps(content | {"service_account_impersonation_url": f"{url}{account}"}))
        environment = {"GOOGLE_BASE_URL": gcs_front.url, "GOOGLE_APPLICATION_CREDENTIALS": str(file)}
        rotated(ObjectStoreBucket("gs://stateward/impersonated", environment), service, token)
    assert {"impersonated-first", "impersonated-second"} <= gcs_front.tokens


def test_impersonated_credentials_are_read(tmp_path: Path) -> None:
    """The file that `gcloud auth application-default login --impersonate-service-account` keeps: only Google itself can
    answer what is then asked."""
    file = tmp_path / "impersonated.json"
    account = "projects/-/serviceAccounts/a@p.iam.gserviceaccount.com:generateAccessToken"
    file.write_text(json.dumps({
        "type": "impersonated_service_account",
        "service_account_impersonation_url": f"https://iamcredentials.googleapis.com/v1/{account}",
        "source_credentials": {
            "type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c",
        },
    }))  # fmt: skip
    assert google_access({"GOOGLE_APPLICATION_CREDENTIALS": str(file)}).provider is not None


def test_google_metadata_server(gcs_front: Front, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any variable of credentials, as on GKE: the token is asked for again before it ends."""
    service = Service()
    with serving(service.metadata) as url:
        monkeypatch.setenv("GCE_METADATA_HOST", url.removeprefix("http://"))
        bucket = ObjectStoreBucket("gs://stateward/metadata", {"GOOGLE_BASE_URL": gcs_front.url, "HOME": str(tmp_path)})
        bucket.put("k", b"1")

        def is_renewed() -> bool:
            bucket.put("k", b"1")
            return "metadata-1" in gcs_front.tokens

        eventually(is_renewed)


def test_aws_web_identity(weed_url: str, trusted: Certificate, token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that EKS adds: the token file is read again after it changed."""
    service = Service()
    with serving(service.aws, trusted) as url:
        identity = {
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ENDPOINT_URL_STS": url, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": weed_url,
        }  # fmt: skip
        for name, value in identity.items():
            monkeypatch.setenv(name, value)
        rotated(ObjectStoreBucket("s3://stateward/identity", identity), service, token)
