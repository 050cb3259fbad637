"""The danger: a wrong variable or a missing right is called a fault of the bucket, and somebody takes another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.bucket.azurite import ACCOUNT, azurite_environment
from tests.bucket.conftest import STORES
from tests.bucket.gcs import gcs_environment
from tests.bucket.gcs_front import Front
from tests.bucket.proxy import running_proxy
from tests.bucket.weed import s3_environment
from tests.stores.servers import Reply, Request, serving
from tests.stores.tokens import federated

WITHIN_S = 5.0  # more than the same command takes without an archive, because a machine may be busy
WRONG_ADVICE = ("conditional writes", "another bucket")

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("alone")]


@dataclass(frozen=True)
class Found:
    """What `--check` says of the bucket."""

    code: int
    verdict: str
    kind: str
    text: str
    took_s: float


def check(archive: str, environment: Mapping[str, str], directory: Path) -> Found:
    """Runs `stateward-sidecar --check` with this archive, and subtracts the time that it takes without one."""
    base_s, _ = _run(directory, [], environment)
    took_s, findings = _run(directory, ["--archive", archive], environment)
    (found,) = [each for each in findings if each["check"] == "bucket"]
    text = f"{found['summary']} {found.get('advice', '')}"
    code = int(any(each["verdict"] == "VERDICT_FAILED" for each in findings))
    kind = found.get("facts", {}).get("kind", "")
    return Found(code, found["verdict"].removeprefix("VERDICT_"), kind, text, took_s - base_s)


def _run(directory: Path, flags: list[str], environment: Mapping[str, str]) -> tuple[float, list[dict[str, Any]]]:
    command = [
        sys.executable, "-m", "stateward_sidecar", "--check", "--data-dir", str(directory / "data"), "--key-file",
        str(directory / "key"), "--listen", f"unix://{directory}/s", *flags,
    ]  # fmt: skip
    began = time.monotonic()
    given = {**os.environ, **environment}
    done = subprocess.run(command, check=False, env=given, capture_output=True, text=True, timeout=120)
    took_s = time.monotonic() - began
    assert done.returncode in (0, 1), done.stderr
    return took_s, [json.loads(line) for line in done.stdout.splitlines()]


def assert_explained(found: Found, kind: str, *words: str) -> None:
    """It failed as a fault of this kind, said what to change, gave no wrong advice, and was quick."""
    assert (found.code, found.verdict, found.kind) == (1, "FAILED", kind), found
    assert not [wrong for wrong in WRONG_ADVICE if wrong in found.text], found
    for word in (*words, *([] if kind != "BucketMisconfigured" else ["Correct the variable"])):
        assert word in found.text, found
    assert found.took_s < WITHIN_S, found


def answering(status: int, body: bytes) -> AbstractContextManager[str]:
    """A server that answers everything like this: an authority, a metadata server, a gateway."""
    return serving(lambda request: (status, {}, body))


ENTRA_SAYS = b'{"error": "invalid_request", "error_description": "AADSTS700213: No matching federated identity record"}'


def test_azure_without_an_account(tmp_path: Path, token: Path) -> None:
    """(a) The variable is named; what a cluster adds is not enough."""
    identity = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": str(token)}
    found = check("az://container/p", identity, tmp_path)
    assert_explained(found, "BucketMisconfigured", "AZURE_STORAGE_ACCOUNT_NAME")


def test_an_authority_that_refuses(tmp_path: Path, token: Path) -> None:
    """(b) It answers 400, as on AKS without a federated credential: the credentials are wrong, and not the bucket."""
    with answering(400, ENTRA_SAYS) as url:
        identity = {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t",
            "AZURE_FEDERATED_TOKEN_FILE": str(token), "AZURE_AUTHORITY_HOST": url,
        }  # fmt: skip
        found = check("az://container/p", identity, tmp_path)
    assert_explained(found, "BucketDenied", "AZURE_FEDERATED_TOKEN_FILE", "federated credential", "AADSTS700213")


def test_credentials_that_google_auth_reads(tmp_path: Path, token: Path) -> None:
    """(c) A file of the type external_account works with google-auth: here its token service refuses."""
    with answering(400, b'{"error": "invalid_grant", "error_description": "no such provider"}') as url:
        found = check("gs://bucket/p", external_account(tmp_path, token, url), tmp_path)
    assert_explained(found, "BucketDenied", "GOOGLE_APPLICATION_CREDENTIALS", "no such provider")


def test_credentials_without_google_auth(tmp_path: Path, token: Path) -> None:
    """(c) Without google-auth the file is refused, with two ways round."""
    (tmp_path / "google_auth_missing").mkdir()
    hides = "import sys; sys.modules['google.auth'] = None"
    (tmp_path / "google_auth_missing" / "sitecustomize.py").write_text(hides)
    path = os.pathsep.join([str(tmp_path / "google_auth_missing"), *filter(None, sys.path)])
    environment = external_account(tmp_path, token, "http://127.0.0.1:1") | {"PYTHONPATH": path}
    found = check("gs://bucket/p", environment, tmp_path)
    ways = "[google]", "key of a service account"
    assert_explained(found, "BucketMisconfigured", "GOOGLE_APPLICATION_CREDENTIALS", *ways)


def external_account(directory: Path, token: Path, url: str) -> dict[str, str]:
    """What points at a credential file of workload identity federation."""
    path = directory / "external.json"
    path.write_text(json.dumps(federated(url, token)))
    return {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}


def test_plain_http(kind: str, archive: str, tmp_path: Path) -> None:
    """(d) An endpoint that says http:// and answers is fine, in each cloud."""
    found = check(archive, {}, tmp_path)
    assert (found.code, found.verdict) == (0, "OK"), found


