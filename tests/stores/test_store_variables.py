"""The danger: a page names a variable that the daemon ignores, or a name that a cloud's own tools use does nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.bucket.azurite import ACCOUNT, KEY
from tests.bucket.conftest import STORES
from tests.bucket.gcs_front import Front

from stateward_sidecar.bucket.azure import azure_access
from stateward_sidecar.bucket.base import BucketUnavailable
from stateward_sidecar.bucket.objectstore import ObjectStoreBucket
from stateward_sidecar.bucket.probe import probe_bucket

pytestmark = pytest.mark.usefixtures("alone")

AZURE_WAYS: dict[str, Callable[[str], dict[str, str]]] = {
    "obstore's names": lambda url: {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"{url}/{ACCOUNT}",
    },
    "the names of Azure's command": lambda url: {
        "AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": KEY,
        "AZURE_STORAGE_SERVICE_ENDPOINT": f"{url}/{ACCOUNT}",
    },
    "a connection string": lambda url: {
        "AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint={url}/{ACCOUNT};",
    },
    "a connection string and another key": lambda url: {
        "AZURE_STORAGE_CONNECTION_STRING": f"AccountName={ACCOUNT};AccountKey=d3Jvbmc=;BlobEndpoint={url}/{ACCOUNT}",
        "AZURE_STORAGE_KEY": KEY,
    },
    "a connection string without the account's name": lambda url: {
        "AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={url}/{ACCOUNT};AccountKey={KEY}",
    },
    "a connection string of the emulator": lambda url: {
        "AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true", "AZURITE_BLOB_STORAGE_URL": url,
    },
    "the emulator": lambda url: {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": url},
}  # fmt: skip
GOOGLE_WAYS: dict[str, Callable[[str, Path], dict[str, str]]] = {
    "a token": lambda url, key: {"GOOGLE_BASE_URL": url, "GOOGLE_BEARER_TOKEN": "any"},
    "the emulator": lambda url, key: {"STORAGE_EMULATOR_HOST": url, "GOOGLE_BEARER_TOKEN": "any"},
    "a credential file": lambda url, key: {"GOOGLE_BASE_URL": url, "GOOGLE_APPLICATION_CREDENTIALS": str(key)},
    "a service account's file": lambda url, key: {"GOOGLE_BASE_URL": url, "GOOGLE_SERVICE_ACCOUNT": str(key)},
    "a service account's key": lambda url, key: {"GOOGLE_BASE_URL": url, "GOOGLE_SERVICE_ACCOUNT_KEY": key.read_text()},
}
S3_WAYS: dict[str, dict[str, str]] = {
    "one endpoint for all": {"AWS_ENDPOINT_URL": "{url}", "AWS_REGION": "us-east-1"},
    "an endpoint of S3": {"AWS_ENDPOINT_URL_S3": "{url}", "AWS_DEFAULT_REGION": "us-east-1", "AWS_SESSION_TOKEN": "c"},
    "obstore's name": {"AWS_ENDPOINT": "{url}", "AWS_REGION": "us-east-1"},
}
S3_KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"}


def shared_access_signature() -> str:
    """An account's signature with all rights of a container and its blobs, for an hour."""
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    asked = {"sp": "racwdl", "ss": "b", "srt": "sco", "se": end, "sv": "2021-12-02"}
    text = f"{ACCOUNT}\n{asked['sp']}\nb\nsco\n\n{end}\n\n\n{asked['sv']}\n\n"
    signed = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    return urlencode({**asked, "sig": base64.b64encode(signed).decode()})


@pytest.fixture(scope="module")
def account_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key of a service account. obstore signs its own tokens with it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path_factory.mktemp("google") / "key.json"
    content = {"type": "service_account", "client_email": "a@p.iam.gserviceaccount.com", "private_key_id": "1"}
    path.write_text(json.dumps(content | {"private_key": key.decode()}))
    return path


def assert_works(url: str, environment: dict[str, str]) -> None:
    bucket = ObjectStoreBucket(f"{url}/{secrets.token_hex(6)}", environment)
    probe_bucket(bucket)
    bucket.put("k", b"x")
    assert [key for key, _ in bucket.list("")] == ["k"]
    bucket.delete("k")


