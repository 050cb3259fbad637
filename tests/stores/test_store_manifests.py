"""The danger: a pod with a cloud's component does not start, because a variable is missing that nobody names."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bucket.azurite import ACCOUNT
from tests.bucket.gcs_front import Front
from tests.daemon.process import Fleet
from tests.deploy.manifests import OVERLAY, render, sidecar
from tests.stores.servers import Certificate, serving
from tests.stores.tokens import Service

from stateward import Durability

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("alone")]


def filled_in(repository: Path, tmp_path: Path, cloud: str, placeholders: dict[str, str]) -> dict[str, str]:
    """The environment that the component of a cloud gives the daemon, once its placeholders are filled in."""
    base = tmp_path / "kubernetes"
    shutil.copytree(repository / "deploy/kubernetes", base)
    for path in (base / "archive/kustomization.yaml", base / f"identity/{cloud}/kustomization.yaml"):
        text = path.read_text()
        for placeholder, value in placeholders.items():
            text = text.replace(placeholder, value)
        path.write_text(text)
    (base / "mine").mkdir()
    # `deployment` has the components `sidecar` and `archive`.
    text = OVERLAY.format(base="../deployment", components=f"../identity/{cloud}")
    (base / "mine/kustomization.yaml").write_text(text)
    return environment_of(render(base / "mine"))


def environment_of(objects: list[dict[str, Any]]) -> dict[str, str]:
    """The variables of the daemon's container: of its ConfigMap, and those of a store that stand in it."""
    container = sidecar(objects)
    maps = {item["metadata"]["name"]: item["data"] for item in objects if item["kind"] == "ConfigMap"}
    given: dict[str, str] = {}
    for source in container["envFrom"]:
        given |= maps.get(source.get("configMapRef", {}).get("name", ""), {})
    stores = {entry["name"]: entry["value"] for entry in container["env"] if not entry["name"].startswith("STATEWARD_")}
    return given | stores


def assert_starts(machines: Fleet) -> None:
    """A daemon starts on a new archive, and a save is archived."""
    client = machines.client(machines.machine("pod"))
    client.thread("job").append("log", 1, durability=Durability.ARCHIVED)


def test_a_pod_on_aks(
    repository: Path, tmp_path: Path, azurite_with_identity: str, trusted: Certificate, token: Path,
    machines_at: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With the account in its placeholder, and what the cluster adds."""
    place = {"s3://your-bucket/agents": "az://stateward/aks", "youraccount": ACCOUNT}
    environment = filled_in(repository, tmp_path, "azure", place)
    url = environment.pop("STATEWARD_ARCHIVE")
    with serving(Service().entra, trusted) as authority:
        environment |= {
            "AZURE_CLIENT_ID": "client", "AZURE_TENANT_ID": "tenant", "AZURE_FEDERATED_TOKEN_FILE": str(token),
            "AZURE_AUTHORITY_HOST": f"{authority}/", "AZURE_STORAGE_ENDPOINT": f"{azurite_with_identity}/{ACCOUNT}",
        }  # fmt: skip
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        machines = machines_at(url)
        assert_starts(machines)
        machines.close()


def test_a_pod_on_gke(
    repository: Path, tmp_path: Path, gcs_front: Front, machines_at: Callable[..., Fleet],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With nothing but the URL: the metadata server gives the tokens."""
    environment = filled_in(repository, tmp_path, "gke", {"s3://your-bucket/agents": "gs://stateward/gke"})
    url = environment.pop("STATEWARD_ARCHIVE")
    assert environment == {}
    with serving(Service().metadata) as metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.removeprefix("http://"))
        monkeypatch.setenv("GOOGLE_BASE_URL", gcs_front.url)
        monkeypatch.setenv("HOME", str(tmp_path))  # no file of gcloud
        machines = machines_at(url)
        assert_starts(machines)
        machines.close()