# Azure's answer to a Blob Batch of one delete, without the right to delete.
DELETE_REFUSED = (
    b"--b\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\nHTTP/1.1 403 This request is not authorized to "
    b"perform this operation using this permission.\r\nx-ms-error-code: AuthorizationPermissionMismatch\r\n"
    b"Content-Length: 0\r\n\r\n\r\n--b--\r\n"
)


def test_a_role_that_cannot_delete(azurite_url: str, gcs_front: Front, tmp_path: Path) -> None:
    """(e) Azure's part of a batch and Google's answer say 403: a right is missing."""
    with running_proxy(azurite_url) as proxy:
        proxy.replies["POST"] = (202, {"Content-Type": "multipart/mixed; boundary=b"}, DELETE_REFUSED)
        found = check("az://stateward/no-delete", azurite_environment(proxy.url), tmp_path)
    assert_explained(found, "BucketDenied", "deletes", "AZURE_STORAGE_ACCOUNT_KEY")
    gcs_front.refuses_deletes = True
    try:
        found = check("gs://stateward/no-delete", gcs_environment(gcs_front.url), tmp_path)
    finally:
        gcs_front.refuses_deletes = False
    assert_explained(found, "BucketDenied", "deletes", "GOOGLE_BEARER_TOKEN")


S3_KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "account"}


