"""The danger: a stranger follows deploy/README.md, and has a pod that does not start."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy import programs
from tests.deploy.manifests import paths_of, pod, render, render_mine, sidecar, workload
from tests.deploy.podrules import faults

from stateward_sidecar.settings import load_settings

MINE = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace"
Patched = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "deploy/README.md").read_text()


def block(page: str, beginning: str) -> str:
    """The block of YAML that begins so."""
    (found,) = re.findall(rf"```yaml\n({re.escape(beginning)}.*?)```", page, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def agent(page: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(block(page, "apiVersion: apps/v1"))
    return found


@pytest.fixture(scope="module")
def objects(
    page: str, agent: dict[str, Any], repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What a stranger applies who copies the page's files."""
    text = block(page, MINE)
    return render_mine(repository, tmp_path_factory.mktemp("page"), [agent], text)


def test_the_files_of_the_page(objects: list[dict[str, Any]]) -> None:
    """The overlay renders as written: the stranger's image and bucket, and every mount has its volume."""
    (bucket,) = [item["data"]["STATEWARD_ARCHIVE"] for item in objects if item["kind"] == "ConfigMap"]
    assert bucket == "s3://my-bucket/agents"
    assert sidecar(objects)["image"] == "example.com/stateward:1"
    assert faults(pod(objects)) == []


