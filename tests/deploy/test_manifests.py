"""The danger: a manifest that the API server refuses, that starts the daemon wrongly, or that opens too much."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.manifests import OVERLAY, WORKLOADS, pod, render, sidecar, workload

from stateward_sidecar.settings import NAMES, load_settings, make_parser

# The first release with native sidecars switched on, and a recent one.
RELEASES = ("1.29", "1.33")
IDENTITIES = {"aws": "eks.amazonaws.com/role-arn", "gke": "iam.gke.io/gcp-service-account",
              "azure": "azure.workload.identity/client-id"}  # fmt: skip


@pytest.fixture(scope="module", params=WORKLOADS)
def objects(request: pytest.FixtureRequest, repository: Path) -> list[dict[str, Any]]:
    return render(repository / "deploy/kubernetes" / request.param)


def check_schema(objects: list[dict[str, Any]]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for item in objects:
        for release in RELEASES:
            validate.validate(item, release, strict=True)


def test_the_api_server_takes_them(objects: list[dict[str, Any]]) -> None:
    """Each object fits the schemas of the oldest and of a recent release, without a field that they do not know."""
    check_schema(objects)
    assert {"ServiceAccount", "NetworkPolicy"} < {item["kind"] for item in objects}


def test_a_field_that_does_not_exist_is_found(objects: list[dict[str, Any]]) -> None:
    """The check is able to fail: a misspelt field is refused."""
    item = workload(objects)
    pod([item])["initContainers"][0]["restartPolcy"] = "Always"
    with pytest.raises(Exception, match="restartPolcy"):
        check_schema([item])
    del pod([item])["initContainers"][0]["restartPolcy"]


def test_the_daemon_takes_its_settings(objects: list[dict[str, Any]], repository: Path) -> None:
    """Every variable is a setting with a valid value, and every argument is a flag of the daemon."""
    container = sidecar(objects)
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    given |= dict(re.findall(r"\b(STATEWARD_\w+)=(\S+)", (repository / "Dockerfile").read_text()))
    for item in objects:
        if item["kind"] == "ConfigMap":
            given |= item["data"]
    assert {name.removeprefix("STATEWARD_").lower() for name in given} <= set(NAMES)
    settings, _ = load_settings(container.get("args", []), given)
    assert settings.grace_s < pod(objects)["terminationGracePeriodSeconds"]
    for probe, asked in (("startupProbe", "liveness"), ("readinessProbe", "readiness")):
        program, *arguments = container[probe]["exec"]["command"]
        assert program == "stateward-sidecar"
        assert make_parser().parse_args(arguments).health == asked
        assert container[probe]["timeoutSeconds"] > 3  # the probe's own patience


def test_paths_lie_on_volumes(objects: list[dict[str, Any]]) -> None:
    """Every path that the daemon writes to is a mount of a volume that exists; the root stays read-only."""
    names = {volume["name"] for volume in pod(objects)["volumes"]}
    names |= {claim["metadata"]["name"] for claim in workload(objects)["spec"].get("volumeClaimTemplates", ())}
    mounts = {mount["mountPath"]: mount for mount in sidecar(objects)["volumeMounts"]}
    assert set(mounts) == {"/var/lib/stateward", "/run/stateward", "/etc/stateward", "/tmp"}
    assert mounts["/etc/stateward"]["readOnly"]
    for container in (sidecar(objects), *pod(objects)["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= names


def test_nothing_has_more_rights_than_it_needs(objects: list[dict[str, Any]]) -> None:
    """No root, no capability, no writable root, no token of the API server, no open port; a key that is a Secret."""
    spec = pod(objects)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    own = sidecar(objects)["securityContext"]  # also in a pod that says nothing
    assert own["runAsNonRoot"]
    assert own["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["initContainers"], *spec["containers"]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "ports" not in container
    (key,) = [volume for volume in spec["volumes"] if volume["name"] == "stateward-key"]
    assert key["secret"]["secretName"] == "stateward-key"
    (policy,) = [item for item in objects if item["kind"] == "NetworkPolicy"]
    assert "ingress" not in policy["spec"]  # nobody is let in
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= (
        workload(objects)["spec"]["template"]["metadata"]["labels"].items()
    )


def test_a_pod_that_loses_its_disk_has_an_archive(objects: list[dict[str, Any]]) -> None:
    """An emptyDir for data comes with object storage; a volume that outlives the pod is for one pod alone."""
    (data,) = [volume for volume in pod(objects)["volumes"] if volume["name"] == "stateward-data"]
    assert "emptyDir" in data
    claims = workload(objects)["spec"].get("volumeClaimTemplates")
    if claims:  # a claim of the same name takes the place of the volume
        (claim,) = claims
        assert claim["metadata"]["name"] == "stateward-data"
        assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    else:
        sources = sidecar(objects)["envFrom"]
        assert any(entry.get("configMapRef", {}).get("name", "").startswith("stateward-archive") for entry in sources)


@pytest.mark.parametrize("cloud", IDENTITIES)
def test_workload_identity(repository: Path, tmp_path: Path, cloud: str) -> None:
    """An overlay with the component of a cloud gives the service account its annotation, and fits the schemas."""
    base = tmp_path / "kubernetes"
    shutil.copytree(repository / "deploy/kubernetes", base)
    overlay = base / "overlay"
    overlay.mkdir()
    components = f"../sidecar, ../archive, ../identity/{cloud}"
    (base / "deployment/kustomization.yaml").unlink()
    text = OVERLAY.format(base="../plain", components=components)
    (base / "plain").mkdir()
    shutil.copy(base / "deployment/agent.yaml", base / "plain")
    (base / "plain/kustomization.yaml").write_text("kind: Kustomization\nresources: [agent.yaml]\n")
    (overlay / "kustomization.yaml").write_text(text)
    found = render(overlay)
    check_schema(found)
    (account,) = [item for item in found if item["kind"] == "ServiceAccount"]
    assert IDENTITIES[cloud] in account["metadata"]["annotations"]
    if cloud == "azure":
        labels = workload(found)["spec"]["template"]["metadata"]["labels"]
        assert labels["azure.workload.identity/use"] == "true"


def test_a_token_comes_from_a_secret(repository: Path, tmp_path: Path) -> None:
    """With the component, the daemon reads its tokens where the Secret is mounted; the key stays where it was."""
    base = tmp_path / "kubernetes"
    shutil.copytree(repository / "deploy/kubernetes", base)
    (base / "mine").mkdir()
    (base / "mine/kustomization.yaml").write_text(OVERLAY.format(base="../job", components="../token"))
    found = render(base / "mine")
    check_schema(found)
    container = sidecar(found)
    settings, _ = load_settings([], {entry["name"]: entry["value"] for entry in container["env"]})
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert settings.token_file == Path(mounts["stateward-token"]["mountPath"], "tokens")
    assert mounts["stateward-token"]["readOnly"]
    assert settings.key_file.parent == Path(mounts["stateward-key"]["mountPath"])
    (volume,) = [volume for volume in pod(found)["volumes"] if volume["name"] == "stateward-token"]
    assert volume["secret"]["secretName"] == "stateward-token"


def test_the_overlay_of_the_page(repository: Path, tmp_path: Path) -> None:
    """The overlay of deploy/README.md renders as written, with an agent that has no sidecar of its own yet."""
    base = tmp_path / "kubernetes"
    shutil.copytree(repository / "deploy/kubernetes", base)
    (text,) = re.findall(r"```yaml\n(.*?)```", (repository / "deploy/README.md").read_text(), re.DOTALL)
    (base / "mine").mkdir()
    (base / "mine/kustomization.yaml").write_text(text)
    shutil.copy(base / "job/agent.yaml", base / "mine/your-agent.yaml")
    found = render(base / "mine")
    check_schema(found)
    (bucket,) = [item["data"]["STATEWARD_ARCHIVE"] for item in found if item["kind"] == "ConfigMap"]
    assert bucket == "s3://my-bucket/agents"
    assert sidecar(found)["restartPolicy"] == "Always"


STRANGER = """
apiVersion: apps/v1
kind: Deployment
metadata: { name: web-agent, labels: { stateward: sidecar } }
spec:
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      serviceAccountName: my-own
      automountServiceAccountToken: true
      terminationGracePeriodSeconds: 600
      securityContext: { runAsUser: 1000, supplementalGroups: [7] }
      containers: [{ name: web, image: web, volumeMounts: [{ name: data, mountPath: /data }] }]
      volumes: [{ name: data, persistentVolumeClaim: { claimName: mine } }]
"""


def test_a_pod_of_somebody_else_stays_as_it_is(repository: Path, tmp_path: Path) -> None:
    """The overlay of the page leaves account, users, grace and volumes of a pod alone; every mount has a volume."""
    base = tmp_path / "kubernetes"
    shutil.copytree(repository / "deploy/kubernetes", base)
    (text,) = re.findall(r"```yaml\n(.*?)```", (repository / "deploy/README.md").read_text(), re.DOTALL)
    (base / "mine").mkdir()
    (base / "mine/kustomization.yaml").write_text(text)
    (base / "mine/your-agent.yaml").write_text(STRANGER)
    found = render(base / "mine")
    check_schema(found)
    before, spec = yaml.safe_load(STRANGER)["spec"]["template"]["spec"], pod(found)
    for name in ("serviceAccountName", "automountServiceAccountToken", "terminationGracePeriodSeconds", "containers"):
        assert spec[name] == before[name], name
    assert spec["securityContext"].items() >= before["securityContext"].items()
    assert spec["securityContext"].keys() - before["securityContext"] == {"fsGroup", "fsGroupChangePolicy"}
    assert before["volumes"][0] in spec["volumes"]
    names = {volume["name"] for volume in spec["volumes"]}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= names