@pytest.mark.parametrize(
    ("archive_url", "variables", "named"),
    [
        ("s3://b/p", {"AWS_ACCESS_KEY_ID": "a"}, "AWS_SECRET_ACCESS_KEY"),
        ("s3://b/p", {"AWS_ENDPOINT_URL": "minio:9000", **S3_KEYS}, "AWS_ENDPOINT_URL"),
        ("az://c/p", {**AZURE, "AZURE_STORAGE_ACCOUNT_KEY": "no!base64"}, "AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://c/p", {**AZURE, "AZURE_STORAGE_KEY": "no!base64"}, "AZURE_STORAGE_KEY"),
        ("az://c/p", {**AZURE, "AZURE_STORAGE_SAS_TOKEN": "nonsense"}, "AZURE_STORAGE_SAS_TOKEN"),
        ("az://c/p", {"AZURE_STORAGE_CONNECTION_STRING": "nonsense"}, "AZURE_STORAGE_CONNECTION_STRING"),
        ("az://c/p", {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;AccountKey=!"}, "AZURE_STORAGE_CONNECTION"),
        ("az://c/p", {**AZURE, "AZURE_CLIENT_ID": "c", "AZURE_FEDERATED_TOKEN_FILE": "/t"}, "AZURE_TENANT_ID"),
        ("az://c/p", {**AZURE, "AZURE_STORAGE_ENDPOINT": "host:1"}, "AZURE_STORAGE_ENDPOINT"),
        ("gs://b/p", {"GOOGLE_APPLICATION_CREDENTIALS": "/no/such/file"}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://b/p", {"GOOGLE_SERVICE_ACCOUNT_KEY": "no json"}, "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ("gs://b/p", {"GOOGLE_SERVICE_ACCOUNT": "/no/such/file"}, "GOOGLE_SERVICE_ACCOUNT"),
        ("gs://b/p", {"GOOGLE_BASE_URL": "storage", "GOOGLE_BEARER_TOKEN": "x"}, "GOOGLE_BASE_URL"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work(archive_url: str, variables: dict[str, str], named: str, tmp_path: Path) -> None:
    """Each names the variable, before anything is asked."""
    assert_explained(check(archive_url, variables, tmp_path), "BucketMisconfigured", named)


@pytest.mark.parametrize(
    ("archive_url", "metadata", "named"),
    [
        ("s3://b/p", {"AWS_METADATA_ENDPOINT": "{url}", "AWS_REGION": "r"}, "AWS_ACCESS_KEY_ID"),
        ("gs://b/p", {"GCE_METADATA_HOST": "{host}", "GCE_METADATA_IP": "{host}"}, "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://c/p", {**AZURE, "AZURE_MSI_ENDPOINT": "{url}/token"}, "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
@pytest.mark.parametrize("answers", [True, False])
def test_no_credentials_at_all(
    archive_url: str, metadata: dict[str, str], named: str, answers: bool, tmp_path: Path
) -> None:
    """The metadata server knows no role, or there is none: the message says which variables to set."""
    with answering(404, b"") as url:
        asked = url if answers else "http://127.0.0.1:1"
        place = {"url": asked, "host": asked.removeprefix("http://")}
        variables = {"HOME": str(tmp_path)} | {name: text.format(**place) for name, text in metadata.items()}
        found = check(archive_url, variables, tmp_path)
    passes = not answers or archive_url.startswith("az:")  # Azure's answers 404 while it is updated
    assert_explained(found, "BucketUnavailable" if passes else "BucketDenied", named)


def test_a_region_that_is_wrong(tmp_path: Path) -> None:
    """S3 redirects to the bucket's region: AWS_REGION is named."""
    body = b"<Error><Code>PermanentRedirect</Code></Error>"
    with answering(301, body) as url:
        found = check("s3://b/p", s3_environment(url), tmp_path)
    assert_explained(found, "BucketMisconfigured", "AWS_REGION")


def test_a_bucket_that_is_missing(kind: str, archive: str, tmp_path: Path) -> None:
    """The URL is to be checked, in each cloud. SeaweedFS denies what it does not have."""
    scheme = STORES[kind][0]
    found = check(f"{scheme}://no-such-bucket/p", {}, tmp_path)
    if kind == "weed":
        assert_explained(found, "BucketDenied", "no-such-bucket")
    else:
        assert_explained(found, "BucketRefused", "Check the archive's URL")


def test_a_store_that_breaks_conditions(tmp_path: Path) -> None:
    """A gateway that refuses conditional writes and takes others is unfit. Only then the advice is another bucket."""
    with serving(without_conditions) as url:
        found = check("s3://b/p", s3_environment(url), tmp_path)
    assert (found.code, found.kind) == (1, "BucketUnfit"), found
    assert "conditional writes" in found.text
    assert "another bucket" in found.text


def without_conditions(request: Request) -> Reply:
    """A gateway in front of S3 that answers 501 to each condition."""
    return 501 if "If-None-Match" in request.headers or "If-Match" in request.headers else 200, {"ETag": '"e"'}, b""