def test_the_api_server_takes_the_files(objects: list[dict[str, Any]]) -> None:
    """The API server's own code accepts what the stranger applies."""
    verdicts = programs.check(objects)
    assert {verdict["kind"] for verdict in verdicts} == {"ConfigMap", "Deployment", "Pod"}
    for verdict in verdicts:
        assert not verdict.keys() & {"errors", "warnings", "unjudged"}, verdict


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    part = page.partition(f"{heading}\n")[2].partition("\n##")[0]
    lines = [line.strip("|") for line in part.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_the_table_names_every_field(page: str, agent: dict[str, Any], objects: list[dict[str, Any]]) -> None:
    """The table of the page has each field of the pod that changes, with its names and values, and no other."""
    template = workload(objects)["spec"]["template"]
    changed = paths_of(agent["spec"]["template"], template)
    table = {row[0].strip("`"): row[1] for row in rows(page, "### What changes in your pod")}
    assert {re.sub(r"\[.*|\.stateward$", "", path) for path in changed} - {"spec.securityContext"} == table.keys() - {
        "spec.securityContext.fsGroup"
    }
    for volume in template["spec"]["volumes"]:
        assert f"`{volume['name']}`" in table["spec.volumes"]
    assert f"sets {template['spec']['securityContext']['fsGroup']}:" in table["spec.securityContext.fsGroup"]
    assert template["spec"]["securityContext"].keys() == {"fsGroup"}
    user = sidecar(objects)["securityContext"]
    assert f"as user and group {user['runAsUser']}," in table["spec.initContainers"]
    assert user["runAsUser"] == user["runAsGroup"]
    needs = sidecar(objects)["resources"]
    wanted, limit = needs["requests"], needs["limits"]["memory"]
    said = f"requests {wanted['cpu']} CPU and {wanted['memory']} memory, and its limit is {limit}"
    assert said in table["spec.initContainers"]


@pytest.fixture
def patched(page: str, agent: dict[str, Any], repository: Path, tmp_path: Path) -> Patched:
    """What the overlay of the page makes with the patches that have a text, a further component, and more objects."""

    def render_it(part: str, components: str = "", *more: dict[str, Any]) -> list[dict[str, Any]]:
        (found,) = [each for each in re.findall(r"```yaml\n(patches:.*?)```", page, re.DOTALL) if part in each]
        text = yaml.safe_load(block(page, MINE))
        text["patches"] += yaml.safe_load(found)["patches"]
        text["components"] += [components] if components else []
        mine = deepcopy(agent)
        pod([mine])["securityContext"] = {"fsGroup": 1}
        return render_mine(repository, tmp_path, [mine, *more], yaml.safe_dump(text))

    return render_it


def data_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    (data,) = [volume for volume in pod(found)["volumes"] if volume["name"] == "stateward-data"]
    assert faults(pod(found)) == []
    return dict(data)


def room_of(found: list[dict[str, Any]]) -> int:
    given = {entry["name"]: entry["value"] for entry in sidecar(found)["env"]}
    assert given["STATEWARD_GRACE"] == "20"  # the others stay
    return load_settings([], given)[0].map_bytes


def test_a_group_of_your_own(patched: Patched) -> None:
    """A pod keeps its own group of volumes with the patch of the page."""
    assert pod(patched("fsGroup"))["securityContext"] == {"fsGroup": 2000}


def test_a_pod_that_is_ready_without_its_sidecar(patched: Patched) -> None:
    """The patch of the page removes the readiness probe, and nothing else of the sidecar."""
    before, after = sidecar(patched("fsGroup")), sidecar(patched("readinessProbe"))
    assert before.pop("readinessProbe")
    assert after == before


def test_more_room(patched: Patched) -> None:
    """With the patch of the page the volume is larger, and the daemon still ends below its limit."""
    found = patched("sizeLimit")
    assert data_of(found) == {"name": "stateward-data", "emptyDir": {"sizeLimit": "16Gi"}}
    assert room_of(found) == 12 << 30
    needs = sidecar(found)["resources"]["requests"]
    assert needs == {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": "4Gi"}


def test_a_claim_of_your_own(patched: Patched) -> None:
    """With the patch of the page the data lie on a claim, and not on the node."""
    found = patched("claimName")
    assert data_of(found) == {"name": "stateward-data", "persistentVolumeClaim": {"claimName": "web-agent-state"}}
    assert room_of(found) == 36 << 30
    assert "ephemeral-storage" not in sidecar(found)["resources"]["requests"]


def test_a_port_in_the_network_policy(patched: Patched) -> None:
    """The port of the page's agent is open beside that of the metrics, and the API server takes the policy."""
    found = patched("NetworkPolicy", "../network-policy")
    (policy,) = [item for item in found if item["kind"] == "NetworkPolicy"]
    ports = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert ports == [9464, 8080]
    (port,) = pod(found)["containers"][0]["ports"]
    assert port["containerPort"] in ports
    assert not any(verdict.keys() & {"errors", "warnings"} for verdict in programs.check([policy]))


def test_an_identity_of_your_own(patched: Patched, page: str) -> None:
    """The account of the page has the reader's role, and not that of the example."""
    account = yaml.safe_load(block(page, "apiVersion: v1\nkind: ServiceAccount"))
    found = patched("role-arn", "../identity/aws", account)
    (made,) = [item for item in found if item["kind"] == "ServiceAccount"]
    assert made["metadata"]["annotations"] == {
        "eks.amazonaws.com/role-arn": "arn:aws:iam::444455556666:role/my-agents"
    }
    assert made["metadata"]["name"] == pod(found)["serviceAccountName"]


def test_the_defaults_of_a_cluster(page: str, repository: Path, tmp_path: Path) -> None:
    """The overlay of the page puts the cluster's image and bucket into the policy's defaults."""
    shutil.copytree(repository / "deploy/kubernetes", tmp_path, dirs_exist_ok=True)
    (tmp_path / "cluster").mkdir()
    text = block(page, "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../policy]")
    (tmp_path / "cluster/kustomization.yaml").write_text(text)
    (defaults,) = [item for item in render(tmp_path / "cluster") if item["kind"] == "ConfigMap"]
    assert defaults["data"] == {
        "image": "example.com/stateward:1", "STATEWARD_ARCHIVE": "s3://my-bucket/agents", "STATEWARD_GRACE": "20"
    }  # fmt: skip


def test_every_folder_is_on_the_page(page: str, repository: Path) -> None:
    """Each component has a row, and each row has a folder."""
    folders = repository / "deploy/kubernetes"
    components = {
        str(file.parent.relative_to(folders))
        for file in folders.rglob("kustomization.yaml")
        if "kind: Component" in file.read_text()
    }
    named = {name.strip("`/") for row in rows(page, "### The components") for name in row[0].split(", ")}
    assert named == components


def test_the_pod_of_the_page_is_injected(page: str, repository: Path) -> None:
    """The page's CronJob is one, and its pods get the sidecar and the mount from the policy."""
    job = yaml.safe_load(block(page, "apiVersion: batch/v1"))
    verdicts = programs.check([job])
    assert [verdict["kind"] for verdict in verdicts] == ["CronJob", "Pod"]
    assert not any(verdict.keys() & {"errors", "warnings"} for verdict in verdicts), verdicts
    template = job["spec"]["jobTemplate"]["spec"]["template"]
    template["metadata"]["name"] = "nightly"
    policy = render(repository / "deploy/kubernetes/policy")
    (answer,) = programs.admit([*policy, {"apiVersion": "v1", "kind": "Pod", **template}])
    assert answer["pod"]["spec"]["initContainers"][0]["name"] == "stateward"
    assert answer["pod"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/run/stateward"