@pytest.mark.parametrize("way", AZURE_WAYS)
def test_ways_to_azure(way: str, azurite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each leads to the store."""
    environment = AZURE_WAYS[way](azurite_url)
    for name, value in environment.items():  # obstore itself reads AZURITE_BLOB_STORAGE_URL
        monkeypatch.setenv(name, value)
    assert_works("az://stateward", environment)


def test_connection_strings_of_accounts() -> None:
    """The parts that lead to a real account: its name, and the endpoint of another cloud of Azure."""
    string = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=a2V5;EndpointSuffix="
    public = azure_access({"AZURE_STORAGE_CONNECTION_STRING": f"{string}core.windows.net"})
    assert public.config == {"account_name": "a", "account_key": "a2V5"}
    china = azure_access({"AZURE_STORAGE_CONNECTION_STRING": f"{string}core.chinacloudapi.cn"})
    assert (china.config["endpoint"], china.allows_http) == ("https://a.blob.core.chinacloudapi.cn", False)
    signed = "BlobEndpoint=https://b.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=c%3D"
    found = azure_access({"AZURE_STORAGE_CONNECTION_STRING": signed})
    assert (found.config["account_name"], found.config["sas_key"]) == ("b", "sv=1&sig=c%3D")


def test_a_shared_access_signature(azurite_url: str) -> None:
    """It writes, reads and lists. Azurite knows no right for a batch, so what it says of a delete is its own fault."""
    bucket = ObjectStoreBucket("az://stateward/signature", {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_SAS_TOKEN": shared_access_signature(),
        "AZURE_STORAGE_ENDPOINT": f"{azurite_url}/{ACCOUNT}",
    })  # fmt: skip
    etag = bucket.replace("k", b"two", bucket.create("k", b"one"))
    assert (bucket.get("k").data, bucket.get("k").etag) == (b"two", etag)
    assert [key for key, _ in bucket.list("")] == ["k"]
    with pytest.raises(BucketUnavailable) as caught:
        bucket.delete("k")
    assert "no token" not in caught.value.message


@pytest.mark.parametrize("way", GOOGLE_WAYS)
def test_ways_to_google(way: str, gcs_front: Front, account_file: Path) -> None:
    """Each leads to the store, and the store sees the token that it stands for."""
    gcs_front.tokens.clear()
    environment = GOOGLE_WAYS[way](gcs_front.url, account_file)
    assert_works("gs://stateward", environment)
    (token,) = gcs_front.tokens
    assert (token == "any") == ("GOOGLE_BEARER_TOKEN" in environment)


def test_the_file_of_gcloud(gcs_front: Front, account_file: Path, tmp_path: Path) -> None:
    """The file that `gcloud auth application-default login` keeps is found in the home directory."""
    place = tmp_path / ".config/gcloud/application_default_credentials.json"
    place.parent.mkdir(parents=True)
    place.write_text(account_file.read_text())
    assert_works("gs://stateward", {"GOOGLE_BASE_URL": gcs_front.url, "HOME": str(tmp_path)})


@pytest.mark.parametrize("way", S3_WAYS)
def test_ways_to_s3(way: str, weed_url: str) -> None:
    """Each leads to the store."""
    assert_works("s3://stateward", S3_KEYS | {name: text.format(url=weed_url) for name, text in S3_WAYS[way].items()})


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "stores.md").read_text()


def test_variables_of_the_page(page: str) -> None:
    """Each variable that the page names is used by a test of this folder. One is named because it is not read."""
    named = set(re.findall(r"\b(?:AWS|AZURE|AZURITE|GOOGLE|GCE|STORAGE_EMULATOR)_[A-Z_0-9]+", page))
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    assert len(named) > 20
    assert {name for name in named if f'"{name}"' not in tests} == {"AWS_" + "PROFILE"}


def test_rules_of_the_page(page: str) -> None:
    """Both rules end unfinished uploads, in the clouds' own words."""
    aws, google = [json.loads(text) for text in re.findall(r"```json\n\s*(.*?)\n", page)]
    assert aws["Rules"][0]["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] == 1
    assert google["rule"][0]["action"]["type"] == "AbortIncompleteMultipartUpload"


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "kind"), [("s3", "weed"), ("gs", "gcs"), ("az", "azurite")])
def test_examples_of_the_page(
    scheme: str, kind: str, page: str, request: pytest.FixtureRequest, account_file: Path, tmp_path: Path
) -> None:
    """Each example works as written, with a server's address and the names that it knows."""
    (text,) = [each for each in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if f" {scheme}://" in each]
    exported, command = text.strip().splitlines()
    variables = dict(each.split("=", 1) for each in exported.split()[1:])
    url: str = request.getfixturevalue(f"{kind}_url")
    given = STORES[kind][1](url)
    real = {name: given.get(name, value) for name, value in variables.items()}
    real |= {name: value for name, value in given.items() if "ENDPOINT" in name or name.endswith("BASE_URL")}
    if "GOOGLE_APPLICATION_CREDENTIALS" in real:
        real["GOOGLE_APPLICATION_CREDENTIALS"] = str(account_file)
    program, *arguments = command.split()
    assert program == "stateward-sidecar"
    arguments[-1] = re.sub(r"my-\w+", "stateward", arguments[-1])
    places = ["--data-dir", tmp_path / "data", "--key-file", tmp_path / "key", "--listen", f"unix://{tmp_path}/s"]
    whole = [sys.executable, "-m", "stateward_sidecar", *arguments, *places]
    done = subprocess.run(whole, env={**os.environ, **real}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert '"check": "bucket", "verdict": "VERDICT_OK"' in done.stdout
